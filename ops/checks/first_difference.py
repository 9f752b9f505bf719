"""Finds the first command in which the current code and a recorded history differ (OPS-9).

Theory of operation. In each workflow task the code issues commands, and each command leaves an event after the task's
`WorkflowTaskCompleted`, in the same order. Both sides are converted to `Step`s and compared task by task: the first
step without an equal on the other side is the difference.

Temporal's own replay accepts some differences, and so does this: a patch in the code that the history lacks, the
marker of a deprecated patch that the code no longer has, and a timer or activity that is started and cancelled in the
same task. If the two sides alone do not decide whether they differ, this raises `UncertainError` and does not guess.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal

from temporalio.api.history.v1 import HistoryEvent
from temporalio.bridge.proto.workflow_commands import WorkflowCommand

from turnkeeper.models.errors import TurnkeeperError

PATCH_MARKER = "core_patch"
PATCH_VERSIONS = "TemporalChangeVersion"
"""The search attribute that the SDK itself sets after a patch's marker."""

Tolerance = Literal["none", "allowed", "unclear"]
"""What it means if the other side lacks a step: a difference, nothing, or undecidable from here."""


class UncertainError(TurnkeeperError):
    """The two sides differ, or may differ, but no command can be named with certainty."""


@dataclass(frozen=True)
class WorkflowTask:
    """The commands of the current code in one workflow task, which started at the event `started_at`."""

    started_at: int
    commands: Sequence[WorkflowCommand]


@dataclass(frozen=True)
class Difference:
    """The first command that differs, in the workflow task that started at the event `task`.

    `event` and `in_history`: the event that the command does not match; None if the history has no further event in
    that task, after the event `after`. `in_code`: the command; None if the code issues no further one.
    """

    task: int
    after: int
    event: int | None
    in_history: str | None
    in_code: str | None

    def sentence(self) -> str:
        """Describe the difference.

        >>> Difference(18, 19, 20, "ActivityTaskScheduled call_tool", "ScheduleActivity run_tool").sentence()
        "event 20: ActivityTaskScheduled call_tool, but today's code asks for ScheduleActivity run_tool"
        >>> Difference(18, 19, None, None, "StartTimer 1").sentence()
        "after event 19 nothing more is recorded, but today's code asks for StartTimer 1"
        """
        command = f"today's code asks for {self.in_code or 'nothing more there'}"
        if self.event is None:
            return f"after event {self.after} nothing more is recorded, but {command}"
        return f"event {self.event}: {self.in_history}, but {command}"


@dataclass(frozen=True)
class Step:
    """A command of the code, or the event that recorded one. Both have the same `key` if they match."""

    key: tuple[str, ...]
    description: str
    event: int = 0
    tolerance: Tolerance = "none"


def first_difference(events: Sequence[HistoryEvent], tasks: Sequence[WorkflowTask]) -> Difference | None:
    """Return the first command that differs; None if all match in every completed workflow task.

    Raises:
        UncertainError: The sides differ, or may differ, but no command can be named with certainty.
    """
    history, code = _HistorySteps(events), _CodeSteps()
    for task in tasks:
        steps = code.steps(task.commands)
        completed = history.completed.get(task.started_at)
        if completed is not None:
            difference = _compare(task.started_at, completed, list(history.steps(completed)), steps)
            if difference:
                return difference
    return None


def _compare(task: int, completed: int, history: Sequence[Step], code: Sequence[Step]) -> Difference | None:
    rest, after, is_clear = list(code), completed, True
    for step in history:
        if step.tolerance == "allowed" and not _is_next(step, rest):
            continue
        while rest and _may_skip(rest[0], step):
            is_clear = rest.pop(0).tolerance == "allowed" and is_clear
        if not _is_next(step, rest):
            return _certain(_difference(task, after, step, rest), is_clear=is_clear)
        rest.pop(0)
        after = step.event
    is_clear = is_clear and all(other.tolerance != "unclear" for other in rest)
    rest = [other for other in rest if other.tolerance == "none"]
    return _certain(_difference(task, after, None, rest), is_clear=is_clear) if rest else None


def _is_next(step: Step, code: Sequence[Step]) -> bool:
    return bool(code) and code[0].key == step.key


def _may_skip(command: Step, step: Step) -> bool:
    """Return whether `step` may match a command after `command`. A recorded patch matches only the next one."""
    is_patch = {command.key[0], step.key[0]} == {"MarkerRecorded"}
    return command.tolerance != "none" and command.key != step.key and not is_patch


def _difference(task: int, after: int, step: Step | None, code: Sequence[Step]) -> Difference:
    sides = [side.description if side else None for side in (step, code[0] if code else None)]
    if step and code and step.key[:2] == code[0].key[:2]:
        # The names are the same, so the ids differ.
        sides = [f"{side.description} ({side.key[-1]})" for side in (step, code[0])]
    return Difference(task, after, step.event if step else None, *sides)


