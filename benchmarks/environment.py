"""The environment of a measurement: a real server in memory, our worker, and a worker for the floor."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any
from uuid import uuid4

import uvicorn
from fastapi import FastAPI
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import Worker

from benchmarks.floor import FloorWorkflow, no_op
from turnkeeper.activities.providers.registry import ProviderRegistry
from turnkeeper.activities.toolbox.toolbox import build_toolbox
from turnkeeper.api.temporal.watch import WatchRegistry
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.models.limits import Limits
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.transcript.conversation import ConversationUpdate
from turnkeeper.ops.local.dev_server import DevServer
from turnkeeper.ops.local.ports import LOOPBACK, free_port
from turnkeeper.ops.local.processes import Program
from turnkeeper.ops.local.supervisor import own_command
from turnkeeper.stores.partials.factory import carrier_factory
from turnkeeper.stores.stores import Stores
from turnkeeper.worker import build_worker
from turnkeeper.workflows.hosting.connection import connect, prepare

BOUND = 60.0

LINE = "A line of a file that an agent reads while it works.\n"
FILES = {"notes.txt": LINE * 8, "report.txt": LINE * 80}


def four_calls(file: str) -> dict[str, Any]:
    """Return a repeating script of four model calls and three tool calls, one after the other."""
    return {
        "repeat": True,
        "responses": [
            {"think": "I should read it.", "calls": [{"name": "file_read", "args": {"path": file}}]},
            {"think": "And what else is there?", "calls": [{"name": "file_list", "args": {}}]},
            {"calls": [{"name": "file_read", "args": {"path": file, "first_line": 2, "last_line": 4}}]},
            {"text": "It is a file of equal lines, and there is one more in this folder."},
        ],
    }


SEARCH = {"calls": [{"name": "file_search", "args": {"query": "agent", "path": "notes.txt"}}]}

SCRIPTS = {
    "four": four_calls("notes.txt"),
    "searches": {"repeat": True, "responses": [SEARCH, SEARCH, SEARCH, {"text": "It is a file of equal lines."}]},
    "long": four_calls("report.txt"),
    "tool": {
        "repeat": True,
        "responses": [
            {"calls": [{"name": "file_read", "args": {"path": "notes.txt"}}]},
            {"text": "It is a file of equal lines."},
        ],
    },
    "answer": {"repeat": True, "responses": [{"text": "It is a file of equal lines."}]},
}
"""Short texts; tools that are activities; a file of 4 KB; a single tool call; and none."""


@dataclass
class BenchSession:
    """A session or a floor workflow; `rounds` counts its prompts."""

    client: Client
    handle: WorkflowHandle[Any, Any]
    watches: WatchRegistry
    rounds: int = 0

    async def round(self, text: str = "") -> float:
        """Return the seconds from a prompt's signal until a watching client sees its answer."""
        self.rounds += 1
        async with self.watches.watching(self.handle.id) as watch:
            started_at = perf_counter()
            await self.handle.signal(
                "prompt", {"id": f"m{self.rounds}", "text": text or f"Question {self.rounds}: what is it?"}
            )
            until = asyncio.get_running_loop().time() + BOUND
            version = watch.version
            while not await self.is_done():
                if not await watch.wait_beyond(version, until=until):
                    raise TimeoutError(f"round {self.rounds} of {self.handle.id} is not done after {BOUND:g} s")
                version = watch.version
            return perf_counter() - started_at

    async def is_done(self) -> bool:
        """Return whether the last round's answer is visible."""
        raise NotImplementedError

    async def history_bytes(self) -> int:
        """Return the bytes of the current run's history."""
        described = await self.handle.describe()
        return described.raw_description.workflow_execution_info.history_size_bytes

    async def run_id(self) -> str:
        """Return the id of the current run."""
        return (await self.handle.describe()).run_id


class FloorSession(BenchSession):
    """A floor workflow."""

    async def is_done(self) -> bool:
        return await self.handle.query(FloorWorkflow.is_done, {"rounds": self.rounds, "limit": 1})


class OurSession(BenchSession):
    """A session of ours."""

    async def is_done(self) -> bool:
        """Query updates as a client does that has seen the turn start."""
        cursor = {"last_seen_message_id": f"m{self.rounds}", "limit": 1}
        update = await self.handle.query("get_conversation_updates", cursor, result_type=ConversationUpdate)
        return not update.reset and any(turn.is_complete for turn in update.updated_messages)


@dataclass
class BenchEnvironment:
    """Starts sessions."""

    client: Client
    settings: Settings
    watches: WatchRegistry
    worker: Program | None = None
    """The worker, if it has a process of its own."""

    async def session(self, script: str, *, limits: Limits | None = None) -> OurSession:
        """Start a session that plays `script`."""
        start = SessionInput(model=f"offline:script/{script}", user="bench", limits=limits or Limits())
        handle = await self.client.start_workflow(
            "AgenticAIWorkflow", start, id=f"ours-{uuid4()}", task_queue=self.settings.task_queue
        )
        return OurSession(self.client, handle, self.watches)

    async def floor(self) -> FloorSession:
        handle = await self.client.start_workflow(FloorWorkflow.run, id=f"floor-{uuid4()}", task_queue="floor")
        return FloorSession(self.client, handle, self.watches)


