"""Turns as chunks, in whatever order updates and partial output arrive: API-1, AGT-5."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.features.ai_sdk.ui_reader import Reader
from tests.models.builders import at, complete_turn, fail_turn, send, session
from turnkeeper.features.ai_sdk.messages import AnswerMessage
from turnkeeper.features.ai_sdk.turn_chunks import ClientState, TurnChunks, answer_id, waits_for_people
from turnkeeper.models.ids import call_id
from turnkeeper.models.session.approvals import ResolveApproval
from turnkeeper.models.session.session import Session
from turnkeeper.models.transcript.conversation import (
    BlobRef,
    ConversationMessage,
    ModelStep,
    ToolCall,
    ToolResult,
    ToolStatus,
    Usage,
    UserStep,
)
from turnkeeper.models.transcript.model_call import CallPart, ModelResponse, RespondPart, ThinkPart
from turnkeeper.models.transcript.partial_output import PartialGrowth, PartialOutput, PartialPart, growth

TURN = "p1"
Parts = Sequence[tuple[Literal["think", "respond", "call"], str]]


def growing(parts: Parts, *, step: int, attempt: int = 1, pieces: int = 3) -> Iterator[PartialOutput]:
    """The snapshots of an answer, `pieces` for each of its parts."""
    complete: list[PartialPart] = []
    for kind, text in parts:
        for piece in range(1, pieces + 1):
            grown = text if kind == "call" else text[: len(text) * piece // pieces]
            yield PartialOutput(
                message_id=TURN,
                turn=1,
                step=step,
                request=step,
                attempt=attempt,
                parts=[*complete, PartialPart(kind=kind, text=grown)],
            )
        complete.append(PartialPart(kind=kind, text=text))


def growths(snapshots: Sequence[PartialOutput]) -> list[PartialGrowth]:
    """The growth events that watchers get for these snapshots."""
    growths = [growth(old, new) for old, new in zip([None, *snapshots], snapshots, strict=False)]
    return [growth for growth in growths if growth]


def response(parts: Parts) -> ModelResponse:
    response_parts: list[Any] = []
    for number, (kind, text) in enumerate(parts):
        if kind == "think":
            response_parts.append(ThinkPart(kind="think", text=text))
        elif kind == "respond":
            response_parts.append(RespondPart(kind="respond", text=text))
        else:
            response_parts.append(CallPart(kind="call", id=f"c{number}", name=text, args={"n": number}))
    return ModelResponse(
        parts=response_parts, stop="tool_calls" if any(kind == "call" for kind, _ in parts) else "end_turn", model="m"
    )


@dataclass
class Story:
    """A turn of a real session, and every state in which a client saw it."""

    session: Session = field(default_factory=session)
    seen: list[ConversationMessage] = field(default_factory=list)
    snapshots: list[PartialOutput] = field(default_factory=list)
    steps: int = 0

    def __post_init__(self) -> None:
        send(self.session, "hello", id=TURN)
        self.session.begin_turn(now=at(0))
        self.see()

    def see(self) -> None:
        turn = self.session.transcript.get(TURN)
        assert turn is not None
        self.seen.append(turn)

    def write(self, parts: Parts, *, attempt: int = 1, pieces: int = 3) -> None:
        self.snapshots += growing(parts, step=self.steps + 1, attempt=attempt, pieces=pieces)

    def answer(self, parts: Parts) -> list[ToolCall]:
        self.steps += 1
        model_response = response(parts)
        calls = [
            ToolCall(id=call_id(1, self.steps, index), name=part.name, args=part.args)
            for index, part in enumerate(model_response.calls)
        ]
        self.session.turn_slot.add_response(model_response, calls, now=at(self.steps))
        self.see()
        return calls

    def steer(self, text: str) -> None:
        send(self.session, text, id=f"s{self.steps}", mode="steer")
        self.session.steer_turn(now=at(self.steps))
        self.see()

    def ask(self, calls: Sequence[ToolCall]) -> None:
        turn = self.session.turn_slot.running().with_approvals_asked([call.id for call in calls], now=at(self.steps))
        self.session.turn_slot.change(turn)
        self.see()

    def decide(self, call: ToolCall, decision: str) -> None:
        step = self.session.turn_slot.running().newest_step
        recorded = next(recorded for recorded in step.tool_calls if recorded.id == call.id)
        assert recorded.approval is not None
        request = {"call_id": call.id, "args_digest": recorded.approval.args_digest, "decision": decision}
        self.session.resolve_approval(ResolveApproval.model_validate(request), now=at(self.steps))
        self.see()

    def result(self, call: ToolCall, status: ToolStatus = "ok") -> None:
        self.session.add_result(call.id, ToolResult(outcome=f"{call.name}: {status}", content="text", status=status))
        self.see()

    def complete(self, text: str) -> None:
        complete_turn(self.session, text, now=at(99))
        self.see()

    def fail(self, error_type: Any = "provider_error", sentence: str = "It broke.") -> None:
        fail_turn(self.session, error_type, sentence, now=at(99))
        self.see()

    @property
    def turn(self) -> ConversationMessage:
        return self.seen[-1]


def expected(turn: ConversationMessage) -> list[list[Any]]:
    """What a client should have of the turn: of each step its thinking, its text and the states of its calls."""
    return [_expected_step(step) for step in turn.steps]


def _expected_step(step: ModelStep | UserStep) -> list[Any]:
    if isinstance(step, UserStep):
        return [("steering-message", step.content)]
    texts = [("reasoning", step.thinking), ("text", step.text)]
    return [text for text in texts if text[1]] + [
        ("dynamic-tool", call.id, call.name, call.args, _expected_state(call)) for call in step.tool_calls
    ]


def _expected_state(call: ToolCall) -> str:
    if call.result:
        ends = {"ok": "output-available", "denied": "output-denied"}
        return ends.get(call.result.status, "output-error")
    if call.approval:
        return "approval-responded" if call.approval.decision else "approval-requested"
    return "input-available"


def steps_in(reader: Reader) -> list[list[Any]]:
    """What a client has, step by step; steps without content are left out."""
    steps: list[list[Any]] = []
    for part in reader.parts:
        if part["type"] == "step-start":
            steps.append([])
        elif part["type"] == "steering-message":
            steps.append([("steering-message", part["text"])])
        elif part["type"] == "dynamic-tool":
            steps[-1].append(("dynamic-tool", part["toolCallId"], part["toolName"], part.get("input"), part["state"]))
        else:
            steps[-1].append((part["type"], part["text"]))
    return [step for step in steps if step]


def read_all(story: Story, news: Sequence[ConversationMessage | PartialGrowth]) -> tuple[TurnChunks, Reader]:
    chunks, reader = TurnChunks("s1", TURN), Reader()
    for event in news:
        reader.read(chunks.on_turn(event) if isinstance(event, ConversationMessage) else chunks.on_partial(event))
    return chunks, reader


def types(chunks: Sequence[Any]) -> list[str]:
    return [chunk["type"] for chunk in chunks]


# ---- properties

texts = st.text("ab \n", min_size=1, max_size=6)
part = st.one_of(
    st.tuples(st.just("think"), texts),
    st.tuples(st.just("respond"), texts),
    st.tuples(st.just("call"), st.sampled_from(["look", "pay"])),
)
statuses = st.sampled_from(["ok", "error", "cancelled", "outcome_unknown", "denied"])


@st.composite
def stories(draw: st.DrawFn) -> Story:
    story = Story()
    for _ in range(draw(st.integers(0, 3))):
        if story.steps and draw(st.booleans()):
            story.steer(draw(texts))
        _draw_calls(draw, story, _draw_step(draw, story))
    if draw(st.booleans()):
        story.write(draw(st.lists(part, min_size=1, max_size=3)), attempt=1)  # it was never recorded
    ends = draw(st.sampled_from(["complete", "fail", "cancel"]))
    if ends == "complete":
        final: Parts = [("respond", draw(texts))]
        story.write(final, attempt=2)
        story.answer(final)
        story.complete(final[0][1])
    else:
        story.fail("cancelled" if ends == "cancel" else "provider_error")
    return story


def _draw_step(draw: st.DrawFn, story: Story) -> list[ToolCall]:
    attempts = draw(st.lists(st.lists(part, min_size=1, max_size=4), min_size=1, max_size=3))
    for attempt, parts in enumerate(attempts, start=1):
        story.write(parts, attempt=attempt)
    return story.answer(attempts[-1] if draw(st.booleans()) else draw(st.lists(part, min_size=1, max_size=4)))


def _draw_calls(draw: st.DrawFn, story: Story, calls: Sequence[ToolCall]) -> None:
    """Give every call of a step a result; some calls need a person's decision first."""
    gated = [call for call in calls if draw(st.booleans())]
    free = [call for call in calls if call not in gated]
    if gated:
        story.ask(gated)
    for call in draw(st.permutations(free)):
        _draw_result(draw, story, call)
    for call in draw(st.permutations(gated)):
        story.decide(call, draw(st.sampled_from(["approve", "reject"])))
        _draw_result(draw, story, call)


