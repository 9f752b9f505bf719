"""Partial output over a socket of each worker, for workers and gateways on one machine (AGT-5).

A worker listens on a Unix socket in a folder of `state_dir`; where there are none, on a port of
loopback that a file in this folder names with a token. A gateway looks for workers while it follows a session, keeps
one connection to each of them, and names there the sessions that it follows. A line of JSON per message:

gateway → worker   `{"follow": ID}`, `{"leave": ID}`
worker → gateway   `{"id": ID, "growth": {...}}`, what has grown since the session's last line of this connection
                   `{"id": ID, "progress": {...}}`, how far a running tool call is

A worker makes no snapshot of an answer that nobody follows. Who follows it later gets all of it so far. To a slow
gateway it sends only what has grown once that can be read: at most one snapshot of each session waits. Lines of one
connection are in order, and `fresh` ones begin anew, so a gateway shows a text or none, but never a wrong one.

A worker that dies leaves its file; a connection to it is refused, and then the file is removed, by a gateway or by the
next worker that starts. That is never a new worker's, since a file gets its name once the worker listens.
"""

import asyncio
import hashlib
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.transcript.partial_output import (
    CallProgress,
    LiveNews,
    PartialGrowth,
    PartialOutput,
    PartialTag,
    growth,
    with_growth,
)
from turnkeeper.models.wire import Frozen
from turnkeeper.stores.partials.carrier import LiveSnapshot, PartialCarrier, PublishedAnswer
from turnkeeper.stores.private_files import make_private_folder, write_private
from turnkeeper.stores.waiting import cancel_until_done

FOLDER = "partials"
"""The folder of sockets in `state_dir`."""

SOCKET, PORT, NEW = ".sock", ".port", ".temp"
"""Suffixes of the files in it. What is new can't be connected yet. They are equally long: a path that can be bound can
be connected too."""

SCAN_SECONDS = 0.25
"""Between two searches for new workers, while a session is followed."""

RETRY_SECONDS = 1.0
"""Pause before a worker is connected again that can't be read, such as one of another version."""

ANSWER_SECONDS = 2.0
"""Timeout of connecting."""

MAX_LINE_BYTES = 1024 * 1024
"""A line has a snapshot at most, of 64 KB."""

LOOPBACK = "127.0.0.1"

_log = logging.getLogger(__name__)


class Follow(Frozen):
    """A gateway's request: one of the two."""

    follow: str | None = None
    leave: str | None = None


class SessionNews(Frozen):
    """A change in the session `id`: the growth of an answer, or the progress of a tool call."""

    id: str
    growth: PartialGrowth | None = None
    progress: CallProgress | None = None

    @property
    def line(self) -> bytes:
        return self.model_dump_json(exclude_none=True).encode() + b"\n"


class Port(Frozen):
    """A worker's port on loopback. Both sides prove that they have read the file."""

    port: int
    token: str
    answer: str


