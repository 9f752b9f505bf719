"""Quick reads run in the activity of the model call that asks for them: OPS-8, AGT-7, AGT-8."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from temporalio.client import Client

from tests.harness import DrivenSession, Environment, asks, environment, replayer, says
from turnkeeper.activities import tools
from turnkeeper.activities.providers.protocol import Delta
from turnkeeper.activities.tools import MAX_READS
from turnkeeper.models.limits import LARGE_TEXT_BYTES
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.transcript.conversation import ModelStep, ToolResult
from turnkeeper.models.transcript.model_call import ToolInvocation, ToolSpec

READ, NOW, LOOK, PAY = ("file_read", {"path": "a.txt"}), ("now", {}), ("look", {}), ("pay", {})


@pytest.fixture
def env(env: Environment) -> Environment:
    env.tools.specs += [ToolSpec(name=name, effect="read", built_in=True) for name in ("file_read", "now")]
    return env


async def read(env: Environment, *calls: tuple[str, dict[str, Any]], start: SessionInput | None = None) -> ModelStep:
    """Return the step of an answer with these calls."""
    env.vendor.script = [asks(*calls), says("Read.")]
    session = await env.start(start)
    await session.prompt("read")
    (turn,) = await session.idle(turns=1)
    assert turn.agent_message == "Read.", turn.error
    step = turn.steps[0]
    assert isinstance(step, ModelStep)
    return step


async def activities(env: Environment) -> Counter[str]:
    """Return how often each activity of the only session was scheduled; its history replays."""
    (session,) = env.sessions
    history = await session.handle.fetch_history()
    await replayer().replay_workflow(history)
    scheduled = [event.activity_task_scheduled_event_attributes for event in history.events]
    return Counter(one.activity_type.name for one in scheduled if one.activity_type.name)


def outcomes(step: ModelStep) -> list[str | None]:
    return [call.result and call.result.outcome for call in step.tool_calls]


async def test_ops_8_quick_reads_run_in_the_activity_of_the_model_call(env: Environment) -> None:
    step = await read(env, READ, NOW)
    assert outcomes(step) == ["file_read done", "now done"]
    assert await activities(env) == {"list_tools": 1, "call_model": 2}
    session = env.sessions[0]
    assert [(call.session_id, call.call_id, call.args) for call in env.tools.calls] == [
        (session.handle.id, "1.1.0", {"path": "a.txt"}),
        (session.handle.id, "1.1.1", {}),
    ]
    assert [message.content for message in env.vendor.requests[1].messages if message.role == "tool"] == [
        "file_read done\n\n{'path': 'a.txt'}",
        "now done\n\n{}",
    ]


async def test_ops_8_an_agents_own_read_is_quick_and_knows_its_session(env: Environment) -> None:
    own = ToolSpec(name="order", effect="read", server="shop", own_name="order", local=True)
    env.tools.specs.append(own)
    start = SessionInput(user="anna", agent="support@2", tools=["shop__order"])
    step = await read(env, ("order", {"id": "A-1"}), start=start)
    assert (outcomes(step), await activities(env)) == (["order done"], {"list_tools": 1, "call_model": 2})
    (call,) = env.tools.calls
    assert (call.server, call.tool_digest, call.built_in) == ("shop", own.digest, False)
    assert (call.user, call.agent, call.call_id) == ("anna", "support@2", "1.1.0")


async def test_ops_8_a_late_read_of_an_agent_is_an_activity_from_then_on(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def first_never(invocation: ToolInvocation) -> ToolResult:
        if len(env.tools.calls) == 1:
            await asyncio.Event().wait()
        return ToolResult(outcome="order done")

    env.tools.run = first_never
    monkeypatch.setattr(tools, "MAX_READ_SECONDS", 0.01)
    env.tools.specs.append(ToolSpec(name="order", effect="read", server="shop", own_name="order", local=True))
    order = ("order", {"id": "A-1"})
    env.vendor.script = [asks(order), says("Read.")] * 2
    session = await env.start()
    for _ in range(2):
        await session.prompt("read")
    await session.idle(turns=2)
    assert (await activities(env))["call_tool"] == 2
    assert len(env.tools.calls) == 3


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param((READ, LOOK), id="one is not quick"),
        pytest.param((READ, PAY), id="one must not run twice"),
        pytest.param((READ,) * (MAX_READS + 1), id="too many"),
    ],
)
async def test_ops_8_other_calls_are_separate_activities(env: Environment, calls: Any) -> None:
    step = await read(env, *calls, start=SessionInput(tool_policy={"*": "allow"}))
    assert outcomes(step) == [f"{name} done" for name, _ in calls]
    assert (await activities(env))["call_tool"] == len(calls)
    assert len(env.tools.calls) == len(calls)


@pytest.mark.parametrize("effect", ["idempotent", "at_most_once"])
async def test_agt_7_a_tool_that_is_not_read_only_is_never_a_quick_read(env: Environment, effect: Any) -> None:
    env.tools.specs = [ToolSpec(name="file_read", effect=effect, built_in=True)]
    await read(env, READ, start=SessionInput(tool_policy={"*": "allow"}))
    assert (await activities(env))["call_tool"] == 1


async def test_agt_8_a_denied_read_does_not_run(env: Environment) -> None:
    step = await read(env, READ, NOW, start=SessionInput(tool_policy={"file_read": "deny"}))
    assert outcomes(step) == ["file_read is denied by this session's tool policy", "now done"]
    assert [call.name for call in env.tools.calls] == ["now"]


async def test_agt_8_a_read_that_needs_an_approval_waits_for_it(env: Environment) -> None:
    env.vendor.script = [asks(READ), says("Read.")]
    session = await env.start(SessionInput(tool_policy={"file_read": "ask"}))
    await session.prompt("read")
    (pending,) = await session.awaited_approvals()
    assert env.tools.calls == []
    await session.decide(pending, "approve")
    await session.idle(turns=1)
    assert [call.name for call in env.tools.calls] == ["file_read"]


async def test_ops_8_a_read_on_a_slow_disk_becomes_an_activity_and_blocks_nothing_else(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "MAX_READ_SECONDS", 0.2)
    env.tools.gate.close()
    env.vendor.script = [asks(READ), says("Read.")]
    session = await env.start()
    await session.prompt("read")
    await env.tools.gate.until_arrived(2)
    state = await session.until(lambda state: state.messages[0].reasoning_trajectory is not None)
    assert state.status == "processing"
    env.tools.gate.open()
    (turn,) = await session.idle(turns=1)
    assert turn.tools_used == ["file_read"]
    assert (await activities(env))["call_tool"] == 1


async def test_ops_8_a_failed_quick_read_is_repeated_as_an_activity(env: Environment) -> None:
    failures = [RuntimeError("the disk is gone")]

    async def fail_once(invocation: ToolInvocation) -> ToolResult:
        if failures:
            raise failures.pop()
        return ToolResult(outcome=f"{invocation.name} done")

    env.tools.run = fail_once
    assert outcomes(await read(env, READ)) == ["file_read done"]
    assert (await activities(env))["call_tool"] == 1


async def test_ses_15_a_large_quick_read_is_stored_by_reference(env: Environment) -> None:
    text = "x" * (LARGE_TEXT_BYTES + 1)

    async def read_much(invocation: ToolInvocation) -> ToolResult:
        return ToolResult(outcome="Read it", content=text)

    env.tools.run = read_much
    step = await read(env, READ, READ)
    assert [call.result is not None and call.result.blob is not None for call in step.tool_calls] == [True, True]
    assert await activities(env) == {"list_tools": 1, "call_model": 2}
    assert text in env.vendor.requests[1].messages[-1].content


async def test_ses_9_a_stop_during_a_quick_read_ends_the_turn_with_its_answer(env: Environment) -> None:
    env.tools.gate.close()
    env.vendor.script = [[Delta("respond", "I read it."), asks(READ, text="I read it.")]]
    session = await env.start()
    await session.prompt(id="p1", text="read")
    await env.tools.gate.until_arrived(1)
    await session.update("cancel_turn", {"message_id": "p1"})
    (turn,) = await session.idle(turns=1)
    assert turn.status == "cancelled"
    assert "I read it." in str(turn.reasoning_trajectory)
    env.tools.gate.open()
    await activities(env)  # replays


async def test_ops_8_a_long_turn_reads_by_activities_once_its_quick_read_limit_is_reached(temporal: Client) -> None:
    async with environment(temporal, limits={"max_state_bytes": 32_000}) as env:
        env.tools.specs += [ToolSpec(name="file_read", effect="read", built_in=True)]
        env.vendor.script = [*[asks(READ, text="y" * 300) for _ in range(40)], says("Read.")]
        session = await env.start()
        await session.prompt("read much")
        (turn,) = await session.idle(turns=1)
        assert (turn.agent_message, turn.error) == ("Read.", None)
        await _check_replays(session)


async def _check_replays(session: DrivenSession) -> None:
    for history in await session.histories():
        await replayer().replay_workflow(history)
