"""The health check of a worker's container (OPS-5)."""

from uuid import uuid4

import pytest
from temporalio.client import Client

from tests.harness import environment
from tests.waiting import until
from turnkeeper.models.settings.settings import Settings
from turnkeeper.ops.checks import worker_health


async def test_ops_5_a_container_s_worker_is_healthy_once_temporal_knows_that_it_polls(
    temporal: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", temporal.service_client.config.target_host)
    assert not await worker_health.is_polled(Settings(task_queue=f"nobody-{uuid4()}"))
    async with environment(temporal) as env:
        await until(lambda: worker_health.is_polled(env.settings))


def test_ops_5_without_temporal_a_container_s_worker_is_not_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")
    assert worker_health.main() == 1
