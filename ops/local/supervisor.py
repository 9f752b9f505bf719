"""`turnkeeper up`: server, worker and gateway beside each other, watched and started again (OPS-1, OPS-2).

They are started in this order and stopped in the opposite one, so that nobody loses what it talks to. Each runs in
its own process group, so a Ctrl-C reaches only us; and on our leash, so that a `kill -9` of us stops them too.
"""

import asyncio
import http
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from turnkeeper.models.backoff import growing_pauses
from turnkeeper.models.command_line import command_line
from turnkeeper.models.settings.settings import ENV_PREFIX, Settings
from turnkeeper.ops.local.dev_server import STOP_SECONDS as TEMPORAL_STOP_SECONDS
from turnkeeper.ops.local.dev_server import DevServer, DevServerError
from turnkeeper.ops.local.environments import gateway_environment
from turnkeeper.ops.local.gateway import Gateway
from turnkeeper.ops.local.ports import usable_port
from turnkeeper.ops.local.processes import Program
from turnkeeper.ops.local.worker_process import FAIL_SECONDS, WorkerProgram
from turnkeeper.stores.private_files import UMASK, close_to_others, make_private_folder, write_private
from turnkeeper.workflows.hosting.connection import connect, find_endpoint, prepare

Say = Callable[[str], None]

Outcome = TypeVar("Outcome")

READY_SECONDS = 30.0
"""Most time until the links are shown, ready or not."""

GATEWAY_STOP_SECONDS = 6.0
"""More than the 3 s it gives to open requests."""

WORKER_MARGIN_SECONDS = 5.0
"""What a worker may take beyond the grace it gives its activities."""

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
START_SECONDS = 5.0
"""What dies before this, and has done none of its work, has failed to start: its pauses grow (OPS-10)."""

MAX_QUICK_RESTARTS = 10
RESTART_SECONDS = 6.0
"""So many restarts of a service wait for nothing; each costs one, and one comes back after so many seconds (OPS-10).

A model call that kills its worker is tried again for as long as its turn has time."""


def own_command(*arguments: str) -> list[str]:
    """Return the command line that runs one of our own commands.

    Without `-P` a folder `turnkeeper` in the working directory would be run instead.
    """
    return [sys.executable, "-P", "-m", "turnkeeper.cli", *arguments]


def log_file(settings: Settings, command: str) -> Path:
    return settings.state_dir / "logs" / f"{command}.log"


class Service(Protocol):
    """What can be kept running."""

    @property
    def has_worked(self) -> bool:
        """Whether it has done some of its work since it was started; False also where that can't be known."""

    async def start(self) -> None:
        """Have it running."""

    async def wait(self) -> int:
        """Return its exit code once it has ended."""

    async def stop(self, *, seconds: float) -> None:
        """Have it ended, and killed after `seconds`."""


async def run_stack(settings: Settings, say: Say) -> None:
    """Run everything until cancelled, and stop it then.

    Raises:
        DevServerError: The embedded server does not start.
        TemporalAccessError: The server that was named cannot be used.
    """
    make_private_folder(settings.state_dir)
    close_to_others(settings.state_dir)
    async with AsyncExitStack() as running:
        web_ui = await running.enter_async_context(_temporal(settings, say))
        worker = WorkerProgram(
            own_command("worker"),
            connect=lambda: connect(settings, patience=FAIL_SECONDS),
            log=log_file(settings, "worker"),
        )
        stop_seconds = settings.shutdown_grace + WORKER_MARGIN_SECONDS
        await running.enter_async_context(kept_running("The worker", worker, say, stop_seconds=stop_seconds))
        gateway = await running.enter_async_context(_gateway(settings, say))
        say("Temporal is ready; worker and gateway are starting.")
        if not await _is_ready(gateway):
            say(f"The gateway is not ready after {READY_SECONDS:.0f} s. Check with `{command_line('doctor')}`.")
        say(_links(settings, gateway, web_ui))
        await asyncio.Event().wait()


def run_until_signalled(work: Coroutine[Any, Any, Outcome]) -> Outcome | None:
    """Run `work` until it ends or a Ctrl-C, SIGTERM or closed terminal stops it; then let it clean up.

    Returns what it came to; None where it was stopped and left it at that.
    """
    return asyncio.run(_until_signalled(work))


@asynccontextmanager
async def kept_running(name: str, service: Service, say: Say, *, stop_seconds: float) -> AsyncIterator[None]:
    """Have `service` running inside the block: started again whenever it ends, stopped after it."""
    await service.start()
    watch = asyncio.create_task(_start_again(name, service, say))
    try:
        yield
    finally:
        # A start that is under way is over before the stop, or it would outlive it.
        watch.cancel()
        await asyncio.wait([watch])
        await service.stop(seconds=stop_seconds)


