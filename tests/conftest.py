"""Shared fixtures; the real Temporal server is started once, when a test first needs it."""

import gc
import os
import shutil
import sys
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from temporalio.client import Client
from temporalio.service import GrpcCompression
from temporalio.testing import WorkflowEnvironment

from tests.certificates import read_certificates_once
from tests.file_order import in_order
from tests.harness import PATIENT_SECONDS, patient, product
from tests.log_watch import LOG_WATCH
from tests.stores.ready_files import make_files_with_tables
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.features import all_features, enable_in_workflows
from turnkeeper.ops.local.dev_server import QUERIES
from turnkeeper.stores.temporal import search_attributes
from turnkeeper.stores.temporal.payload_converter import DATA_CONVERTER
from turnkeeper.workflows.hosting import EvictingRunner

settings.register_profile(
    "turnkeeper",
    max_examples=50,
    deadline=None,  # a loaded machine is no failure
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("turnkeeper")

enable_in_workflows(all_features())
read_certificates_once()
make_files_with_tables()

# Temporal's server is a third of what the tests cost. It collects garbage only at 300 MiB, and uses one thread per
# server, since several servers share the cores. A higher limit costs more than it saves: each fresh page costs a fault.
for name, value in {"GOGC": "off", "GOMEMLIMIT": "300MiB", "GOMAXPROCS": "1"}.items():
    os.environ.setdefault(name, value)

QUICK = {
    "history.transferProcessorMaxPollRPS": "5000",
    # As the product's own server.
    **QUERIES,
    # Otherwise every start and every change of a search attribute reads the list of all attributes from the database.
    "system.forceSearchAttributesCacheRefreshOnRead": "false",
    # A continue-as-new within a second of the last one waits for that second; tests have no time for it.
    "history.workflowIdReuseMinimalInterval": '"10ms"',
    # A closed run is deleted once the server has noted that its closing was done. It notes that every 30 s, and looks
    # again after 3, 4.5, 7 s and so on: of several deletions beside each other one could take over 120 s.
    "history.transferProcessorUpdateAckInterval": '"1s"',
}

ONE_PARTITION = {
    "matching.numTaskqueueReadPartitions": "1",
    "matching.numTaskqueueWritePartitions": "1",
}
"""A task queue has four partitions, each with its own goroutines and rows. Nearly every test has a new task queue."""

TINY = {
    "limit.historyCount.suggestContinueAsNew": "60",
    "limit.historyCount.error": "400",
    "history.maximumSignalsPerExecution": "60",
    "history.maxTotalUpdates": "60",
    "history.maxInFlightUpdates": "4",
    "limit.blobSize.error": "65536",
}
"""Limits of Temporal so low that everything that could go over them does so within seconds."""


@pytest.fixture(autouse=True)
def _no_vendors_of_the_developer_s_own(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the keys and addresses of vendors, but from tests that are there to use them: keys choose models."""
    if request.node.get_closest_marker("live"):
        return
    for variable in list(os.environ):
        if variable.startswith(("ANTHROPIC_", "OPENAI_", "TURNKEEPER_OPENAI_CHAT__")):
            monkeypatch.delenv(variable)


@pytest.fixture(autouse=True)
def _logs_have_no_text_and_no_key() -> Iterator[None]:
    """API-4, OPS-6: neither a prompt nor an answer nor a key is in a log line at any level."""
    with LOG_WATCH.watching():
        yield
    assert LOG_WATCH.leaks() == []


@pytest.fixture(scope="session", autouse=True)
def _workflows_are_validated_once() -> Iterator[None]:
    """Validate the workflows only for the first worker of a process: it takes 30 ms, and they are always the same."""
    validate, validated = EvictingRunner.prepare_workflow, set[type]()

    def prepare_workflow(runner: EvictingRunner, definition: Any) -> None:
        if definition.cls not in validated:
            validate(runner, definition)
            validated.add(definition.cls)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EvictingRunner, "prepare_workflow", prepare_workflow)
        yield


@pytest.fixture(scope="session")
def timeouts() -> Timeouts:
    """The times of the gateways of `http`, `url` and their like, which wait for as long as it takes.

    A test that needs others builds its own gateway with `timeouts=patient(ping=0.1)`, or sets a field of these for its
    own time: `monkeypatch.setattr(timeouts, "ping", 0.1)`.
    """
    return patient()


@pytest.fixture
def product_bounds(timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use production's timeouts in these gateways, for tests in which no worker answers."""
    for name, seconds in vars(product()).items():
        monkeypatch.setattr(timeouts, name, seconds)


@pytest.fixture(scope="session", autouse=True)
def _patience_with_a_busy_machine() -> Iterator[None]:
    """Remove the time limits of stopped turns and of a worker's reads; tests of a limit itself restore it."""
    patience = timedelta(seconds=PATIENT_SECONDS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("turnkeeper.workflows.activity_options.UNFINISHED_PATIENCE", patience)
        patch.setattr("turnkeeper.activities.call_model.STORE_SECONDS", PATIENT_SECONDS)
        patch.setattr("turnkeeper.activities.tools.MAX_READ_SECONDS", PATIENT_SECONDS)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage among what is collected: it stays until the end, and looking takes a fifth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(10_000, 20, 50)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start long files early, and files that mostly wait beside those that use the CPU."""
    items[:] = in_order(items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a skipped test in CI, where everything that tests need is installed (OPS-1)."""
    report = yield
    is_skipped = report.skipped and not hasattr(report, "wasxfail")
    if is_skipped and os.environ.get("CI") and not item.get_closest_marker("live"):
        report.outcome = "failed"
        report.longrepr = f"With CI set no test may be skipped: {skip_reason(report)}"
    return report


def skip_reason(report: pytest.TestReport) -> str:
    return report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)


def dynamic_config(values: dict[str, str]) -> list[str]:
    return [part for name, value in values.items() for part in ("--dynamic-config-value", f"{name}={value}")]


@pytest.fixture(scope="session")
async def temporal() -> AsyncIterator[Client]:
    """A client of a real server in memory, with our search attributes."""
    async with server_with({**QUICK, **ONE_PARTITION}) as client:
        yield client


@pytest.fixture(scope="session")
async def temporal_with_partitions() -> AsyncIterator[Client]:
    """A client of a real server that hands out a session's query and workflow task in either order."""
    async with server_with(QUICK) as client:
        yield client


@pytest.fixture(scope="session")
async def tiny_temporal() -> AsyncIterator[Client]:
    """A client of a real server whose limits are tiny."""
    async with server_with({**QUICK, **ONE_PARTITION, **TINY}) as client:
        yield client


@asynccontextmanager
async def server_with(config: dict[str, str]) -> AsyncIterator[Client]:
    binary = shutil.which("temporal") or str(Path(sys.executable).with_name("temporal"))
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=binary,
        data_converter=DATA_CONVERTER,
        search_attributes=search_attributes.ALL,
        dev_server_log_level="error",
        dev_server_extra_args=dynamic_config(config),
    ) as server:
        yield await Client.connect(
            server.client.service_client.config.target_host,
            data_converter=DATA_CONVERTER,
            grpc_compression=GrpcCompression.NONE,
        )
