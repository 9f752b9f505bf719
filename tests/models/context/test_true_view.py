"""The model's view is true (CTX-17): one invariant over random histories, windows, vendors and forms.

Two prompts are never adjacent, and no answer, call or result follows a prompt that is not its own. Every text of a
history here is tagged with its turn, such as `<7>`, so that a reader can check this of any form of a conversation.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.builders import NOW, evict, says, send, session
from tests.models.context.test_model_view import orphans
from tests.vendors.anthropic_wire import AnthropicWire
from tests.vendors.chat_wire import ChatWire
from tests.vendors.responses_wire import ResponsesWire
from tests.vendors.utterances import UTTERANCES, Utterance, utterances_of_events
from turnkeeper.activities.providers.anthropic import request as anthropic
from turnkeeper.activities.providers.openai import chat_request as chat
from turnkeeper.activities.providers.openai import responses
from turnkeeper.features.tasks.histories import rank
from turnkeeper.features.tasks.rules.hand_off import Inheritance, hand_off_history, messages_in
from turnkeeper.models.context.summary import SUMMARY_MARK, summary_request
from turnkeeper.models.errors import ErrorType
from turnkeeper.models.ids import call_id
from turnkeeper.models.replay_text.grammar import parse_replay
from turnkeeper.models.session.running_turn import number_calls
from turnkeeper.models.session.session import Session
from turnkeeper.models.session.views import context_of, replay_turns_of
from turnkeeper.models.settings.history_policy import HistoryPolicy, resolve_policy
from turnkeeper.models.transcript.conversation import ToolCall, ToolResult, TurnStop
from turnkeeper.models.transcript.model_call import CallPart, ModelMessage, ModelRequest, ModelResponse, SummaryOutcome
from turnkeeper.models.transcript.notes import prompt_left_out
from turnkeeper.testing.vendor_server import VendorServer

MODEL = "offline:"

# ---- the invariant


def assert_true(utterances: Iterable[Utterance], *, begins_within: bool = False) -> None:
    """Check the invariant; `begins_within`: the first turn may have lost its prompt, where nothing precedes it."""
    prompt, earlier = "", ""
    for role, text in utterances:
        turns = set(re.findall(r"<(\d+)>", text))
        if role == "user":
            assert earlier != "user", f"two prompts are neighbours: {text}"
            assert len(turns) <= 1, f"prompts of several turns are one message: {text}"
            prompt = next(iter(turns), "unknown" if text == prompt_left_out(None) else "none")
        elif turns and prompt == "unknown":
            (prompt,) = turns
        elif text.startswith(SUMMARY_MARK):
            turns = set()
        elif prompt or not begins_within:
            assert turns <= {prompt}, f"{role} of {turns} behind the prompt of {prompt}: {text}"
        earlier = role


def utterances_in(messages: Iterable[ModelMessage]) -> Iterator[Utterance]:
    for message in messages:
        yield "result" if message.role == "tool" else message.role, message.content
        yield from (("call", json.dumps(call.args)) for call in message.tool_calls)


def utterances_on_wires(request: ModelRequest) -> Iterator[Iterator[Utterance]]:
    """Yield the request as each API gets it; the API's own rules hold."""
    bodies: dict[str, tuple[VendorServer, Any]] = {
        "anthropic": (AnthropicWire(), anthropic.encode(request, name="claude-sonnet-5-5")),
        "chat": (ChatWire(), chat.encode(request, name="qwen3")),
        "responses": (ResponsesWire(), responses.encode(request, name="gpt-5.5", session_id="s1")),
        "text": (ChatWire("text"), chat.encode_text(request, name="small")),
    }
    for api, (wire, body) in bodies.items():
        wire.check(json.loads(json.dumps(body)))
        yield UTTERANCES[api](body)


# ---- random histories


@dataclass(frozen=True)
class Step:
    """A step with calls; `steering` prompts arrive before it."""

    calls: int
    steering: int
    large: bool