def _certain(difference: Difference, *, is_clear: bool) -> Difference:
    if not is_clear:
        raise UncertainError
    return difference


# ---- the history's side

_NAME_AND_ID: Mapping[str, Callable[[Any], tuple[str, ...]]] = {
    "ActivityTaskScheduled": lambda event: (event.activity_type.name, event.activity_id),
    "TimerStarted": lambda event: (event.timer_id,),
    "TimerCanceled": lambda event: (event.timer_id,),
    "StartChildWorkflowExecutionInitiated": lambda event: (event.workflow_type.name, event.workflow_id),
    "UpsertWorkflowSearchAttributes": lambda event: (),
    "WorkflowPropertiesModified": lambda event: (),
    "WorkflowExecutionUpdateAccepted": lambda event: (),
    "WorkflowExecutionUpdateCompleted": lambda event: (),
    "WorkflowExecutionCompleted": lambda event: (),
    "WorkflowExecutionFailed": lambda event: (),
    "WorkflowExecutionCanceled": lambda event: (),
    "WorkflowExecutionContinuedAsNew": lambda event: (),
}
"""Events that record a command, with the command's name and id in their attributes."""

_UNSUPPORTED = {
    "NexusOperationScheduled",
    "NexusOperationCancelRequested",
    "RequestCancelExternalWorkflowExecutionInitiated",
    "SignalExternalWorkflowExecutionInitiated",
}
"""Events of commands that no session uses."""


class _HistorySteps:
    """The commands in a history, by workflow task."""

    def __init__(self, events: Sequence[HistoryEvent]) -> None:
        self._events = events
        self._activities = {
            event.event_id: _NAME_AND_ID["ActivityTaskScheduled"](event.activity_task_scheduled_event_attributes)
            for event in events
            if _kind(event) == "ActivityTaskScheduled"
        }
        self.completed = {
            event.workflow_task_completed_event_attributes.started_event_id: event.event_id
            for event in events
            if _kind(event) == "WorkflowTaskCompleted"
        }
        """The `WorkflowTaskCompleted` of a task, by its `WorkflowTaskStarted`."""

    def steps(self, completed: int) -> Iterator[Step]:
        """Yield the commands that the server received with the `WorkflowTaskCompleted` of that id."""
        following = self._events[completed:]  # events are numbered from 1
        for event in takewhile(lambda event: _kind(event) != "WorkflowTaskCompleted", following):
            if _records_command(event) and not _is_set_by_sdk(event):
                yield self._step(event)

    def _step(self, event: HistoryEvent) -> Step:
        kind, attributes = _kind(event), _attributes(event)
        if kind == "MarkerRecorded":
            return _marker(event)
        if kind == "ActivityTaskCancelRequested":
            name_and_id = self._activities.get(attributes.scheduled_event_id, ())
        elif kind in _NAME_AND_ID:
            name_and_id = _NAME_AND_ID[kind](attributes)
        else:
            raise UncertainError
        description = " ".join([kind, *name_and_id[:1]])
        return Step(key=(kind, *name_and_id), description=description, event=event.event_id)


def _records_command(event: HistoryEvent) -> bool:
    kind = _kind(event)
    return kind in _NAME_AND_ID or kind in _UNSUPPORTED or kind in ("MarkerRecorded", "ActivityTaskCancelRequested")


def _is_set_by_sdk(event: HistoryEvent) -> bool:
    """Return whether the event is the search attribute that the SDK sets after a patch's marker."""
    upserted = event.upsert_workflow_search_attributes_event_attributes.search_attributes.indexed_fields
    return PATCH_VERSIONS in upserted


def _marker(event: HistoryEvent) -> Step:
    marker = event.marker_recorded_event_attributes
    if marker.marker_name != PATCH_MARKER:
        raise UncertainError
    patch = json.loads(marker.details["patch-data"].payloads[0].data)
    return Step(
        key=("MarkerRecorded", patch["id"]),
        description=f"MarkerRecorded of the patch {patch['id']}",
        event=event.event_id,
        tolerance="allowed" if patch["deprecated"] else "none",
    )


def _kind(event: HistoryEvent) -> str:
    # From its attributes: `event_type` has no name if it is newer than this SDK.
    return (event.WhichOneof("attributes") or "").removesuffix("_event_attributes").title().replace("_", "")


def _attributes(event: HistoryEvent) -> Any:
    return getattr(event, event.WhichOneof("attributes") or "")


# ---- the code's side

