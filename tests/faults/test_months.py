"""A session that lives for months, in a minute: dozens of runs of turns with tools: SES-12, SES-14, SES-15, OPS-10.

Runs are short, so that 64 turns need two dozen of them; the benchmarks have a session of 2,000. Turns are archived,
while two clients poll by the rules of SES-12 and the worker is killed again and again at moments nobody chose.
"""

import json
import random
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from uuid import uuid4

import pytest
from temporalio.client import Client, WorkflowHistory

from tests.client import Client as PollingClient
from tests.faults.doomed_worker import Course, Plan
from tests.faults.test_worker_kills import doomed_worker
from tests.harness import LONG_PAUSE, DrivenSession, replayer
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.transcript.conversation import ConversationMessage, ModelStep
from turnkeeper.stores.stores import Stores

TURNS = 64
KILLS = 2
BURST = 40
"""Prompts that wait at the same time."""

SCRIPT = {
    "repeat": True,
    "responses": [
        {"calls": [{"name": "file_search", "args": {"query": "written", "path": "notes.txt"}}]},
        {"text": "The answer to {last_user}."},
    ],
}
STALL_BOUND = 60.0
"""Seconds without a new turn, at most: a killed worker's activity is noticed after 6 s."""


@pytest.mark.timeout(900)
@pytest.mark.wide
async def test_ses_14_a_session_of_dozens_of_runs_keeps_every_turn_despite_worker_kills(
    temporal: Client, tmp_path: Path
) -> None:
    settings = prepare(tmp_path)
    limits = {"max_history_events": 50, "max_queued_prompts": 100}
    handle = await temporal.start_workflow(
        "AgenticAIWorkflow",
        SessionInput.model_validate({"model": "offline:script/long", "limits": limits}),
        id=f"s-{uuid4()}",
        task_queue=settings["task_queue"],
    )
    session = DrivenSession(temporal, handle, patient=True)
    clients = [PollingClient(sends_revision=True), PollingClient(sends_revision=False)]
    async with Workers(temporal, settings) as workers:
        await lead_through(session, clients, workers)
        for client in clients:
            await client.catch_up(session.updates)
        await session.handle.signal("end_chat")
        await session.handle.result()
        async with Stores.of(Settings(**settings)) as stores:
            await check_transcript(session, stores, clients)
    await check_runs(session)


def prepare(folder: Path) -> dict[str, str]:
    (folder / "scripts").mkdir()
    (folder / "scripts" / "long.json").write_text(json.dumps(SCRIPT))
    (folder / "notes.txt").write_text("It is all written here.\n")
    return {"state_dir": str(folder), "workspace_root": str(folder), "task_queue": f"q-{uuid4()}"}


class Workers:
    """One worker at a time, in its own process."""

    def __init__(self, temporal: Client, settings: dict[str, str]) -> None:
        self._plan = Plan(address=temporal.service_client.config.target_host, settings=settings, course=Course())
        self._running = AsyncExitStack()

    async def __aenter__(self) -> "Workers":
        await self._running.enter_async_context(doomed_worker(self._plan))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._running.aclose()

    async def kill(self) -> None:
        """Kill the worker, whatever it does, and start another one."""
        await self._running.aclose()
        await self._running.enter_async_context(doomed_worker(self._plan))


async def lead_through(session: DrivenSession, clients: list[PollingClient], workers: Workers) -> None:
    """Keep the queue filled until all turns were processed, polling all the while, killing at moments chance chose."""
    moments = sorted(random.Random(TURNS).sample(range(15, TURNS - 25), KILLS))
    last, done = 0, 0
    while done < TURNS:
        for number in range(last + 1, min(TURNS, done + BURST) + 1):
            await session.prompt(id=f"p{number}", text=f"question {number}")
            if number % 10 == 0:
                await session.prompt(id=f"p{number}", text="the same once more")
            last = number
        done = await progress_beyond(session, done)
        for client in clients:
            await client.poll(session.updates)
        if moments and done >= moments[0]:
            moments.pop(0)
            await workers.kill()


async def progress_beyond(session: DrivenSession, turns: int) -> int:
    """Wait for another dozen turns; return the number of turns."""
    state = await session.until(
        lambda s: (
            s.session.turn_count >= min(turns + 12, TURNS) and (s.session.turn_count < TURNS or s.status == "idle")
        ),
        turns=0,
        bound=STALL_BOUND,
        max_pause=LONG_PAUSE,
    )
    return state.session.turn_count


async def check_transcript(session: DrivenSession, stores: Stores, clients: list[PollingClient]) -> None:
    """Check that every turn is there once, in order, in its final form, and that the clients have the same."""
    page = await stores.archive.page(session.handle.id, before=None, limit=None, max_bytes=10**9)
    turns = [archived.turn for archived in page]
    assert [turn.id for turn in turns] == [f"p{number}" for number in range(1, TURNS + 1)]
    for number, turn in enumerate(turns, start=1):
        check_turn(turn, number)
    state = await session.state()
    assert turns[state.archived_count :] == state.messages
    for client in clients:
        assert client.turns == turns[len(turns) - len(client.turns) :]
    assert [len(client.turns) for client in clients] == [TURNS, TURNS]


def check_turn(turn: ConversationMessage, number: int) -> None:
    assert (turn.status, turn.agent_message) == ("completed", f"The answer to question {number}.")
    (call,) = [call for step in turn.steps if isinstance(step, ModelStep) for call in step.tool_calls]
    assert (call.result.status, call.result.content) == ("ok", "notes.txt:1: It is all written here.")


async def check_runs(session: DrivenSession) -> None:
    """Every run replays, what it was handed over is under 1 MB, and a turn costs the same bytes late as early."""
    histories = await session.histories()
    assert len(histories) > 12
    early, late = histories[1:11], histories[-11:-1]
    assert median(map(bytes_of_a_turn, late)) <= 1.05 * median(map(bytes_of_a_turn, early))
    for history in histories:
        carried = history.events[0].workflow_execution_started_event_attributes.input.ByteSize()
        assert carried < 1_000_000
        if len(history.events) > 2:
            await replayer().replay_workflow(history)


def bytes_of_a_turn(history: WorkflowHistory) -> float:
    """Return the bytes of a run for each of its turns, which have two model calls; without what is handed over."""
    scheduled = (event.activity_task_scheduled_event_attributes.activity_type.name for event in history.events)
    return sum(event.ByteSize() for event in history.events[1:-1]) / (
        sum(name == "call_model" for name in scheduled) / 2
    )
