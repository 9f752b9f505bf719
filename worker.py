"""The worker's composition root: builds providers, tools and stores from the settings, and runs the worker.

Only commands that start a worker import this module, since it loads the SDKs of vendors and tools.
"""

import asyncio
import hashlib
import importlib.metadata
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path
from uuid import uuid4

from temporalio.client import Client
from temporalio.worker import Interceptor, Worker

from turnkeeper.activities.archive import ArchiveActivities, DeletionActivities
from turnkeeper.activities.call_model import IndexNotes, ModelActivities, SummaryActivities
from turnkeeper.activities.large_texts import LargeTexts
from turnkeeper.activities.list_prices import ListPrices
from turnkeeper.activities.model_client import ModelClient, ProviderSource
from turnkeeper.activities.providers.offline.provider import use_texts
from turnkeeper.activities.providers.provider import ProviderRegistry
from turnkeeper.activities.toolbox.tool_server import ToolServer
from turnkeeper.activities.toolbox.toolbox import build_toolbox
from turnkeeper.activities.tools import QuickReader, ToolActivities, ToolSource
from turnkeeper.activities.worker_feature import WorkerParts
from turnkeeper.features import enable_in_workflows, enabled, load_tables
from turnkeeper.models.settings.settings import Settings, load_settings
from turnkeeper.ops.local.dead_worker import RunningReporter
from turnkeeper.ops.local.logs import set_up_logging
from turnkeeper.ops.local.process import loop_watchdog, run_to_end
from turnkeeper.ops.local.worker_process import reporting
from turnkeeper.stores.partials.carrier import PartialCarrier
from turnkeeper.stores.partials.factory import carrier_factory
from turnkeeper.stores.stores import Stores, check_stores
from turnkeeper.stores.temporal.connection import connect, prepare, prepare_embedded
from turnkeeper.stores.temporal.endpoint import find_endpoint
from turnkeeper.workflows.agentic_ai_workflow import AgenticAIWorkflow
from turnkeeper.workflows.delete_session import DeleteSession
from turnkeeper.workflows.hosting import SdkInternals, task_tuner

HEARTBEAT_THROTTLE = timedelta(seconds=0.2)
"""The shortest time between two heartbeats (OPS-8). Activities send them every 3 s; but a stop, and the usage of a
failed attempt, must not wait that long."""

SESSION_PACKAGES = ("activities", "features", "models", "stores", "workflows")
"""The packages whose code a session runs."""

ID_CHARS = 12
"""Short, since every workflow task's event repeats it."""

PREPARE_SECONDS = 5.0
"""How long the embedded server may refuse to prepare its namespace."""


def build_worker(
    client: Client,
    settings: Settings,
    *,
    providers: ProviderSource,
    tools: ToolSource,
    stores: Stores,
    partials: PartialCarrier,
    interceptors: Sequence[Interceptor] = (),
) -> Worker:
    """Return a worker for workflows and activities on one task queue, so that they can share contexts in memory."""
    texts = LargeTexts(stores.blobs)
    model_client = ModelClient(providers, client, texts, ListPrices())
    index_notes, quick_reader = IndexNotes(stores.index_writer), QuickReader(tools, texts)
    models = ModelActivities(model_client, texts, partials, index_notes, quick_reader)
    summaries = SummaryActivities(model_client)
    tooling = ToolActivities(tools, texts, partials)
    archiving = ArchiveActivities(stores, client)
    deletion = DeletionActivities(client, stores, partials)
    enable_in_workflows(enabled_features := enabled(settings))
    load_tables()  # those that go with a session
    features = [part for feature in enabled_features if (part := feature.worker)]
    for feature in features:
        use_texts(feature.offline_texts)
    parts = WorkerParts(settings, client, stores, texts, model_client)
    internals = SdkInternals(client)
    worker = Worker(
        client,
        task_queue=settings.task_queue,
        identity=new_identity(),
        workflows=[AgenticAIWorkflow, DeleteSession, *(kind for feature in features for kind in feature.workflows)],
        workflow_runner=internals.runner,
        activities=[
            models.call_model,
            summaries.summarise,
            tooling.list_tools,
            tooling.call_tool,
            tooling.preview_changes,
            archiving.move_to_archive,
            archiving.unpark,
            deletion.stop_session,
            deletion.clear_stores,
            deletion.delete_runs,
            *(activity for feature in features for activity in feature.activities(parts)),
        ],
        interceptors=interceptors,
        build_id=own_build_id(),
        max_cached_workflows=internals.cached_workflows(settings.max_cached_workflows),
        tuner=task_tuner(max_tasks=settings.max_concurrent_workflow_tasks, max_replays=settings.max_concurrent_replays),
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=settings.sticky_timeout),
        graceful_shutdown_timeout=timedelta(seconds=settings.shutdown_grace),
        max_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
        default_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
    )
    internals.adjust(worker, deadlock_timeout=settings.task_timeout)
    return worker


