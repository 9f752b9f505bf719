"""Which budget ends a turn, and what the message says: AGT-1."""

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.harness import Environment, asks, says
from turnkeeper.models.errors import TurnFailedError
from turnkeeper.models.limits import Limits
from turnkeeper.models.session.budgets import Budgets
from turnkeeper.models.session.messages import Configure, SessionInput, configured
from turnkeeper.models.transcript.conversation import ConversationMessage, ModelStep, Usage
from turnkeeper.models.transcript.model_call import ModelResponse

NOW = datetime(2026, 1, 2, tzinfo=UTC)

HOW = (
    "from the next turn on by the update `configure`, PATCH /workflow/{id}, "
    'with {"limits": {"%s": %s}}, and for new sessions by the setting limits.%s.'
)
"""Where any limit is changed; its name, the value and its name again are to be filled in."""


def check(limit: str, most: float, *, steps: int = 0, calls: int = 0, usage: Usage | None = None) -> None:
    """Check what a turn did against `limit`, as the turn does."""
    limits = Limits.model_validate({limit: most})
    budgets = Budgets(limits, model="openai-chat:llama", spent=usage or Usage())
    budgets.check_next_step(steps)
    if limit == "turn_timeout":
        budgets.fail_out_of_time()
    budgets.check_calls(calls)
    budgets.check_step(usage)


def sentence(error_type: str, limit: str, most: float, **did: Any) -> str:
    with pytest.raises(TurnFailedError) as failed:
        check(limit, most, **did)
    assert failed.value.error_type == error_type
    return failed.value.sentence


TOKENS = Usage(input_tokens=12_000, output_tokens=345)


@pytest.mark.parametrize(
    ("limit", "most", "did", "took", "value"),
    [
        ("max_steps", 50, {"steps": 50}, "The turn took 50 steps", "50"),
        ("max_tool_calls", 2, {"calls": 3}, "The turn asked for 3 tool calls", "2"),
        ("max_tokens_per_turn", 12_344, {"usage": TOKENS}, "The turn used 12,345 tokens", "12,344"),
        ("max_cost_per_turn", 0.05, {"usage": Usage(cost=0.0512)}, "The turn cost $0.0512", "$0.05"),
        ("turn_timeout", 3_600, {}, "The turn ran out of time", "3,600 s"),
    ],
)
def test_agt_1_every_budget_error_has_the_same_form_and_explains_how_to_raise_it(
    limit: str, most: float, did: dict[str, Any], took: str, value: str
) -> None:
    message = sentence("max_steps" if limit == "max_steps" else "budget", limit, most, **did)
    assert message == f"{took} and is not done, and limits.{limit} is {value}: raise it {HOW % (limit, 'N', limit)}"
    assert getattr(as_input(message).limits, limit) == 900


@pytest.mark.parametrize(
    ("limit", "most", "usage", "beginning"),
    [
        (
            "max_tokens_per_turn",
            10_000,
            None,
            "openai-chat:llama does not say how many tokens it used, so limits.max_tokens_per_turn, which is 10,000, "
            "cannot be kept: choose another model, or lift the limit ",
        ),
        (
            "max_cost_per_turn",
            0.5,
            None,
            "openai-chat:llama does not say how many tokens it used, so limits.max_cost_per_turn, which is $0.50, "
            "cannot be kept: choose another model, or lift the limit ",
        ),
        (
            "max_cost_per_turn",
            0.5,
            TOKENS,
            "The price of openai-chat:llama is not known, so limits.max_cost_per_turn, which is $0.50, cannot be kept: "
            "choose another model, install turnkeeper[prices] where the worker runs if it is missing, "
            "or lift the limit ",
        ),
    ],
)
def test_agt_1_a_budget_that_cannot_be_enforced_explains_why_and_how_to_lift_it(
    limit: str, most: float, usage: Usage | None, beginning: str
) -> None:
    message = sentence("budget", limit, most, usage=usage)
    assert message == beginning + HOW % (limit, "null", limit)
    assert getattr(as_input(message).limits, limit) is None


def as_input(message: str) -> SessionInput:
    """Return a session's configuration after the change that the sentence tells to make, with 900 for N."""
    change = re.search(r"with (\{.*\}), and", message)
    assert change is not None
    limits = {"max_tokens_per_turn": 1, "max_cost_per_turn": 1}
    before = SessionInput.model_validate({"limits": limits})
    return configured(before, Configure.model_validate(json.loads(change[1].replace("N", "900"))))


@pytest.mark.parametrize(
    ("limit", "most", "did"),
    [
        ("max_tool_calls", 3, {"calls": 3}),
        ("max_tokens_per_turn", 12_345, {"usage": TOKENS}),
        ("max_cost_per_turn", 0.3, {"usage": Usage(cost=0.1) + Usage(cost=0.2)}),
    ],
)
def test_agt_1_a_budget_that_is_exactly_used_up_is_not_exceeded(limit: str, most: float, did: dict[str, Any]) -> None:
    check(limit, most, **did)


