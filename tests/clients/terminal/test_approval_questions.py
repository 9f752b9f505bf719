"""A call can be approved only after all of it was printed: AGT-8."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pyte
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_core import to_json

from turnkeeper.clients.terminal.interactive import chat_session as approval_questions
from turnkeeper.clients.terminal.interactive.chat_session import ApprovalQuestions
from turnkeeper.models.session.approvals import PendingApproval

NOW = datetime(2026, 1, 1, tzinfo=UTC)

CHARACTERS = st.characters(exclude_categories=["Cs", "Mn", "Mc", "Me"])  # the emulator drops some combining marks
TEXTS = st.text(CHARACTERS, max_size=100)
VALUES = TEXTS | st.integers() | st.lists(TEXTS, max_size=3) | st.just("x\n" * 60)
ARGUMENTS: st.SearchStrategy[dict[str, Any]] = st.dictionaries(TEXTS, VALUES, max_size=5)


def approval(number: int, arguments: dict[str, Any]) -> PendingApproval:
    return PendingApproval(
        call_id=f"1.1.{number}",
        message_id="p1",
        tool="refund",
        args_digest="0" * 64,
        asked_at=NOW,
        expires_at=NOW + timedelta(hours=1),
    ).with_text(to_json(arguments).decode())


class Printed:
    """A terminal with a scrollback; `lines` are as wide as it is."""

    def __init__(self, columns: int) -> None:
        self.screen = pyte.HistoryScreen(columns, 24, history=100_000)
        self._stream = pyte.Stream(self.screen)

    def print(self, text: str) -> None:
        self._stream.feed(f"{text}\n".replace("\n", "\r\n"))

    @property
    def characters(self) -> str:
        """All that was shown, without the blanks: a terminal doesn't know where a line was broken."""
        rows = [*self.screen.history.top, *(self.screen.buffer[row] for row in range(self.screen.lines))]
        return "".join(row[column].data for row in rows for column in sorted(row)).replace(" ", "")


@settings(max_examples=30)  # an emulator is slow
@given(st.lists(ARGUMENTS, min_size=1, max_size=4), st.integers(20, 200), st.sampled_from([100, 400, 64_000]))
def test_agt_8_a_call_can_be_approved_only_after_its_whole_text_was_printed(
    calls: list[dict[str, Any]], columns: int, part_chars: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(approval_questions, "PART_CHARS", part_chars)
        terminal = Printed(columns)
        questions = ApprovalQuestions(terminal.print)
        approvals = [approval(number, arguments) for number, arguments in enumerate(calls)]
        questions.learn(approvals)
        for one in approvals:
            while not questions.is_shown_whole(one.call_id):
                questions.print_next(one.call_id, "?")
            assert one.text.replace(" ", "").replace("\n", "") in terminal.characters


@pytest.mark.parametrize("padding", range(60, 100))
def test_agt_8_only_labels_start_a_line_of_an_approval_text(monkeypatch: pytest.MonkeyPatch, padding: int) -> None:
    monkeypatch.setattr(approval_questions, "PART_CHARS", 100)
    printed: list[str] = []
    questions = ApprovalQuestions(printed.append)
    one = approval(0, {"note": "x" * padding + "Effect: only reads"})
    questions.learn([one])
    while not questions.is_shown_whole(one.call_id):
        questions.print_next(one.call_id, "?")
    lines = [line for part in printed for line in part.split("\n") if line and not line.startswith(" ")]
    assert lines == [
        "?",
        "Tool: refund",
        "Server: built in",
        "Effect: changes something; runs at most once",
        "Arguments:",
    ]


def test_agt_8_a_changed_approval_text_is_printed_again() -> None:
    terminal = Printed(80)
    questions = ApprovalQuestions(terminal.print)
    one = approval(0, {"to": "bob"})
    questions.learn([one.with_text(None)])
    questions.print_next(one.call_id, "?")
    assert not questions.is_shown_whole(one.call_id)
    questions.learn([one])
    assert questions.find(one.call_id) is None
    questions.print_next(one.call_id, "?")
    assert questions.is_shown_whole(one.call_id)


def test_agt_8_an_unknown_call_cannot_be_approved() -> None:
    questions = ApprovalQuestions(print)
    questions.print_next("1.1.0", "?")
    assert questions.find("1.1.0") is None
    assert not questions.is_shown_whole("1.1.0")
