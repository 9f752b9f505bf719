"""`turnkeeper replay-check`: replays sessions with the current code before a deploy (OPS-9, SES-19).

A session is one workflow id with its chain of runs. The SDK replays each run, from a file or from Temporal, in its own
sandbox. Histories are read one by one, newest run first, and not kept, so that memory does not limit the number of
sessions. Every run gets a `Finding`; a `Tally` counts them.

The SDK compares a command only with an event, so it never notices commands after the last recorded
one, which the session's next prompt would send. So an event that no code of ours asks for follows each history: the
replay is good if it fails there, because there is no command for it.
"""

import asyncio
import itertools
import json
import logging
import re
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from google.protobuf.json_format import ParseError
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowHistory
from temporalio.runtime import Runtime, TelemetryConfig
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Replayer

from turnkeeper.features import all_features
from turnkeeper.models.errors import TurnkeeperError
from turnkeeper.models.ids import SESSION_TYPE
from turnkeeper.models.session.messages import deleted_session
from turnkeeper.models.texts import counted
from turnkeeper.stores.temporal.endpoint import TemporalAccessError
from turnkeeper.stores.temporal.payload_converter import DATA_CONVERTER
from turnkeeper.workflows.agentic_ai_workflow import AgenticAIWorkflow
from turnkeeper.workflows.delete_session import DeleteSession

MAX_CONCURRENT = 4
"""How many sessions are checked concurrently, which hides the latency of a remote server."""

RPC_TIMEOUT = timedelta(seconds=30)
"""Timeout of one call; a page of a history can have megabytes."""

DEADLOCK = "[TMPRL1101]"
"""The SDK's code for a workflow that did not yield for 2 s; the cause may be a busy machine."""

MAX_CHARS = 300
"""The longest message of an exception that is shown: it can quote a whole conversation."""

EXPORT = "export it with `temporal workflow show --workflow-id ID --output json`"

Source = TypeVar("Source")

Verdict = Literal["replays", "differs", "not begun", "gone", "unusable"]


class UnusableHistoryError(TurnkeeperError):
    """The file is not the whole history of a session; the message says why."""