class SocketCarrier(PartialCarrier):
    """Carries growths over the sockets in one folder."""

    min_pause = 0.08

    def __init__(self, state_dir: Path, *, namespace: str, task_queue: str) -> None:
        """Installations with other names may share the folder."""
        super().__init__()
        self._folder = state_dir / FOLDER
        self._prefix = hashlib.sha256(f"{namespace}\n{task_queue}".encode()).hexdigest()[:8]
        # The worker's side
        self._is_listening = False
        self._starting: asyncio.Task[None] | None = None
        self._server: asyncio.Server | None = None
        self._file: Path | None = None
        self._gateways: set[_Gateway] = set()
        self._answers: dict[str, PublishedAnswer] = {}
        """The newest attempt of each session whose answer is being written."""
        # The gateway's side
        self._workers: dict[Path, _Worker] = {}
        self._unreadable: set[Path] = set()
        self._scanning: asyncio.Task[None] | None = None
        self._has_followers = asyncio.Event()
        self.followed: set[WorkflowId] = set()

    async def __aexit__(self, *_: object) -> None:
        await cancel_until_done([self._starting] if self._starting else [])
        if self._file:
            self._file.unlink(missing_ok=True)
        if self._server:
            self._server.close()
        for gateway in self._gateways:
            gateway.writer.close()
        await super().__aexit__()
        tasks = [gateway.sending for gateway in self._gateways]
        tasks += [worker.reading for worker in self._workers.values() if worker.reading]
        await cancel_until_done([*tasks, *([self._scanning] if self._scanning else [])])

    def _files(self) -> set[Path]:
        """Return the files of all workers, dead ones too."""
        return {file for file in self._folder.glob(f"{self._prefix}-*") if file.suffix in (SOCKET, PORT)}

    # ---- the worker's side

    async def listen(self) -> None:
        """Listen for gateways. If that fails, it is logged, and nobody sees partial output of this worker."""
        if self._is_listening:
            return
        self._is_listening = True
        try:
            for folder in (self._folder.parent, self._folder):
                make_private_folder(folder)
            self._folder.chmod(0o700)
            name = self._folder / f"{self._prefix}-{secrets.token_hex(4)}"
            try:
                await self._listen_at_socket(name)
            except (OSError, AttributeError) as error:  # a path that is too long; no Unix sockets in this file system
                _log.debug("partial output goes through a port of loopback (%s)", error)
                await self._listen_at_port(name)
            await asyncio.gather(*(_Worker(file, self).remove_if_dead() for file in self._files() - {self._file}))
        except OSError as error:
            _log.warning("partial output is not shown: no socket in %s (%s)", self._folder, error.strerror)

    async def _listen_at_socket(self, name: Path) -> None:
        new = name.with_suffix(NEW)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as bound:
            try:
                bound.bind(str(new))
                new.chmod(0o600)
                bound.listen()
                self._file = new.rename(name.with_suffix(SOCKET))
                self._server = await asyncio.start_unix_server(self._serve, sock=bound.dup())
            except OSError:
                new.unlink(missing_ok=True)
                raise

    async def _listen_at_port(self, name: Path) -> None:
        port = Port(port=0, token=secrets.token_hex(16), answer=secrets.token_hex(16))

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    line = await reader.readline()
            except (TimeoutError, OSError, ValueError):
                line = b""
            if not secrets.compare_digest(line.strip(), port.token.encode()):
                writer.close()
                return
            writer.write(port.answer.encode() + b"\n")
            await self._serve(reader, writer)

        self._server = await asyncio.start_server(serve, LOOPBACK, 0)
        port = port.model_copy(update={"port": self._server.sockets[0].getsockname()[1]})
        write_private(name.with_suffix(NEW), port.model_dump_json())
        self._file = name.with_suffix(NEW).rename(name.with_suffix(PORT))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one gateway until it leaves."""
        gateway = _Gateway(writer)
        self._gateways.add(gateway)
        try:
            while line := await reader.readline():
                ask = Follow.model_validate_json(line)
                if ask.follow is not None:
                    gateway.follow(ask.follow)
                    if answer := self._answers.get(ask.follow):
                        answer.show()
                elif ask.leave is not None:
                    gateway.leave(ask.leave)
        except (OSError, ValueError) as error:  # `ValueError`: a gateway of another version
            _log.debug("a gateway is not served any more (%s)", type(error).__name__)
        finally:
            self._gateways.discard(gateway)
            gateway.sending.cancel()
            writer.close()

    def begin(self, workflow_id: WorkflowId, answer: PublishedAnswer) -> None:
        if not self._is_listening:
            self._starting = asyncio.create_task(self.listen())
        current = self._answers.get(workflow_id)
        if current is None or not current.tag.is_later_than(answer.tag):
            self._answers[workflow_id] = answer

    def is_followed(self, workflow_id: WorkflowId) -> bool:
        return any(workflow_id in gateway.last for gateway in self._gateways)

    def publish(self, workflow_id: WorkflowId, news: LiveNews, *, behind: Sequence[object] = ()) -> None:
        for gateway in self._gateways:
            gateway.send(workflow_id, news)

    def end(self, workflow_id: WorkflowId, tag: PartialTag) -> None:
        current = self._answers.get(workflow_id)
        if current is not None and not current.tag.is_later_than(tag):
            del self._answers[workflow_id]

    # ---- the gateway's side

    def obstacle(self) -> str | None:
        if self._files():
            return None
        return "no worker has a socket in the gateway's state_dir; elsewhere, set redis_url or partials=heartbeats"

    async def forget(self, workflow_id: WorkflowId) -> None:
        """Do nothing: only the running answer is in memory."""

    async def _keep_updated(self, workflow_id: WorkflowId, live: LiveSnapshot) -> None:
        self._scanning = self._scanning or asyncio.create_task(self._keep_scanning())
        self.followed.add(workflow_id)
        self._has_followers.set()
        for worker in self._workers.values():
            worker.follow(workflow_id)
        try:
            await asyncio.Event().wait()
        finally:
            # Unless somebody has followed it again meanwhile.
            if self._followed_sessions.get(workflow_id) in (None, live):
                self.followed.discard(workflow_id)
                for worker in self._workers.values():
                    worker.leave(workflow_id)
                if not self.followed:
                    self._has_followers.clear()

    async def _keep_scanning(self) -> None:
        """Keep a connection to each worker of the folder, from the first followed session on."""
        while True:
            await self._has_followers.wait()
            self._workers = {file: worker for file, worker in self._workers.items() if not worker.is_gone}
            files = self._files()
            self._unreadable &= files
            for file in files - self._workers.keys():
                self._workers[file] = _Worker(file, self)
                self._workers[file].start()
            await asyncio.sleep(SCAN_SECONDS)

    def note_unreadable(self, file: Path, error: Exception) -> None:
        """Log why a worker's file can't be read, once for each file."""
        if file not in self._unreadable:
            _log.warning("the partial output of a worker can't be read (%s)", type(error).__name__)
        self._unreadable.add(file)

    def receive(self, workflow_id: WorkflowId, news: LiveNews) -> None:
        """Show a snapshot or a call's progress to those who follow the session."""
        if live := self._followed_sessions.get(workflow_id):
            live.update(news)


