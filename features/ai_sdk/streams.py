"""A turn live, as chunks, from its current state (which may be a place in the queue) to its end (API-1, AGT-5).

A stream begins with the turn as the session has it, and continues with the session's feed from there, so that nothing
is missed in between. All streams of a session share its one feed.

Once a stream has begun, it can't fail with a status. While Temporal or the workers are away it sends a notice and
waits, as the turn does. Problems that waiting doesn't fix become an `error` chunk with the problem's text. So does the
shutdown of the gateway, which would otherwise be an error without words in the AI SDK.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from turnkeeper.api.live.feed import RETRY_SECONDS, Event, ProblemEvent, QueueEvent, UpdateEvent
from turnkeeper.api.live.live_output import PartialEvent, ProgressEvent
from turnkeeper.api.problems import ProblemError
from turnkeeper.api.services import Services
from turnkeeper.api.timeouts import seconds_from_now
from turnkeeper.features.ai_sdk.turn_chunks import Chunks, TurnChunks
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.session.approvals import PendingApproval
from turnkeeper.models.session.messages import StateRequest, UpdatesRequest
from turnkeeper.models.transcript.conversation import FINAL_STATUSES, ConversationMessage, SessionStatus
from turnkeeper.models.transcript.trajectory import ModelStep

TEMPORARY_STATUSES = (429, 503, 504)
"""Temporary problems: Temporal is busy or can't be reached, or no worker answers."""

SILENT_WORKER_NOTICE = "Your message is safe. It is answered as soon as a worker is available."
DECISION_AWAITED_NOTICE = "An earlier message needs a decision on a tool call first. Then this one is answered."
STREAM_BROKEN = "The connection ended before the turn did. The turn continues: resume the stream to see the rest."

SILENCE_SECONDS = 1.9
"""How long to wait for a worker to answer after a prompt, before the stream says that none does (API-2)."""


async def turn_to_resume(services: Services, workflow_id: WorkflowId) -> str | None:
    """Return the id of the running turn, or of the next prompt; `None` if there is neither, or no such session.

    Raises `ProblemError`.
    """
    try:
        state = await services.reader.state(workflow_id, StateRequest(limit=0))
        if state.current_message_id or not state.queue_length:
            return state.current_message_id
        waiting = (await services.reader.queue(workflow_id)).waiting
    except ProblemError as problem:
        if problem.problem.status == 404:
            return None
        raise
    return waiting[0].id if waiting else None


