"""`turnkeeper up`: runs server, worker and gateway, and restarts each one that ends (OPS-1, OPS-2).

They start in this order and stop in the opposite one, so that each outlives its clients. Worker and gateway load their
modules while the server starts. Each has its own process group, so that a Ctrl-C reaches only us, and dies with its
parent, so that a `kill -9` of us stops it too.

Until we have launched them, only one processor is busy. So we load the SDK only if we have to call Temporal: if another
server is configured, or a worker has died.
"""

import asyncio
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, TypeVar

from turnkeeper.clients.terminal.command_options import Gateway
from turnkeeper.features import enabled
from turnkeeper.models.command_line import command_line
from turnkeeper.models.errors import growing_pauses
from turnkeeper.models.settings.settings import ENV_PREFIX, Settings, SettingsError
from turnkeeper.ops.local.dev_server import STOP_SECONDS as TEMPORAL_STOP_SECONDS
from turnkeeper.ops.local.dev_server import DevServer, DevServerError
from turnkeeper.ops.local.logs import set_up_sdk_logging
from turnkeeper.ops.local.processes import Program, gateway_environment, reserved_port
from turnkeeper.ops.local.worker_process import RunningActivity, WorkerProgram, WorkerReport
from turnkeeper.stores.database import NEWEST
from turnkeeper.stores.private_files import UMASK, close_to_others, make_private_folder, write_private
from turnkeeper.stores.temporal.endpoint import WEB_UI_PATH, find_endpoint, web_ui_origin

Print = Callable[[str], None]

Outcome = TypeVar("Outcome")

TOOL_PROBLEM_SECONDS = 1.0
"""How often the worker's report of its tool servers is read."""

READY_SECONDS = 30.0
"""After this the links are printed, ready or not."""

GATEWAY_STOP_SECONDS = 6.0
"""More than the 3 s that the gateway gives open requests."""

WORKER_MARGIN_SECONDS = 5.0
"""How long a worker may take to stop after `shutdown_grace`."""

NO_KEYS = (
    "No key is needed on this machine. Before you put a proxy in front of the gateway, set auth.keys=true: requests\n"
    "through a proxy are refused, but one that adds no X-Forwarded-For, Forwarded or Via is not noticed."
)

OTHER_FOLDER = (
    "state_dir={folder!r} was made by another version of Turnkeeper: delete the folder, or set TURNKEEPER_STATE_DIR to "
    "another one."
)

MIN_PAUSE_SECONDS = 0.5
MAX_PAUSE_SECONDS = 30.0
START_SECONDS = 5.0
"""A service that ends sooner, without having worked, has failed to start: its pauses grow (OPS-10)."""

MAX_QUICK_RESTARTS = 10
RESTART_SECONDS = 6.0
"""A service may restart 10 times without a pause, and gets one such restart back every 6 s (OPS-10).

A model call that kills its worker is retried as long as its turn has time."""


def own_command(*arguments: str) -> list[str]:
    """Return the command line of one of our own commands.

    Without `-P`, Python would run a folder named `turnkeeper` in the working directory instead.
    """
    return [sys.executable, "-P", "-m", "turnkeeper.cli", *arguments]


def log_file(settings: Settings, command: str) -> Path:
    return settings.state_dir / "logs" / f"{command}.log"


class Service(Protocol):
    """A process that can be started, waited for and stopped."""

    @property
    def has_worked(self) -> bool:
        """Whether it has done some work since its start; False also if that is unknown."""

    async def start(self) -> None: ...

    async def wait(self) -> int:
        """Return its exit code once it has ended."""

    async def stop(self, *, seconds: float) -> None:
        """Stop it, and kill it after `seconds`."""


def check_state_folder(folder: Path) -> None:
    """Raise `SettingsError` if another version of Turnkeeper has made the folder, whose sessions could not continue.

    Its archive tells; it is read without SQLAlchemy, which would be a quarter of this process's memory and start.
    """
    file = (folder / "archive.db").absolute()
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as archive:
        if archive.execute("SELECT version_num FROM alembic_version").fetchall() != [(NEWEST,)]:
            raise SettingsError(OTHER_FOLDER.format(folder=str(folder)))


