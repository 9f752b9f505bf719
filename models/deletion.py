"""Deleting a session: input, intermediate results and progress of the workflow `DeleteSession` (API-1)."""

from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.wire import Compact, UtcDatetime

SUFFIX = "/delete"

FIRST_RUN = "first_run_id"
"""The memo field that identifies the session, since an id can be used again after a deletion."""


def deletion_id(workflow_id: WorkflowId) -> str:
    """Return the id of the workflow that deletes a session. No session can have it: session ids have no slash.

    >>> deletion_id(WorkflowId("chat-1"))
    'chat-1/delete'
    """
    return f"{workflow_id}{SUFFIX}"


def deleted_session(workflow_id: str) -> WorkflowId:
    """Return the session that a deletion deletes; a session's own id is returned unchanged.

    >>> deleted_session("chat-1/delete"), deleted_session("chat-1")
    ('chat-1', 'chat-1')
    """
    return WorkflowId(workflow_id.removesuffix(SUFFIX))


class DeletionOrder(Compact):
    """Which session to delete, since several can have had the id one after the other."""

    first_run_id: str = ""
    """Run id of the session's first run. Empty: Temporal no longer has the session, only the stores do."""


class StoppedSession(Compact):
    """A session after it was stopped."""

    runs: list[str] = []
    """Run ids that Temporal still has, oldest first."""
    archived_turns: int = 0
    busy_at: UtcDatetime | None = None
    """When it ended, if an activity was running then, which may still write for a while; else `None`."""


class SessionRuns(Compact):
    """Run ids of a session, oldest first."""

    runs: list[str] = []


class DeletionProgress(Compact):
    """Progress of a deletion. `None`: not known yet."""

    runs: int | None = None
    remaining: int | None = None
    """Runs that Temporal still has."""
    archived_turns: int | None = None
