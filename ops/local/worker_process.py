"""A worker as a child process: when it dies, its running activities fail at once (OPS-10).

Theory of operation. A worker reports each activity that it starts and ends, with its task token, through a pipe. What
it wrote before its death can still be read, so the activities that are open when the process has ended have no worker
any more. We report them to Temporal as failed. Temporal then starts the next attempt after the retry interval instead
of the heartbeat timeout, and an activity with a single attempt fails. If no attempt may follow, the failure carries
the details of the last heartbeat, as Temporal's own timeout would: what a model had written (SES-9).

Only a death counts: a worker that hangs or has lost its connection may still complete its activities. Temporal rejects
a token whose attempt has ended, so a lost report does no harm: without the start, the heartbeat timeout applies;
without the end, one more token is rejected. We try once; if we die too, the heartbeat timeout applies.
"""

import asyncio
import contextlib
import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from turnkeeper.activities.running_activity import WORKER_DIED, RunningActivity, parse_reports
from turnkeeper.ops.local.processes import Program
from turnkeeper.workflows import activity_options
from turnkeeper.workflows.hosting.connection import TemporalAccessError

FAIL_SECONDS = 10.0
"""Timeout of failing a dead worker's activities. After the heartbeat timeout of 6 s it has no effect anyway."""

STOP_SECONDS = 2.0
"""The same timeout when the whole stack stops."""

CALL_TIMEOUT = timedelta(seconds=5)

MAX_CALLS = 16
"""How many activities are failed concurrently."""

CLOCK_MARGIN = timedelta(seconds=2)
"""How far Temporal's clock may differ from ours, for the time that an activity has left."""

MAX_TOKENS = 1_000
"""How many activities are tracked; a worker runs 100 at a time."""

REPORTING_SECONDS = 2.0
"""How long an ended activity counts as open: its result may not have reached Temporal when the worker died."""

READ_BYTES = 65_536

REPORTS_OPTION = "--activity-reports"
"""The option of `turnkeeper worker` with the pipe's descriptor."""

Connect = Callable[[], Awaitable[Client]]

_log = logging.getLogger(__name__)


class WorkerProgram(Program):
    """A worker process whose activities fail when it dies; see the theory of operation above."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        connect: Connect,
        log: Path,
        env: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        """`command` is a `turnkeeper worker`; `connect` returns a client of its server; the rest as `Program`."""
        super().__init__(command, log=log, env=env, folder=folder)
        self._bare_command = list(command)
        self._connect = connect
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
            task = asyncio.create_task(fail_activities(self._connect, running))
            self._failing.add(task)
            task.add_done_callback(self._failing.discard)


async def fail_activities(connect: Connect, activities: Sequence[RunningActivity]) -> None:
    """Report to Temporal that these activities failed, for at most `FAIL_SECONDS`.

    Outdated tokens change nothing. What can't be reported is logged: those activities end by their heartbeat timeout.
    """
    try:
        async with asyncio.timeout(FAIL_SECONDS):
            client, gate = await connect(), asyncio.Semaphore(MAX_CALLS)
            failing = [_fail(client, running, gate) for running in activities]
            results = await asyncio.gather(*failing, return_exceptions=True)
        errors = [result for result in results if result is not None]
        if errors:
            _log.warning(
                "%d activities of a dead worker fail only after their heartbeat timeout: %r",
                len(errors),
                errors[0],
            )
    except (TemporalAccessError, RuntimeError, RPCError, TimeoutError) as error:
        _log.warning("The activities of a dead worker fail only after their heartbeat timeout: %r", error)


async def _fail(client: Client, running: RunningActivity, gate: asyncio.Semaphore) -> None:
    async with gate:
        details = await _heartbeat_details(client, running)
        failure = ApplicationError("The worker died while it ran this.", *details, type=WORKER_DIED)
        try:
            await client.get_async_activity_handle(task_token=running.token).fail(failure, rpc_timeout=CALL_TIMEOUT)
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise


async def _heartbeat_details(client: Client, running: RunningActivity) -> list[Any]:
    """Return the details of the last heartbeat, if the activity may have no time for another attempt.

    For an activity that is retried, Temporal keeps the heartbeat itself, and no failure over 4 KB.
    """
    session = client.get_workflow_handle(running.workflow_id, run_id=running.run_id)
    try:
        described = await session.describe(rpc_timeout=CALL_TIMEOUT)
        for pending in described.raw_description.pending_activities:
            if pending.activity_id == running.activity_id and _has_no_time_for_another(pending):
                return await client.data_converter.decode(pending.heartbeat_details.payloads)
    except (RPCError, RuntimeError, ValueError) as error:
        _log.debug("cannot read the last heartbeat of a dead worker's activity: %r", error)
    return []


def _has_no_time_for_another(pending: PendingActivityInfo) -> bool:
    """Return whether the activity may have no time for another attempt; `False` if its time is not limited."""
    if not pending.HasField("expiration_time"):
        return False
    left = pending.expiration_time.ToDatetime(tzinfo=UTC) - datetime.now(UTC)
    return left < (activity_options.MODEL_RETRIES.maximum_interval or timedelta()) + CLOCK_MARGIN


class RunningActivities:
    """The open activities of a worker, as it reports them; reused across its restarts. Close it after use."""

    def __init__(self) -> None:
        """Open the pipe. The worker writes to `descriptor`, which never blocks."""
        self._read_end, self.descriptor = os.pipe()
        os.set_blocking(self._read_end, False)
        os.set_blocking(self.descriptor, False)
        self.has_started_one = False
        """Whether an activity has started since this was last set to False."""
        self._running: dict[RunningActivity, None] = {}
        self._ended: deque[tuple[float, RunningActivity]] = deque()
        self._rest = b""

    def watch(self) -> Self:
        """Read reports as they arrive, so that the pipe does not fill up; returns itself."""
        asyncio.get_running_loop().add_reader(self._read_end, self._read)
        return self

    def pop_all(self) -> list[RunningActivity]:
        """Return the open activities and forget them. Call it once the worker is dead."""
        self._read()
        running = [*self._running, *(ended for _, ended in self._ended)]
        self._running.clear()
        self._ended.clear()
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
                self._apply(lines, now)
        while self._ended and self._ended[0][0] < now - REPORTING_SECONDS:
            self._ended.popleft()

    def _apply(self, lines: Sequence[bytes], now: float) -> None:
        for event, running in parse_reports(lines):
            if event == "begun":
                self.has_started_one = True
                self._running[running] = None
            else:
                self._running.pop(running, None)
                self._ended.append((now, running))
        # Starts whose ends were lost may accumulate, and so may ends within `REPORTING_SECONDS`.
        while len(self._running) > MAX_TOKENS:
            del self._running[next(iter(self._running))]
        while len(self._ended) > MAX_TOKENS:
            self._ended.popleft()
