"""A turn live, as chunks: from wherever it stands, a place in the queue too, to its end (API-1, AGT-5).

Theory of operation. A stream begins with the turn as the session has it, and goes on with the session's feed from
there, so that nothing is missed in between. What a client sees of a turn that is already running is thus its replay,
and then the rest as it happens. Every stream uses the one feed that all who watch the session share.

Once a stream has begun it can't fail with a status any more. While Temporal or the workers are away it says so and
waits, as the turn does; what can't be mended by waiting is told as an `error` chunk, in the words of the problem. So is
the end of the gateway itself: a stream that just broke off would be an error to the AI SDK all the same, and one
without words.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from turnkeeper.api.ai_sdk.turn_chunks import Chunks, TurnChunks
from turnkeeper.api.live.feed import RETRY_SECONDS, Event, ProblemEvent
from turnkeeper.api.live.live_output import PartialEvent
from turnkeeper.api.live.shared_reader import QueueEvent, UpdateEvent
from turnkeeper.api.problems import ProblemError
from turnkeeper.api.services import Services
from turnkeeper.api.session_ids import workflow_id
from turnkeeper.api.store_calls import ANSWERS_SECONDS, seconds_from_now
from turnkeeper.api.temporal.session_reader import FINAL_STATUSES
from turnkeeper.models.session.session import StateRequest, UpdatesRequest
from turnkeeper.models.transcript.conversation import ConversationMessage, ConversationUpdate, SessionStatus
from turnkeeper.models.transcript.trajectory import ModelStep

AWAY = (429, 503, 504)
"""Problems that pass: Temporal is busy or can't be reached, or no worker answers."""


SILENCE_SECONDS = 1.2
"""How long a worker that gave no receipt is waited for before the stream says that none answers (API-2)."""

NO_WORKER = "Your message is safe. No worker has taken it up yet; it is answered as soon as one does."


class UIStreams:
    """The turns of all sessions as UI message streams."""

    def __init__(self, services: Services) -> None:
        """Read sessions with `services`."""
        self._services = services

    async def running_turn(self, session_id: str) -> str | None:
        """Return the id of the turn that runs, or of the prompt that goes next; `None` where there is neither.

        Raises `ProblemError`.
        """
        state = await self._services.reader.state(session_id, StateRequest(limit=0))
        if state.current_message_id or not state.queue_length:
            return state.current_message_id
        waiting = (await self._services.reader.queue(session_id)).waiting
        return waiting[0].id if waiting else None

    async def chunks(self, session_id: str, told: TurnChunks) -> AsyncGenerator[Chunks, None]:
        """Yield what is to be told of a turn until there is nothing more; it may still wait for its place."""
        if told.awaits_worker and await self._is_silent(session_id):
            yield told.notice(NO_WORKER)
        while not told.is_over:
            try:
                async with aclosing(self._followed(session_id, told)) as following:
                    async for chunks in following:
                        yield chunks
            except ProblemError as problem:
                if problem.problem.status not in AWAY:
                    yield told.fail(problem.problem.detail)
                else:
                    yield told.notice(problem.problem.detail)
                    await asyncio.sleep(RETRY_SECONDS)

    async def _is_silent(self, session_id: str) -> bool:
        """Return whether no worker answers for the session in a moment either."""
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                await self._services.reader.state(session_id, StateRequest(limit=0))
        except (TimeoutError, ProblemError):
            return True
        return False

    async def _followed(self, session_id: str, told: TurnChunks) -> AsyncGenerator[Chunks, None]:
        """Yield what the session has of the turn by now, then what is new. Raises `ProblemError`."""
        state = await self._services.reader.state(session_id, StateRequest(limit=1))
        newest = state.messages[-1] if state.messages else None
        is_newest = newest is not None and newest.id == told.turn_id
        yield await self._on_turn(session_id, told, newest if is_newest else await self._ended_turn(session_id, told))
        if told.is_over:
            return
        cursor = UpdatesRequest(last_seen_message_id=newest.id if newest else None, since_revision=state.revision)
        status = state.status
        async with aclosing(self._services.feed.events(session_id, cursor)) as events:
            async for event in events:
                status = event.update.status if isinstance(event, UpdateEvent) else status
                yield await self._on_event(session_id, told, event)
                if told.is_over:
                    return
        yield await self._on_turn(session_id, told, await self._ended_turn(session_id, told))
        if not told.is_over:
            yield told.fail(_why_it_ended(status))

    async def _on_event(self, session_id: str, told: TurnChunks, event: Event) -> Chunks:
        match event:
            case ProblemEvent():  # the feed tries again
                problem = event.problem
                return told.notice(problem.detail) if problem.status in AWAY else []
            case PartialEvent():
                return told.on_partial(event.growth)
            case UpdateEvent():
                turn = _turn_in(event.update, told.turn_id)
                is_missed = turn is None and _may_have_passed(event.update, told)
            case QueueEvent():
                turn = None
                is_missed = not told.has_begun and all(prompt.id != told.turn_id for prompt in event.waiting)
        return await self._on_turn(session_id, told, await self._ended_turn(session_id, told) if is_missed else turn)

    async def _on_turn(self, session_id: str, told: TurnChunks, turn: ConversationMessage | None) -> Chunks:
        return told.on_turn(await self._with_texts(session_id, turn, after=told.settled)) if turn else []

    async def _ended_turn(self, session_id: str, told: TurnChunks) -> ConversationMessage | None:
        """Return the turn if it has ended, also from the archive. Raises what became of a prompt that is no turn."""
        return await self._services.transcripts.ended_turn(session_id, told.turn_id)

    async def _with_texts(self, session_id: str, turn: ConversationMessage, *, after: int) -> ConversationMessage:
        """Return the turn with all text that steps after `after` refer to; what can't be read stays an excerpt."""
        hashes = {hash_ for step in turn.steps if isinstance(step, ModelStep) for hash_ in _hashes(step, after)}
        until = seconds_from_now(ANSWERS_SECONDS)
        (turn,) = await self._services.texts.restore_texts(workflow_id(session_id), [turn], hashes, until=until)
        return turn


def _hashes(step: ModelStep, after: int) -> set[str]:
    """Name what a step says by reference: results stay excerpts, with a link."""
    if step.number <= after:
        return set()
    refs = [step.thinking_blob, step.text_blob, *(call.args_blob for call in step.tool_calls)]
    return {ref.hash for ref in refs if ref}


def _turn_in(update: ConversationUpdate, turn_id: str) -> ConversationMessage | None:
    turns = [*update.updated_messages, *update.new_messages]
    return next((turn for turn in turns if turn.id == turn_id), None)


def _may_have_passed(update: ConversationUpdate, told: TurnChunks) -> bool:
    """Tell whether an update without the turn may mean that it ended unseen, or that there will be none."""
    return not update.has_more and (update.reset if told.has_begun else update.queue_length == 0)


def _why_it_ended(status: SessionStatus) -> str:
    if status in FINAL_STATUSES:
        return f"The session is {status}; this turn has no answer."
    return "The connection ended before the turn did. The turn goes on: resume the stream to see the rest."
