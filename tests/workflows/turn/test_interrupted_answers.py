"""The partial answer of a turn that was stopped or failed is kept, and the model sees it: SES-9."""

import asyncio
import json
import threading
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import RetryPolicy

from tests.harness import BOUND, AnswerParts, DrivenSession, Environment, Gate, asks, broken, environment, heal, says
from tests.vendors.apis import WIRES
from tests.vendors.chat_wire import ChatWire
from tests.waiting import until
from turnkeeper.activities.providers.protocol import CallInfo, Delta, ModelError
from turnkeeper.activities.providers.provider import ProviderRegistry
from turnkeeper.models.ids import split_model
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.session.session import Session
from turnkeeper.models.transcript.conversation import INTERRUPTED_NOTE, ConversationMessage, ModelStep, ToolResult
from turnkeeper.models.transcript.model_call import ModelRequest, ModelResponse, ToolInvocation
from turnkeeper.stores.partials.factory import HeartbeatCarrier
from turnkeeper.testing.vendor_server import Answer

STORY = "It was a dark"


def halfway(gate: Gate, *, text: str = STORY) -> AnswerParts:
    return [
        Delta("think", "Let me"),
        Delta("think", " see."),
        Delta("respond", text),
        gate,
        says("It was a dark night."),
    ]


def interrupted_step(turn: ConversationMessage) -> ModelStep:
    step = turn.steps[-1]
    assert isinstance(step, ModelStep)
    assert step.interrupted
    return step


async def begin_turn(env: Environment, answer: AnswerParts | None = None, **start: Any) -> tuple[DrivenSession, Gate]:
    """Start a session whose first turn, `p1`, is in the middle of its answer."""
    gate = Gate(is_open=False)
    env.vendor.script = [answer or halfway(gate)]
    if answer:
        gate = next(piece for piece in answer if isinstance(piece, Gate))
    session = await env.start(SessionInput.model_validate(start))
    await session.prompt(id="p1", text="tell me a story")
    await gate.until_arrived(1)
    return session, gate


async def next_request(env: Environment, session: DrivenSession, *, turns: int = 2) -> ModelRequest:
    await session.prompt("and now?")
    await session.idle(turns=turns)
    return env.vendor.turn_requests[-1]


