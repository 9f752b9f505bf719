"""How a session handles a vendor's faults: AGT-9, AGT-3, AGT-10, SES-10. Every fault is in `test_vendor_faults.py`.

A turn has two model calls with a tool between them. One of the two meets a fault. Whatever happens, the tool has run
once, no half answer is taken for one, and the vendor was asked exactly as often as AGT-9 allows.
"""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.client import Client

from tests.faults.vendor_faults import (
    ANSWER,
    AT_ONCE,
    CALL,
    HALF,
    MIDDLE,
    Trouble,
    answers,
    broken,
    lasting,
    outage,
    passing,
    refuses,
)
from tests.harness import DrivenSession, Environment
from tests.vendors.apis import WIRES
from tests.vendors.environment import next_turn, vendor_environment
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.testing.vendor_server import Answer, Fault, Reply, VendorServer

ONE_MINUTE = {"turn_timeout": 60}

OVERLOADED = passing("overloaded", "overloaded", AT_ONCE)
CUT = broken("a cut in the middle", lambda wire, whole: whole.cut_after(MIDDLE))
STALE = Trouble("stale reasoning", refuses("stale_reasoning"), requests=2)
EMPTY = Trouble("an empty answer", answers(Answer()), requests=2)
TOO_LONG = Trouble("a context that is too long twice", refuses("context_too_long", times=2), requests=3)

STORIES = {
    "anthropic": [
        (OVERLOADED, "first"),
        (CUT, "last"),
        (STALE, "last"),
        (EMPTY, "first"),
        (Trouble("an outage", outage, 5, "budget"), "last"),
        (lasting("quota", "quota"), "first"),
        (TOO_LONG, "first"),
    ],
    "openai": [
        (OVERLOADED, "last"),
        (CUT, "first"),
        (STALE, "last"),
        (EMPTY, "last"),
        (lasting("stale_reasoning", "bad_request", requests=2), "last"),
        (Trouble("a wait beyond the turn", refuses("rate_limited", {"retry-after": "86400"}), 1, "budget"), "first"),
        (Trouble("a refusal", answers(Answer(text=HALF, stop="refusal")), 1, "refusal"), "last"),
        (TOO_LONG, "last"),
    ],
    "openai-chat": [
        (OVERLOADED, "first"),
        (CUT, "last"),
        (STALE, "last"),
        (EMPTY, "first"),
        (Trouble("an empty answer that lasts", answers(Answer(), times=2), 2, "provider_error"), "last"),
        (Trouble("the vendor's length limit", answers(Answer(text=HALF, stop="max_tokens")), 1, "too_large"), "first"),
        (lasting("context_too_long", "context_too_long", requests=3), "first"),
        (TOO_LONG, "first"),
    ],
}
"""The faults in a session of each API, one per turn: all that involve the workflow."""


async def led(env: Environment, wire: VendorServer, *, limits: dict[str, Any] | None = None) -> DrivenSession:
    session = await env.start(SessionInput.model_validate({"model": wire.model, "limits": limits or {}}))
    await session.prompt(id="p1", text="look it up")
    return session


def _half_answers(turn: ConversationMessage) -> list[str]:
    texts = [step.text for step in turn.steps if step.kind == "model" and step.text] + [turn.agent_message or ""]
    return [text for text in texts if text not in ("", CALL.text, ANSWER.text, HALF)]


async def struck(env: Environment, wire: VendorServer, session: DrivenSession, trouble: Trouble, position: str) -> None:
    """Lead the session through `trouble` at the `first` or the `last` model call of its next turn, and check it."""
    is_answered = trouble.end == "answer"
    goes_on = position == "first" and is_answered
    if position == "last":
        wire.script(CALL)
    trouble.script(wire, wire.reply(CALL if position == "first" else ANSWER))
    if goes_on:
        wire.script(ANSWER)
    requests, calls = len(wire.requests), env.tools.calls
    calls.clear()
    turn = await next_turn(session, "look it up")

    assert turn.error_type == (None if is_answered else trouble.end), turn.error
    assert turn.agent_message == (ANSWER.text if is_answered else None)
    assert _half_answers(turn) == []
    assert len(wire.requests) - requests == trouble.requests + (position == "last" or goes_on)
    tool_has_run = position == "last" or is_answered
    assert len(calls) == tool_has_run
    assert not wire.server.problems


