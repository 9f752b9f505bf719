"""Reports of the activities that run here, by their task tokens, to the process that started this worker (OPS-10).

That process fails those still open at once when this one has died; Temporal itself would notice only after the
heartbeat timeout. A report is one line in a pipe: `+` where an activity begins and `-` where it has ended, then the
token in Base64. Reports are an aid and never a hindrance: one that the pipe doesn't take is left out.
"""

import base64
import os
import select
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from temporalio import activity
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

Event = Literal["begun", "ended"]

_MARKS: dict[Event, bytes] = {"begun": b"+", "ended": b"-"}
_EVENTS = {mark: event for event, mark in _MARKS.items()}


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
        """Put the reports around the activity."""
        return _ReportedActivity(next, self)

    def report(self, event: Event, token: bytes) -> None:
        """Write one line, if the pipe takes it whole and at once."""
        line = render_report(event, token)
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
        token = activity.info().task_token
        self._reporter.report("begun", token)
        try:
            return await super().execute_activity(input)
        finally:
            self._reporter.report("ended", token)


def render_report(event: Event, token: bytes) -> bytes:
    r"""Return the line of a report.

    >>> render_report("begun", b"token")
    b'+dG9rZW4=\n'
    """
    return _MARKS[event] + base64.b64encode(token) + b"\n"


def parse_reports(lines: Iterable[bytes]) -> Iterator[tuple[Event, bytes]]:
    """Yield the event and the token of each line.

    >>> list(parse_reports([b"+dG9rZW4=", b"-dG9rZW4="]))
    [('begun', b'token'), ('ended', b'token')]
    """
    for line in lines:
        yield _EVENTS[line[:1]], base64.b64decode(line[1:])
