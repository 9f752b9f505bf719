"""An activity that a worker runs, and the lines of a report of it (OPS-10).

The process that started the worker reads them; it does not load the SDK's worker for that.
"""

import base64
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

WORKER_DIED = "worker_died"
"""The `type` of an attempt's failure if `ops/local/worker_process.py` saw the worker's process end."""

Event = Literal["begun", "ended"]

_MARKS: dict[Event, bytes] = {"begun": b"+", "ended": b"-"}
_EVENTS = {mark: event for event, mark in _MARKS.items()}


class RunningActivity(NamedTuple):
    """An attempt of an activity: its task token, and the ids by which Temporal shows it."""

    token: bytes
    workflow_id: str
    run_id: str
    activity_id: str


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
