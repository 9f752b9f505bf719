"""How much of what fits into a running turn, which must be carried from run to run (SES-15, SES-16)."""

from dataclasses import dataclass

from turnkeeper.models.errors import fail
from turnkeeper.models.limits import Limits
from turnkeeper.models.session.approvals import APPROVAL_BYTES, CHANGE_BYTES, MAX_DIFF_BYTES

MIN_ANSWER_BYTES = 2_000
"""Room for an answer, however full the turn is."""

RESULT_BYTES = 200
"""Size of a result without its content, as JSON."""


@dataclass(frozen=True)
class TurnBytes:
    """The room of a turn that has `carried` bytes of JSON. `cap` is the maximum that the session can carry."""

    limits: Limits
    carried: int

    def check(self, cap: int, *, archive_error: str | None) -> None:
        """Raise `TurnFailedError` if the turn is larger than `cap`, after its older steps could not be archived."""
        if self.carried > cap:
            holds = f"The turn holds {self.carried:,} bytes; limits.max_state_bytes leaves {cap:,} for it"
            why = f", and the archive could not take its older steps: {archive_error}" if archive_error else "."
            fail("too_large", holds + why)

    def check_room_for_results(self, calls: int, *, asks: bool, shows_changes: bool = False, cap: int) -> None:
        """Raise `TurnFailedError` if there is no room for the results of `calls`.

        `asks`: some need approval; `shows_changes`: of some it shows what they would change in a file.
        """
        needed = self.of_results(calls, asks=asks, shows_changes=shows_changes)
        if self.carried + needed > max(cap, self.limits.min_turn_bytes):
            max_results = max(0, cap - self.carried) * calls // needed
            fail("budget", f"One step asked for {calls} tool calls; the turn has room for {max_results} results.")

    def of_results(self, calls: int, *, asks: bool, shows_changes: bool = False) -> int:
        """Return the room that the results of `calls` need at least, however long they are."""
        a_result = self.limits.small_text_bytes + RESULT_BYTES + (APPROVAL_BYTES if asks else 0)
        return calls * (a_result + (self.limits.small_text_bytes + CHANGE_BYTES if shows_changes else 0))

    def max_answer(self, cap: int) -> int:
        """Return the maximum size of an answer; the results of its calls get the same room."""
        return min(self.limits.answer_bytes, max(MIN_ANSWER_BYTES, (cap - self.carried) // 2))

    @property
    def inline(self) -> int:
        """Maximum of an inline text of an answer (SES-15)."""
        return self.limits.inline_bytes(self.carried)

    @property
    def inline_room(self) -> int:
        """How much more the turn may carry before its texts go by reference; negative if it carries more."""
        return self.limits.turn_inline_bytes - self.carried

    def inline_result(self, results: int) -> int:
        """Return the maximum of an inline result when a step has this many `results` (SES-15)."""
        share = self.inline_room // max(1, results)
        return max(self.limits.small_text_bytes, min(self.inline, share))

    def diff(self, changes: int) -> int:
        """Return the maximum of a difference, as JSON, when a step shows this many `changes` (AGT-8).

        The results of the step's calls have the same room after it.
        """
        return min(MAX_DIFF_BYTES, self.inline_result(2 * changes))
