"""Deleting a session: what the workflow `DeleteSession` is asked for, what it finds, and its receipt (API-1)."""

from turnkeeper.models.wire import Compact, UtcDatetime

SUFFIX = "/delete"


def deletion_id(workflow_id: str) -> str:
    """Return the id of the workflow that deletes a session. No session has it: their ids have no slash.

    >>> deletion_id("chat-1")
    'chat-1/delete'
    """
    return f"{workflow_id}{SUFFIX}"


def deleted_session(workflow_id: str) -> str:
    """Return the session that a deletion is of; a session's own id as it is.

    >>> deleted_session("chat-1/delete"), deleted_session("chat-1")
    ('chat-1', 'chat-1')
    """
    return workflow_id.removesuffix(SUFFIX)


class DeletionOrder(Compact):
    """Which session to delete, of those that had the id one after the other."""

    first_run_id: str = ""
    """Of the session. Empty: Temporal has forgotten it, and only the stores have something of it."""


class StoppedSession(Compact):
    """What there is of a session, once it can do nothing more."""

    runs: list[str] = []
    """The ids of all its runs that Temporal has, oldest first."""
    archived_turns: int = 0
    busy_at: UtcDatetime | None = None
    """When it ended, unless nothing was under way then: an activity may write for some time more."""


class SessionRuns(Compact):
    """Runs of a session, by their ids, oldest first."""

    runs: list[str] = []


class DeletionProgress(Compact):
    """How far a deletion is: counts, and nothing of the conversation. `None`: not known yet."""

    runs: int | None = None
    remaining: int | None = None
    """Runs that Temporal still has."""
    archived_turns: int | None = None