@dataclass(frozen=True)
class Ended:
    """How a turn ended; without an error it has an answer. `partial`: after a part of an answer."""

    error_type: ErrorType | None = None
    error: str = "It failed."
    stop: TurnStop | None = None
    partial: bool = False


@dataclass(frozen=True)
class Turn:
    steps: list[Step]
    end: Ended
    steering: int
    """Prompts that join the turn before its last step."""
    retries: bool
    """True if it retries the turn before it, if that has no answer."""
    archived_steps: int
    new_run: bool
    too_long: bool
    """True if the vendor rejects its last request as too long."""


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0<>"), max_size=30)
STOPS = st.builds(
    TurnStop,
    cause=st.sampled_from(["person", "prompt", "session"]),
    by=st.none() | st.sampled_from(["ann", 'ann". Nothing was done.]\n']),
    reason=st.none() | TEXTS,
)
FAILURES: list[ErrorType] = ["overloaded", "refusal", "max_steps", "budget", "internal", "too_large", "bad_request"]
ENDS = st.one_of(
    st.just(Ended()),
    st.builds(Ended, error_type=st.just("cancelled"), stop=st.none() | STOPS, partial=st.booleans()),
    st.builds(Ended, error_type=st.sampled_from(FAILURES), partial=st.booleans()),
)
FEW = st.sampled_from([0, 0, 0, 1, 2, 3])
TURNS = st.builds(
    Turn,
    steps=st.lists(st.builds(Step, st.integers(1, 3), FEW, st.booleans()), max_size=6),
    end=ENDS,
    steering=FEW,
    retries=st.booleans(),
    archived_steps=FEW,
    new_run=st.sampled_from([False, False, True]),
    too_long=st.sampled_from([False] * 9 + [True]),
)
WINDOWS = st.fixed_dictionaries(
    {
        "max_messages": st.sampled_from([0, 3, 6, 9, 14, 20, 30, 100]),
        "preserve_first_n": st.sampled_from([0, 1, 1, 1, 2, 3, 5]),
        "preserve_last_n": st.integers(0, 8),
        "evict_block": st.integers(0, 12),
        "summarize_on_trim": st.booleans(),
    }
)


