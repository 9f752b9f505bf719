"""A worker that dies under the supervisor: its work continues at once, and its restarts don't slow down (OPS-10)."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock
from uuid import uuid4

import pytest
from temporalio import activity
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client
from temporalio.common import RetryPolicy

from tests.harness import AnswerParts, DrivenSession, Gate, environment, says
from tests.ops.conftest import BOUND
from tests.processes.launcher import FORK_SERVER
from tests.servers import odd
from tests.waiting import until
from turnkeeper.activities.failures import WORKER_DIED
from turnkeeper.activities.providers.protocol import Delta
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.transcript.model_call import ModelRequest
from turnkeeper.ops.local.dead_worker import RunningReporter, fail_activities
from turnkeeper.ops.local.processes import Program
from turnkeeper.ops.local.supervisor import RestartPacer, keep_running, own_command
from turnkeeper.ops.local.worker_process import RunningActivities, RunningActivity, WorkerProgram
from turnkeeper.stores.partials.factory import HeartbeatCarrier

pytestmark = pytest.mark.usefixtures("forked")

SLOW_ANSWER = {"text": "It takes a while to write this down word by word", "chunk_delay": 0.3}
QUICK_ANSWER = {"text": "Done."}

KILLS = 2


@dataclass
class Supervised:
    """A worker under the real supervisor, and the lines that it logs."""

    client: Client
    program: WorkerProgram
    task_queue: str
    folder: Path
    sessions: list[DrivenSession] = field(default_factory=list)
    log_lines: list[str] = field(default_factory=list)

    async def start(self, script: str) -> DrivenSession:
        start = SessionInput(model=f"offline:script/{script}", tool_policy={"*": "allow"})
        handle = await self.client.start_workflow(
            "AgenticAIWorkflow",
            start,
            id=f"s-{uuid4()}",
            task_queue=self.task_queue,
            task_timeout=timedelta(seconds=Settings().task_timeout),
        )
        self.sessions.append(DrivenSession(self.client, handle, patient=True))
        return self.sessions[-1]

    def kill(self) -> None:
        assert self.program.pid is not None
        os.kill(self.program.pid, signal.SIGKILL)


@asynccontextmanager
async def supervised(
    client: Client, folder: Path, *, stop_seconds: float = BOUND, **scripts: list[dict[str, Any]]
) -> AsyncIterator[Supervised]:
    (folder / "scripts").mkdir()
    for name, responses in scripts.items():
        script = {"responses": responses, "repeat": True}
        (folder / "scripts" / f"{name}.json").write_text(json.dumps(script))
    server = {"command": sys.executable, "args": ["-I", odd.__file__], "cwd": str(folder)}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"odd": server}}))
    task_queue = f"q-{uuid4()}"
    env = {
        **os.environ,
        "TEMPORAL_ADDRESS": client.service_client.config.target_host,
        "TURNKEEPER_TASK_QUEUE": task_queue,
        "TURNKEEPER_STATE_DIR": str(folder),
        "TURNKEEPER_WORKSPACE_ROOT": str(folder),
    }

    async def connect() -> Client:
        return client

    fail = partial(fail_activities, connect)
    program = WorkerProgram(own_command("worker"), fail=fail, log=folder / "worker.log", env=env, folder=folder)
    env = Supervised(client, program, task_queue, folder)
    async with keep_running("The worker", program, env.log_lines.append, stop_seconds=stop_seconds):
        yield env


async def is_answering(session: DrivenSession) -> bool:
    """Return whether a model call is under way in a worker: it has sent a heartbeat."""
    pending = (await session.handle.describe()).raw_description.pending_activities
    return any(one.activity_type.name == "call_model" and one.HasField("last_heartbeat_time") for one in pending)


async def failures_of(session: DrivenSession, event_type: EventType.ValueType) -> list[str]:
    """Return the types of the failures that the history's events of this type name."""
    events = [event for history in await session.histories() for event in history.events]
    failures = [
        event.activity_task_failed_event_attributes.failure
        if event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED
        else event.activity_task_started_event_attributes.last_failure
        for event in events
        if event.event_type == event_type
    ]
    return [failure.application_failure_info.type or failure.message for failure in failures if failure.message]


