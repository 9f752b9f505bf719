"""What a worker needs to run the workflow: the SDK's private parts, eviction, task slots (OPS-8, OPS-10, SES-12).

All uses of parts of Temporal's SDK that are not public stand here, each with the reason. Each use is listed below in
`Use`, with its names and with what a worker does in a release that lacks one. A worker checks them when it starts and
logs what is missing; it works without them, but slower. `pyproject.toml` bounds the SDK to the releases with which this
was tested.

Eviction: for a query without a workflow task, a worker gets the session's whole history and applies all of it before it
answers. That includes events of a workflow task that is open at another worker, and events after the last workflow
task. The SDK keeps this state and continues from it with the session's next workflow task. Other workers apply these
events at another time and with another history length, so they may decide differently. Then the history can't be
replayed any more. So the session is evicted if this may have happened, and replayed when it is next needed:

- Events without a workflow task have the time of the previous one, but the history is longer. The worker evicts the
  session as soon as it has answered.
- A workflow task that is open at another worker can't be recognised. So shortly after a query the worker reads the
  history, unless the next workflow task has arrived by then. If the last one was not completed, it evicts the session:
  Temporal starts a lost task again after its timeout, and the SDK would complete it with the state of the lost one.
- The gateway reads the history anyway. If an answer rests on a lost workflow task, it sends `FORGET_QUERY`.

A query that arrives with a workflow task brings only the events of this task, so it needs no check. A workflow task
that only rejects updates never enters the history, and changes nothing: the state still rests on the one before.

The task slots limit a worker's concurrent workflow tasks, and how many of them may be replays. A session that the
worker has in memory gets its workflow tasks through the sticky queue; they take milliseconds. Other sessions, such as
all sessions of a worker that died, are replayed from their history, which takes 0.4 ms of CPU time per event. Replays
share one processor, and a workflow task's timeout runs from the moment it is polled. Ten replays at once on a busy
machine would all exceed `task_timeout`, go to the next worker and start again there, forever. So a worker polls for
only a few at a time; the others wait in Temporal, where their timeout does not run.
"""

import asyncio
import importlib
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import temporalio
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.converter import DataConverter
from temporalio.service import RPCError
from temporalio.worker import (
    CustomSlotSupplier,
    FixedSizeSlotSupplier,
    SlotMarkUsedContext,
    SlotPermit,
    SlotReleaseContext,
    SlotReserveContext,
    UnsandboxedWorkflowRunner,
    Worker,
    WorkerTuner,
    WorkflowInstance,
    WorkflowInstanceDetails,
    WorkflowRunner,
)
from temporalio.workflow import Info

from turnkeeper.activities.activity_context import beat_now
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.wire import FORGET_QUERY
from turnkeeper.stores.temporal.connection import newest_pages

if TYPE_CHECKING:
    from temporalio.bridge.proto.workflow_activation import WorkflowActivation
    from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion


STANDALONE_QUERY_ID = "legacy_query"
"""The SDK's id for a query that arrives without a workflow task."""

CHECK_AFTER_SECONDS = 0.2
"""Pause between a query and reading the history. A busy session has its next workflow task by then."""

READ_SECONDS = 1.0

SDK_DEADLOCK_SECONDS = 2

VISITS = ("decode_activation", "encode_completion")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Use:
    """A use of names that are not public, as `module:class.name`, and what a worker does without one of them."""

    names: tuple[str, ...]
    without: str

    def missing(self) -> list[str]:
        """Return the names that this release of the SDK lacks."""
        return [name for name in self.names if not _exists(name)]


EVICTION = Use(
    (
        "temporalio.bridge.worker:Worker.request_workflow_eviction",
        "temporalio.worker:Worker._bridge_worker",
        *(
            f"temporalio.bridge.proto.workflow_activation:WorkflowActivation.{field}_FIELD_NUMBER"
            for field in ("JOBS", "TIMESTAMP", "HISTORY_LENGTH", "IS_REPLAYING")
        ),
    ),
    "keeps no session in memory, and replays it for each workflow task",
)
"""Evicts a session whose state is in doubt; the SDK evicts by itself only the least recently used one."""

