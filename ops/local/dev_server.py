"""The embedded Temporal server: one program, one file, nothing to set up (OPS-2).

Its files in the state directory:

    temporal.db             every session; survives a `kill -9` of the server and a power failure
    temporal.db-wal, -shm   its write-ahead log, and SQLite's index of it; belong to the database while it is open
    temporal.db.lock        locked as long as the server lives
    temporal.db.version     the version of the server that wrote the database
    temporal.json           the server's address, for gateway and worker
    temporal.program        the program's version and options, so that it is asked only once
    temporal.loopback       the address of its Web UI, chosen at random
    logs/temporal.log       the server's log

Two servers on one database would both start and both write, without an error, so we lock it. The server inherits the
locked file, so the kernel releases the lock when the *server* ends, even if we die first. A server neither migrates a
database of another version nor reports that it can't read it, so we record the version beside it.

The program has no access control, so nothing of it may be within reach of web pages (docs/decisions/0059). gRPC needs
HTTP/2, which no page speaks to a port without TLS. The HTTP API can't be switched off, so it accepts no host. What
else speaks HTTP, its Web UI and its metrics, listens on ports that browsers refuse to connect to; the Web UI also has
an address of its own. People use the Web UI through the gateway.

Its database has a write-ahead log: a rollback journal would need four times as many disk syncs (docs/decisions/0052).
Each transaction is appended to `temporal.db-wal`, and SQLite copies pages to the database from time to time without
shortening the log. So text that has been deleted from the database can still be in the log. We shorten it every few
seconds. That covers every deletion: ours, those after Temporal's retention, and those in the Web UI, some of which the
server carries out after it has confirmed them.
"""

import asyncio
import fcntl
import os
import re
import shutil
import sqlite3
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE
from types import TracebackType
from typing import Self

from pydantic import ValidationError

from turnkeeper.models.errors import TurnkeeperError
from turnkeeper.models.limits import ATTRIBUTE_TYPES
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.wire import Frozen
from turnkeeper.ops.local.processes import (
    LOOPBACK,
    Program,
    is_free,
    random_loopback_address,
    reserved_blocked_port,
    reserved_port,
    server_environment,
)
from turnkeeper.stores.private_files import UMASK, close_to_others, make_private_folder, write_private
from turnkeeper.stores.temporal.endpoint import (
    DEFAULT_NAMESPACE,
    WEB_UI_PATH,
    EmbeddedServer,
    TemporalAccessError,
    find_endpoint,
)

CALL_SECONDS = 30.0

HIDE_NEWS = "--ui-disable-news-fetch"
"""The option of newer servers without which their Web UI asks for news on the Internet."""

MIN_PROGRAM_BYTES = 10_000_000
"""A smaller file may be a script that runs another program, which can change while the script does not."""

INSTALL = "install it with `pip install 'turnkeeper[local]'`"


class NoBinaryError(TurnkeeperError):
    """There is no usable `temporal` program; the message is a sentence that says how to get one."""


class ProgramFacts(Frozen):
    """The version and features that a program has reported, and the state of its file then."""

    path: str
    size: int
    modified_ns: int
    version: str
    """Version of the server in it."""
    hides_news: bool

    @classmethod
    def recorded(cls, record: Path) -> "ProgramFacts | None":
        """Return what was recorded last; `None`: nothing that can be read."""
        try:
            return cls.model_validate_json(record.read_text())
        except (OSError, ValidationError):
            return None

    def describes(self, binary: Path, state: os.stat_result) -> bool:
        """Return whether these are the facts of `binary` with its file in this state."""
        return (self.path, self.size, self.modified_ns) == (str(binary), state.st_size, state.st_mtime_ns)


