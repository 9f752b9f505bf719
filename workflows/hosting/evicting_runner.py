"""Evicts sessions whose state in a worker's memory may rest on an uncompleted workflow task (SES-12).

Theory of operation. For a query without a workflow task, a worker gets the session's whole history and applies all of
it before it answers. That includes events of a workflow task that is open at another worker, and events after the last
workflow task. The SDK keeps this state and continues from it with the session's next workflow task. Other workers apply
these events at another time and with another history length, so they may decide differently. Then the history can't be
replayed any more.

So the session is evicted if this may have happened, and replayed when it is next needed:

- Events without a workflow task have the time of the previous one, but the history is longer. The worker evicts the
  session as soon as it has answered.
- A workflow task that is open at another worker can't be recognised. So shortly after a query the worker reads the
  history, unless the next workflow task has arrived by then. If the last one was not completed, it evicts the session:
  Temporal starts a lost task again after its timeout, and the SDK would complete it with the state of the lost one.
- The gateway reads the history anyway. If an answer rests on a lost workflow task, it sends `FORGET_QUERY`.

A query that arrives with a workflow task brings only the events of this task, so it needs no check.
"""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from datetime import UTC, datetime
from typing import NamedTuple

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner
from temporalio.workflow import Info

from turnkeeper.workflows.hosting.history_pages import newest_pages

FORGET_QUERY = "forget_session"

STANDALONE_QUERY_ID = "legacy_query"
"""The SDK's id for a query that arrives without a workflow task."""

LOOK_AFTER_SECONDS = 0.2
"""Pause between a query and reading the history. A busy session has its next workflow task by then."""

LOOK_SECONDS = 1.0


class Task(NamedTuple):
    """A workflow task as the worker received it."""

    started_at: datetime
    history_length: int
    """Number of events up to its start event."""


class EvictingRunner(SandboxedWorkflowRunner):
    """The SDK's runner, which also evicts sessions whose state is in doubt."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self._client = client
        self._looks: set[asyncio.Task[None]] = set()
        self.evict: Callable[[str], None] = lambda run_id: None
        """Evicts a run once the worker has answered its query; set by the code that creates the worker."""

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """Create an instance whose activations are looked at before the workflow gets them."""
        instance = super().create_instance(det)
        loop = asyncio.get_running_loop()

        def look_soon() -> None:  # called in the thread of an activation
            task = guard.task
            loop.call_soon_threadsafe(lambda: loop.call_later(LOOK_AFTER_SECONDS, look, task))

        def look(task: Task | None) -> None:
            if task is not None and guard.task is task:
                looking = asyncio.create_task(self._forget_unless_completed(det.info, guard, task))
                self._looks.add(looking)
                looking.add_done_callback(self._looks.discard)

        guard = _Guard(instance.activate, evict=lambda: self.evict(det.info.run_id), look_soon=look_soon)
        instance.activate = guard.activate  # type: ignore[method-assign]
        return instance

    async def _forget_unless_completed(self, info: Info, guard: "_Guard", task: Task) -> None:
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                is_completed = await _has_completed(self._client, info, task)
        except (RPCError, TimeoutError):
            is_completed = False
        if not is_completed and guard.task is task:
            self.evict(info.run_id)


class _Guard:
    """What is known of the tasks that made one instance's state."""

    def __init__(
        self,
        activate: Callable[[WorkflowActivation], WorkflowActivationCompletion],
        *,
        evict: Callable[[], None],
        look_soon: Callable[[], None],
    ) -> None:
        self._activate = activate
        self._evict = evict
        self._look_soon = look_soon
        self.task: Task | None = None
        """The last task."""
        self._was_live = False
        """Whether the last activation was live, not a replay."""
        self._is_without_task = False
        """Whether the last activation applied events after the last workflow task."""
        self._is_check_scheduled = False

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        queries = [job.query_workflow for job in act.jobs if job.HasField("query_workflow")]
        if any(query.query_id == STANDALONE_QUERY_ID for query in queries):
            self._note_query(is_order=queries[0].query_type == FORGET_QUERY)
        elif not queries and not any(job.HasField("remove_from_cache") for job in act.jobs):
            self._note_task(act)
        return self._activate(act)

    def _note_query(self, *, is_order: bool) -> None:
        if is_order or self._is_without_task:
            self._evict()
        elif self._was_live and not self._is_check_scheduled:
            self._is_check_scheduled = True
            self._look_soon()

    def _note_task(self, act: WorkflowActivation) -> None:
        before, self.task = self.task, Task(act.timestamp.ToDatetime(tzinfo=UTC), act.history_length)
        self._was_live, self._is_check_scheduled = not act.is_replaying, False
        is_same_time_and_longer = (
            before is not None
            and before.started_at == self.task.started_at
            and before.history_length < self.task.history_length
        )
        self._is_without_task = self._was_live and is_same_time_and_longer


async def _has_completed(client: Client, info: Info, task: Task) -> bool:
    """Return whether the workflow task was completed, in the next event after its start. Raises `RPCError`."""
    events: dict[int, HistoryEvent] = {}
    async with aclosing(newest_pages(client, info.workflow_id, run_id=info.run_id)) as pages:
        async for page in pages:
            events.update((event.event_id, event) for event in page)
            if task.history_length in events:
                break
    start, end = events.get(task.history_length), events.get(task.history_length + 1)
    if start is None or end is None:
        return False
    is_completed = end.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    return is_completed and start.event_time.ToDatetime(tzinfo=UTC) == task.started_at
