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
from typing import TYPE_CHECKING, NamedTuple

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.client import Client
from temporalio.converter import DataConverter, SerializationContext, StorageDriverStoreContext
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, WorkflowInstance, WorkflowInstanceDetails
from temporalio.workflow import Info

from turnkeeper.models.as_of import FORGET_QUERY
from turnkeeper.models.ids import WorkflowId
from turnkeeper.workflows.hosting.history_pages import newest_pages

if TYPE_CHECKING:
    from temporalio.worker._command_aware_visitor import CommandInfo

STANDALONE_QUERY_ID = "legacy_query"
"""The SDK's id for a query that arrives without a workflow task."""

CHECK_AFTER_SECONDS = 0.2
"""Pause between a query and reading the history. A busy session has its next workflow task by then."""

READ_SECONDS = 1.0


class WorkflowTask(NamedTuple):
    """A workflow task as the worker received it."""

    started_at: datetime
    history_length: int
    """Number of events up to its start event."""


class EvictingRunner(UnsandboxedWorkflowRunner):
    """The SDK's runner without a sandbox, which also evicts sessions whose state is in doubt.

    A sandbox loads modules that are imported late once more for each session, and restricts them: an application's log
    handler, which runs in the workflow's thread, then fails workflow tasks for ever (docs/decisions/0045).
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._checks: set[asyncio.Task[None]] = set()
        self.evict: Callable[[str], None] = lambda run_id: None
        """Evicts a run once the worker has answered its query; set by the code that creates the worker."""

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """Create an instance whose activations are inspected before the workflow gets them."""
        loop = asyncio.get_running_loop()

        def check_soon() -> None:  # called in the thread of an activation
            task = instance.task
            loop.call_soon_threadsafe(lambda: loop.call_later(CHECK_AFTER_SECONDS, check, task))

        def check(task: WorkflowTask | None) -> None:
            if task is not None and instance.task is task:
                checking = asyncio.create_task(self._evict_unless_completed(det.info, instance, task))
                self._checks.add(checking)
                checking.add_done_callback(self._checks.discard)

        instance = EvictableInstance(
            super().create_instance(det),
            needs_visits=needs_visits(self._client.data_converter),
            evict=lambda: self.evict(det.info.run_id),
            check_soon=check_soon,
        )
        return instance

    async def _evict_unless_completed(self, info: Info, instance: "EvictableInstance", task: WorkflowTask) -> None:
        try:
            async with asyncio.timeout(READ_SECONDS):
                is_completed = await _has_completed(self._client, info, task)
        except (RPCError, TimeoutError):
            is_completed = False
        if not is_completed and instance.task is task:
            self.evict(info.run_id)


def needs_visits(converter: DataConverter) -> bool:
    """Return whether payloads change on their way between the worker and the workflow."""
    return converter.external_storage is not None or converter.payload_codec is not None


class EvictableInstance(WorkflowInstance):
    """The SDK's instance, with the workflow tasks that its state rests on."""

    def __init__(
        self,
        instance: WorkflowInstance,
        *,
        needs_visits: bool,
        evict: Callable[[], None],
        check_soon: Callable[[], None],
    ) -> None:
        self._instance = instance
        self.needs_visits = needs_visits
        self._evict = evict
        self._check_soon = check_soon
        self.task: WorkflowTask | None = None
        """The last workflow task."""
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
        return self._instance.activate(act)

    def get_serialization_context(self, command_info: "CommandInfo | None") -> SerializationContext | None:
        return self._instance.get_serialization_context(command_info)

    def get_external_store_context(self, command_info: "CommandInfo | None") -> StorageDriverStoreContext:
        return self._instance.get_external_store_context(command_info)

    def get_info(self) -> Info:
        return self._instance.get_info()

    def get_thread_id(self) -> int | None:
        return self._instance.get_thread_id()

    def _note_query(self, *, is_order: bool) -> None:
        if is_order or self._is_without_task:
            self._evict()
        elif self._was_live and not self._is_check_scheduled:
            self._is_check_scheduled = True
            self._check_soon()

    def _note_task(self, act: WorkflowActivation) -> None:
        before, self.task = self.task, WorkflowTask(act.timestamp.ToDatetime(tzinfo=UTC), act.history_length)
        self._was_live, self._is_check_scheduled = not act.is_replaying, False
        is_same_time_and_longer = (
            before is not None
            and before.started_at == self.task.started_at
            and before.history_length < self.task.history_length
        )
        self._is_without_task = self._was_live and is_same_time_and_longer


async def _has_completed(client: Client, info: Info, task: WorkflowTask) -> bool:
    """Return whether the workflow task was completed, in the next event after its start. Raises `RPCError`."""
    events: dict[int, HistoryEvent] = {}
    async with aclosing(newest_pages(client, WorkflowId(info.workflow_id), run_id=info.run_id)) as pages:
        async for page in pages:
            events.update((event.event_id, event) for event in page)
            if task.history_length in events:
                break
    start, end = events.get(task.history_length), events.get(task.history_length + 1)
    if start is None or end is None:
        return False
    is_completed = end.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    return is_completed and start.event_time.ToDatetime(tzinfo=UTC) == task.started_at