class RestartPacer:
    """Ten restarts at once, then ten a minute, whatever a service ends of."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Count by `clock`, in seconds."""
        self._clock = clock
        self._restarts = float(MAX_QUICK_RESTARTS)
        self._counted_at = clock()

    def next_pause(self) -> float:
        """Count one restart; return the seconds it has to wait."""
        now = self._clock()
        self._restarts = min(MAX_QUICK_RESTARTS, self._restarts + (now - self._counted_at) / RESTART_SECONDS) - 1
        self._counted_at = now
        return max(0.0, -self._restarts * RESTART_SECONDS)


async def _start_again(name: str, service: Service, say: Say) -> None:
    clock = asyncio.get_running_loop().time
    pacer = RestartPacer(clock)
    pauses = growing_pauses(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
    while True:
        started = clock()
        code = await service.wait()
        start_failed = clock() - started < START_SECONDS and not service.has_worked
        if not start_failed:
            pauses = growing_pauses(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        wait = max(next(pauses) if start_failed else 0.0, round(pacer.next_pause(), 1))
        say(f"{name} ended ({_reason(code)}); it is started again {f'in {wait:g} s' if wait else 'at once'}.")
        await asyncio.sleep(wait)
        try:
            await service.start()
        except (DevServerError, OSError) as error:
            say(str(error))


def _reason(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


@asynccontextmanager
async def _temporal(settings: Settings, say: Say) -> AsyncIterator[str]:
    """Have a server that is ready for sessions, our own unless another is named; yields where to look at it."""
    endpoint = find_endpoint(settings)
    if not endpoint.embedded:
        await prepare(await connect(settings))
        yield endpoint.address
        return
    server = DevServer.for_settings(settings)
    async with kept_running("The Temporal server", server, say, stop_seconds=TEMPORAL_STOP_SECONDS):
        for note in server.notes:
            say(note)
        yield server.ui_url or server.address


@asynccontextmanager
async def _gateway(settings: Settings, say: Say) -> AsyncIterator[Gateway]:
    """Have a gateway, at another port where the wanted one is busy."""
    gateway = Gateway(host=settings.api_host, port=usable_port(settings.api_port, settings.api_host))
    if settings.api_port not in (0, gateway.port):
        say(f"Port {settings.api_port} is in use, so the gateway listens on {gateway.port}.")
    env = {
        **gateway_environment(os.environ),
        f"{ENV_PREFIX}API_PORT": str(gateway.port),
        # Chosen here, by the keys.
        f"{ENV_PREFIX}MODEL": settings.first_model,
    }
    program = Program(own_command("api"), log=log_file(settings, "api"), env=env, umask=UMASK)
    record = Gateway.file(settings.state_dir)
    async with kept_running("The gateway", program, say, stop_seconds=GATEWAY_STOP_SECONDS):
        write_private(record, gateway.model_dump_json())
        try:
            yield gateway
        finally:
            record.unlink(missing_ok=True)


async def _is_ready(gateway: Gateway) -> bool:
    deadline = asyncio.get_running_loop().time() + READY_SECONDS
    while asyncio.get_running_loop().time() < deadline:
        if await gateway.status("/readyz") == http.HTTPStatus.OK:
            return True
        await asyncio.sleep(0.1)
    return False


def _links(settings: Settings, gateway: Gateway, web_ui: str) -> str:
    return "\n".join(
        [
            "",
            f"  Chat        {gateway.url}",
            f"  Terminal    {command_line('chat')}",
            f"  API docs    {gateway.url}/docs",
            f"  Temporal    {web_ui}",
            f"  Workspace   {settings.workspace_root.resolve()}   (set TURNKEEPER_WORKSPACE_ROOT for another)",
            f"  State       {settings.state_dir.resolve()}",
            f"  Logs        {(settings.state_dir / 'logs').resolve()}",
            "",
            "Ctrl-C stops everything. Sessions continue at the next start.",
        ]
    )


async def _until_signalled(work: Coroutine[Any, Any, Outcome]) -> Outcome | None:
    task = asyncio.ensure_future(work)
    told = asyncio.Event()

    def stop() -> None:
        # Only once: a second Ctrl-C would cut the clean-up short and leave processes behind.
        if not told.is_set():
            told.set()
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    try:
        return await task
    except asyncio.CancelledError:
        if not told.is_set():
            raise
        return None
