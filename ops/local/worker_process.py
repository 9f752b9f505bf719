"""A worker as a child process: when it dies, its running activities fail at once (OPS-10), and its health (OPS-5).

A worker reports each activity that it starts and ends, with its task token, through a pipe. What it wrote before its
death can still be read, so the activities that are open when the process has ended have no worker any more. We report
them to Temporal as failed. Temporal then starts the next attempt after the retry interval instead of the heartbeat
timeout, and an activity with a single attempt fails. If no attempt may follow, the failure carries the details of the
last heartbeat, as Temporal's own timeout would: what a model had written (SES-9).

Only a death counts: a worker that hangs or has lost its connection may still complete its activities. Temporal rejects
a token whose attempt has ended, so a lost report does no harm: without the start, the heartbeat timeout applies;
without the end, one more token is rejected. We try once; if we die too, the heartbeat timeout applies.

**Health.** Temporal lists workers, but by names that say nothing of their machines. So a worker looks for itself in
that list and reports to a file in its state folder. Its event loop, its connection and its polls must all work for
that, and a check costs neither a connection nor the memory of the SDK.
"""

import asyncio
import contextlib
import json
import logging
import math
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from pydantic import ValidationError

from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.wire import Frozen
from turnkeeper.ops.local.processes import Program
from turnkeeper.stores.private_files import make_private_folder, write_private
from turnkeeper.stores.waiting import cancel_until_done

if TYPE_CHECKING:
    from temporalio.worker import Worker

REPORT_SECONDS = 5.0
LOOK_SECONDS = 0.5
MAX_AGE_SECONDS = 30.0
"""A worker whose last report is older is not healthy."""

_log = logging.getLogger(__name__)


class WorkerReport(Frozen):
    """The last report of a worker. With several workers in one state folder: of any of them."""

    identity: str
    reported_at: float
    """On the clock of `time.monotonic`, which all processes of a machine share and nobody sets."""
    tool_problems: dict[str, str] = {}
    """Why tool servers have no tools now, by server: for the operator, since a server's last words are part of it."""
    refused_parts: dict[str, list[str]] = {}
    """Parts left out of all requests to a model since its vendor refused them, by model."""

    @staticmethod
    def file(state_dir: Path) -> Path:
        return state_dir / "worker.json"

    def write(self, state_dir: Path) -> None:
        """Replace the last report at once, so that nobody reads half of one. Raises `OSError`."""
        file = self.file(state_dir)
        make_private_folder(state_dir)
        write_private(new := file.with_suffix(".new"), self.model_dump_json())
        new.replace(file)

    @classmethod
    def read(cls, state_dir: Path) -> "WorkerReport | None":
        """Return the last report; `None` if there is none."""
        try:
            return cls.model_validate_json(cls.file(state_dir).read_text())
        except (OSError, ValidationError):
            return None


@asynccontextmanager
async def reporting(
    worker: "Worker",
    settings: Settings,
    *,
    tool_problems: Callable[[], dict[str, str]] = dict,
    refused_parts: Callable[[], dict[str, list[str]]] = dict,
) -> AsyncIterator[None]:
    """Report, while the block runs and the worker polls, that it polls and which of its parts don't work."""
    task = asyncio.create_task(
        _report(worker, settings, lambda: {"tool_problems": tool_problems(), "refused_parts": refused_parts()})
    )
    try:
        yield
    finally:
        await cancel_until_done([task])
        WorkerReport.file(settings.state_dir).unlink(missing_ok=True)


async def _report(worker: "Worker", settings: Settings, troubles: Callable[[], dict[str, Any]]) -> None:
    # Imported here: the health check must not load the SDK.
    from temporalio.service import RPCError

    from turnkeeper.stores.temporal.connection import polling_workers

    identity, is_failing = worker.config()["identity"] or "", False
    while True:
        try:
            if identity in await polling_workers(worker.client, settings.task_queue):
                report = WorkerReport(identity=identity, reported_at=time.monotonic(), **troubles())
                report.write(settings.state_dir)
            is_failing = False
        except (RPCError, OSError) as error:
            if not is_failing:  # once an outage
                _log.warning("The worker can't report that it polls (%s).", type(error).__name__)
            is_failing = True
        reported, until = troubles(), time.monotonic() + REPORT_SECONDS
        while time.monotonic() < until and troubles() == reported:  # noqa: ASYNC110  # a new trouble is reported at once
            await asyncio.sleep(LOOK_SECONDS)


def find_trouble(settings: Settings) -> str | None:
    """Return why the state folder's worker is not healthy; `None` if it is."""
    report = WorkerReport.read(settings.state_dir)
    if report is None:
        return f"No worker has reported to {WorkerReport.file(settings.state_dir)} that it polls."
    age = time.monotonic() - report.reported_at
    if age < 0:
        return f"Worker {report.identity} reported last before this machine was started."
    if age > MAX_AGE_SECONDS:
        return f"Worker {report.identity} reported last {age:.0f} s ago."
    return None


