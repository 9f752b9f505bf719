"""The answers to a session's queries, computed for each query (SES-3, SES-11 to SES-13).

Every answer is bounded, and its cost depends on its own size, not on that of the session.
"""

from turnkeeper.models.context.context_view import ContextView, context_view
from turnkeeper.models.replay_text.turns import ReplayTurns
from turnkeeper.models.session.admission import rejection_when_ending
from turnkeeper.models.session.approvals import PendingApprovals, pending_approvals
from turnkeeper.models.session.messages import ContextRequest, StateRequest, UpdatesRequest
from turnkeeper.models.session.queue.prompts import QueueView
from turnkeeper.models.session.session import Session
from turnkeeper.models.transcript.conversation import ConversationState, ConversationUpdate, SessionSummary


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
        tasks=session.sub_tasks.state.tasks,
    )


def summary_of(session: Session) -> SessionSummary:
    return SessionSummary(
        id=session.id,
        title=session.config.title,
        user=session.config.user,
        model=session.config.model,
        created_at=session.facts.created_at,
        turn_count=session.turn_count,
        usage=session.facts.usage,
        tasks_usage=session.facts.tasks_usage,
        archive=session.archive.report,
        conversation_metrics=session.context.size(session.config.history, model=session.config.model),
        task=session.task_view,
        tasks=session.sub_tasks.state.tasks,
    )


def queue_of(session: Session, *message_ids: str) -> QueueView:
    """Return the waiting prompts and the last fates; with ids, of these prompts only (SES-6)."""
    rejection = rejection_when_ending(session)
    return session.queue.view(
        revision=session.revision,
        message_ids=message_ids or None,
        rejection=rejection,
        limits=session.config.limits,
    )


def approvals_of(session: Session, *, max_bytes: int | None = None) -> PendingApprovals:
    """Return the calls that wait for a person's decision (AGT-8); `max_bytes` of JSON, by default those of a page."""
    return pending_approvals(
        session.turn.message if session.turn else None,
        session.offered_tools,
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
