"""How full each session's queue is, as far as this gateway knows without a query (SES-6).

A prompt is a signal, and Temporal accepts signals for a session even if no worker runs. So that a 202 is a promise, the
gateway decides before the signal whether there is room, from three sources:

    read   the last answer of the session about its queue: every receipt and every read of the queue
    own    the signals of this gateway since then; room is reserved before a signal, and released if it failed
    tail   the signals at the end of the history that no workflow task has processed yet, while no worker answers

Signals that Temporal still buffers, and those of other gateways since the tail was read, are in none of them. So the
limit is a courtesy: the session itself accepts every prompt.

Nothing here waits. Callers pass the time, in seconds on the event loop's clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from cachetools import LRUCache
from pydantic_core import to_json

from turnkeeper.models.errors import RejectedError
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.limits import Limits
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.session.queue.prompt_row import text_bytes
from turnkeeper.models.session.queue.prompts import PromptSignal, QueueView, check_text

FRESH_SECONDS = 2.0
"""How long a session that rejected prompts is assumed to reject more."""

TAIL_SECONDS = 1.0
"""How often the tail of a session's history is read at most."""

UNSETTLED_SECONDS = 4.0
"""Within this time a signal with an unknown outcome reaches the history, or never does."""

MAX_ESTIMATES = 10_000
MAX_ACCEPTED_IDS = 50_000


@dataclass(frozen=True)
class QueueRead:
    """A session's answer about its queue. It includes all signals that Temporal had at `asked_at`."""

    asked_at: float
    length: int
    bytes: int
    max_prompts: int
    max_bytes: int
    max_prompt_chars: int = Limits().max_prompt_chars
    rejection: RejectedError | None = None
    """The rejection of any prompt, if the session rejects them all."""


def queue_read_of(view: QueueView, *, asked_at: float) -> QueueRead:
    """Return the read of the queue from a view."""
    return QueueRead(
        asked_at,
        length=view.length,
        bytes=view.bytes,
        max_prompts=view.max_prompts,
        max_bytes=view.max_bytes,
        max_prompt_chars=view.max_prompt_chars,
        rejection=RejectedError(view.refusing, view.refusing_because or "The session accepts no prompts now.")
        if view.refusing
        else None,
    )


def initial_queue_read(start: SessionInput, *, asked_at: float) -> QueueRead:
    """Return the read of the queue for a session that this gateway has just started."""
    first = start.first_prompt
    return QueueRead(
        asked_at,
        length=1 if start.first_prompt else 0,
        bytes=text_bytes(first) if isinstance(first, PromptSignal) else len(to_json(first or "")),
        max_prompts=start.limits.max_queued_prompts,
        max_bytes=start.limits.queued_bytes,
        max_prompt_chars=start.limits.max_prompt_chars,
    )


@dataclass(frozen=True)
class HistoryTail:
    """The prompts at the end of a history that no workflow task has processed, read at `asked_at`."""

    asked_at: float
    sizes: Mapping[str, int] = field(default_factory=dict)
    """JSON bytes of the texts, by the prompts' ids."""
    without_id: int = 0
    """How many signals have no id."""
    without_id_bytes: int = 0
    is_whole: bool = True
    """No signal was omitted."""
    is_closed: bool = False
    """The session is closed: no workflow task will ever process them."""
    is_ending: bool = False
    """The session was told to end: it rejects later prompts."""

    @property
    def count(self) -> int:
        return len(self.sizes) + self.without_id

    @property
    def bytes(self) -> int:
        """JSON bytes of their texts."""
        return sum(self.sizes.values()) + self.without_id_bytes

    def will_process(self, message_id: str) -> bool:
        """Return whether the prompt is among them, and the session is open and will process it."""
        return message_id in self.sizes and not self.is_closed


@dataclass
class _OwnSignal:
    """A signal of this gateway since the last read. `settled_at`: when Temporal had it; `None`: it is being sent."""

    size: int
    settled_at: float | None = None
    is_certain: bool = True


