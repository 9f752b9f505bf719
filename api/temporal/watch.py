"""Noticing that a session has changed (API-3).

A session changes only when a worker completes one of its workflow tasks, and a long poll of Temporal's history returns
when that happens. It costs no query and no workflow task, however long nothing happens. Each watched session has one
such poll, shared by all its watchers. Its watch counts changes as versions, and a watcher that has seen version `n`
waits for a later one. A watch remains for a while after its last watcher has left, since clients come back.

That a poll brings nothing may mean that nothing happens, or that the connection hangs, which gRPC notices after 20 s
(API-2). So while anything is watched, one call that costs the server next to nothing is always on its way, or was
answered half a second ago:

    answered within the last second or so     results from the cache are current
    not answered for about 1.5 s              every poll asks Temporal itself
    not answered for 2.5 s                    Temporal can't be reached, and all who wait are informed

A busy server answers late, but it answers: the answer to any watch or query counts, and a late one ends the outage.
Only half seconds in which the event loop ran are counted, so a pause of this process is no outage. Those in which it
ran late count less, since the machine is as busy for the server.

Reads of a session that changes every few milliseconds have a pause between them: the first change is read at once, then
at most one a pause, and the last one at once again, since the session rests then: its workflow task has scheduled no
activity.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any

from cachetools import LRUCache
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, HistoryEventFilterType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import (
    GetSystemInfoRequest,
    GetWorkflowExecutionHistoryRequest,
    GetWorkflowExecutionHistoryResponse,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from turnkeeper.api.temporal.commits import CLOSING_EVENTS, COMPLETED, FAILURE_EVENTS, WorkflowTasks
from turnkeeper.api.temporal.temporal_calls import DOWN
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.models.ids import WorkflowId
from turnkeeper.stores.waiting import VersionCounter, cancel_until_done

RETRY_SECONDS = 0.5

MAX_MISSED_BEFORE_STALE = 1
MIN_MISSED_OF_OUTAGE = 4
"""Ticks without an answer. With the tick before the call, an outage is noticed after 2.5 s (API-2: within 3 s)."""

LATE_SECONDS = 0.1
LATE_TICK = 0.25
"""What a tick counts that ends so late: an outage is noticed four times later on a machine that is that busy."""

READ_PAUSE_SECONDS = 0.1
"""Between two reads of one session while it is at work."""

MOVE_ACTIVITY = "move_to_archive"
"""The one activity that runs beside a session's turns."""

MAX_CLOSED = 10_000
"""Sessions that are known to have ended, about 200 bytes each."""

CALL_TIMEOUT = timedelta(seconds=30)
"""Of one call, which may wait longer than an outage takes to be noticed: its late answer ends the outage."""


class ConnectionMonitor:
    """Calls Temporal again and again while it runs. `on_change` is called when an outage begins and when it ends."""

    def __init__(self, client: Client, on_change: Callable[[], None], timeouts: Timeouts) -> None:
        self._client = client
        self._timeouts = timeouts
        self._on_change = on_change
        self._missed = 0.0
        self._task: asyncio.Task[None] | None = None

    @property
    def is_current(self) -> bool:
        """Return whether Temporal has answered just now, so that a change would have been noticed."""
        return self._missed <= MAX_MISSED_BEFORE_STALE

    @property
    def is_unreachable(self) -> bool:
        return self._missed >= MIN_MISSED_OF_OUTAGE

    def start(self) -> None:
        """Start to call Temporal, unless it has started."""
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        """Stop, as nothing is watched any more."""
        if self._task is not None:
            self._task.cancel()
            self._task, self._missed = None, 0

    def note_answer(self) -> None:
        """Note that Temporal has answered a call."""
        was_unreachable, self._missed = self.is_unreachable, 0
        if was_unreachable:
            self._on_change()

    def _note_silence(self, *, seconds: float = 0.0) -> None:
        """Note that a tick, which took `seconds`, has brought no answer."""
        was_unreachable = self.is_unreachable
        self._missed += LATE_TICK if seconds > self._timeouts.tick + LATE_SECONDS else 1
        if self.is_unreachable and not was_unreachable:
            self._on_change()

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            call, began_at = asyncio.create_task(self._is_answered()), clock()
            try:
                while not (await asyncio.wait([call], timeout=self._timeouts.tick))[0]:
                    self._note_silence(seconds=clock() - began_at)
                    began_at = clock()
            finally:
                call.cancel()
            if call.result():
                self.note_answer()
            else:
                self._note_silence()
            await asyncio.sleep(self._timeouts.tick)

    async def _is_answered(self) -> bool:
        try:
            await self._client.workflow_service.get_system_info(GetSystemInfoRequest(), timeout=CALL_TIMEOUT)
        except RPCError as error:
            return error.status not in DOWN
        except RuntimeError:  # a client that never connected
            return False
        return True


