"""The queue of a session: the order of its prompts, and their fates (SES-6, SES-7).

    interrupt │ steer │ enqueue │ parked │ enqueue

The queue is one list, in the order in which prompts start. First come those that have interrupted the running turn,
then those that wait to join it, then all others as they were accepted; a prompt's mode says which it is. A range of the
list may be parked in the archive, because a run could not carry it over: of such a prompt, the queue has the id, a
number and the size; the archive has its text. It is restored before its turn comes, so prompts start in the order in
which they were accepted. A prompt leaves the queue with exactly one fate (`prompts.py`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, takewhile

from turnkeeper.models.errors import RejectedError
from turnkeeper.models.limits import Limits
from turnkeeper.models.session.archive import ArchiveMove
from turnkeeper.models.session.prompts import (
    Fate,
    FateBook,
    FateName,
    ParkedPrompt,
    Prompt,
    PromptMode,
)
from turnkeeper.models.texts import bound_json
from turnkeeper.models.wire import Compact, Items, UtcDatetime

FATES_AT_ONCE = 50
"""Number of fates that starts a move to the archive."""

REASON_BYTES = 500
"""Maximum of a fate's reason, as JSON."""

QUEUED_PROMPT_BYTES = 300
"""Size of a waiting prompt without its text, as JSON."""

PARKED_PROMPT_BYTES = 20
"""Size of a parked prompt without its id: quotes, the number, the size, brackets and commas."""


class QueueState(Compact):
    """The carried part of the queue (SES-14).

    Numbers below `next_number` have been used for parked prompts; the archive was told to delete those below
    `forgotten`.
    """

    waiting: Items[Prompt] = []
    """The prompts that are not parked, in order."""
    parked: Items[ParkedPrompt] = []
    """The prompts behind the first `before_parked` of these."""
    before_parked: int = 0
    next_number: int = 1
    forgotten: int = 1
    taken_ids: Items[str] = []
    """The last ids of prompts that were accepted and wait no more."""
    fates: Items[Fate] = []
    leaving: Items[Fate] = []
    """Fates that wait for the archive, oldest first."""


