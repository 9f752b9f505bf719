"""Large texts by reference, and turns of any length: SES-15, SES-16."""

import pytest

from tests.harness import BOUND, LONG_PAUSE, DrivenSession, Environment, asks, says
from turnkeeper.models.limits import MIN_STATE_BYTES
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.transcript.conversation import (
    ConversationMessage,
    ConversationState,
    ModelStep,
    ToolCall,
    ToolResult,
)
from turnkeeper.models.transcript.model_call import (
    CallPart,
    ModelResponse,
    ProviderState,
    RespondPart,
    ThinkPart,
    ToolInvocation,
    ToolSpec,
)

LONG = SessionInput.model_validate({"limits": {"max_steps": 1_000, "max_tool_calls": 5_000}})


def text_of(call_id: str, chars: int = 30_000) -> str:
    return f"result of {call_id}: ".ljust(chars, "x")


async def read(invocation: ToolInvocation) -> ToolResult:
    return ToolResult(outcome="Read", content=text_of(invocation.call_id, invocation.args.get("chars", 30_000)))


def calls_of(turn: ConversationMessage) -> list[ToolCall]:
    return [call for step in turn.steps if isinstance(step, ModelStep) for call in step.tool_calls]


async def blob(env: Environment, session_id: str, hash: str) -> str:
    return (await env.stores.blobs.get(session_id, [hash]))[hash]


async def test_ses_15_a_result_over_8_kb_is_stored_by_reference_and_sent_whole(env: Environment) -> None:
    env.tools.run = read
    env.vendor.script = [asks(("look", {"chars": 8_000}), ("look", {"chars": 30_000}))]
    session = await env.start()
    await session.prompt("look")
    (turn,) = await session.idle(turns=1)
    small, large = [call.result for call in calls_of(turn)]
    assert (small.content, small.blob) == (text_of("1.1.0", 8_000), None)
    assert len(large.content) <= 500
    assert "characters left out" in large.content
    assert large.blob.chars == large.blob.bytes == 30_000
    assert await blob(env, session.handle.id, large.blob.hash) == text_of("1.1.1")
    assert env.vendor.requests[-1].messages[-1].content == f"Read\n\n{text_of('1.1.1')}"


async def test_ses_15_long_answers_thinking_arguments_and_state_are_stored_by_reference(env: Environment) -> None:
    state = ProviderState(api="test", model="test", items=[{"signature": "s" * 20_000}])
    env.vendor.script = [
        ModelResponse(
            parts=[
                ThinkPart(kind="think", text="t" * 10_000),
                RespondPart(kind="respond", text="r" * 10_000),
                CallPart(kind="call", id="c1", name="look", args={"text": "a" * 10_000}),
            ],
            stop="tool_calls",
            model="test",
            state=state,
        ),
        says("w" * 20_000),
    ]
    session = await env.start()
    await session.prompt("one")
    await session.idle(turns=1)
    await session.prompt("two")
    first, _ = await session.idle(turns=2)
    step = first.steps[0]
    assert len(step.model_dump_json()) < 4_000
    assert await blob(env, session.handle.id, step.thinking_blob.hash) == "t" * 10_000
    assert env.tools.calls[0].args == {"text": "a" * 10_000}
    assert first.agent_message_blob.chars == 20_000
    assert await blob(env, session.handle.id, first.agent_message_blob.hash) == "w" * 20_000
    messages = env.vendor.requests[-1].messages
    assert [message.content for message in messages if message.role == "assistant"] == ["r" * 10_000, "w" * 20_000]
    assert messages[1].tool_calls[0].args == {"text": "a" * 10_000}
    assert messages[1].state == state
    assert len((await session.handle.fetch_history()).to_json()) < 80_000


@pytest.mark.parametrize(("calls", "calls_a_step"), [(20, 1), (120, 120)])
async def test_ses_15_a_turn_with_very_many_calls_of_30_000_characters_each_completes(
    env: Environment, calls: int, calls_a_step: int
) -> None:
    env.tools.run = read
    env.vendor.script = [asks(*[("look", {})] * calls_a_step) for _ in range(calls // calls_a_step)]
    session = await env.start(LONG)
    await session.prompt("look everywhere")
    during = await session.until(lambda state: len(env.tools.calls) > calls // 2, bound=2 * BOUND, max_pause=LONG_PAUSE)
    assert len(during.messages[0].steps) <= 50
    assert during.messages[0].steps_omitted + len(during.messages[0].steps) >= calls // 2 // calls_a_step
    assert len((await session.updates()).model_dump_json()) < 1_000_000
    (turn,) = await session.idle(turns=1, bound=2 * BOUND)
    assert (turn.status, turn.steps_omitted, len(calls_of(turn))) == ("completed", 0, calls)
    for call in calls_of(turn)[::30]:
        assert await blob(env, session.handle.id, call.result.blob.hash) == text_of(call.id)
    assert max(await carried_sizes(session)) < 1_000_000


async def carried_sizes(session: DrivenSession) -> list[int]:
    """Return the bytes of what each run of the session began with."""
    return [len(history.events[0].SerializeToString()) for history in await session.histories()]


async def test_ses_15_a_turn_too_long_for_the_state_moves_its_oldest_steps_to_the_archive(env: Environment) -> None:
    env.tools.run = read
    env.vendor.script = [asks(("look", {"chars": 900, "n": n})) for n in range(33)]
    limits = {"max_state_bytes": MIN_STATE_BYTES, "max_steps": 1_000, "max_queued_bytes": 4_000}
    session = await env.start(SessionInput.model_validate({"limits": limits}))
    await session.prompt(id="p1", text="look around")
    (turn,) = await session.idle(turns=1)
    assert turn.status == "completed"
    assert turn.steps_omitted > 5
    archived = await env.stores.archive.steps(session.handle.id, 1)
    numbers = [step.number for step in [*archived[: turn.steps_omitted], *turn.steps]]
    assert numbers == list(range(1, 35))
    whole = [message.content for message in env.vendor.requests[-1].messages if message.role == "tool"]
    assert all(content.startswith("Read\n\nresult of 1.") and len(content) > 900 for content in whole)


async def test_ses_16_a_result_that_no_store_accepts_is_cut_to_8_kb_and_marked(env: Environment) -> None:
    env.settings.state_dir.joinpath("archive.db").mkdir()
    env.tools.run = read
    env.vendor.script = [asks(("look", {})), says("w" * 20_000)]
    session = await env.start()
    await session.prompt("look")
    (turn,) = await session.idle(turns=1)
    (call,) = calls_of(turn)
    assert call.result.cut
    assert call.result.blob is None
    assert 8_000 < len(call.result.content) <= 8_192
    assert "characters left out" in call.result.content
    assert turn.agent_message == "w" * 20_000
    state: ConversationState = await session.state()
    assert state.session.archive.results_cut == 1


async def test_ses_16_calls_of_missing_tools_take_little_space_however_many_tools_exist(
    env: Environment,
) -> None:
    env.tools.specs = [ToolSpec(name=f"tool_with_a_long_name_{number:03}", effect="read") for number in range(300)]
    env.vendor.script = [asks(*[("nope" * 40, {})] * 200)]
    session = await env.start()
    await session.prompt("try them all")
    (turn,) = await session.idle(turns=1)
    assert {call.result.status for call in calls_of(turn)} == {"error"}
    assert len(turn.model_dump_json()) < 400_000
    await session.prompt("and now?")
    assert (await session.idle(turns=2))[1].agent_message == "echo: and now?"