def limited(**limits: float) -> SessionInput:
    return SessionInput.model_validate({"limits": limits})


def used(response: ModelResponse, *, tokens: int = 0, cost: float | None = None) -> ModelResponse:
    usage = Usage(input_tokens=tokens - tokens // 10, output_tokens=tokens // 10, cost=cost)
    return response.model_copy(update={"usage": usage})


def results(turn: ConversationMessage) -> list[str | None]:
    steps = [step for step in turn.steps if isinstance(step, ModelStep)]
    return [call.result and call.result.status for step in steps for call in step.tool_calls]


@pytest.mark.parametrize(
    ("limit", "most", "step"),
    [
        ("max_tokens_per_turn", 1_000, used(asks(("look", {})), tokens=600)),
        ("max_cost_per_turn", 0.1, used(asks(("look", {})), cost=0.06)),
    ],
)
async def test_agt_1_tokens_and_cost_of_a_turn_are_summed_and_checked_before_tools_run(
    env: Environment, limit: str, most: float, step: ModelResponse
) -> None:
    env.vendor.script = [step, step, says("never asked")]
    session = await env.start(limited(**{limit: most}))
    await session.prompt("look twice")
    (turn,) = await session.idle(turns=1)
    assert (turn.status, turn.error_type) == ("failed", "budget")
    assert f"limits.{limit}" in (turn.error or "")
    assert results(turn) == ["ok", "cancelled"]
    assert (len(env.vendor.requests), len(env.tools.calls)) == (2, 1)
    await session.prompt("the next turn has the whole budget again")
    _, second = await session.idle(turns=2)
    assert second.agent_message == "never asked"


async def test_agt_1_an_answer_that_exceeds_the_budget_is_still_the_answer(env: Environment) -> None:
    env.vendor.script = [used(asks(("look", {})), tokens=900, cost=0.09), used(says("here"), tokens=900, cost=0.09)]
    session = await env.start(limited(max_tokens_per_turn=1_000, max_cost_per_turn=0.1))
    await session.prompt("look")
    (turn,) = await session.idle(turns=1)
    assert (turn.status, turn.agent_message) == ("completed", "here")
    assert turn.usage == Usage(input_tokens=1_620, output_tokens=180, cost=0.18)


async def test_agt_1_with_a_cost_limit_a_model_without_a_price_gets_no_second_step(env: Environment) -> None:
    env.vendor.script = [used(asks(("look", {})), tokens=10), used(says("just an answer"), tokens=10)]
    session = await env.start(limited(max_cost_per_turn=0.1).model_copy(update={"model": "openai-chat:llama"}))
    await session.prompt("look")
    await session.prompt("say")
    first, second = await session.idle(turns=2)
    assert (first.error_type, results(first)) == ("budget", ["cancelled"])
    assert "The price of openai-chat:llama is not known" in (first.error or "")
    assert second.agent_message == "just an answer"
    assert env.tools.calls == []


async def test_agt_1_the_tokens_of_a_summary_count_before_the_next_model_call(env: Environment) -> None:
    window = {"max_messages": 6, "preserve_first_n": 0, "preserve_last_n": 2, "evict_block": 3}
    history = {**window, "summarize_on_trim": True}
    env.vendor.summarise = lambda request: used(says("They counted."), tokens=5_000)
    session = await env.start(
        SessionInput.model_validate({"history": history, "limits": {"max_tokens_per_turn": 4_000}})
    )
    turns: list[ConversationMessage] = []
    while not env.vendor.summary_requests:
        await session.prompt(f"question {len(turns)}, and some words that make it longer")
        turns = await session.idle(turns=len(turns) + 1)
        assert len(turns) < 20
    assert (turns[-1].error_type, turns[-1].usage) == ("budget", Usage(input_tokens=4_500, output_tokens=500))
    assert "The turn used 5,000 tokens" in (turns[-1].error or "")
    assert len(env.vendor.turn_requests) == len(turns) - 1
    await session.prompt("and on")
    assert (await session.idle(turns=len(turns) + 1))[-1].agent_message == "echo: and on"
    assert len(env.vendor.summary_requests) == 1, "the summary was kept"


async def test_agt_1_budgets_are_counted_across_the_runs_of_a_turn(env: Environment) -> None:
    env.vendor.script = [used(asks(("look", {"n": number})), tokens=200, cost=0.2) for number in range(30)]
    session = await env.start(limited(max_tokens_per_turn=3_950, max_cost_per_turn=4.5, max_history_events=50))
    await session.prompt("look around")
    (turn,) = await session.idle(turns=1)
    assert "The turn used 4,000 tokens" in (turn.error or "")
    assert (len(env.vendor.requests), len(env.tools.calls)) == (20, 19)
    assert len(await session.histories()) >= 3
    assert turn.usage == Usage(input_tokens=3_600, output_tokens=400, cost=4.0)
