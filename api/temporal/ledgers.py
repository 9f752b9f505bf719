"""How full each session's queue is, as far as this gateway knows without asking (SES-6).

Theory of operation. A prompt is a signal, and Temporal takes signals for a session whether or not a worker runs. So
that a 202 is a promise, the gateway decides before the signal whether there is room. It goes by three things:

    read   what the session last said of its queue: every receipt and every read of the queue is one
    own    what this gateway has signalled since then; room is reserved before the signal, and released if it failed
    tail   the signals at the end of the history that no workflow task has taken yet, while no worker answers

Signals that Temporal still buffers, and those of other gateways since the tail was read, are in none of them. That is
why the session itself accepts more than its limit.

Nothing here waits: times are given by the caller, in seconds on the event loop's clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic_core import to_json

from turnkeeper.models.errors import RejectedError
from turnkeeper.models.limits import Limits
from turnkeeper.models.session.queue.prompts import PromptSignal, QueueView
from turnkeeper.models.session.session import SessionInput
from turnkeeper.stores.bounded_dict import BoundedDict

FRESH_SECONDS = 2.0
"""A session that refused prompts within this time is taken to refuse them still."""

TAIL_SECONDS = 1.0
"""The tail of a session's history is read once in this time."""

UNSETTLED_SECONDS = 4.0
"""A signal whose outcome is not known reaches the history within this time, or never."""

MAX_LEDGERS = 10_000
MAX_ACCEPTED_IDS = 50_000


@dataclass(frozen=True)
class QueueRead:
    """What a session said of its queue, asked at `asked_at`: all signals that Temporal had by then are in it."""

    asked_at: float
    length: int
    bytes: int
    max_prompts: int
    max_bytes: int
    refusal: RejectedError | None = None
    """What the session refused any prompt with."""


def queue_read(view: QueueView, *, asked_at: float) -> QueueRead:
    """Return what a view says of the whole queue, as far as a worker of an earlier release says how long it is."""
    limits = Limits()
    return QueueRead(
        asked_at,
        length=max(view.length, *(prompt.position for prompt in view.waiting), 0),
        bytes=view.bytes,
        max_prompts=view.max_prompts or limits.max_queued_prompts,
        max_bytes=view.max_bytes or limits.queued_bytes,
        refusal=RejectedError(view.refusing, view.refusing_because or "The session takes no prompts now.")
        if view.refusing
        else None,
    )


def first_read(start: SessionInput, *, asked_at: float) -> QueueRead:
    """Return what is known of a session that this gateway has just started."""
    text = start.first_prompt.text if isinstance(start.first_prompt, PromptSignal) else start.first_prompt or ""
    return QueueRead(
        asked_at,
        length=1 if start.first_prompt else 0,
        bytes=len(to_json(text)),
        max_prompts=start.limits.max_queued_prompts,
        max_bytes=start.limits.queued_bytes,
    )


@dataclass(frozen=True)
class Tail:
    """The prompts at the end of a history that no workflow task has taken, read at `asked_at`."""

    asked_at: float
    sizes: Mapping[str, int] = field(default_factory=dict)
    """JSON bytes of the texts, by the prompts' ids."""
    unnamed: int = 0
    """How many signals carry no id."""
    unnamed_bytes: int = 0
    is_whole: bool = True
    """No signal was left out."""
    is_closed: bool = False
    """The session is closed: no workflow task will ever take them."""
    is_ending: bool = False
    """The session was asked to end: it will take no prompt that comes later."""

    @property
    def count(self) -> int:
        return len(self.sizes) + self.unnamed

    @property
    def bytes(self) -> int:
        """JSON bytes of their texts."""
        return sum(self.sizes.values()) + self.unnamed_bytes

    def awaits(self, message_id: str) -> bool:
        """Return whether the prompt is among them and the session, which is open, will take it."""
        return message_id in self.sizes and not self.is_closed


@dataclass
class _Signalled:
    """A signal of this gateway since the last read. `settled_at`: Temporal had it then; `None`: it is under way."""

    size: int
    settled_at: float | None = None
    is_certain: bool = True