@pytest.fixture(scope="module")
async def immortal(temporal: Client, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Supervised]:
    """A worker that tests kill, and that is started again for the next one."""
    pays = [{"calls": [{"name": "hang", "args": {}}]}, QUICK_ANSWER]
    folder = tmp_path_factory.mktemp("immortal")
    async with supervised(temporal, folder, slow=[SLOW_ANSWER], pays=pays, quick=[QUICK_ANSWER]) as env:
        yield env
    assert set(env.log_lines) == {"The worker stopped (SIGKILL). Restarting now."}


async def test_ops_10_a_killed_workers_model_call_is_retried_before_its_heartbeat_timeout(immortal):
    session = await immortal.start("slow")
    await session.prompt("go")
    await until(lambda: is_answering(session))
    immortal.kill()
    (turn,) = await session.idle(turns=1)
    assert (turn.status, turn.agent_message) == ("completed", SLOW_ANSWER["text"])
    assert await failures_of(session, EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED) == [WORKER_DIED]
    assert immortal.log_lines[-1] == "The worker stopped (SIGKILL). Restarting now."


async def test_ops_10_agt_7_a_killed_workers_at_most_once_tool_is_an_unknown_outcome(immortal):
    session = await immortal.start("pays")
    await session.prompt("go")
    await until((immortal.folder / "hanging").exists)
    immortal.kill()
    (turn,) = await session.idle(turns=1)
    result = turn.steps[0].tool_calls[0].result
    assert (turn.status, turn.agent_message) == ("completed", "Done.")
    assert result.status == "outcome_unknown"
    assert result.outcome == "Outcome unknown: hang was started, but its worker died while it ran"
    assert await failures_of(session, EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED) == [WORKER_DIED]


async def test_ops_10_kills_right_after_an_answer_do_not_undo_it_or_slow_restarts(immortal):
    """An activity that has just ended still counts as running for a moment: Temporal refuses to fail it."""
    session, before = await immortal.start("quick"), len(immortal.log_lines)
    turns: list[ConversationMessage] = []
    for kill in range(1, KILLS + 1):
        await session.prompt(f"prompt {kill}")
        turns = await session.idle(turns=kill)
        immortal.kill()
    assert [(turn.status, turn.agent_message) for turn in turns] == [("completed", "Done.")] * KILLS
    await until(lambda: len(immortal.log_lines) == before + KILLS)
    assert set(immortal.log_lines) == {"The worker stopped (SIGKILL). Restarting now."}


async def test_ops_10_a_worker_killed_while_the_stack_stops_has_its_activities_failed(temporal, folder, monkeypatch):
    """The one worker here that is executed, as in production; the others are forked."""
    monkeypatch.delenv(FORK_SERVER)
    async with supervised(temporal, folder, stop_seconds=0, slow=[SLOW_ANSWER]) as env:
        session = await env.start("slow")
        await session.prompt("go")
        await until(lambda: is_answering(session))
    [pending] = (await session.handle.describe()).raw_description.pending_activities
    assert (pending.attempt, pending.last_failure.application_failure_info.type) == (2, WORKER_DIED)


async def test_ops_2_a_process_that_dies_at_its_start_is_restarted_with_growing_pauses(folder):
    lines = asyncio.Queue[str]()
    program = Program([sys.executable, "-c", "raise SystemExit(3)"], log=folder / "log")
    async with keep_running("It", program, lines.put_nowait, stop_seconds=1), asyncio.timeout(BOUND):
        assert [await lines.get() for _ in range(3)] == [
            f"It stopped (exit code 3). Restarting in {pause} s." for pause in ("0.5", "1", "2")
        ]


async def test_ses_9_the_partial_answer_stays_if_a_worker_dies_with_no_time_to_retry(temporal, monkeypatch):
    hours = timedelta(hours=2)  # longer than the turn has
    policy = RetryPolicy(initial_interval=hours, maximum_interval=hours)
    monkeypatch.setattr("turnkeeper.workflows.activity_options.MODEL_RETRIES", policy)
    running: list[RunningActivity] = []
    gate = Gate(is_open=False)

    def answer(_: ModelRequest) -> AnswerParts:
        info = activity.info()
        running.append(RunningActivity(info.task_token, info.workflow_id, info.workflow_run_id, info.activity_id))
        return [Delta("respond", "It was a dark"), gate, says("It was a dark night.")]

    async with environment(temporal, partials=HeartbeatCarrier(temporal)) as env:
        env.vendor.answer = answer
        session = await env.start()
        await session.prompt("tell me a story")
        await gate.until_arrived(1)
        await until(lambda: has_shown(session, "It was a dark"))
        lost = RunningActivity(b"no token", "no-session", "", "1")  # refused, to the detriment of no other
        await fail_activities(AsyncMock(return_value=temporal), [lost, *running])
        (turn,) = await session.idle(turns=1)
        gate.open()
    assert (turn.status, turn.error_type) == ("failed", "budget")
    assert [(step.text, step.interrupted) for step in turn.steps] == [("It was a dark", True)]
    assert await failures_of(session, EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED) == [WORKER_DIED]