class Watch(VersionCounter):
    """What is known of one session. Its version counts completed workflow tasks."""

    def __init__(self, connection: ConnectionMonitor) -> None:
        super().__init__()
        self._connection = connection
        self.failures = 0
        """Failed workflow tasks and failed reads. They change nothing, but watchers check why."""
        self.writes = 0
        """How often this gateway has written to the session: results from before a write are out of date."""
        self.revision = 0
        """The newest revision that any caller has read: no other gets an older one."""
        self.tasks = WorkflowTasks()
        """The outcomes of the workflow tasks of the run that is followed."""
        self.waiting_signals = self.waiting_bytes = 0
        """Signals since the last completed task, and their bytes in the history."""
        self.results = LRUCache[Hashable, tuple[Any, Any]](maxsize=4)
        """The newest results of reads, about 1 MB each at most, with the session's version when they were requested."""
        self.is_at_rest = True
        """Whether the last workflow task has scheduled no activity: the session waits for somebody else."""
        self.next_read_at = 0.0
        """When the pause after the last read is over, on the loop's clock."""
        self._read_count = -1
        self.woken_at = float("-inf")
        """When a worker was last made to load the session, on the loop's clock."""
        self.watchers = 0
        self.left_at = 0.0
        """When the last watcher left, on the loop's clock."""
        self.was_answered = False
        """The last poll was answered, and another is on its way."""
        self.is_over = False
        """The session is not followed: it is closed or doesn't exist."""

    @property
    def task_count(self) -> int:
        """Completed and failed workflow tasks."""
        return self.version + self.failures

    @property
    def may_read(self) -> bool:
        """Return whether the session may be read now: it rests, its last change is being read, or the pause is over."""
        is_over = asyncio.get_running_loop().time() >= self.next_read_at
        return self.is_at_rest or is_over or self._read_count == self.task_count

    def note_read(self) -> None:
        """Note that a read begins."""
        if self._read_count != self.task_count:
            self._read_count = self.task_count
            self.next_read_at = asyncio.get_running_loop().time() + READ_PAUSE_SECONDS

    @property
    def is_live(self) -> bool:
        """Return whether changes are noticed within moments."""
        return self.was_answered and self._connection.is_current

    @property
    def is_unreachable(self) -> bool:
        """Return whether Temporal has not answered for so long that all who wait are informed (API-2)."""
        return self._connection.is_unreachable

    def note_events(self, events: Iterable[HistoryEvent]) -> None:
        """Note the next events of the history. A new watch gets those from before it too."""
        self.tasks.learn(events)
        for event in events:
            if event.event_type == COMPLETED:
                self.waiting_signals = self.waiting_bytes = 0
            elif event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
                self.waiting_signals += 1
                self.waiting_bytes += event.ByteSize()

    def note_failure(self) -> None:
        self.failures += 1
        self.notify()


