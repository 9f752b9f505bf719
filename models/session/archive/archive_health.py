"""The archive's health for a session, and when to retry after a failure (SES-15)."""

from collections.abc import Callable
from datetime import datetime, timedelta

from turnkeeper.models.transcript.conversation import ArchiveReport
from turnkeeper.models.wire import Compact, UtcDatetime

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
