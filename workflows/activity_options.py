"""Every timeout and retry policy, named, with its reason (OPS-8, AGT-7, AGT-9)."""

from datetime import timedelta

from temporalio.common import RetryPolicy
from temporalio.workflow import ActivityConfig

from turnkeeper.stores.database.database import OPERATION_SECONDS

HEARTBEAT_TIMEOUT = timedelta(seconds=6)
"""Activities heartbeat every second, model calls every half; a killed worker is noticed after this long."""

MODEL_RETRIES = RetryPolicy(
    # Delays of a vendor's failures come from `activities/failures.py`, which also ends them after a few attempts; these
    # are for workers that die or stop, however many: the turn's time bounds the call, by its schedule-to-close timeout.
    initial_interval=timedelta(milliseconds=500),
    backoff_coefficient=2.0,
    maximum_interval=timedelta(seconds=5),
)

UNFINISHED_PATIENCE = 1.5
"""Seconds that a stopped turn waits for what its model had written; without it, the turn ends all the same (SES-9)."""

SUMMARY_TIMEOUT = timedelta(seconds=60)
SUMMARY_PATIENCE = timedelta(seconds=120)
SUMMARY_RETRIES = RetryPolicy(initial_interval=timedelta(milliseconds=500), maximum_attempts=3)
"""A turn waits for it, and can do without (CTX-5)."""

REPEATABLE_TOOL_RETRIES = RetryPolicy(
    initial_interval=timedelta(milliseconds=500), maximum_interval=timedelta(seconds=5), maximum_attempts=3
)
"""For read-only and idempotent tools: the call id is the idempotency key."""

AT_MOST_ONCE = RetryPolicy(maximum_attempts=1)
"""For every other tool: if the worker dies in the middle, the outcome is unknown and stays so."""

ARCHIVE_TIMEOUT = timedelta(seconds=10)
ARCHIVE_PATIENCE = timedelta(seconds=25)
ARCHIVE_RETRIES = RetryPolicy(initial_interval=timedelta(milliseconds=500), maximum_attempts=2)
"""For a worker that died in the middle; an archive that is down is tried again later, by `workflows/archiving.py`."""

TEXT_TIMEOUT = timedelta(seconds=10)
TEXT_PATIENCE = timedelta(seconds=25)
"""For a large text of a task: the store being down does not keep a turn waiting."""

LAST_COPY_PATIENCE = timedelta(minutes=10)
"""How long a session that has ended tries to leave its transcript in the archive; one that is cancelled tries once."""

TOOL_LIST_TIMEOUT = timedelta(seconds=30)
TOOL_LIST_RETRIES = RetryPolicy(initial_interval=timedelta(milliseconds=500), maximum_interval=timedelta(seconds=10))
"""Without end: a session can't go on before it knows its tools; `turn_timeout` bounds the wait."""

TOOL_RENEWAL_RETRIES = RetryPolicy(initial_interval=timedelta(milliseconds=500), maximum_attempts=2)
"""Of a session that knows its tools already."""

DELETION = ActivityConfig(
    # Thousands of turns are deleted in small transactions; a worker that dies over it is noticed by its heartbeats.
    start_to_close_timeout=timedelta(minutes=10),
    heartbeat_timeout=HEARTBEAT_TIMEOUT,
    # Without end: an archive that is down comes back, and who asks meanwhile is told why it takes so long.
    retry_policy=RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=10)),
)
"""Of every activity of a deletion."""

DELETION_QUIET = ARCHIVE_TIMEOUT + timedelta(seconds=OPERATION_SECONDS)
"""After so long no activity of a session that has ended writes any more."""

DELETION_PAUSE = timedelta(seconds=1)
"""Before Temporal is asked again whether it has deleted a session's runs; longer and longer ones follow."""
