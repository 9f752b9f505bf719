"""Sessions with long histories go on when a worker takes them over on a machine whose cores are taken (OPS-10)."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from uuid import uuid4

from temporalio.client import Client

from models.limits import Limits
from models.model_call import ModelRequest, ModelResponse
from models.session import SessionInput
from models.settings import Settings
from tests.harness import DrivenSession, Stage, asks, says, stage

SESSIONS = 10
HOGS = 2 * (os.cpu_count() or 1)
HOG_SECONDS = 240
HOG = f"import time\nend = time.monotonic() + {HOG_SECONDS}\nwhile time.monotonic() < end: pass"

BUILD_BOUND = 240.0
RECOVERY_BOUND = 180.0

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


async def grown(on: Stage) -> DrivenSession:
    """Return a session whose history is nearly as long as it may be."""
    handle = await on.client.start_workflow(
        "AgenticAIWorkflow", SessionInput(), id=f"s-{uuid4()}", task_queue=on.task_queue, task_timeout=TASK_TIMEOUT
    )
    session, turns = on.adopt(handle), 0
    while (await handle.describe()).history_length < Limits().max_history_events * 0.9:
        turns += 1
        await session.prompt(f"Look twice, for the {turns}th time.")
        await session.until(
            lambda state, count=turns: state.session.turn_count == count and state.status == "idle",
            turns=0,
            bound=BUILD_BOUND,
        )
    return session


async def test_ops_10_long_sessions_go_on_when_a_worker_takes_them_over_on_a_busy_machine(temporal: Client) -> None:
    async with stage(temporal) as before:
        before.vendor.answer = look_twice
        sessions = await asyncio.gather(*(grown(before) for _ in range(SESSIONS)))
    for session in sessions:
        await session.prompt(id="last", text="Look once more.")
    async with hogs(), stage(temporal, task_queue=before.task_queue) as after:
        after.vendor.answer = look_twice
        taken_over = [after.adopt(session.handle) for session in sessions]
        for session in taken_over:
            session.patient = True
        states = await asyncio.gather(
            *(
                session.until(
                    lambda state: state.messages[-1].id == "last" and state.messages[-1].is_complete,
                    turns=1,
                    bound=RECOVERY_BOUND,
                )
                for session in taken_over
            )
        )
    assert {state.messages[-1].status for state in states} == {"completed"}