def _draw_result(draw: st.DrawFn, story: Story, call: ToolCall) -> None:
    step = story.session.turn_slot.running().newest_step
    recorded = next(recorded for recorded in step.tool_calls if recorded.id == call.id)
    rejected = recorded.approval is not None and recorded.approval.decision == "reject"
    is_approval_given = recorded.approval is not None and recorded.approval.is_given
    status = draw(statuses.filter(lambda status: status != "denied" or not is_approval_given))
    story.result(call, "denied" if rejected else status)


@st.composite
def interleaved(draw: st.DrawFn) -> tuple[Story, list[Any]]:
    """A story, and the events that a client may get of it: some left out, the two kinds in any order."""
    story = draw(stories())
    waits = [index for index, turn in enumerate(story.seen) if turn.status == "awaiting_approval"]
    turns = [
        turn
        for index, turn in enumerate(story.seen[1:-1], start=1)
        if index not in waits and draw(st.booleans())  # where it waits, a stream ends: tested apart
    ]
    snapshots = [snapshot for snapshot in story.snapshots if draw(st.booleans())]
    two = [*turns], growths(snapshots)
    news: list[Any] = [story.seen[0]]
    while two[0] or two[1]:
        news.append((two[0] or two[1]).pop(0) if draw(st.booleans()) else (two[1] or two[0]).pop(0))
    return story, [*news, story.turn]