@cache
def own_build_id() -> str:
    """Return the build id of the code that this process runs; it is read once."""
    return build_id()


def build_id(root: Path = Path(__file__).parent) -> str:
    """Return a hash of the packages in `root` and the version of Temporal's SDK.

    The SDK's own default reads every imported module again: a fifth of a worker's start (measured).
    """
    digest = hashlib.sha256(importlib.metadata.version("temporalio").encode())
    for package in SESSION_PACKAGES:
        for file in sorted((root / package).rglob("*.py")):
            digest.update(f"\n{file.relative_to(root)}\n".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:ID_CHARS]


def new_identity() -> str:
    """Return a name that is unique among workers and across restarts: in containers, every process id is 1.

    By it the gateway knows whether the worker with a session in memory is still running (API-3). It is short, without
    the host's name: it stands in most events of a history (OPS-8).
    """
    return f"{os.getpid()}-{uuid4().hex[:8]}"


async def run_worker(settings: Settings, client: Client, *, activity_reports: int | None = None) -> None:
    """Run a worker until SIGTERM or SIGINT; running activities then have `shutdown_grace` to finish.

    `activity_reports` is the descriptor of the pipe to `turnkeeper up`, which reports running activities.
    """
    interceptors = [] if activity_reports is None else [RunningReporter(activity_reports)]
    if find_endpoint(settings).embedded:
        await prepare_embedded(client, patience=PREPARE_SECONDS)
    else:
        await prepare(client)
    stop_requested = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop_requested.set)
    with loop_watchdog():
        async with running_worker(settings, client, interceptors=interceptors):
            await stop_requested.wait()


@asynccontextmanager
async def running_worker(
    settings: Settings, client: Client, *, interceptors: Sequence[Interceptor] = (), servers: Sequence[ToolServer] = ()
) -> AsyncIterator[Stores]:
    """Run a worker with all that the settings name while the block runs; `servers` are further ones of tools.

    Yields its stores. Raises `SettingsError`.
    """
    providers = ProviderRegistry.from_settings(settings)
    features = [part for feature in enabled(settings) if (part := feature.worker)]
    servers = [*(server for feature in features for server in feature.tool_servers(settings)), *servers]
    async with (
        Stores.of(settings) as stores,
        carrier_factory(settings)(client) as partials,
        build_toolbox(settings, *servers) as tools,
        build_worker(
            client,
            settings,
            providers=providers,
            tools=tools,
            stores=stores,
            partials=partials,
            interceptors=interceptors,
        ) as worker,
        reporting(
            worker,
            settings,
            tool_problems=lambda: tools.problems,
            refused_parts=providers.refused_parts,
        ),
        AsyncExitStack() as running,
    ):
        for feature in features:
            await running.enter_async_context(feature.running(settings, stores, tools))
        await partials.listen()
        yield stores


def main() -> None:
    settings = load_settings()
    set_up_logging(settings)

    async def connect_and_run() -> None:
        await check_stores(settings)
        await run_worker(settings, await connect(settings))

    asyncio.run(connect_and_run())


if __name__ == "__main__":
    run_to_end(main)
