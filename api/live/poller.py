"""Answering polls, with reads that polling clients share with watchers (SES-12, API-3).

Starting a watch costs as much as a few polls. So a session that is polled rarely is just queried; one that is polled
often, or waited for, is watched, and then a current answer costs nothing. `delivered_forms.py` decides what a client
has already seen.
"""

import asyncio
from collections.abc import Callable
from functools import partial

from turnkeeper.api import problems
from turnkeeper.api.http.closing import Closing
from turnkeeper.api.live.delivered_forms import DeliveredForms, Poll
from turnkeeper.api.live.shared_reader import SharedReader, UpdateEvent
from turnkeeper.api.temporal.watch import Watch, WatchRegistry
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.session.messages import UpdatesRequest
from turnkeeper.models.transcript.conversation import FINAL_STATUSES, ConversationUpdate
from turnkeeper.stores.bounded_dict import BoundedDict

OFTEN_SECONDS = 10.0
"""A session polled twice within this time is watched."""

REWATCH_SECONDS = 0.5
"""Before watching a session again after its watch has ended."""

MAX_POLLED = 10_000


class Poller:
    """Answers polls. Methods raise `ProblemError`."""

    def __init__(self, shared_reader: SharedReader, watches: WatchRegistry, closing: Closing) -> None:
        self._shared_reader = shared_reader
        self._watches = watches
        self._closing = closing
        self._polled_at = BoundedDict[str, float](max_entries=MAX_POLLED)
        self._delivered = DeliveredForms()

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
        now = asyncio.get_running_loop().time()
        Poll(workflow_id, cursor, self._delivered).note_answer(event.update, now=now)
        return event

    async def wait_for_news(
        self,
        workflow_id: WorkflowId,
        cursor: UpdatesRequest,
        *,
        seconds: float,
        matches_etag: Callable[[ConversationUpdate], bool] = lambda update: False,
    ) -> UpdateEvent:
        """Return what is new as soon as there is something that the client has not seen, or after `seconds`.

        `matches_etag`: whether the client has the response with an update's `ETag`. Raises 503 once Temporal can't be
        reached.
        """
        clock = asyncio.get_running_loop().time
        until, poll = clock() + seconds, Poll(workflow_id, cursor, self._delivered, matches_etag=matches_etag)
        while True:
            async with self._watches.watching(workflow_id) as watch:
                event = await self._next_unseen(workflow_id, cursor, watch, poll, until=until)
            if event is not None:
                poll.note_answer(event.update, now=clock())
                return event
            await self._closing.sleep(until=min(until, clock() + REWATCH_SECONDS))

    async def _next_unseen(
        self, workflow_id: WorkflowId, cursor: UpdatesRequest, watch: Watch, poll: Poll, *, until: float
    ) -> UpdateEvent | None:
        """Return an update when it is due; `None` if `watch` is over before."""
        clock = asyncio.get_running_loop().time
        asked_at = clock()
        while True:
            version = watch.version
            event = await self._shared_reader.update(workflow_id, cursor, watch)
            is_closed = event.update.status in FINAL_STATUSES
            seconds = poll.hold_seconds(event.update, now=clock())
            due_at = until if seconds is None else min(until, asked_at + seconds)
            if seconds == 0 or self._closing.is_time_up(due_at):
                return event
            may_have_news = partial(_may_have_news, watch, version, is_closed)
            has_changed = await self._closing.wait_for(watch, may_have_news, until=due_at)
            if not has_changed and (watch.is_live or is_closed):
                return event
            if watch.is_unreachable:
                raise problems.temporal_unreachable()
            if watch.version == version:
                return None

    def _is_worth_a_watch(self, workflow_id: WorkflowId) -> bool:
        polled_at = self._polled_at.get(workflow_id)
        is_often = polled_at is not None and polled_at > asyncio.get_running_loop().time() - OFTEN_SECONDS
        return is_often or workflow_id in self._watches


def _may_have_news(watch: Watch, version: int, is_closed: bool) -> bool:
    """Return whether the session has changed after `version`, or might change without `watch` noticing."""
    return watch.version > version or watch.is_unreachable or (watch.is_over and not is_closed)
