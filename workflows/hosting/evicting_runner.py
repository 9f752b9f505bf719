"""A worker keeps no session in memory whose state rests on a workflow task that was never completed (SES-12).

Theory of operation. A worker that is asked about a session is sent its history, and takes in all of it before it
answers: also the events of a task that is open at another worker, and those for which no task has begun. The SDK keeps
that state, and goes on from it with the session's next task. What it has made of these events differs from what every
other worker makes of them: another time, another length of the history. So it may decide otherwise, and then the
session's history can't be replayed any more.

So the session is forgotten where this may have happened, and read from its history when it is next needed:

- Events without a task have the time of the task before, and there are more of them. The worker forgets the session as
  soon as it has answered.
- Of a task that is open elsewhere nothing shows. A moment after a query the worker looks into the history, unless the
  next task has come by then. It forgets the session if the last task was not completed: one that is lost is done again
  after its timeout, and the SDK would complete it with what it has made of the lost one.
- The gateway sees the history anyway. Where an answer rests on a lost task, it sends `FORGET_QUERY`.

A query that comes with a workflow task brings only that task's events, so it is no reason for any of this.
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
from temporalio.converter import (
    DataConverter,
    SerializationContext,
    StorageDriverStoreContext,
    WithSerializationContext,
)
from temporalio.service import RPCError
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions
from temporalio.workflow import Info

from turnkeeper.workflows.hosting.history_pages import newest_pages

if TYPE_CHECKING:
    from temporalio.worker._command_aware_visitor import CommandInfo

FORGET_QUERY = "forget_session"

ALONE = "legacy_query"
"""The id of a query that comes without a workflow task."""

LOOK_AFTER_SECONDS = 0.2
"""After a query. In a session that is at work the next task has come by then, and nothing is read."""

LOOK_SECONDS = 1.0

RESTRICTIONS = SandboxRestrictions.default.with_passthrough_modules("turnkeeper")
"""Else the sandbox loads the workflow's own module anew for each session: 10 ms, and a copy in memory."""


class Task(NamedTuple):
    """A workflow task as a worker was sent it."""

    started_at: datetime
    history_length: int
    """Events up to its start, which is the last one."""


class EvictingRunner(SandboxedWorkflowRunner):
    """The SDK's own runner, for sessions that are forgotten where their state is in doubt."""

    def __init__(self, client: Client) -> None:
        super().__init__(restrictions=RESTRICTIONS)
        self._client = client
        self._looks: set[asyncio.Task[None]] = set()
        self.evict: Callable[[str], None] = lambda run_id: None
        """Makes the worker forget a run once it has answered what it was asked; set by who builds the worker."""

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """Create an instance whose activations are looked at before the workflow gets them."""
        loop = asyncio.get_running_loop()

        def look_soon() -> None:  # called in the thread of an activation
            task = instance.task
            loop.call_soon_threadsafe(lambda: loop.call_later(LOOK_AFTER_SECONDS, look, task))

        def look(task: Task | None) -> None:
            if task is not None and instance.task is task:
                looking = asyncio.create_task(self._forget_unless_completed(det.info, instance, task))
                self._looks.add(looking)
                looking.add_done_callback(self._looks.discard)

        instance = EvictableInstance(
            super().create_instance(det),
            needs_contexts=needs_contexts(self._client.data_converter),
            evict=lambda: self.evict(det.info.run_id),
            look_soon=look_soon,
        )
        return instance

    async def _forget_unless_completed(self, info: Info, instance: "EvictableInstance", task: Task) -> None:
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                is_completed = await _has_completed(self._client, info, task)
        except (RPCError, TimeoutError):
            is_completed = False
        if not is_completed and instance.task is task:
            self.evict(info.run_id)


def needs_contexts(converter: DataConverter) -> bool:
    """Return whether payloads need to know which command they belong to, when they leave or enter the worker.

    The payload converter and the failure converter don't count: they run within the workflow, which has its own way.
    """
    return converter.external_storage is not None or isinstance(converter.payload_codec, WithSerializationContext)


class EvictableInstance(WorkflowInstance):
    """The SDK's own instance, and what is known of the tasks that made its state."""

    def __init__(
        self,
        instance: WorkflowInstance,
        *,
        needs_contexts: bool,
        evict: Callable[[], None],
        look_soon: Callable[[], None],
    ) -> None:
        self._instance = instance
        self._needs_contexts = needs_contexts
        self._evict = evict
        self._look_soon = look_soon
        self.task: Task | None = None
        """The last task."""
        self._is_live = False
        """It was no replay."""
        self._is_no_task = False
        """It was events without a task."""
        self._is_looked_for = False

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        queries = [job.query_workflow for job in act.jobs if job.HasField("query_workflow")]
        if any(query.query_id == ALONE for query in queries):
            self._note_query(is_order=queries[0].query_type == FORGET_QUERY)
        elif not queries and not any(job.HasField("remove_from_cache") for job in act.jobs):
            self._note_task(act)
        return self._instance.activate(act)

    def get_serialization_context(self, command_info: "CommandInfo | None") -> SerializationContext | None:
        # The SDK asks several times for each payload, and each time its instance compiles a text in the sandbox.
        return self._instance.get_serialization_context(command_info) if self._needs_contexts else None

    def get_external_store_context(self, command_info: "CommandInfo | None") -> StorageDriverStoreContext:
        if not self._needs_contexts:
            return StorageDriverStoreContext()
        return self._instance.get_external_store_context(command_info)

    def get_info(self) -> Info:
        return self._instance.get_info()

    def get_thread_id(self) -> int | None:
        return self._instance.get_thread_id()

    def _note_query(self, *, is_order: bool) -> None:
        if is_order or self._is_no_task:
            self._evict()
        elif self._is_live and not self._is_looked_for:
            self._is_looked_for = True
            self._look_soon()

    def _note_task(self, act: WorkflowActivation) -> None:
        before, self.task = self.task, Task(act.timestamp.ToDatetime(tzinfo=UTC), act.history_length)
        self._is_live, self._is_looked_for = not act.is_replaying, False
        is_same_time_and_longer = (
            before is not None
            and before.started_at == self.task.started_at
            and before.history_length < self.task.history_length
        )
        self._is_no_task = self._is_live and is_same_time_and_longer


async def _has_completed(client: Client, info: Info, task: Task) -> bool:
    """Return whether the event after the task's start is its completion. Raises `RPCError`."""
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
