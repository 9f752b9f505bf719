"""The answers to a session's queries, computed for each query (SES-3, SES-11 to SES-13).

Every answer is bounded, and its cost depends on its own size, not on that of the session.
"""

from collections.abc import Sequence

from turnkeeper.features.tasks.session.task_state import TaskChange, TaskOutcome, bound_answer, task_status
from turnkeeper.features.tasks.session.task_view import FINAL, TaskStatus, TaskView
from turnkeeper.models.context.context_report import context_view
from turnkeeper.models.context.context_view import ContextView
from turnkeeper.models.replay_text.turns import ReplayTurns
from turnkeeper.models.session.approvals import PendingApprovals, pending_approvals
from turnkeeper.models.session.messages import ContextRequest, StateRequest, UpdatesRequest
from turnkeeper.models.session.queue.prompt_queue import QUEUED_PROMPT_BYTES
from turnkeeper.models.session.queue.prompts import ParkedPrompt, Prompt, QueuedPrompt, QueueView
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
        turn_count=session.transcript.count,
        usage=session.facts.usage,
        tasks_usage=session.facts.tasks_usage,
        archive=session.archive.report,
        conversation_metrics=session.context.size(session.config.history, model=session.config.model),
        task=_task_view(session),
        tasks=session.sub_tasks.state.tasks,
    )


def _task_view(session: Session) -> TaskView | None:
    start, state = session.config.task, session.own_task.state
    if start is None:
        return None
    return TaskView(
        parent=start.parent,
        background=start.background,
        percent=state.percent,
        message=state.message,
        findings=state.findings,
        context=start.report,
        condensed=state.condensed,
    )


def task_outcome_of(session: Session) -> TaskOutcome | None:
    """Return what came of the task that the session is; `None`: it is none."""
    if session.config.task is None:
        return None
    newest = session.transcript.newest
    return TaskOutcome(
        status=task_status_of(session),
        answer=newest and newest.agent_message,
        answer_blob=newest and newest.agent_message_blob,
        error=newest and newest.error,
        error_type=newest and newest.error_type,
        usage=session.facts.usage,
        findings=session.own_task.state.findings,
    )


def due_task_change(session: Session) -> TaskChange | None:
    """Return what the parent of the task that the session is has still to be told; `None`: nothing.

    A parent that waits for the result of the task's workflow learns its end from that, unless it was cancelled.
    """
    start, status, state = session.config.task, task_status_of(session), session.own_task.state
    if start is None or not start.reports:
        return None
    if status in FINAL and not start.background and session.closed != "cancelled":
        return None
    change = TaskChange(
        task_id=session.id,
        status=status,
        percent=state.percent,
        message=state.message,
        turn=session.transcript.count if status in FINAL else 0,
        is_closed=session.closed is not None,
    )
    if change == (state.reported or TaskChange(task_id=session.id)):
        return None
    newest = session.transcript.newest
    if status not in FINAL or newest is None:
        return change
    answer, error = bound_answer(newest.agent_message), newest.error
    return change.model_copy(update={"answer": answer, "error": error, "usage": session.facts.usage})


def task_status_of(session: Session) -> TaskStatus:
    """Return how the task is that the session is, or could be (TSK-4)."""
    newest = session.transcript.newest
    return task_status(
        newest.status if newest else None,
        session=session.status,
        waits=session.sub_tasks.has_approval_pending,
        queue_length=len(session.queue),
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
