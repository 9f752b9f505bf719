"""A prompt's whole life on the real server: SES-1, SES-2, SES-6, SES-10, AGT-1, AGT-2, AGT-7, AGT-8, AGT-9."""

from typing import Any

import pytest
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import Client

from tests.harness import Environment, asks, environment, says, tools_of
from tests.waiting import until
from turnkeeper.activities.providers.protocol import ModelError
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.transcript.conversation import ModelStep, ToolResult, Usage
from turnkeeper.models.transcript.model_call import ModelResponse, RespondPart, ThinkPart, ToolSpec


async def test_ses_2_a_prompt_is_recorded_only_when_its_processing_starts(env: Environment) -> None:
    env.vendor.gate.close()
    session = await env.start()
    await session.prompt("one")
    await env.vendor.gate.until_arrived(1)
    await session.prompt(id="second", text="two")
    state = await session.until(lambda s: s.queue_length == 1)
    assert [turn.user_message for turn in state.messages] == ["one"]
    assert state.is_processing
    assert state.current_message_id == state.messages[0].id
    assert [prompt.id for prompt in (await session.queue()).waiting] == ["second"]
    env.vendor.gate.open()
    assert [turn.agent_message for turn in await session.idle(turns=2)] == ["echo: one", "echo: two"]


async def test_ses_1_a_turn_is_one_complete_request_and_response(env: Environment) -> None:
    env.vendor.script = [
        ModelResponse(
            parts=[ThinkPart(kind="think", text="I should look."), *asks(("look", {"at": "it"})).parts],
            stop="tool_calls",
            model="m-1",
            request_id="r1",
            usage=Usage(input_tokens=10, output_tokens=5, cached_tokens=2),
        ),
        ModelResponse(
            parts=[RespondPart(kind="respond", text="It is there.")], model="m-1", usage=Usage(input_tokens=20)
        ),
    ]
    session = await env.start()
    await session.prompt(id="p1", text="look", sent_at="2026-01-02T03:04:05+02:00")
    (turn,) = await session.idle(turns=1)
    assert (turn.id, turn.status, turn.agent_message, turn.error) == ("p1", "completed", "It is there.", None)
    assert turn.user_timestamp.isoformat() == "2026-01-02T01:04:05+00:00"
    assert turn.is_complete
    assert not turn.is_error
    assert turn.tools_used == ["look"]
    assert turn.usage == Usage(input_tokens=30, output_tokens=5, cached_tokens=2)
    assert turn.agent_timestamp is not None
    assert turn.processing_time_ms == round((turn.agent_timestamp - turn.timestamp).total_seconds() * 1000)
    first, second = turn.steps
    assert isinstance(first, ModelStep)
    assert isinstance(second, ModelStep)
    assert (first.thinking, first.model, first.request_id) == ("I should look.", "m-1", "r1")
    (call,) = first.tool_calls
    assert (call.id, call.name, call.args) == ("1.1.0", "look", {"at": "it"})
    assert call.result == ToolResult(outcome="look done", content="{'at': 'it'}", duration_ms=1)
    assert second.text == "It is there."


async def test_ses_6_every_prompt_of_a_burst_during_a_turn_is_answered_in_order(env: Environment) -> None:
    env.vendor.gate.close()
    session = await env.start()
    await session.prompt("first")
    await env.vendor.gate.until_arrived(1)
    for number in range(8):
        await session.prompt(id=f"b{number}", text=f"burst {number}")
        await session.prompt(id=f"b{number}", text="the same again")
    env.vendor.gate.open()
    turns = await session.idle(turns=9)
    assert [turn.user_message for turn in turns] == ["first", *(f"burst {number}" for number in range(8))]
    assert [turn.agent_message for turn in turns] == [f"echo: {turn.user_message}" for turn in turns]


async def test_ses_4_a_signal_that_arrives_before_run_is_safe(env: Environment) -> None:
    handle = await env.client.start_workflow(
        "AgenticAIWorkflow", id="early", task_queue=env.task_queue, start_signal="prompt", start_signal_args=["hi"]
    )
    session = await env.start(id="other")
    session.handle = handle
    assert [turn.agent_message for turn in await session.idle(turns=1)] == ["echo: hi"]


async def test_agt_1_tools_of_a_step_run_in_parallel_up_to_the_limit_and_keep_their_order(env: Environment) -> None:
    env.vendor.script = [asks(*[("look", {"n": number}) for number in range(6)])]
    env.tools.gate.close()
    session = await env.start(SessionInput.model_validate({"limits": {"max_parallel_tools": 4}}))
    await session.prompt("look six times")
    await env.tools.gate.until_arrived(4)
    assert len(env.tools.calls) == 4
    env.tools.gate.open()
    (turn,) = await session.idle(turns=1)
    step = turn.steps[0]
    assert isinstance(step, ModelStep)
    assert [call.result.content for call in step.tool_calls if call.result] == [str({"n": n}) for n in range(6)]
    assert [call.id for call in step.tool_calls] == [f"1.1.{n}" for n in range(6)]