class TurnStream:
    """One turn of a session, for one client. `turn` knows what the client has."""

    def __init__(self, services: Services, workflow_id: WorkflowId, turn: TurnChunks) -> None:
        self._services = services
        self._workflow_id = workflow_id
        self._turn = turn

    async def chunks(self) -> AsyncGenerator[Chunks, None]:
        """Yield the chunks of the turn until its end. The turn may still be in the queue."""
        if self._turn.first_notice:
            yield self._turn.notice(self._turn.first_notice)
        if self._turn.awaits_worker and await self._is_silent():
            yield self._turn.notice(SILENT_WORKER_NOTICE)
        while not self._turn.is_over:
            try:
                async with aclosing(self._follow()) as chunks_of_turn:
                    async for chunks in chunks_of_turn:
                        yield chunks
            except ProblemError as problem:
                if self._services.closing.has_begun:
                    yield self._turn.fail(STREAM_BROKEN)
                elif problem.problem.status not in TEMPORARY_STATUSES:
                    yield self._turn.fail(problem.problem.detail)
                else:
                    yield self._turn.notice(problem.problem.detail)
                    await self._services.closing.sleep(until=seconds_from_now(RETRY_SECONDS))

    async def _is_silent(self) -> bool:
        """Return whether no worker answers for the session."""
        try:
            async with self._services.closing.time_limit(seconds_from_now(SILENCE_SECONDS)):
                await self._services.reader.state(self._workflow_id, StateRequest(limit=0))
        except (TimeoutError, ProblemError):
            return True
        return False

    async def _follow(self) -> AsyncGenerator[Chunks, None]:
        """Yield what the session has of the turn, then what is new. Raises `ProblemError`."""
        state = await self._services.reader.state(self._workflow_id, StateRequest(limit=1))
        newest = state.messages[-1] if state.messages else None
        is_newest = newest is not None and newest.id == self._turn.turn_id
        yield await self._on_turn(newest if is_newest else await self._ended_turn())
        if self._turn.is_over:
            return
        yield self._note_decision(state.status)
        cursor = UpdatesRequest(last_seen_message_id=newest.id if newest else None, since_revision=state.revision)
        status = state.status
        async with aclosing(self._services.feed.events(self._workflow_id, cursor)) as events:
            async for event in events:
                status = event.update.status if isinstance(event, UpdateEvent) else status
                yield await self._on_event(event)
                yield self._note_decision(status)
                if self._turn.is_over:
                    return
        yield await self._on_turn(await self._ended_turn())
        if not self._turn.is_over:
            is_closed = status in FINAL_STATUSES
            yield self._turn.fail(f"The session is {status}; this turn has no answer." if is_closed else STREAM_BROKEN)

    def _note_decision(self, status: SessionStatus) -> Chunks:
        """Return a notice if an earlier turn, which this one waits for, needs a decision."""
        if self._turn.has_begun or self._turn.is_over or status != "awaiting_approval":
            return []
        return self._turn.notice(DECISION_AWAITED_NOTICE)

    async def _on_event(self, event: Event) -> Chunks:
        turn: ConversationMessage | None = None
        turn_id, has_begun = self._turn.turn_id, self._turn.has_begun
        match event:
            case ProblemEvent():  # the feed tries again
                problem = event.problem
                return self._turn.notice(problem.detail) if problem.status in TEMPORARY_STATUSES else []
            case PartialEvent():
                return self._turn.on_partial(event.growth)
            case ProgressEvent():
                return self._turn.on_progress(event.progress)
            case UpdateEvent():
                update = event.update
                turns = [*update.updated_messages, *update.new_messages]
                turn = next((turn for turn in turns if turn.id == turn_id), None)
                # The turn may have ended without being seen, or may never come.
                is_absence_final = update.reset if has_begun else update.queue_length == 0
                may_have_ended = turn is None and not update.has_more and is_absence_final
            case QueueEvent():
                may_have_ended = not has_begun and all(prompt.id != turn_id for prompt in event.waiting)
        return await self._on_turn(await self._ended_turn() if may_have_ended else turn)

    async def _ended_turn(self) -> ConversationMessage | None:
        """Return the turn if it has ended, also from the archive. Raises the fate of a prompt that became no turn."""
        return await self._services.fates.ended_turn(self._workflow_id, self._turn.turn_id)

    async def _on_turn(self, turn: ConversationMessage | None) -> Chunks:
        """Return the next chunks of the turn, with its new large texts restored if they can be read."""
        if turn is None:
            return []
        new_steps = [step for step in turn.steps if isinstance(step, ModelStep) and step.number > self._turn.final_step]
        # Results stay excerpts with a link.
        hashes = {hash_ for step in new_steps for hash_ in _text_hashes(step)}
        until = seconds_from_now(self._services.timeouts.restore)
        (whole,) = await self._services.texts.restore_texts(self._workflow_id, [turn], hashes, until=until)
        return self._turn.on_turn(whole, await self._pending_of(turn))

    async def _pending_of(self, turn: ConversationMessage) -> dict[str, PendingApproval]:
        """Return what people decide on in the turn, by call id. Raises `ProblemError`."""
        if turn.status != "awaiting_approval":
            return {}
        pending = await self._services.approvals.pending(self._workflow_id)
        return {approval.call_id: approval for approval in pending.approvals if approval.message_id == turn.id}


def _text_hashes(step: ModelStep) -> set[str]:
    refs = [step.thinking_blob, step.text_blob, *(call.args_blob for call in step.tool_calls)]
    return {ref.hash for ref in refs if ref}
