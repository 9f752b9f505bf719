"""Answering polls, with reads that polling clients share with watchers (SES-12, API-3).

Starting a watch costs as much as a few polls. So a session that is polled rarely is just queried; one that is polled
often, or waited for, is watched, and then a current answer costs nothing.

A client that sends only `last_seen_message_id`, as in the original design (decision 34), doesn't say in which form it
has seen that turn: running or ended. So it gets the turn again while it runs and for `Timeouts.repeat` after its end,
and a `wait` for it lasts `UNCLEAR_SECONDS`. Every gateway decides that by the turn alone and remembers no clients.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial

from cachetools import LRUCache

from turnkeeper.api.http.closing import Closing
from turnkeeper.api.live.shared_reader import SharedReader, UpdateEvent
from turnkeeper.api.problems import problem
from turnkeeper.api.temporal.watch import Watch, WatchRegistry
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.session.messages import UpdatesRequest
from turnkeeper.models.transcript.conversation import FINAL_STATUSES, ConversationMessage, ConversationUpdate

OFTEN_SECONDS = 10.0
"""A session polled twice within this time is watched."""

REWATCH_SECONDS = 0.5
"""Before watching a session again after its watch has ended."""

UNCLEAR_SECONDS = 1.0
"""How long to hold a client that may or may not have seen the answer."""

MAX_POLLED = 10_000


class Poller:
    """Answers polls. Methods raise `ProblemError`."""

    def __init__(
        self, shared_reader: SharedReader, watches: WatchRegistry, closing: Closing, timeouts: Timeouts
    ) -> None:
        self._timeouts = timeouts
        self._shared_reader = shared_reader
        self._watches = watches
        self._closing = closing
        self._polled_at = LRUCache[str, float](maxsize=MAX_POLLED)

    async def poll(self, workflow_id: WorkflowId, cursor: UpdatesRequest) -> UpdateEvent:
        """Return what is new now."""
        if not self._is_worth_a_watch(workflow_id):
            event = await self._shared_reader.unshared_update(workflow_id, cursor)
            if event.update.status not in FINAL_STATUSES:
                self._polled_at[workflow_id] = asyncio.get_running_loop().time()
        else:
            async with self._watches.watching(workflow_id) as watch:
                if watch.is_live:
                    event = await self._shared_reader.update(workflow_id, cursor, watch)
                else:
                    event = await self._shared_reader.unshared_update(workflow_id, cursor)
        return without_old_repeats(event, cursor, self._timeouts, now=datetime.now(UTC))

    async def wait_for_news(
        self,
        workflow_id: WorkflowId,
        cursor: UpdatesRequest,
        *,
        seconds: float,
        is_known: Callable[[UpdateEvent], bool] = lambda event: False,
    ) -> UpdateEvent:
        """Return what is new as soon as there is something that the client has not seen, or after `seconds`.

        `is_known`: whether the client has this answer, by its `ETag`. Raises 503 once Temporal can't be reached.
        """
        clock = asyncio.get_running_loop().time
        until, news = clock() + seconds, _News(cursor, is_known)
        while True:
            async with self._watches.watching(workflow_id) as watch:
                event = await self._next_unseen(workflow_id, watch, news, until=until)
            if event is not None:
                return event
            await self._closing.sleep(until=min(until, clock() + REWATCH_SECONDS))

    async def _next_unseen(
        self, workflow_id: WorkflowId, watch: Watch, news: "_News", *, until: float
    ) -> UpdateEvent | None:
        """Return an update when it is due; `None` if `watch` is over before."""
        clock = asyncio.get_running_loop().time
        asked_at = clock()
        while True:
            version = watch.version
            event = await self._shared_reader.update(workflow_id, news.cursor, watch)
            event = without_old_repeats(event, news.cursor, self._timeouts, now=datetime.now(UTC))
            is_closed = event.update.status in FINAL_STATUSES
            seconds = news.hold_seconds(event)
            due_at = until if seconds is None else min(until, asked_at + seconds)
            if seconds == 0 or self._closing.is_time_up(due_at):
                return event
            may_have_news = partial(_may_have_news, watch, version, is_closed)
            has_changed = await self._closing.wait_for(watch, may_have_news, until=due_at)
            if not has_changed and (watch.is_live or is_closed):
                return event
            if watch.is_unreachable:
                raise problem("temporal-unreachable")
            if watch.version == version:
                return None

    def _is_worth_a_watch(self, workflow_id: WorkflowId) -> bool:
        polled_at = self._polled_at.get(workflow_id)
        is_often = polled_at is not None and polled_at > asyncio.get_running_loop().time() - OFTEN_SECONDS
        return is_often or workflow_id in self._watches


@dataclass
class _News:
    """What one poll with `wait` waits for. `is_known`: whether the client has an answer, by its `ETag`."""

    cursor: UpdatesRequest
    is_known: Callable[[UpdateEvent], bool]
    _first: UpdateEvent | None = None

    def hold_seconds(self, event: UpdateEvent) -> float | None:
        """Return how long to hold an answer: 0 for not at all, `None` if the client has seen all of it."""
        self._first = first = self._first or event
        if self.is_known(event):
            return None
        update, cursor = event.update, self.cursor
        is_closed, has_new = update.status in FINAL_STATUSES, bool(update.new_messages)
        if update.reset or (cursor.last_seen_message_id and has_new):
            return 0
        if cursor.since_revision is not None:
            return 0 if update.revision > cursor.since_revision else None
        if cursor.last_seen_message_id is None:
            return 0 if has_new or is_closed else None
        was_closed = first.update.status in FINAL_STATUSES
        if is_closed > was_closed or _has_changed(update, first.update):
            return 0
        return UNCLEAR_SECONDS if is_closed or update.updated_messages else None


def _has_changed(update: ConversationUpdate, before: ConversationUpdate) -> bool:
    """Return whether the last seen turn has changed while the client waited."""
    return bool(update.updated_messages) and update.updated_messages != before.updated_messages


def without_old_repeats(
    event: UpdateEvent, cursor: UpdatesRequest, timeouts: Timeouts, *, now: datetime
) -> UpdateEvent:
    """Return the event without the last seen turn, if the client sends no revision and that ended long ago.

    With new messages it is repeated once more, for a client that comes back after a pause.
    """
    update = event.update
    turns = [] if cursor.since_revision is not None or update.new_messages else update.updated_messages
    if not turns or not all(_ended_before(turn, now - timedelta(seconds=timeouts.repeat)) for turn in turns):
        return event
    return replace(event, update=update.model_copy(update={"updated_messages": []}))


def _ended_before(turn: ConversationMessage, time: datetime) -> bool:
    ended_at = turn.agent_timestamp if turn.is_complete else None
    return ended_at is not None and ended_at < time


def _may_have_news(watch: Watch, version: int, is_closed: bool) -> bool:
    """Return whether the session has changed after `version`, or might change without `watch` noticing."""
    return watch.version > version or watch.is_unreachable or (watch.is_over and not is_closed)
