"""The worker dies while a summary is made (CTX-5, OPS-10): another one makes it, and nothing else is to be seen of it."""

import json
import signal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer

from models.context.account import ContextView
from models.session import SessionInput
from models.settings import Settings
from stores.stores import Stores
from tests.faults.doomed_worker import Course, Plan, build_toolbox
from tests.faults.test_worker_kills import doomed_worker
from tests.harness import DrivenSession
from worker import build_providers, build_worker
from workflows.agentic_ai_workflow import AgenticAIWorkflow

SUMMARY = "They counted from one to four."
SCRIPT = [{"text": f"Answer {number}."} for number in range(1, 7)] + [{"text": SUMMARY}, {"text": "Answer 7."}]
"""The seventh request to the model is for a summary."""

WINDOW = {"max_messages": 12, "preserve_last_n": 2, "evict_block": 9, "summarize_on_trim": True}


async def start(temporal: Client, folder: Path) -> tuple[DrivenSession, dict[str, Any]]:
    (folder / "scripts").mkdir()
    (folder / "scripts" / "counting.json").write_text(json.dumps({"responses": SCRIPT}))
    (folder / "workspace").mkdir()
    settings = {"state_dir": str(folder), "workspace_root": str(folder / "workspace"), "task_queue": f"q-{uuid4()}"}
    handle = await temporal.start_workflow(
        "AgenticAIWorkflow",
        SessionInput.model_validate({"model": "offline:script/counting", "history": WINDOW}),
        id=f"s-{uuid4()}",
        task_queue=settings["task_queue"],
    )
    session = DrivenSession(temporal, handle, patient=True)
    for number in range(1, 8):
        await session.prompt(id=f"p{number}", text=f"This is prompt number {number}, and it has some more words.")
    return session, settings


@pytest.mark.parametrize("pieces", [1, 3])
async def test_ctx_5_a_worker_killed_while_a_summary_is_made_costs_nothing(
    temporal: Client, tmp_path: Path, pieces: int
) -> None:
    session, given = await start(temporal, tmp_path)
    plan = Plan(
        address=temporal.service_client.config.target_host,
        settings=given,
        course=Course(dies_at=f"model call 7 has written {pieces}"),
    )
    async with doomed_worker(plan) as doomed:
        assert await doomed.exit_code() == -signal.SIGKILL
    settings = Settings(**{**given, "shutdown_grace": 0.5})
    async with (
        Stores.of(settings) as stores,
        build_toolbox(settings, Course()) as tools,
        build_worker(temporal, settings, providers=build_providers(settings), tools=tools, stores=stores),
    ):
        turns = await session.idle(turns=7)
        assert [turn.agent_message for turn in turns] == [f"Answer {number}." for number in range(1, 8)]
        view = await session.handle.query("get_context_view", result_type=ContextView)
        assert view.summary is not None
        assert (view.summary.text, view.summaries_failed) == (SUMMARY, 0)
    await session.watches.close()
    replayer = Replayer(workflows=[AgenticAIWorkflow], data_converter=pydantic_data_converter)
    await replayer.replay_workflow(await session.handle.fetch_history())