class QueueEstimate:
    """How full one session's queue is, as far as this gateway knows."""

    def __init__(self) -> None:
        self.read: QueueRead | None = None
        self.tail: HistoryTail | None = None
        self.first_limits: Limits | None = None
        """The limits that the session's run began with, used until there is a read."""
        self.reservations = 0
        """How many prompts were counted so far: a prompt that sees it grow may be overtaken."""
        self._unanswered_at = float("-inf")
        self._own_signals: dict[str, _OwnSignal] = {}

    # ---- updating the estimate

    def note_read(self, read: QueueRead) -> None:
        """Use the session's answer, unless it is older than the last one."""
        if self.read is not None and read.asked_at < self.read.asked_at:
            return
        self.read = read
        if self.tail is not None and self.tail.asked_at <= read.asked_at:
            self.tail = None
        self._own_signals = {
            message_id: own_signal
            for message_id, own_signal in self._own_signals.items()
            if own_signal.settled_at is None or own_signal.settled_at >= read.asked_at
        }

    def note_tail(self, tail: HistoryTail) -> None:
        """Use the tail of the history. A signal with an unknown outcome that is not in it was never sent."""
        if self.read is not None and self.read.asked_at >= tail.asked_at:
            return
        self.tail = tail
        if tail.is_whole:
            for message_id, own_signal in list(self._own_signals.items()):
                is_due = own_signal.settled_at is not None and own_signal.settled_at < tail.asked_at
                if is_due and not own_signal.is_certain and message_id not in tail.sizes:
                    del self._own_signals[message_id]

    def note_silence(self, *, now: float) -> None:
        """Note that the session did not answer a query."""
        self._unanswered_at = now

    def is_silent(self, *, now: float) -> bool:
        """Return whether the session recently did not answer, and has not answered since."""
        return self._unanswered_at > now - FRESH_SECONDS and not self._has_answered

    @property
    def _has_answered(self) -> bool:
        return self.read is not None and self.read.asked_at >= self._unanswered_at

    def is_tail_due(self, *, now: float, answered_at: float = float("-inf")) -> bool:
        """Return whether the history's tail must be read to know how full the queue is.

        `answered_at`: when a worker last answered for any session. If that was a moment ago, the first prompt of an
        unknown session is sent without reading the tail, since its receipt will say how full the queue is. And if a
        worker has answered since this session did not, this one is only busy. Unless there is no worker, the tail does
        not matter while even all signals since an answer would leave half of the queue free.
        """
        if self.read is None and self.tail is None:
            return answered_at < now - FRESH_SECONDS or bool(self._own_signals)
        if self.read is not None and self.read.asked_at >= now - FRESH_SECONDS:
            return False
        if (self._has_answered or self._is_only_busy(answered_at)) and not self._is_half_full:
            return False
        settled_times = [own_signal.settled_at for own_signal in self._own_signals.values() if own_signal.settled_at]
        if self._has_answered and min(settled_times, default=now) >= now - FRESH_SECONDS:
            return False
        return self.tail is None or self.tail.asked_at < now - TAIL_SECONDS

    def _is_only_busy(self, answered_at: float) -> bool:
        """Return whether a worker has answered for another session since this one did not, or since only its tail."""
        tail_read_at = self.tail.asked_at if self.tail is not None and self.read is None else float("-inf")
        return answered_at > max(tail_read_at, self._unanswered_at)

    # ---- room

    def rejection(self, message_id: str, size: int, *, now: float) -> RejectedError | None:
        """Return the rejection of a prompt of `size` JSON bytes; `None` if there is room."""
        rejection_of_all = self.rejection_of_all(now=now)
        if rejection_of_all is not None:
            return rejection_of_all
        if message_id in self._own_signals:
            return None  # a repetition, which is already counted
        if self.tail is not None and self.tail.is_closed:
            return None  # Temporal rejects the signal with the reason
        if self.tail is not None and self.tail.is_ending:
            return RejectedError("ending", "The session is ending and takes no more prompts.")
        max_prompts, max_bytes = self.limits
        count, bytes_ = self._waiting()
        if count >= max_prompts:
            return RejectedError(
                "queue_full",
                f"{count} prompts are waiting already; limits.max_queued_prompts allows {max_prompts}.",
            )
        if count and bytes_ + size > max_bytes:
            return RejectedError(
                "queue_full",
                f"The waiting prompts would hold {bytes_ + size:,} bytes; limits.max_queued_bytes and "
                f"limits.max_state_bytes allow {max_bytes:,}.",
            )
        return None

    def length_rejection(self, text: str, *, now: float) -> RejectedError | None:
        """Return the rejection of a text that is too long by a recent answer of the session; `None` without one.

        The session itself accepts it: it may have been accepted by a gateway that knew other limits.
        """
        if self.read is None or self.read.asked_at < now - FRESH_SECONDS:
            return None
        try:
            check_text(text, limits=Limits(max_prompt_chars=self.read.max_prompt_chars), may_be_blank=True)
        except RejectedError as rejection:
            return rejection
        return None

    def rejection_of_all(self, *, now: float) -> RejectedError | None:
        """Return the session's own recent rejection of all prompts; `None` if there is none."""
        if self.read is not None and self.read.asked_at >= now - FRESH_SECONDS:
            return self.read.rejection
        return None

    def has_room_by_read(self, size: int, *, now: float) -> bool:
        """Return whether the session itself said a moment ago that there is room: only signals under way fill it."""
        read = self.read
        if read is None or read.asked_at < now - FRESH_SECONDS or read.rejection or self.is_silent(now=now):
            return False
        return read.length < read.max_prompts and (not read.length or read.bytes + size <= read.max_bytes)

    def is_in_tail(self, message_id: str, *, now: float) -> bool:
        """Return whether the prompt was recently at the end of the history, so that signalling it again is useless."""
        tail = self.tail
        return tail is not None and tail.asked_at >= now - TAIL_SECONDS and tail.will_process(message_id)

    def reserve(self, message_id: str, size: int) -> None:
        """Count a prompt that is about to be signalled. A repetition counts once."""
        if message_id not in self._own_signals:
            self.reservations += 1
            self._own_signals[message_id] = _OwnSignal(size)

    def settle(self, message_id: str, *, now: float) -> None:
        if own_signal := self._own_signals.get(message_id):
            own_signal.settled_at, own_signal.is_certain = now, True

    def are_others_settled(self, message_id: str) -> bool:
        """Return whether no other signal of this gateway is under way."""
        return all(
            own_signal.settled_at is not None
            for other_id, own_signal in self._own_signals.items()
            if other_id != message_id
        )

    def leave_open(self, message_id: str, *, now: float) -> None:
        """Note that Temporal may have the prompt, or may get it in a moment, so that it counts."""
        own_signal = self._own_signals.get(message_id)
        if own_signal and own_signal.settled_at is None:
            own_signal.settled_at, own_signal.is_certain = now + UNSETTLED_SECONDS, False

    def release(self, message_id: str) -> None:
        """Stop counting a prompt that Temporal has not accepted."""
        own_signal = self._own_signals.get(message_id)
        if own_signal and own_signal.settled_at is None:
            del self._own_signals[message_id]

    @property
    def limits(self) -> tuple[int, int]:
        """The maximum number of queued prompts, and of their JSON bytes, as far as known."""
        if self.read is not None:
            return self.read.max_prompts, self.read.max_bytes
        limits = self.first_limits or Limits()
        return limits.max_queued_prompts, limits.queued_bytes

    @property
    def _is_half_full(self) -> bool:
        """Whether at most half of the queue is free, if none of our signals has been processed."""
        (count, bytes_), (max_prompts, max_bytes) = self._waiting(), self.limits
        return 2 * count >= max_prompts or 2 * bytes_ >= max_bytes

    def _waiting(self) -> tuple[int, int]:
        """Return the number of queued prompts and their JSON bytes, by the higher of the two estimates."""
        own = list(self._own_signals.values())
        count, bytes_ = len(own), sum(own_signal.size for own_signal in own)
        if self.tail is not None:
            since = [
                own_signal.size
                for message_id, own_signal in self._own_signals.items()
                if message_id not in self.tail.sizes
                and (own_signal.settled_at is None or own_signal.settled_at >= self.tail.asked_at)
            ]
            count, bytes_ = max(count, self.tail.count + len(since)), max(bytes_, self.tail.bytes + sum(since))
        if self.read is not None:
            count, bytes_ = count + self.read.length, bytes_ + self.read.bytes
        return count, bytes_