async def read_program_facts(binary: Path, *, state_dir: Path) -> ProgramFacts:
    """Ask the program, or return what it said at the last start if its file is the same.

    Raises:
        NoBinaryError: It cannot be run, or does not print a version.
    """
    record = state_dir / "temporal.program"
    recorded, state = ProgramFacts.recorded(record), os.stat(binary)
    if recorded is not None and recorded.describes(binary, state):
        return recorded
    # Both at once: each starts the program, which takes a tenth of a second.
    version, hides_news = await asyncio.gather(server_version(binary), has_flag(binary, HIDE_NEWS))
    facts = ProgramFacts(
        path=str(binary), size=state.st_size, modified_ns=state.st_mtime_ns, version=version, hides_news=hides_news
    )
    if facts.size >= MIN_PROGRAM_BYTES:
        write_private(record, facts.model_dump_json())
    return facts


def find_binary(state_dir: Path) -> Path | None:
    """Return the `temporal` on PATH, else the one installed beside our Python, else one downloaded before."""
    on_path, beside_python = shutil.which("temporal"), Path(sys.executable).parent / "temporal"
    candidates = [*([Path(on_path)] if on_path else []), beside_python, *sorted(_download_dir(state_dir).glob("*"))]
    return next((candidate.absolute() for candidate in candidates if os.access(candidate, os.X_OK)), None)


async def find_or_download_binary(state_dir: Path) -> Path:
    """Return a `temporal` to run; if none is installed, the SDK downloads the one it is made for.

    Raises:
        NoBinaryError: None is installed, and none could be downloaded.
    """
    if binary := find_binary(state_dir):
        return binary
    # Imported only here: it loads the SDK's worker.
    from temporalio.testing import WorkflowEnvironment

    folder = _download_dir(state_dir)
    make_private_folder(folder)
    try:
        # The SDK downloads it only to start a server of its own.
        environment = await WorkflowEnvironment.start_local(download_dest_dir=str(folder))
        await environment.shutdown()
    except RuntimeError as error:
        raise NoBinaryError(f"No `temporal` program found, and the download failed ({error}): {INSTALL}.") from error
    if binary := find_binary(state_dir):
        return binary
    raise NoBinaryError(f"The download of `temporal` left no program in {folder}: {INSTALL}.")


async def server_version(binary: Path) -> str:
    """Return the version of the server that it contains, such as 1.32.0.

    Raises:
        NoBinaryError: It cannot be run, or does not print a version.
    """
    output = await _run_program(binary, "--version")
    version = re.search(r"Server ([\w.-]+)", output)
    if version is None:
        raise NoBinaryError(f"{binary} does not say which server it contains ({output.strip()!r:.100}): {INSTALL}.")
    return version[1]


async def has_flag(binary: Path, flag: str) -> bool:
    """Return whether the dev server of this version has `flag`. Raises `NoBinaryError`."""
    return flag in await _run_program(binary, "server", "start-dev", "--help")


async def _run_program(binary: Path, *arguments: str) -> str:
    try:
        process = await asyncio.create_subprocess_exec(binary, *arguments, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL)
        output, _ = await asyncio.wait_for(process.communicate(), CALL_SECONDS)
    except (OSError, TimeoutError) as error:
        raise NoBinaryError(f"{binary} cannot be run ({error}): {INSTALL}.") from error
    return output.decode(errors="replace")


def _download_dir(state_dir: Path) -> Path:
    return state_dir / "bin"


PRAGMAS: Mapping[str, str] = {
    "journal_mode": "wal",
    # Every commit is on the disk before the server confirms it, so an accepted prompt survives a power failure.
    "synchronous": "full",
    # Deleted rows are overwritten; otherwise their text would stay in the database's free pages.
    "secure_delete": "1",
}
"""For every connection that the server opens; it converts a database that has a rollback journal."""

TRUNCATION_SECONDS = 2.0
"""The time between two truncations."""

TRUNCATION_WAIT_SECONDS = 0.1
"""How long a truncation waits for transactions of the server. Meanwhile it can hold up their next write."""


async def keep_truncating(database: Path) -> None:
    """Truncate the log every `TRUNCATION_SECONDS`, unless it is empty, until cancelled."""
    while True:
        await asyncio.sleep(TRUNCATION_SECONDS)
        await asyncio.to_thread(_truncate_unless_empty, database)