_EVENT_OF = {
    "schedule_activity": "ActivityTaskScheduled",
    "request_cancel_activity": "ActivityTaskCancelRequested",
    "start_timer": "TimerStarted",
    "cancel_timer": "TimerCanceled",
    "start_child_workflow_execution": "StartChildWorkflowExecutionInitiated",
    "set_patch_marker": "MarkerRecorded",
    "upsert_workflow_search_attributes": "UpsertWorkflowSearchAttributes",
    "modify_workflow_properties": "WorkflowPropertiesModified",
    "complete_workflow_execution": "WorkflowExecutionCompleted",
    "fail_workflow_execution": "WorkflowExecutionFailed",
    "cancel_workflow_execution": "WorkflowExecutionCanceled",
    "continue_as_new_workflow_execution": "WorkflowExecutionContinuedAsNew",
}
"""The event that records each command."""

_UPDATE_EVENT_OF = {"accepted": "WorkflowExecutionUpdateAccepted", "completed": "WorkflowExecutionUpdateCompleted"}
"""The event that records each response to an update; a rejection leaves none."""

_RUN_ENDS = {
    "complete_workflow_execution",
    "fail_workflow_execution",
    "cancel_workflow_execution",
    "continue_as_new_workflow_execution",
}

_CANCELS = {"cancel_timer": "start_timer", "request_cancel_activity": "schedule_activity"}


class _CodeSteps:
    """The commands of the code. It remembers activities, since a cancellation has only their number."""

    def __init__(self) -> None:
        self._activities: dict[int, tuple[str, ...]] = {}

    def steps(self, commands: Sequence[WorkflowCommand]) -> Sequence[Step]:
        """Return the commands that are sent to the server."""
        self._activities |= {
            command.schedule_activity.seq: (
                command.schedule_activity.activity_type,
                command.schedule_activity.activity_id,
            )
            for command in commands
            if command.HasField("schedule_activity")
        }
        _check_nothing_follows_end(remaining := _without_cancelled(commands))
        return [step for step in map(self._step, remaining) if step]

    def _step(self, command: WorkflowCommand) -> Step | None:
        variant = _variant(command)
        if variant == "respond_to_query":
            return None
        if variant == "update_response":
            return _update_response(command)
        if variant not in _EVENT_OF:
            raise UncertainError
        name_and_id = self._name_and_id(variant, getattr(command, variant))
        description = " ".join([variant.title().replace("_", ""), *name_and_id[:1]])
        return Step(key=(_EVENT_OF[variant], *name_and_id), description=description, tolerance=_tolerance(variant))

    def _name_and_id(self, variant: str, command: Any) -> tuple[str, ...]:
        if variant in ("schedule_activity", "request_cancel_activity"):
            return self._activities.get(command.seq, ())
        if variant in ("start_timer", "cancel_timer"):
            return (str(command.seq),)
        if variant == "start_child_workflow_execution":
            return (command.workflow_type, command.workflow_id)
        return (command.patch_id,) if variant == "set_patch_marker" else ()


def _without_cancelled(commands: Sequence[WorkflowCommand]) -> Sequence[WorkflowCommand]:
    """Drop what is started and cancelled in this task: it is not sent to the server."""
    started = {(variant, getattr(command, variant).seq) for variant, command in _variants(commands, _CANCELS.values())}
    cancelled = {
        (_CANCELS[variant], getattr(command, variant).seq) for variant, command in _variants(commands, _CANCELS)
    }
    dropped = started & cancelled

    def is_sent(command: WorkflowCommand) -> bool:
        variant = _variant(command)
        seq = getattr(getattr(command, variant), "seq", 0)
        return (_CANCELS.get(variant, variant), seq) not in dropped

    return [command for command in commands if is_sent(command)]


def _variants(commands: Sequence[WorkflowCommand], among: Any) -> Iterator[tuple[str, WorkflowCommand]]:
    return ((_variant(command), command) for command in commands if _variant(command) in among)


def _check_nothing_follows_end(commands: Sequence[WorkflowCommand]) -> None:
    """Raise `UncertainError` if commands follow the run's end: the SDK's version decides whether they are sent."""
    ends = [number for number, command in enumerate(commands, start=1) if _variant(command) in _RUN_ENDS]
    if ends and ends[0] < len(commands):
        raise UncertainError


def _tolerance(variant: str) -> Tolerance:
    if variant == "set_patch_marker":
        return "allowed"
    # The server ignores a cancellation of what has already completed, and the commands don't show that.
    return "unclear" if variant in _CANCELS else "none"


def _update_response(command: WorkflowCommand) -> Step | None:
    response = command.update_response.WhichOneof("response") or ""
    if response not in _UPDATE_EVENT_OF:
        return None
    return Step(key=(_UPDATE_EVENT_OF[response],), description=f"UpdateResponse {response}")


def _variant(command: WorkflowCommand) -> str:
    return command.WhichOneof("variant") or ""
