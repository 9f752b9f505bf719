"""The histories in Temporal: whether they replay, and how soon the work of a killed worker was resumed."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence

from temporalio.api.failure.v1 import Failure
from temporalio.client import Client, WorkflowHistory
from temporalio.service import RPCError

from tests.faults.campaign.evidence import Log, Replays
from tests.faults.campaign.scripts import FAULTS
from tests.faults.campaign.stack import CampaignError, Stack

COMMAND_SECONDS = 600.0
"""Bound of the replay of one session."""

MAX_RUNS = 10
"""Runs of a session that are read for second attempts, the newest ones."""


async def replay(stack: Stack, sessions: Sequence[str], *, seconds: float) -> Replays:
    """Replay the sessions' runs one after the other while there is time; at least the runs of one session."""
    deadline = asyncio.get_running_loop().time() + seconds
    runs, replayed, departures = 0, 0, list[str]()
    for session in sessions:
        code, output = await stack.run_command("replay-check", "--session", session, "--json", seconds=COMMAND_SECONDS)
        lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        if not lines:
            raise CampaignError(f"replay-check of {session} ended with {code}: {output[-500:]}")
        runs += lines[-1]["runs"]
        replayed += 1
        # With 2 something could not be looked at, which is no better: nothing strikes any more.
        departures += [json.dumps(line) for line in lines] if code else []
        if asyncio.get_running_loop().time() > deadline:
            break
    return Replays(runs, replayed, departures)


async def second_attempts(stack: Stack, sessions: Sequence[str], log: Log) -> list[float]:
    """Return how long after a worker's kill each activity it was running began again: information, no verdict."""
    kills = [
        log.began_at + fault.began
        for fault in log.evidence.faults
        if fault.kind.endswith("killed") and fault.kind.startswith(("worker", "all"))
    ]
    client = await Client.connect(stack.temporal_address)
    delays = list[float]()
    for session in sessions:
        async for history in _runs(client, session):
            for event in history.events:
                started = event.activity_task_started_event_attributes
                at = event.event_time.ToMicroseconds() / 1e6
                kill = max((kill for kill in kills if kill < at), default=None)
                if started.attempt == 2 and kill is not None and not _is_scripted(started.last_failure):
                    delays.append(round(at - kill, 2))
    return delays


async def _runs(client: Client, session: str) -> AsyncIterator[WorkflowHistory]:
    """Yield the newest runs of a session, as far as they are still there."""
    run: str | None = None
    for _ in range(MAX_RUNS):
        try:
            history = await client.get_workflow_handle(session, run_id=run).fetch_history()
        except RPCError:
            return
        yield history
        run = history.events[0].workflow_execution_started_event_attributes.continued_execution_run_id
        if not run:
            return


def _is_scripted(failure: Failure) -> bool:
    return failure.application_failure_info.type in FAULTS or "the script says so" in failure.message