@dataclass(frozen=True)
class Finding:
    """The result of checking one run, file or session.

    "not begun": no worker has processed the run yet. "gone": it was deleted meanwhile. "unusable": it could not be
    checked.
    """

    verdict: Verdict
    session: str = ""
    run: str = ""
    file: Path | None = None
    message: str = ""

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
        event = re.search(r"\bevent (\d+)", self.message)
        fields = {
            "session": self.session,
            "run": self.run,
            "file": self.file and str(self.file),
            "verdict": self.verdict,
            "message": self.message,
            "event": event and int(event[1]),
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
            # A folder without any counts as a file: reading it reports the error.
            for file in (sorted(path.rglob("*.json")) if path.is_dir() else []) or [path]:
                yield file

    async def check(file: Path, threads: ThreadPoolExecutor) -> list[Finding]:
        try:
            # In a thread: the SDK would take a blocked event loop for a deadlock of the workflow.
            history = await asyncio.to_thread(read_history, file)
        except UnusableHistoryError as error:
            return [Finding("unusable", file=file, message=str(error))]
        return [await _check_run(history, history.run_id, threads, file=file)]

    async for finding in _check_concurrently(files(), check):
        yield finding


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
    if kind not in workflows():
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
        async for finding in _check_concurrently(chains, partial(_check_chain, client)):
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
    types = ", ".join(f"'{name}'" for name in workflows() if name != SESSION_TYPE)
    others = f"WorkflowType IN ({types}) AND CloseTime IS NULL"
    query = f"(WorkflowType = '{SESSION_TYPE}' AND {which}) OR ({others})"
    async for run in client.list_workflows(query, limit=limit, rpc_timeout=RPC_TIMEOUT):
        # An open session may continue as new before it is checked.
        yield _Chain(run.id, run.run_id if run.close_time else None)


async def _check_chain(client: Client, chain: _Chain, threads: ThreadPoolExecutor) -> list[Finding]:
    """Replay every run of the chain that is still retained, newest first."""
    findings: list[Finding] = []
    run = chain.newest or ""
    try:
        run = run or (await client.get_workflow_handle(chain.session).describe(rpc_timeout=RPC_TIMEOUT)).run_id or ""
        while run:
            handle = client.get_workflow_handle(chain.session, run_id=run)
            history = await handle.fetch_history(rpc_timeout=RPC_TIMEOUT)
            _check_type(history)
            findings.append(await _check_run(WorkflowHistory(chain.session, history.events), run, threads))
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


async def _check_concurrently(
    sources: AsyncIterator[Source], check: Callable[[Source, ThreadPoolExecutor], Coroutine[Any, Any, list[Finding]]]
) -> AsyncIterator[Finding]:
    threads = ThreadPoolExecutor(thread_name_prefix="replay")
    running: set[asyncio.Task[list[Finding]]] = set()
    try:
        async for source in sources:
            running.add(asyncio.create_task(check(source, threads)))
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
        threads.shutdown(wait=False)  # workflow code may never return


# ---- one run


@cache
def workflows() -> dict[str, type]:
    """Return all our workflows by their types, also those of features that are not enabled here."""
    of_features = (kind for feature in all_features() if feature.worker for kind in feature.worker.workflows)
    return {kind.__name__: kind for kind in (AgenticAIWorkflow, DeleteSession, *of_features)}


def silence_sdk() -> None:
    """Turn off the SDK's logs in this process: we print our own line for a replay that fails."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=None)))


async def _check_run(
    history: WorkflowHistory, run: str, threads: ThreadPoolExecutor, *, file: Path | None = None
) -> Finding:
    if not any(event.HasField("workflow_task_started_event_attributes") for event in history.events):
        # There is nothing to replay, and the SDK would wait forever.
        return Finding("not begun", history.workflow_id, run, file, "no worker has processed it yet")
    failure = await _replay(history, threads)
    if failure and DEADLOCK in str(failure):
        failure = await _replay(history, threads)
    mismatch = _mismatch(failure, last_event=len(history.events))
    return Finding("differs" if mismatch else "replays", history.workflow_id, run, file, mismatch)


async def _replay(history: WorkflowHistory, threads: ThreadPoolExecutor) -> Exception | None:
    """Replay a run with a worker of its own, so that no run affects the next."""
    kinds = [*workflows().values()]
    replayer = Replayer(workflows=kinds, workflow_task_executor=threads, data_converter=DATA_CONVERTER)
    extended = WorkflowHistory(history.workflow_id, [*history.events, *_probe(history.events)])
    try:
        return (await replayer.replay_workflow(extended, raise_on_replay_failure=False)).replay_failure
    except RuntimeError as error:
        return error  # the sandbox cannot even load the workflow


def _probe(events: Sequence[HistoryEvent]) -> Sequence[HistoryEvent]:
    """Return an event of a command that no session gives; none if the run has ended, or its last task is open."""
    kinds = [event.WhichOneof("attributes") or "" for event in events]
    tasks = [kind for kind in kinds if kind.startswith(("workflow_task_started", "workflow_task_completed"))]
    if kinds[-1] in _ENDS or not tasks[-1].startswith("workflow_task_completed"):
        return []
    event = HistoryEvent(event_id=len(events) + 1, event_time=events[-1].event_time, event_type=PROBE)
    event.request_cancel_external_workflow_execution_initiated_event_attributes.SetInParent()
    return [event]


PROBE = EventType.EVENT_TYPE_REQUEST_CANCEL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED

_ENDS = {
    f"workflow_execution_{end}_event_attributes"
    for end in ("completed", "failed", "canceled", "continued_as_new", "terminated", "timed_out")
}


def _mismatch(failure: Exception | None, *, last_event: int) -> str:
    r"""Return how the code differs from the history, from an error of the SDK's core; empty if it does not.

    >>> unknown = "No command scheduled for event HistoryEvent(id: 9, X)"
    >>> _mismatch(RuntimeError(f'4: Failure {{ message: "[TMPRL1100] {unknown}", source: "" }}'), last_event=8)
    ''
    >>> _mismatch(RuntimeError('4: Failure { message: "[TMPRL1100] \\"x\\" differs", source: "" }'), last_event=8)
    'the SDK says: [TMPRL1100] "x" differs'
    """
    if failure is None:
        return ""
    text = str(failure)
    message = re.search(r'message: "((?:[^"\\]|\\.)*)"', text)
    if message is None:
        return f"the SDK says: {shorten(f'{text}: {failure.__cause__}' if failure.__cause__ else text)}"
    sentence = shorten(message[1].replace("\\n", " ").replace('\\"', '"'))
    if re.search(rf"No command scheduled for event HistoryEvent\(id: {last_event + 1},", sentence):
        return ""
    beyond = rf"error: (.+?) ?[Mm]achine does not handle (?:this event: )?(?:HistoryEvent\(id:|event) {last_event + 1},"
    if command := re.search(beyond, sentence):
        return f"after event {last_event} nothing more is recorded, but today's code asks for: {command[1]}"
    if exception := re.search(r'r#type: "(\w+)"', text):
        frames = re.findall(r'File \\?"([^"\\]+)\\?", line (\d+), in (\w+)', text)
        location = f" at {Path(frames[-1][0]).name}:{frames[-1][1]} {frames[-1][2]}" if frames else ""
        return f"today's code raises {exception[1]}{location}: {sentence}"
    return "the SDK says: " + re.sub(r"HistoryEvent\(id: (\d+), (\w+)\)", r"event \1, \2", sentence)


def shorten(text: str) -> str:
    """Return the text on one line, cut at `MAX_CHARS`."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_CHARS else f"{line[:MAX_CHARS]}…"