@given(interleaved())
def test_api_1_in_any_order_of_events_the_client_ends_with_the_sessions_message(
    story_and_news: tuple[Story, list[Any]],
) -> None:
    story, news = story_and_news
    chunks, reader = read_all(story, news)
    assert chunks.is_over
    reader.assert_balanced()
    assert steps_in(reader) == [step for step in expected(story.turn) if step]
    assert reader.message["id"] == answer_id(TURN)
    assert reader.failure == (story.turn.error if story.turn.status == "failed" else None)
    assert reader.was_aborted == (story.turn.status == "cancelled")


@given(interleaved())
def test_api_1_no_chunks_follow_the_end(story_and_news: tuple[Story, list[Any]]) -> None:
    story, news = story_and_news
    chunks, _ = read_all(story, news)
    assert [chunks.on_turn(story.turn), *(chunks.on_partial(late) for late in growths(story.snapshots))] == [
        [] for _ in range(1 + len(growths(story.snapshots)))
    ]


@given(stories(), st.data())
def test_agt_8_after_an_approval_the_next_stream_continues_the_clients_message(
    story: Story, data: st.DataObject
) -> None:
    message = None
    for turn in [turn for turn in story.seen if waits_for_people(turn)] + [story.turn]:
        client = ClientState()
        if message is not None:
            _mark_decided(message, turn, data.draw)
            client = AnswerMessage.model_validate(message).client_state
        chunks = TurnChunks("s1", TURN, client)
        reader = Reader(message).read(chunks.on_turn(turn))
        assert chunks.is_over
        reader.assert_balanced()
        assert steps_in(reader) == [step for step in expected(turn) if step]
        message = reader.message


def _mark_decided(message: dict[str, Any], turn: ConversationMessage, draw: Any) -> None:
    """Mark decisions in the client's message, as a client does when its user decides."""
    calls = {call.id: call for step in turn.steps if isinstance(step, ModelStep) for call in step.tool_calls}
    for part in message["parts"]:
        call = calls.get(part.get("toolCallId"))
        is_decided = call is not None and call.approval is not None and call.approval.decision is not None
        if part.get("state") == "approval-requested" and is_decided and draw(st.booleans()):
            part["state"] = "approval-responded"
            part["approval"] |= {"approved": call.approval.is_given}


