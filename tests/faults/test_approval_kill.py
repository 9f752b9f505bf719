"""The worker dies while a person decides, and in the moment the decision comes: AGT-8, AGT-7, OPS-10."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer

from models.session import SessionInput
from models.settings import Settings
from stores.stores import Stores
from tests.faults.doomed_worker import Course, Plan, build_toolbox
from tests.faults.test_worker_kills import doomed_worker
from tests.harness import DrivenSession
from worker import build_providers, build_worker
from workflows.agentic_ai_workflow import AgenticAIWorkflow

SCRIPT = [{"text": "I am going to pay.", "calls": [{"name": "pay"}]}, {"text": "Paid, or not."}]


async def start(temporal: Client, folder: Path) -> tuple[DrivenSession, dict[str, Any]]:
    (folder / "scripts").mkdir()
    (folder / "scripts" / "paying.json").write_text(json.dumps({"responses": SCRIPT}))
    (folder / "workspace").mkdir()
    settings = {"state_dir": str(folder), "workspace_root": str(folder / "workspace"), "task_queue": f"q-{uuid4()}"}
    handle = await temporal.start_workflow(
        "AgenticAIWorkflow",
        SessionInput(model="offline:script/paying", tool_policy={"pay": "ask"}),
        id=f"s-{uuid4()}",
        task_queue=settings["task_queue"],
    )
    session = DrivenSession(temporal, handle, patient=True)
    await session.prompt(id="p1", text="pay")
    return session, settings


@asynccontextmanager
async def next_worker(temporal: Client, given: dict[str, Any]) -> AsyncIterator[None]:
    settings = Settings(**{**given, "shutdown_grace": 0.5})
    async with (
        Stores.of(settings) as stores,
        build_toolbox(settings, Course()) as tools,
        build_worker(temporal, settings, providers=build_providers(settings), tools=tools, stores=stores),
    ):
        yield


def plan_of(temporal: Client, given: dict[str, Any], **course: Any) -> Plan:
    address = temporal.service_client.config.target_host
    return Plan(address=address, settings=given, course=Course(**course))


def paid(folder: Path) -> list[str]:
    ledger = folder / "ledger"
    return ledger.read_text().split("\n")[:-1] if ledger.exists() else []


async def replayed(session: DrivenSession) -> None:
    await session.watches.close()
    replayer = Replayer(workflows=[AgenticAIWorkflow], data_converter=pydantic_data_converter)
    await replayer.replay_workflow(await session.handle.fetch_history())


async def test_agt_8_a_question_outlives_the_worker_that_asked_it(temporal: Client, tmp_path: Path) -> None:
    session, given = await start(temporal, tmp_path)
    async with doomed_worker(plan_of(temporal, given)) as doomed:
        (asked,) = await session.awaited_approvals()
        doomed.process.kill()
        assert await doomed.exit_code() == -signal.SIGKILL
    async with next_worker(temporal, given):
        assert await session.awaited_approvals() == [asked]
        assert paid(tmp_path) == []
        await session.decide(asked, "approve")
        (turn,) = await session.idle(turns=1)
        assert turn.steps[0].tool_calls[0].result.status == "ok"
        assert len(paid(tmp_path)) == 1
    await replayed(session)


@pytest.mark.parametrize(
    ("dies_at", "status", "times"),
    [("pay is scheduled", "ok", 1), ("pay begins", "outcome_unknown", 0), ("pay has acted", "outcome_unknown", 1)],
)
async def test_agt_8_a_decision_counts_once_wherever_the_worker_dies_over_it(
    temporal: Client, tmp_path: Path, dies_at: str, status: str, times: int
) -> None:
    session, given = await start(temporal, tmp_path)
    async with doomed_worker(plan_of(temporal, given, dies_at=dies_at)) as doomed:
        (asked,) = await session.awaited_approvals()
        deciding = asyncio.create_task(session.decide(asked, "approve"))
        assert await doomed.exit_code() == -signal.SIGKILL
    async with next_worker(temporal, given):
        assert (await deciding)["decision"] == "approve"
        (turn,) = await session.idle(turns=1)
        (call,) = turn.steps[0].tool_calls
        assert (call.approval.decision, call.result.status) == ("approve", status)
        assert len(paid(tmp_path)) == times
    await replayed(session)
