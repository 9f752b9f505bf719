"""Partial output on its way from a model that is still writing to those who follow it: AGT-5, by every carrier."""

import asyncio
from collections.abc import Callable
from itertools import takewhile
from unittest.mock import Mock

from temporalio.api.enums.v1 import EventType

from tests.harness import BOUND, UNASKED, DrivenSession, Environment, Gate, asks, says
from tests.waiting import until
from turnkeeper.activities.call_model import ATTEMPTS_PER_WAIT
from turnkeeper.activities.providers.protocol import Delta, ModelError
from turnkeeper.activities.tools import ProgressListener
from turnkeeper.models.transcript.conversation import ToolResult
from turnkeeper.models.transcript.model_call import ToolInvocation
from turnkeeper.models.transcript.partial_output import MAX_PARTIAL_BYTES, PartialOutput
from turnkeeper.stores.partials.carrier import LiveSnapshot

HELLO = [Delta("think", "A "), Delta("think", "greeting."), Delta("respond", "Hel"), Delta("call", "look")]
LAST_DELTA = Delta("respond", "lo")


async def seen(live: LiveSnapshot, is_it: Callable[[PartialOutput], bool]) -> PartialOutput:
    """Return the first snapshot that is the one waited for."""
    until = asyncio.get_running_loop().time() + BOUND
    while True:
        version = live.version
        if live.latest is not None and is_it(live.latest):
            return live.latest
        assert await live.wait_beyond(version, until=until), f"never seen; the last was {live.latest}"


def text_of(partial: PartialOutput) -> list[tuple[str, str]]:
    return [(part.kind, part.text) for part in partial.parts]


def has_attempt(attempt: int, *, parts: int = 1) -> Callable[[PartialOutput], bool]:
    return lambda partial: (partial.attempt, len(partial.parts)) == (attempt, parts)


async def test_agt_5_thinking_text_and_calls_are_visible_while_the_model_is_writing(env: Environment) -> None:
    gate = Gate(is_open=False)
    env.vendor.script = [[*HELLO, Delta("call", "pay"), gate, says("Hello")]]
    session = await env.start()
    async with env.partials.following(session.handle.id) as live:
        await session.prompt(id="a", text="hi")
        whole = await seen(live, has_attempt(1, parts=4))
        assert (await session.state()).status == "processing"
    assert text_of(whole) == [("think", "A greeting."), ("respond", "Hel"), ("call", "look"), ("call", "pay")]
    assert (whole.message_id, whole.turn, whole.step, whole.request, whole.attempt) == ("a", 1, 1, 1, 1)
    gate.open()
    (turn,) = await session.idle(turns=1)
    assert turn.agent_message == "Hello"


async def test_agt_5_the_last_piece_before_a_silence_is_visible_too(env: Environment) -> None:
    first, second = Gate(is_open=False), Gate(is_open=False)
    env.vendor.script = [[Delta("respond", "one"), first, Delta("respond", " two"), second, says("one two")]]
    session = await env.start()
    async with env.partials.following(session.handle.id) as live:
        await session.prompt("hi")
        await seen(live, lambda partial: partial.parts[0].text == "one")
        first.open()
        await seen(live, lambda partial: partial.parts[0].text == "one two")
    second.open()
    await session.idle(turns=1)


async def test_agt_5_a_second_attempt_replaces_the_output_of_the_first(env: Environment) -> None:
    first, second = Gate(is_open=False), Gate(is_open=False)
    env.vendor.script = [
        [Delta("respond", "Never "), Delta("respond", "finished"), first, ModelError("overloaded", "busy")],
        [Delta("respond", "An"), second, says("Another")],
    ]
    session = await env.start()
    async with env.partials.following(session.handle.id) as live:
        await session.prompt("hi")
        await seen(live, lambda partial: text_of(partial) == [("respond", "Never finished")])
        first.open()
        assert text_of(await seen(live, has_attempt(ATTEMPTS_PER_WAIT + 1))) == [("respond", "An")]
    second.open()
    await session.idle(turns=1)


async def test_agt_5_a_late_follower_sees_the_output_so_far(env: Environment) -> None:
    gate = Gate(is_open=False)
    env.vendor.script = [[*HELLO, gate, says("Hello")]]
    session = await env.start()
    await session.prompt("hi")
    await gate.until_arrived(1)
    async with env.partials.following(session.handle.id) as early:
        await seen(early, has_attempt(1, parts=3))
        async with env.partials.following(session.handle.id) as late:
            assert late is early, "they share one look"
    async with env.partials.following(session.handle.id) as later:
        assert later is not early
        assert text_of(await seen(later, has_attempt(1, parts=3)))[0] == ("think", "A greeting.")
    gate.open()
    await session.idle(turns=1)