async def has_shown(session: DrivenSession, text: str) -> bool:
    """Return whether the heartbeats of the model call carry this text."""
    pending = (await session.handle.describe()).raw_description.pending_activities
    return any(text.encode() in one.heartbeat_details.SerializeToString() for one in pending)


class Doomed:
    """A service that always begins its work and dies of it."""

    has_worked = True

    async def start(self) -> None: ...

    async def wait(self) -> int:
        return -signal.SIGKILL

    async def stop(self, *, seconds: float) -> None: ...


async def test_ops_10_a_worker_that_dies_of_its_work_is_restarted_ten_times_then_slowly():
    lines = asyncio.Queue[str]()
    async with keep_running("It", Doomed(), lines.put_nowait, stop_seconds=1), asyncio.timeout(BOUND):
        assert {await lines.get() for _ in range(10)} == {"It stopped (SIGKILL). Restarting now."}
        assert (await lines.get()).startswith("It stopped (SIGKILL). Restarting in ")


def test_ops_10_ten_restarts_come_back_within_a_minute():
    now = 0.0
    pacer = RestartPacer(lambda: now)
    assert [pacer.next_pause() for _ in range(12)] == [0.0] * 10 + [6.0, 12.0]
    now = 12.0 + 60.0
    assert [pacer.next_pause() for _ in range(11)] == [0.0] * 10 + [6.0]
    for _ in range(100):
        now += 6.0
        assert pacer.next_pause() == 6.0


async def test_ops_10_a_full_pipe_to_the_supervisor_does_not_block_a_worker(temporal, folder, monkeypatch):
    def fill(self: RunningActivities) -> RunningActivities:
        fill_up(self.descriptor)
        return self

    monkeypatch.setattr(RunningActivities, "watch", fill)
    monkeypatch.setattr(RunningActivities, "pop_all", lambda self: [])
    monkeypatch.setattr(RunningActivities, "close", lambda self: None)
    async with supervised(temporal, folder, quick=[QUICK_ANSWER]) as env:
        session = await env.start("quick")
        await session.prompt("go")
        (turn,) = await session.idle(turns=1)
    assert (turn.status, turn.agent_message) == ("completed", "Done.")


async def test_ops_10_a_reported_activity_is_open_until_it_ends_despite_a_broken_pipe():
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    reporter = RunningReporter(writing)
    assert not os.get_inheritable(writing)
    reporter.report("begun", attempt("x" * 10_000))  # no line that a pipe takes whole
    fill_up(writing)
    reporter.report("begun", attempt("one"))
    os.close(reading)
    reporter.report("ended", attempt("one"))
    os.close(writing)


async def test_ops_10_open_activities_are_those_started_and_not_ended_long_ago(monkeypatch):
    running = RunningActivities()
    reporter = RunningReporter(running.descriptor)
    assert not running.has_started_one
    for name in ("one", "two"):
        reporter.report("begun", attempt(name))
    reporter.report("ended", attempt("one"))
    assert running.pop_all() == [attempt("two"), attempt("one")]
    assert running.has_started_one
    assert running.pop_all() == []

    reporter.report("begun", attempt("three"))
    reporter.report("ended", attempt("three"))
    monkeypatch.setattr("turnkeeper.ops.local.worker_process.REPORTING_SECONDS", -1)
    assert running.pop_all() == []
    running.close()
    running.close()


def attempt(name: str) -> RunningActivity:
    return RunningActivity(name.encode(), "s-1", "run", "1")


def fill_up(pipe: int) -> None:
    for size in (65_536, 1):
        try:
            while True:
                os.write(pipe, b"\n" * size)
        except BlockingIOError:
            pass
