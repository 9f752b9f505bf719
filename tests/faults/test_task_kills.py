"""The worker dies in the middle of a task, once in the parent's part and once in the child's (TSK-5, OPS-10)."""

import json
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from tests.faults.scripted import check_replay, next_worker, plan_of, start
from tests.faults.test_worker_kills import doomed_worker
from tests.harness import BOUND, DrivenSession
from turnkeeper.models.session.messages import SessionEnd
from turnkeeper.models.transcript.conversation import ConversationMessage, ModelStep, Usage


def answer(text: str, *calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    return {"text": text, "calls": [{"name": name, "args": args} for name, args in calls]}


PARENT = [
    answer("I have it done.", ("run_task", {"description": "Pay for the goods.", "model": "offline:script/task"})),
    answer("It is done."),
]
TASK = [answer("I pay.", ("pay", {})), answer("The goods are paid for.")]


@pytest.mark.parametrize("in_the_task", ["pay begins", pytest.param("pay has run", marks=pytest.mark.wide)])
async def test_tsk_5_there_is_one_task_and_one_answer_if_the_parent_or_task_worker_dies(
    temporal: Client, tmp_path: Path, in_the_task: str
) -> None:
    session, settings = await start(
        temporal, tmp_path, PARENT, tool_policy={"*": "allow"}, first_prompt={"id": "p1", "text": "Have it paid."}
    )
    (tmp_path / "scripts" / "task.json").write_text(json.dumps({"responses": TASK}))
    for point in ("a task is started", in_the_task):
        async with doomed_worker(plan_of(temporal, settings, dies_at=point)) as doomed:
            assert await doomed.exit_code() < 0
    async with next_worker(temporal, settings):
        (turn,) = await session.idle(turns=1, bound=2 * BOUND)
        task = temporal.get_workflow_handle(f"{session.handle.id}.task-1", result_type=SessionEnd)
        await task.result()

    assert turn.agent_message == "It is done."
    step = turn.steps[0]
    assert isinstance(step, ModelStep)
    (call,) = step.tool_calls
    assert call.result is not None
    assert call.result.content == "The goods are paid for."
    paid = (tmp_path / "ledger").read_text().count("pay") if (tmp_path / "ledger").exists() else 0
    assert paid == (in_the_task == "pay has run")
    ids = [run.id async for run in temporal.list_workflows(f"TaskQueue = '{settings['task_queue']}'")]
    assert sorted(ids) == [session.handle.id, task.id]
    await check_replay(session)
    await check_replay(DrivenSession(temporal, task))


async def test_tsk_5_a_step_of_a_task_counts_once_if_workers_die_around_signals(
    temporal: Client, tmp_path: Path
) -> None:
    session, settings = await start(
        temporal,
        tmp_path,
        PARENT,
        tool_policy={"*": "allow"},
        limits={"max_tokens_per_turn": 30_000},
        first_prompt={"id": "p1", "text": "Have it paid."},
    )
    looks = [answer(f"I look, {number}.", ("look", {"step": number})) for number in range(4)]
    (tmp_path / "scripts" / "task.json").write_text(json.dumps({"responses": [*looks, answer("It is all there.")]}))
    for point in ("request_allowance is sent", "grant_allowance is sent", "grant_allowance arrives"):
        async with doomed_worker(plan_of(temporal, settings, dies_at=point)) as doomed:
            assert await doomed.exit_code() < 0
    async with next_worker(temporal, settings):
        (turn,) = await session.idle(turns=1, bound=2 * BOUND)
        task = DrivenSession(temporal, temporal.get_workflow_handle(f"{session.handle.id}.task-1"), patient=True)
        (task_turn,) = (await task.state()).messages

    assert (turn.status, task_turn.status) == ("completed", "completed")
    assert turn.tasks_usage == task_turn.usage == usage_of_steps(task_turn)
    assert turn.usage == usage_of_steps(turn) + usage_of_steps(task_turn)
    await check_replay(session)
    await check_replay(task)


def usage_of_steps(turn: ConversationMessage) -> Usage:
    steps = [step for step in turn.steps if isinstance(step, ModelStep)]
    return sum((step.usage for step in steps if step.usage), Usage())
