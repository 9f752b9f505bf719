"""`turnkeeper up`: server, worker and gateway beside each other, watched and started again (OPS-1, OPS-2).

They are started in this order and stopped in the opposite one, so that nobody loses what it talks to. Each runs in
its own process group, so a Ctrl-C reaches only us; and on our leash, so that a `kill -9` of us stops them too.
"""

import asyncio
import http
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from models.settings import ENV_PREFIX, Settings
from stack.dev_server import DevServer, DevServerError
from stack.gateway import Gateway
from stack.ports import usable_port
from stack.processes import Program
from workflows.connection import connect, find_endpoint, prepare

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
STEADY_SECONDS = 60.0
"""What has run this long and dies has not failed to start: it gets the first pause again."""

COMMAND_LINE = Path(__file__).resolve().parents[1] / "cli.py"
"""Run by its path: with `-m`, a file of the same name in the working directory would be run instead."""


class Service(Protocol):
    """What can be kept running."""

    async def start(self) -> None:
        """Have it running."""

    async def wait(self) -> int:
        """Return its exit code once it has ended."""

    async def stop(self) -> None:
        """Have it ended."""


class OwnProcess:
    """One of our own commands as a service."""

    def __init__(self, command: str, settings: Settings, *, stop_seconds: float, env: dict[str, str]) -> None:
        """Keep what to run; `env` is added to our environment."""
        log = settings.state_dir / "logs" / f"{command}.log"
        self._program = Program([sys.executable, str(COMMAND_LINE), command], log=log, env={**os.environ, **env})
        self._stop_seconds = stop_seconds

    async def start(self) -> None:
        """Have it running; it may still end at once."""
        await self._program.start()

    async def wait(self) -> int:
        """Return its exit code once it has ended."""
        return await self._program.wait()

    async def stop(self) -> None:
        """Have it ended, in the time it is allowed."""
        await self._program.stop(seconds=self._stop_seconds)


async def run_stack(settings: Settings, say: Say) -> None:
    """Run everything until cancelled, and stop it then.

    Raises:
        DevServerError: The embedded server does not start.
        TemporalAccessError: The server that was named cannot be used.
    """
    settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    async with AsyncExitStack() as running:
        web_ui = await running.enter_async_context(_temporal(settings, say))
        worker = OwnProcess("worker", settings, stop_seconds=settings.shutdown_grace + WORKER_MARGIN_SECONDS, env={})
        await running.enter_async_context(kept_running("The worker", worker, say))
        gateway = await running.enter_async_context(_gateway(settings, say))
        say("Temporal is ready; worker and gateway are starting.")
        if not await _is_ready(gateway):
            say(f"The gateway is not ready after {READY_SECONDS:.0f} s: `turnkeeper doctor` says what is missing.")
        say(_links(settings, gateway, web_ui))
        await asyncio.Event().wait()


def run_until_signalled(work: Coroutine[Any, Any, Outcome]) -> Outcome | None:
    """Run `work` until it ends or a Ctrl-C, SIGTERM or closed terminal stops it; then let it clean up.

    Returns what it came to; None where it was stopped and left it at that.
    """
    return asyncio.run(_until_signalled(work))


@asynccontextmanager
async def kept_running(name: str, service: Service, say: Say) -> AsyncIterator[None]:
    """Have `service` running inside the block: started again whenever it ends, stopped after it."""
    await service.start()
    watch = asyncio.create_task(_start_again(name, service, say))
    try:
        yield
    finally:
        # A start that is under way is over before the stop, or it would outlive it.
        watch.cancel()
        await asyncio.wait([watch])
        await service.stop()


async def _start_again(name: str, service: Service, say: Say) -> None:
    clock = asyncio.get_running_loop().time
    pauses = _pauses()
    while True:
        started = clock()
        code = await service.wait()
        if clock() - started > STEADY_SECONDS:
            pauses = _pauses()
        pause = next(pauses)
        say(f"{name} ended ({_reason(code)}); it is started again in {pause:g} s.")
        await asyncio.sleep(pause)
        try:
            await service.start()
        except (DevServerError, OSError) as error:
            say(str(error))


def _pauses() -> Iterator[float]:
    pause = FIRST_PAUSE_SECONDS
    while True:
        yield pause
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


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
    async with kept_running("The Temporal server", server, say):
        for note in server.notes:
            say(note)
        yield server.ui_url or server.address


@asynccontextmanager
async def _gateway(settings: Settings, say: Say) -> AsyncIterator[Gateway]:
    """Have a gateway, at another port where the wanted one is busy."""
    gateway = Gateway(host=settings.api_host, port=usable_port(settings.api_port, settings.api_host))
    if settings.api_port not in (0, gateway.port):
        say(f"Port {settings.api_port} is busy: the gateway listens on {gateway.port}.")
    env = {f"{ENV_PREFIX}API_PORT": str(gateway.port)}
    process = OwnProcess("api", settings, stop_seconds=GATEWAY_STOP_SECONDS, env=env)
    record = Gateway.file(settings.state_dir)
    async with kept_running("The gateway", process, say):
        record.write_text(gateway.model_dump_json())
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
            "  Terminal    turnkeeper chat",
            f"  API docs    {gateway.url}/docs",
            f"  Temporal    {web_ui}",
            f"  Workspace   {settings.workspace_root.resolve()}   (another one: set TURNKEEPER_WORKSPACE_ROOT)",
            f"  State       {settings.state_dir.resolve()}",
            f"  Logs        {(settings.state_dir / 'logs').resolve()}",
            "",
            "Ctrl-C stops everything; the sessions go on at the next start.",
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