DEADLOCK = Use(
    (
        "temporalio.worker:Worker._workflow_worker",
        "temporalio.worker._workflow:_WorkflowWorker._deadlock_timeout_seconds",
    ),
    f"interrupts a workflow task that takes over {SDK_DEADLOCK_SECONDS} s, and replays it from its start",
)
"""On a busy machine, a task that needs 0.3 s of CPU time can take over 2 s. The SDK would interrupt it and replay it
from its start, again and again. After the task's own timeout, its result is of no use. The SDK has no option for this.
"""

STOP = Use(
    (
        "temporalio.bridge.proto.workflow_completion:WorkflowActivationCompletion.SUCCESSFUL_FIELD_NUMBER",
        "temporalio.bridge.proto.workflow_commands:WorkflowCommand.REQUEST_CANCEL_ACTIVITY_FIELD_NUMBER",
        "temporalio.bridge.proto.workflow_commands:RequestCancelActivity.SEQ_FIELD_NUMBER",
    ),
    "stops an activity with its next heartbeat",
)
"""Makes an activity of this process heartbeat as soon as its workflow cancels it (`activities/activity_context.py`).
The id of an activity is its sequence number, as no workflow of ours sets it."""

PAYLOAD_VISITS = Use(
    (
        *(f"temporalio.bridge.worker:{name}" for name in VISITS),
        "temporalio.worker._workflow:_CommandAwareDataConverter._ca_instance",
        "temporalio.converter._extstore:StorageOperationMetrics",
    ),
    "walks through all messages for a codec that there is not, which costs CPU time",
)
"""For each activation the SDK walks six times through its messages, in Python, and gives every payload to the codec and
the external storage, also where there is neither (docs/decisions/0057). It has no option for that, so its two functions
are replaced with ones that return at once for the instances of `EvictingRunner` whose payloads need no visit. The
activation that creates an instance, and all other workers, take the SDK's way."""

USES = (EVICTION, DEADLOCK, STOP, PAYLOAD_VISITS)


def _exists(name: str) -> bool:
    module_name, _, path = name.partition(":")
    *owners, attribute = path.split(".")
    try:
        module = importlib.import_module(module_name)
        owner: Any = getattr(module, owners[0]) if owners else module
    except (ImportError, AttributeError):
        return False
    # An attribute of instances stands in the code of the class.
    code = (function.__code__ for function in vars(owner).values() if inspect.isfunction(function))
    return hasattr(owner, attribute) or any(attribute in names.co_names for names in code)


class SdkInternals:
    """The private parts of the installed SDK that one worker can use."""

    def __init__(self, client: Client) -> None:
        """Check the names, log what is missing, and prepare the process."""
        self._missing = {use for use in USES if use.missing()}
        for use in self._missing:
            names = ", ".join(use.missing())
            _log.warning("temporalio %s has no %s. So this worker %s.", temporalio.__version__, names, use.without)
        self.runner: WorkflowRunner = (
            UnsandboxedWorkflowRunner()
            if EVICTION in self._missing
            else EvictingRunner(client, stops_at_once=STOP not in self._missing)
        )
        """The SDK's runner without a sandbox, and with evictions if they are possible.

        A sandbox loads modules that are imported late once more for each session, and restricts them: an application's
        log handler, which runs in the workflow's thread, then fails workflow tasks forever (docs/decisions/0045).
        """
        if PAYLOAD_VISITS not in self._missing:
            spare_needless_visits()

    def cached_workflows(self, count: int) -> int:
        """Return how many sessions the worker may keep in memory; none if it can't evict them."""
        return 0 if EVICTION in self._missing else count

    def adjust(self, worker: Worker, *, deadlock_timeout: float) -> None:
        """Enable evictions from `worker` and set its deadlock timeout, which is at least 2 s."""
        if isinstance(self.runner, EvictingRunner):
            bridge = worker._bridge_worker

            def evict(run_id: str) -> None:
                with suppress(AttributeError):  # the worker has just stopped
                    bridge.request_workflow_eviction(run_id)

            self.runner.evict = evict
        workflows = worker._workflow_worker if DEADLOCK not in self._missing else None
        if workflows is not None and workflows._deadlock_timeout_seconds is not None:  # None: a debugger is attached
            workflows._deadlock_timeout_seconds = max(SDK_DEADLOCK_SECONDS, deadlock_timeout)  # type: ignore[assignment]


