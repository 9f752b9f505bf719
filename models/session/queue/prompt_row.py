"""The prompts that wait, in the order in which they start (SES-6).

    steering │ waiting │ parked │ behind

What waits is one row: the prompts that wait to join the running turn, those that are held here, those that are parked
in the archive since a run could not hand them over, and those that were accepted after these. A parked prompt is an
id, a number and a size here; its text is in the archive. It comes back before its turn comes, so the order of start is
the order of acceptance.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, islice, takewhile

from pydantic_core import to_json

from turnkeeper.models.limits import Limits
from turnkeeper.models.session.queue.prompts import ParkedPrompt, Prompt
from turnkeeper.models.wire import Compact, Items

QUEUED_PROMPT_BYTES = 300
"""What a waiting prompt takes beside its text."""


class RowState(Compact):
    """What the next run is handed of the row.

    Numbers below `next_number` were given to parked prompts; the archive was told to forget those below `forgotten`.
    """

    steering: Items[Prompt] = []
    waiting: Items[Prompt] = []
    parked: Items[ParkedPrompt] = []
    behind: Items[Prompt] = []
    next_number: int = 1
    forgotten: int = 1


class PromptRow:
    """The waiting prompts, first in first out.

    Every method but those that say so costs time in proportion to what it is given, not to what waits. By rules 2, a
    prompt can leave the row while others are parked.
    """

    def __init__(self, state: RowState, *, rules: int) -> None:
        self._rules = rules
        self.steering = list(state.steering)
        self.waiting = list(state.waiting)
        self.parked = deque(state.parked)
        self.behind = deque(state.behind)
        self.next_number = state.next_number
        self.forgotten = state.forgotten
        self._items: dict[str, Prompt | ParkedPrompt] = {}
        self._sizes: dict[str, int] = {}
        self._positions: dict[str, int] | None = None
        self.text_bytes = 0
        """JSON bytes of all texts that wait."""
        self.id_bytes = 0
        """What all that waits would take if it were carried parked: ids, numbers, sizes."""
        self.parked_bytes = sum(item.size for item in self.parked)
        for item in self:
            self._add(item)

    @property
    def state(self) -> RowState:
        """What the next run is handed; by rules 2, what has left the row waits at its head there."""
        waiting = self.waiting
        if self._rules < 3:
            row = {item.id for item in self}
            lost = [item for item in self._items.values() if isinstance(item, Prompt) and item.id not in row]
            waiting = [*lost, *waiting]
        return RowState(
            steering=self.steering,
            waiting=waiting,
            parked=list(self.parked),
            behind=list(self.behind),
            next_number=self.next_number,
            forgotten=self.forgotten,
        )

    def __len__(self) -> int:
        return len(self.steering) + len(self.waiting) + len(self.parked) + len(self.behind)

    def __iter__(self) -> Iterator[Prompt | ParkedPrompt]:
        yield from self.steering
        yield from self.waiting
        yield from self.parked
        yield from self.behind

    def __contains__(self, message_id: object) -> bool:
        return message_id in self._items

    # ---- in and out

    def insert(self, prompt: Prompt, *, turn_is_running: bool) -> None:
        """Add a prompt at the place that its mode says (SES-7)."""
        self._add(prompt)
        if turn_is_running and prompt.mode == "interrupt":
            self.waiting.insert(0, prompt)
        elif turn_is_running and prompt.mode == "steer":
            self.steering.append(prompt)
        elif self.parked:
            self.behind.append(prompt)
        else:
            self.waiting.append(prompt)

    def pop_next(self) -> Prompt:
        """Remove the next prompt and return it. Raises `IndexError` when none waits here."""
        prompt = self.waiting.pop(0)
        self._drop(prompt.id)
        return prompt

    def pop_steering(self, *, room: int) -> list[Prompt]:
        """Remove what waits to join the running turn and fits into `room` bytes of JSON, and return it in order."""
        popped: list[Prompt] = []
        while self.steering and (room := room - self._sizes[self.steering[0].id]) >= 0:
            popped.append(self.steering.pop(0))
            self._drop(popped[-1].id)
        return popped

    def pop_last(self) -> Prompt:
        row = next(row for row in (self.behind, self.waiting, self.steering) if row)
        prompt = row.pop()
        self._drop(prompt.id)
        return prompt

    def requeue_steering(self, *, after: int = 0) -> None:
        """Put what no model call took up to the head of the queue, behind the prompt that interrupted it (SES-7).

        The first `after` of them go on waiting for the running turn.
        """
        first = next(
            (index for index, prompt in enumerate(self.waiting) if prompt.mode != "interrupt"), len(self.waiting)
        )
        self.waiting[first:first] = self.steering[after:]
        del self.steering[after:]
        self._positions = None

    def remove(self, message_id: str) -> None:
        """Remove a prompt that waits, at a cost in proportion to what waits."""
        self._drop(message_id)
        self.steering = [prompt for prompt in self.steering if prompt.id != message_id]
        self.waiting = [prompt for prompt in self.waiting if prompt.id != message_id]
        self.behind = deque(prompt for prompt in self.behind if prompt.id != message_id)
        self._replace_parked(item for item in self.parked if item.id != message_id)

    def clear(self) -> list[str]:
        """Let nothing wait any more; returns the ids of all that did, in order."""
        ids = [item.id for item in self]
        self._replace_parked([])
        for row in (self.steering, self.waiting, self.behind):
            row.clear()
        for message_id in ids:
            self._drop(message_id)
        return ids

    # ---- parking

    def fits(self, limits: Limits) -> bool:
        """Return whether all that is held here can be carried to the next run."""
        held, size = len(self) - len(self.parked), self.text_bytes - self.parked_bytes
        return held <= 1 or (held <= limits.max_queued_prompts and size <= limits.queued_bytes)

    def next_parked(self, limits: Limits, *, max_bytes: int) -> list[Prompt]:
        """Return the prompts to be parked next, in order: about as many as are too many, at most `max_bytes`.

        Steering prompts that are too many go to the head of the queue: no model call could take them all up.
        """
        count, size = max(1, limits.max_queued_prompts // 2), limits.queued_bytes // 2
        staying = self._count_fitting(self.steering, count=count, size=size)
        if staying < len(self.steering):
            self.requeue_steering(after=staying)
        if self.behind:
            return self._batch(self.behind, max_bytes)
        left = size - self._bytes_of(self.steering)
        kept = self._count_fitting(self.waiting, count=count - staying, size=left)
        surplus = self.waiting[kept if self.steering else max(1, kept) :]
        if self.parked:
            # They come before what is parked already: the last of them first.
            return self._batch(reversed(surplus), max_bytes)[::-1]
        return self._batch(surplus, max_bytes)

    def number_parked(self, count: int) -> int:
        """Return the first of `count` numbers that no prompt was parked under before."""
        first = self.next_number
        self.next_number += count
        return first

    def put_parked(self, prompts: Sequence[Prompt], *, first: int) -> list[str]:
        """Hold only the ids of `prompts`, which the archive has under the numbers from `first` on; returns these ids.

        What has started or was withdrawn meanwhile is not touched. Prompts that came before others meanwhile, which the
        archive does not have, stay here with those; their copies are forgotten in time.
        """
        numbers = {
            prompt.id: number
            for number, prompt in enumerate(prompts, start=first)
            # An id can be another prompt's by now: one that was rejected may be sent again.
            if (held := self._items.get(prompt.id)) and (held is prompt or self._rules < 3)
        }
        row = list(islice(self, len(self.steering), None))
        start, stop = self._parked_part([isinstance(item, ParkedPrompt) or item.id in numbers for item in row])
        self.waiting = [item for item in row[:start] if isinstance(item, Prompt)]
        self.behind = deque(item for item in row[stop:] if isinstance(item, Prompt))
        parked_now = [item.id for item in row[start:stop] if isinstance(item, Prompt) and item.id in numbers]
        for message_id in parked_now:
            self._items[message_id] = ParkedPrompt(message_id, numbers[message_id], self._sizes[message_id])
        parked = (self._items[item.id] for item in row[start:stop])
        self._replace_parked(item for item in parked if isinstance(item, ParkedPrompt))
        return parked_now

    def _parked_part(self, is_parked: Sequence[bool]) -> tuple[int, int]:
        """Return where the parked prompts begin and end in the row: without a gap, around those parked before."""
        places = [place for place, is_so in enumerate(is_parked) if is_so]
        if not places:
            return len(is_parked), len(is_parked)
        if self._rules < 3:
            return places[0], places[-1] + 1  # what is in a gap leaves the row until the next run
        start = stop = len(self.waiting) if self.parked else places[-1]
        while start and is_parked[start - 1]:
            start -= 1
        while stop < len(is_parked) and is_parked[stop]:
            stop += 1
        return start, stop

    def wants_parked(self, limits: Limits) -> bool:
        """Return whether the next parked prompts are to be fetched: few wait before them."""
        if not self.parked:
            return False
        few = len(self.waiting) + len(self.steering) <= limits.max_queued_prompts // 4
        return few and self._bytes_of(self.held) <= limits.queued_bytes // 4

    def restore_parked(self, prompts: Iterable[Prompt]) -> bool:
        """Put parked prompts that came back to their place again; returns whether any was the next one."""
        found = {prompt.id: prompt for prompt in prompts}
        row = list(self.parked)
        taken = [found[item.id] for item in takewhile(lambda item: item.id in found, row)]
        self.waiting.extend(taken)
        self._items.update((prompt.id, prompt) for prompt in taken)
        self._replace_parked(row[len(taken) :])
        return bool(taken) or not row

    @property
    def forgettable(self) -> int:
        """The archive is to forget the parked prompts with numbers below this; 0: it has no others."""
        first = min((item.number for item in self.parked), default=self.next_number)
        return first if first > self.forgotten else 0

    def forget_below(self, number: int) -> None:
        self.forgotten = max(self.forgotten, number)

    def _replace_parked(self, parked: Iterable[ParkedPrompt]) -> None:
        """Let just these be parked; where none is, what came after them is next."""
        self.parked = deque(parked)
        self.parked_bytes = sum(item.size for item in self.parked)
        if not self.parked:
            self.waiting.extend(self.behind)
            self.behind.clear()
        self._positions = None

    # ---- places and sizes

    @property
    def held(self) -> Iterator[Prompt]:
        """The prompts before the first parked one, in order."""
        return chain(self.steering, self.waiting)

    def first(self, count: int) -> list[Prompt]:
        return list(islice(self.held, count))

    def places(self, message_ids: Iterable[str]) -> list[tuple[int, Prompt | ParkedPrompt]]:
        """Return those of the prompts that wait, with their positions from 1, in order."""
        if self._positions is None:
            self._positions = {item.id: position for position, item in enumerate(self, start=1)}
        found = {one: position for one in message_ids if (position := self._positions.get(one))}
        return sorted(((position, self._items[one]) for one, position in found.items()), key=lambda place: place[0])

    def size_of(self, prompt: Prompt) -> int:
        """Return what a prompt that waits here takes when it is carried."""
        return self._sizes[prompt.id] + QUEUED_PROMPT_BYTES

    def carried_bytes(self, limits: Limits) -> int:
        """Count what is carried of the row as if it were full; of prompts parked, or to be parked, what names them."""
        if self._rules < 2:
            return limits.queued_bytes + QUEUED_PROMPT_BYTES * len(self)
        parked = self.id_bytes if self.parked or not self.fits(limits) else 0
        return limits.queued_bytes + QUEUED_PROMPT_BYTES * min(len(self), limits.max_queued_prompts) + parked

    def _count_fitting(self, prompts: Iterable[Prompt], *, count: int, size: int) -> int:
        """Return how many of the first prompts are at most `count`, with at most `size` bytes."""
        sizes = accumulate(self._sizes[prompt.id] for prompt in islice(prompts, count))
        return sum(1 for _ in takewhile(lambda total: total <= size, sizes))

    def _batch(self, prompts: Iterable[Prompt], max_bytes: int) -> list[Prompt]:
        """Return the first prompts with at most `max_bytes` together; one, if there is any."""
        batch: list[Prompt] = []
        for prompt in prompts:
            max_bytes -= self.size_of(prompt)
            if max_bytes < 0 and batch:
                break
            batch.append(prompt)
        return batch

    def _bytes_of(self, prompts: Iterable[Prompt]) -> int:
        return sum(self._sizes[prompt.id] for prompt in prompts)

    def _add(self, item: Prompt | ParkedPrompt) -> None:
        self._items[item.id] = item
        self._sizes[item.id] = size = item.size if isinstance(item, ParkedPrompt) else text_bytes(item)
        self.text_bytes += size
        self.id_bytes += row_bytes(item.id)
        self._positions = None

    def _drop(self, message_id: str) -> None:
        del self._items[message_id]
        self.text_bytes -= self._sizes.pop(message_id)
        self.id_bytes -= row_bytes(message_id)
        self._positions = None


def text_bytes(prompt: Prompt) -> int:
    """Return the JSON bytes of a prompt's text."""
    return len(to_json(prompt.text))


def row_bytes(message_id: str) -> int:
    """Return what a parked prompt takes that is carried to the next run."""
    return len(message_id) + 20  # its quotes, the number, the size, brackets and commas
