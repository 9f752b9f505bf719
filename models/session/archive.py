"""Moves to the archive, and its health: when to retry after a failure (SES-15).

A move's content never enters the history: its activity gets an `ArchiveOrder` and reads the content from the
local context cache, or from the workflow by query (AGT-2).
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from hashlib import sha256

from pydantic import field_serializer

from turnkeeper.models.limits import SMALL_TEXT_BYTES
from turnkeeper.models.session.prompts import Fate, Prompt
from turnkeeper.models.transcript.conversation import ArchiveReport, ConversationMessage, Step
from turnkeeper.models.transcript.model_call import IndexEntry
from turnkeeper.models.wire import Compact, Frozen, UtcDatetime


class ArchiveMove(Compact):
    """The content of one move: consecutive turns, early steps of the running turn, prompts to park, fates, or nothing.

    `first` counts from 1 for turns and parked prompts, from 0 for steps. `texts` are those that the model view refers
    to after the move.
    """

    first: int
    turns: list[ConversationMessage] = []
    keeps: bool = False
    """The session keeps the turns too."""
    steps_of: int | None = None
    """The number of the turn of `steps`, from 1."""
    steps: list[Step] = []
    texts: list[str] = []
    kept_bytes: int = SMALL_TEXT_BYTES
    """Texts of the model view over this size, as JSON, go by reference."""
    prompts: list[Prompt] = []
    fates: list[Fate] = []
    forget_below: int = 0
    """Parked prompts with smaller numbers are deleted: the session has them again, and has recorded that."""
    entry: IndexEntry | None = None
    """The session's list entry; a move may consist of it alone. It is not part of the move's identity."""

    @field_serializer("turns")
    def _serialise_turns(self, turns: list[ConversationMessage]) -> list[dict[str, object]]:
        return [turn.without_defaults() for turn in turns]

    @property
    def digest(self) -> str:
        """Identifies the exact content."""
        return sha256(self.model_dump_json(exclude={"entry"}).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        """Describe the content for people.

        >>> str(ArchiveMove(first=0, steps_of=7, steps=[{"kind": "user", "message_id": "m2", "content": "!",
        ...     "timestamp": "2026-01-01T00:00:00Z"}]))
        'steps 0 to 0 of turn 7'
        """
        if self.prompts:
            return f"{len(self.prompts)} waiting prompts"
        if self.fates:
            return f"{len(self.fates)} fates of prompts"
        if self.forget_below:
            return "nothing that waits any more"
        if not self.turns and self.steps_of is None:
            return "the status in lists"
        if self.steps_of is not None:
            return f"steps {self.first} to {self.first + len(self.steps) - 1} of turn {self.steps_of}"
        return f"turns {self.first} to {self.first + len(self.turns) - 1}"


class ArchiveOrder(Compact):
    """Input of `move_to_archive`: the number of the move in this run, and its digest."""

    move: int
    digest: str


class ArchiveMoveQuery(Frozen):
    """Argument of the query `internal_archive_move`."""

    move: int


class UnparkOrder(Compact):
    """Input of `unpark`: read parked prompts from number `first` on, within the two maxima.

    Those with numbers below `forget_below` are deleted.
    """

    first: int
    max_prompts: int
    max_bytes: int
    forget_below: int


class UnparkedPrompts(Compact):
    """Output of `unpark`, by number; it may have prompts that were withdrawn meanwhile."""

    prompts: list[Prompt]


FIRST_PAUSE = timedelta(seconds=10)
MAX_PAUSE = timedelta(minutes=10)
"""The pause between attempts doubles from `FIRST_PAUSE` to this."""

ERROR_CHARS = 300


class ArchiveState(Compact):
    """The carried part of the archive's health."""

    report: ArchiveReport = ArchiveReport()
    again_at: UtcDatetime | None = None
    """After a failure, the earliest time of the next attempt."""


class ArchiveHealth:
    """The archive's health, as this session has seen it."""

    def __init__(self, state: ArchiveState, *, on_change: Callable[[], object] = lambda: None) -> None:
        """Continue from `state`; `record_success` and `record_failure` call `on_change`."""
        self.state = state
        """The carried state; replaced with every change."""
        self._on_change = on_change

    @property
    def report(self) -> ArchiveReport:
        return self.state.report

    @property
    def again_at(self) -> datetime | None:
        """After a failure, the earliest time of the next attempt."""
        return self.state.again_at

    @property
    def is_failing(self) -> bool:
        return self.report.failing_since is not None

    @property
    def current_error(self) -> str | None:
        return self.report.last_error if self.is_failing else None

    def record_success(self, *, now: datetime) -> None:
        """Record that the archive has stored something: an earlier outage is over."""
        was_failing = self.is_failing
        self._update(again_at=None)
        if was_failing:
            self._note(failing_since=None, recovered_at=now)
            self._on_change()

    def record_failure(self, error: str, *, now: datetime) -> None:
        """Record an error of the archive, and when to retry."""
        attempts = self.report.attempts_failed + 1 if self.is_failing else 1
        self._note(
            failing_since=self.report.failing_since or now,
            attempts_failed=attempts,
            last_error=error[:ERROR_CHARS].removesuffix("."),
            last_failed_at=now,
        )
        self._update(again_at=now + min(FIRST_PAUSE * 2 ** min(attempts - 1, 10), MAX_PAUSE))
        self._on_change()

    def count_cut_result(self) -> None:
        """Count a result that was truncated since the store of large texts was down. The caller raises the revision."""
        self._note(results_cut=self.report.results_cut + 1)

    def _note(self, **update: object) -> None:
        self._update(report=self.report.model_copy(update=update))

    def _update(self, **update: object) -> None:
        self.state = self.state.model_copy(update=update)
