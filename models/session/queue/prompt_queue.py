"""The queue of a session: which prompts wait, in which order they start, and what became of the last ones (SES-6).

Theory of operation. What waits is one row: the prompts that wait to join the running turn, those that are held here,
those that are parked in the archive since a run could not hand them over, and those that were accepted after these.

    steering │ waiting │ parked │ behind

A parked prompt is an id, a number and a size here; its text is in the archive. It comes back before its turn comes, so
the order of start is the order of acceptance (SES-6). Fates are remembered here as long as people look at them; those
that are no turn then leave for the archive, where they can be asked for.
"""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate, chain, islice, takewhile

from pydantic_core import to_json

from turnkeeper.models.bounds import bound_json
from turnkeeper.models.errors import RefusalReason, Refused
from turnkeeper.models.limits import Limits
from turnkeeper.models.session.queue.leaving_fates import LeavingFates, fate_bytes
from turnkeeper.models.session.queue.prompts import (
    CarriedQueue,
    Fate,
    FateName,
    ParkedPrompt,
    Prompt,
    QueuedPrompt,
    QueueView,
)
from turnkeeper.models.wire import UtcDatetime

REMEMBERED_IDS = 1_000
REMEMBERED_FATES = 200

ACCEPTED_TIMES = 10
"""The session accepts this many times what the gateway admits: others send too, and some see an older queue (SES-6)."""

FATES_AT_ONCE = 50
"""Once this many fates wait to leave, they are moved to the archive."""

QUEUED_PROMPT_BYTES = 300
"""What a waiting prompt takes beside its text."""

REASON_BYTES = 500
"""What is kept of a fate's reason, in JSON."""


