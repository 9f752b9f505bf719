"""The entry of a session in the index (API-1)."""

from turnkeeper.models.session.session import Session
from turnkeeper.models.session.tasks.task_input import NO_PARENT
from turnkeeper.models.transcript.attachments import with_names
from turnkeeper.models.transcript.index_entry import IndexEntry, IndexStatus, preview_of


def entry_of(session: Session) -> IndexEntry:
    """Return what lists show of the session now."""
    newest, task, status = session.transcript.newest, session.config.task, session.closed
    closed: dict[str, IndexStatus] = {"ended": "ended", "cancelled": "cancelled"}
    return IndexEntry(
        created_at=session.facts.created_at,
        revision=session.revision,
        status=closed.get(status or "", "open"),
        title=session.config.title,
        user=session.config.user,
        model=session.config.model,
        turn_count=session.transcript.count,
        cost=session.facts.usage.cost,
        preview=newest and preview_of(newest.user_message or with_names("", newest.attachments)),
        parent=task and (task.parent or NO_PARENT),
        hand_off=task.report if task else None,
    )