# ---- single stories


def test_agt_5_text_is_streamed_and_the_durable_step_adds_only_the_rest() -> None:
    story = Story()
    story.write([("think", "Hm."), ("respond", "Hello")], pieces=1)
    chunks = TurnChunks("s1", TURN)
    assert types(chunks.on_turn(story.turn)) == ["start"]
    early = [chunk for event in growths(story.snapshots) for chunk in chunks.on_partial(event)]
    assert types(early) == [
        *("start-step", "reasoning-start", "reasoning-delta"),
        *("reasoning-end", "text-start", "text-delta"),
    ]
    story.answer([("think", "Hm."), ("respond", "Hello there.")])
    assert chunks.on_turn(story.turn) == [
        {"type": "text-delta", "id": "text-1", "delta": " there."},
        {"type": "text-end", "id": "text-1"},
    ]
    story.complete("Hello there.")
    assert types(chunks.on_turn(story.turn)) == ["finish-step", "finish"]


def test_agt_5_a_retry_retracts_the_text_of_the_attempt_before() -> None:
    story = Story()
    story.write([("respond", "Once upon")], pieces=1)
    story.write([("respond", "There was")], attempt=2, pieces=1)
    chunks = TurnChunks("s1", TURN)
    chunks.on_turn(story.turn)
    first, second = (chunks.on_partial(event) for event in growths(story.snapshots))
    assert types(first) == ["start-step", "text-start", "text-delta"]
    assert types(second) == ["reset-step", "text-start", "text-delta"]


def test_agt_5_a_retry_that_begins_with_the_same_words_retracts_nothing() -> None:
    story = Story()
    story.write([("respond", "Once upon")], pieces=1)
    story.write([("respond", "Once upon a time")], attempt=2, pieces=1)
    chunks = TurnChunks("s1", TURN)
    chunks.on_turn(story.turn)
    _, second = (chunks.on_partial(event) for event in growths(story.snapshots))
    assert second == [{"type": "text-delta", "id": "text-1", "delta": " a time"}]


def test_agt_5_a_text_without_its_beginning_is_marked_and_then_sent_in_full() -> None:
    story = Story()
    whole = "It was a dark and stormy night."
    tail = [PartialPart(kind="respond", text=whole[-6:], omitted=len(whole) - 6)]
    partial = PartialOutput(message_id=TURN, turn=1, step=1, request=1, attempt=1, parts=tail)
    story.answer([("respond", whole)])
    story.complete(whole)
    chunks, reader = read_all(story, [story.seen[0], *growths([partial])])
    assert steps_in(reader) == [[("text", "…night.")]]
    reader.read(chunks.on_turn(story.turn))
    assert steps_in(reader) == [[("text", whole)]]


def test_agt_8_a_message_ends_at_an_approval_and_the_next_stream_continues_it() -> None:
    story = Story()
    look, pay, mail = story.answer([("respond", "Let me."), ("call", "look"), ("call", "pay"), ("call", "mail")])
    story.ask([pay, mail])
    chunks, reader = read_all(story, [story.turn])
    assert not chunks.is_over  # the other call is still under way
    story.result(look)
    reader.read(chunks.on_turn(story.turn))
    assert (chunks.is_over, reader.finish_reason) == (True, "tool-calls")
    assert steps_in(reader) == expected(story.turn)
    story.decide(pay, "approve")
    story.result(pay)
    story.decide(mail, "reject")
    story.result(mail, "denied")
    story.answer([("respond", "Done.")])
    story.complete("Done.")
    reader.message["parts"][3]["state"] = "approval-responded"  # by the client itself, when its user decides
    reader.message["parts"][3]["approval"]["approved"] = True
    rest = TurnChunks("s1", TURN, AnswerMessage.model_validate(reader.message).client_state).on_turn(story.turn)
    assert types(rest) == [
        *("start", "tool-output-available", "tool-approval-response", "tool-output-denied"),
        *("start-step", "text-start", "text-delta", "text-end", "finish-step", "finish"),
    ]
    after = Reader(reader.message).read(rest)
    after.assert_balanced()
    assert steps_in(after) == expected(story.turn)


