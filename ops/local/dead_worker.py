"""Uses the SDK to report and fail the activities of dead workers (OPS-10).

`worker_process.py`, which doesn't load the SDK, says why.
"""

import asyncio
import logging
import os
import select
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio import activity
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from turnkeeper.activities.failures import WORKER_DIED
from turnkeeper.ops.local.worker_process import Event, RunningActivity
from turnkeeper.stores.temporal.endpoint import TemporalAccessError
from turnkeeper.workflows import activity_options

FAIL_SECONDS = 10.0
"""Timeout of failing a dead worker's activities. After the heartbeat timeout of 8 s it has no effect anyway."""

CALL_TIMEOUT = timedelta(seconds=5)

MAX_CALLS = 16
"""How many activities are failed concurrently."""

CLOCK_MARGIN = timedelta(seconds=2)
"""How far Temporal's clock may differ from ours, for the time that an activity has left."""

Connect = Callable[[], Awaitable[Client]]

_log = logging.getLogger(__name__)


class RunningReporter(Interceptor):
    """Reports the beginning and the end of every activity of a worker to a pipe, to the process that started it."""

    def __init__(self, descriptor: int) -> None:
        """Report to the non-blocking pipe `descriptor`, which child processes don't inherit.

        Raises:
            OSError: There is no such descriptor.
        """
        os.set_inheritable(descriptor, False)
        self._descriptor = descriptor

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002  # the SDK's name
        return _ReportedActivity(next, self)

    def report(self, event: Event, running: RunningActivity) -> None:
        """Write one line, if the pipe accepts it whole and at once; otherwise the heartbeat timeout applies."""
        # Up to this size a pipe accepts a line whole or not at all.
        if len(line := running.line(event)) <= select.PIPE_BUF:
            with suppress(OSError):  # the pipe is full, or nobody reads it
                os.write(self._descriptor, line)


class _ReportedActivity(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, reporter: RunningReporter) -> None:  # noqa: A002  # the SDK's name
        super().__init__(next)
        self._reporter = reporter

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002  # the SDK's name
        info = activity.info()
        running = RunningActivity(info.task_token, info.workflow_id or "", info.workflow_run_id or "", info.activity_id)
        self._reporter.report("begun", running)
        try:
            return await super().execute_activity(input)
        finally:
            self._reporter.report("ended", running)


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
            text = "%d activities of a dead worker fail only after their heartbeat timeout: %r"
            _log.warning(text, len(errors), errors[0])
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
            if pending.activity_id == running.activity_id and _is_last_attempt(pending):
                return await client.data_converter.decode(pending.heartbeat_details.payloads)
    except (RPCError, RuntimeError, ValueError) as error:
        _log.debug("cannot read the last heartbeat of a dead worker's activity: %r", error)
    return []


def _is_last_attempt(pending: PendingActivityInfo) -> bool:
    """Return whether the activity may have no time for another attempt; `False` if its time is not limited."""
    if not pending.HasField("expiration_time"):
        return False
    left = pending.expiration_time.ToDatetime(tzinfo=UTC) - datetime.now(UTC)
    return left < (activity_options.MODEL_RETRIES.maximum_interval or timedelta()) + CLOCK_MARGIN
