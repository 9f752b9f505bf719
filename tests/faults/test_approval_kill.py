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


async def paying(temporal: Client, folder: Path, *, calls: int = 1) -> tuple[DrivenSession, dict[str, Any]]:
    script = [{"text": "I am going to pay.", "calls": [{"name": "pay"}] * calls}, {"text": "Paid, or not."}]
    session, settings = await start(temporal, folder, script, tool_policy={"pay": "ask"})
    await session.prompt(id="p1", text="pay")
    return session, settings


def paid(folder: Path) -> list[str]:
    ledger = folder / "ledger"
    return ledger.read_text().split("\n")[:-1] if ledger.exists() else []


async def test_agt_8_a_pending_approval_survives_the_death_of_its_worker(temporal: Client, tmp_path: Path) -> None:
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
async def test_agt_8_a_decision_counts_once_wherever_the_worker_dies(
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


async def test_agt_8_approving_one_of_three_calls_runs_no_other(temporal: Client, tmp_path: Path) -> None:
    """The approval of one of three calls runs the others again.

    Reported as rancher-ai-agent#109, rancher-ai-agent#136, langgraph#6208.
    """
    session, settings = await paying(temporal, tmp_path, calls=3)
    async with doomed_worker(plan_of(temporal, settings)) as doomed:
        first, second, third = await session.awaited_approvals(3)
        await session.decide(third, "approve")
        await session.until(lambda state: state.messages[0].steps[0].tool_calls[2].result is not None)
        doomed.process.kill()
        assert await doomed.exit_code() == -signal.SIGKILL
    async with next_worker(temporal, settings):
        assert await session.awaited_approvals(2) == [first, second]
        for approval in (second, first):
            await session.decide(approval, "approve")
        (turn,) = await session.idle(turns=1)
        assert [call.result.status for call in turn.steps[0].tool_calls] == ["ok"] * 3
        assert len(paid(tmp_path)) == len(set(paid(tmp_path))) == 3
    await check_replay(session)
