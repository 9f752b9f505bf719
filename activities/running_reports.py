"""Reports of running activities to the process that started this worker (OPS-10).

When this process dies, that one fails its open activities at once by their task tokens; Temporal itself would notice
only after the heartbeat timeout. A report is one line in a pipe: `+` when an activity begins and `-` when it has ended,
then its token and ids in Base64. Reports are optional: a line that the pipe doesn't accept is dropped.
"""

import base64
import os
import select
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

from temporalio import activity
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

Event = Literal["begun", "ended"]

_MARKS: dict[Event, bytes] = {"begun": b"+", "ended": b"-"}
_EVENTS = {mark: event for event, mark in _MARKS.items()}


class RunningActivity(NamedTuple):
    """An attempt of an activity: its task token, and the ids by which Temporal shows it."""

    token: bytes
    workflow_id: str
    run_id: str
    activity_id: str


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


def render_report(event: Event, running: RunningActivity) -> bytes:
    r"""Return the line of a report.

    >>> render_report("begun", RunningActivity(b"token", "s-1", "r", "2"))
    b'+dG9rZW4= cy0x cg== Mg==\n'
    """
    names = (running.token, *(name.encode() for name in running[1:]))
    return _MARKS[event] + b" ".join(base64.b64encode(name) for name in names) + b"\n"


def parse_reports(lines: Iterable[bytes]) -> Iterator[tuple[Event, RunningActivity]]:
    """Yield the event and the activity of each line.

    >>> list(parse_reports([b"-dG9rZW4= cy0x cg== Mg=="]))
    [('ended', RunningActivity(token=b'token', workflow_id='s-1', run_id='r', activity_id='2'))]
    """
    for line in lines:
        token, *names = (base64.b64decode(name) for name in line[1:].split(b" "))
        workflow_id, run_id, activity_id = (name.decode() for name in names)
        yield _EVENTS[line[:1]], RunningActivity(token, workflow_id, run_id, activity_id)
