"""A worker never continues from events that no completed workflow task has processed (SES-12).

A query brings a worker the session's whole history, and with it what has happened since the last completed task. Here
the test holds the query back until there is something: it is sent while no worker runs.
"""

import asyncio
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client, WorkflowHandle, WorkflowHistory
from temporalio.service import RPCError
from temporalio.worker import Replayer

from tests.api.temporal.test_committed_states import polled_workflow_task
from tests.harness import BOUND, environment
from turnkeeper.api.temporal.commits import WorkflowTasks
from turnkeeper.models.limits import Limits
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.transcript.conversation import ConversationState
from turnkeeper.stores.temporal.payload_converter import DATA_CONVERTER
from turnkeeper.workflows.agentic_ai_workflow import AgenticAIWorkflow

Handle = WorkflowHandle[Any, Any]
TURNS = 5
MANY = 500
RACES = 40
"""Sessions tried at most, since Temporal hands out a waiting query and a workflow task in either order."""


@pytest.mark.parametrize("is_lost", [False, True], ids=["no task has begun", "the task is lost"])
@pytest.mark.parametrize("is_due", [False, True], ids=["in one run", "at the end of a run"])
async def test_ses_12_a_worker_does_not_continue_from_uncommitted_events(
    temporal_with_partitions: Client, is_lost: bool, is_due: bool
) -> None:
    temporal = temporal_with_partitions
    length, history_events, turns = None, MANY, 1
    if is_due:
        # The next task makes the history long enough for a new run; what the query brings does not.
        measured = await idle_session(temporal, f"q-{uuid4()}", history_events=MANY)
        length = (await measured.describe()).history_length
        history_events, turns = length + (2 if is_lost else -1), TURNS
    for _ in range(RACES):
        queue = f"q-{uuid4()}"
        handle = await idle_session(temporal, queue, history_events=history_events, turns=turns)
        if is_due and (await handle.describe()).history_length != length:
            continue  # a busy machine's history has other events
        asking = asyncio.create_task(state_of(handle))
        if not await is_signal_behind(asking, handle):
            continue
        if is_lost and not await is_task_lost(temporal, queue):
            asking.cancel()
            continue
        async with environment(temporal, task_queue=queue) as env:
            try:
                answer = await asking
            except RPCError:
                continue  # Temporal gave the query up
            await env.adopt(handle).idle(turns=turns + 1)
            going_on = await state_of(handle)
        async with environment(temporal, task_queue=queue) as env:
            assert times_of(await state_of(handle)) == times_of(going_on)
        histories = await env.adopt(handle).histories()
        for history in histories:
            await Replayer(workflows=[AgenticAIWorkflow], data_converter=DATA_CONVERTER).replay_workflow(history)
        if rests_on_no_task(answer, histories):
            return
    raise AssertionError("no query came with such events")


def rests_on_no_task(answer: ConversationState, histories: list[WorkflowHistory]) -> bool:
    assert answer.as_of is not None
    task, tasks = answer.as_of.task, WorkflowTasks()
    tasks.learn(next(history for history in histories if history.run_id == answer.as_of.run_id).events)
    return tasks.verdict([task]) is False


async def idle_session(temporal: Client, queue: str, *, history_events: int, turns: int = TURNS) -> Handle:
    start = SessionInput(limits=Limits(max_history_events=history_events))
    handle = await temporal.start_workflow(
        "AgenticAIWorkflow", start, id=f"s-{uuid4()}", task_queue=queue, task_timeout=timedelta(seconds=2)
    )
    async with environment(temporal, task_queue=queue) as env:
        session = env.adopt(handle)
        for turn in range(turns):
            await handle.signal("prompt", {"id": f"{turn}", "text": "hi"})
            await session.idle(turns=turn + 1)
    return handle


async def state_of(handle: Handle) -> ConversationState:
    async with asyncio.timeout(BOUND):
        return await handle.query("get_conversation_state", result_type=ConversationState)


def times_of(state: ConversationState) -> list[tuple[Any, ...]]:
    return [(turn.id, turn.timestamp, turn.agent_timestamp) for turn in state.messages]


async def is_signal_behind(asking: asyncio.Task[ConversationState], handle: Handle) -> bool:
    """Send a prompt once the query waits for a worker; `False` if Temporal has given the query up.

    It does if it hands the query to a poll of the worker that has just stopped.
    """
    for _ in range(3):  # what was sent before these has arrived
        await handle.describe()
    if asking.done():
        assert isinstance(asking.exception(), RPCError)
        return False
    await handle.signal("prompt", {"id": "next", "text": "more"})
    return True


async def is_task_lost(temporal: Client, queue: str) -> bool:
    """Poll the session's workflow task and do nothing; `False` if the query came first."""
    return not (await polled_workflow_task(temporal, queue)).query.query_type
