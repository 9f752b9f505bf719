"""What is told of a conversation is told once, in order, whatever a client is told when: API-6, SES-12."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.models.builders import NOW, answer_turn, asks, at, complete_turn, fail_turn, says, send, session
from turnkeeper.clients.python.conversation import Conversation
from turnkeeper.clients.terminal.interactive.narrator import (
    Asked,
    Called,
    Ended,
    Item,
    Narrator,
    Said,
    Skipped,
    Thought,
)
from turnkeeper.models.session.session import StateRequest, UpdatesRequest
from turnkeeper.models.session.views import state_of, updates_of
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.transcript.trajectory import ToolCall, ToolResult


class OneTelling(RuleBasedStateMachine):
    """Turns, steps, results, polls, lost cursors and new beginnings in any order."""

    @initialize()
    def begin(self) -> None:
        self.session = session()
        self.copy, self.narrator = Conversation(), Narrator()
        self.told: list[Item] = []
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
            self.session.current_turn.add_response(
                asks("look"), [ToolCall(id=one, name="look", args={}) for one in ids], now=at(1)
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
                self.session.current_turn.add_response(says("done"), [], now=at(2))
                complete_turn(self.session, "done", now=at(2))
            else:
                fail_turn(self.session, "timeout", "too slow", now=at(2))

    @rule(limit=st.none() | st.integers(1, 2), is_lost=st.booleans())
    def poll(self, limit: int | None, is_lost: bool) -> None:
        """Be told what is new; a client whose cursor is not known any more is told all of it again."""
        last = "nonsense" if is_lost else self.copy.cursor.last_seen_message_id
        since = self.copy.cursor.since_revision
        self.copy.apply(
            updates_of(self.session, UpdatesRequest(last_seen_message_id=last, since_revision=since, limit=limit))
        )
        self.told += self.narrator.news(self.copy)

    def teardown(self) -> None:
        if not hasattr(self, "session"):
            return
        for _ in range(50):
            self.poll(None, False)
        self.check_that_each_thing_was_told_once()

    def check_that_each_thing_was_told_once(self) -> None:
        turns = self.session.transcript.turns
        assert [item.text for item in self.told if isinstance(item, Asked)] == [turn.user_message for turn in turns]
        assert [item.number for item in self.told if isinstance(item, Asked)] == list(range(1, len(turns) + 1))
        ended = [turn.id for turn in turns if turn.is_complete]
        assert [item.turn.id for item in self.told if isinstance(item, Ended)] == ended
        called = [item.call.id for item in self.told if isinstance(item, Called)]
        assert sorted(called) == sorted(one for turn in turns for one in results_of(turn))
        answered = [turn for turn in turns if turn.agent_message]
        assert len([item for item in self.told if isinstance(item, Said) and item.text == "done"]) == len(answered)


def results_of(turn: ConversationMessage) -> list[str]:
    return [call.id for step in turn.steps for call in step.tool_calls if call.result]


TestApi6OneTelling = OneTelling.TestCase


def test_api_6_who_comes_late_is_told_how_much_was_before_and_then_the_newest() -> None:
    target = session()
    for number in range(1, 6):
        send(target, f"prompt {number}", id=f"m{number}")
        answer_turn(target)
    copy, narrator = Conversation(), Narrator()
    page = state_of(target, StateRequest(limit=2))
    copy.open_at(page)
    told = [*narrator.skip_to(page.first_number or 1), *narrator.news(copy)]
    assert told[0] == Skipped(3)
    assert [item for item in told if isinstance(item, Asked)] == [Asked(4, "prompt 4"), Asked(5, "prompt 5")]
    assert list(narrator.news(copy)) == []


def test_api_6_an_answer_is_not_told_before_it_is_the_answer() -> None:
    target = session()
    send(target, "hi", id="m1")
    target.begin_turn(now=NOW)
    target.current_turn.add_response(says("Hello."), [], now=at(1))
    copy, narrator = Conversation(), Narrator()
    copy.apply(updates_of(target, UpdatesRequest()))
    assert list(narrator.news(copy)) == [Asked(1, "hi")]
    complete_turn(target, "Hello.", now=at(2))
    copy.apply(updates_of(target, UpdatesRequest(**copy.cursor.model_dump())))
    assert [type(item) for item in narrator.news(copy) if not isinstance(item, Thought)] == [Said, Ended]