async def test_agt_5_partial_output_survives_the_heartbeats_of_a_silent_model(env: Environment) -> None:
    gate = Gate(is_open=False)
    env.vendor.script = [[*HELLO, gate, says("Hello")]]
    session = await env.start()
    await session.prompt("hi")
    await gate.until_arrived(1)
    beats = await _heartbeats_beyond(env, session.handle.id, seconds=1.5)
    assert beats >= 1
    async with env.partials.following(session.handle.id) as live:
        await seen(live, has_attempt(1, parts=3))
    gate.open()
    await session.idle(turns=1)


async def _heartbeats_beyond(env: Environment, session_id: str, *, seconds: float) -> float:
    """Wait for a heartbeat `seconds` or more after the attempt's start; return its real delay."""

    async def after() -> float | None:
        described = await env.client.get_workflow_handle(session_id).describe()
        (call,) = described.raw_description.pending_activities
        after = (call.last_heartbeat_time.ToDatetime() - call.last_started_time.ToDatetime()).total_seconds()
        return after if after >= seconds else None

    return await until(after)


async def test_agt_5_a_long_answer_is_cut_at_its_beginning_and_marked(env: Environment) -> None:
    gate = Gate(is_open=False)
    thinking, text = "Hm… " * 1_000, 'a "quoted"\nline, ' * 10_000
    pieces = [Delta("respond", text[start : start + 1_000]) for start in range(0, len(text), 1_000)]
    env.vendor.script = [[Delta("think", thinking), *pieces, gate, says(text)]]
    session = await env.start()
    async with env.partials.following(session.handle.id) as live:
        await session.prompt("hi")
        partial = await seen(live, lambda partial: partial.parts[-1].end == len(text))
    assert len(partial.model_dump_json().encode()) <= MAX_PARTIAL_BYTES
    assert (partial.parts[0].text, partial.parts[0].omitted) == ("", len(thinking))
    assert partial.parts[1].text == text[partial.parts[1].omitted :]
    assert len(partial.parts[1].text) > MAX_PARTIAL_BYTES // 2
    gate.open()
    await session.idle(turns=1)


async def test_agt_5_nothing_of_an_answer_is_visible_after_its_end(env: Environment) -> None:
    gate = Gate(is_open=False)
    env.vendor.script = [[*HELLO, LAST_DELTA, says("Hello")], [Delta("respond", "Agai"), gate, says("Again")]]
    session = await env.start()
    await session.prompt("hi")
    await session.idle(turns=1)
    async with env.partials.following(session.handle.id) as live:
        await session.prompt("again")
        await seen(live, lambda partial: partial.turn == 2)
        assert live.version == 1, "something was seen before the second answer"
    gate.open()
    await session.idle(turns=2)


async def test_agt_5_partial_output_costs_no_history_events(env: Environment) -> None:
    gates = [Gate(is_open=False) for _ in range(5)]
    paced = [event for gate in gates for event in [*[Delta("respond", "word ")] * 100, gate]]
    env.vendor.script = [says("word " * 500), [*paced, says("word " * 500)]]
    silent, streamed = await env.start(), await env.start()
    for session, expected in ((silent, []), (streamed, gates)):
        await session.state()  # the prompt then meets a session that waits for it, both times
        async with env.partials.following(session.handle.id) as live:
            await session.prompt("hi")
            for count, gate in enumerate(expected, 1):
                await seen(live, lambda partial, chars=500 * count: partial.parts[0].end == chars)
                gate.open()
            await session.idle(turns=1)
    assert live.version >= len(gates)
    assert await _events(silent) == await _events(streamed)


async def test_agt_7_each_parallel_call_shows_its_own_progress(env: Environment) -> None:
    calls = {f"1.1.{number}": Gate(is_open=False) for number in range(2)}

    async def report(invocation: ToolInvocation, *, on_progress: ProgressListener) -> ToolResult:
        for done in (9, 1, 3 + len(invocation.call_id)):
            on_progress(done, 12, invocation.call_id)
        await calls[invocation.call_id].pass_through()
        return ToolResult(outcome="reported")

    env.tools.foreign = Mock(call=report)
    env.vendor.script = [asks(("look", {}), ("look", {})), says("Done.")]
    session = await env.start(UNASKED)
    await session.prompt("go")
    for gate in calls.values():
        await gate.until_arrived(1)
    async with env.partials.following(session.handle.id) as live, asyncio.timeout(BOUND):
        while live.calls.keys() != calls.keys() or {one.progress for one in live.calls.values()} != {8}:
            await live.wait_beyond(live.version)
        assert [live.calls[call].message for call in calls] == [*calls]
        for gate in calls.values():
            gate.open()
        await session.idle(turns=1)
    (history,) = await session.histories()
    assert "8 of 12" not in str(history.events)


async def _events(session: DrivenSession) -> list[int]:
    (history,) = await session.histories()
    types = [event.event_type for event in history.events]
    return list(takewhile(lambda one: one != EventType.EVENT_TYPE_TIMER_STARTED, types))  # then the turn is archived