async def run_stack(settings: Settings, print_line: Print) -> None:
    """Run server, worker and gateway until cancelled, then stop them.

    Raises:
        DevServerError: The embedded server does not start.
        TemporalAccessError: The configured server cannot be used.
    """
    make_private_folder(settings.state_dir)
    close_to_others(settings.state_dir)
    async with AsyncExitStack() as running:
        temporal, server = await running.enter_async_context(_temporal(settings, print_line))
        worker = WorkerProgram(
            own_command("worker"), fail=partial(_fail_activities, settings), log=log_file(settings, "worker")
        )
        stop_seconds = settings.shutdown_grace + WORKER_MARGIN_SECONDS
        await running.enter_async_context(keep_running("The worker", worker, print_line, stop_seconds=stop_seconds))
        variables = dict[str, str]()
        for feature in enabled(settings):
            if feature.commands:
                variables |= await feature.commands.variables(settings, print_line)
        gateway = await running.enter_async_context(_gateway(settings, print_line, variables))
        if server is not None:
            await server.wait_until_ready()
            await running.enter_async_context(restarting("The Temporal server", server, print_line))
        print_line("Temporal is ready. Starting the worker and the gateway.")
        if not await _is_ready(gateway):
            print_line(f"Gateway and worker are not ready after {READY_SECONDS:.0f} s. Run `{command_line('doctor')}`.")
        for feature in enabled(settings):
            finding = await feature.commands.check(settings) if feature.commands else None
            if finding and finding.state == "broken":
                print_line(f"{finding.message.capitalize()}: {finding.fix}.")
        print_line(_links(settings, gateway, temporal))
        await _print_tool_problems(settings, print_line)


def run_until_signalled(work: Coroutine[Any, Any, Outcome]) -> Outcome | None:
    """Run `work` until it ends, or cancel it at Ctrl-C, SIGTERM or the terminal's end and wait for its clean-up.

    Returns its result; None if it was cancelled and raised `CancelledError`.
    """
    return asyncio.run(_until_signalled(work))


@asynccontextmanager
async def keep_running(name: str, service: Service, print_line: Print, *, stop_seconds: float) -> AsyncIterator[None]:
    """Run `service` inside the block, restarting it whenever it ends, then stop it."""
    await service.start()
    async with _stopped_afterwards(service, seconds=stop_seconds), restarting(name, service, print_line):
        yield


@asynccontextmanager
async def restarting(name: str, service: Service, print_line: Print) -> AsyncIterator[None]:
    """Restart the running `service` inside the block whenever it ends."""
    watch = asyncio.create_task(_restart(name, service, print_line))
    try:
        yield
    finally:
        # A start must finish before the stop, or the new process would outlive it.
        watch.cancel()
        await asyncio.wait([watch])


@asynccontextmanager
async def _stopped_afterwards(service: Service, *, seconds: float) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await service.stop(seconds=seconds)


class RestartPacer:
    """Allows ten restarts without a pause, then ten a minute."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns seconds."""
        self._clock = clock
        self._restarts = float(MAX_QUICK_RESTARTS)
        self._counted_at = clock()

    def next_pause(self) -> float:
        """Count one restart; return how many seconds it has to wait."""
        now = self._clock()
        self._restarts = min(MAX_QUICK_RESTARTS, self._restarts + (now - self._counted_at) / RESTART_SECONDS) - 1
        self._counted_at = now
        return max(0.0, -self._restarts * RESTART_SECONDS)


