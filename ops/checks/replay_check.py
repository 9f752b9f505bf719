"""`turnkeeper replay-check`: replays sessions with the current code before a deploy (OPS-9, SES-19).

A session is one workflow id with its chain of runs. Each run is replayed (`ops/checks/run_replayer.py`), from a file or
from Temporal. Histories are read one by one, newest run first, and not kept, so that memory does not limit the number
of sessions. Every run gets a `Finding`; a `Tally` counts them.
"""

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar

from google.protobuf.json_format import ParseError
from temporalio.client import Client, WorkflowHistory
from temporalio.service import RPCError, RPCStatusCode

from turnkeeper.models.deletion import deleted_session
from turnkeeper.models.errors import TurnkeeperError
from turnkeeper.models.invalid_values import counted
from turnkeeper.ops.checks.first_difference import Difference
from turnkeeper.ops.checks.run_replayer import RunReplayer, run_replayer, shorten
from turnkeeper.workflows.agentic_ai_workflow import AgenticAIWorkflow
from turnkeeper.workflows.copy_session import CopySession
from turnkeeper.workflows.delete_session import DeleteSession
from turnkeeper.workflows.hosting.endpoint import TemporalAccessError

SESSION_TYPE, COPY_TYPE, DELETION_TYPE = (kind.__name__ for kind in (AgenticAIWorkflow, CopySession, DeleteSession))

MAX_CONCURRENT = 4
"""How many sessions are checked concurrently, which hides the latency of a remote server."""

RPC_TIMEOUT = timedelta(seconds=30)
"""Timeout of one call; a page of a history can have megabytes."""

EXPORT = "export it with `temporal workflow show --workflow-id ID --output json`"

Source = TypeVar("Source")

Verdict = Literal["replays", "differs", "not begun", "gone", "unusable"]


class UnusableHistoryError(TurnkeeperError):
    """The file is not the whole history of a session; the message says why."""


@dataclass(frozen=True)
class Finding:
    """The result of checking one run, file or session.

    "not begun": no worker has processed the run yet. "gone": it was deleted meanwhile. "unusable": it could not be
    checked. `difference` is None if no command can be named.
    """

    verdict: Verdict
    session: str = ""
    run: str = ""
    file: Path | None = None
    message: str = ""
    difference: Difference | None = None

    @property
    def is_problem(self) -> bool:
        """Whether the run does not replay or could not be checked."""
        return self.verdict not in ("replays", "not begun")

    def line(self) -> str:
        names = [f"session {self.session}" if self.session else "", f"run {self.run}" if self.run else ""]
        subject = ", ".join(name for name in names if name)
        if self.file:
            subject = f"{subject} ({self.file})" if subject else str(self.file)
        return f"{subject}: {self.message}"

    def to_json(self) -> str:
        difference = self.difference
        fields = {
            "session": self.session,
            "run": self.run,
            "file": self.file and str(self.file),
            "verdict": self.verdict,
            "told": self.message,
            "event": difference and difference.event,
            "recorded": difference and difference.in_history,
            "asked": difference and difference.in_code,
        }
        return json.dumps({name: value for name, value in fields.items() if value}, ensure_ascii=False)


@dataclass
class Tally:
    """Counts runs by verdict."""

    sessions: set[str] = field(default_factory=set)
    verdicts: Counter[Verdict] = field(default_factory=Counter)

    def add(self, finding: Finding) -> None:
        self.verdicts[finding.verdict] += 1
        if finding.verdict in ("replays", "differs", "not begun"):
            self.sessions.add(deleted_session(finding.session))

    @property
    def runs(self) -> int:
        return self.verdicts["replays"] + self.verdicts["differs"]

    @property
    def exit_code(self) -> int:
        """1 if a run differs; else 2 if something could not be checked; else 0."""
        return 1 if self.verdicts["differs"] else 2 if self.verdicts["unusable"] else 0

    def line(self) -> str:
        """Return the totals as a line of text.

        >>> tally = Tally()
        >>> tally.add(Finding("replays", "chat-1", "run-1"))
        >>> tally.add(Finding("gone", "chat-2"))
        >>> tally.line()
        '1 session, 1 run replayed, 0 differ, 1 gone'
        """
        rest = [f", {self.verdicts[verdict]} {verdict}" for verdict in _NOT_REPLAYED if self.verdicts[verdict]]
        sessions, runs = counted(len(self.sessions), "session"), counted(self.runs, "run")
        totals = f"{sessions}, {runs} replayed, {self.verdicts['differs']} differ"
        return totals + "".join(rest)

    def to_json(self) -> str:
        rest = {verdict.replace(" ", "_"): self.verdicts[verdict] for verdict in _NOT_REPLAYED}
        totals = {"sessions": len(self.sessions), "runs": self.runs, "differ": self.verdicts["differs"], **rest}
        return json.dumps(totals)


