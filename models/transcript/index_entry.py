"""The list entry of a session, from its own state (API-1)."""

from typing import Literal

from turnkeeper.models.texts.one_line import one_line
from turnkeeper.models.transcript.task_view import HandOffReport, TaskStatus
from turnkeeper.models.wire import Compact, UtcDatetime

IndexStatus = Literal["open", "awaiting_approval", "ended", "cancelled", "terminated"]
"""Whether a session is open, also while it waits for a person's decision, and how it ended."""

PREVIEW_CHARS = 200


class IndexEntry(Compact):
    """A session as of one of its revisions. It travels beside the history: by a cache, or in a query's result."""

    created_at: UtcDatetime
    revision: int
    status: IndexStatus = "open"
    title: str | None = None
    user: str | None = None
    model: str | None = None
    turn_count: int = 0
    cost: float | None = None
    """In US dollars; `None`: no price is known."""
    preview: str | None = None
    """The beginning of the newest prompt, in one line."""
    parent: str | None = None
    """The session that it works for as a task, or `NO_PARENT`; `None`: it is no task."""
    task_status: TaskStatus | None = None
    percent: int | None = None
    message: str | None = None
    """The last line that the task's agent reported."""
    hand_off: HandOffReport | None = None
    """What the task received of the conversation; `None`: unknown."""


def make_preview(text: str) -> str:
    r"""Return the beginning of a prompt in one line.

    >>> make_preview("  list\nthe files ")
    'list the files'
    """
    return one_line(text, PREVIEW_CHARS)