class PromptQueue:
    """The waiting prompts of a session, and the fates of the last ones.

    Unless stated otherwise, the cost of a method depends on its arguments, not on the length of the queue.
    """

    def __init__(self, state: QueueState, *, limits: Limits, on_change: Callable[[], object] = lambda: None) -> None:
        """Continue from `state`; `limits` bound the remembered ids and fates.

        `withdraw`, `remove_moved` and `restore_parked` call `on_change`. All other methods are called in a change of
        the session, which raises the revision itself.
        """
        self._on_change = on_change
        self._rest = state.model_copy(update={"waiting": [], "parked": [], "taken_ids": [], "fates": [], "leaving": []})
        """What is carried without an attribute of its own; replaced with every change."""
        self._waiting = list(state.waiting)
        self._before_parked = state.before_parked
        self.parked = list(state.parked)
        self.next_number = state.next_number
        self.forgotten = state.forgotten
        self.fate_book = FateBook(recent=state.fates, leaving=state.leaving, ids=state.taken_ids, limits=limits)
        self._interrupts = self._steers = 0
        self._count_modes()
        self._by_id: dict[str, Prompt | ParkedPrompt] = {}
        self._positions: dict[str, int] | None = None
        self.text_bytes = 0
        """JSON bytes of all waiting texts."""
        self._parked_bytes = self._id_bytes = 0
        for item in self:
            self._count(item, 1)

    @property
    def state(self) -> QueueState:
        return self._rest.model_copy(
            update={
                "waiting": list(self._waiting),
                "parked": list(self.parked),
                "before_parked": self._before_parked if self.parked else 0,
                "next_number": self.next_number,
                "forgotten": self.forgotten,
                "taken_ids": list(self.fate_book.ids),
                "fates": list(self.fate_book.recent),
                "leaving": list(self.fate_book.leaving),
            }
        )

    def __len__(self) -> int:
        return len(self._waiting) + len(self.parked)

    def __iter__(self) -> Iterator[Prompt | ParkedPrompt]:
        """Yield all waiting prompts, in order."""
        yield from self._waiting[: self._before_parked] if self.parked else self._waiting
        if self.parked:
            yield from self.parked
            yield from self._waiting[self._before_parked :]

    def __contains__(self, message_id: object) -> bool:
        return message_id in self._by_id

    @property
    def next(self) -> Prompt | None:
        """The prompt whose turn is next; `None` if none waits, or if it has to be fetched from the archive."""
        return None if not self._waiting or (self.parked and not self._before_parked) else self._waiting[0]

    @property
    def waiting(self) -> Sequence[Prompt]:
        """The prompts before the first parked one, in order; linear time."""
        return self._waiting[: self._before_parked] if self.parked else list(self._waiting)

    @property
    def steering(self) -> Sequence[Prompt]:
        """The prompts that wait to join the running turn, in order."""
        return self._waiting[self._interrupts : self._interrupts + self._steers]

    # ---- in and out

    def accept(self, prompt: Prompt, *, turn_is_running: bool) -> None:
        """Queue a prompt at the place for its mode; from here it gets exactly one fate (SES-6, SES-7)."""
        mode: PromptMode = prompt.mode if turn_is_running else "enqueue"
        prompt = prompt if mode == prompt.mode else prompt.model_copy(update={"mode": mode})
        if mode == "enqueue":
            self._waiting.append(prompt)
        elif mode == "interrupt":
            self._waiting.insert(0, prompt)
            self._interrupts += 1
        else:
            self._waiting.insert(self._interrupts + self._steers, prompt)
            self._steers += 1
        self._before_parked += mode != "enqueue"
        self._count(prompt, 1)

    def record(
        self,
        message_id: str,
        fate: FateName,
        *,
        at: UtcDatetime,
        turn_id: str | None = None,
        rejection: RejectedError | None = None,
        reason: str | None = None,
    ) -> None:
        """Record the fate of a prompt that does not wait, or waits no more; `rejection` says why it was not accepted.

        The id of a `rejected` one may be sent again.
        """
        refusal, reason = (rejection.reason, rejection.message) if rejection else (None, reason)
        sentence = reason and bound_json(reason, REASON_BYTES, REASON_BYTES)
        self.fate_book.add(Fate(id=message_id, fate=fate, at=at, turn_id=turn_id, reason=sentence, refusal=refusal))

    def start_next(self, *, at: UtcDatetime) -> Prompt:
        """Remove and return the prompt whose turn starts now. Raises `IndexError` if there is none."""
        if self.next is None:
            raise IndexError("no prompt waits here")
        prompt = self._pop(0)
        self.record(prompt.id, "started", at=at, turn_id=prompt.id)
        return prompt

    def pop_steering_prompts(self, turn_id: str, *, at: UtcDatetime, room: int) -> list[Prompt]:
        """Remove and return the steering prompts that fit in `room` bytes of JSON, for turn `turn_id` (SES-7)."""
        prompts = [self._pop(self._interrupts) for _ in range(_count_fitting(self.steering, max_bytes=room))]
        for prompt in prompts:
            self.record(prompt.id, "steered", at=at, turn_id=turn_id)
        return prompts

    def requeue_steering(self, *, after: int = 0) -> None:
        """Turn steering prompts beyond the first `after` of the queue into enqueued ones, in their places."""
        first = max(self._interrupts, after)
        for index in range(first, self._interrupts + self._steers):
            prompt = self._waiting[index].model_copy(update={"mode": "enqueue"})
            self._waiting[index] = self._by_id[prompt.id] = prompt
        self._steers = min(self._steers, first - self._interrupts)

    def withdraw(self, message_id: str, *, at: UtcDatetime) -> None:
        """Withdraw a waiting prompt, in linear time. Raises `RejectedError` (SES-8)."""
        self.check_waiting(message_id)
        item = self._by_id[message_id]
        if isinstance(item, ParkedPrompt):
            self._count(item, -1)
            self.parked.remove(item)
        else:
            self._pop(next(index for index, prompt in enumerate(self._waiting) if prompt is item))
        self.record(message_id, "withdrawn", at=at)
        self._on_change()

    def check_waiting(self, message_id: str) -> None:
        """Raise `RejectedError` if the prompt is not waiting, with its fate."""
        if message_id in self:
            return
        fate = self.fate_book.find(message_id)
        if fate is None and message_id not in self.fate_book.ids:
            raise RejectedError("unknown_prompt", f"No prompt {message_id!r} is known in this session.", field="id")
        became = fate.fate if fate else "processed"
        raise RejectedError(
            "not_waiting", f"Prompt {message_id!r} is not waiting: it was {became} already.", field="id"
        )

    def discard_all(self, reason: str, *, at: UtcDatetime) -> None:
        """Discard all waiting prompts: the session ends without them."""
        for item in list(self):
            self._count(item, -1)
            self.record(item.id, "discarded", at=at, reason=reason)
        self._waiting.clear()
        self.parked.clear()
        self._interrupts = self._steers = 0

    def reject_last(self, rejection: RejectedError, *, at: UtcDatetime) -> None:
        """Reject the last waiting prompt, for which Temporal has no room (SES-15). Raises `IndexError`."""
        if self.parked and len(self._waiting) == self._before_parked:
            last: Prompt | ParkedPrompt = self.parked.pop()
            self._count(last, -1)
        else:
            last = self._pop(len(self._waiting) - 1)
        self.record(last.id, "rejected", at=at, rejection=rejection)

    # ---- parking

    def fits(self, limits: Limits) -> bool:
        """Return whether none of the prompts need to be parked before the next run."""
        count, size = len(self._waiting), self.text_bytes - self._parked_bytes
        return count <= 1 or (count <= limits.max_queued_prompts and size <= limits.queued_bytes)

    def next_to_park(self, limits: Limits, *, max_bytes: int) -> ArchiveMove:
        """Return the move of the next prompts to park, in order: about the surplus, with at most `max_bytes`.

        They get new numbers. Surplus steering prompts wait for turns of their own: no model call could include all of
        them. Linear time.
        """
        behind = self._waiting[self._before_parked :] if self.parked else []
        if behind:
            prompts = _batch(behind, max_bytes)
        else:
            count = max(1, limits.max_queued_prompts // 2)
            staying = max(1, _count_fitting(self._waiting[:count], max_bytes=limits.queued_bytes // 2))
            self.requeue_steering(after=staying)
            surplus = self._waiting[staying:]
            # Those before prompts that are already parked: park the last of them first.
            prompts = _batch(surplus[::-1], max_bytes)[::-1] if self.parked else _batch(surplus, max_bytes)
        move = ArchiveMove(first=self.next_number, prompts=prompts, forget_below=self.forgettable)
        self.next_number += len(prompts)
        return move

    def remove_moved(self, move: ArchiveMove) -> None:
        """Hold no longer what the archive has taken of prompts and fates."""
        self._replace_by_parked(move.prompts, first=move.first)
        self.fate_book.remove_leaving(move.fates)
        self.forget_below(move.forget_below)
        self._on_change()

    def _replace_by_parked(self, prompts: Sequence[Prompt], *, first: int) -> None:
        """Mark `prompts` as parked under numbers from `first` on, and drop their texts.

        Prompts that have started or were withdrawn meanwhile are skipped. So are those that are now before a prompt
        that the archive does not have; their copies there are deleted later.
        """
        numbers = {
            prompt.id: number
            for number, prompt in enumerate(prompts, start=first)
            # The id may belong to another prompt now: a rejected id can be sent again.
            if self._by_id.get(prompt.id) is prompt
        }
        queue = list(self)
        is_parked = [isinstance(item, ParkedPrompt) or item.id in numbers for item in queue]
        if not any(is_parked):
            return
        # The range has no gap, and has the prompts that were parked before.
        start = stop = self._before_parked if self.parked else len(is_parked) - 1 - is_parked[::-1].index(True)
        while start and is_parked[start - 1]:
            start -= 1
        while stop < len(is_parked) and is_parked[stop]:
            stop += 1
        self.parked = [
            item if isinstance(item, ParkedPrompt) else ParkedPrompt(item.id, numbers[item.id], item.size)
            for item in queue[start:stop]
        ]
        self._waiting = [item for item in [*queue[:start], *queue[stop:]] if isinstance(item, Prompt)]
        self._before_parked = start
        self._interrupts = min(self._interrupts, start)
        self._steers = min(self._steers, start - self._interrupts)
        self._by_id.update((item.id, item) for item in self.parked)
        self._parked_bytes = sum(item.size for item in self.parked)

    def is_unparking_due(self, limits: Limits) -> bool:
        """Return whether to fetch the next parked prompts: few prompts wait before them."""
        if not self.parked or self._before_parked > limits.max_queued_prompts // 4:
            return False
        return sum(prompt.size for prompt in self.waiting) <= limits.queued_bytes // 4

    def restore_parked(self, prompts: Iterable[Prompt]) -> bool:
        """Put parked prompts back in their places; return whether the next one was among them.

        It is not if it was withdrawn while it was fetched, and not if the archive has lost it.
        """
        by_id, was_parked = {prompt.id: prompt for prompt in prompts}, bool(self.parked)
        restored = [by_id[item.id] for item in takewhile(lambda item: item.id in by_id, self.parked)]
        for item, prompt in zip(self.parked, restored, strict=False):
            self._count(item, -1)
            self._count(prompt, 1)
        del self.parked[: len(restored)]
        self._waiting[self._before_parked : self._before_parked] = restored
        self._before_parked += len(restored)
        self._count_modes()  # interrupting prompts may have been parked
        self._on_change()
        return bool(restored) or not was_parked

    @property
    def forgettable(self) -> int:
        """The archive can delete parked prompts with numbers below this; 0: there are none to delete."""
        first = min((item.number for item in self.parked), default=self.next_number)
        return first if first > self.forgotten else 0

    def forget_below(self, number: int) -> None:
        """Note that the archive has deleted parked prompts with numbers below this."""
        self.forgotten = max(self.forgotten, number)

    # ---- its size and its places

    @property
    def carried_bytes(self) -> int:
        size = self.text_bytes - self._parked_bytes + QUEUED_PROMPT_BYTES * len(self._waiting) + self._id_bytes
        return size + self.fate_book.bytes + self.fate_book.leaving_bytes

    def reserved_bytes(self, limits: Limits) -> int:
        """Return the carried bytes of a full queue with the present ids and fates, and the present references.

        More references to parked prompts than `limits.parked_bytes` don't count: they must not take the room of turns.
        """
        size = limits.queued_bytes + QUEUED_PROMPT_BYTES * min(len(self), limits.max_queued_prompts)
        if self.parked or not self.fits(limits):
            size += min(self._id_bytes, limits.parked_bytes)
        return size + self.fate_book.bytes + min(self.fate_book.leaving_bytes, limits.leaving_bytes)

    def places(self, message_ids: Iterable[str]) -> list[tuple[int, Prompt | ParkedPrompt]]:
        """Return those of these prompts that are waiting, with their positions from 1, in order."""
        if self._positions is None:
            self._positions = {item.id: position for position, item in enumerate(self, start=1)}
        places = [(self._positions[one], self._by_id[one]) for one in set(message_ids) if one in self]
        return sorted(places, key=lambda place: place[0])

    # ---- inside

    def _pop(self, index: int) -> Prompt:
        """Remove and return one of the prompts that are not parked."""
        prompt = self._waiting.pop(index)
        self._before_parked -= index < self._before_parked
        if index < self._interrupts:
            self._interrupts -= 1
        elif index < self._interrupts + self._steers:
            self._steers -= 1
        self._count(prompt, -1)
        return prompt

    def _count_modes(self) -> None:
        """Count the interrupting and the steering prompts at the head of the queue."""
        modes = [prompt.mode for prompt in self.waiting]
        self._interrupts = sum(1 for _ in takewhile(lambda mode: mode == "interrupt", modes))
        self._steers = sum(1 for _ in takewhile(lambda mode: mode == "steer", modes[self._interrupts :]))

    def _count(self, item: Prompt | ParkedPrompt, times: int) -> None:
        """Note that an item comes, or with -1 that it goes."""
        if times > 0:
            self._by_id[item.id] = item
        else:
            del self._by_id[item.id]
        self.text_bytes += times * item.size
        self._id_bytes += times * (len(item.id) + PARKED_PROMPT_BYTES)
        if isinstance(item, ParkedPrompt):
            self._parked_bytes += times * item.size
        self._positions = None


def _batch(prompts: Sequence[Prompt], max_bytes: int) -> list[Prompt]:
    """Return the first prompts with at most `max_bytes` together, but at least one if there is any."""
    sizes = accumulate(prompt.size + QUEUED_PROMPT_BYTES for prompt in prompts)
    return list(prompts[: max(1, sum(1 for _ in takewhile(lambda total: total <= max_bytes, sizes)))])


def _count_fitting(prompts: Iterable[Prompt], *, max_bytes: int) -> int:
    """Return how many of the first prompts have texts of at most `max_bytes` together."""
    return sum(1 for _ in takewhile(lambda total: total <= max_bytes, accumulate(prompt.size for prompt in prompts)))
