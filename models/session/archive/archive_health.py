"""How the archive serves a session, and when to turn to it again after it has failed (SES-15)."""

from datetime import datetime, timedelta

from turnkeeper.models.transcript.conversation import ArchiveReport

FIRST_PAUSE = timedelta(seconds=10)
LONGEST_PAUSE = timedelta(minutes=10)
"""Between two attempts at an archive that is down; each is twice as long as the one before."""

ERROR_CHARS = 300


class ArchiveHealth:
    """What is known of the archive."""

    def __init__(self, report: ArchiveReport, again_at: datetime | None) -> None:
        """Continue from what another run carried over."""
        self.report = report
        self.again_at = again_at
        """After a failure: not to be tried before."""

    @property
    def is_failing(self) -> bool:
        """The last attempt has failed."""
        return self.report.failing_since is not None

    @property
    def trouble(self) -> str | None:
        """Why it fails; `None` while it does not."""
        return self.report.last_error if self.is_failing else None

    def worked(self, *, now: datetime) -> bool:
        """Note that the archive has taken something: an earlier trouble is over. Returns whether there was one."""
        self.again_at = None
        if not self.is_failing:
            return False
        self._note(failing_since=None, recovered_at=now)
        return True

    def failed(self, error: str, *, now: datetime) -> None:
        """Note why the archive took nothing; it is to be tried again after a pause."""
        attempts = self.report.attempts_failed + 1 if self.is_failing else 1
        self._note(
            failing_since=self.report.failing_since or now,
            attempts_failed=attempts,
            last_error=error[:ERROR_CHARS].removesuffix("."),
            last_failed_at=now,
        )
        self.again_at = now + min(FIRST_PAUSE * 2 ** min(attempts - 1, 10), LONGEST_PAUSE)

    def count_cut_result(self) -> None:
        """Note that a tool's result was cut, since the store of large texts was down."""
        self._note(results_cut=self.report.results_cut + 1)

    def _note(self, **update: object) -> None:
        self.report = self.report.model_copy(update=update)
