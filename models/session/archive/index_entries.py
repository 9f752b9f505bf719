"""The entry of a session in the index (API-1)."""

from turnkeeper.features.tasks.session.task_input import NO_PARENT
from turnkeeper.features.tasks.session.task_view import TaskStatus
from turnkeeper.models.session.session import Session
from turnkeeper.models.session.views import task_status_of
from turnkeeper.models.transcript.attachments import with_names
from turnkeeper.models.transcript.index_entry import IndexEntry, IndexStatus, make_preview


def make_index_entry(session: Session) -> IndexEntry:
    """Return what lists show of the session now."""
    newest, task = session.transcript.newest, session.config.task
    status, task_status = listed_status(session)
    return IndexEntry(
        created_at=session.facts.created_at,
        revision=session.revision,
        status=status,
        title=session.config.title,
        user=session.config.user,
        model=session.config.model,
        turn_count=session.transcript.count,
        cost=session.facts.usage.cost,
        preview=newest and make_preview(newest.user_message or with_names("", newest.attachments)),
        parent=task and (task.parent or NO_PARENT),
        task_status=task_status,
        percent=session.own_task.state.percent,
        message=session.own_task.state.message,
        hand_off=task.report if task else None,
    )


def listed_status(session: Session) -> tuple[IndexStatus, TaskStatus | None]:
    """Return the status of the session in lists, and that of the task that it is."""
    closed: dict[str, IndexStatus] = {"ended": "ended", "cancelled": "cancelled"}
    waits = session.turn is not None and session.turn.waits_for_person
    is_open: IndexStatus = "awaiting_approval" if waits else "open"
    return closed.get(session.closed or "", is_open), task_status_of(session) if session.config.task else None
