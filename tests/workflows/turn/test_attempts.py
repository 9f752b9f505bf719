"""Every attempt counts: usage and budgets include attempts that gave no answer: AGT-9."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import Client

from tests.harness import AnswerParts, Environment, Gate, asks, environment, says
from tests.vendors.apis import WIRES
from tests.waiting import until
from turnkeeper.activities.providers.answer_fields import UNCLEAR_ANSWER
from turnkeeper.activities.providers.protocol import Delta, ModelError
from turnkeeper.activities.providers.provider import ProviderRegistry
from turnkeeper.models.context.model_view import request_tokens
from turnkeeper.models.ids import split_model
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.texts import tokens_of
from turnkeeper.models.transcript.conversation import ConversationMessage, ModelStep, Usage
from turnkeeper.models.transcript.model_call import ModelRequest, ModelResponse
from turnkeeper.stores.partials.factory import HeartbeatCarrier, InProcessCarrier
from turnkeeper.testing.vendor_server import Answer

STORY = "It was a dark and stormy night. " * 20


def cut(text: str = STORY) -> AnswerParts:
    """An answer that breaks off."""
    return [Delta("respond", text), ModelError("connection", "the answer broke off", retry_after=0.05)]


def unclear() -> AnswerParts:
    """An answer that may or may not be complete."""
    return [Delta("respond", STORY), ModelError("provider_error", "odd", retry_after=0.05, lasting=UNCLEAR_ANSWER)]


def counted(response: ModelResponse) -> ModelResponse:
    return response.model_copy(update={"usage": Usage(input_tokens=100, output_tokens=10)})


def estimate(env: Environment, *, attempts: int, request: int = 0, text: str = STORY) -> Usage:
    """Return the expected usage of `attempts` attempts of the request number `request`."""
    one = request_tokens(env.vendor.requests[request])
    output = tokens_of(len(text))
    return Usage(
        input_tokens=one * attempts, output_tokens=output * attempts, estimated_tokens=(one + output) * attempts
    )


def limited(**limits: float) -> SessionInput:
    return SessionInput.model_validate({"limits": limits})


@pytest.mark.parametrize("carrier", ["heartbeats", "in process"])
async def test_agt_9_broken_off_attempts_count_in_the_usage_of_step_turn_and_session(
    temporal: Client, carrier: str
) -> None:
    partials = InProcessCarrier() if carrier == "in process" else HeartbeatCarrier(temporal)
    async with environment(temporal, partials=partials) as env:
        env.vendor.script = [cut(), cut(), counted(says("the end"))]
        session = await env.start()
        await session.prompt("tell me a story")
        (turn,) = await session.idle(turns=1)
        assert turn.agent_message == "the end"
        expected = estimate(env, attempts=2) + Usage(input_tokens=100, output_tokens=10)
        (step,) = turn.steps
        assert isinstance(step, ModelStep)
        assert step.usage == turn.usage == expected
        assert (await session.state()).session.usage == expected


async def test_agt_9_a_vendor_that_cuts_every_answer_costs_no_more_than_the_budget(env: Environment) -> None:
    env.vendor.script = [cut() for _ in range(100)]
    session = await env.start(limited(max_tokens_per_turn=1_000))
    await session.prompt("tell me a story")
    (turn,) = await session.idle(turns=1)
    assert (turn.status, turn.error_type) == ("failed", "budget")
    assert "limits.max_tokens_per_turn is 1,000" in (turn.error or "")
    one = estimate(env, attempts=1).tokens
    assert turn.usage is not None
    assert 1_000 < turn.usage.tokens <= 1_000 + one
    assert len(env.vendor.requests) == 1_000 // one + 1


@pytest.mark.parametrize("api", WIRES)
async def test_agt_9_for_every_api_answers_cut_at_ninety_percent_end_with_the_budget(
    temporal: Client, api: str
) -> None:
    async with WIRES[api]() as wire:
        whole = wire.reply(Answer(text=STORY * 8, input=1_000, output=1_300))
        wire.server.otherwise = lambda received: whole.cut_after(len(whole.chunks) * 9 // 10)
        providers = ProviderRegistry({split_model(wire.model)[0]: wire.provider})
        async with environment(temporal, providers=providers) as env:
            session = await env.start(limited(max_tokens_per_turn=3_000).model_copy(update={"model": wire.model}))
            await session.prompt("tell me a story")
            (turn,) = await session.idle(turns=1)
    assert (turn.status, turn.error_type) == ("failed", "budget")
    assert turn.usage is not None
    assert turn.usage.tokens > 3_000
    attempts = len(wire.requests)
    assert turn.usage.tokens * (attempts - 1) <= 3_000 * attempts, "the last attempt was the first over the budget"


async def test_agt_9_the_cost_of_attempts_counts(env: Environment) -> None:
    env.vendor.script = [cut("word " * 4_000) for _ in range(100)]
    session = await env.start(
        limited(max_cost_per_turn=0.2).model_copy(update={"model": "anthropic:claude-sonnet-4-5"})
    )
    await session.prompt("tell me a story")
    (turn,) = await session.idle(turns=1)
    assert (turn.status, turn.error_type) == ("failed", "budget")
    assert "limits.max_cost_per_turn is $0.20" in (turn.error or "")
    assert turn.usage is not None
    assert 0.2 < (turn.usage.cost or 0) < 0.3
    assert len(env.vendor.requests) == 3  # 5,000 tokens of output at $15 a million, each


async def test_agt_9_attempts_are_counted_across_a_wait_and_a_changed_request(
    env: Environment,
) -> None:
    later = ModelError("overloaded", "busy", retry_after=0.5)
    env.vendor.script = [cut(), [Delta("respond", STORY), later], cut(), counted(says("the end"))]
    session = await env.start()
    await session.prompt("tell me a story")
    (turn,) = await session.idle(turns=1)
    assert turn.usage == estimate(env, attempts=3) + Usage(input_tokens=100, output_tokens=10)


async def test_agt_9_attempts_that_the_vendor_rejected_cost_nothing(env: Environment) -> None:
    busy = ModelError("overloaded", "busy", retry_after=0.05)
    env.vendor.script = [busy, busy, counted(says("the end"))]
    session = await env.start()
    await session.prompt("hello")
    (turn,) = await session.idle(turns=1)
    assert turn.usage == Usage(input_tokens=100, output_tokens=10)


@pytest.mark.parametrize(("useless", "answers"), [("", 2), ("x" * 1_200_000, 1)])
async def test_agt_9_an_unusable_answer_of_unknown_usage_costs_its_estimate(
    env: Environment, useless: str, answers: int
) -> None:
    """An empty one is asked for again, one that is too large ends the turn."""
    env.vendor.script = [[Delta("think", STORY), says(useless)], counted(says("the end"))]
    session = await env.start()
    await session.prompt("tell me a story")
    (turn,) = await session.idle(turns=1)
    assert len(env.vendor.requests) == answers
    last = Usage(input_tokens=100, output_tokens=10) if answers == 2 else Usage()
    assert turn.usage == estimate(env, attempts=1) + last


async def test_agt_9_other_failures_do_not_count_as_retries_of_an_unclear_answer(
    env: Environment,
) -> None:
    busy = ModelError("overloaded", "busy", retry_after=0.05)
    env.vendor.script = [busy, busy, unclear(), unclear(), says("the end")]
    session = await env.start()
    await session.prompt("tell me a story")
    (turn,) = await session.idle(turns=1)
    assert (turn.agent_message, len(env.vendor.requests)) == ("the end", 5)


async def test_agt_9_unclear_answers_are_counted_across_other_failures_and_a_wait(
    env: Environment,
) -> None:
    later = ModelError("overloaded", "busy", retry_after=0.5)
    env.vendor.script = [unclear(), cut(), unclear(), later, unclear(), says("never asked")]
    session = await env.start()
    await session.prompt("tell me a story")
    (turn,) = await session.idle(turns=1)
    assert (turn.error_type, len(env.vendor.requests)) == ("provider_error", 5)


async def test_agt_9_an_answer_is_shown_without_estimating_its_request(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is for the timer's heartbeats, here the only ones that could: the end of a whole answer tells by itself."""
    measured: list[ModelRequest] = []

    def measure(request: ModelRequest) -> int:
        measured.append(request)
        return request_tokens(request)

    monkeypatch.setattr("turnkeeper.activities.spending.request_tokens", measure)
    monkeypatch.setattr("turnkeeper.activities.activity_context.HEARTBEAT_SECONDS", 60.0)
    env.vendor.script = [[Delta("respond", STORY), says(STORY)], cut(), says("the end")]
    session = await env.start()
    for prompt in ("tell me a story", "and another one"):
        await session.prompt(prompt)
    turns = await session.idle(turns=2)
    assert [turn.agent_message for turn in turns] == [STORY, "the end"]
    assert measured == env.vendor.requests[1:2], "once, of the attempt that failed"


