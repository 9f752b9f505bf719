"""`turnkeeper replay-check`: would every session go on with the code at hand? The gate before a deploy (OPS-9, SES-19).

Theory of operation. A session is one workflow id and all the runs chained by continue-as-new. Each of them is replayed
(`ops/checks/replaying.py`), from a file or as Temporal has it; one history after the other is read, newest first,
replayed and forgotten, so that any number of sessions fits into memory. Every run comes to a `Finding`, and all to a
`Tally`.
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
from turnkeeper.ops.checks.first_difference import Difference
from turnkeeper.ops.checks.replaying import Replays, replaying, short
from turnkeeper.workflows.agentic_ai_workflow import AgenticAIWorkflow
from turnkeeper.workflows.delete_session import DeleteSession
from turnkeeper.workflows.hosting.connection import TemporalAccessError

SESSION_TYPE, DELETION_TYPE = AgenticAIWorkflow.__name__, DeleteSession.__name__

AT_ONCE = 4
"""Sessions read and replayed at the same time: waiting for a far server, not computing, is what this shortens."""

RPC_TIMEOUT = timedelta(seconds=30)
"""Bound of one call; a page of a history holds megabytes."""

EXPORT = "export it with `temporal workflow show --workflow-id ID --output json`"

Source = TypeVar("Source")

Verdict = Literal["replays", "differs", "not begun", "gone", "unusable"]


class UnusableHistoryError(Exception):
    """What was given is not the history of a session; the message says why."""


@dataclass(frozen=True)
class Finding:
    """What became of one run, or of what should have led to one.

    "not begun": no worker has seen the run yet. "gone": it was deleted meanwhile. "unusable": it could not be looked
    at, so nothing is known of it. `told` says it in words; `difference` is None where no command can be named.
    """

    verdict: Verdict
    session: str = ""
    run: str = ""
    file: Path | None = None
    told: str = ""
    difference: Difference | None = None

    @property
    def is_news(self) -> bool:
        """Worth a line: the run does not replay, or it could not be looked at."""
        return self.verdict not in ("replays", "not begun")

    def line(self) -> str:
        names = [f"session {self.session}" if self.session else "", f"run {self.run}" if self.run else ""]
        where = ", ".join(name for name in names if name)
        if self.file:
            where = f"{where} ({self.file})" if where else str(self.file)
        return f"{where}: {self.told}"

    def to_json(self) -> str:
        differs = self.difference
        known = {
            "session": self.session,
            "run": self.run,
            "file": self.file and str(self.file),
            "verdict": self.verdict,
            "told": self.told,
            "event": differs and differs.event,
            "recorded": differs and differs.recorded,
            "asked": differs and differs.asked,
        }
        return json.dumps({name: value for name, value in known.items() if value}, ensure_ascii=False)


@dataclass
class Tally:
    """How many runs came to what."""

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
        """1: a run differs; 2: none does, but not all could be looked at; 0: all is well."""
        return 1 if self.verdicts["differs"] else 2 if self.verdicts["unusable"] else 0

    def line(self) -> str:
        """Return the sum as a line to read.

        >>> tally = Tally()
        >>> tally.add(Finding("replays", "chat-1", "run-1"))
        >>> tally.add(Finding("gone", "chat-2"))
        >>> tally.line()
        '1 sessions, 1 runs replayed, 0 differ, 1 gone'
        """
        rest = [f", {self.verdicts[verdict]} {verdict}" for verdict in _ASIDE if self.verdicts[verdict]]
        told = f"{len(self.sessions)} sessions, {self.runs} runs replayed, {self.verdicts['differs']} differ"
        return told + "".join(rest)

    def to_json(self) -> str:
        aside = {verdict.replace(" ", "_"): self.verdicts[verdict] for verdict in _ASIDE}
        counted = {"sessions": len(self.sessions), "runs": self.runs, "differ": self.verdicts["differs"], **aside}
        return json.dumps(counted)


_ASIDE: Sequence[Verdict] = ("not begun", "gone", "unusable")


# ---- where histories come from


async def check_files(paths: Sequence[Path]) -> AsyncIterator[Finding]:
    """Replay exported histories; of a folder, every `*.json` below it."""

    async def files() -> AsyncIterator[Path]:
        for path in paths:
            for file in _files_of(path):
                yield file

    with replaying() as replays:

        async def check(file: Path) -> list[Finding]:
            try:
                # Not in the event loop: the SDK would take the time it is held up for a deadlock of the workflow.
                history = await asyncio.to_thread(read_history, file)
            except UnusableHistoryError as error:
                return [Finding("unusable", file=file, told=str(error))]
            return [await _examine(history, history.run_id, replays, file=file)]

        async for finding in _a_few_at_once(files(), check):
            yield finding


def _files_of(path: Path) -> Sequence[Path]:
    # A folder without any is handed on, and told when it cannot be read as a file.
    return sorted(path.rglob("*.json")) or [path] if path.is_dir() else [path]


def read_history(file: Path) -> WorkflowHistory:
    """Return the history in a file, as Temporal's command line, its Web UI or an SDK wrote it.

    Raises:
        UnusableHistoryError: The file holds no whole history of a session.
    """
    if file.is_dir():
        raise UnusableHistoryError(f"the folder holds no *.json; {EXPORT}")
    try:
        history = WorkflowHistory.from_json(file.stem, file.read_text("utf-8-sig"))
    except OSError as error:
        raise UnusableHistoryError(f"cannot be read: {error.strerror or error}") from error
    except (ValueError, TypeError, AttributeError, KeyError, ParseError) as error:
        raise UnusableHistoryError(f"is not the history of a workflow ({short(str(error))}); {EXPORT}") from error
    _refuse_a_part(history)
    _refuse_decoded(history)
    _refuse_foreign(history)
    started = history.events[0].workflow_execution_started_event_attributes
    return WorkflowHistory(started.workflow_id or file.stem, history.events)


def _refuse_a_part(history: WorkflowHistory) -> None:
    numbers = [event.event_id for event in history.events]
    is_begun = bool(numbers) and history.events[0].HasField("workflow_execution_started_event_attributes")
    if not is_begun or numbers != list(range(1, len(numbers) + 1)):
        raise UnusableHistoryError(f"is not a whole history, from its first event on; {EXPORT}")


def _refuse_decoded(history: WorkflowHistory) -> None:
    given = history.events[0].workflow_execution_started_event_attributes.input.payloads
    if any(not payload.metadata for payload in given):
        raise UnusableHistoryError(f"has its payloads decoded, which cannot be replayed; {EXPORT}")


def _refuse_foreign(history: WorkflowHistory) -> None:
    kind = history.events[0].workflow_execution_started_event_attributes.workflow_type.name
    if kind not in (SESSION_TYPE, DELETION_TYPE):
        raise UnusableHistoryError(f"is the history of a workflow {kind!r}, not of a session ({SESSION_TYPE})")


async def check_sessions(
    client: Client, *, ids: Sequence[str] = (), closed: bool = False, limit: int | None = None
) -> AsyncIterator[Finding]:
    """Replay sessions, and deletions of sessions, as Temporal has them: those of `ids`, or else all open ones.

    `closed`: those too that have ended and are still retained. `limit`: the most sessions, the newest first.

    Raises:
        TemporalAccessError: Temporal refuses, or does not answer any more.
    """
    chains = _named(ids) if ids else _listed(client, closed=closed, limit=limit)
    try:
        with replaying() as replays:
            async for finding in _a_few_at_once(chains, lambda chain: _check_chain(client, chain, replays)):
                yield finding
    except RPCError as error:
        raise TemporalAccessError(f"Temporal did not let every session be read: {error.message}.") from error


@dataclass(frozen=True)
class _Chain:
    """The runs of a session, by the newest one; None: the one that is newest when it is asked for."""

    session: str
    newest: str | None = None
    asked_for: bool = False


async def _named(ids: Sequence[str]) -> AsyncIterator[_Chain]:
    for session in dict.fromkeys(ids):
        yield _Chain(session, asked_for=True)


async def _listed(client: Client, *, closed: bool, limit: int | None) -> AsyncIterator[_Chain]:
    # Of a chain, only the newest run did not continue as new.
    which = "ExecutionStatus != 'ContinuedAsNew'" if closed else "CloseTime IS NULL"
    deletions = f"WorkflowType = '{DELETION_TYPE}' AND CloseTime IS NULL"
    query = f"(WorkflowType = '{SESSION_TYPE}' AND {which}) OR ({deletions})"
    async for found in client.list_workflows(query, limit=limit, rpc_timeout=RPC_TIMEOUT):
        # One that is open may go on in another run before it is its turn.
        yield _Chain(found.id, found.run_id if found.close_time else None)


async def _check_chain(client: Client, chain: _Chain, replays: Replays) -> list[Finding]:
    """Replay every run of the chain that is still there, from the newest back."""
    findings: list[Finding] = []
    run = chain.newest or ""
    try:
        run = run or await _newest_run(client, chain.session)
        while run:
            handle = client.get_workflow_handle(chain.session, run_id=run)
            history = await handle.fetch_history(rpc_timeout=RPC_TIMEOUT)
            _refuse_foreign(history)
            findings.append(await _examine(WorkflowHistory(chain.session, history.events), run, replays))
            run = history.events[0].workflow_execution_started_event_attributes.continued_execution_run_id
    except UnusableHistoryError as error:
        findings.append(Finding("unusable", chain.session, run, told=str(error)))
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        # Of older runs it is no news: Temporal keeps them for a time only.
        if not findings:
            findings.append(_lost(chain, run))
    return findings


def _lost(chain: _Chain, run: str) -> Finding:
    if chain.asked_for and not run:
        return Finding("unusable", chain.session, told="there is no such session")
    return Finding("gone", chain.session, run, told="was deleted before it could be read")


async def _newest_run(client: Client, session: str) -> str:
    described = await client.get_workflow_handle(session).describe(rpc_timeout=RPC_TIMEOUT)
    return described.run_id or ""


async def _a_few_at_once(
    sources: AsyncIterator[Source], check: Callable[[Source], Coroutine[Any, Any, list[Finding]]]
) -> AsyncIterator[Finding]:
    running: set[asyncio.Task[list[Finding]]] = set()
    try:
        async for source in sources:
            running.add(asyncio.create_task(check(source)))
            while len(running) >= AT_ONCE:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for finding in itertools.chain.from_iterable(task.result() for task in done):
                    yield finding
        for next_done in asyncio.as_completed(running):
            for finding in await next_done:
                yield finding
    finally:
        for task in running:
            task.cancel()


async def _examine(history: WorkflowHistory, run: str, replays: Replays, *, file: Path | None = None) -> Finding:
    if not any(event.HasField("workflow_task_started_event_attributes") for event in history.events):
        # There is nothing to replay, and the SDK would wait for it for ever.
        return Finding("not begun", history.workflow_id, run, file, "no worker has seen it yet")
    departure = await replays.departure(history)
    if departure is None:
        return Finding("replays", history.workflow_id, run, file)
    return Finding("differs", history.workflow_id, run, file, departure.sentence, departure.command)
