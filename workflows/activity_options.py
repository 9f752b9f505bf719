"""Timeouts and retry policies of activities, except the timeouts that a session configures (OPS-8, AGT-7, AGT-9)."""

from datetime import timedelta

from temporalio.common import RetryPolicy
from temporalio.workflow import ActivityCancellationType, ActivityConfig

from turnkeeper.stores.database import OPERATION_SECONDS

HEARTBEAT_TIMEOUT = timedelta(seconds=8)
"""Activities heartbeat every 3 s; a dead worker is detected after this time."""

MODEL_RETRIES = RetryPolicy(
    # For workers that die or shut down, without a limit: the schedule-to-close timeout, which is the turn's remaining
    # time, bounds the call. After a vendor's failure the workflow waits, and makes a new call (AGT-9).
    initial_interval=timedelta(milliseconds=500),
    backoff_coefficient=2.0,
    maximum_interval=timedelta(seconds=5),
)

UNFINISHED_PATIENCE = timedelta(seconds=1.5)
"""How long a stopped turn waits for the written part of its answer (SES-9)."""

SUMMARY_TIMEOUT = timedelta(seconds=60)
SUMMARY_PATIENCE = timedelta(seconds=120)
SUMMARY_RETRIES = RetryPolicy(initial_interval=timedelta(milliseconds=500), maximum_attempts=3)
"""The turn waits for a summary, but can continue without one (CTX-5)."""

CONDENSE_TIMEOUT = timedelta(seconds=180)
CONDENSE_PATIENCE = timedelta(seconds=300)
"""For the long texts of a task's history; with retries like a summary's (CTX-15)."""

HAND_OFF_TIMEOUT = timedelta(seconds=20)
HAND_OFF_PATIENCE = timedelta(seconds=40)
HAND_OFF_RETRIES = RetryPolicy(initial_interval=timedelta(milliseconds=500), maximum_attempts=3)
"""For reading and ranking the conversation that a task inherits (CTX-15)."""

REPEATABLE_TOOL_RETRIES = RetryPolicy(
    initial_interval=timedelta(milliseconds=500), maximum_interval=timedelta(seconds=5), maximum_attempts=3
)
"""For read-only and idempotent tools: the call id is the idempotency key."""

AT_MOST_ONCE = RetryPolicy(maximum_attempts=1)
"""For every other tool: if the worker dies during the call, the outcome stays unknown."""

PREVIEW_TIMEOUT = timedelta(seconds=10)
PREVIEW_PATIENCE = timedelta(seconds=25)
PREVIEW_RETRIES = RetryPolicy(initial_interval=timedelta(milliseconds=500), maximum_attempts=3)
"""For the changes of files: without them, people are asked all the same (AGT-8)."""

ARCHIVE_TIMEOUT = timedelta(seconds=10)
ARCHIVE_PATIENCE = timedelta(seconds=25)
ARCHIVE_RETRIES = RetryPolicy(initial_interval=timedelta(milliseconds=500), maximum_attempts=2)
"""For a worker that dies; if the archive is down, `workflows/archiving.py` retries later."""

IDLE_PAUSE = timedelta(seconds=2)
"""After a turn, until it is copied to the archive: a prompt that comes earlier spares the copy."""
COPIED_AT_ONCE = 20
"""Ended turns of a session that is never idle."""

TEXT_TIMEOUT = timedelta(seconds=10)
TEXT_PATIENCE = timedelta(seconds=25)
"""For a large text of a task: the store being down does not keep a turn waiting."""

LAST_COPY_PATIENCE = timedelta(minutes=10)
"""How long an ended session tries to copy its transcript to the archive; a cancelled one tries once."""

TOOL_LIST_TIMEOUT = timedelta(seconds=30)
TOOL_LIST_RETRIES = RetryPolicy(initial_interval=timedelta(milliseconds=500), maximum_interval=timedelta(seconds=10))
"""Unlimited: a session can't start without its tools; `turn_timeout` bounds the wait."""

TOOL_RELOAD_RETRIES = RetryPolicy(initial_interval=timedelta(milliseconds=500), maximum_attempts=2)
"""For a session that already has tools."""

STORE_WORK = ActivityConfig(
    # Thousands of turns are copied or deleted in small transactions; heartbeats detect a dead worker.
    start_to_close_timeout=timedelta(minutes=10),
    heartbeat_timeout=HEARTBEAT_TIMEOUT,
    # What was stopped must not write after what clears up.
    cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
    # Unlimited: the archive will be up again, and clients see the reason meanwhile.
    retry_policy=RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=10)),
)
"""For every activity of a deletion or a copy."""

UPLOAD_PATIENCE = timedelta(minutes=5)
"""How long a copy waits for its document. A gateway gives up sooner (`UPLOAD_SECONDS`)."""

DELETION_QUIET = ARCHIVE_TIMEOUT + timedelta(seconds=OPERATION_SECONDS)
"""After this time no activity of a stopped session still writes."""

DELETION_PAUSE = timedelta(seconds=1)
"""First pause before Temporal is asked again whether the runs are deleted; pauses grow."""