class Ledger:
    """One session's queue as this gateway knows it."""

    def __init__(self) -> None:
        self.read: QueueRead | None = None
        self.tail: Tail | None = None
        self.first_limits: Limits | None = None
        """What the session's run began with; good until there is a read."""
        self._unanswered_at = float("-inf")
        self._signalled: dict[str, _Signalled] = {}

    # ---- what is learned

    def note_read(self, read: QueueRead) -> None:
        """Go by what the session said; a read that was asked for before the last one is left aside."""
        if self.read is not None and read.asked_at < self.read.asked_at:
            return
        self.read = read
        if self.tail is not None and self.tail.asked_at <= read.asked_at:
            self.tail = None
        self._signalled = {
            message_id: signalled
            for message_id, signalled in self._signalled.items()
            if signalled.settled_at is None or signalled.settled_at >= read.asked_at
        }

    def note_tail(self, tail: Tail) -> None:
        """Go by the tail of the history; a signal of unknown outcome that is not in it was never sent."""
        if self.read is not None and self.read.asked_at >= tail.asked_at:
            return
        self.tail = tail
        if tail.is_whole:
            for message_id, signalled in list(self._signalled.items()):
                is_due = signalled.settled_at is not None and signalled.settled_at < tail.asked_at
                if is_due and not signalled.is_certain and message_id not in tail.sizes:
                    del self._signalled[message_id]

    def note_silence(self, *, now: float) -> None:
        """Remember that a question to the session went unanswered."""
        self._unanswered_at = now

    def is_silent(self, *, now: float) -> bool:
        """Return whether a question went unanswered a moment ago, and none was answered since."""
        return self._unanswered_at > now - FRESH_SECONDS and not self._has_answered

    @property
    def _has_answered(self) -> bool:
        return self.read is not None and self.read.asked_at >= self._unanswered_at

    def is_tail_due(self, *, now: float, workers_answer: bool = False) -> bool:
        """Return whether only the history's tail can say how full the queue is, and it was not read just now.

        `workers_answer`: one has answered for some session a moment ago. Then the first prompt of a session of which
        nothing is known goes without the tail, and its receipt says how full the queue is.
        """
        if self.read is None:
            if workers_answer and self.tail is None and not self._signalled:
                return False
        else:
            if self.read.asked_at >= now - FRESH_SECONDS:
                return False
            settled = [signalled.settled_at for signalled in self._signalled.values() if signalled.settled_at]
            if self._has_answered and min(settled, default=now) >= now - FRESH_SECONDS:
                return False
        return self.tail is None or self.tail.asked_at < now - TAIL_SECONDS

    # ---- room

    def refusal(self, message_id: str, size: int, *, now: float) -> RejectedError | None:
        """Return what a prompt of `size` JSON bytes is to be refused with now; `None` where there is room."""
        refuses_all = self.refuses_all(now=now)
        if refuses_all is not None:
            return refuses_all
        if message_id in self._signalled:
            return None  # sent twice, it is one prompt, and counted already
        if self.tail is not None and self.tail.is_closed:
            return None  # Temporal refuses the signal, and says why
        if self.tail is not None and self.tail.is_ending:
            return RejectedError("ending", "The session is ending and takes no more prompts.")
        max_prompts, max_bytes = self.limits
        count, bytes_ = self._waiting()
        if count >= max_prompts:
            return RejectedError(
                "queue_full",
                f"{count} prompts are waiting already; limits.max_queued_prompts allows {max_prompts}.",
            )
        if bytes_ + size > max_bytes:
            return RejectedError(
                "queue_full",
                f"The waiting prompts would hold {bytes_ + size:,} bytes; limits.max_queued_bytes and "
                f"limits.max_state_bytes allow {max_bytes:,}.",
            )
        return None

    def refuses_all(self, *, now: float) -> RejectedError | None:
        """Return what the session itself said, a moment ago, that it refuses any prompt with."""
        if self.read is not None and self.read.asked_at >= now - FRESH_SECONDS:
            return self.read.refusal
        return None

    def has_room_by_read(self, size: int, *, now: float) -> bool:
        """Return whether the session itself said a moment ago that there is room: only signals under way fill it."""
        read = self.read
        if read is None or read.asked_at < now - FRESH_SECONDS or read.refusal or self.is_silent(now=now):
            return False
        return read.length < read.max_prompts and read.bytes + size <= read.max_bytes

    def is_in_tail(self, message_id: str, *, now: float) -> bool:
        """Return whether the prompt was at the end of the history a moment ago: to signal it again changes nothing."""
        tail = self.tail
        return tail is not None and tail.asked_at >= now - TAIL_SECONDS and tail.awaits(message_id)

    def reserve(self, message_id: str, size: int) -> None:
        """Count a prompt that is about to be signalled; sent twice, it counts once."""
        self._signalled.setdefault(message_id, _Signalled(size))

    def settle(self, message_id: str, *, now: float) -> None:
        if signalled := self._signalled.get(message_id):
            signalled.settled_at, signalled.is_certain = now, True

    def leave_open(self, message_id: str, *, now: float) -> None:
        """Note that nobody knows whether Temporal has the prompt, or will have it in a moment: it counts."""
        signalled = self._signalled.get(message_id)
        if signalled and signalled.settled_at is None:
            signalled.settled_at, signalled.is_certain = now + UNSETTLED_SECONDS, False

    def release(self, message_id: str) -> None:
        """Count a prompt no longer that Temporal has not taken."""
        signalled = self._signalled.get(message_id)
        if signalled and signalled.settled_at is None:
            del self._signalled[message_id]

    @property
    def limits(self) -> tuple[int, int]:
        """How many prompts may wait, and with how many JSON bytes, as far as that is known."""
        if self.read is not None:
            return self.read.max_prompts, self.read.max_bytes
        limits = self.first_limits or Limits()
        return limits.max_queued_prompts, limits.queued_bytes

    def _waiting(self) -> tuple[int, int]:
        """Return how many prompts wait, and their JSON bytes, by the higher of the two estimates."""
        own = list(self._signalled.values())
        count, bytes_ = len(own), sum(signalled.size for signalled in own)
        if self.tail is not None:
            since = [
                signalled.size
                for message_id, signalled in self._signalled.items()
                if message_id not in self.tail.sizes
                and (signalled.settled_at is None or signalled.settled_at >= self.tail.asked_at)
            ]
            count, bytes_ = max(count, self.tail.count + len(since)), max(bytes_, self.tail.bytes + sum(since))
        if self.read is not None:
            count, bytes_ = count + self.read.length, bytes_ + self.read.bytes
        return count, bytes_


