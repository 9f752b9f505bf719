"""The environment of a measurement: server, workers, gateways, floor and vendor, each in a process of its own."""

import asyncio
import os
import re
import sys
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any
from uuid import uuid4

from temporalio.client import Client, WorkflowHandle

from benchmarks import floor, proc
from benchmarks.http_client import EventStream, HttpConnection
from benchmarks.scripts import write_scripts
from turnkeeper.api.temporal.watch import WatchRegistry
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.models.limits import Limits
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.transcript.conversation import ConversationUpdate
from turnkeeper.ops.local.dev_server import DevServer
from turnkeeper.ops.local.processes import LOOPBACK, Program, free_port
from turnkeeper.ops.local.supervisor import own_command
from turnkeeper.stores.temporal.connection import connect

ROOT = Path(__file__).parents[1]

OWN_SESSIONS = 1
"""The sessions that an environment starts itself, so that the worker has loaded what it needs."""

BOUND = 180.0

POLL_SECONDS = 0.02

ARCHIVED_SECONDS = 4.0
"""After this time, sessions that are idle have copied their turns to the archive: it is no CPU time of what follows."""


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
            await self.send(text or f"Question {self.rounds}: what is it?")
            until = asyncio.get_running_loop().time() + BOUND
            version = watch.version
            while not await self.is_done():
                if not await watch.wait_beyond(version, until=until):
                    raise TimeoutError(f"round {self.rounds} of {self.handle.id} is not done after {BOUND:g} s")
                version = watch.version
            return perf_counter() - started_at

    async def send(self, text: str) -> None:
        """Send the prompt of the current round."""
        await self.handle.signal("prompt", {"id": f"m{self.rounds}", "text": text})

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

    async def until_idle(self, *, pause: float = POLL_SECONDS) -> None:
        """Wait until nothing is under way, without a query, which would be an action and a worker's work."""
        async with asyncio.timeout(BOUND):
            while True:
                described = (await self.handle.describe()).raw_description
                if not described.pending_activities and not described.HasField("pending_workflow_task"):
                    return
                await asyncio.sleep(pause)


class FloorSession(BenchSession):
    """A floor workflow."""

    async def is_done(self) -> bool:
        return bool(await self.handle.query("is_done", {"rounds": self.rounds, "limit": 1}))


class OurSession(BenchSession):
    """A session of ours."""

    async def is_done(self) -> bool:
        """Query updates as a client does that has seen the turn start."""
        cursor = {"last_seen_message_id": f"m{self.rounds}", "limit": 1}
        update = await self.handle.query("get_conversation_updates", cursor, result_type=ConversationUpdate)
        return not update.reset and any(turn.is_complete for turn in update.updated_messages)


@dataclass
class GatewaySession(OurSession):
    """A session that is used through a gateway; `events`: its watcher, if it has one."""

    http: HttpConnection = field(kw_only=True)
    events: EventStream | None = None

    async def prompt(self, text: str = "What is it?") -> None:
        self.rounds += 1
        await self.http.post(f"/workflow/{self.handle.id}/prompt", {"id": f"m{self.rounds}", "message": text})

    async def round(self, text: str = "What is it?") -> float:
        """Return the seconds from a prompt's request until its watcher has the answer."""
        assert self.events
        started_at = perf_counter()
        async with asyncio.timeout(BOUND):
            await self.prompt(text)
            await self.events.until_complete(f"m{self.rounds}")
        return perf_counter() - started_at


@dataclass
class BenchEnvironment:
    """Starts sessions, and knows the processes that serve them."""

    client: Client
    settings: Settings
    watches: WatchRegistry
    server: DevServer
    workers: Sequence[Program]
    gateways: Sequence[Program]
    gateway_ports: Sequence[int]
    vendor_port: int

    async def session(self, script: str, *, limits: Limits | None = None, model: str | None = None) -> OurSession:
        """Start a session that plays `script`, or asks `model`."""
        start = SessionInput(model=model or f"offline:script/{script}", user="bench", limits=limits or Limits())
        handle = await self.client.start_workflow(
            "AgenticAIWorkflow", start, id=f"ours-{uuid4()}", task_queue=self.settings.task_queue
        )
        return OurSession(self.client, handle, self.watches)

    async def gateway_session(self, model: str, *, is_watched: bool, gateway: int = 0) -> GatewaySession:
        """Start a session through a gateway, and watch it there."""
        port = self.gateway_ports[gateway]
        http, session_id = HttpConnection(port), f"ours-{uuid4()}"
        await http.post("/workflow", {"id": session_id, "model": model})
        events = await EventStream.of(port, session_id) if is_watched else None
        return GatewaySession(
            self.client, self.client.get_workflow_handle(session_id), self.watches, http=http, events=events
        )

    async def floor(self, activities: int) -> FloorSession:
        handle = await self.client.start_workflow(
            "FloorWorkflow", activities, id=f"floor-{uuid4()}", task_queue=floor.TASK_QUEUE
        )
        return FloorSession(self.client, handle, self.watches)

    def cpu_seconds(self) -> float:
        """Return the CPU time of Temporal's server, the workers and the gateways."""
        return sum(proc.cpu_seconds(each.pid or 0) for each in (self.server, *self.workers, *self.gateways))

    async def requests(self) -> Counter[str]:
        """Return how many requests of each kind Temporal's server has had, by its own metrics."""
        words = proc.arguments(self.server.pid or 0)
        url = f"http://{LOOPBACK}:{words[words.index('--metrics-port') + 1]}/metrics"
        page = await asyncio.to_thread(lambda: urllib.request.urlopen(url).read().decode())
        counts = re.findall(
            r'^service_requests\{.*operation="(\w+)",service_name="frontend"\} (\d+)', page, re.MULTILINE
        )
        return Counter({operation: int(count) for operation, count in counts})