class QueueEstimates:
    """The estimates of the most recently used sessions, and the ids of the most recently accepted prompts."""

    def __init__(self) -> None:
        self._estimates = LRUCache[str, QueueEstimate](maxsize=MAX_ESTIMATES)
        self._accepted_ids = LRUCache[tuple[str, str], None](maxsize=MAX_ACCEPTED_IDS)
        self.answered_at = float("-inf")
        """When a worker last answered for any session."""

    def of(self, workflow_id: WorkflowId) -> QueueEstimate:
        estimate = self._estimates[workflow_id] = self._estimates.get(workflow_id) or QueueEstimate()
        return estimate

    def note_answer(self, *, now: float) -> None:
        """Note that a worker has answered for some session."""
        self.answered_at = now

    def note_accepted(self, workflow_id: WorkflowId, message_id: str) -> None:
        self._accepted_ids[workflow_id, message_id] = None

    def note_rejected(self, workflow_id: WorkflowId, message_id: str) -> None:
        """Forget a prompt that the session has rejected, since its id may be sent again."""
        self._accepted_ids.pop((workflow_id, message_id), None)

    def has_accepted(self, workflow_id: WorkflowId, message_id: str) -> bool:
        """Return whether this gateway has recently accepted the prompt."""
        return (workflow_id, message_id) in self._accepted_ids

    def forget(self, workflow_id: WorkflowId) -> None:
        self._estimates.pop(workflow_id, None)
        for key in [key for key in self._accepted_ids if key[0] == workflow_id]:
            del self._accepted_ids[key]
