"""The embedded Temporal server: one program, one file, nothing to set up (OPS-2).

Theory of operation. Everything it keeps is in the state directory:

    temporal.db             every session; survives a `kill -9` of the server
    temporal.db.lock        locked for as long as the server lives
    temporal.db.version     the server that wrote the file
    temporal.json           where the server listens now; gateway and worker read it
    logs/temporal.log       what the server says

Two servers on one file both start and both write, without an error: so the file is locked. The lock is taken here and
handed down as an open file, so that the kernel holds it for exactly as long as the *server* lives, whatever happens
to us. And a server neither migrates the file of another version nor says that it can't read it: so its version stands
beside it.
"""

import asyncio
import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from temporalio.client import Client
from temporalio.service import RPCError

from turnkeeper.models.settings.settings import Settings
from turnkeeper.ops.local.environments import server_environment
from turnkeeper.ops.local.ports import LOOPBACK, is_free, usable_port
from turnkeeper.ops.local.processes import Program
from turnkeeper.ops.local.temporal_binary import NoBinaryError, find_or_download_binary, knows_flag, server_version
from turnkeeper.stores.private_files import UMASK, close_to_others, make_private_folder, write_private
from turnkeeper.workflows.hosting.connection import (
    DEFAULT_NAMESPACE,
    EmbeddedServer,
    TemporalAccessError,
    find_endpoint,
    prepare,
    set_retention,
)

START_SECONDS = 30.0
"""Bound of a start; on an idle machine it takes 0.3 s."""

STOP_SECONDS = 10.0
"""Bound of a stop; it takes about 1 s."""

POLL_SECONDS = 0.02

QUERIES: Mapping[str, str] = {"history.MaxBufferedQueryCount": "100"}
"""How many queries of one session may wait for a workflow task that is under way. By default it is one: of two clients
that poll, one is refused and waits for its next try, in total up to 3 s (measured)."""

QUICK_DISPATCH: Mapping[str, str] = {
    f"history.{queue}ProcessorMaxPoll{scope}RPS": limit
    for queue in ("transfer", "timer", "visibility")
    for scope, limit in (("", "5000"), ("Host", "10000"))
}
"""A dev server has a single shard, and reads its queues 20 times a second: every step would wait for a 50 ms tick
(measured: a turn with one activity takes 50 ms, with these values 10 ms)."""


class DevServerError(Exception):
    """The embedded server cannot run; the message is a sentence that says why, and the mend."""


