"""Who is told that a session has changed, and how that is noticed (API-3).

Theory of operation. A session changes only when a worker completes one of its workflow tasks, and Temporal's history
long-poll tells when that happens: it costs no query and no workflow task, however long nobody says anything. Each
watched session has one such poll, shared by all who watch; it counts changes, and who has seen count `n` waits for
more than `n`. It lingers for a while after the last watcher has left, since clients come back.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, HistoryEventFilterType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import (
    GetWorkflowExecutionHistoryRequest,
    GetWorkflowExecutionHistoryResponse,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from turnkeeper.api.temporal.workflow_tasks import CLOSING_EVENTS, FAILURE_EVENTS, WorkflowTasks

LINGER_SECONDS = 30.0
POLL_SECONDS = 30.0
RETRY_SECONDS = 0.5

_CHANGED = CLOSING_EVENTS | {EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED}


class Watch:
    """Counts the changes of one session."""

    def __init__(self) -> None:
        """Start at no change, followed by nobody."""
        self.changes = 0
        self.failures = 0
        """Workflow tasks that came to nothing: no change, but who wants to say what is wrong has reason to look."""
        self.writes = 0
        """What this gateway has sent to the session: an answer from before a write is out of date at once."""
        self.revision = 0
        """The newest of the session's revisions that was read here, by whomever: nobody is shown an older one then."""
        self.tasks = WorkflowTasks()
        """What became of the workflow tasks of the runs that were followed."""
        self.holders: frozenset[str] = frozenset()
        """Workers of which one has the session in memory, by their identities; empty: not known."""
        self.is_being_woken = False
        self.watchers = 0
        self.left_at = 0.0
        """When the last watcher left, on the loop's clock."""
        self.is_timed = False
        """A timer will look whether anybody has come since."""
        self.is_live = False
        """Temporal has answered the last poll: what has changed since will be told within moments."""
        self.is_over = False
        """Nobody follows the session any more: it is closed, or there is none."""
        self._stirred = asyncio.Event()

    def note_change(self) -> None:
        """Count a change, and wake everyone who waits."""
        self.changes += 1
        self.stir()

    @property
    def signs(self) -> int:
        """Everything that was noticed."""
        return self.changes + self.failures

    def note_failure(self) -> None:
        """Count a failed workflow task, and wake everyone who waits."""
        self.failures += 1
        self.stir()

    def stir(self) -> None:
        """Have everyone who waits look again at what they wait for."""
        self._stirred.set()
        self._stirred = asyncio.Event()

    async def beyond(self, changes: int, *, until: float) -> bool:
        """Wait for more than `changes` changes; `False` when the loop's clock reaches `until` first."""
        return await self.stirred(lambda: self.changes > changes, until=until)

    async def stirred(self, is_so: Callable[[], bool], *, until: float | None = None) -> bool:
        """Wait until `is_so`, which whoever changes it tells by `stir`; `False` at `until`, on the loop's clock."""
        while not is_so():
            try:
                async with asyncio.timeout_at(until):
                    await self._stirred.wait()
            except TimeoutError:
                return False
        return True