async def test_agt_1_reaching_the_step_limit_ends_the_turn_and_names_it(env: Environment) -> None:
    env.vendor.script = [asks(("look", {})) for _ in range(9)]
    session = await env.start(SessionInput.model_validate({"limits": {"max_steps": 3}}))
    await session.prompt("never stop")
    (turn,) = await session.idle(turns=1)
    assert (turn.status, turn.error_type) == ("failed", "max_steps")
    assert "limits.max_steps" in (turn.error or "")
    assert len(turn.steps) == 3


async def test_agt_1_the_tool_call_limit_ends_the_turn_and_every_call_has_a_result(env: Environment) -> None:
    env.vendor.script = [asks(("look", {}), ("look", {}), ("look", {}))]
    session = await env.start(SessionInput.model_validate({"limits": {"max_tool_calls": 2}}))
    await session.prompt("look thrice")
    (turn,) = await session.idle(turns=1)
    assert (turn.status, turn.error_type) == ("failed", "budget")
    assert "limits.max_tool_calls is 2" in (turn.error or "")
    assert [call.result.status for call in turn.steps[0].tool_calls] == ["cancelled"] * 3
    await session.prompt("go on")
    await session.idle(turns=2)
    tools = [message for message in env.vendor.requests[-1].messages if message.role == "tool"]
    assert [message.status for message in tools] == ["cancelled"] * 3


async def test_agt_1_reaching_the_time_limit_ends_the_turn_and_names_it(env: Environment) -> None:
    env.vendor.gate.close()
    session = await env.start(SessionInput.model_validate({"limits": {"turn_timeout": 1}}))
    await session.prompt("slow")
    (turn,) = await session.idle(turns=1)
    assert (turn.status, turn.error_type) == ("failed", "budget")
    assert "limits.turn_timeout" in (turn.error or "")


@pytest.mark.parametrize(
    ("call", "status", "message"),
    [
        (("nope", {}), "error", "Unknown tool 'nope'"),
        (("look", '{"cut'), "error", "The arguments of look are not a JSON object"),
        (("pay", {}), "denied", "pay is denied by this session's tool policy"),
    ],
)
async def test_agt_7_a_call_that_cannot_run_gives_a_result_that_the_model_sees(
    env: Environment, call: tuple[str, object], status: str, message: str
) -> None:
    env.vendor.script = [asks(call), says("I see.")]  # type: ignore[arg-type]
    session = await env.start(SessionInput.model_validate({"tool_policy": {"pay": "deny"}}))
    await session.prompt("try")
    (turn,) = await session.idle(turns=1)
    assert turn.status == "completed"
    result = turn.steps[0].tool_calls[0].result
    assert (result.status, result.outcome) == (status, message)
    assert env.vendor.requests[-1].messages[-1].content.startswith(message)
    assert env.tools.calls == []


async def test_agt_7_overly_nested_arguments_and_schemas_are_rejected(env: Environment) -> None:
    deep: dict[str, Any] = {}
    for _ in range(190):
        deep = {"in": deep}
    env.tools.specs = [*env.tools.specs, ToolSpec(name="abyss", effect="read", built_in=True, input_schema=deep)]
    env.vendor.script = [asks(("look", deep)), says("too deep")]
    session = await env.start(SessionInput.model_validate({"limits": {"max_history_events": 50}}))
    await session.prompt("look deep")
    (turn,) = await session.idle(turns=1)
    assert turn.agent_message == "too deep"
    assert isinstance(turn.steps[0], ModelStep)
    result = turn.steps[0].tool_calls[0].result
    assert result is not None
    assert (result.status, result.outcome) == ("error", "The arguments of look are not a JSON object")
    assert tools_of(env.vendor.requests[0]) == ["look", "pay"]
    for _ in range(10):
        await session.prompt("and on")
    await session.idle(turns=11)
    assert len(await session.histories()) > 1


async def test_ses_10_a_failing_turn_never_ends_the_session(env: Environment) -> None:
    env.vendor.script = [ModelError("auth", "the key was revoked")]
    session = await env.start()
    await session.prompt("one")
    await session.prompt("two")
    first, second = await session.idle(turns=2)
    assert (first.status, first.error_type, first.agent_message) == ("failed", "auth", None)
    assert first.error == "The model's provider did not accept the credentials: the key was revoked."
    assert second.status == "completed"
    assert len(env.vendor.requests) == 2