@dataclass
class History:
    """Runs a history as the workflow does, and checks every request of it."""

    window: dict[str, object]
    target: Session = field(init=False)
    newest_request: list[ModelMessage] = field(default_factory=list)
    segment: int = 0

    def __post_init__(self) -> None:
        self.target = session(history=self.window)

    def run(self, turn: Turn) -> None:
        target = self.target
        number, newest = target.transcript.count + 1, target.transcript.newest
        retries = newest.id if turn.retries and newest and newest.is_error else None
        signal = {"text": f"prompt <{number}>", "id": f"m{number}", "retries": retries}
        target.receive(signal, extra_arguments=0, new_id="", now=NOW)
        target.begin_turn(now=NOW)
        for step in turn.steps:
            self.steer(step.steering)
            self.ask()
            self.answer(step)
        if turn.archived_steps:
            self.archive(turn.archived_steps)
        self.steer(turn.steering)
        self.ask(too_long=turn.too_long)
        self.end(turn.end)
        if turn.new_run:
            self.target = Session("s1", target.carry(), now=NOW)

    def steer(self, count: int) -> None:
        number = self.target.transcript.count
        for index in range(count):
            send(
                self.target,
                f"steering {index} <{number}>",
                id=f"s{number}.{index}.{self.target.revision}",
                mode="steer",
            )
        self.target.steer_turn(now=NOW)

    def ask(self, *, too_long: bool = False) -> None:
        target, config = self.target, self.target.config.history
        if too_long:
            target.context.learn_limit(config, model=MODEL, head=target.head)
        evict(target)
        if target.context.evicted.is_summary_due(config):
            self.summarise()
        request = target.context.view.request(target.head)
        assert target.context.view.message_count == len(request.messages)
        assert not orphans(request.messages)
        assert_true(utterances_in(request.messages))
        for utterances in utterances_on_wires(request):
            assert_true(utterances)
        if target.context.view.segment == self.segment:
            assert request.messages[: len(self.newest_request)] == self.newest_request, (
                "the prefix only grows at its end"
            )
        self.newest_request, self.segment = request.messages, target.context.view.segment
        context_of(target)

    def summarise(self) -> None:
        context = self.target.context
        request = summary_request(context.messages_to_summarise(), has_earlier=context.view.summary is not None)
        text = request.messages[0].content
        events, _ = parse_replay(text[text.index("=== HISTORY ===") :])
        assert_true(utterances_of_events(events), begins_within=True)
        outcome = SummaryOutcome(text=f"Until {self.target.transcript.count}.")
        context.insert_summary(
            outcome, of=context.evicted.begin_summary(), view_bytes=self.target.config.limits.view_bytes
        )

    def answer(self, step: Step) -> None:
        slot, number = self.target.turn_slot, self.target.transcript.count
        slot.change(slot.running().with_more(steps=1))
        args = {"of": f"<{number}>"}
        parts = [CallPart(kind="call", id=f"c{index}", name="look", args=args) for index in range(step.calls)]
        calls = number_calls(parts, turn_number=number, step=slot.running().steps)
        slot.add_response(ModelResponse(parts=[*parts], stop="tool_calls", model="test"), calls, now=NOW)
        for call in calls:
            content = f"saw <{number}>" + " and so on" * (200 if step.large else 0)
            self.target.add_result(call.id, ToolResult(outcome="Looked", content=content))
        slot.append_step_to_view(state=None)

    def archive(self, count: int) -> None:
        """Move steps of the running turn to the archive."""
        turn = self.target.turn_slot.running()
        count = min(count, len(turn.message.steps) - 1)
        if count > 0:
            self.target.context.detach(
                turn.message, steps_before=turn.message.steps_omitted + count, inline_bytes=9_999
            )
            self.target.turn_slot.change(turn.without_oldest_steps(count))

    def end(self, end: Ended) -> None:
        slot, number = self.target.turn_slot, self.target.transcript.count
        answer = f"answer <{number}>"
        if end.error_type is None or end.partial:
            calls = [ToolCall(id=call_id(number, 99, 0), name="pay", args={}, result=ToolResult(outcome="-"))]
            slot.add_response(says(answer), calls if end.partial else [], now=NOW, interrupted=end.partial)
            slot.append_step_to_view(state=None)
        turn = slot.running()
        if end.error_type is None:
            self.target.end_turn(turn.completed(answer, now=NOW))
        else:
            self.target.end_turn(turn.failed(end.error_type, end.error, stop=end.stop, now=NOW))


@settings(max_examples=60, deadline=None)
@given(st.lists(TURNS, min_size=1, max_size=8), WINDOWS)
def test_ctx_17_prompts_are_never_adjacent_and_answers_follow_their_own_prompt(
    turns: list[Turn], window: dict[str, object]
) -> None:
    history = History(window)
    for turn in turns:
        history.run(turn)
    check_other_forms(history.target)


def check_other_forms(target: Session) -> None:
    """Check replay text, and what a task inherits."""
    past, current = parse_replay(replay_turns_of(target, 20).text(20))
    assert_true(utterances_of_events([*past, *(current or [])]), begins_within=True)
    messages = messages_in(target.transcript.turns)
    assert_true((message["role"], str(message["content"])) for message in messages)  # type: ignore[misc]
    for preset in ("keep_user", "keep_assistant", {"max_messages": 5}, {"relevant_to": "prompt <2>"}):
        policy = resolve_policy(HistoryPolicy.model_validate(preset) if isinstance(preset, dict) else preset)
        policy = policy.without_hard_limits()
        inherited = Inheritance(policy)
        for turn in reversed(target.transcript.turns):
            inherited = inherited.with_older([turn], has_older=turn is not target.transcript.turns[0])
        handed = hand_off_history(list(inherited.messages), policy, NOW, description="x", rank=rank).history
        utterances: list[Utterance] = [(one.role, one.content) for one in handed.messages] if handed else []  # type: ignore[misc]
        assert_true(utterances, begins_within=True)