async def test_agt_9_a_failed_turn_costs_its_attempts(env: Environment) -> None:
    env.vendor.script = [cut(), [Delta("respond", STORY), ModelError("refusal", "no")]]
    session = await env.start()
    await session.prompt("tell me a story")
    (turn,) = await session.idle(turns=1)
    assert turn.error_type == "refusal"
    (step,) = turn.steps
    assert isinstance(step, ModelStep)
    assert step.interrupted
    assert step.usage == turn.usage == estimate(env, attempts=2)


async def test_agt_9_a_stopped_answer_costs_what_was_written(env: Environment) -> None:
    middle = Gate(is_open=False)
    env.vendor.script = [[Delta("respond", STORY), middle, says("never")]]
    session = await env.start()
    await session.prompt(id="p1", text="tell me a story")
    await middle.until_arrived(1)
    await session.update("cancel_turn", {"message_id": "p1"})
    (turn,) = await session.idle(turns=1)
    assert turn.status == "cancelled"
    (step,) = turn.steps
    assert isinstance(step, ModelStep)
    assert step.usage == turn.usage == estimate(env, attempts=1)


async def test_agt_9_a_turn_that_times_out_costs_what_was_shown(env: Environment) -> None:
    middle = Gate(is_open=False)
    env.vendor.script = [cut(), [Delta("respond", STORY), middle, says("never")]]
    session = await env.start(limited(turn_timeout=4, model_timeout=60))
    await session.prompt("tell me a story")
    (turn,) = await session.idle(turns=1)
    assert turn.error_type == "budget"
    assert turn.usage == estimate(env, attempts=2)


