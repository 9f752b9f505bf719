"""A conversation is printed once, in order, whenever its updates arrive: API-6, SES-12."""

import re

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.models.builders import NOW, answer_turn, asks, at, complete_turn, fail_turn, says, send, session
from turnkeeper.clients.python.conversation import Conversation
from turnkeeper.clients.terminal.interactive.chat_session import TranscriptRenderer
from turnkeeper.clients.terminal.interactive.screen import TerminalStyle
from turnkeeper.models.session.messages import StateRequest, UpdatesRequest
from turnkeeper.models.session.views import state_of, updates_of
from turnkeeper.models.transcript.conversation import ConversationMessage, ToolCall, ToolResult


class Printed:
    """The lines that a terminal prints of a conversation."""

    def __init__(self) -> None:
        self.style = TerminalStyle(lambda: 80, colour=False)
        self.transcript = TranscriptRenderer()
        self.conversation = Conversation()
        self.lines: list[str] = []

    def news(self) -> list[str]:
        """Print what is new; return the lines that are not blank."""
        parts = list(self.transcript.render_new(self.conversation))
        lines = self.style.render(*parts).split("\n") if parts else []
        new = [line.strip() for line in lines if line.strip()]
        self.lines += new
        return new

    def all(self, pattern: str) -> list[str]:
        """Return what the pattern's group is in each line that it matches."""
        return [match[1] for line in self.lines if (match := re.match(pattern, line))]


class PrintedOnce(RuleBasedStateMachine):
    """Turns, steps, results, polls, lost cursors and new beginnings in any order."""

    @initialize()
    def begin(self) -> None:
        self.session = session()
        self.printed = Printed()
        self.prompts = self.calls = 0

    @rule()
    def prompt(self) -> None:
        self.prompts += 1
        send(self.session, f"prompt {self.prompts}", id=f"m{self.prompts}")

    @rule()
    def turn_starts(self) -> None:
        if self.session.queue.waiting and not self.session.turn:
            self.session.begin_turn(now=at(self.session.revision))

    @rule(count=st.integers(1, 3))
    def step(self, count: int) -> None:
        if self.session.turn and not self.open_calls:
            ids = [f"c{self.calls + number}" for number in range(count)]
            self.calls += count
            self.session.turn_slot.add_response(
                asks("look"), [ToolCall(id=one, name="look", args={"call": one}) for one in ids], now=at(1)
            )

    @property
    def open_calls(self) -> list[str]:
        turn = self.session.turn.message if self.session.turn else None
        calls = turn.steps[-1].tool_calls if turn and turn.steps else []
        return [call.id for call in calls if call.result is None]

    @rule(newest=st.booleans())
    def result(self, newest: bool) -> None:
        if self.open_calls:
            self.session.add_result(self.open_calls[-1 if newest else 0], ToolResult(outcome="seen"))

    @rule(well=st.booleans())
    def turn_ends(self, well: bool) -> None:
        if self.session.turn and not self.open_calls:
            if well:
                self.session.turn_slot.add_response(says("done"), [], now=at(2))
                complete_turn(self.session, "done", now=at(2))
            else:
                fail_turn(self.session, "timeout", "too slow", now=at(2))

    @rule(limit=st.none() | st.integers(1, 2), is_lost=st.booleans())
    def poll(self, limit: int | None, is_lost: bool) -> None:
        """Poll for what is new; a client whose cursor is unknown gets everything again."""
        copy = self.printed.conversation
        last = "nonsense" if is_lost else copy.cursor.last_seen_message_id
        since = copy.cursor.since_revision
        copy.apply(
            updates_of(self.session, UpdatesRequest(last_seen_message_id=last, since_revision=since, limit=limit))
        )
        self.printed.news()

    def teardown(self) -> None:
        if not hasattr(self, "session"):
            return
        for _ in range(50):
            self.poll(None, False)
        self.check_that_each_thing_was_printed_once()

    def check_that_each_thing_was_printed_once(self) -> None:
        turns = self.session.transcript.turns
        ended = [number for number, turn in enumerate(turns, start=1) if turn.is_complete]
        assert self.printed.all(r"› (.*)") == [turn.user_message for turn in turns]
        assert self.printed.all(r"turn (\d+) · ") == [str(number) for number in ended]
        calls = self.printed.all(r'⚒ look\(call="(\w+)"\) ✓')
        assert sorted(calls) == sorted(one for turn in turns for one in results_of(turn))
        answered = [turn for turn in turns if turn.agent_message]
        assert len(self.printed.all("(done)$")) == len(answered)


def results_of(turn: ConversationMessage) -> list[str]:
    return [call.id for step in turn.steps for call in step.tool_calls if call.result]


TestApi6PrintedOnce = PrintedOnce.TestCase


def test_api_6_a_late_viewer_sees_the_number_of_earlier_turns_and_the_newest_ones() -> None:
    target = session()
    for number in range(1, 6):
        send(target, f"prompt {number}", id=f"m{number}")
        answer_turn(target)
    printed = Printed()
    page = state_of(target, StateRequest(limit=2))
    printed.conversation.open_at(page)
    (_, skipped) = printed.transcript.skip_to(page.first_number or 1)
    assert printed.style.render(skipped).strip() == "… 3 earlier turns"
    printed.news()
    assert printed.all("› (.*)") == ["prompt 4", "prompt 5"]
    assert printed.all(r"turn (\d+)") == ["4", "5"]
    assert printed.news() == []


def test_api_6_an_answer_is_printed_only_when_it_is_final() -> None:
    target = session()
    send(target, "hi", id="m1")
    target.begin_turn(now=NOW)
    target.turn_slot.add_response(says("Hello."), [], now=at(1))
    printed = Printed()
    printed.conversation.apply(updates_of(target, UpdatesRequest()))
    assert printed.news() == ["› hi"]
    complete_turn(target, "Hello.", now=at(2))
    printed.conversation.apply(updates_of(target, UpdatesRequest(**printed.conversation.cursor.model_dump())))
    assert [line.partition(" · ")[0] for line in printed.news()] == ["Hello.", "turn 1"]
