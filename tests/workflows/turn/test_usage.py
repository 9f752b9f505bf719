"""Usage and cost of models, in steps, turns and sessions: AGT-10."""

import json

from temporalio.api.sdk.v1 import WorkflowMetadata

from tests.harness import Environment, asks, says
from turnkeeper.models.limits import MIN_STATE_BYTES
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.transcript.conversation import ModelStep, Usage
from turnkeeper.models.transcript.model_call import ModelCallOutcome, ModelResponse, SummaryOutcome

SONNET = "anthropic:claude-sonnet-4-5"

A_CALL = Usage(input_tokens=1_000, output_tokens=100, cached_tokens=300, cache_write_tokens=200)
A_CALL_S_COST = 0.00384
"""500 tokens at $3 a million, 300 at $0.30, 200 at $3.75, and 100 of output at $15."""


def by_sonnet(response: ModelResponse) -> ModelResponse:
    return response.model_copy(update={"usage": A_CALL, "model": "claude-sonnet-4-5-20250929"})


def times(count: int) -> Usage:
    """Return the usage of `count` calls."""
    return Usage(
        input_tokens=1_000 * count,
        output_tokens=100 * count,
        cached_tokens=300 * count,
        cache_write_tokens=200 * count,
        cost=round(A_CALL_S_COST * count, 9),
    )


async def test_agt_10_tokens_and_cost_are_reported_per_step_turn_and_session(env: Environment) -> None:
    env.vendor.script = [by_sonnet(asks(("look", {}))), by_sonnet(says("seen")), by_sonnet(says("again"))]
    session = await env.start(SessionInput(model=SONNET))
    await session.prompt("look")
    await session.prompt("and again")
    first, second = await session.idle(turns=2)
    assert [step.usage for step in first.steps if isinstance(step, ModelStep)] == [times(1), times(1)]
    assert (first.usage, second.usage) == (times(2), times(1))
    assert (await session.state()).session.usage == times(3)
    metadata = await session.handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    assert "- **Usage:** 3,000 tokens in, 300 out, $0.01152\n" in metadata.current_details


async def test_agt_10_summaries_are_counted_in_the_turn_that_makes_them(env: Environment) -> None:
    window = {"max_messages": 6, "preserve_first_n": 0, "preserve_last_n": 2, "evict_block": 3}
    env.vendor.answer = env.vendor.summarise = lambda request: by_sonnet(says("They counted."))
    session = await env.start(
        SessionInput.model_validate({"model": SONNET, "history": {**window, "summarize_on_trim": True}})
    )
    prompt_count = 0
    while not env.vendor.summary_requests:
        prompt_count += 1
        await session.prompt(f"question {prompt_count}, and some words that make it longer")
        turns = await session.idle(turns=prompt_count)
        assert prompt_count < 20
    assert [turn.usage for turn in turns] == [*[times(1)] * (prompt_count - 1), times(2)]
    assert (await session.state()).session.usage == times(prompt_count + 1)


STEPS = 14


async def test_agt_10_sums_include_archived_steps_and_earlier_runs(env: Environment) -> None:
    env.vendor.script = [by_sonnet(asks(*[("look", {"at": "x" * 250})] * 3)) for _ in range(STEPS)]
    env.vendor.script[-1] = by_sonnet(says("seen"))
    session = await env.start(
        SessionInput.model_validate(
            {
                "model": SONNET,
                "limits": {"max_history_events": 50, "max_state_bytes": MIN_STATE_BYTES, "max_steps": 100},
            }
        )
    )
    await session.prompt("look")
    (turn,) = await session.idle(turns=1)
    assert turn.steps_omitted > 0
    assert len(await session.histories()) > 1
    assert (turn.status, turn.usage, turn.error) == ("completed", times(STEPS), None)
    await session.prompt("again")
    await session.idle(turns=2)
    assert (await session.state()).session.usage == times(STEPS), "no usage was reported, and none is made up"


def test_agt_10_unused_token_counts_take_no_space_in_history() -> None:
    response = ModelResponse(model="m", usage=Usage(input_tokens=7))
    dumped = json.loads(ModelCallOutcome(response=response).model_dump_json())
    assert dumped["response"]["usage"] == {"input_tokens": 7}
    summary = SummaryOutcome(text="They counted.", usage=Usage(input_tokens=7, cost=0.0))
    dumped = json.loads(summary.model_dump_json())
    assert dumped == {"text": "They counted.", "usage": {"input_tokens": 7, "cost": 0.0}}
    assert SummaryOutcome.model_validate(dumped) == summary
    assert SummaryOutcome().model_dump_json() == "{}"


def test_agt_9_estimated_usage_is_counted_apart_in_a_sum() -> None:
    usage_so_far, estimated = Usage(input_tokens=10, output_tokens=5), Usage(input_tokens=8, estimated_tokens=8)
    assert usage_so_far + estimated == Usage(input_tokens=18, output_tokens=5, estimated_tokens=8)
