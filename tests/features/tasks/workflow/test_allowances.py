"""What a tree of tasks may use together, on the real server (TSK-5, AGT-1, AGT-10)."""

from collections import Counter
from typing import Any

import pytest

from tests.features.tasks.workflow.test_sub_tasks import (
    DELEGATE,
    Agent,
    calls_then,
    delegated,
    delegating,
    is_task,
    task_message,
    task_of,
)
from tests.harness import BOUND, Environment, asks, says
from tests.workflows.test_web_ui import details
from tests.workflows.turn.test_budgets import used
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.transcript.conversation import ModelStep, ToolResult, Usage
from turnkeeper.models.transcript.model_call import ModelRequest, ModelResponse

STEP = 500
"""Tokens that every model call uses."""

PRICE = 0.01
"""Dollars that every model call costs."""


def costly(agent: Agent) -> Agent:
    """Answer as `agent` does, with usage."""

    def answer(request: ModelRequest) -> ModelResponse:
        response = agent(request)
        assert isinstance(response, ModelResponse)
        return used(response, tokens=STEP, cost=PRICE)

    return answer


def tree(env: Environment, *, fans: list[int], steps: int = 1, background: bool = False) -> None:
    """Let every session start tasks, as many as `fans` says for its depth, after `steps` other steps; then it answers.

    A task's depth stands in its description.
    """

    def answer(request: ModelRequest) -> ModelResponse:
        prompt = next(message.content for message in request.messages if message.role == "user")
        depth = int(prompt.split()[1]) if is_task(request) else 0
        done = sum(message.role == "assistant" for message in request.messages)
        if done < steps:
            return asks(("look", {"step": done}))
        if done == steps and depth < len(fans):
            args: dict[str, Any] = {"description": f"Depth {depth + 1} please.", "background": background}
            return asks(*[("run_task", args)] * fans[depth])
        return says("Done.")

    env.vendor.answer = costly(answer)


def limited(**limits: float) -> SessionInput:
    return SessionInput.model_validate({"tool_policy": {"*": "allow"}, "limits": limits})


def task_results(turn: Any) -> list[ToolResult]:
    steps = [step for step in turn.steps if isinstance(step, ModelStep)]
    return [call.result for step in steps for call in step.tool_calls if call.name == "run_task" and call.result]


async def spent(env: Environment) -> int:
    return STEP * len(env.vendor.requests)


async def test_tsk_5_one_cap_of_tokens_bounds_a_turn_and_its_tasks(env: Environment) -> None:
    tree(env, fans=[6], steps=3)
    session = await env.start(limited(max_tokens_per_turn=6_000))
    await session.prompt(id="p1", text="Go.")
    (turn,) = await session.idle(turns=1)

    # Six tasks of four steps and the turn's five would use 14,500.
    assert 6_000 <= await spent(env) <= 6_000 + 6 * STEP
    assert turn.usage is not None
    assert turn.usage.tokens == await spent(env), "the turn's usage has that of its tasks"
    assert turn.tasks_usage is not None
    assert turn.tasks_usage.tokens == STEP * sum(is_task(request) for request in env.vendor.requests)
    summary = (await session.state()).session
    assert (summary.usage, summary.tasks_usage) == (turn.usage, turn.tasks_usage)
    assert f"({turn.tasks_usage.tokens:,} tokens by tasks)" in await details(session)
    of_tasks = sum((task.usage for task in summary.tasks if task.usage), Usage())
    assert of_tasks == turn.tasks_usage
    over = [result.content for result in task_results(turn) if result.status == "error"]
    assert over
    assert all(
        f"none are left of the 6,000 tokens that a turn of session {session.handle.id} and its tasks may use" in text
        for text in over
    )