def truncate(database: Path) -> bool:
    """Copy the log to the database and empty it; if no server has the database open, also remove it.

    Returns False if that was not possible now, since the server was busy, say. Another attempt does no harm.
    """
    # mode=rw: a missing database is not created.
    uri = f"{database.absolute().as_uri()}?mode=rw"
    try:
        with closing(sqlite3.connect(uri, uri=True, timeout=TRUNCATION_WAIT_SECONDS)) as connection:
            (is_busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.Error:
        return False
    return not is_busy


def _truncate_unless_empty(database: Path) -> None:
    with suppress(FileNotFoundError):
        if database.with_name(f"{database.name}-wal").stat().st_size:
            truncate(database)


START_SECONDS = 30.0
"""Timeout of a start, which takes 0.3 s on an idle machine."""

STOP_SECONDS = 10.0
"""Timeout of a stop, which takes about 1 s."""

POLL_SECONDS = 0.02

QUERIES: Mapping[str, str] = {"history.MaxBufferedQueryCount": "100"}
"""How many queries of one session may wait for its running workflow task. With the default of 1, the second of two
polling clients is refused and waits up to 3 s for its retries (measured)."""

QUICK_DISPATCH: Mapping[str, str] = {
    f"history.{queue}ProcessorMaxPoll{scope}RPS": limit
    for queue in ("transfer", "timer", "visibility")
    for scope, limit in (("", "5000"), ("Host", "10000"))
}
"""A dev server has a single shard and reads its queues 20 times a second, so every step would wait for a 50 ms tick
(measured: a turn with one activity takes 50 ms, and 10 ms with these values)."""


CLOSED: Mapping[str, str] = {"frontend.httpAllowedHosts": r'["\n"]'}
"""The HTTP API answers no host: it has no authentication, and would start and signal sessions for any web page.

No request can have this host. An empty list would allow requests with an empty one (measured).
"""


class DevServerError(TurnkeeperError):
    """The embedded server cannot run; the message is a sentence that says why, and how to fix it."""


class DevServer:
    """The embedded server of a state directory; as an async context manager, it runs inside the block."""

    def __init__(
        self,
        state_dir: Path,
        *,
        in_memory: bool = False,
        port: int = 0,
        ui_port: int | None = 0,
        namespace: str = DEFAULT_NAMESPACE,
        prepares: bool = True,
        dynamic_config: Mapping[str, str] | None = None,
    ) -> None:
        """Ports: 0 means any free one; `ui_port` None: no Web UI. `in_memory`: sessions end with the server.

        `prepares`: a start waits for search attributes and retention; otherwise for connections only.
        `dynamic_config` is added to ours: Temporal's own names, values as JSON.
        """
        self.state_dir = state_dir
        self.database = None if in_memory else state_dir / "temporal.db"
        self.notes: list[str] = []
        """One sentence for each port that was busy."""
        self._preferred_ports = (port, ui_port)
        self._ports: tuple[int, int | None] = (0, None)
        self._ui_address = LOOPBACK
        self._reservations = ExitStack()
        """Reservations of the chosen ports, until the server listens there."""
        self._namespace = namespace
        self._prepares = prepares
        self._dynamic_config = {**QUICK_DISPATCH, **QUERIES, **CLOSED, **(dynamic_config or {})}
        self._program: Program | None = None
        self._truncation: asyncio.Task[None] | None = None

    @classmethod
    def for_settings(cls, settings: Settings) -> Self:
        """Return the server of a stack, whose worker sets the retention."""
        return cls(
            settings.state_dir,
            port=settings.temporal_port,
            ui_port=settings.temporal_ui_port,
            namespace=find_endpoint(settings).namespace,
            prepares=False,
        )

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def address(self) -> str:
        """The address for clients; set by the first start and kept by every restart."""
        return f"{LOOPBACK}:{self._ports[0]}"

    @property
    def ui_url(self) -> str | None:
        """Where the gateway reaches the Web UI; browsers can't."""
        return f"http://{self._ui_address}:{self._ports[1]}" if self._ports[1] else None

    @property
    def pid(self) -> int | None:
        return self._program.pid if self._program else None

    @property
    def has_worked(self) -> bool:
        """Always False: we don't know."""
        return False

    async def start(self) -> None:
        """Launch the server and wait until it is ready. Raises `DevServerError` as both do."""
        await self.launch()
        await self.wait_until_ready()

    async def launch(self) -> None:
        """Start the server's process, and write its address to `temporal.json`; it answers a moment later.

        Raises:
            DevServerError: There is no `temporal` program, or the database is in use or of another version.
        """
        make_private_folder(self.state_dir)
        close_to_others(self.state_dir)
        try:
            binary = await find_or_download_binary(self.state_dir)
            await self._launch(binary)
        except NoBinaryError as error:
            raise DevServerError(str(error)) from error
        self._record_address()

    async def wait_until_ready(self) -> None:
        """Wait until the server accepts connections and, if it `prepares`, has search attributes and retention.

        Raises:
            DevServerError: The server does not become ready, and was stopped.
        """
        try:
            with self._reservations:
                await self._in_time(self._connect)
            if self._prepares:
                await self._in_time(self._prepare)
        except BaseException:
            await self.stop()
            raise
        if self.database is not None and self._truncation is None:
            self._truncation = asyncio.create_task(keep_truncating(self.database))

    async def wait(self) -> int:
        return await self._program.wait() if self._program else 0

    async def stop(self, *, seconds: float = STOP_SECONDS) -> None:
        """Stop the server and remove its address; the database is a single file then."""
        if self._truncation is not None:
            self._truncation.cancel()
            self._truncation = None
        if self._program is not None:
            EmbeddedServer.file(self.state_dir).unlink(missing_ok=True)
            await self._program.stop(seconds=seconds)
        if self._program is not None and self.database is not None:
            await asyncio.to_thread(truncate, self.database)

    async def _launch(self, binary: Path) -> None:
        with self._database_lock() as lock:
            facts = await read_program_facts(binary, state_dir=self.state_dir)
            self._check_version(binary, facts.version)
            self._ui_address = _own_address(self.state_dir / "temporal.loopback")
            self._choose_ports()
            log = self.state_dir / "logs" / "temporal.log"
            environment = server_environment(os.environ)
            command = self._command(binary, hides_news=facts.hides_news)
            program = Program(command, log=log, env=environment, umask=UMASK)
            await program.start(keep_open=lock)
            self._program = program

    @contextmanager
    def _database_lock(self) -> Iterator[list[int]]:
        """Yield the descriptor of the locked file, which stays locked as long as any process has it open."""
        if self.database is None:
            yield []
            return
        lock = _take_lock(self.database)
        if lock is None:
            raise DevServerError(
                f"{self.database} is in use{self._other_server()}: stop that server, or set another state_dir."
            )
        try:
            yield [lock]
        finally:
            os.close(lock)

    def _other_server(self) -> str:
        other = EmbeddedServer.recorded(self.state_dir)
        return f" by the Temporal server at {other.address} (process {other.pid})" if other else ""

    def _check_version(self, binary: Path, version: str) -> None:
        if self.database is None:
            return
        record = self.database.with_name(f"{self.database.name}.version")
        last_version = record.read_text().strip() if self.database.exists() and record.exists() else version
        if last_version != version:
            raise DevServerError(
                f"{self.database} was written by Temporal server {last_version}, but {binary} contains {version}, "
                f"which may not be able to read it: put a `temporal` with server {last_version} on PATH, or set "
                "another state_dir."
            )
        write_private(record, version + "\n")

    def _choose_ports(self) -> None:
        """Choose the ports at the first start; after a restart, gateway and workers use the same ones."""
        port, ui_port = self._preferred_ports
        if not self._ports[0]:
            if ui_port is not None:
                ui_port = self._choose_ui_port(ui_port)
            self._ports = (self._choose_port("Temporal", port), ui_port)
        elif not is_free(self._ports[0]):
            raise DevServerError(
                f"Port {self._ports[0]}, which the Temporal server used before, is in use: stop the program that "
                "listens there."
            )

    def _choose_ui_port(self, preferred: int) -> int:
        if not preferred:
            return self._reservations.enter_context(reserved_blocked_port(self._ui_address))
        return self._choose_port("Temporal's Web UI", preferred, host=self._ui_address)

    def _choose_port(self, service: str, preferred: int, *, host: str = LOOPBACK) -> int:
        port = self._reservations.enter_context(reserved_port(preferred, host))
        if preferred and port != preferred:
            self.notes.append(f"Port {preferred} is in use, so {service} listens on {port}.")
        return port

    def _command(self, binary: Path, *, hides_news: bool) -> list[str]:
        port, ui_port = self._ports
        command = [str(binary), "server", "start-dev", "--ip", LOOPBACK, "--port", str(port), "--log-level", "warn"]
        command += ["--namespace", self._namespace]
        for option in ("--http-port", "--metrics-port"):
            command += [option, str(self._reservations.enter_context(reserved_blocked_port()))]
        command += ["--headless"] if ui_port is None else ["--ui-ip", self._ui_address, "--ui-port", str(ui_port)]
        if ui_port is not None:
            command += ["--ui-public-path", WEB_UI_PATH]
        if ui_port is not None and hides_news:
            command += [HIDE_NEWS]
        if self.database is not None:
            command += ["--db-filename", str(self.database)]
            for name, value in PRAGMAS.items():
                command += ["--sqlite-pragma", f"{name}={value}"]
        for name, kind in ATTRIBUTE_TYPES.items():
            command += ["--search-attribute", f"{name}={kind}"]
        for name, value in self._dynamic_config.items():
            command += ["--dynamic-config-value", f"{name}={value}"]
        return command

    async def _in_time(self, attempt: Callable[[], Awaitable[None]]) -> None:
        deadline = asyncio.get_running_loop().time() + START_SECONDS
        while True:
            try:
                return await attempt()
            except (OSError, RuntimeError, TemporalAccessError) as error:
                if self.pid is None:
                    last_output = self._program.last_output() if self._program else ""
                    raise DevServerError(f"The Temporal server stopped while starting: {last_output}.") from error
                if asyncio.get_running_loop().time() > deadline:
                    message = f"The Temporal server is not ready after {START_SECONDS:.0f} s: {error}."
                    raise DevServerError(message) from error
            await asyncio.sleep(POLL_SECONDS)

    async def _connect(self) -> None:
        _, writer = await asyncio.open_connection(LOOPBACK, self._ports[0])
        writer.close()

    async def _prepare(self) -> None:
        # Imported only here: they load the SDK, and `turnkeeper up` starts in less time without it.
        from temporalio.client import Client

        from turnkeeper.stores.temporal.connection import prepare_embedded

        await prepare_embedded(await Client.connect(self.address, namespace=self._namespace))

    def _record_address(self) -> None:
        record = EmbeddedServer(address=self.address, ui_url=self.ui_url, pid=self.pid or 0)
        file = EmbeddedServer.file(self.state_dir)
        new_file = file.with_suffix(".new")
        write_private(new_file, record.model_dump_json())
        new_file.replace(file)


def _own_address(record: Path) -> str:
    """Return the address in the file `record`; a new random one, which is recorded, unless there is one to use."""
    with suppress(OSError):
        address = record.read_text().strip()
        if address.startswith("127.") and is_free(0, address):
            return address
    address = random_loopback_address()
    write_private(record, address)
    return address


def is_in_use(database: Path) -> bool:
    if not database.exists():
        return False
    lock = _take_lock(database)
    if lock is not None:
        os.close(lock)
    return lock is None


def _take_lock(database: Path) -> int | None:
    """Return the descriptor of the locked lock file; None if another process has locked it."""
    descriptor = os.open(f"{database}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
