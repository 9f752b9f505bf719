"""The answers to a session's queries, computed for each query (SES-3, SES-11 to SES-13).

Every answer is bounded, and its cost depends on its own size, not on that of the session.
"""

from collections.abc import Sequence

from turnkeeper.models.context.context_report import context_view
from turnkeeper.models.context.context_view import ContextView
from turnkeeper.models.replay_text.turns import ReplayTurns
from turnkeeper.models.session.approvals import PendingApprovals, pending_approvals
from turnkeeper.models.session.messages import ContextRequest, StateRequest, UpdatesRequest
from turnkeeper.models.session.queue.prompt_queue import QUEUED_PROMPT_BYTES
from turnkeeper.models.session.queue.prompts import ParkedPrompt, Prompt, QueuedPrompt, QueueView
from turnkeeper.models.session.session import Session
from turnkeeper.models.transcript.attachments import with_names
from turnkeeper.models.transcript.conversation import ConversationState, ConversationUpdate, SessionSummary
from turnkeeper.models.transcript.index_entry import IndexEntry, IndexStatus, make_preview
from turnkeeper.models.transcript.task_view import NO_PARENT, TaskStatus


def state_of(session: Session, request: StateRequest | None = None) -> ConversationState:
    """Return a page of the conversation (SES-11). Raises `KeyError` if `before` is not in the session."""
    request = request or StateRequest()
    page = session.transcript.page(before=request.before, limit=request.limit)
    turn = session.turn
    return ConversationState(
        messages=page.turns,
        first_number=page.first + 1 if page.turns else None,
        is_processing=turn is not None,
        current_message_id=turn.message.id if turn else None,
        revision=session.revision,
        status=session.status,
        waiting_until=session.turn_slot.waiting_until,
        waiting_reason=session.turn_slot.waiting_reason,
        queue_length=len(session.queue),
        archived_count=session.transcript.archived,
        has_more=page.older or session.transcript.archived > 0,
        session=summary_of(session),
    )


def updates_of(session: Session, request: UpdatesRequest) -> ConversationUpdate:
    updates = session.transcript.updates(
        revision=session.revision,
        last_seen=request.last_seen_message_id,
        since=request.since_revision,
        limit=request.limit,
    )
    turn = session.turn
    return ConversationUpdate(
        new_messages=updates.new,
        updated_messages=updates.updated,
        is_processing=turn is not None,
        current_message_id=turn.message.id if turn else None,
        last_seen_message_id=updates.last_seen,
        revision=session.revision,
        reset=updates.reset,
        has_more=updates.has_more,
        status=session.status,
        waiting_until=session.turn_slot.waiting_until,
        waiting_reason=session.turn_slot.waiting_reason,
        queue_length=len(session.queue),
        tasks=session.sub_tasks,
    )


def summary_of(session: Session) -> SessionSummary:
    return SessionSummary(
        id=session.id,
        title=session.config.title,
        user=session.config.user,
        model=session.config.model,
        agent=session.config.agent,
        created_at=session.facts.created_at,
        turn_count=session.transcript.count,
        usage=session.facts.usage,
        tasks_usage=session.facts.tasks_usage,
        archive=session.archive.report,
        conversation_metrics=session.context.size(session.config.history, model=session.config.model),
        task=session.task,
        tasks=session.sub_tasks,
    )


def queue_of(session: Session, *message_ids: str) -> QueueView:
    """Return the waiting prompts and the last fates; with ids, of these prompts only (SES-6)."""
    rejection = session.rejection_when_ending
    queue, limits = session.queue, session.config.limits
    if message_ids:
        places = queue.places(message_ids)
        fates = [fate for one in message_ids if one not in queue and (fate := queue.fate_book.find(one))]
    else:
        places, fates = [*enumerate(queue.waiting, start=1)], list(queue.fate_book.recent)
    return QueueView(
        waiting=_visible(places, max_bytes=limits.page_bytes - limits.fates_bytes),
        fates=fates,
        revision=session.revision,
        refusing=rejection.reason if rejection else None,
        refusing_because=rejection.message if rejection else None,
        length=len(queue),
        bytes=queue.text_bytes,
        parked=len(queue.parked),
        positions={item.id: position for position, item in places} if message_ids else {},
        max_prompts=limits.max_queued_prompts,
        max_bytes=limits.queued_bytes,
    )


def _visible(places: Sequence[tuple[int, Prompt | ParkedPrompt]], *, max_bytes: int) -> list[QueuedPrompt]:
    """Return the first prompts, without parked ones, with at most `max_bytes` together, but at least one."""
    visible: list[QueuedPrompt] = []
    for position, prompt in places:
        if isinstance(prompt, Prompt):
            max_bytes -= prompt.size + QUEUED_PROMPT_BYTES
            if max_bytes < 0 and visible:
                break
            fields = {name: getattr(prompt, name) for name in ("id", "text", "attachments", "mode", "received_at")}
            visible.append(QueuedPrompt(**fields, position=position))
    return visible


def approvals_of(session: Session, *, max_bytes: int | None = None) -> PendingApprovals:
    """Return the calls that wait for a person's decision (AGT-8); `max_bytes` of JSON, by default those of a page."""
    return pending_approvals(
        session.turn.message if session.turn else None,
        session.tools.offered,
        session.tools.allowances,
        max_bytes=max_bytes or session.config.limits.page_bytes,
    )


def context_of(session: Session, request: ContextRequest | None = None) -> ContextView:
    """Return what the model sees of each turn (CTX-8)."""
    request = request or ContextRequest()
    return context_view(
        session.context,
        session.transcript,
        session.head,
        session.config.history,
        model=session.config.model,
        absent=session.tools.state.absent,
        before=request.before,
        limit=request.limit,
    )


def replay_turns_of(session: Session, max_history: int) -> ReplayTurns:
    """Return the turns for a replay text with at most `max_history` events of HISTORY (CTX-12)."""
    return ReplayTurns.of(
        session.transcript.turns,
        archived=session.transcript.archived,
        moved=session.facts.moved_events,
        max_history=max_history,
    )


def make_index_entry(session: Session) -> IndexEntry:
    """Return what lists show of the session now."""
    newest, task = session.transcript.newest, session.task
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
        percent=task and task.percent,
        message=task and task.message,
        hand_off=task and task.context,
    )


def listed_status(session: Session) -> tuple[IndexStatus, TaskStatus | None]:
    """Return the status of the session in lists, and that of the task that it is."""
    closed: dict[str, IndexStatus] = {"ended": "ended", "cancelled": "cancelled"}
    waits = session.turn is not None and session.turn.waits_for_person
    is_open: IndexStatus = "awaiting_approval" if waits else "open"
    return closed.get(session.closed or "", is_open), session.task_status