@pytest.mark.parametrize("api", WIRES)
async def test_agt_9_a_session_continues_after_any_failure_of_its_turns(temporal: Client, api: str) -> None:
    async with WIRES[api]() as wire, vendor_environment(temporal, wire) as env:
        session = await env.start(SessionInput.model_validate({"model": wire.model, "limits": ONE_MINUTE}))
        for trouble, position in STORIES[api]:
            await struck(env, wire, session, trouble, position)
        wire.script(ANSWER)
        assert (await next_turn(session, "and now?")).agent_message == ANSWER.text


async def test_agt_9_calls_of_a_message_that_stops_with_end_turn_are_run(temporal: Client) -> None:
    async with WIRES["anthropic"]() as wire, vendor_environment(temporal, wire) as env:
        wire.script(Answer(text=CALL.text, calls=CALL.calls, stop="end_turn"), ANSWER)
        session = await led(env, wire)
        (turn,) = await session.idle(turns=1)
        assert (turn.agent_message, len(wire.requests)) == (ANSWER.text, 2)
        assert [call.call_id for call in env.tools.calls] == ["1.1.0"]


async def test_agt_9_an_answer_with_only_thinking_twice_is_accepted(temporal: Client) -> None:
    async with WIRES["openai-chat"]() as wire, vendor_environment(temporal, wire) as env:
        wire.script(Answer(think="It is noon."), Answer(think="It is noon."))
        session = await led(env, wire)
        (turn,) = await session.idle(turns=1)
        assert (turn.agent_message, turn.error, len(wire.requests)) == ("It is noon.", None, 2)


async def test_agt_10_an_empty_answer_is_paid_for_and_counted(temporal: Client) -> None:
    async with WIRES["openai"]() as wire, vendor_environment(temporal, wire) as env:
        wire.script(Answer(input=100, output=7), Answer(text=ANSWER.text, input=100, output=20))
        session = await led(env, wire)
        (turn,) = await session.idle(turns=1)
        assert turn.agent_message == ANSWER.text
        assert turn.usage is not None
        assert (turn.usage.input_tokens, turn.usage.output_tokens) == (200, 27)
        assert [step.text for step in turn.steps if step.kind == "model"] == [ANSWER.text]


@pytest.mark.parametrize("api", ["anthropic", "openai"])
async def test_agt_9_state_rejected_in_unknown_words_is_left_out_at_once(temporal: Client, api: str) -> None:
    async with WIRES[api]() as wire, vendor_environment(temporal, wire) as env:
        words = "Encrypted reasoning item was created by a different model and cannot be used"
        wire.script(CALL, Reply.error(400, {"error": {"message": words}}), ANSWER)
        session = await led(env, wire)
        (turn,) = await session.idle(turns=1)
        assert (turn.agent_message, len(wire.requests)) == (ANSWER.text, 3)
        assert turn.steps[-1].left_out.startswith("Left out for this model: reasoning of earlier steps")
        wire.script(ANSWER)
        await session.prompt("and now?")
        turns = await session.idle(turns=2)
        assert turns[-1].agent_message == ANSWER.text
        assert [CALL.think in request.raw.decode() for request in wire.requests] == [False, True, False, False]
        assert [CALL.text in request.raw.decode() for request in wire.requests] == [False, True, True, True]


async def test_agt_9_the_workflow_does_a_long_wait_and_clients_see_its_end(
    temporal: Client,
) -> None:
    async with WIRES["anthropic"]() as wire, vendor_environment(temporal, wire) as env:
        wire.script(wire.fault("rate_limited", {"retry-after": "2.5"}), ANSWER)
        session = await led(env, wire)
        waiting = await session.until(lambda state: state.status == "waiting_retry")
        assert waiting.waiting_until is not None
        assert timedelta() < waiting.waiting_until - datetime.now(UTC) < timedelta(seconds=2.6)
        assert waiting.waiting_reason == "Anthropic is limiting requests: HTTP 429, request req_fault."
        (turn,) = await session.idle(turns=1)
        after = await session.until(lambda state: state.status == "idle")
        assert (after.waiting_until, after.waiting_reason) == (None, None)
        assert (turn.agent_message, len(wire.requests)) == (ANSWER.text, 2)
        assert turn.processing_time_ms >= 2_500


