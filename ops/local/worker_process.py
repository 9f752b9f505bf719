"""A worker as a process of ours: when it has died, the activities it ran are failed at once (OPS-10).

Theory of operation. A worker writes names and task tokens of the activities that it begins and ends into a pipe. What
it wrote before it died can still be read afterwards; so the activities that are open when the process has ended are
those that nobody runs any more. Temporal is told that they failed: it starts their next attempt after the retry
interval instead of after the heartbeat timeout, and an activity with a single attempt fails. A failure that may end the
activity says what its last heartbeat carried, as a timeout of Temporal's would: what a model had written (SES-9).

Only a death counts: a worker that is frozen, or that only its connection has left, may still come to an end with what
it runs. A token that is out of date, because its attempt has ended or another one has begun, is refused by Temporal. So
nothing goes wrong where a report was lost: without a beginning the heartbeat timeout does it, without an end one
token more is refused. All of this is done once; where we die too, the heartbeat timeout is what is left.
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

from turnkeeper.activities.failures import WORKER_DIED
from turnkeeper.activities.running_reports import RunningActivity, parse_reports
from turnkeeper.ops.local.processes import Program
from turnkeeper.workflows import activity_options
from turnkeeper.workflows.hosting.connection import TemporalAccessError

FAIL_SECONDS = 10.0
"""Bound of failing the activities of one dead worker. After the heartbeat timeout of 6 s it is of no use anyway."""

STOP_SECONDS = 2.0
"""Bound of the same where everything stops."""

CALL_TIMEOUT = timedelta(seconds=5)

MAX_CALLS = 16
"""How many activities are failed at a time."""

CLOCK_MARGIN = timedelta(seconds=2)
"""How far Temporal's clock may be off ours where the time that an activity has left is looked at."""

MAX_TOKENS = 1_000
"""How many activities are remembered; a worker runs 100 at a time."""

REPORTING_SECONDS = 2.0
"""How long an activity that has ended counts as open: its result may not have reached Temporal when the worker died."""

READ_BYTES = 65_536

REPORTS_OPTION = "--activity-reports"
"""By which `turnkeeper worker` is given the pipe's descriptor."""

Connect = Callable[[], Awaitable[Client]]

_log = logging.getLogger(__name__)


class WorkerProgram(Program):
    """A worker that can be started, waited for and stopped, again and again; see the theory of operation above."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        connect: Connect,
        log: Path,
        env: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        """Take `command`, a `turnkeeper worker`, and what `Program` takes. `connect` reaches the worker's Temporal."""
        super().__init__(command, log=log, env=env, folder=folder)
        self._bare_command = list(command)
        self._connect = connect
        self._activities: RunningActivities | None = None
        self._failing: set[asyncio.Task[None]] = set()

    @property
    def has_worked(self) -> bool:
        """Whether the process that runs, or ran last, has begun an activity."""
        return self._activities is not None and self._activities.has_begun_one

    async def start(self, *, keep_open: Sequence[int] = ()) -> None:
        """Start it; what it runs when it dies is failed from here on."""
        if self._activities is None:
            self._activities = RunningActivities().watch()
        self._activities.has_begun_one = False
        pipe = self._activities.descriptor
        self.command = [*self._bare_command, REPORTS_OPTION, str(pipe)]
        await super().start(keep_open=[*keep_open, pipe])

    async def wait(self) -> int:
        """Return the exit code once it has ended; failing what it ran has begun then, and goes on in the background."""
        code = await super().wait()
        self._fail_activities()
        return code

    async def stop(self, *, seconds: float) -> None:
        """As `Program`, and what it had no time to hand over has been failed, as far as `STOP_SECONDS` suffice."""
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
        running = self._activities.take() if self._activities else []
        if running:
            task = asyncio.create_task(fail_activities(self._connect, running))
            self._failing.add(task)
            task.add_done_callback(self._failing.discard)