async def test_ses_9_a_stopped_turn_keeps_the_partial_answer_and_the_model_is_informed(env: Environment) -> None:
    session, _ = await begin_turn(env)
    await session.update("cancel_turn", {"message_id": "p1"})
    (turn,) = await session.idle(turns=1)
    assert (turn.status, turn.error, turn.agent_message) == ("cancelled", "Cancelled: Stopped by the user.", None)
    step = interrupted_step(turn)
    assert (step.number, step.thinking, step.text) == (1, "Let me see.", STORY)
    assert step.usage is not None
    assert 0 < step.usage.tokens == step.usage.estimated_tokens
    request = await next_request(env, session)
    assert [(message.role, message.content) for message in request.messages] == [
        ("user", "tell me a story"),
        ("assistant", INTERRUPTED_NOTE + STORY),
        ("assistant", "[Stopped by the user. Nothing was done.]"),
        ("user", "and now?"),
    ]
    assert request.messages[1].state is None
    seen = (await session.context()).turns[0]
    assert (seen.seen, seen.estimated_tokens) == (
        "verbatim",
        -(-len("tell me a story" + INTERRUPTED_NOTE + STORY + "[Stopped by the user. Nothing was done.]") // 4),
    )


async def test_ops_8_a_stop_reaches_a_model_call_of_the_same_process_before_its_heartbeat(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnkeeper.activities.activity_context.HEARTBEAT_SECONDS", BOUND)
    monkeypatch.setattr("turnkeeper.workflows.activity_options.HEARTBEAT_TIMEOUT", timedelta(seconds=2 * BOUND))
    monkeypatch.setattr("turnkeeper.workflows.activity_options.UNFINISHED_PATIENCE", timedelta(seconds=BOUND))
    session, _ = await begin_turn(env)
    await session.update("cancel_turn", {"message_id": "p1"})
    (turn,) = await session.idle(turns=1)
    assert (turn.status, interrupted_step(turn).text) == ("cancelled", STORY)


async def test_ops_8_a_stop_reaches_a_tool_call_of_the_same_process_before_its_heartbeat(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnkeeper.activities.activity_context.HEARTBEAT_SECONDS", BOUND)
    monkeypatch.setattr("turnkeeper.workflows.activity_options.HEARTBEAT_TIMEOUT", timedelta(seconds=2 * BOUND))
    is_cancelled = asyncio.Event()

    async def pay(invocation: ToolInvocation) -> ToolResult:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            is_cancelled.set()
            raise
        raise AssertionError("never stopped")

    env.tools.run = pay
    env.vendor.script = [asks(("look", {}))]
    session = await env.start()
    await session.prompt(id="p1", text="look")

    async def has_begun() -> bool:
        return len(env.tools.calls) == 1

    await until(has_begun)
    await session.update("cancel_turn", {"message_id": "p1"})
    await asyncio.wait_for(is_cancelled.wait(), BOUND / 2)
    (turn,) = await session.idle(turns=1)
    assert turn.status == "cancelled"


async def test_ops_8_a_stop_on_another_worker_ends_the_turn_before_a_heartbeat(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call of another process is one that this process knows nothing of."""
    monkeypatch.setattr("turnkeeper.workflows.hosting.beat_now", lambda run_id, activity_id: None)
    session, _ = await begin_turn(env)
    await session.update("cancel_turn", {"message_id": "p1"})
    (turn,) = await session.idle(turns=1)
    assert (turn.status, turn.error) == ("cancelled", "Cancelled: Stopped by the user.")


async def test_ses_9_steps_before_the_interrupted_one_are_unchanged(env: Environment) -> None:
    gate = Gate(is_open=False)
    env.vendor.script = [asks(("look", {}), text="Looking."), halfway(gate)]
    session = await env.start()
    await session.prompt(id="p1", text="look, and tell me a story")
    await gate.until_arrived(1)
    await session.update("cancel_turn", {"message_id": "p1"})
    (turn,) = await session.idle(turns=1)
    assert [(step.number, step.interrupted) for step in turn.steps if isinstance(step, ModelStep)] == [
        (1, False),
        (2, True),
    ]
    request = await next_request(env, session)
    assert [message.role for message in request.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "assistant",
        "user",
    ]


async def test_ses_9_an_interrupt_keeps_the_partial_answer_and_shows_people_no_id(env: Environment) -> None:
    session, _ = await begin_turn(env)
    await session.prompt(id="p2", text="what time is it?", mode="interrupt")
    first, second = await session.idle(turns=2)
    assert (first.status, first.error) == ("cancelled", "Cancelled: Interrupted by a new prompt.")
    assert interrupted_step(first).text == STORY
    assert second.agent_message == "echo: what time is it?"
    assert env.vendor.requests[-1].messages[1].content == INTERRUPTED_NOTE + STORY


async def test_ses_9_a_cancelled_workflow_keeps_the_partial_answer(env: Environment) -> None:
    session, _ = await begin_turn(env)
    await session.handle.cancel()
    with pytest.raises(WorkflowFailureError):
        await session.handle.result()
    state = await session.state()
    assert (state.status, interrupted_step(state.messages[0]).text) == ("cancelled", STORY)


async def test_ses_9_unfinished_calls_are_shown_as_not_called_and_never_sent(env: Environment) -> None:
    gate = Gate(is_open=False)
    session, _ = await begin_turn(env, [Delta("respond", "I pay."), Delta("call", "pay"), gate, asks(("pay", {}))])
    await session.update("cancel_turn", {"message_id": "p1"})
    (turn,) = await session.idle(turns=1)
    (call,) = interrupted_step(turn).tool_calls
    assert (call.id, call.name, call.args) == ("1.1.0", "pay", {})
    assert call.result is not None
    assert (call.result.status, call.result.outcome) == (
        "cancelled",
        "pay was not called: the answer was interrupted before",
    )
    assert turn.tools_used is None
    assert env.tools.calls == []
    request = await next_request(env, session)
    assert [(message.role, message.tool_calls) for message in request.messages] == [
        ("user", []),
        ("assistant", []),
        ("assistant", []),
        ("user", []),
    ]


async def test_ses_9_an_answer_with_only_thinking_is_shown_but_not_sent(env: Environment) -> None:
    session, _ = await begin_turn(env, [Delta("think", "Let me see."), Gate(is_open=False), says("no")])
    await session.update("cancel_turn", {"message_id": "p1"})
    (turn,) = await session.idle(turns=1)
    assert (interrupted_step(turn).thinking, interrupted_step(turn).text) == ("Let me see.", None)
    assert [message.role for message in (await next_request(env, session)).messages] == ["user", "assistant", "user"]


async def test_ses_9_a_turn_stopped_before_any_output_has_no_step(env: Environment) -> None:
    session, _ = await begin_turn(env, [Gate(is_open=False), says("no")])
    await session.update("cancel_turn", {"message_id": "p1"})
    (turn,) = await session.idle(turns=1)
    assert (turn.status, turn.reasoning_trajectory) == ("cancelled", None)


async def test_ses_9_two_stops_are_one_and_the_first_reason_counts(env: Environment) -> None:
    session, _ = await begin_turn(env)
    receipts = await asyncio.gather(
        *(session.update("cancel_turn", {"message_id": "p1", "reason": reason}) for reason in ("enough", "really"))
    )
    await session.prompt(id="p2", text="now", mode="interrupt")
    first, second = await session.idle(turns=2)
    assert {"cancelling": True} in receipts
    assert first.error in ("Cancelled: enough", "Cancelled: really")
    assert (interrupted_step(first).text, second.status) == (STORY, "completed")


@pytest.mark.parametrize("asks_to_pay", [False, True], ids=["text", "calls"])
async def test_ses_9_an_answer_that_completes_as_the_stop_arrives_stays_whole(
    env: Environment, monkeypatch: pytest.MonkeyPatch, asks_to_pay: bool
) -> None:
    whole = asks(("pay", {}), text="I pay.") if asks_to_pay else says("It was a dark night.")
    session, gate = await begin_turn(env, [Delta("respond", "I"), Gate(is_open=False), whole])
    is_held, release = threading.Event(), threading.Event()
    receive = Session.receive

    def hold(session: Session, raw: Any, **arguments: Any) -> Any:
        if isinstance(raw, dict) and raw["id"] == "p2" and not is_held.is_set():
            is_held.set()
            release.wait(BOUND)
        return receive(session, raw, **arguments)

    # While one workflow task is held, the answer and the stop arrive, and come with the next one.
    monkeypatch.setattr(Session, "receive", hold)
    monkeypatch.setattr(env.worker._workflow_worker, "_deadlock_timeout_seconds", BOUND)
    await session.prompt(id="p2", text="later")
    assert await asyncio.to_thread(is_held.wait, BOUND)
    gate.open()

    async def is_reported() -> bool:
        return not (await session.handle.describe()).raw_description.pending_activities

    await until(is_reported)
    await session.prompt(id="p3", text="now", mode="interrupt")
    release.set()
    turns = await session.idle(turns=3)
    assert [(turn.id, turn.status) for turn in turns] == [
        ("p1", "cancelled"),
        ("p3", "completed"),
        ("p2", "completed"),
    ]
    (step,) = turns[0].steps
    assert isinstance(step, ModelStep)
    assert (step.text, step.interrupted) == (whole.text, False)
    assert [call.result and call.result.status for call in step.tool_calls] == ["cancelled"] * asks_to_pay
    assert env.tools.calls == []


async def test_ses_9_a_turn_that_fails_during_an_answer_keeps_the_partial_answer(env: Environment) -> None:
    session = await env.start()
    for number, error_type in enumerate(("provider_error", "connection", "timeout"), start=1):
        error = ModelError(error_type, "it broke", should_retry=False)
        env.vendor.script = [[Delta("think", "Hm."), Delta("respond", STORY), error]]
        await session.prompt("tell me a story")
        turn = (await session.idle(turns=number))[-1]
        assert (turn.status, turn.error_type) == ("failed", error_type)
        assert (interrupted_step(turn).thinking, interrupted_step(turn).text) == ("Hm.", STORY)
    messages = (await next_request(env, session, turns=4)).messages
    assert [message.content for message in messages].count(INTERRUPTED_NOTE + STORY) == 3


async def test_ses_9_the_partial_text_of_a_refusal_is_shown_but_not_sent(env: Environment) -> None:
    env.vendor.script = [[Delta("respond", STORY), ModelError("refusal", "no more of this")]]
    session = await env.start()
    await session.prompt("tell me a story")
    (turn,) = await session.idle(turns=1)
    assert (turn.error_type, interrupted_step(turn).text) == ("refusal", STORY)
    assert [message.role for message in (await next_request(env, session)).messages] == ["user", "assistant", "user"]


async def test_ses_9_the_last_of_several_attempts_counts(env: Environment) -> None:
    env.vendor.script = [
        [Delta("respond", "A first try"), ModelError("connection", "cut", retry_after=0)],
        [Delta("respond", STORY), ModelError("auth", "no")],
    ]
    session = await env.start()
    await session.prompt("tell me a story")
    (turn,) = await session.idle(turns=1)
    assert [step.text for step in turn.steps if isinstance(step, ModelStep)] == [STORY]


async def test_ses_9_a_successful_attempt_shows_nothing_of_the_failed_one(env: Environment) -> None:
    env.vendor.script = [[Delta("respond", STORY), ModelError("connection", "cut", retry_after=0)], says("A night.")]
    session = await env.start()
    await session.prompt("tell me a story")
    (turn,) = await session.idle(turns=1)
    assert [(step.text, step.interrupted) for step in turn.steps if isinstance(step, ModelStep)] == [
        ("A night.", False)
    ]


async def test_ses_9_the_very_last_attempt_keeps_the_partial_answer(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnkeeper.activities.failures.MAX_FAILURES", 1)
    long = STORY + " night" * 2_000
    env.vendor.script = [[Delta("respond", long), ModelError("connection", "cut", retry_after=0)] for _ in range(2)]
    session = await env.start()
    await session.prompt("tell me a story")
    (turn,) = await session.idle(turns=1)
    assert (turn.error_type, turn.error) == ("connection", "The connection to the model's provider failed: cut.")
    blob = interrupted_step(turn).text_blob
    assert blob is not None
    assert blob.chars == len(long)


async def test_ses_9_a_stop_during_a_retry_wait_keeps_the_partial_answer(env: Environment) -> None:
    env.vendor.script = [[Delta("respond", STORY), ModelError("overloaded", "busy", retry_after=60)]]
    session = await env.start()
    await session.prompt(id="p1", text="tell me a story")
    await session.until(lambda state: state.status == "waiting_retry")
    await session.update("cancel_turn", {"message_id": "p1"})
    (turn,) = await session.idle(turns=1)
    assert interrupted_step(turn).text == STORY


async def test_ses_9_a_long_text_is_stored_by_reference_and_the_model_gets_it_whole(env: Environment) -> None:
    long = STORY + " night" * 4_000
    session, _ = await begin_turn(env, [Delta("respond", long), Gate(is_open=False), says("no")])
    await session.update("cancel_turn", {"message_id": "p1"})
    (turn,) = await session.idle(turns=1)
    step = interrupted_step(turn)
    assert step.text_blob is not None
    assert (step.text_blob.chars, len(step.text or "") < 600) == (len(long), True)
    assert (await next_request(env, session)).messages[1].content == INTERRUPTED_NOTE + long


async def test_ses_16_an_endless_text_is_cut_at_answer_bytes_and_marked(env: Environment) -> None:
    pieces: AnswerParts = [Delta("respond", "night " * 1_000) for _ in range(50)]
    session, _ = await begin_turn(env, [*pieces, Gate(is_open=False), says("no")])
    await session.update("cancel_turn", {"message_id": "p1"})
    (turn,) = await session.idle(turns=1)
    step = interrupted_step(turn)
    assert step.text_blob is not None
    assert 150_000 < step.text_blob.bytes <= 200_000
    assert "characters left out" in (await next_request(env, session)).messages[1].content


async def test_ses_15_a_long_text_is_cut_inline_if_the_store_is_down(env: Environment) -> None:
    file = broken(env)
    session, _ = await begin_turn(env, [Delta("respond", "night " * 10_000), Gate(is_open=False), says("no")])
    await session.update("cancel_turn", {"message_id": "p1"})
    (turn,) = await session.idle(turns=1)
    heal(file)
    step = interrupted_step(turn)
    assert step.text_blob is None
    assert "characters left out" in (step.text or "")


async def test_ses_9_a_turn_that_times_out_keeps_the_partial_answer(env: Environment) -> None:
    session, _ = await begin_turn(env, limits={"turn_timeout": 2})
    (turn,) = await session.idle(turns=1)
    assert (turn.status, turn.error_type) == ("failed", "budget")
    assert interrupted_step(turn).text == STORY


async def test_ses_14_an_interrupted_step_is_carried_to_the_next_run(env: Environment) -> None:
    session, _ = await begin_turn(env, limits={"max_history_events": 50})
    await session.update("cancel_turn", {"message_id": "p1"})
    for number in range(10):
        await session.prompt(f"turn {number}")
        await session.idle(turns=number + 2)
    assert len(await session.histories()) > 1
    assert interrupted_step((await session.state()).messages[0]).text == STORY
    assert env.vendor.requests[-1].messages[1].content == INTERRUPTED_NOTE + STORY


class Deaf:
    """A vendor that ignores cancellation until the test releases it."""

    def __init__(self) -> None:
        self.gate = Gate(is_open=False)
        self.requests: list[ModelRequest] = []

    def resolve(self, model: str) -> tuple["Deaf", str]:
        return self, model

    async def stream(
        self, name: str, request: ModelRequest, info: CallInfo
    ) -> AsyncGenerator[Delta | ModelResponse, None]:
        self.requests.append(request)
        if len(self.requests) > 1:
            yield says("listening again")
            return
        yield Delta("respond", STORY)
        passing = asyncio.create_task(self.gate.pass_through())
        while not passing.done():
            try:
                await asyncio.shield(passing)
            except asyncio.CancelledError:
                continue
        yield says("too late")


async def test_ses_9_a_call_that_ignores_its_cancellation_does_not_delay_the_turns_end(
    temporal: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnkeeper.workflows.activity_options.UNFINISHED_PATIENCE", timedelta(seconds=1.5))
    deaf = Deaf()
    async with environment(temporal, providers=deaf) as env:
        session = await env.start()
        await session.prompt(id="p1", text="tell me a story")
        await deaf.gate.until_arrived(1)
        await session.update("cancel_turn", {"message_id": "p1"})
        (turn,) = await session.idle(turns=1)
        assert (turn.status, turn.reasoning_trajectory) == ("cancelled", None)
        await session.prompt("are you there?")
        _, second = await session.idle(turns=2)
        assert second.agent_message == "listening again"
        deaf.gate.open()
        await session.prompt("still?")
        turns = await session.idle(turns=3)
        assert turns[0] == turn


async def test_ses_9_a_worker_that_dies_in_the_last_attempt_leaves_the_partial_answer(
    temporal: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnkeeper.workflows.activity_options.HEARTBEAT_TIMEOUT", timedelta(seconds=2))
    monkeypatch.setattr("turnkeeper.workflows.activity_options.MODEL_RETRIES", RetryPolicy(maximum_attempts=1))
    monkeypatch.setattr(
        "turnkeeper.activities.activity_context.HEARTBEAT_SECONDS", 3_600
    )  # it shows, and is never heard of again
    async with environment(temporal, partials=HeartbeatCarrier(temporal)) as env:
        session, _ = await begin_turn(env)
        (turn,) = await session.idle(turns=1)
    assert (turn.status, turn.error_type) == ("failed", "timeout")
    assert (interrupted_step(turn).thinking, interrupted_step(turn).text) == ("Let me see.", STORY)


APIS = {**WIRES, "text": lambda: ChatWire("text")}


@pytest.mark.parametrize("api", APIS)
async def test_ses_9_every_vendor_accepts_the_request_after_an_interrupted_answer(temporal: Client, api: str) -> None:
    async with APIS[api]() as wire:
        whole = wire.reply(Answer(think="Let me see.", text=STORY + " night."))
        wire.script(whole.silent_after(len(whole.chunks) - 1), Answer(text="It is noon."))
        providers = ProviderRegistry({split_model(wire.model)[0]: wire.provider})
        async with environment(temporal, providers=providers) as env:
            session = await env.start(SessionInput(model=wire.model))
            await session.prompt(id="p1", text="tell me a story")
            await wire.server.until(lambda: wire.server.silences == 1)
            await session.update("cancel_turn", {"message_id": "p1"})
            (first,) = await session.idle(turns=1)
            step = interrupted_step(first)
            assert step.thinking == "Let me see."
            assert step.usage is not None
            assert step.usage.output_tokens > 0
            assert first.usage == step.usage
            assert (step.text or "").startswith(STORY)
            await session.prompt("and now?")
            _, second = await session.idle(turns=2)
            assert second.agent_message == "It is noon."
        body = wire.requests[-1].raw.decode()
        assert json.dumps(INTERRUPTED_NOTE + (step.text or ""))[1:-1] in body
        assert "Let me see." not in body


async def test_ses_9_a_cache_eviction_while_the_turn_ends_changes_nothing(
    temporal: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnkeeper.workflows.activity_options.UNFINISHED_PATIENCE", timedelta(seconds=3.0))
    deaf = Deaf()
    small = {"max_cached_workflows": 2, "max_concurrent_workflow_tasks": 1, "max_concurrent_replays": 1}
    async with environment(temporal, providers=deaf, **small) as env:
        session = await env.start()
        await session.prompt(id="p1", text="tell me a story")
        await deaf.gate.until_arrived(1)
        await session.update("cancel_turn", {"message_id": "p1"})
        for _ in range(2):  # they take both places
            other = await env.start()
            await other.prompt("are you there?")
            await other.idle(turns=1)
        (turn,) = await session.idle(turns=1)
        assert (turn.status, turn.error) == ("cancelled", "Cancelled: Stopped by the user.")
        deaf.gate.open()
        await session.prompt("and now?")
        assert [turn.status for turn in await session.idle(turns=2)] == ["cancelled", "completed"]
