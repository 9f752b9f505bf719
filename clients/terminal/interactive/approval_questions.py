"""Approvals in a terminal: the one text of each call (AGT-8), printed unchanged.

A call can be approved once all of its text was printed. Nothing of it is cut or wrapped here: a terminal breaks long
lines itself, and what scrolls out of sight is in the scrollback. A text that is too long for most scrollbacks is
printed part by part. A line that is broken between two of them continues behind a margin, since only labels begin a
line.
"""

from collections.abc import Callable, Iterable, Iterator

from turnkeeper.clients.terminal import texts
from turnkeeper.models.session.approvals import PendingApproval
from turnkeeper.models.texts.legible import MARGIN

PART_CHARS = 64_000
"""The most that is printed at once."""


class ApprovalQuestions:
    """The texts of waiting calls, and which parts of them were printed. `print_text` prints a part of one as it is."""

    def __init__(self, print_text: Callable[[str], None]) -> None:
        self._print = print_text
        self._approvals: dict[str, PendingApproval] = {}
        self._printed: dict[str, int] = {}
        """How many parts of a call's text were printed."""

    def find(self, call_id: str) -> PendingApproval | None:
        """Return what people decide on, if at least a part of it was printed."""
        return self._approvals.get(call_id) if self._printed.get(call_id) else None

    def has(self, call_id: str) -> bool:
        """Return whether the call's text is known and has the arguments."""
        approval = self._approvals.get(call_id)
        return approval is not None and approval.is_whole

    def learn(self, approvals: Iterable[PendingApproval]) -> None:
        """Note the texts of calls; one that has changed is printed again."""
        for approval in approvals:
            earlier = self._approvals.get(approval.call_id)
            if earlier is None or earlier.text != approval.text:
                self._printed.pop(approval.call_id, None)
            self._approvals[approval.call_id] = approval

    def print_next(self, call_id: str, heading: str) -> None:
        """Print the next part of a call's text; before the first, the heading."""
        approval, printed = self._approvals.get(call_id), self._printed.get(call_id, 0)
        parts = list(_parts_of(approval.text)) if approval else []
        if printed < len(parts):
            self._print(f"{'' if printed else heading}\n{parts[printed]}")
            self._printed[call_id] = printed + 1

    def is_shown_whole(self, call_id: str) -> bool:
        """Return whether all that is decided on was printed: only then can the call be approved."""
        return self.has(call_id) and not self.remaining_text(call_id)

    def remaining_text(self, call_id: str) -> str:
        """Return which part of a call's text is printed next; empty if all was printed."""
        approval, printed = self._approvals.get(call_id), self._printed.get(call_id, 0)
        count = len(list(_parts_of(approval.text))) if approval else 1
        return texts.NEXT_PART.format(part=printed + 1, parts=count) if printed < count else ""


def _parts_of(text: str) -> Iterator[str]:
    """Yield a text in parts of at most `PART_CHARS`, which end with a line where that is possible."""
    while len(text) > PART_CHARS:
        line_end = text.rfind("\n", 0, PART_CHARS) + 1
        end = line_end or PART_CHARS
        yield text[:end].removesuffix("\n")
        text = text[end:] if line_end else MARGIN + text[end:]
    yield text
