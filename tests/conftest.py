"""What all tests share; the real Temporal server is started once, when a test first asks for it."""

import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.service import GrpcCompression
from temporalio.testing import WorkflowEnvironment

from workflows import search_attributes

settings.register_profile(
    "turnkeeper",
    deadline=None,  # a loaded machine is no failure
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("turnkeeper")


@pytest.fixture(scope="session")
async def temporal() -> AsyncIterator[Client]:
    """A client of a real server in memory, with our search attributes."""
    binary = shutil.which("temporal") or str(Path(sys.executable).with_name("temporal"))
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=binary,
        data_converter=pydantic_data_converter,
        search_attributes=search_attributes.ALL,
        dev_server_log_level="error",
        dev_server_extra_args=["--dynamic-config-value", "history.transferProcessorMaxPollRPS=5000"],
    ) as server:
        yield await Client.connect(
            server.client.service_client.config.target_host,
            data_converter=pydantic_data_converter,
            grpc_compression=GrpcCompression.NONE,
        )