@pytest.mark.parametrize("before", ["estimated", "counted"])
async def test_agt_9_with_a_token_limit_an_answer_of_unknown_usage_still_ends_the_turn(
    env: Environment, before: str
) -> None:
    """The usage of earlier attempts does not include the answer itself."""
    env.vendor.script = [cut() if before == "estimated" else counted(says("")), asks(("look", {})), says("never asked")]
    session = await env.start(limited(max_tokens_per_turn=100_000))
    await session.prompt("look")
    (turn,) = await session.idle(turns=1)
    assert turn.error_type == "budget"
    assert "does not say how many tokens it used" in (turn.error or "")


async def test_agt_9_attempts_of_a_summary_count(env: Environment) -> None:
    window = {"max_messages": 6, "preserve_first_n": 0, "preserve_last_n": 2, "evict_block": 3}
    summaries: Iterator[AnswerParts | ModelResponse] = iter([cut(), counted(says("They counted."))])
    env.vendor.summarise = lambda request: next(summaries)
    env.vendor.answer = lambda request: counted(says("noted"))
    session = await env.start(SessionInput.model_validate({"history": {**window, "summarize_on_trim": True}}))
    count = 0
    while len(env.vendor.summary_requests) < 2:
        count += 1
        await session.prompt(f"question {count}, and some words that make it longer")
        turns = await session.idle(turns=count)
        assert count < 20
    spent = estimate(env, attempts=1, request=env.vendor.requests.index(env.vendor.summary_requests[0]))
    assert turns[-1].usage == spent + Usage(input_tokens=200, output_tokens=20)


async def died_in_the_middle(
    env: Environment, monkeypatch: pytest.MonkeyPatch, start: SessionInput | None = None
) -> ConversationMessage:
    """Return a turn whose first attempt had written the story when its worker died.

    The next attempt knows of it by the newest heartbeat: nothing of the attempt itself has come back.
    """
    died = asyncio.Event()
    beat = activity.heartbeat

    def heartbeat(*details: Any) -> None:
        if not died.is_set():
            beat(*details)

    monkeypatch.setattr("turnkeeper.workflows.activity_options.HEARTBEAT_TIMEOUT", timedelta(seconds=2))
    monkeypatch.setattr("turnkeeper.activities.activity_context.HEARTBEAT_SECONDS", 0.5)
    monkeypatch.setattr(activity, "heartbeat", heartbeat)
    middle = Gate(is_open=False)
    env.vendor.script = [[Delta("respond", STORY), middle, ModelError("connection", "gone")], counted(says("the end"))]
    session = await env.start(start)
    await session.prompt("tell me a story")
    await middle.until_arrived(1)

    async def has_reported() -> bool:
        running = (await session.handle.describe()).raw_description.pending_activities
        return any(len(one.heartbeat_details.payloads) > 1 for one in running)  # with what was spent

    await until(has_reported)
    died.set()  # Temporal gives the attempt up
    (turn,) = await session.idle(turns=1)
    middle.open()
    return turn


async def test_agt_9_the_output_of_a_dead_worker_counts(env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    turn = await died_in_the_middle(env, monkeypatch)
    assert turn.agent_message == "the end"
    assert turn.usage == estimate(env, attempts=1) + Usage(input_tokens=100, output_tokens=10)


async def test_ses_9_the_output_of_a_dead_worker_stays_if_it_used_up_the_budget(
    temporal: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with environment(temporal, partials=HeartbeatCarrier(temporal)) as env:
        turn = await died_in_the_middle(env, monkeypatch, limited(max_tokens_per_turn=10))
        assert (turn.error_type, len(env.vendor.requests)) == ("budget", 1)
        (step,) = turn.steps
        assert isinstance(step, ModelStep)
        assert (step.text, step.interrupted) == (STORY, True)
        assert step.usage == turn.usage == estimate(env, attempts=1)
