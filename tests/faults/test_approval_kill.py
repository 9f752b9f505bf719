"""The worker dies while a person decides, and in the moment the decision comes: AGT-8, AGT-7, OPS-10."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from tests.faults.scripted import check_replay, next_worker, plan_of, start
from tests.faults.test_worker_kills import doomed_worker
from tests.harness import DrivenSession

SCRIPT = [{"text": "I am going to pay.", "calls": [{"name": "pay"}]}, {"text": "Paid, or not."}]


async def paying(temporal: Client, folder: Path) -> tuple[DrivenSession, dict[str, Any]]:
    session, settings = await start(temporal, folder, SCRIPT, tool_policy={"pay": "ask"})
    await session.prompt(id="p1", text="pay")
    return session, settings


def paid(folder: Path) -> list[str]:
    ledger = folder / "ledger"
    return ledger.read_text().split("\n")[:-1] if ledger.exists() else []


async def test_agt_8_a_question_outlives_the_worker_that_asked_it(temporal: Client, tmp_path: Path) -> None:
    session, settings = await paying(temporal, tmp_path)
    async with doomed_worker(plan_of(temporal, settings)) as doomed:
        (approval,) = await session.awaited_approvals()
        doomed.process.kill()
        assert await doomed.exit_code() == -signal.SIGKILL
    async with next_worker(temporal, settings):
        assert await session.awaited_approvals() == [approval]
        assert paid(tmp_path) == []
        await session.decide(approval, "approve")
        (turn,) = await session.idle(turns=1)
        assert turn.steps[0].tool_calls[0].result.status == "ok"
        assert len(paid(tmp_path)) == 1
    await check_replay(session)


@pytest.mark.parametrize(
    ("dies_at", "status", "times"),
    [("pay is scheduled", "ok", 1), ("pay begins", "outcome_unknown", 0), ("pay has acted", "outcome_unknown", 1)],
)
async def test_agt_8_a_decision_counts_once_wherever_the_worker_dies_over_it(
    temporal: Client, tmp_path: Path, dies_at: str, status: str, times: int
) -> None:
    session, settings = await paying(temporal, tmp_path)
    async with doomed_worker(plan_of(temporal, settings, dies_at=dies_at)) as doomed:
        (approval,) = await session.awaited_approvals()
        deciding = asyncio.create_task(session.decide(approval, "approve"))
        assert await doomed.exit_code() == -signal.SIGKILL
    async with next_worker(temporal, settings):
        assert (await deciding)["decision"] == "approve"
        (turn,) = await session.idle(turns=1)
        (call,) = turn.steps[0].tool_calls
        assert (call.approval.decision, call.result.status) == ("approve", status)
        assert len(paid(tmp_path)) == times
    await check_replay(session)