async def test_agt_9_a_transient_failure_is_retried_with_the_same_context(env: Environment) -> None:
    env.vendor.script = [ModelError("overloaded", "busy"), ModelError("connection", "gone"), says("here")]
    session = await env.start()
    await session.prompt(id="p1", text="hello")
    await env.vendor.gate.until_arrived(1)
    await session.prompt("another one meanwhile")
    first, _ = await session.idle(turns=2)
    assert first.agent_message == "here"
    assert env.vendor.requests[0] == env.vendor.requests[1] == env.vendor.requests[2]


async def test_agt_9_a_long_wait_is_shown_and_can_be_cancelled(env: Environment) -> None:
    env.vendor.script = [ModelError("rate_limited", "slow down", retry_after=300)]
    session = await env.start()
    await session.prompt(id="p1", text="hello")
    state = await session.until(lambda s: s.status == "waiting_retry")
    assert state.waiting_until is not None
    assert 290 < (state.waiting_until - state.messages[0].timestamp).total_seconds() <= 310
    reason = "The model's provider is limiting requests: slow down."
    assert (state.waiting_reason, (await session.updates()).waiting_reason) == (reason, reason)
    metadata = await session.handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    assert "UTC: The model's provider is limiting requests: slow down." in metadata.current_details
    await session.update("cancel_turn", {"message_id": "p1"})
    (turn,) = await session.idle(turns=1)
    assert turn.status == "cancelled"


async def test_agt_3_a_truncated_or_empty_answer_is_never_accepted(env: Environment) -> None:
    cut = ModelResponse(parts=[RespondPart(kind="respond", text="half an ans")], stop="max_tokens", model="m")
    env.vendor.script = [cut, ModelResponse(parts=[], model="m"), ModelResponse(parts=[], model="m")]
    session = await env.start()
    await session.prompt("one")
    await session.prompt("two")
    first, second = await session.idle(turns=2)
    assert (first.error_type, first.agent_message) == ("too_large", None)
    assert (second.error_type, second.agent_message) == ("provider_error", None)


async def test_ses_16_an_answer_too_large_to_store_ends_the_turn_but_not_the_session(env: Environment) -> None:
    env.vendor.script = [says("x" * 1_200_000), says("short")]
    session = await env.start()
    await session.prompt("write a book")
    await session.prompt("write a line")
    first, second = await session.idle(turns=2)
    assert (first.status, first.error_type) == ("failed", "too_large")
    assert second.agent_message == "short"


async def test_agt_2_a_context_that_is_not_cached_is_queried_from_the_workflow(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnkeeper.activities.model_client.REQUESTS.get", lambda key: None)
    monkeypatch.setattr("turnkeeper.models.limits.Limits.page_bytes", 300)
    env.vendor.script = [asks(("look", {"n": number})) for number in range(4)]
    session = await env.start()
    await session.prompt("look around, for a while")
    (turn,) = await session.idle(turns=1)
    assert turn.agent_message == "echo: look around, for a while"
    assert [len(request.messages) for request in env.vendor.requests] == [1, 3, 5, 7, 9]
    assert tools_of(env.vendor.requests[-1]) == ["look", "pay"]


async def test_agt_2_the_models_context_never_passes_through_history(env: Environment) -> None:
    secret = "a sentence that is nowhere else"
    session = await env.start(SessionInput(system_prompt="be brief"))
    for number in range(4):
        await session.prompt(f"{number} {secret}")
    await session.idle(turns=4)
    history = (await session.handle.fetch_history()).to_json()
    assert history.count("be brief") <= 1


async def test_ses_10_a_bug_fails_the_workflow_task_and_the_turn_continues_after_the_fix(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("a bug of ours")

    session = await env.start()
    with monkeypatch.context() as broken_build:
        broken_build.setattr("turnkeeper.models.session.session.Session.end_turn", broken)
        await session.prompt("hello")

        async def is_tried_again() -> bool:
            return (await session.handle.describe()).raw_description.pending_workflow_task.attempt > 1

        await until(is_tried_again)
    (turn,) = await session.idle(turns=1)
    assert turn.agent_message == "echo: hello"


async def test_agt_2_sessions_evicted_from_the_cache_continue_with_the_same_contexts(temporal: Client) -> None:
    async with environment(
        temporal, max_cached_workflows=2, max_concurrent_workflow_tasks=1, max_concurrent_replays=1
    ) as env:
        sessions = [await env.start() for _ in range(3)]
        for number in range(3):
            env.vendor.gate.close()
            for session in sessions:
                await session.prompt(f"{session.handle.id} {number}")
            env.vendor.gate.open()
            for session in sessions:
                await session.idle(turns=number + 1)
        for session in sessions:
            requests = [r for r in env.vendor.requests if r.messages[0].content.startswith(session.handle.id)]
            assert [len(request.messages) for request in requests] == [1, 3, 5]
            turns = await session.idle(turns=3)
            assert [turn.agent_message for turn in turns] == [f"echo: {session.handle.id} {n}" for n in range(3)]