@asynccontextmanager
async def bench_environment(
    dynamic_config: Mapping[str, str] | None = None, *, in_memory: bool = True
) -> AsyncIterator[BenchEnvironment]:
    """Run the server, with `dynamic_config` too, the worker that `turnkeeper worker` runs, and the floor's worker.

    A server with a file has it in the working directory's file system, like `make run`: `/tmp` may be in memory.
    """
    async with AsyncExitStack() as stack:
        parent = None if in_memory else Path.cwd()
        folder = Path(stack.enter_context(TemporaryDirectory(prefix=".turnkeeper-bench-", dir=parent)))
        settings = _settings(folder)
        await stack.enter_async_context(
            DevServer(settings.state_dir, in_memory=in_memory, ui_port=None, dynamic_config=dynamic_config)
        )
        client = await connect(settings, patience=BOUND)
        await prepare(client)
        await stack.enter_async_context(_worker(client, settings))
        await stack.enter_async_context(
            Worker(client, task_queue="floor", workflows=[FloorWorkflow], activities=[no_op])
        )
        watches = WatchRegistry(client, Timeouts())
        stack.push_async_callback(watches.close)
        yield BenchEnvironment(client, settings, watches)


@asynccontextmanager
async def stack_environment(*, in_memory: bool = False) -> AsyncIterator[BenchEnvironment]:
    """Run what `make run` runs, without the gateway: a server with a file, and a worker in its own process."""
    with TemporaryDirectory(prefix=".turnkeeper-bench-", dir=Path.cwd()) as folder:
        settings = _settings(Path(folder))
        async with DevServer(settings.state_dir, in_memory=in_memory, ui_port=None) as server:
            variables = {
                "TEMPORAL_ADDRESS": server.address,
                "TURNKEEPER_STATE_DIR": str(settings.state_dir),
                "TURNKEEPER_WORKSPACE_ROOT": str(settings.workspace_root),
                "TURNKEEPER_OFFLINE_SCRIPTS": str(settings.offline_scripts),
                "TURNKEEPER_OFFLINE_WORDS_PER_SECOND": "0",
            }
            client = await connect(settings, patience=BOUND)
            log = settings.state_dir / "logs" / "worker.log"
            worker = Program(own_command("worker"), log=log, env={**os.environ, **variables})
            watches = WatchRegistry(client, Timeouts())
            await worker.start()
            try:
                yield BenchEnvironment(client, settings, watches, worker)
            finally:
                await watches.close()
                await worker.stop(seconds=BOUND)


@asynccontextmanager
async def _worker(client: Client, settings: Settings) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        tools = await stack.enter_async_context(build_toolbox(settings))
        providers = ProviderRegistry.from_settings(settings)
        stores = await stack.enter_async_context(Stores.of(settings))
        partials = await stack.enter_async_context(carrier_factory(settings)(client))
        await stack.enter_async_context(
            build_worker(client, settings, providers=providers, tools=tools, stores=stores, partials=partials)
        )
        yield


def _settings(folder: Path) -> Settings:
    workspace, scripts = folder / "workspace", folder / "scripts"
    workspace.mkdir()
    scripts.mkdir()
    for name, content in FILES.items():
        (workspace / name).write_text(content)
    for name, script in SCRIPTS.items():
        (scripts / f"{name}.json").write_text(json.dumps(script))
    return Settings(
        state_dir=folder / "state", workspace_root=workspace, offline_scripts=scripts, offline_words_per_second=0
    )


@asynccontextmanager
async def gateway(app: FastAPI) -> AsyncIterator[str]:
    """Serve `app` on a free port; yields its address."""
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False))
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind((LOOPBACK, 0))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            async with asyncio.timeout(BOUND):
                while not server.started:  # noqa: ASYNC110  # uvicorn has no event for it
                    await asyncio.sleep(0.01)
            yield f"http://{LOOPBACK}:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving


@asynccontextmanager
async def gateway_process(environment: BenchEnvironment) -> AsyncIterator[int]:
    """Run the gateway in a process of its own; yields its port."""
    port = free_port()
    with TemporaryDirectory() as folder:
        variables = {
            "TEMPORAL_ADDRESS": environment.client.service_client.config.target_host,
            "TURNKEEPER_STATE_DIR": str(environment.settings.state_dir),
            "TURNKEEPER_API_PORT": str(port),
        }
        command = own_command("api")
        program = Program(command, log=Path(folder) / "gateway.log", env={**os.environ, **variables})
        await program.start()
        try:
            async with asyncio.timeout(BOUND):
                while not await _answers(port):  # noqa: ASYNC110  # another process has no event for it
                    await asyncio.sleep(0.05)
            yield port
        finally:
            await program.stop(seconds=BOUND)


async def _answers(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(LOOPBACK, port)
    except OSError:
        return False
    writer.close()
    return True


async def interleaved(rounds: int, *measurements: Callable[[], Awaitable[float]]) -> list[list[float]]:
    """Return `rounds` samples of each measurement, taken in turn, so that noise affects all of them."""
    samples: list[list[float]] = [[] for _ in measurements]
    for _ in range(rounds):
        for values, measure in zip(samples, measurements, strict=True):
            values.append(await measure())
    return samples