class WatchRegistry:
    """The watches of all watched sessions."""

    def __init__(self, client: Client, timeouts: Timeouts) -> None:
        self._client = client
        self._timeouts = timeouts
        self._watches: dict[str, Watch] = {}
        self._closed = LRUCache[WorkflowId, None](maxsize=MAX_CLOSED)
        """Sessions that had ended when they were last read. To follow one is to read all of its last run."""
        self._followers: set[asyncio.Task[None]] = set()
        self._connection = ConnectionMonitor(client, self._notify_all, timeouts)

    @asynccontextmanager
    async def watching(self, workflow_id: WorkflowId) -> AsyncIterator[Watch]:
        """Yield the session's watch, which the first watcher starts; one that is over, for a session that has ended."""
        watch = self._watches.get(workflow_id)
        if watch is None and workflow_id in self._closed:
            watch = Watch(self._connection)
            watch.is_over = True
        elif watch is None:
            watch = self._watches[workflow_id] = Watch(self._connection)
            follower = asyncio.create_task(self._follow(workflow_id, watch))
            self._followers.add(follower)
            follower.add_done_callback(self._followers.discard)
            self._connection.start()
        watch.watchers += 1
        try:
            yield watch
        finally:
            watch.watchers -= 1
            watch.left_at = asyncio.get_running_loop().time()

    def get(self, workflow_id: WorkflowId) -> Watch | None:
        return self._watches.get(workflow_id)

    def live_tasks(self, workflow_id: WorkflowId) -> WorkflowTasks | None:
        """Return the session's workflow tasks; `None` unless their outcomes are noticed within moments."""
        watch = self._watches.get(workflow_id)
        return watch.tasks if watch and watch.is_live else None

    def note_answer(self, workflow_id: WorkflowId, revision: int, *, is_closed: bool) -> None:
        """Note that Temporal and a worker have answered for the session, with which revision, and if it has ended."""
        self._connection.note_answer()
        if is_closed:
            self._closed[workflow_id] = None
        else:
            self._closed.pop(workflow_id, None)
        if watch := self._watches.get(workflow_id):
            watch.revision = max(watch.revision, revision)

    @contextmanager
    def writing(self, workflow_id: WorkflowId) -> Iterator[None]:
        """Invalidate cached reads of the session when the block exits, even on error."""
        try:
            yield
        finally:
            self._closed.pop(workflow_id, None)  # it may have started another session with the same id
            if watch := self._watches.get(workflow_id):
                watch.writes += 1

    async def close(self) -> None:
        await cancel_until_done(self._followers)
        self._connection.stop()

    def _notify_all(self) -> None:
        for watch in self._watches.values():
            watch.notify()

    async def _follow(self, workflow_id: WorkflowId, watch: Watch) -> None:
        """Count every change, from run to run, until the session is closed or nobody needs the watch."""
        request = GetWorkflowExecutionHistoryRequest(
            namespace=self._client.namespace,
            execution=WorkflowExecution(workflow_id=workflow_id),
            wait_new_event=True,
            history_event_filter_type=HistoryEventFilterType.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT,
        )
        clock = asyncio.get_running_loop().time
        try:
            while watch.watchers or clock() < watch.left_at + self._timeouts.watch_linger:
                page = await self._next_page(request, watch)
                if page is None:
                    continue
                events = page.history.events
                watch.note_events(events)
                watch.is_at_rest = _leaves_at_rest(events, before=watch.is_at_rest)
                if any(event.event_type == COMPLETED or event.event_type in CLOSING_EVENTS for event in events):
                    watch.advance()
                elif any(event.event_type in FAILURE_EVENTS for event in events):
                    watch.note_failure()
                request.next_page_token = page.next_page_token
                if not page.next_page_token:  # the run is closed
                    last = events[-1] if events else HistoryEvent()
                    if last.event_type != EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW:
                        break
                    next_run = last.workflow_execution_continued_as_new_event_attributes.new_execution_run_id
                    request.execution.run_id = next_run
        except RPCError:  # the session doesn't exist, or no longer
            watch.advance()
        finally:
            # Forgotten without a pause after the last check: a watcher that comes now starts a new watch.
            watch.was_answered, watch.is_over = False, True
            del self._watches[workflow_id]
            if not self._watches:
                self._connection.stop()
            watch.notify()

    async def _next_page(
        self, request: GetWorkflowExecutionHistoryRequest, watch: Watch
    ) -> GetWorkflowExecutionHistoryResponse | None:
        """Return the next events, once there are any; `None` if Temporal didn't answer. Raises `RPCError` without one.

        Temporal answers after 20 s without events too.
        """
        try:
            async with asyncio.timeout(self._timeouts.watch_poll):
                page = await self._client.workflow_service.get_workflow_execution_history(
                    request, timeout=timedelta(seconds=self._timeouts.watch_poll)
                )
        except (RPCError, TimeoutError, RuntimeError) as error:  # `RuntimeError`: a client that never connected
            watch.was_answered = False
            if isinstance(error, RPCError) and error.status == RPCStatusCode.NOT_FOUND:
                raise
            await asyncio.sleep(RETRY_SECONDS)
            return None
        watch.was_answered = True
        self._connection.note_answer()
        return page


def _leaves_at_rest(events: Sequence[HistoryEvent], *, before: bool) -> bool:
    """Return whether a session rests after `events`: its last completed workflow task has scheduled no activity."""
    is_at_rest = before
    for event in events:
        if event.event_type == COMPLETED:
            is_at_rest = True
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            is_move = event.activity_task_scheduled_event_attributes.activity_type.name == MOVE_ACTIVITY
            is_at_rest = is_at_rest and is_move
    return is_at_rest
