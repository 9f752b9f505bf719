"""A turn is stopped while its model writes, by the process that runs the model call or by another one: OPS-8, SES-9."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.worker import Worker

from tests.faults.doomed_worker import Course
from tests.faults.scripted import check_replay, plan_of, start
from tests.faults.test_worker_kills import doomed_worker
from tests.harness import DrivenSession
from tests.stores.partials.test_carriers import seen
from tests.waiting import until
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.transcript.conversation import ModelStep
from turnkeeper.stores.partials.factory import carrier_factory
from turnkeeper.workflows.agentic_ai_workflow import AgenticAIWorkflow
from turnkeeper.workflows.hosting import SdkInternals

WORDS = " ".join(f"word{number}" for number in range(600))
"""A minute of text: a call that is not stopped shows by its length that it was not."""

SAME_PROCESS_SECONDS, OTHER_PROCESS_SECONDS = 2.0, 4.0
"""OPS-10: in how long a stop cancels a model call, here and on another machine."""


@asynccontextmanager
async def workflows_only(temporal: Client, task_queue: str) -> AsyncIterator[str]:
    """Run a worker in this process that runs no activities; yield its identity."""
    internals = SdkInternals(temporal)
    identity = "workflows only"
    worker = Worker(
        temporal,
        task_queue=task_queue,
        identity=identity,
        workflows=[AgenticAIWorkflow],
        workflow_runner=internals.runner,
    )
    internals.adjust(worker, deadlock_timeout=10)
    async with worker:
        yield identity


async def events_of(session: DrivenSession) -> list[HistoryEvent]:
    return list((await session.handle.fetch_history()).events)


def time_of(events: list[HistoryEvent], kind: int) -> datetime:
    """Return the time of the last event of a kind."""
    return [event.event_time.ToDatetime() for event in events if event.event_type == kind][-1]


@pytest.mark.parametrize("process", ["same", "other"])
async def test_ops_8_a_stop_reaches_the_process_that_runs_the_model_call(
    temporal: Client, tmp_path: Path, process: str
) -> None:
    session, settings = await start(temporal, tmp_path, [{"text": WORDS, "chunk_delay": 0.1}])
    carrier = carrier_factory(Settings(**settings))(temporal)
    async with AsyncExitStack() as running:
        await running.enter_async_context(carrier)
        live = await running.enter_async_context(carrier.following(session.handle.id))
        await session.prompt(id="p1", text="go on")
        if process == "other":
            # It has the session in its memory once it has scheduled the first activity, which it can't run.
            await running.enter_async_context(workflows_only(temporal, settings["task_queue"]))

            async def has_scheduled() -> bool:
                kinds = {event.event_type for event in await events_of(session)}
                return EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED in kinds

            await until(has_scheduled)
        await running.enter_async_context(doomed_worker(plan_of(temporal, settings, **Course().model_dump())))
        await seen(live, lambda partial: len(partial.parts[0].text.split()) >= 10)
        await session.update("cancel_turn", {"message_id": "p1"})
        (turn,) = await session.idle(turns=1)
        partial = live.latest
    assert turn.status == "cancelled"
    (step,) = turn.steps
    assert isinstance(step, ModelStep)
    assert step.interrupted
    assert partial is not None
    text = step.text or ""
    assert WORDS.startswith(text.rstrip())
    assert text.startswith(partial.parts[0].text), "what was shown is what is kept"
    events = await events_of(session)
    ended = EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED
    took = time_of(events, ended) - time_of(events, EventType.EVENT_TYPE_ACTIVITY_TASK_CANCEL_REQUESTED)
    assert took.total_seconds() < (SAME_PROCESS_SECONDS if process == "same" else OTHER_PROCESS_SECONDS)
    workflow_tasks = {event.workflow_task_completed_event_attributes.identity for event in events} - {""}
    activities = {event.activity_task_started_event_attributes.identity for event in events} - {""}
    assert (workflow_tasks == activities) == (process == "same")
    await check_replay(session)
