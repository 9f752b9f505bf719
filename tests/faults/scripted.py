"""A session that plays a script, its doomed worker, and the one that takes over."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from temporalio.client import Client

from tests.faults.doomed_worker import Course, Plan, build_toolbox
from tests.harness import DrivenSession, replayer
from turnkeeper.activities.providers.provider import ProviderRegistry
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.settings.settings import Settings
from turnkeeper.stores.partials.factory import carrier_factory
from turnkeeper.stores.stores import Stores
from turnkeeper.worker import build_worker


async def start(
    temporal: Client, folder: Path, script: list[dict[str, Any]], **fields: Any
) -> tuple[DrivenSession, dict[str, Any]]:
    """Start a session whose model plays `script`, with no worker yet; return it, and the settings of its workers."""
    (folder / "scripts").mkdir()
    (folder / "scripts" / "story.json").write_text(json.dumps({"responses": script}))
    (folder / "workspace").mkdir()
    settings = {"state_dir": str(folder), "workspace_root": str(folder / "workspace"), "task_queue": f"q-{uuid4()}"}
    handle = await temporal.start_workflow(
        "AgenticAIWorkflow",
        SessionInput.model_validate({"model": "offline:script/story", **fields}),
        id=f"s-{uuid4()}",
        task_queue=settings["task_queue"],
    )
    return DrivenSession(temporal, handle, patient=True), settings


def plan_of(temporal: Client, settings: dict[str, Any], **course: Any) -> Plan:
    """Return the plan of a doomed worker with these settings."""
    address = temporal.service_client.config.target_host
    return Plan(address=address, settings=settings, course=Course(**course))


@asynccontextmanager
async def next_worker(temporal: Client, settings: dict[str, Any]) -> AsyncIterator[None]:
    """Run a worker that takes over."""
    worker_settings = Settings(**{**settings, "shutdown_grace": 0.5})
    async with (
        Stores.of(worker_settings) as stores,
        carrier_factory(worker_settings)(temporal) as partials,
        build_toolbox(worker_settings, Course()) as tools,
        build_worker(
            temporal,
            worker_settings,
            providers=ProviderRegistry.from_settings(worker_settings),
            tools=tools,
            stores=stores,
            partials=partials,
        ),
    ):
        yield


async def check_replay(session: DrivenSession) -> None:
    """Replay the history that the workers made together."""
    await replayer().replay_workflow(await session.handle.fetch_history())