async def test_agt_9_the_same_error_is_shown_from_the_first_retry_and_ends_the_turn(temporal: Client) -> None:
    jinja = "Jinja Exception: Conversation roles must alternate"
    broken = Reply.error(500, {"error": {"message": jinja}})
    reasons, gate = list[str](), asyncio.Event()
    async with WIRES["openai-chat"]() as wire, vendor_environment(temporal, wire) as env:
        wire.script(broken, broken.behind(gate), broken)
        session = await led(env, wire)
        waiting = await session.until(lambda state: state.waiting_reason is not None)
        reasons.append(waiting.waiting_reason or "")
        retrying = await session.until(lambda state: "again" in (state.waiting_reason or ""))
        reasons.append(retrying.waiting_reason or "")
        assert (retrying.status, retrying.waiting_until) == ("processing", None)
        gate.set()
        (turn,) = await session.idle(turns=1)
        after = await session.until(lambda state: state.status == "idle")
        assert (turn.error_type, len(wire.requests), after.waiting_reason) == ("provider_error", 3, None)
        assert f"says “{jinja}” (HTTP 500), 3 times." in (turn.error or "")
        wire.script(ANSWER)
        assert (await next_turn(session, "and now?")).agent_message == ANSWER.text
    reason = f"The endpoint of openai_chat.base_url had an error: the endpoint of openai_chat.base_url says “{jinja}”"
    assert [words.startswith(reason) for words in reasons] == [True, True]
    assert reasons[1].endswith("(HTTP 500); asked again (2nd time).")


async def test_agt_9_a_vendor_that_sends_only_pings_is_reported_with_the_limit(temporal: Client) -> None:
    pings = Reply.stream([b": ping\n\n"]).silent_after(1)
    async with WIRES["openai-chat"]() as wire, vendor_environment(temporal, wire) as env:
        wire.script(pings, pings, pings)
        session = await led(env, wire, limits={"model_timeout": 2})
        third = await session.until(lambda state: "3rd" in (state.waiting_reason or ""))
        (turn,) = await session.idle(turns=1)
    late = "did not answer within 2 s, which is limits.model_timeout"
    assert late in (third.waiting_reason or "")
    assert (third.waiting_reason or "").endswith("; asked again (3rd time).")
    assert (turn.error_type, len(wire.requests)) == ("timeout", 3)
    assert f"{late}, 3 times." in (turn.error or "")
    assert "turn_timeout" not in (turn.error or "")


async def test_agt_9_a_turn_that_timed_out_by_silence_reports_the_silence(temporal: Client) -> None:
    pings = Reply.stream([b": ping\n\n"]).silent_after(1)
    async with WIRES["openai-chat"]() as wire, vendor_environment(temporal, wire) as env:
        wire.script(pings, pings, pings)
        session = await led(env, wire, limits={"model_timeout": 3, "turn_timeout": 5})
        (turn,) = await session.idle(turns=1)
        assert turn.error_type == "timeout"
        assert "did not answer within 3 s, which is limits.model_timeout" in (turn.error or "")
        assert "turn_timeout" not in (turn.error or "")


async def test_agt_9_a_turn_without_time_to_wait_reports_what_it_would_have_waited_for(temporal: Client) -> None:
    phrases: dict[Fault, str] = {
        "overloaded": "is overloaded",
        "provider_error": "had an error",
        "rate_limited": "limiting",
    }
    async with WIRES["anthropic"]() as wire, vendor_environment(temporal, wire) as env:
        session = await env.start(SessionInput.model_validate({"model": wire.model, "limits": ONE_MINUTE}))
        for number, (fault, phrase) in enumerate(phrases.items(), start=1):
            wire.script(wire.fault(fault, {"retry-after": "90"}))
            turn = await next_turn(session, "look it up")
            error = turn.error or ""
            assert (turn.error_type, len(wire.requests)) == ("budget", number)
            assert error.startswith("Anthropic ")
            assert phrase in error
            assert "would have to wait 90 s" in error
            assert "limits.turn_timeout is 60 s" in error


async def test_agt_9_an_answer_that_takes_too_long_is_treated_like_any_other_failure(temporal: Client) -> None:
    async with WIRES["openai-chat"]() as wire, vendor_environment(temporal, wire) as env:
        wire.script(wire.reply(ANSWER).silent_after(MIDDLE), ANSWER)
        session = await led(env, wire, limits={"model_timeout": 1})
        (turn,) = await session.idle(turns=1)
        assert (turn.agent_message, len(wire.requests), wire.server.left) == (ANSWER.text, 2, 1)


async def test_agt_9_a_stopped_turn_disconnects_from_the_vendor(temporal: Client) -> None:
    async with WIRES["openai"]() as wire, vendor_environment(temporal, wire) as env:
        wire.script(wire.reply(ANSWER).silent_after(MIDDLE))
        session = await led(env, wire)
        await wire.server.until(lambda: wire.server.silences == 1)
        await session.update("cancel_turn", {"message_id": "p1"})
        (turn,) = await session.idle(turns=1)
        assert (turn.status, turn.agent_message) == ("cancelled", None)
        await wire.server.until(lambda: wire.server.left == 1)
        assert len(wire.requests) == 1