async def _restart(name: str, service: Service, print_line: Print) -> None:
    clock = asyncio.get_running_loop().time
    pacer = RestartPacer(clock)
    pauses = growing_pauses(MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
    while True:
        started_at = clock()
        code = await service.wait()
        start_failed = clock() - started_at < START_SECONDS and not service.has_worked
        if not start_failed:
            pauses = growing_pauses(MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
        wait = max(next(pauses) if start_failed else 0.0, round(pacer.next_pause(), 1))
        print_line(f"{name} stopped ({_reason(code)}). Restarting {f'in {wait:g} s' if wait else 'now'}.")
        await asyncio.sleep(wait)
        try:
            await service.start()
        except (DevServerError, OSError) as error:
            print_line(str(error))


def _reason(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


@asynccontextmanager
async def _temporal(settings: Settings, print_line: Print) -> AsyncIterator[tuple[str, DevServer | None]]:
    """Launch the embedded server, or prepare the configured one; yields its address.

    The embedded server is yielded too, since it may not be ready yet.
    """
    endpoint = find_endpoint(settings)
    if not endpoint.embedded:
        from turnkeeper.stores.temporal.connection import connect, prepare

        set_up_sdk_logging()
        await prepare(await connect(settings))
        yield endpoint.address, None
        return
    server = DevServer.for_settings(settings)
    await server.launch()
    async with _stopped_afterwards(server, seconds=TEMPORAL_STOP_SECONDS):
        for note in server.notes:
            print_line(note)
        yield server.address, server


async def _fail_activities(settings: Settings, activities: Sequence[RunningActivity]) -> None:
    # In a thread: the next worker starts while the SDK is loaded.
    await asyncio.to_thread(import_module, "turnkeeper.ops.local.dead_worker")
    from turnkeeper.ops.local.dead_worker import FAIL_SECONDS, fail_activities
    from turnkeeper.stores.temporal.connection import connect

    set_up_sdk_logging()
    await fail_activities(lambda: connect(settings, patience=FAIL_SECONDS), activities)


@asynccontextmanager
async def _gateway(settings: Settings, print_line: Print, variables: Mapping[str, str]) -> AsyncIterator[Gateway]:
    """Run a gateway, on another port if `api_port` is busy. `variables` are settings of its own."""
    with reserved_port(settings.api_port, settings.api_host) as port:
        gateway = Gateway(host=settings.api_host, port=port)
        if settings.api_port not in (0, port):
            print_line(f"Port {settings.api_port} is in use, so the gateway listens on {port}.")
        env = {
            **gateway_environment(os.environ),
            f"{ENV_PREFIX}API_PORT": str(port),
            # Chosen here, since the gateway does not see the keys.
            f"{ENV_PREFIX}MODEL": settings.first_model,
            **variables,
        }
        program = Program(own_command("api"), log=log_file(settings, "api"), env=env, umask=UMASK)
        record = Gateway.file(settings.state_dir)
        async with keep_running("The gateway", program, print_line, stop_seconds=GATEWAY_STOP_SECONDS):
            write_private(record, gateway.model_dump_json())
            try:
                yield gateway
            finally:
                record.unlink(missing_ok=True)


async def _is_ready(gateway: Gateway) -> bool:
    deadline = asyncio.get_running_loop().time() + READY_SECONDS
    while asyncio.get_running_loop().time() < deadline:
        if await gateway.has_worker():
            return True
        await asyncio.sleep(0.1)
    return False


async def _print_tool_problems(settings: Settings, print_line: Print) -> None:
    """Print why tool servers have no tools, when the worker reports it, and that they have them again. Never ends."""
    printed: dict[str, str] = {}
    while True:
        report = WorkerReport.read(settings.state_dir)
        problems = printed if report is None else report.tool_problems
        for name, problem in problems.items():
            if printed.get(name) != problem:
                # One that is a whole sentence says itself what sessions have.
                rest = "" if problem.endswith(".") else ". Sessions run without its tools."
                print_line(f"  Tools       {name}: {problem}{rest}")
        for name in printed.keys() - problems.keys():
            print_line(f"  Tools       {name}: available again.")
        printed = problems
        await asyncio.sleep(TOOL_PROBLEM_SECONDS)


def _links(settings: Settings, gateway: Gateway, temporal: str) -> str:
    web_ui = [f"  Web UI      {gateway.url}{WEB_UI_PATH}"] if web_ui_origin(settings) is not None else []
    return "\n".join(
        [
            "",
            f"  Chat        {gateway.url}",
            f"  Terminal    {command_line('chat')}",
            f"  API docs    {gateway.url}/docs",
            f"  Temporal    {temporal}",
            *web_ui,
            f"  Workspace   {settings.workspace_root.resolve()}   (change it with TURNKEEPER_WORKSPACE_ROOT)",
            f"  State       {settings.state_dir.resolve()}",
            f"  Logs        {(settings.state_dir / 'logs').resolve()}",
            "",
            *([] if settings.auth.is_on else [NO_KEYS]),
            "Ctrl-C stops everything. Sessions continue at the next start.",
        ]
    )


async def _until_signalled(work: Coroutine[Any, Any, Outcome]) -> Outcome | None:
    task = asyncio.ensure_future(work)
    is_stopping = False

    def stop() -> None:
        nonlocal is_stopping
        # Only once: a second Ctrl-C would interrupt the clean-up and leave processes behind.
        if not is_stopping:
            is_stopping = True
            task.cancel()

    # SIGINT stops us even if it is ignored, as it is for what a script starts with `&`; SIGHUP does not under `nohup`.
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    for number in numbers:
        asyncio.get_running_loop().add_signal_handler(number, stop)
    try:
        return await task
    except asyncio.CancelledError:
        if not is_stopping:
            raise
        return None