STOP_SECONDS = 2.0
"""Timeout of failing a dead worker's activities when the whole stack stops."""

MAX_TOKENS = 1_000
"""How many activities are tracked; a worker runs 100 at a time."""

REPORTING_SECONDS = 2.0
"""How long an ended activity counts as open: its result may not have reached Temporal when the worker died."""

READ_BYTES = 65_536

REPORTS_OPTION = "--activity-reports"
"""The option of `turnkeeper worker` with the pipe's descriptor."""

Event = Literal["begun", "ended"]


class RunningActivity(NamedTuple):
    """An attempt of an activity: its task token, and the ids by which Temporal shows it."""

    token: bytes
    workflow_id: str
    run_id: str
    activity_id: str

    def line(self, event: Event) -> bytes:
        r"""Return the line of a report.

        >>> RunningActivity(b"t", "s-1", "r", "2").line("begun")
        b'["begun", "74", "s-1", "r", "2"]\n'
        """
        return json.dumps([event, self.token.hex(), *self[1:]]).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> "tuple[Event, RunningActivity]":
        event, token, *ids = json.loads(line)
        return event, cls(bytes.fromhex(token), *ids)


Fail = Callable[[Sequence[RunningActivity]], Coroutine[Any, Any, None]]
"""Reports to Temporal that activities failed: `dead_worker.fail_activities`."""


class WorkerProgram(Program):
    """A worker process whose activities fail when it dies, as said above."""

    def __init__(self, command: Sequence[str], *, fail: Fail, log: Path, **options: Any) -> None:
        """`command` is a `turnkeeper worker`; `fail` fails activities of its server; `options` are `Program`'s."""
        super().__init__(command, log=log, **options)
        self._bare_command = list(command)
        self._fail = fail
        self._activities: RunningActivities | None = None
        self._failing: set[asyncio.Task[None]] = set()

    @property
    def has_worked(self) -> bool:
        """Whether the current or last process has started an activity."""
        return self._activities is not None and self._activities.has_started_one

    async def start(self, *, keep_open: Sequence[int] = ()) -> None:
        """Start it; if it dies, its running activities are failed."""
        if self._activities is None:
            self._activities = RunningActivities().watch()
        self._activities.has_started_one = False
        pipe = self._activities.descriptor
        self.command = [*self._bare_command, REPORTS_OPTION, str(pipe)]
        await super().start(keep_open=[*keep_open, pipe])

    async def wait(self) -> int:
        """Return the exit code once it has ended; its activities are failed in the background."""
        code = await super().wait()
        self._fail_activities()
        return code

    async def stop(self, *, seconds: float) -> None:
        """Stop it as `Program` does, then fail the activities that it left open, for at most `STOP_SECONDS`."""
        await super().stop(seconds=seconds)
        self._fail_activities()
        if self._failing:
            _, late = await asyncio.wait(self._failing, timeout=STOP_SECONDS)
            for task in late:
                task.cancel()
        if self._activities is not None:
            self._activities.close()
            self._activities = None

    def _fail_activities(self) -> None:
        running = self._activities.pop_all() if self._activities else []
        if running:
            task = asyncio.create_task(self._fail(running))
            self._failing.add(task)
            task.add_done_callback(self._failing.discard)


class RunningActivities:
    """The open activities of a worker, as it reports them; reused across its restarts. Close it after use."""

    def __init__(self) -> None:
        """Open the pipe. The worker writes to `descriptor`, which never blocks."""
        self._read_end, self.descriptor = os.pipe()
        os.set_blocking(self._read_end, False)
        os.set_blocking(self.descriptor, False)
        self.has_started_one = False
        """Whether an activity has started since this was last set to False."""
        self._ended_at: dict[RunningActivity, float] = {}
        """When each has ended, on the loop's clock; infinity: not yet."""
        self._rest = b""

    def watch(self) -> Self:
        """Read reports as they arrive, so that the pipe does not fill up; returns itself."""
        asyncio.get_running_loop().add_reader(self._read_end, self._read)
        return self

    def pop_all(self) -> list[RunningActivity]:
        """Return the open activities and forget them. Call it once the worker is dead."""
        self._read()
        running = list(self._ended_at)
        self._ended_at.clear()
        return running

    def close(self) -> None:
        if self._read_end < 0:
            return
        asyncio.get_running_loop().remove_reader(self._read_end)
        os.close(self._read_end)
        os.close(self.descriptor)
        self._read_end = -1

    def _read(self) -> None:
        now = asyncio.get_running_loop().time()
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._read_end, READ_BYTES):
                *lines, self._rest = (self._rest + chunk).split(b"\n")
                for line in lines:
                    event, running = RunningActivity.parse(line)
                    self._ended_at.pop(running, None)
                    self._ended_at[running] = math.inf if event == "begun" else now
                    self.has_started_one |= event == "begun"
        # Starts whose ends were lost may accumulate.
        counting = [(running, at) for running, at in self._ended_at.items() if at >= now - REPORTING_SECONDS]
        self._ended_at = dict(counting[-MAX_TOKENS:])