_NOT_REPLAYED: Sequence[Verdict] = ("not begun", "gone", "unusable")


# ---- histories from files


async def check_files(paths: Sequence[Path]) -> AsyncIterator[Finding]:
    """Replay exported histories; in a folder, every `*.json` below it."""

    async def files() -> AsyncIterator[Path]:
        for path in paths:
            for file in _files_of(path):
                yield file

    with run_replayer() as replayer:

        async def check(file: Path) -> list[Finding]:
            try:
                # In a thread: the SDK would take a blocked event loop for a deadlock of the workflow.
                history = await asyncio.to_thread(read_history, file)
            except UnusableHistoryError as error:
                return [Finding("unusable", file=file, message=str(error))]
            return [await _check_run(history, history.run_id, replayer, file=file)]

        async for finding in _check_concurrently(files(), check):
            yield finding


def _files_of(path: Path) -> Sequence[Path]:
    # A folder without any is returned itself; reading it reports the error.
    return sorted(path.rglob("*.json")) or [path] if path.is_dir() else [path]


def read_history(file: Path) -> WorkflowHistory:
    """Return the history in a file that Temporal's CLI, its Web UI or an SDK exported.

    Raises:
        UnusableHistoryError: The file is not the whole history of a session.
    """
    if file.is_dir():
        raise UnusableHistoryError(f"the folder has no *.json; {EXPORT}")
    try:
        history = WorkflowHistory.from_json(file.stem, file.read_text("utf-8-sig"))
    except OSError as error:
        raise UnusableHistoryError(f"cannot be read: {error.strerror or error}") from error
    except (ValueError, TypeError, AttributeError, KeyError, ParseError) as error:
        raise UnusableHistoryError(f"is not the history of a workflow ({shorten(str(error))}); {EXPORT}") from error
    _check_is_whole(history)
    _check_is_encoded(history)
    _check_type(history)
    started = history.events[0].workflow_execution_started_event_attributes
    return WorkflowHistory(started.workflow_id or file.stem, history.events)


def _check_is_whole(history: WorkflowHistory) -> None:
    ids = [event.event_id for event in history.events]
    has_start = bool(ids) and history.events[0].HasField("workflow_execution_started_event_attributes")
    if not has_start or ids != list(range(1, len(ids) + 1)):
        raise UnusableHistoryError(f"is not a whole history, from its first event on; {EXPORT}")


def _check_is_encoded(history: WorkflowHistory) -> None:
    payloads = history.events[0].workflow_execution_started_event_attributes.input.payloads
    if any(not payload.metadata for payload in payloads):
        raise UnusableHistoryError(f"has decoded payloads, which cannot be replayed; {EXPORT}")


def _check_type(history: WorkflowHistory) -> None:
    kind = history.events[0].workflow_execution_started_event_attributes.workflow_type.name
    if kind not in (SESSION_TYPE, COPY_TYPE, DELETION_TYPE):
        raise UnusableHistoryError(f"is the history of a workflow {kind!r}, not of a session ({SESSION_TYPE})")


# ---- histories from Temporal


