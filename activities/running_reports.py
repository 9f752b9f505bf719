"""Reports of running activities to the process that started this worker (OPS-10).

When this process dies, that one fails its open activities at once by their task tokens; Temporal itself would notice
only after the heartbeat timeout. A report is one line in a pipe: `+` when an activity begins and `-` when it has ended,
then its token and ids in Base64. Reports are optional: a line that the pipe doesn't accept is dropped.
"""

import os
import select
from typing import Any

from temporalio import activity
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from turnkeeper.activities.running_activity import Event, RunningActivity, render_report


class RunningReporter(Interceptor):
    """Reports the beginning and the end of every activity of a worker to a pipe."""

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
        """Write one line, if the pipe accepts it whole and at once."""
        line = render_report(event, running)
        # Up to this size a pipe accepts a line whole or not at all.
        if len(line) > select.PIPE_BUF:
            return
        try:
            os.write(self._descriptor, line)
        except OSError:
            # The pipe is full, or nobody reads it: then the heartbeat timeout applies.
            return


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