@asynccontextmanager
async def bench_environment(
    *,
    in_memory: bool = True,
    workers: int = 1,
    gateways: int = 0,
    dynamic_config: Mapping[str, str] | None = None,
) -> AsyncIterator[BenchEnvironment]:
    """Run what `make run` runs, a floor's worker and a vendor; the server with `dynamic_config` too.

    A server with a file has it in the working directory's file system, like `make run`: `/tmp` may be in memory.
    """
    async with AsyncExitStack() as stack:
        parent = None if in_memory else Path.cwd()
        folder = Path(stack.enter_context(TemporaryDirectory(prefix=".turnkeeper-bench-", dir=parent)))
        settings = _settings(folder)
        server = await stack.enter_async_context(
            DevServer(settings.state_dir, in_memory=in_memory, ui_port=None, dynamic_config=dynamic_config)
        )
        vendor_port, gateway_ports = free_port(), [free_port() for _ in range(gateways)]
        common = {
            **os.environ,
            "TEMPORAL_ADDRESS": server.address,
            "TURNKEEPER_STATE_DIR": str(settings.state_dir),
            "TURNKEEPER_WORKSPACE_ROOT": str(settings.workspace_root),
        }
        models = {
            "TURNKEEPER_OFFLINE_SCRIPTS": str(settings.offline_scripts),
            "TURNKEEPER_OFFLINE_WORDS_PER_SECOND": "0",
            "TURNKEEPER_OPENAI_CHAT__BASE_URL": f"http://{LOOPBACK}:{vendor_port}/v1",
        }

        async def run(name: str, command: Sequence[str], variables: Mapping[str, str], cwd: Path | None) -> Program:
            program = Program(command, log=settings.state_dir / "logs" / f"{name}.log", env=variables, folder=cwd)
            await program.start()
            stack.push_async_callback(program.stop, seconds=BOUND)
            return program

        await run("floor", [sys.executable, "-m", "benchmarks.floor", server.address], common, ROOT)
        await run("vendor", [sys.executable, "-m", "benchmarks.vendor", str(vendor_port)], common, ROOT)
        worker_programs = [
            await run(f"worker-{number}", own_command("worker"), {**common, **models}, None)
            for number in range(workers)
        ]
        gateway_programs = [
            await run(f"gateway-{port}", own_command("api"), {**common, "TURNKEEPER_API_PORT": str(port)}, None)
            for port in gateway_ports
        ]
        client = await connect(settings, patience=BOUND)
        for port in (vendor_port, *gateway_ports):
            await until_open(port)
        watches = WatchRegistry(client, Timeouts())
        stack.push_async_callback(watches.close)
        environment = BenchEnvironment(
            client, settings, watches, server, worker_programs, gateway_programs, gateway_ports, vendor_port
        )
        await (await environment.session("answer")).round()
        await (await environment.floor(1)).round()
        yield environment


def _settings(folder: Path) -> Settings:
    workspace, scripts = folder / "workspace", folder / "scripts"
    workspace.mkdir()
    scripts.mkdir()
    write_scripts(workspace, scripts)
    return Settings(
        state_dir=folder / "state", workspace_root=workspace, offline_scripts=scripts, offline_words_per_second=0
    )


async def until_open(port: int) -> None:
    """Wait until a process of this machine listens at the port."""
    async with asyncio.timeout(BOUND):
        while True:
            try:
                _, writer = await asyncio.open_connection(LOOPBACK, port)
            except OSError:
                await asyncio.sleep(POLL_SECONDS)
            else:
                return writer.close()


async def interleaved(rounds: int, *measurements: Callable[[], Awaitable[float]]) -> list[list[float]]:
    """Return `rounds` samples of each measurement, taken in turn, so that noise affects all of them."""
    samples: list[list[float]] = [[] for _ in measurements]
    for _ in range(rounds):
        for values, measure in zip(samples, measurements, strict=True):
            values.append(await measure())
    return samples