class _Gateway:
    """A connection at the worker's side."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.last: dict[str, PartialOutput | None] = {}
        """The last output sent for each followed session."""
        self._unsent: dict[tuple[str, str], LiveNews] = {}
        """By session, and the call whose progress it is."""
        self._has_unsent = asyncio.Event()
        self.sending = asyncio.create_task(self._keep_sending())

    def follow(self, workflow_id: str) -> None:
        self.last[workflow_id] = None

    def leave(self, workflow_id: str) -> None:
        self.last.pop(workflow_id, None)

    def send(self, workflow_id: str, news: LiveNews) -> None:
        """Send it soon, in place of what is unsent of the same; nothing if the session is not followed."""
        key = (workflow_id, news.call_id if isinstance(news, CallProgress) else "")
        unsent = self._unsent.get(key)
        is_outdated = (
            isinstance(news, PartialOutput) and isinstance(unsent, PartialOutput) and not news.supersedes(unsent)
        )
        if workflow_id in self.last and not is_outdated:
            self._unsent[key] = news
            self._has_unsent.set()

    async def _keep_sending(self) -> None:
        with suppress(OSError):
            while True:
                await self._has_unsent.wait()
                self._has_unsent.clear()
                unsent, self._unsent = self._unsent, {}
                for (workflow_id, _), news in unsent.items():
                    if line := self._line(workflow_id, news):
                        self.writer.write(line)
                await self.writer.drain()

    def _line(self, workflow_id: str, snapshot: LiveNews) -> bytes | None:
        """Return the line that turns what was sent last into `snapshot`; `None` if there is nothing new."""
        if workflow_id not in self.last:
            return None
        if isinstance(snapshot, CallProgress):
            return SessionNews(id=workflow_id, progress=snapshot).line
        last = self.last[workflow_id]
        if last is not None and not snapshot.supersedes(last):
            return None
        # What a snapshot has dropped at its start, the gateway drops with a fresh one: its copy is bounded too.
        is_cut = last is not None and any(
            old.omitted != new.omitted for old, new in zip(last.parts, snapshot.parts, strict=False)
        )
        grown = growth(None if is_cut else last, snapshot)
        self.last[workflow_id] = snapshot
        return SessionNews(id=workflow_id, growth=grown).line if grown else None


class _Worker:
    """A connection at the gateway's side."""

    def __init__(self, file: Path, carrier: SocketCarrier) -> None:
        self._file = file
        self._carrier = carrier
        self._writer: asyncio.StreamWriter | None = None
        self._outputs: dict[str, PartialOutput | None] = {}
        """The latest output of this worker for each followed session."""
        self.reading: asyncio.Task[None] | None = None

    @property
    def is_gone(self) -> bool:
        return self.reading is not None and self.reading.done()

    def start(self) -> None:
        self.reading = asyncio.create_task(self._read())

    async def remove_if_dead(self) -> None:
        """Remove the file if no worker listens there."""
        with suppress(OSError, ValueError):
            async with self._connected():
                pass

    def follow(self, workflow_id: WorkflowId) -> None:
        if self._writer:
            self._outputs[workflow_id] = None
            self._ask(self._writer, Follow(follow=workflow_id))

    def leave(self, workflow_id: WorkflowId) -> None:
        if self._writer and workflow_id in self._outputs:
            del self._outputs[workflow_id]
            self._ask(self._writer, Follow(leave=workflow_id))

    def _ask(self, writer: asyncio.StreamWriter, ask: Follow) -> None:
        writer.write(ask.model_dump_json(exclude_none=True).encode() + b"\n")

    async def _read(self) -> None:
        """Read until the worker is gone. What can't be read is logged, and read again after a pause."""
        try:
            await self._read_to_end()
        except (OSError, ValueError) as error:  # `ValueError`: of another version
            if not isinstance(error, ConnectionError):  # else its worker died now
                self._carrier.note_unreadable(self._file, error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _read_to_end(self) -> None:
        async with self._connected() as connection:
            if connection is None:
                return
            reader, self._writer = connection
            try:
                for workflow_id in self._carrier.followed:
                    self.follow(workflow_id)
                while line := await reader.readline():
                    self._receive(line)
            finally:
                self._writer = None

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter] | None]:
        """Yield a connection; `None` if the worker is dead, whose file is then removed.

        Raises `OSError`, or `ValueError` for a file of another version.
        """
        try:
            port = Port.model_validate_json(self._file.read_bytes()) if self._file.suffix == PORT else None
            async with asyncio.timeout(ANSWER_SECONDS):
                if port is None:
                    reader, writer = await asyncio.open_unix_connection(str(self._file), limit=MAX_LINE_BYTES)
                else:
                    reader, writer = await asyncio.open_connection(LOOPBACK, port.port, limit=MAX_LINE_BYTES)
        except (ConnectionRefusedError, FileNotFoundError):
            self._file.unlink(missing_ok=True)
            yield None
            return
        try:
            if port is not None:
                writer.write(port.token.encode() + b"\n")
                async with asyncio.timeout(ANSWER_SECONDS):
                    answer = await reader.readline()
                if answer.strip() != port.answer.encode():  # another program has this port
                    self._file.unlink(missing_ok=True)
                    yield None
                    return
            yield reader, writer
        finally:
            writer.close()

    def _receive(self, line: bytes) -> None:
        news = SessionNews.model_validate_json(line)
        if news.id not in self._outputs:
            return  # it was left meanwhile
        if news.progress:
            self._carrier.receive(WorkflowId(news.id), news.progress)
        if news.growth:
            output = self._outputs[news.id] = with_growth(self._outputs[news.id], news.growth)
            if output is not None:
                self._carrier.receive(WorkflowId(news.id), output)