class WorkflowTask(NamedTuple):
    """A workflow task as the worker received it."""

    started_at: datetime
    history_length: int
    """Number of events up to its start event."""


class Basis(NamedTuple):
    """The origin of an instance's state."""

    task: WorkflowTask | None = None
    """The last workflow task."""
    was_live: bool = False
    """Whether the last activation was live, not a replay."""
    is_without_task: bool = False
    """Whether the last activation applied events after the last workflow task."""


class EvictingRunner(UnsandboxedWorkflowRunner):
    """Evicts sessions whose state is in doubt, as said above."""

    def __init__(self, client: Client, *, stops_at_once: bool = True) -> None:
        self._client = client
        self._stops_at_once = stops_at_once
        self._checks: set[asyncio.Task[None]] = set()
        self.evict: Callable[[str], None] = lambda run_id: None
        """Evicts a run once the worker has answered its query; set by the code that creates the worker."""

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """Create an instance whose activations are inspected before the workflow gets them."""
        instance, loop = super().create_instance(det), asyncio.get_running_loop()

        def check_soon() -> None:  # called in the thread of an activation
            task = doubts.task
            loop.call_soon_threadsafe(lambda: loop.call_later(CHECK_AFTER_SECONDS, check, task))

        def check(task: WorkflowTask | None) -> None:
            if task is not None and doubts.task is task:
                checking = asyncio.create_task(self._evict_unless_completed(det.info, doubts, task))
                self._checks.add(checking)
                checking.add_done_callback(self._checks.discard)

        doubts = Doubts(evict=lambda: self.evict(det.info.run_id), check_soon=check_soon)
        activate = instance.activate

        def inspected_activate(act: "WorkflowActivation") -> "WorkflowActivationCompletion":
            before = doubts.basis
            doubts.note(act)
            completion = activate(act)
            for command in completion.successful.commands if self._stops_at_once else ():
                if command.HasField("request_cancel_activity"):
                    beat_now(det.info.run_id, str(command.request_cancel_activity.seq))
            if _only_rejects_updates(act, completion):
                doubts.basis = before
            return completion

        instance.activate = inspected_activate  # type: ignore[method-assign]
        mark_visits(instance, self._client.data_converter)
        return instance

    async def _evict_unless_completed(self, info: Info, doubts: "Doubts", task: WorkflowTask) -> None:
        try:
            async with asyncio.timeout(READ_SECONDS):
                is_completed = await _has_completed(self._client, info, task)
        except (RPCError, TimeoutError):
            is_completed = False
        if not is_completed and doubts.task is task:
            self.evict(info.run_id)


class Doubts:
    """The workflow tasks that the state of one instance rests on."""

    def __init__(self, *, evict: Callable[[], None], check_soon: Callable[[], None]) -> None:
        self._evict = evict
        self._check_soon = check_soon
        self.basis = Basis()
        self._is_check_scheduled = False

    @property
    def task(self) -> WorkflowTask | None:
        """The last workflow task."""
        return self.basis.task

    def note(self, act: "WorkflowActivation") -> None:
        """Note an activation; evict the session, or have it checked, if its state may be in doubt."""
        queries = [job.query_workflow for job in act.jobs if job.HasField("query_workflow")]
        if any(query.query_id == STANDALONE_QUERY_ID for query in queries):
            if queries[0].query_type == FORGET_QUERY or self.basis.is_without_task:
                self._evict()
            elif self.basis.was_live and not self._is_check_scheduled:
                self._is_check_scheduled = True
                self._check_soon()
        elif not queries and not any(job.HasField("remove_from_cache") for job in act.jobs):
            self._note_task(act)

    def _note_task(self, act: "WorkflowActivation") -> None:
        before, task = self.task, WorkflowTask(act.timestamp.ToDatetime(tzinfo=UTC), act.history_length)
        is_same_time_and_longer = (
            before is not None and before.started_at == task.started_at and before.history_length < task.history_length
        )
        was_live = not act.is_replaying
        self.basis, self._is_check_scheduled = Basis(task, was_live, was_live and is_same_time_and_longer), False


