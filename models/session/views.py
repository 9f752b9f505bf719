"""What a session shows of itself: an answer to each query, made anew each time, never kept (SES-3, SES-11 to SES-13).

Every answer is bounded, and costs what it contains, not what the session holds.
"""

from turnkeeper.models.context.context_view import ContextView, context_view
from turnkeeper.models.replay_text.turns import ReplayTurns
from turnkeeper.models.session.admission import refusal_now
from turnkeeper.models.session.approvals import PendingApprovals, pending_approvals
from turnkeeper.models.session.queue.prompts import QueueView
from turnkeeper.models.session.session import ContextRequest, StateRequest, UpdatesRequest
from turnkeeper.models.session.session_state import Session
from turnkeeper.models.transcript.conversation import ConversationState, ConversationUpdate, SessionSummary


def state_of(session: Session, request: StateRequest | None = None) -> ConversationState:
    """Return the newest complete picture, bounded (SES-11). Raises `KeyError` where `before` is not held."""
    wanted = request or StateRequest()
    page = session.transcript.page(before=wanted.before, limit=wanted.limit)
    turn = session.turn
    return ConversationState(
        messages=page.turns,
        first_number=page.first + 1 if page.turns else None,
        is_processing=turn is not None,
        current_message_id=turn.message.id if turn else None,
        revision=session.revision,
        status=session.status,
        waiting_until=session.current_turn.waiting_until,
        waiting_reason=session.current_turn.waiting_reason,
        queue_length=len(session.queue),
        archived_count=session.transcript.archived,
        has_more=page.older or session.transcript.archived > 0,
        session=summary_of(session),
    )


def updates_of(session: Session, request: UpdatesRequest) -> ConversationUpdate:
    found = session.transcript.updates(
        revision=session.revision,
        last_seen=request.last_seen_message_id,
        since=request.since_revision,
        limit=request.limit,
    )
    turn = session.turn
    return ConversationUpdate(
        new_messages=found.new,
        updated_messages=found.updated,
        is_processing=turn is not None,
        current_message_id=turn.message.id if turn else None,
        last_seen_message_id=found.last_seen,
        revision=session.revision,
        reset=found.reset,
        has_more=found.has_more,
        status=session.status,
        waiting_until=session.current_turn.waiting_until,
        waiting_reason=session.current_turn.waiting_reason,
        queue_length=len(session.queue),
        tasks=session.tasks.state.tasks,
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
        archive=session.archive.report,
        task=session.task_view,
        tasks=session.tasks.state.tasks,
    )


def queue_of(session: Session, *message_ids: str) -> QueueView:
    """Return what waits and what became of the rest; of these prompts only, where ids are given (SES-6)."""
    return session.queue.view(
        revision=session.revision,
        message_ids=message_ids or None,
        refusing=refusal_now(session),
        limits=session.config.limits,
    )


def approvals_of(session: Session) -> PendingApprovals:
    """Return what people are asked to decide (AGT-8)."""
    return pending_approvals(
        session.turn.message if session.turn else None,
        session.offered_tools,
        session.tools.allowances,
        most_bytes=session.config.limits.page_bytes,
    )


def context_of(session: Session, request: ContextRequest | None = None) -> ContextView:
    """Return what the model sees of each turn (CTX-8)."""
    wanted = request or ContextRequest()
    return context_view(
        session.context,
        session.transcript,
        session.head,
        session.config.history,
        model=session.config.model,
        before=wanted.before,
        limit=wanted.limit,
    )


def replay_turns_of(session: Session, max_history: int) -> ReplayTurns:
    """Return the turns held that a replay text with so many events of HISTORY is made of (CTX-12)."""
    return ReplayTurns.of(
        session.transcript.turns,
        archived=session.transcript.archived,
        moved=session.facts.moved_events,
        max_history=max_history,
    )