@pytest.mark.wide
async def test_tsk_5_one_cap_of_cost_bounds_tasks_of_tasks_in_many_runs(env: Environment) -> None:
    tree(env, fans=[3, 3], steps=25)
    session = await env.start(limited(max_cost_per_turn=2.0, max_history_events=50))
    await session.prompt(id="p1", text="Go.")
    (turn,) = await session.idle(turns=1, bound=3 * BOUND)

    # 13 sessions of 26 steps would cost 3.40; at most 13 are in a step when nothing is left. Sessions that wait for
    # their tasks keep their portions, so a bit less may be used.
    assert 1.7 <= PRICE * len(env.vendor.requests) <= 2.0 + 13 * PRICE
    assert turn.usage is not None
    assert turn.usage.cost == pytest.approx(PRICE * len(env.vendor.requests))
    tasks = [task_of(env, session, number) for number in (1, 2, 3)]
    assert any([len(await task.histories()) > 1 for task in tasks])


async def test_tsk_5_what_tasks_do_not_use_comes_back_to_the_turn(env: Environment) -> None:
    # Each of 20 tasks, one after the other, gets a portion of 1,000 and uses half of it.
    def answer(request: ModelRequest) -> ModelResponse:
        done = sum(message.role == "assistant" for message in request.messages)
        return says("Done.") if is_task(request) or done == 20 else asks(("run_task", {"description": "Depth 1."}))

    env.vendor.answer = costly(answer)
    session = await env.start(limited(max_tokens_per_turn=41 * STEP))
    await session.prompt(id="p1", text="Go.")
    (turn,) = await session.idle(turns=1)
    assert turn.agent_message == "Done."
    assert [result.status for result in task_results(turn)] == ["ok"] * 20


async def test_tsk_5_a_chain_of_depth_three_is_reached_by_default(env: Environment) -> None:
    tree(env, fans=[1, 1, 1, 1], steps=0)
    session = await env.start(limited())
    await session.prompt(id="p1", text="Go.")
    await session.idle(turns=1)
    deepest = task_of(env, task_of(env, task_of(env, session)))
    (turn,) = (await deepest.state()).messages
    (refused,) = task_results(turn)
    assert refused.outcome == (
        "No task was started: tasks may be nested 3 deep, and this session is at depth 3 (limits.max_task_depth)."
    )


async def test_tsk_5_a_fan_of_eight_and_25_in_all_are_reached_by_default(env: Environment) -> None:
    # 1 + 3 tasks of the turn start 7 each: 3 + 21 is 24, one is left, of 4 x 7 = 28 requested.
    tree(env, fans=[3, 8], steps=0)
    session = await env.start(limited())
    await session.prompt(id="p1", text="Go.")
    await session.idle(turns=1)
    results = Counter[str]()
    for number in (1, 2, 3):
        (turn,) = (await task_of(env, session, number).state()).messages
        started = [result for result in task_results(turn) if result.status == "ok"]
        results["most at once"] = max(results["most at once"], len(started))
        results["started"] += len(started)
        for result in task_results(turn):
            if result.status == "error":
                assert result.outcome == (
                    f"No task was started: nothing is left of the 25 tasks that session {session.handle.id} may start "
                    "in all, with those of its tasks (limits.max_tasks)."
                )
    assert results == {"most at once": 8, "started": 22}


async def test_tsk_5_a_background_task_draws_from_its_turn_after_that_has_ended(env: Environment) -> None:
    tree(env, fans=[1], steps=2, background=True)
    env.tools.gate.close()
    session = await env.start(limited(max_tokens_per_turn=6_000))
    await session.prompt(id="p1", text="Go.")
    await env.tools.gate.until_arrived(1)
    env.tools.gate.open()
    turns = await session.idle(turns=2)
    assert turns[0].usage == Usage(input_tokens=4 * 450, output_tokens=4 * 50, cost=4 * PRICE)

    # The turn that gets the answer shows what the task has used; the task has 2,500 left.
    assert turns[1].tasks_usage is not None
    assert turns[1].tasks_usage.tokens == 3 * STEP
    task = task_of(env, session)
    for number in range(1, 8):
        await task.prompt(id=f"more-{number}", text="More.")
    answers = await task.idle(turns=8)
    assert [turn.status for turn in answers] == ["completed"] * 6 + ["failed"] * 2
    assert answers[-1].error_type == "budget"
    advice = "The tasks of that turn keep this limit. Raise it for the tasks that later turns start by the update"
    assert advice in (answers[-1].error or "")


