"""How soon sessions continue after `turnkeeper up`'s worker is killed (OPS-10)."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import time
from typing import Any
from uuid import uuid4

from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client, WorkflowHandle
from temporalio.service import RPCError

from benchmarks.environment import BOUND
from benchmarks.results import Row, within
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.transcript.conversation import ConversationUpdate
from turnkeeper.ops.demo.scenario import demo_environment
from turnkeeper.ops.local.supervisor import keep_running
from turnkeeper.stores.temporal.payload_converter import DATA_CONVERTER

KILLS = 10
BUSY, IDLE = 3, 2
"""Sessions with a running model call, and sessions that get a prompt as the worker is killed."""

SCRIPTS = {
    "slow": {"responses": [{"text": "word " * 1_000, "chunk_delay": 0.2}]},
    "quick": {"responses": [{"text": "Done."}], "repeat": True},
}

FIRST = "first"

POLL_SECONDS = 0.02
QUERY_TIMEOUT = timedelta(seconds=2)

Session = WorkflowHandle[Any, Any]


async def recovery() -> list[Row]:
    """Kill the worker `KILLS` times, each time in the middle of model calls."""
    attempts, answers = list[float](), list[float]()
    async with _supervised() as (client, worker):
        idle = [await _start(client, "quick") for _ in range(IDLE)]
        await asyncio.gather(*(_until_answered(session, FIRST) for session in idle))
        for kill in range(KILLS):
            busy = [await _start(client, "slow") for _ in range(BUSY)]
            await asyncio.gather(*(_until_model_is_called(session) for session in busy))
            killed_at = time()
            os.kill(worker.pid or 0, signal.SIGKILL)
            attempt_times, answer_times = await asyncio.gather(
                asyncio.gather(*(_second_attempt(session) for session in busy)),
                asyncio.gather(*(_prompt(session, f"prompt-{kill}") for session in idle)),
            )
            attempts += [at - killed_at for at in attempt_times]
            answers += [at - killed_at for at in answer_times]
            for session in busy:
                await session.terminate()
    rows = list[Row]()
    for what, values, middle, most in (
        ("a killed worker's model call, next attempt begins after", attempts, 2.5, 4.5),
        ("prompt sent as the worker is killed, answer visible after", answers, None, 4.0),
    ):
        rows += [
            within(f"{what}: p50", median(values), middle, unit="s", digits=2),
            within(f"{what}: p99 (the last of {len(values)})", max(values), most, unit="s", digits=2),
        ]
    return rows


@asynccontextmanager
async def _supervised() -> AsyncIterator[tuple[Client, Any]]:
    """Run the demo's server and worker, and let the supervisor of `turnkeeper up` restart the worker."""
    with TemporaryDirectory() as folder:
        async with demo_environment(Path(folder)) as environment:
            scripts = Path(folder) / "state" / "scripts"
            scripts.mkdir(parents=True)
            for name, script in SCRIPTS.items():
                (scripts / f"{name}.json").write_text(json.dumps(script))
            client = await Client.connect(environment.server.address, data_converter=DATA_CONVERTER)
            async with keep_running("The worker", environment.worker, lambda line: None, stop_seconds=BOUND):
                yield client, environment.worker


async def _start(client: Client, script: str) -> Session:
    settings = Settings()
    return await client.start_workflow(
        "AgenticAIWorkflow",
        SessionInput(model=f"offline:script/{script}"),
        id=f"recovery-{uuid4()}",
        task_queue=settings.task_queue,
        task_timeout=timedelta(seconds=settings.task_timeout),
        start_signal="prompt",
        start_signal_args=[{"id": FIRST, "text": "go"}],
    )


async def _until_model_is_called(session: Session) -> None:
    """Wait until a model call has sent a heartbeat."""
    async with asyncio.timeout(BOUND):
        while not [call for call in await _model_calls(session) if call.HasField("last_heartbeat_time")]:  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)


async def _second_attempt(session: Session) -> float:
    """Return when Temporal started the second attempt of the model call."""
    async with asyncio.timeout(BOUND):
        while True:
            for call in await _model_calls(session):
                if call.attempt == 2 and call.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED:
                    return float(call.last_started_time.ToNanoseconds() / 1e9)
            await asyncio.sleep(POLL_SECONDS)


async def _model_calls(session: Session) -> list[PendingActivityInfo]:
    pending = (await session.describe()).raw_description.pending_activities
    return [activity for activity in pending if activity.activity_type.name == "call_model"]


async def _until_answered(session: Session, message_id: str) -> float:
    """Return when a polling client sees the answer to a prompt."""
    cursor = {"last_seen_message_id": message_id, "limit": 1}
    async with asyncio.timeout(BOUND):
        while True:
            with suppress(RPCError):  # no worker is running
                update = await session.query(
                    "get_conversation_updates", cursor, result_type=ConversationUpdate, rpc_timeout=QUERY_TIMEOUT
                )
                if not update.reset and any(turn.is_complete for turn in update.updated_messages):
                    return time()
            await asyncio.sleep(POLL_SECONDS)


async def _prompt(session: Session, message_id: str) -> float:
    await session.signal("prompt", {"id": message_id, "text": "And now?"})
    return await _until_answered(session, message_id)
