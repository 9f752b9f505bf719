"""Sessions with long histories continue when another worker takes over on a busy machine (OPS-10)."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from uuid import uuid4

from temporalio.client import Client

from tests.harness import DrivenSession, Environment, asks, environment, says
from tests.waiting import until
from turnkeeper.models.limits import Limits
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.transcript.model_call import ModelRequest, ModelResponse

SESSIONS = 2
HOGS = os.cpu_count() or 1
HOG_SECONDS = 150
HOG = f"import time\nend = time.monotonic() + {HOG_SECONDS}\nwhile time.monotonic() < end: pass"

BUILD_BOUND = 240.0
RECOVERY_BOUND = 120.0

TASK_TIMEOUT = timedelta(seconds=Settings().task_timeout)


@asynccontextmanager
async def hogs() -> AsyncIterator[None]:
    """Keep all cores busy inside the block; what is left of them ends by itself."""
    running = [await asyncio.create_subprocess_exec(sys.executable, "-c", HOG) for _ in range(HOGS)]
    try:
        yield
    finally:
        for process in running:
            with suppress(ProcessLookupError):
                process.kill()
        await asyncio.gather(*(process.wait() for process in running))


def look_twice(request: ModelRequest) -> ModelResponse:
    is_new = request.messages[-1].role == "user"
    return asks(("look", {"n": 1}), ("look", {"n": 2})) if is_new else says("I have looked. " * 20)


async def grown(env: Environment) -> DrivenSession:
    """Return a session whose history is nearly as long as it may be."""
    handle = await env.client.start_workflow(
        "AgenticAIWorkflow", SessionInput(), id=f"s-{uuid4()}", task_queue=env.task_queue, task_timeout=TASK_TIMEOUT
    )
    session, turns = env.adopt(handle), 0
    while (await handle.describe()).history_length < Limits().max_history_events * 0.9:
        turns += 1
        await session.prompt(f"Look twice, for the {turns}th time.")
        await session.until(
            lambda state, count=turns: state.session.turn_count == count and state.status == "idle",
            turns=0,
            bound=BUILD_BOUND,
        )
    return session


async def test_ops_10_long_sessions_continue_on_another_worker_of_a_busy_machine(temporal: Client) -> None:
    async with environment(temporal) as before:
        before.vendor.answer = look_twice
        sessions = await asyncio.gather(*(grown(before) for _ in range(SESSIONS)))
    for session in sessions:
        await session.prompt(id="last", text="Look once more.")
    async with hogs(), environment(temporal, task_queue=before.task_queue) as after:
        after.vendor.answer = look_twice
        await asyncio.gather(*(at_rest(session) for session in sessions))
    async with environment(temporal, task_queue=before.task_queue):
        for session in sessions:
            session.patient = True
            (turn,) = (await session.state({"limit": 1})).messages
            assert (turn.id, turn.status) == ("last", "completed")


async def at_rest(session: DrivenSession) -> None:
    """Wait until the session has nothing to do, without a query: each would be another task for the worker."""

    async def has_nothing_to_do() -> bool:
        described = (await session.handle.describe()).raw_description
        return not described.HasField("pending_workflow_task") and not described.pending_activities

    await until(has_nothing_to_do, within=RECOVERY_BOUND)