async def fail_activities(connect: Connect, activities: Sequence[RunningActivity]) -> None:
    """Let Temporal know that nobody runs these activities any more, as far as `FAIL_SECONDS` suffice.

    Tokens that are out of date change nothing. What can't be told is logged: Temporal finds it out by itself.
    """
    try:
        async with asyncio.timeout(FAIL_SECONDS):
            client, gate = await connect(), asyncio.Semaphore(MAX_CALLS)
            failing = [_fail(client, running, gate) for running in activities]
            results = await asyncio.gather(*failing, return_exceptions=True)
        errors = [result for result in results if result is not None]
        if errors:
            _log.warning(
                "%d activities of a worker that died are only missed after their heartbeat timeout: %r",
                len(errors),
                errors[0],
            )
    except (TemporalAccessError, RuntimeError, RPCError, TimeoutError) as error:
        _log.warning("The activities of a worker that died are only missed after their heartbeat timeout: %r", error)


async def _fail(client: Client, running: RunningActivity, gate: asyncio.Semaphore) -> None:
    async with gate:
        details = await _last_details(client, running)
        failure = ApplicationError("The worker died while it ran this.", *details, type=WORKER_DIED)
        try:
            await client.get_async_activity_handle(task_token=running.token).fail(failure, rpc_timeout=CALL_TIMEOUT)
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise


async def _last_details(client: Client, running: RunningActivity) -> list[Any]:
    """Return what the last heartbeat carried, if the activity may have no time for another attempt.

    Of one that is tried again Temporal keeps no failure over 4 KB, and its heartbeat anyway.
    """
    session = client.get_workflow_handle(running.workflow_id, run_id=running.run_id)
    try:
        described = await session.describe(rpc_timeout=CALL_TIMEOUT)
        for pending in described.raw_description.pending_activities:
            if pending.activity_id == running.activity_id and _is_last_attempt(pending):
                return await client.data_converter.decode(pending.heartbeat_details.payloads)
    except (RPCError, RuntimeError, ValueError) as error:
        _log.debug("no look at an activity of a worker that died: %r", error)
    return []


def _is_last_attempt(pending: PendingActivityInfo) -> bool:
    if not pending.HasField("expiration_time"):
        return False
    left = pending.expiration_time.ToDatetime(tzinfo=UTC) - datetime.now(UTC)
    return left < (activity_options.MODEL_RETRIES.maximum_interval or timedelta()) + CLOCK_MARGIN


class RunningActivities:
    """What workers report of their activities, one worker after the other. To be closed after use."""

    def __init__(self) -> None:
        """Open the pipe. `descriptor` is the end that a worker writes to; writing to it never blocks."""
        self._reading, self.descriptor = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self.descriptor, False)
        self.has_begun_one = False
        """Whether an activity has begun since this was last set to False."""
        self._running: dict[RunningActivity, None] = {}
        self._ended: deque[tuple[float, RunningActivity]] = deque()
        self._rest = b""

    def watch(self) -> Self:
        """Read reports as they come, so that the pipe is never full for long; returns itself."""
        asyncio.get_running_loop().add_reader(self._reading, self._read)
        return self

    def take(self) -> list[RunningActivity]:
        """Return the activities that are open, and forget them. The worker that reported is dead."""
        self._read()
        running = [*self._running, *(ended for _, ended in self._ended)]
        self._running.clear()
        self._ended.clear()
        return running

    def close(self) -> None:
        if self._reading < 0:
            return
        asyncio.get_running_loop().remove_reader(self._reading)
        os.close(self._reading)
        os.close(self.descriptor)
        self._reading = -1

    def _read(self) -> None:
        now = asyncio.get_running_loop().time()
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._reading, READ_BYTES):
                *lines, self._rest = (self._rest + chunk).split(b"\n")
                self._note(lines, now)
        while self._ended and self._ended[0][0] < now - REPORTING_SECONDS:
            self._ended.popleft()

    def _note(self, lines: Sequence[bytes], now: float) -> None:
        for event, running in parse_reports(lines):
            if event == "begun":
                self.has_begun_one = True
                self._running[running] = None
            else:
                self._running.pop(running, None)
                self._ended.append((now, running))
        # Beginnings whose ends were lost may pile up, and ends within the time that they are remembered.
        while len(self._running) > MAX_TOKENS:
            del self._running[next(iter(self._running))]
        while len(self._ended) > MAX_TOKENS:
            self._ended.popleft()