class PromptQueue:
    """The waiting prompts, first in first out, the ids already taken, and the last fates.

    Every method but those that say so costs time in proportion to what it is given, not to what waits.
    """

    def __init__(
        self,
        *,
        waiting: Iterable[Prompt] = (),
        steering: Iterable[Prompt] = (),
        taken_ids: Iterable[str] = (),
        fates: Iterable[Fate] = (),
        carried: CarriedQueue | None = None,
        limits: Limits | None = None,
        rules: int = 3,
    ) -> None:
        """Continue from what another run carried over; `limits` bound what is remembered.

        By rules 1 nothing is parked, and fates that fall out of the last 200 are forgotten. By rules 2 a prompt can
        leave the row while others are parked.
        """
        limits, carried = limits or Limits(), carried or CarriedQueue()
        self._rules = rules
        self.waiting = list(waiting)
        self.steering = list(steering)
        self.parked = deque(carried.parked)
        self.behind = deque(carried.behind)
        self.next_number = carried.next_number
        self.forgotten = carried.forgotten
        self._items: dict[str, Prompt | ParkedPrompt] = {}
        self._sizes: dict[str, int] = {}
        self._positions: dict[str, int] | None = None
        self.text_bytes = 0
        """JSON bytes of all texts that wait."""
        self.row_bytes = 0
        """What all that waits would take if it were carried parked: ids, numbers, sizes."""
        self.parked_bytes = sum(item.size for item in self.parked)
        for item in self._row():
            self._add(item)
        self._most_ids_bytes, self._most_fates_bytes = limits.ids_bytes, limits.fates_bytes
        self.ids_bytes = 0
        self.fates_bytes = 0
        self.taken_ids: dict[str, None] = {}
        self.fates: deque[Fate] = deque()
        self.leaving = LeavingFates()
        self._fate_by_id: dict[str, Fate] = {}
        for message_id in taken_ids:
            self._take_id(message_id)
        for fate in carried.leaving:
            self._fate_by_id[fate.id] = fate
            self.leaving.add(fate)
        for fate in fates:
            self._remember(fate)

    def __len__(self) -> int:
        return len(self.steering) + len(self.waiting) + len(self.parked) + len(self.behind)

    def is_duplicate(self, message_id: str) -> bool:
        """Return whether this id was accepted before: the same prompt, sent again (SES-6)."""
        return message_id in self.taken_ids or (self._rules >= 2 and message_id in self._items)

    # ---- what it may hold

    def check_room(self, prompt: Prompt, limits: Limits) -> None:
        """Raise `Refused` where another prompt would be too much (SES-6)."""
        self.check_count(limits)
        # As JSON, since that is how they are carried: a control character takes six bytes there.
        size = _text_bytes(prompt)
        most = limits.queued_bytes * self._times
        if self.text_bytes + size > most or size > limits.queued_bytes:
            one = f", {limits.queued_bytes:,} of them for one prompt" if self._times > 1 else ""
            raise Refused(
                "queue_full",
                f"The waiting prompts would hold {self.text_bytes + size:,} bytes; limits.max_queued_bytes and "
                f"limits.max_state_bytes allow {most:,}{one}.",
            )
        if self._rules >= 2 and self.row_bytes + _row_bytes(prompt.id) > limits.parked_bytes:
            raise Refused(
                "queue_full",
                f"The ids of the {len(self):,} waiting prompts take {self.row_bytes:,} bytes; "
                f"limits.max_state_bytes allows {limits.parked_bytes:,}.",
            )

    def check_count(self, limits: Limits) -> None:
        """Raise `Refused` where as many prompts wait as may (SES-6)."""
        most = limits.max_queued_prompts * self._times
        if len(self) >= most:
            allows = f"limits.max_queued_prompts allows {limits.max_queued_prompts}"
            held = f"{allows}, and the session holds {self._times} times as many" if self._times > 1 else allows
            raise Refused("queue_full", f"{len(self)} prompts are waiting already; {held}.")

    @property
    def _times(self) -> int:
        return ACCEPTED_TIMES if self._rules >= 2 else 1

    # ---- in and out

    def accept(self, prompt: Prompt, *, turn_is_running: bool) -> None:
        """Queue a prompt by its mode; from here it ends in exactly one fate (SES-6, SES-7)."""
        self._take_id(prompt.id)
        self._add(prompt)
        if turn_is_running and prompt.mode == "interrupt":
            self.waiting.insert(0, prompt)
        elif turn_is_running and prompt.mode == "steer":
            self.steering.append(prompt)
        elif self.parked:
            self.behind.append(prompt)
        else:
            self.waiting.append(prompt)

    def reject(self, message_id: str, refusal: Refused, *, at: UtcDatetime) -> None:
        """Record that a prompt was refused and why; its id may be sent again."""
        self._decide(message_id, "rejected", at=at, reason=refusal.message, refusal=refusal.reason)

    def start_next(self, *, at: UtcDatetime) -> Prompt:
        """Take the prompt whose turn starts now. Raises `IndexError` when none waits here."""
        prompt = self.waiting.pop(0)
        self._drop(prompt.id)
        self._decide(prompt.id, "started", at=at, turn_id=prompt.id)
        return prompt

    def take_steering(self, turn_id: str, *, at: UtcDatetime, room: int) -> list[Prompt]:
        """Take what waits to join the running turn `turn_id` and fits into `room` bytes of JSON, in order (SES-7)."""
        taken: list[Prompt] = []
        while self.steering and (room := room - self._sizes[self.steering[0].id]) >= 0:
            taken.append(self.steering.pop(0))
            self._drop(taken[-1].id)
            self._decide(taken[-1].id, "steered", at=at, turn_id=turn_id)
        return taken

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

    def find(self, message_id: str) -> Prompt | ParkedPrompt | None:
        """Return the waiting prompt with this id."""
        return self._items.get(message_id)

    def withdraw(self, message_id: str, *, at: UtcDatetime) -> None:
        """Take a waiting prompt back, at a cost in proportion to what waits. Raises `Refused` (SES-8)."""
        self.check_waiting(message_id)
        self._drop(message_id)
        self.steering = [prompt for prompt in self.steering if prompt.id != message_id]
        self.waiting = [prompt for prompt in self.waiting if prompt.id != message_id]
        self.behind = deque(prompt for prompt in self.behind if prompt.id != message_id)
        self._replace_parked(item for item in self.parked if item.id != message_id)
        self._decide(message_id, "withdrawn", at=at)

    def check_waiting(self, message_id: str) -> None:
        """Raise `Refused` where the prompt can't be withdrawn, saying what became of it instead."""
        if message_id in self._items:
            return
        fate = self.fate_of(message_id)
        if fate is None and message_id not in self.taken_ids:
            raise Refused("unknown_prompt", f"No prompt {message_id!r} is known in this session.", field="id")
        became = fate.fate if fate else "processed"
        raise Refused("not_waiting", f"Prompt {message_id!r} is not waiting: it was {became} already.", field="id")

    def discard_all(self, reason: str, *, at: UtcDatetime) -> None:
        """Give every waiting prompt the fate `discarded`: the session ends without them."""
        for message_id in self._clear():
            self._decide(message_id, "discarded", at=at, reason=reason)

    def reject_all(self, refusal: Refused, *, at: UtcDatetime) -> None:
        """Give every waiting prompt the fate `rejected`: the session can take no more work (SES-15)."""
        for message_id in self._clear():
            self._reject_accepted(message_id, refusal, at=at)

    def _clear(self) -> list[str]:
        """Let nothing wait any more; returns the ids of all that did, in order."""
        ids = [item.id for item in self._row()]
        self._replace_parked([])
        for row in (self.steering, self.waiting, self.behind):
            row.clear()
        for message_id in ids:
            self._drop(message_id)
        return ids

    def _reject_accepted(self, message_id: str, refusal: Refused, *, at: UtcDatetime) -> None:
        self.reject(message_id, refusal, at=at)
        self._forget_id(message_id)

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

    def put_parked(self, prompts: Sequence[Prompt], *, first: int) -> None:
        """Hold only the ids of `prompts`, which the archive has under the numbers from `first` on.

        What has started or was withdrawn meanwhile is not touched. Prompts that came before others meanwhile, which the
        archive does not have, stay here with those; their copies are forgotten in time.
        """
        numbers = {
            prompt.id: number
            for number, prompt in enumerate(prompts, start=first)
            # An id can be another prompt's by now: one that was rejected may be sent again.
            if (held := self._items.get(prompt.id)) and (held is prompt or self._rules < 3)
        }
        row = list(islice(self._row(), len(self.steering), None))
        start, stop = self._parked_part([isinstance(item, ParkedPrompt) or item.id in numbers for item in row])
        self.waiting = [item for item in row[:start] if isinstance(item, Prompt)]
        self.behind = deque(item for item in row[stop:] if isinstance(item, Prompt))
        for item in row[start:stop]:
            if isinstance(item, Prompt) and item.id in numbers:
                self._items[item.id] = ParkedPrompt(item.id, numbers[item.id], self._sizes[item.id])
                self._forget_id(item.id)  # what waits is known by its place
        parked = (self._items[item.id] for item in row[start:stop])
        self._replace_parked(item for item in parked if isinstance(item, ParkedPrompt))

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
        return few and self._bytes_of(chain(self.waiting, self.steering)) <= limits.queued_bytes // 4

    def take_parked(self, prompts: Iterable[Prompt]) -> bool:
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
        """Note that the archive has no parked prompt below `number`."""
        self.forgotten = max(self.forgotten, number)

    def reject_surplus(self, refusal: Refused, limits: Limits, *, at: UtcDatetime) -> None:
        """Give what can't be carried, the last of what is held here, the fate `rejected`; parked prompts stay."""
        while not self.fits(limits):
            row = next(row for row in (self.behind, self.waiting, self.steering) if row)
            prompt = row.pop()
            self._drop(prompt.id)
            self._reject_accepted(prompt.id, refusal, at=at)

    def _replace_parked(self, parked: Iterable[ParkedPrompt]) -> None:
        """Let just these be parked; where none is, what came after them is next."""
        self.parked = deque(parked)
        self.parked_bytes = sum(item.size for item in self.parked)
        if not self.parked:
            self.waiting.extend(self.behind)
            self.behind.clear()
        self._positions = None

    def _count_fitting(self, prompts: Iterable[Prompt], *, count: int, size: int) -> int:
        """Return how many of the first prompts are at most `count`, with at most `size` bytes."""
        sizes = accumulate(self._sizes[prompt.id] for prompt in islice(prompts, count))
        return sum(1 for _ in takewhile(lambda total: total <= size, sizes))

    def _batch(self, prompts: Iterable[Prompt], max_bytes: int) -> list[Prompt]:
        """Return the first prompts with at most `max_bytes` together; one, if there is any."""
        batch: list[Prompt] = []
        for prompt in prompts:
            max_bytes -= self._sizes[prompt.id] + QUEUED_PROMPT_BYTES
            if max_bytes < 0 and batch:
                break
            batch.append(prompt)
        return batch

    def _bytes_of(self, prompts: Iterable[Prompt]) -> int:
        return sum(self._sizes[prompt.id] for prompt in prompts)

    # ---- what it shows

    def fate_of(self, message_id: str) -> Fate | None:
        """Return what became of a prompt, as far as it is remembered here."""
        return self._fate_by_id.get(message_id)

    def first(self, count: int) -> list[Prompt]:
        """Return the first prompts that are held here, at most `count`."""
        return list(islice(chain(self.steering, self.waiting), count))

    def view(
        self,
        *,
        revision: int,
        message_ids: Collection[str] | None = None,
        refusing: Refused | None = None,
        limits: Limits | None = None,
    ) -> QueueView:
        """Show what waits and what became of the rest; only these prompts, where `message_ids` are given."""
        limits = limits or Limits()
        if message_ids is None:
            places: Iterable[tuple[int, Prompt | ParkedPrompt]] = enumerate(chain(self.steering, self.waiting), start=1)
            positions: dict[str, int] = {}
            fates = list(self.fates)
        else:
            places = self._places_of(message_ids)
            positions = {item.id: position for position, item in places}
            decided = [one for one in message_ids if one not in self._items]
            fates = [fate for one in decided if (fate := self._fate_by_id.get(one))]
        return QueueView(
            waiting=self._shown(places, max_bytes=limits.page_bytes - limits.fates_bytes),
            fates=fates,
            revision=revision,
            refusing=refusing.reason if refusing else None,
            refusing_because=refusing.message if refusing else None,
            length=len(self),
            bytes=self.text_bytes,
            parked=len(self.parked),
            positions=positions,
            max_prompts=limits.max_queued_prompts,
            max_bytes=limits.queued_bytes,
        )

    def _shown(self, places: Iterable[tuple[int, Prompt | ParkedPrompt]], *, max_bytes: int) -> list[QueuedPrompt]:
        """Return the first prompts that take at most `max_bytes` together, one at least; none that is parked."""
        shown: list[QueuedPrompt] = []
        for position, item in places:
            if isinstance(item, Prompt):
                max_bytes -= self._sizes[item.id] + QUEUED_PROMPT_BYTES
                if max_bytes < 0 and shown:
                    break
                shown.append(_queued(item, position))
        return shown

    def _places_of(self, message_ids: Iterable[str]) -> list[tuple[int, Prompt | ParkedPrompt]]:
        """Return those of the prompts that wait, with their positions, in order."""
        if self._positions is None:
            self._positions = {item.id: position for position, item in enumerate(self._row(), start=1)}
        found = {one: position for one in message_ids if (position := self._positions.get(one))}
        return sorted(((position, self._items[one]) for one, position in found.items()), key=lambda place: place[0])

    @property
    def carried_waiting(self) -> list[Prompt]:
        """What waits at the head of the next run; by rules 2, first what has left the row."""
        if self._rules >= 3:
            return self.waiting
        row = {item.id for item in self._row()}
        lost = [item for item in self._items.values() if isinstance(item, Prompt) and item.id not in row]
        return [*lost, *self.waiting]

    def carry(self, limits: Limits, *, drops_rejections: bool) -> CarriedQueue:
        """Return what the next run is handed over beside `carried_waiting`, `steering`, `taken_ids` and `fates`.

        Of the fates on their way to the archive the oldest rejections are dropped to keep within their bound, where
        `drops_rejections`.
        """
        if drops_rejections:
            for fate in self.leaving.bound(max_bytes=limits.leaving_bytes):
                self._forget_fate(fate)
        return CarriedQueue(
            parked=list(self.parked),
            behind=list(self.behind),
            next_number=self.next_number,
            forgotten=self.forgotten,
            leaving=list(self.leaving),
        )

    # ---- inside

    def _row(self) -> Iterator[Prompt | ParkedPrompt]:
        yield from self.steering
        yield from self.waiting
        yield from self.parked
        yield from self.behind

    def _add(self, item: Prompt | ParkedPrompt) -> None:
        self._items[item.id] = item
        self._sizes[item.id] = size = item.size if isinstance(item, ParkedPrompt) else _text_bytes(item)
        self.text_bytes += size
        self.row_bytes += _row_bytes(item.id)
        self._positions = None

    def _drop(self, message_id: str) -> None:
        del self._items[message_id]
        self.text_bytes -= self._sizes.pop(message_id)
        self.row_bytes -= _row_bytes(message_id)
        self._positions = None

    def _take_id(self, message_id: str) -> None:
        if message_id in self.taken_ids:
            return
        self.taken_ids[message_id] = None
        self.ids_bytes += _id_bytes(message_id)
        while len(self.taken_ids) > REMEMBERED_IDS or self.ids_bytes > self._most_ids_bytes:
            self._forget_id(next(iter(self.taken_ids)))

    def _forget_id(self, message_id: str) -> None:
        if message_id in self.taken_ids:
            del self.taken_ids[message_id]
            self.ids_bytes -= _id_bytes(message_id)

    def _decide(
        self,
        message_id: str,
        fate: FateName,
        *,
        at: UtcDatetime,
        turn_id: str | None = None,
        reason: str | None = None,
        refusal: RefusalReason | None = None,
    ) -> None:
        if self._rules >= 2 and fate != "rejected":
            self._take_id(message_id)  # while it waited it may have made way for others
        told = reason and bound_json(reason, REASON_BYTES, REASON_BYTES)
        self._remember(Fate(id=message_id, fate=fate, at=at, turn_id=turn_id, reason=told, refusal=refusal))

    def _remember(self, fate: Fate) -> None:
        self.fates.append(fate)
        self._fate_by_id[fate.id] = fate
        self.fates_bytes += fate_bytes(fate)
        while len(self.fates) > REMEMBERED_FATES or self.fates_bytes > self._most_fates_bytes:
            oldest = self.fates.popleft()
            self.fates_bytes -= fate_bytes(oldest)
            # A turn tells by itself that it was started.
            if self._rules < 2 or oldest.fate == "started":
                self._forget_fate(oldest)
            elif dropped := self.leaving.add(oldest):
                self._forget_fate(dropped)

    def fates_left(self, fates: Iterable[Fate]) -> None:
        """Remember no longer what the archive has taken of `leaving`."""
        for fate in self.leaving.remove(fates):
            self._forget_fate(fate)

    def bound_leaving(self, limits: Limits) -> None:
        """Drop the oldest fates on their way to the archive until the rest can be carried, rejections first."""
        for fate in self.leaving.bound(max_bytes=limits.leaving_bytes, rejections_only=False):
            self._forget_fate(fate)

    def _forget_fate(self, fate: Fate) -> None:
        if self._fate_by_id.get(fate.id) is fate:
            del self._fate_by_id[fate.id]


def _queued(prompt: Prompt, position: int) -> QueuedPrompt:
    return QueuedPrompt(
        id=prompt.id, text=prompt.text, position=position, mode=prompt.mode, received_at=prompt.received_at
    )


def _text_bytes(prompt: Prompt) -> int:
    return len(to_json(prompt.text))


def _row_bytes(message_id: str) -> int:
    return len(message_id) + 20  # its quotes, the number, the size, brackets and commas


def _id_bytes(message_id: str) -> int:
    return len(message_id) + 3  # its quotes, and a comma