class Ledgers:
    """The ledgers of the sessions that were used last, and the ids of the prompts that were accepted last."""

    def __init__(self) -> None:
        self._ledgers = BoundedDict[str, Ledger](max_entries=MAX_LEDGERS)
        self._accepted = BoundedDict[tuple[str, str], None](max_entries=MAX_ACCEPTED_IDS)
        self._answered_at = float("-inf")

    def of(self, session_id: str) -> Ledger:
        ledger = self._ledgers[session_id] = self._ledgers.get(session_id) or Ledger()
        return ledger

    def note_answer(self, *, now: float) -> None:
        """Remember that a worker has answered for some session."""
        self._answered_at = now

    def workers_answer(self, *, now: float) -> bool:
        """Return whether a worker has answered for some session a moment ago."""
        return self._answered_at >= now - FRESH_SECONDS

    def note_accepted(self, session_id: str, message_id: str) -> None:
        self._accepted[session_id, message_id] = None

    def note_rejected(self, session_id: str, message_id: str) -> None:
        """Forget a prompt that the session has rejected: its id may be sent again."""
        self._accepted.pop((session_id, message_id), None)

    def has_accepted(self, session_id: str, message_id: str) -> bool:
        """Return whether this gateway has accepted the prompt lately."""
        return (session_id, message_id) in self._accepted

    def forget(self, session_id: str) -> None:
        self._ledgers.pop(session_id, None)
        for key in [key for key in self._accepted if key[0] == session_id]:
            del self._accepted[key]
