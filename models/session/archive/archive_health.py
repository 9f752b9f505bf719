"""How the archive serves a session, and when to turn to it again after it has failed (SES-15)."""

from collections.abc import Callable
from datetime import datetime, timedelta

from turnkeeper.models.transcript.conversation import ArchiveReport
from turnkeeper.models.wire import Compact, UtcDatetime

FIRST_PAUSE = timedelta(seconds=10)
LONGEST_PAUSE = timedelta(minutes=10)
"""Between two attempts at an archive that is down; each is twice as long as the one before."""

ERROR_CHARS = 300


class ArchiveState(Compact):
    """What the next run is handed of the archive's health."""

    report: ArchiveReport = ArchiveReport()
    again_at: UtcDatetime | None = None
    """After a failure: not to be tried before."""


class ArchiveHealth:
    """What is known of the archive."""

    def __init__(self, state: ArchiveState, *, on_change: Callable[[], object] = lambda: None) -> None:
        """Go on from `state`; `on_change` is called by `worked` and `failed`."""
        self.state = state
        """What the next run is handed; replaced with every change."""
        self._on_change = on_change

    @property
    def report(self) -> ArchiveReport:
        return self.state.report

    @property
    def again_at(self) -> datetime | None:
        """After a failure: not to be tried before."""
        return self.state.again_at

    @property
    def is_failing(self) -> bool:
        return self.report.failing_since is not None

    @property
    def trouble(self) -> str | None:
        return self.report.last_error if self.is_failing else None

    def worked(self, *, now: datetime) -> None:
        """Note that the archive has taken something: an earlier trouble is over."""
        was_failing = self.is_failing
        self._update(again_at=None)
        if was_failing:
            self._note(failing_since=None, recovered_at=now)
            self._on_change()

    def failed(self, error: str, *, now: datetime) -> None:
        """Note why the archive took nothing; it is to be tried again after a pause."""
        attempts = self.report.attempts_failed + 1 if self.is_failing else 1
        self._note(
            failing_since=self.report.failing_since or now,
            attempts_failed=attempts,
            last_error=error[:ERROR_CHARS].removesuffix("."),
            last_failed_at=now,
        )
        self._update(again_at=now + min(FIRST_PAUSE * 2 ** min(attempts - 1, 10), LONGEST_PAUSE))
        self._on_change()

    def count_cut_result(self) -> None:
        """Note, as a piece of a change of the session, that a result was cut: the store of large texts was down."""
        self._note(results_cut=self.report.results_cut + 1)

    def _note(self, **update: object) -> None:
        self._update(report=self.report.model_copy(update=update))

    def _update(self, **update: object) -> None:
        self.state = self.state.model_copy(update=update)
