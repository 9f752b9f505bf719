"""The row of waiting prompts, in the order in which they start (SES-6).

    steering │ waiting │ parked │ behind

First come the prompts that wait to join the running turn, then those that wait here, then those that are parked in the
archive because a run could not carry them over, then those that were accepted after these. Of a parked prompt, the row
has the id, a number and the size; the archive has its text. It is restored before its turn comes, so prompts start in
the order in which they were accepted.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, islice, takewhile

from pydantic_core import to_json

from turnkeeper.models.limits import Limits
from turnkeeper.models.session.queue.prompts import ParkedPrompt, Prompt, PromptSignal
from turnkeeper.models.transcript.attachment_contents import json_bytes
from turnkeeper.models.wire import Compact, Items

QUEUED_PROMPT_BYTES = 300
"""Size of a waiting prompt without its text, as JSON."""


class RowState(Compact):
    """The carried part of the row.

    Numbers below `next_number` have been used for parked prompts; the archive was told to delete those below
    `forgotten`.
    """

    steering: Items[Prompt] = []
    waiting: Items[Prompt] = []
    parked: Items[ParkedPrompt] = []
    behind: Items[Prompt] = []
    next_number: int = 1
    forgotten: int = 1


class PromptRow:
    """The waiting prompts, first in first out.

    Unless stated otherwise, the cost of a method depends on its arguments, not on the length of the row.
    """

    def __init__(self, state: RowState) -> None:
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
        """JSON bytes of all waiting texts."""
        self.id_bytes = 0
        """JSON bytes of the whole row if it were parked: ids, numbers, sizes."""
        self.parked_bytes = sum(item.size for item in self.parked)
        for item in self:
            self._add(item)

    @property
    def state(self) -> RowState:
        return RowState(
            steering=self.steering,
            waiting=self.waiting,
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
        """Insert a prompt at the place for its mode (SES-7)."""
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
        """Remove and return the next prompt. Raises `IndexError` if there is none."""
        prompt = self.waiting.pop(0)
        self._drop(prompt.id)
        return prompt

    def pop_steering(self, *, room: int) -> list[Prompt]:
        """Remove and return the steering prompts that fit in `room` bytes of JSON, in order."""
        popped: list[Prompt] = []
        while self.steering and (room := room - self._sizes[self.steering[0].id]) >= 0:
            popped.append(self.steering.pop(0))
            self._drop(popped[-1].id)
        return popped

    def pop_last(self) -> str:
        """Remove the last prompt and return its id. Raises `IndexError` if there is none."""
        if not self.behind and self.parked:
            last = self.parked.pop()
            self.parked_bytes -= last.size
            self._drop(last.id)
            return last.id
        prompt = (self.behind or self.waiting or self.steering).pop()
        self._drop(prompt.id)
        return prompt.id

    def requeue_steering(self, *, after: int = 0) -> None:
        """Move steering prompts to the head of the queue, behind interrupting ones (SES-7).

        The first `after` of them stay steering prompts.
        """
        first = next(
            (index for index, prompt in enumerate(self.waiting) if prompt.mode != "interrupt"), len(self.waiting)
        )
        self.waiting[first:first] = self.steering[after:]
        del self.steering[after:]
        self._positions = None

    def remove(self, message_id: str) -> None:
        """Remove a waiting prompt, in linear time."""
        self._drop(message_id)
        self.steering = [prompt for prompt in self.steering if prompt.id != message_id]
        self.waiting = [prompt for prompt in self.waiting if prompt.id != message_id]
        self.behind = deque(prompt for prompt in self.behind if prompt.id != message_id)
        self._replace_parked(item for item in self.parked if item.id != message_id)

    def clear(self) -> list[str]:
        """Remove all prompts; return their ids in order."""
        ids = [item.id for item in self]
        self._replace_parked([])
        for row in (self.steering, self.waiting, self.behind):
            row.clear()
        for message_id in ids:
            self._drop(message_id)
        return ids

    # ---- parking

    def fits(self, limits: Limits) -> bool:
        """Return whether none of the prompts need to be parked before the next run."""
        count, size = len(self) - len(self.parked), self.text_bytes - self.parked_bytes
        return count <= 1 or (count <= limits.max_queued_prompts and size <= limits.queued_bytes)

    def next_parked(self, limits: Limits, *, max_bytes: int) -> list[Prompt]:
        """Return the next prompts to park, in order: about the surplus, with at most `max_bytes`.

        Surplus steering prompts move to the head of the queue: no model call could include all of them.
        """
        count, size = max(1, limits.max_queued_prompts // 2), limits.queued_bytes // 2
        staying = self._count_fitting(self.steering, count=count, size=size)
        if staying < len(self.steering):
            self.requeue_steering(after=staying)
        if self.behind:
            return self._batch(self.behind, max_bytes)
        left = size - self._bytes_of(self.steering)
        fitting = self._count_fitting(self.waiting, count=count - staying, size=left)
        surplus = self.waiting[fitting if self.steering else max(1, fitting) :]
        if self.parked:
            # They come before the prompts that are already parked: park the last of them first.
            return self._batch(reversed(surplus), max_bytes)[::-1]
        return self._batch(surplus, max_bytes)

    def number_parked(self, count: int) -> int:
        """Reserve `count` new numbers and return the first."""
        first = self.next_number
        self.next_number += count
        return first

    def put_parked(self, prompts: Sequence[Prompt], *, first: int) -> list[str]:
        """Mark `prompts` as parked under numbers from `first` on, and drop their texts; return the ids of those parked.

        Prompts that have started or were withdrawn meanwhile are skipped. So are those that are now before a prompt
        that the archive does not have; their copies there are deleted later.
        """
        numbers = {
            prompt.id: number
            for number, prompt in enumerate(prompts, start=first)
            # The id may belong to another prompt now: a rejected id can be sent again.
            if (item := self._items.get(prompt.id)) and item is prompt
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
        """Return start and end of the parked prompts in the row: without a gap, and with those parked before."""
        places = [place for place, is_so in enumerate(is_parked) if is_so]
        if not places:
            return len(is_parked), len(is_parked)
        start = stop = len(self.waiting) if self.parked else places[-1]
        while start and is_parked[start - 1]:
            start -= 1
        while stop < len(is_parked) and is_parked[stop]:
            stop += 1
        return start, stop

    def is_unparking_due(self, limits: Limits) -> bool:
        """Return whether to fetch the next parked prompts: few prompts wait before them."""
        if not self.parked:
            return False
        few = len(self.waiting) + len(self.steering) <= limits.max_queued_prompts // 4
        return few and self._bytes_of(self.before_parked) <= limits.queued_bytes // 4

    def restore_parked(self, prompts: Iterable[Prompt]) -> bool:
        """Put parked prompts back in their places; return whether the next one was among them.

        It is not if it was withdrawn while it was fetched, and not if the archive has lost it.
        """
        by_id = {prompt.id: prompt for prompt in prompts}
        row = list(self.parked)
        restored = [by_id[item.id] for item in takewhile(lambda item: item.id in by_id, row)]
        self.waiting.extend(restored)
        self._items.update((prompt.id, prompt) for prompt in restored)
        self._replace_parked(row[len(restored) :])
        return bool(restored) or not row

    @property
    def forgettable(self) -> int:
        """The archive can delete parked prompts with numbers below this; 0: there are none to delete."""
        first = min((item.number for item in self.parked), default=self.next_number)
        return first if first > self.forgotten else 0

    def forget_below(self, number: int) -> None:
        self.forgotten = max(self.forgotten, number)

    def _replace_parked(self, parked: Iterable[ParkedPrompt]) -> None:
        """Replace the parked prompts; if none is left, those behind them are next."""
        self.parked = deque(parked)
        self.parked_bytes = sum(item.size for item in self.parked)
        if not self.parked:
            self.waiting.extend(self.behind)
            self.behind.clear()
        self._positions = None

    # ---- places and sizes

    @property
    def before_parked(self) -> Iterator[Prompt]:
        """The prompts before the first parked one, in order."""
        return chain(self.steering, self.waiting)

    def first(self, count: int) -> list[Prompt]:
        return list(islice(self.before_parked, count))

    def places(self, message_ids: Iterable[str]) -> list[tuple[int, Prompt | ParkedPrompt]]:
        """Return those of these prompts that are waiting, with their positions from 1, in order."""
        if self._positions is None:
            self._positions = {item.id: position for position, item in enumerate(self, start=1)}
        positions = {one: position for one in message_ids if (position := self._positions.get(one))}
        return sorted(((position, self._items[one]) for one, position in positions.items()), key=lambda place: place[0])

    def size_of(self, prompt: Prompt) -> int:
        """Return the carried bytes of a waiting prompt."""
        return self._sizes[prompt.id] + QUEUED_PROMPT_BYTES

    @property
    def carried_bytes(self) -> int:
        """The carried bytes of the row as it is: texts that are not parked, and all ids."""
        count, size = len(self) - len(self.parked), self.text_bytes - self.parked_bytes
        return size + QUEUED_PROMPT_BYTES * count + self.id_bytes

    def reserved_bytes(self, limits: Limits) -> int:
        """Return the carried bytes of a full row, with the references to prompts that are parked or will be.

        More references than `limits.parked_bytes` don't count: they must not take the room of turns.
        """
        parked = min(self.id_bytes, limits.parked_bytes) if self.parked or not self.fits(limits) else 0
        return limits.queued_bytes + QUEUED_PROMPT_BYTES * min(len(self), limits.max_queued_prompts) + parked

    def _count_fitting(self, prompts: Iterable[Prompt], *, count: int, size: int) -> int:
        """Return how many of the first `count` prompts have at most `size` bytes together."""
        sizes = accumulate(self._sizes[prompt.id] for prompt in islice(prompts, count))
        return sum(1 for _ in takewhile(lambda total: total <= size, sizes))

    def _batch(self, prompts: Iterable[Prompt], max_bytes: int) -> list[Prompt]:
        """Return the first prompts with at most `max_bytes` together, but at least one if there is any."""
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


def text_bytes(prompt: Prompt | PromptSignal) -> int:
    """Return the JSON bytes of a prompt's text, with its attachments if it has any."""
    return len(to_json(prompt.text)) + json_bytes(prompt.attachments)


def row_bytes(message_id: str) -> int:
    """Return the carried bytes of a parked prompt."""
    return len(message_id) + 20  # its quotes, the number, the size, brackets and commas
