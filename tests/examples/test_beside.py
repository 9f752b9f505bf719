"""Agents beside somebody's own workflow, in the same worker (AGN-5)."""

import sys
from pathlib import Path
from uuid import uuid4

import pytest
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from tests.examples.test_examples import load
from tests.waiting import until
from turnkeeper import Settings, TurnkeeperPlugin
from turnkeeper.features.agents.versions import AgentVersions
from turnkeeper.stores.stores import Stores


async def test_agn_5_a_plugin_runs_agents_beside_a_workflow_of_ones_own(
    temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = load("beside")
    monkeypatch.setitem(sys.modules, example.__name__, example)
    settings = Settings(task_queue="turnkeeper", state_dir=tmp_path, workspace_root=tmp_path, shutdown_grace=0.5)
    plugin = TurnkeeperPlugin(agents=[example.agent], settings=settings)
    client = Client(**{**Client(temporal.service_client, namespace=temporal.namespace).config(), "plugins": [plugin]})
    queue = f"orders-{uuid4()}"
    async with Worker(client, task_queue=queue, workflows=[example.Order], workflow_runner=UnsandboxedWorkflowRunner()):
        end = await client.execute_workflow("Order", "tea", id=f"order-{uuid4()}", task_queue=queue)
        assert end == "ended after 1 turn"
        async with Stores.of(settings) as stores:
            version = await until(lambda: AgentVersions(stores.database).find("clerk"))
            assert version.label == "clerk@1"