def test_agt_8_a_call_denied_by_the_tool_policy_is_shown_as_denied() -> None:
    story = Story()
    (pay,) = story.answer([("call", "pay")])
    story.result(pay, "denied")
    story.fail()
    _, reader = read_all(story, [story.turn])
    assert steps_in(reader) == [[("dynamic-tool", "1.1.0", "pay", {"n": 0}, "output-denied")]]


def test_ses_7_a_steering_message_comes_before_the_step_that_reads_it() -> None:
    story = Story()
    (look,) = story.answer([("call", "look")])
    story.result(look)
    before = story.turn
    story.steer("and the weather?")
    story.write([("respond", "Sunny.")], pieces=1)
    _, reader = read_all(story, [before, *growths(story.snapshots), story.turn])
    assert [part["type"] for part in reader.parts[-4:]] == ["step-start", "steering-message", "step-start", "text"]


@pytest.mark.parametrize(
    ("error_type", "ends", "reason"),
    [("cancelled", ["abort", "finish"], "other"), ("timeout", ["error", "finish"], "error")],
)
def test_api_1_a_turn_without_an_answer_ends_with_its_reason(error_type: str, ends: list[str], reason: str) -> None:
    story = Story()
    story.write([("respond", "Once upon")], pieces=1)
    story.fail(error_type, "So it ended.")
    chunks, reader = read_all(story, [story.seen[0], *growths(story.snapshots)])
    last = chunks.on_turn(story.turn)
    assert types(last) == ["reset-step", "finish-step", *ends]
    reader.read(last)
    assert (reader.finish_reason, steps_in(reader)) == (reason, [])
    assert "So it ended." in (last[2].get("reason"), last[2].get("errorText"))


def test_ses_9_the_partial_text_of_an_interrupted_answer_is_final() -> None:
    story = Story()
    story.write([("think", "Hm."), ("respond", "Once upon"), ("call", "pay")], pieces=1)
    model_response = response([("think", "Hm."), ("respond", "Once upon a"), ("call", "pay")])
    result = ToolResult(outcome="pay was not called", status="cancelled")
    story.session.turn_slot.add_response(
        model_response, [ToolCall(id=call_id(1, 1, 0), name="pay", args={}, result=result)], now=at(1), interrupted=True
    )
    story.fail("cancelled", "Cancelled: Stopped by the user.")
    chunks, reader = read_all(story, [story.seen[0], *growths(story.snapshots[:2])])
    last = chunks.on_turn(story.turn)
    assert "reset-step" not in types(last)
    assert types(last)[-3:] == ["finish-step", "abort", "finish"]
    reader.read(last)
    assert steps_in(reader) == steps_in(read_all(story, [story.turn])[1])
    assert ("text", "Once upon a") in [part[:2] for part in steps_in(reader)[0]]


def test_api_1_the_end_reports_the_usage_of_the_turn() -> None:
    story = Story()
    answer = response([("respond", "Hi.")])
    usage = Usage(input_tokens=7, output_tokens=2, cached_tokens=4, cost=0.01)
    story.session.turn_slot.add_response(answer.model_copy(update={"usage": usage}), [], now=at(1))
    story.complete("Hi.")
    assert TurnChunks("s1", TURN).on_turn(story.turn)[-1] == {
        "type": "finish",
        "finishReason": "stop",
        "messageMetadata": {
            "model": "m",
            "usage": {
                "inputTokens": 7,
                "outputTokens": 2,
                "totalTokens": 9,
                "reasoningTokens": 0,
                "cachedInputTokens": 4,
                "cost": 0.01,
            },
            "processingTimeMs": 99_000,
        },
    }


def test_ses_15_a_value_by_reference_has_its_url() -> None:
    story = Story()
    (look,) = story.answer([("call", "look")])
    ref = BlobRef(hash="0" * 64, chars=9_000, bytes=9_000)
    story.session.add_result(look.id, ToolResult(outcome="read", content="begin … end", blob=ref, duration_ms=5))
    story.see()
    *_, output = TurnChunks("s1", TURN).on_turn(story.turn)
    assert output["output"] == {
        "outcome": "read",
        "content": "begin … end",
        "durationMs": 5,
        "blob": {"url": f"/workflow/s1/blobs/{'0' * 64}", "chars": 9_000},
    }