async def test_tsk_5_a_task_with_an_ended_root_fails_with_budget(env: Environment) -> None:
    looking = costly(lambda request: asks(("look", {"step": len(request.messages)})))
    env.vendor.answer = costly(delegating(agent=looking, background=True))
    env.tools.gate.close()
    session, _ = await delegated(env, limited(max_tokens_per_turn=20_000))
    await env.tools.gate.until_arrived(1)
    await session.handle.terminate()
    env.tools.gate.open()
    task = task_of(env, session)
    (turn,) = (await task.until(lambda state: bool(state.messages) and state.messages[0].is_complete)).messages
    assert (turn.error_type, turn.error) == (
        "budget",
        "The task has used up its portion and can get no more: "
        f"session {session.handle.id}, whose budget it shares, has ended.",
    )


async def test_tsk_5_a_task_that_gets_no_answer_fails_when_its_time_is_over(env: Environment) -> None:
    env.vendor.answer = costly(calls_then(("look", {})))
    stranger = await env.start(limited())
    start = limited(turn_timeout=1).model_dump(mode="json") | {
        "first_prompt": "Look.",
        "features": {
            "tasks": {
                "task": {"open_seconds": None, "allowance": {"root": stranger.handle.id, "caps": {"tokens": 1_000}}}
            }
        },
    }
    task = await env.start(SessionInput.model_validate(start))
    (turn,) = await task.idle(turns=1)
    assert (turn.error_type, turn.error) == (
        "budget",
        f"Session {stranger.handle.id}, whose budget this task shares, gives no answer.",
    )
    assert env.vendor.requests == []


@pytest.mark.parametrize("limits", [{}, {"max_tokens_per_turn": 50_000}])
async def test_tsk_5_the_usage_of_a_cancelled_task_counts_once(env: Environment, limits: dict[str, float]) -> None:
    looking = costly(calls_then(("look", {})))
    env.vendor.answer = costly(delegating(agent=looking))
    env.tools.gate.close()
    session = await env.start(limited(**limits))
    await session.prompt(id="p1", text=DELEGATE)
    await env.tools.gate.until_arrived(1)
    await session.update("cancel_turn", {"message_id": "p1"})
    await session.until(lambda state: state.session.usage.tokens == 2 * STEP)

    env.tools.gate.open()
    await session.prompt(id="p2", text="Hello.")
    first, second = await session.idle(turns=2)
    assert first.usage is not None
    assert (first.usage.tokens, first.tasks_usage) == (STEP, None), "the turn had ended before its task"
    assert second.usage is not None
    assert second.tasks_usage is not None
    assert (second.usage.tokens, second.tasks_usage.tokens) == (2 * STEP, STEP)
    assert (await session.state()).session.usage == first.usage + second.usage


async def test_tsk_5_repeated_and_foreign_allowance_signals_change_nothing(env: Environment) -> None:
    tree(env, fans=[1], steps=3)
    session = await env.start(limited(max_tokens_per_turn=50_000))
    await session.prompt(id="p1", text="Go.")
    (before,) = await session.idle(turns=1)
    task_id = f"{session.handle.id}.task-1"
    amounts = {"used": {"tokens": 1}, "requested": {"tokens": 2}}
    for request in (
        {"task_id": task_id, "number": 1, **amounts},
        {"task_id": "unknown", "number": 99, **amounts},
        {"task_id": "unknown", "number": 1, "starts": "x"},
        {"task_id": 7},
        {"task_id": task_id, "number": 10**6, "used": {"tokens": -1}},
        {"task_id": task_id, "number": 10**6, "used": {"cost": 1e308}},
        [],
        "x",
    ):
        await session.handle.signal("feature_message", task_message("request_allowance", request))
        grant = {"number": 1, "granted": {"tokens": 9}}
        await session.handle.signal("feature_message", task_message("grant_allowance", grant))
    await session.prompt(id="p2", text="Go on.")
    (_, after) = await session.idle(turns=2)
    assert after.status == before.status == "completed"