def _only_rejects_updates(act: "WorkflowActivation", completion: "WorkflowActivationCompletion") -> bool:
    """Return whether a workflow task changed nothing: Temporal writes no event of it, neither start nor completion."""
    commands = completion.successful.commands
    is_update = bool(act.jobs) and all(job.HasField("do_update") for job in act.jobs)
    return is_update and bool(commands) and all(command.update_response.HasField("rejected") for command in commands)


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


# Visits of payloads


def mark_visits(instance: WorkflowInstance, converter: DataConverter) -> None:
    """Mark an instance whose payloads don't change on their way between the worker and the workflow."""
    if converter.external_storage is None and converter.payload_codec is None:
        instance.needs_no_visits = True  # type: ignore[attr-defined]


def spare_needless_visits() -> None:
    """Replace the SDK's functions in this process; safe to repeat."""
    sdk = importlib.import_module("temporalio.bridge.worker")
    metrics = importlib.import_module("temporalio.converter._extstore")
    for name in VISITS:
        visit = getattr(sdk, name)
        if not isinstance(visit, _SparedVisit):
            setattr(sdk, name, _SparedVisit(visit, no_metrics=metrics.StorageOperationMetrics))


class _SparedVisit:
    def __init__(self, visit: Callable[..., Awaitable[Any]], *, no_metrics: Callable[[], Any]) -> None:
        self._visit = visit
        self._no_metrics = no_metrics

    async def __call__(self, message: object, converter: DataConverter, **options: Any) -> Any:
        if getattr(getattr(converter, "_ca_instance", None), "needs_no_visits", False):
            return self._no_metrics()
        return await self._visit(message, converter, **options)


# ---- task slots


def task_tuner(*, max_tasks: int, max_replays: int) -> WorkerTuner:
    """Return a tuner that allows `max_tasks` workflow tasks of sessions in memory, and `max_replays` of others."""
    others = FixedSizeSlotSupplier(100)  # the SDK's default
    return WorkerTuner.create_composite(
        workflow_supplier=TaskSlots(max_tasks=max_tasks, max_replays=max_replays),
        activity_supplier=others,
        local_activity_supplier=others,
        nexus_supplier=others,
    )


class _Permit(SlotPermit):
    def __init__(self, slots: asyncio.Semaphore) -> None:
        self._slots = slots
        self._loop = asyncio.get_running_loop()

    def release(self) -> None:
        with suppress(RuntimeError):  # the loop is closed, so nothing waits any more
            self._loop.call_soon_threadsafe(self._slots.release)


class TaskSlots(CustomSlotSupplier):
    """Slots for workflow tasks: one pool for the sticky queue, one for the normal queue."""

    def __init__(self, *, max_tasks: int, max_replays: int) -> None:
        """Provide `max_tasks` slots for the sticky queue and `max_replays` for the normal one."""
        self._sticky = asyncio.Semaphore(max_tasks)
        self._replays = asyncio.Semaphore(max_replays)

    async def reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit:
        """Wait for a permit, which covers a poll and the task that it returns."""
        slots = self._sticky if ctx.is_sticky else self._replays
        await slots.acquire()
        return _Permit(slots)

    def try_reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit | None:
        """Return no permit: only eager workflow starts use this, and child workflows are not started eagerly."""
        return None

    def mark_slot_used(self, ctx: SlotMarkUsedContext) -> None:
        """Do nothing: the permit is in use since the poll."""

    def release_slot(self, ctx: SlotReleaseContext) -> None:
        """Release the permit. The SDK calls this from its own thread."""
        if isinstance(ctx.permit, _Permit):
            ctx.permit.release()
