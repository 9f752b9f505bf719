"""A turn live, as chunks: from wherever it stands, a place in the queue too, to its end (API-1, AGT-5).

Theory of operation. A stream begins with the turn as the session has it, and goes on with the session's feed from
there, so that nothing is missed in between. What a client sees of a turn that is already running is thus its replay,
and then the rest as it happens. Every stream uses the one feed that all who watch the session share.

Once a stream has begun it can't fail with a status any more. While Temporal or the workers are away it says so and
waits, as the turn does; what waiting does not fix is an `error` chunk, in the words of the problem. So is the end of
the gateway itself: a stream that just broke off would be an error to the AI SDK all the same, and one without words.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from turnkeeper.api import problem_texts as texts
from turnkeeper.api.ai_sdk.turn_chunks import Chunks, TurnChunks
from turnkeeper.api.live.feed import RETRY_SECONDS, Event, ProblemEvent
from turnkeeper.api.live.live_output import PartialEvent
from turnkeeper.api.live.shared_reader import QueueEvent, UpdateEvent
from turnkeeper.api.problems import ProblemError
from turnkeeper.api.services import Services
from turnkeeper.api.session_ids import workflow_id
from turnkeeper.api.store_calls import RESTORE_SECONDS, seconds_from_now
from turnkeeper.api.temporal.session_reader import FINAL_STATUSES
from turnkeeper.models.session.session import StateRequest, UpdatesRequest
from turnkeeper.models.transcript.conversation import ConversationMessage, SessionStatus
from turnkeeper.models.transcript.trajectory import ModelStep

TEMPORARY_STATUSES = (429, 503, 504)
"""Problems that pass: Temporal is busy or can't be reached, or no worker answers."""

SILENCE_SECONDS = 1.2
"""How long a worker that gave no receipt is waited for before the stream says that none answers (API-2)."""


async def turn_to_resume(services: Services, session_id: str) -> str | None:
    """Return the id of the turn that runs, or of the prompt that goes next; `None` where there is neither.

    Nor is there in a session that does not exist. Raises `ProblemError`.
    """
    try:
        state = await services.reader.state(session_id, StateRequest(limit=0))
        if state.current_message_id or not state.queue_length:
            return state.current_message_id
        waiting = (await services.reader.queue(session_id)).waiting
    except ProblemError as problem:
        if problem.problem.status == 404:
            return None
        raise
    return waiting[0].id if waiting else None


class TurnStream:
    """One turn of a session, for one client."""

    def __init__(self, services: Services, session_id: str, turn: TurnChunks) -> None:
        """Read the session with `services`; `turn` knows what the client has."""
        self._services = services
        self._session_id = session_id
        self._turn = turn

    async def chunks(self) -> AsyncGenerator[Chunks, None]:
        """Yield what is to be sent of the turn until there is nothing more; it may still wait for its place."""
        if self._turn.awaits_worker and await self._is_silent():
            yield self._turn.notice(texts.SILENT_WORKER_NOTICE)
        while not self._turn.is_over:
            try:
                async with aclosing(self._follow()) as chunks_of_turn:
                    async for chunks in chunks_of_turn:
                        yield chunks
            except ProblemError as problem:
                if problem.problem.status not in TEMPORARY_STATUSES:
                    yield self._turn.fail(problem.problem.detail)
                else:
                    yield self._turn.notice(problem.problem.detail)
                    await asyncio.sleep(RETRY_SECONDS)

    async def _is_silent(self) -> bool:
        """Return whether no worker answers for the session in a moment either."""
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                await self._services.reader.state(self._session_id, StateRequest(limit=0))
        except (TimeoutError, ProblemError):
            return True
        return False

    async def _follow(self) -> AsyncGenerator[Chunks, None]:
        """Yield what the session has of the turn by now, then what is new. Raises `ProblemError`."""
        state = await self._services.reader.state(self._session_id, StateRequest(limit=1))
        newest = state.messages[-1] if state.messages else None
        is_newest = newest is not None and newest.id == self._turn.turn_id
        yield await self._on_turn(newest if is_newest else await self._ended_turn())
        if self._turn.is_over:
            return
        cursor = UpdatesRequest(last_seen_message_id=newest.id if newest else None, since_revision=state.revision)
        status = state.status
        async with aclosing(self._services.feed.events(self._session_id, cursor)) as events:
            async for event in events:
                status = event.update.status if isinstance(event, UpdateEvent) else status
                yield await self._on_event(event)
                if self._turn.is_over:
                    return
        yield await self._on_turn(await self._ended_turn())
        if not self._turn.is_over:
            yield self._turn.fail(_end_reason(status))

    async def _on_event(self, event: Event) -> Chunks:
        turn: ConversationMessage | None = None
        turn_id, has_begun = self._turn.turn_id, self._turn.has_begun
        match event:
            case ProblemEvent():  # the feed tries again
                problem = event.problem
                return self._turn.notice(problem.detail) if problem.status in TEMPORARY_STATUSES else []
            case PartialEvent():
                return self._turn.on_partial(event.growth)
            case UpdateEvent():
                update = event.update
                turns = [*update.updated_messages, *update.new_messages]
                turn = next((turn for turn in turns if turn.id == turn_id), None)
                # It may have ended unseen, or never come.
                is_absence_final = update.reset if has_begun else update.queue_length == 0
                may_have_ended = turn is None and not update.has_more and is_absence_final
            case QueueEvent():
                may_have_ended = not has_begun and all(prompt.id != turn_id for prompt in event.waiting)
        return await self._on_turn(await self._ended_turn() if may_have_ended else turn)

    async def _ended_turn(self) -> ConversationMessage | None:
        """Return the turn if it has ended, also from the archive. Raises what became of a prompt that is no turn."""
        return await self._services.transcripts.ended_turn(self._session_id, self._turn.turn_id)

    async def _on_turn(self, turn: ConversationMessage | None) -> Chunks:
        """Return what is to be sent of the turn, its new texts whole; what can't be read stays an excerpt."""
        if turn is None:
            return []
        new_steps = [step for step in turn.steps if isinstance(step, ModelStep) and step.number > self._turn.final_step]
        # Results stay excerpts, with a link.
        hashes = {hash_ for step in new_steps for hash_ in _text_hashes(step)}
        until = seconds_from_now(RESTORE_SECONDS)
        session = workflow_id(self._session_id)
        (whole,) = await self._services.texts.restore_texts(session, [turn], hashes, until=until)
        return self._turn.on_turn(whole)


def _text_hashes(step: ModelStep) -> set[str]:
    refs = [step.thinking_blob, step.text_blob, *(call.args_blob for call in step.tool_calls)]
    return {ref.hash for ref in refs if ref}


def _end_reason(status: SessionStatus) -> str:
    if status in FINAL_STATUSES:
        return texts.SESSION_CLOSED.format(status=status)
    return texts.STREAM_BROKEN