async def check_sessions(
    client: Client, *, ids: Sequence[str] = (), closed: bool = False, limit: int | None = None
) -> AsyncIterator[Finding]:
    """Replay the sessions `ids` from Temporal; without `ids`, all open sessions, copies and deletions of sessions.

    `closed`: also those that have ended and are still retained. `limit`: the maximum, newest first.

    Raises:
        TemporalAccessError: A call of Temporal failed.
    """
    chains = _chains_of(ids) if ids else _list_chains(client, closed=closed, limit=limit)
    try:
        with run_replayer() as replayer:
            async for finding in _check_concurrently(chains, lambda chain: _check_chain(client, chain, replayer)):
                yield finding
    except RPCError as error:
        raise TemporalAccessError(f"Not every session could be read from Temporal: {error.message}.") from error


@dataclass(frozen=True)
class _Chain:
    """The runs of a session, by its newest one; None: the one that is newest when it is read."""

    session: str
    newest: str | None = None
    is_requested: bool = False


async def _chains_of(ids: Sequence[str]) -> AsyncIterator[_Chain]:
    for session in dict.fromkeys(ids):
        yield _Chain(session, is_requested=True)


async def _list_chains(client: Client, *, closed: bool, limit: int | None) -> AsyncIterator[_Chain]:
    # In a chain, every run but the newest continued as new.
    which = "ExecutionStatus != 'ContinuedAsNew'" if closed else "CloseTime IS NULL"
    others = f"WorkflowType IN ('{COPY_TYPE}', '{DELETION_TYPE}') AND CloseTime IS NULL"
    query = f"(WorkflowType = '{SESSION_TYPE}' AND {which}) OR ({others})"
    async for run in client.list_workflows(query, limit=limit, rpc_timeout=RPC_TIMEOUT):
        # An open session may continue as new before it is checked.
        yield _Chain(run.id, run.run_id if run.close_time else None)


async def _check_chain(client: Client, chain: _Chain, replayer: RunReplayer) -> list[Finding]:
    """Replay every run of the chain that is still retained, newest first."""
    findings: list[Finding] = []
    run = chain.newest or ""
    try:
        run = run or await _newest_run(client, chain.session)
        while run:
            handle = client.get_workflow_handle(chain.session, run_id=run)
            history = await handle.fetch_history(rpc_timeout=RPC_TIMEOUT)
            _check_type(history)
            findings.append(await _check_run(WorkflowHistory(chain.session, history.events), run, replayer))
            run = history.events[0].workflow_execution_started_event_attributes.continued_execution_run_id
    except UnusableHistoryError as error:
        findings.append(Finding("unusable", chain.session, run, message=str(error)))
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        # Older runs may be gone: Temporal deletes them after the retention time.
        if not findings:
            findings.append(_missing(chain, run))
    return findings


def _missing(chain: _Chain, run: str) -> Finding:
    if chain.is_requested and not run:
        return Finding("unusable", chain.session, message="session not found")
    return Finding("gone", chain.session, run, message="was deleted before it could be read")


async def _newest_run(client: Client, session: str) -> str:
    described = await client.get_workflow_handle(session).describe(rpc_timeout=RPC_TIMEOUT)
    return described.run_id or ""


async def _check_concurrently(
    sources: AsyncIterator[Source], check: Callable[[Source], Coroutine[Any, Any, list[Finding]]]
) -> AsyncIterator[Finding]:
    running: set[asyncio.Task[list[Finding]]] = set()
    try:
        async for source in sources:
            running.add(asyncio.create_task(check(source)))
            while len(running) >= MAX_CONCURRENT:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for finding in itertools.chain.from_iterable(task.result() for task in done):
                    yield finding
        for next_done in asyncio.as_completed(running):
            for finding in await next_done:
                yield finding
    finally:
        for task in running:
            task.cancel()


async def _check_run(history: WorkflowHistory, run: str, replayer: RunReplayer, *, file: Path | None = None) -> Finding:
    if not any(event.HasField("workflow_task_started_event_attributes") for event in history.events):
        # There is nothing to replay, and the SDK would wait for ever.
        return Finding("not begun", history.workflow_id, run, file, "no worker has processed it yet")
    mismatch = await replayer.find_mismatch(history)
    if mismatch is None:
        return Finding("replays", history.workflow_id, run, file)
    return Finding("differs", history.workflow_id, run, file, mismatch.sentence, mismatch.difference)