class Watches:
    """One watch per session that anyone watches."""

    def __init__(self, client: Client) -> None:
        """Follow histories through `client`."""
        self._client = client
        self._watches: dict[str, Watch] = {}
        self._followers: dict[str, asyncio.Task[None]] = {}

    @asynccontextmanager
    async def watching(self, workflow_id: str) -> AsyncIterator[Watch]:
        """Give the session's watch for the time of the block; the first one starts it."""
        watch = self._watches.get(workflow_id)
        if watch is None:
            watch = self._watches[workflow_id] = Watch()
            self._followers[workflow_id] = asyncio.create_task(self._follow(workflow_id, watch))
        watch.watchers += 1
        try:
            yield watch
        finally:
            watch.watchers -= 1
            if not watch.watchers:
                self._linger(workflow_id, watch)

    def __contains__(self, workflow_id: object) -> bool:
        """Tell whether the session is watched."""
        return workflow_id in self._watches

    def get(self, workflow_id: str) -> Watch | None:
        """Return the session's watch, if anybody watches it."""
        return self._watches.get(workflow_id)

    def note_revision(self, workflow_id: str, revision: int) -> None:
        """Remember that the session was seen at this revision."""
        watch = self._watches.get(workflow_id)
        if watch is not None:
            watch.revision = max(watch.revision, revision)

    @contextmanager
    def writing(self, workflow_id: str) -> Iterator[None]:
        """Have who reads the session after the block see what is written in it, however the block ends."""
        try:
            yield
        finally:
            watch = self._watches.get(workflow_id)
            if watch is not None:
                watch.writes += 1

    def stir_all(self) -> None:
        """Have everyone who waits for anything look again at what they wait for."""
        for watch in self._watches.values():
            watch.stir()

    async def close(self) -> None:
        """Stop following everything."""
        followers = list(self._followers.values())
        for follower in followers:
            follower.cancel()
        await asyncio.gather(*followers, return_exceptions=True)

    def _linger(self, workflow_id: str, watch: Watch) -> None:
        """Have the watch end when nobody has come for a while; one timer a watch, however many come and go."""
        watch.left_at = asyncio.get_running_loop().time()
        if not watch.is_timed:
            self._leave_after(LINGER_SECONDS, workflow_id, watch)

    def _leave_after(self, seconds: float, workflow_id: str, watch: Watch) -> None:
        watch.is_timed = True
        asyncio.get_running_loop().call_later(seconds, self._leave, workflow_id, watch)

    def _leave(self, workflow_id: str, watch: Watch) -> None:
        watch.is_timed = False
        if watch.watchers or self._watches.get(workflow_id) is not watch:
            return
        remaining = watch.left_at + LINGER_SECONDS - asyncio.get_running_loop().time()
        if remaining > 0:
            self._leave_after(remaining, workflow_id, watch)
        else:
            # Forgotten before it ends: a watcher that comes in between begins a new one, and waits for no dead one.
            follower = self._followers[workflow_id]
            self._forget(workflow_id)
            follower.cancel()

    def _forget(self, workflow_id: str) -> None:
        self._watches.pop(workflow_id, None)
        self._followers.pop(workflow_id, None)

    async def _follow(self, workflow_id: str, watch: Watch) -> None:
        """Note every change until the session is closed, from run to run; who watches then learns it by asking."""
        run_id: str | None = ""
        try:
            while run_id is not None:
                run_id = await self._follow_run(workflow_id, run_id, watch)
        except RPCError:  # there is no such session, or no longer
            watch.note_change()
        finally:
            watch.is_live, watch.is_over = False, True
            watch.stir()
            if self._watches.get(workflow_id) is watch:
                self._forget(workflow_id)

    async def _follow_run(self, workflow_id: str, run_id: str, watch: Watch) -> str | None:
        """Note every change of a run; return the run that goes on after it, if any."""
        token = b""
        while True:
            page = await self._next_events(workflow_id, run_id, token, watch)
            events = page.history.events
            _note_holder(events, watch)
            watch.tasks.learn(events)
            if any(event.event_type in _CHANGED for event in events):
                watch.note_change()
            elif any(event.event_type in FAILURE_EVENTS for event in events):
                watch.note_failure()
            if not page.next_page_token:
                return _next_run(events[-1]) if events else None
            token = page.next_page_token

    async def _next_events(
        self, workflow_id: str, run_id: str, token: bytes, watch: Watch
    ) -> GetWorkflowExecutionHistoryResponse:
        request = GetWorkflowExecutionHistoryRequest(
            namespace=self._client.namespace,
            execution=WorkflowExecution(workflow_id=workflow_id, run_id=run_id),
            next_page_token=token,
            wait_new_event=True,
            history_event_filter_type=HistoryEventFilterType.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT,
        )
        while True:
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    page = await self._client.workflow_service.get_workflow_execution_history(
                        request, timeout=timedelta(seconds=POLL_SECONDS)
                    )
            except (RPCError, TimeoutError, RuntimeError) as error:  # `RuntimeError`: a client that never connected
                watch.is_live = False
                if isinstance(error, RPCError) and error.status == RPCStatusCode.NOT_FOUND:
                    raise
                await asyncio.sleep(RETRY_SECONDS)
            else:
                watch.is_live = True
                return page


def _note_holder(events: Sequence[HistoryEvent], watch: Watch) -> None:
    for event in reversed(events):
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            watch.holders = frozenset([event.workflow_task_completed_event_attributes.identity])
            return


def _next_run(last: HistoryEvent) -> str | None:
    if last.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW:
        return last.workflow_execution_continued_as_new_event_attributes.new_execution_run_id
    return None
