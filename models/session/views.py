"""The answers to a session's queries, computed for each query (SES-3, SES-11 to SES-13).

Every answer is bounded, and its cost depends on its own size, not on that of the session.
The context view is made of the transcript and of the model's view of it (CTX-8).
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from turnkeeper.models.context.model_context import ModelContext
from turnkeeper.models.context.model_view import ModelView, head_tokens, system_tokens, tools_tokens
from turnkeeper.models.context.window import ConversationHistoryConfig
from turnkeeper.models.http_responses import (
    ContextView,
    FixedPart,
    Seen,
    SummaryInContext,
    TurnInContext,
)
from turnkeeper.models.replay_text.turns import ReplayTurns
from turnkeeper.models.session.approvals import PendingApprovals, pending_approvals
from turnkeeper.models.session.messages import ContextRequest, StateRequest, UpdatesRequest
from turnkeeper.models.session.prompt_queue import QUEUED_PROMPT_BYTES
from turnkeeper.models.session.prompts import ParkedPrompt, Prompt, QueuedPrompt, QueueView
from turnkeeper.models.session.session import Session
from turnkeeper.models.texts import tokens_of
from turnkeeper.models.transcript.attachments import with_names
from turnkeeper.models.transcript.conversation import (
    NO_PARENT,
    ConversationState,
    ConversationUpdate,
    SessionSummary,
    TaskStatus,
)
from turnkeeper.models.transcript.model_call import (
    IndexEntry,
    IndexStatus,
    RequestHead,
    ServerText,
    make_preview,
    offered_tools,
)
from turnkeeper.models.transcript.transcript import Transcript


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


def context_view(
    context: ModelContext,
    transcript: Transcript,
    head: RequestHead,
    config: ConversationHistoryConfig,
    *,
    model: str,
    absent: Sequence[ServerText] = (),
    before: int | None = None,
    limit: int,
) -> ContextView:
    """Return what the model sees of the newest `limit` turns, or of those before turn number `before`."""
    end = min(transcript.count, transcript.count if before is None else before - 1)
    first = max(1, end - limit + 1)
    fixed, view = fixed_part(head, model=model), context.view
    return ContextView(
        segment=view.segment,
        message_count=view.message_count,
        max_messages=config.max_messages,
        max_tokens=context.max_tokens(config, model=model),
        estimated_tokens=fixed.estimated_tokens + view.estimated_tokens,
        reported_tokens=context.reported_tokens,
        fixed=fixed,
        summary=_summary(view),
        messages_awaiting_summary=sum(len(entry.messages) for entry in context.evicted.entries),
        summaries_failed=context.evicted.summaries_failed,
        messages_given_up=context.evicted.given_up,
        absent_tool_servers=list(absent),
        turns=_turns(context, transcript, range(first, end + 1)),
        has_more=first > 1,
    )


def _turns(context: ModelContext, transcript: Transcript, numbers: range) -> list[TurnInContext]:
    chars, ids, replaced = Counter[int](), dict[int, str](), dict[int, Seen]()
    for entry in context.view.entries:
        number = entry.ref.number
        chars[number] += entry.chars
        ids[number] = entry.ref.turn
        if entry.ref.note in ("refused", "earlier_try"):
            replaced[number] = "refused" if entry.ref.note == "refused" else "retried"
        replaced |= dict.fromkeys(range(number - entry.ref.retried, number), "retried")
    covered = context.view.summary.turns if context.view.summary else []
    return [
        TurnInContext(
            number=number,
            message_id=ids.get(number) or transcript.id_of(number),
            seen=replaced.get(number) or _seen(number, is_shown=number in chars, cut=context.cut, covered=covered),
            estimated_tokens=tokens_of(chars[number]),
            characters_cut=context.cut.get(number, 0),
        )
        for number in numbers
    ]


def _seen(number: int, *, is_shown: bool, cut: dict[int, int], covered: Iterable[tuple[int, int]]) -> Seen:
    if is_shown:
        return "truncated" if cut.get(number) else "verbatim"
    return "summarised" if any(first <= number <= last for first, last in covered) else "not_at_all"


def fixed_part(head: RequestHead, *, model: str) -> FixedPart:
    """Return the part of every request of `model` before the messages."""
    offered = {tool.name for tool in offered_tools(head.tools, model=model)}
    return FixedPart(
        system_prompt_tokens=system_tokens(head),
        tools=[tool.name for tool in head.tools],
        tools_not_offered=[tool.name for tool in head.tools if tool.name not in offered],
        tools_tokens=tools_tokens(head),
        estimated_tokens=head_tokens(head),
    )


def _summary(view: ModelView) -> SummaryInContext | None:
    entry, summary = view.summary_entry, view.summary
    if entry is None or summary is None:
        return None
    return SummaryInContext(
        text=summary.text,
        turns=summary.turns,
        files_written=summary.files,
        estimated_tokens=tokens_of(entry.chars),
    )
