"""The worker dies during a quick read, or after it: the model is asked once more, the turn has one answer (OPS-10)."""

import signal
from pathlib import Path

import pytest
from temporalio.client import Client

from tests.faults.scripted import check_replay, next_worker, plan_of, start
from tests.faults.test_worker_kills import doomed_worker
from turnkeeper.models.transcript.conversation import ModelStep

SCRIPT = [{"text": "I read it.", "calls": [{"name": "file_read", "args": {"path": "a.txt"}}]}, {"text": "It is read."}]


@pytest.mark.parametrize("point", ["file_read is called", "model call 1 has run"])
async def test_ops_10_a_worker_killed_around_a_quick_read_costs_nothing(
    temporal: Client, tmp_path: Path, point: str
) -> None:
    session, settings = await start(temporal, tmp_path, SCRIPT)
    await session.prompt(id="p1", text="read a.txt")
    async with doomed_worker(plan_of(temporal, settings, dies_at=point)) as doomed:
        assert await doomed.exit_code() == -signal.SIGKILL
    async with next_worker(temporal, settings):
        (turn,) = await session.idle(turns=1)
    assert (turn.id, turn.agent_message) == ("p1", "It is read.")
    first = turn.steps[0]
    assert isinstance(first, ModelStep)
    assert [call.name for call in first.tool_calls] == ["file_read"]
    await check_replay(session)