class DevServer:
    """The embedded server of a state directory; as an asynchronous context manager, started and stopped."""

    def __init__(
        self,
        state_dir: Path,
        *,
        in_memory: bool = False,
        port: int = 0,
        ui_port: int | None = 0,
        namespace: str = DEFAULT_NAMESPACE,
        dynamic_config: Mapping[str, str] | None = None,
    ) -> None:
        """Keep what to start. Ports: 0 takes any free one; `ui_port` None: no Web UI. `in_memory`: nothing is kept.

        `dynamic_config` is added to `QUICK_DISPATCH` and `QUERIES`: Temporal's own names, values as JSON.
        """
        self.state_dir = state_dir
        self.database = None if in_memory else state_dir / "temporal.db"
        self.notes: list[str] = []
        """What the start decided otherwise than asked, a sentence each."""
        self._wanted = (port, ui_port)
        self._ports: tuple[int, int | None] = (0, None)
        self._namespace = namespace
        self._dynamic_config = {**QUICK_DISPATCH, **QUERIES, **(dynamic_config or {})}
        self._program: Program | None = None

    @classmethod
    def for_settings(cls, settings: Settings) -> Self:
        return cls(
            settings.state_dir,
            port=settings.temporal_port,
            ui_port=settings.temporal_ui_port,
            namespace=find_endpoint(settings).namespace,
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
        """Where clients connect to; known from the first start on, and the same after a restart."""
        return f"{LOOPBACK}:{self._ports[0]}"

    @property
    def ui_url(self) -> str | None:
        return f"http://{LOOPBACK}:{self._ports[1]}" if self._ports[1] else None

    @property
    def pid(self) -> int | None:
        return self._program.pid if self._program else None

    @property
    def has_worked(self) -> bool:
        """False: that isn't known."""
        return False

    async def start(self) -> None:
        """Have the server running, its namespace ready for sessions, and its address in `temporal.json`.

        Raises:
            DevServerError: No binary, the file is in use or of another version, or the server does not come up.
        """
        make_private_folder(self.state_dir)
        close_to_others(self.state_dir)
        try:
            binary = await find_or_download_binary(self.state_dir)
            await self._launch(binary)
        except NoBinaryError as error:
            raise DevServerError(str(error)) from error
        try:
            await self._make_ready()
        except BaseException:
            await self.stop()
            raise

    async def wait(self) -> int:
        return await self._program.wait() if self._program else 0

    async def stop(self, *, seconds: float = STOP_SECONDS) -> None:
        """Have the server ended, and nobody sent to its address any more."""
        if self._program is not None:
            EmbeddedServer.file(self.state_dir).unlink(missing_ok=True)
            await self._program.stop(seconds=seconds)

    async def _launch(self, binary: Path) -> None:
        with self._locked() as lock:
            self._check_version(binary, await server_version(binary))
            self._settle_ports()
            log = self.state_dir / "logs" / "temporal.log"
            environment = server_environment(os.environ)
            program = Program(await self._command(binary), log=log, env=environment, umask=UMASK)
            await program.start(keep_open=lock)
            self._program = program

    @contextmanager
    def _locked(self) -> Iterator[list[int]]:
        """Lend the locked file; from then on it stays locked as long as a process has it open."""
        if self.database is None:
            yield []
            return
        lock = _take_lock(self.database)
        if lock is None:
            raise DevServerError(
                f"{self.database} is in use{self._by_whom()}: stop that one, or set another state_dir."
            )
        try:
            yield [lock]
        finally:
            os.close(lock)

    def _by_whom(self) -> str:
        other = EmbeddedServer.recorded(self.state_dir)
        return f" by the Temporal server at {other.address} (process {other.pid})" if other else ""

    def _check_version(self, binary: Path, version: str) -> None:
        if self.database is None:
            return
        record = self.database.with_name(f"{self.database.name}.version")
        wrote = record.read_text().strip() if self.database.exists() and record.exists() else version
        if wrote != version:
            raise DevServerError(
                f"{self.database} was written by Temporal server {wrote}, and {binary} is {version}, which may not "
                f"be able to read it: put a `temporal` with server {wrote} on PATH, or set another state_dir."
            )
        write_private(record, version + "\n")

    def _settle_ports(self) -> None:
        """Choose the ports, once: restarted, it must listen where gateway and workers look for it."""
        wanted, wanted_ui = self._wanted
        if not self._ports[0]:
            ui_port = None if wanted_ui is None else self._choose_port("its Web UI", wanted_ui)
            self._ports = (self._choose_port("Temporal", wanted), ui_port)
        elif not is_free(self._ports[0]):
            raise DevServerError(
                f"Port {self._ports[0]}, where the server was, is in use: stop the program that listens there."
            )

    def _choose_port(self, what: str, wanted: int) -> int:
        port = usable_port(wanted)
        if wanted and port != wanted:
            self.notes.append(f"Port {wanted} is in use, so {what} listens on {port}.")
        return port

    async def _command(self, binary: Path) -> list[str]:
        port, ui_port = self._ports
        command = [str(binary), "server", "start-dev", "--ip", LOOPBACK, "--port", str(port), "--log-level", "warn"]
        command += ["--namespace", self._namespace]
        command += ["--headless"] if ui_port is None else ["--ui-port", str(ui_port)]
        if ui_port is not None and await knows_flag(binary, "--ui-disable-news-fetch"):
            command += ["--ui-disable-news-fetch"]
        if self.database is not None:
            # A deleted session's text would otherwise stay in the file's free pages.
            command += ["--db-filename", str(self.database), "--sqlite-pragma", "secure_delete=1"]
        for name, value in self._dynamic_config.items():
            command += ["--dynamic-config-value", f"{name}={value}"]
        return command

    async def _make_ready(self) -> None:
        client = await Client.connect(self.address, namespace=self._namespace, lazy=True)
        deadline = asyncio.get_running_loop().time() + START_SECONDS
        while (problem := await self._unready(client)) is not None:
            if self.pid is None:
                last_words = self._program.last_words() if self._program else ""
                raise DevServerError(f"The Temporal server ended at its start: {last_words}.")
            if asyncio.get_running_loop().time() > deadline:
                raise DevServerError(f"The Temporal server is not ready after {START_SECONDS:.0f} s: {problem}.")
            await asyncio.sleep(POLL_SECONDS)
        self._record_address()

    async def _unready(self, client: Client) -> Exception | None:
        """Prepare the namespace; return what is still in the way."""
        try:
            await set_retention(client)
            await prepare(client)
        except (RuntimeError, RPCError, TemporalAccessError) as error:
            return error
        return None

    def _record_address(self) -> None:
        record = EmbeddedServer(address=self.address, ui_url=self.ui_url, pid=self.pid or 0)
        file = EmbeddedServer.file(self.state_dir)
        half_written = file.with_suffix(".new")
        write_private(half_written, record.model_dump_json())
        half_written.replace(file)


def is_in_use(database: Path) -> bool:
    if not database.exists():
        return False
    lock = _take_lock(database)
    if lock is not None:
        os.close(lock)
    return lock is None


def _take_lock(database: Path) -> int | None:
    """Return the descriptor of the locked lock file; None: another process has it."""
    descriptor = os.open(f"{database}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
