"""Reports of the activities that run here, by their task tokens, to the process that started this worker (OPS-10).

That process fails those still open at once when this one has died; Temporal itself would notice only after the
heartbeat timeout. A report is one line in a pipe: `+` where an activity begins and `-` where it has ended, then what
names the activity, in Base64. Reports are an aid and never a hindrance: one that the pipe doesn't take is left out.
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
    """An attempt of an activity, by its task token, and where Temporal shows it."""

    token: bytes
    workflow_id: str
    run_id: str
    activity_id: str


class RunningReporter(Interceptor):
    """Reports the beginning and the end of every activity of a worker."""

    def __init__(self, descriptor: int) -> None:
        """Report to the pipe `descriptor`, whose writing does not block; no process that is started here gets it.

        Raises:
            OSError: There is no such descriptor.
        """
        os.set_inheritable(descriptor, False)
        self._descriptor = descriptor

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002  # the SDK's name
        return _ReportedActivity(next, self)

    def report(self, event: Event, running: RunningActivity) -> None:
        """Write one line, if the pipe takes it whole and at once."""
        line = render_report(event, running)
        # Up to this size a pipe takes a line whole or not at all.
        if len(line) > select.PIPE_BUF:
            return
        try:
            os.write(self._descriptor, line)
        except OSError:
            # Full, or nobody reads it any more: then the heartbeat timeout does what it does elsewhere.
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
