"""The first command in which today's code and a recorded history differ (OPS-9).

Theory of operation. In each workflow task the code asks for commands, and each of them leaves an event behind the
task's `WorkflowTaskCompleted`, in the same order. So both sides are written as `Step`s, and laid side by side task by
task: the first that has no equal on the other side is the difference.

What Temporal's own replay lets pass is let pass here too: a patch that is asked for where none is recorded, the marker
of a deprecated patch that nobody asks for any more, and whatever was started and cancelled in one and the same task.
Where the two sides alone do not tell whether they differ, nothing is guessed: `UncertainError`.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal

from temporalio.api.history.v1 import HistoryEvent
from temporalio.bridge.proto.workflow_commands import WorkflowCommand

PATCH_MARKER = "core_patch"
PATCH_VERSIONS = "TemporalChangeVersion"
"""The search attribute that the SDK itself sets behind a patch's marker."""

Slack = Literal["none", "allowed", "unclear"]
"""What it means that the other side lacks a step: a difference, nothing, or what cannot be told from here."""


class UncertainError(Exception):
    """The two sides differ, or may, in a way that names no command with certainty."""


@dataclass(frozen=True)
class WorkflowTask:
    """What today's code asked for in one workflow task, which began at the event `started_at`."""

    started_at: int
    commands: Sequence[WorkflowCommand]


@dataclass(frozen=True)
class Difference:
    """The first command that differs, in the workflow task that began at the event `task`.

    `event` is the one that records something else than today's code asks for; None: nothing more is recorded in that
    task, and `asked` comes after the event `after`. `asked` None: today's code asks for nothing more.
    """

    task: int
    after: int
    event: int | None
    recorded: str | None
    asked: str | None

    def sentence(self) -> str:
        """Say it in words.

        >>> Difference(18, 19, 20, "ActivityTaskScheduled call_tool", "ScheduleActivity run_tool").sentence()
        "event 20: ActivityTaskScheduled call_tool, but today's code asks for ScheduleActivity run_tool"
        >>> Difference(18, 19, None, None, "StartTimer 1").sentence()
        "after event 19 nothing more is recorded, but today's code asks for StartTimer 1"
        """
        asked = f"today's code asks for {self.asked or 'nothing more there'}"
        if self.event is None:
            return f"after event {self.after} nothing more is recorded, but {asked}"
        return f"event {self.event}: {self.recorded}, but {asked}"


@dataclass(frozen=True)
class Step:
    """One command: what asks for it, or the event that records it. The same command has the same `mark` on both."""

    mark: tuple[str, ...]
    told: str
    event: int = 0
    slack: Slack = "none"


def first_difference(events: Sequence[HistoryEvent], tasks: Sequence[WorkflowTask]) -> Difference | None:
    """Return the first command that differs; None: in every workflow task that was completed there is none.

    Raises:
        UncertainError: They differ, or may, in a way that names no command with certainty.
    """
    recorded, asked = _Recorded(events), _Asked()
    for task in tasks:
        steps = asked.steps(task.commands)
        completed = recorded.completed.get(task.started_at)
        if completed is not None:
            difference = _compare(task.started_at, completed, list(recorded.steps(completed)), steps)
            if difference:
                return difference
    return None


def _compare(task: int, completed: int, recorded: Sequence[Step], asked: Sequence[Step]) -> Difference | None:
    rest, after, is_clear = list(asked), completed, True
    for step in recorded:
        if step.slack == "allowed" and not _is_next(step, rest):
            continue
        while rest and _may_be_passed(rest[0], step):
            is_clear = rest.pop(0).slack == "allowed" and is_clear
        if not _is_next(step, rest):
            return _certain(_difference(task, after, step, rest), is_clear=is_clear)
        rest.pop(0)
        after = step.event
    is_clear = is_clear and all(other.slack != "unclear" for other in rest)
    rest = [other for other in rest if other.slack == "none"]
    return _certain(_difference(task, after, None, rest), is_clear=is_clear) if rest else None


def _is_next(step: Step, asked: Sequence[Step]) -> bool:
    return bool(asked) and asked[0].mark == step.mark


def _may_be_passed(asked: Step, step: Step) -> bool:
    """Return whether `step` may be a later command's. A recorded patch is always that of the next one asked for."""
    return asked.slack != "none" and asked.mark != step.mark and {asked.mark[0], step.mark[0]} != {"MarkerRecorded"}


def _difference(task: int, after: int, step: Step | None, asked: Sequence[Step]) -> Difference:
    told = [side.told if side else None for side in (step, asked[0] if asked else None)]
    if step and asked and step.mark[:2] == asked[0].mark[:2]:
        # The same by name: then it is the id that differs.
        told = [f"{side.told} ({side.mark[-1]})" for side in (step, asked[0])]
    return Difference(task, after, step.event if step else None, *told)


def _certain(difference: Difference, *, is_clear: bool) -> Difference:
    if not is_clear:
        raise UncertainError
    return difference


# ---- what is recorded

_NAMED: Mapping[str, Callable[[Any], tuple[str, ...]]] = {
    "ActivityTaskScheduled": lambda told: (told.activity_type.name, told.activity_id),
    "TimerStarted": lambda told: (told.timer_id,),
    "TimerCanceled": lambda told: (told.timer_id,),
    "StartChildWorkflowExecutionInitiated": lambda told: (told.workflow_type.name, told.workflow_id),
    "UpsertWorkflowSearchAttributes": lambda told: (),
    "WorkflowPropertiesModified": lambda told: (),
    "WorkflowExecutionUpdateAccepted": lambda told: (),
    "WorkflowExecutionUpdateCompleted": lambda told: (),
    "WorkflowExecutionCompleted": lambda told: (),
    "WorkflowExecutionFailed": lambda told: (),
    "WorkflowExecutionCanceled": lambda told: (),
    "WorkflowExecutionContinuedAsNew": lambda told: (),
}
"""Events that record a command, and what its name and id are in them."""

_UNREADABLE = {
    "NexusOperationScheduled",
    "NexusOperationCancelRequested",
    "RequestCancelExternalWorkflowExecutionInitiated",
    "SignalExternalWorkflowExecutionInitiated",
}
"""Events of commands that no session uses: which one it is, is not looked into."""


class _Recorded:
    """The commands a history records, by the workflow task that asked for them."""

    def __init__(self, events: Sequence[HistoryEvent]) -> None:
        self._events = events
        self._activities = {
            event.event_id: _NAMED["ActivityTaskScheduled"](event.activity_task_scheduled_event_attributes)
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
        """Return the commands that the server took over with the `WorkflowTaskCompleted` of that id."""
        following = self._events[completed:]  # events are numbered from 1
        for event in takewhile(lambda event: _kind(event) != "WorkflowTaskCompleted", following):
            if _is_of_command(event) and not _is_of_patch(event):
                yield self._step(event)

    def _step(self, event: HistoryEvent) -> Step:
        kind, told = _kind(event), _attributes(event)
        if kind == "MarkerRecorded":
            return _marker(event)
        if kind == "ActivityTaskCancelRequested":
            named = self._activities.get(told.scheduled_event_id, ())
        elif kind in _NAMED:
            named = _NAMED[kind](told)
        else:
            raise UncertainError
        return Step(mark=(kind, *named), told=" ".join([kind, *named[:1]]), event=event.event_id)


def _is_of_command(event: HistoryEvent) -> bool:
    kind = _kind(event)
    return kind in _NAMED or kind in _UNREADABLE or kind in ("MarkerRecorded", "ActivityTaskCancelRequested")


def _is_of_patch(event: HistoryEvent) -> bool:
    """Return whether the SDK set this search attribute by itself: no code asks for it."""
    upserted = event.upsert_workflow_search_attributes_event_attributes.search_attributes.indexed_fields
    return PATCH_VERSIONS in upserted


def _marker(event: HistoryEvent) -> Step:
    told = event.marker_recorded_event_attributes
    if told.marker_name != PATCH_MARKER:
        raise UncertainError
    patch = json.loads(told.details["patch-data"].payloads[0].data)
    return Step(
        mark=("MarkerRecorded", patch["id"]),
        told=f"MarkerRecorded of the patch {patch['id']}",
        event=event.event_id,
        slack="allowed" if patch["deprecated"] else "none",
    )


def _kind(event: HistoryEvent) -> str:
    # By its attributes: the number of a type that is newer than this SDK has no name.
    return (event.WhichOneof("attributes") or "").removesuffix("_event_attributes").title().replace("_", "")


def _attributes(event: HistoryEvent) -> Any:
    return getattr(event, event.WhichOneof("attributes") or "")


# ---- what is asked for

_LEAVES = {
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
"""The event that each command leaves."""

_OF_UPDATE = {"accepted": "WorkflowExecutionUpdateAccepted", "completed": "WorkflowExecutionUpdateCompleted"}
"""The event that each answer to an update leaves; a rejection leaves none."""

_LAST = {
    "complete_workflow_execution",
    "fail_workflow_execution",
    "cancel_workflow_execution",
    "continue_as_new_workflow_execution",
}

_CANCELS = {"cancel_timer": "start_timer", "request_cancel_activity": "schedule_activity"}


class _Asked:
    """What the code asks for; it knows the activities of earlier tasks, which are cancelled by their number."""

    def __init__(self) -> None:
        self._activities: dict[int, tuple[str, ...]] = {}

    def steps(self, commands: Sequence[WorkflowCommand]) -> Sequence[Step]:
        """Return the commands that reach the server."""
        self._activities |= {
            command.schedule_activity.seq: (
                command.schedule_activity.activity_type,
                command.schedule_activity.activity_id,
            )
            for command in commands
            if command.HasField("schedule_activity")
        }
        sent = _up_to_the_last(_without_the_withdrawn(commands))
        return [step for step in map(self._step, sent) if step]

    def _step(self, command: WorkflowCommand) -> Step | None:
        variant = _variant(command)
        if variant == "respond_to_query":
            return None
        if variant == "update_response":
            return _answer(command)
        if variant not in _LEAVES:
            raise UncertainError
        named = self._named(variant, getattr(command, variant))
        verb = variant.title().replace("_", "")
        return Step(mark=(_LEAVES[variant], *named), told=" ".join([verb, *named[:1]]), slack=_slack(variant))

    def _named(self, variant: str, asked: Any) -> tuple[str, ...]:
        if variant in ("schedule_activity", "request_cancel_activity"):
            return self._activities.get(asked.seq, ())
        if variant in ("start_timer", "cancel_timer"):
            return (str(asked.seq),)
        if variant == "start_child_workflow_execution":
            return (asked.workflow_type, asked.workflow_id)
        return (asked.patch_id,) if variant == "set_patch_marker" else ()


def _without_the_withdrawn(commands: Sequence[WorkflowCommand]) -> Sequence[WorkflowCommand]:
    """Leave out what was started and cancelled in this very task: the server never hears of it."""
    started = {(variant, getattr(command, variant).seq) for variant, command in _variants(commands, _CANCELS.values())}
    cancelled = {
        (_CANCELS[variant], getattr(command, variant).seq) for variant, command in _variants(commands, _CANCELS)
    }
    withdrawn = started & cancelled

    def is_sent(command: WorkflowCommand) -> bool:
        variant = _variant(command)
        seq = getattr(getattr(command, variant), "seq", 0)
        return (_CANCELS.get(variant, variant), seq) not in withdrawn

    return [command for command in commands if is_sent(command)]


def _variants(commands: Sequence[WorkflowCommand], among: Any) -> Iterator[tuple[str, WorkflowCommand]]:
    return ((_variant(command), command) for command in commands if _variant(command) in among)


def _up_to_the_last(commands: Sequence[WorkflowCommand]) -> Sequence[WorkflowCommand]:
    """Refuse to judge what comes after the end of the run: whether that was sent depends on the SDK's version."""
    ends = [number for number, command in enumerate(commands, start=1) if _variant(command) in _LAST]
    if ends and ends[0] < len(commands):
        raise UncertainError
    return commands


def _slack(variant: str) -> Slack:
    if variant == "set_patch_marker":
        return "allowed"
    # One that is done already is not cancelled any more, and the commands alone do not say so.
    return "unclear" if variant in _CANCELS else "none"


def _answer(command: WorkflowCommand) -> Step | None:
    answer = command.update_response.WhichOneof("response") or ""
    if answer not in _OF_UPDATE:
        return None
    return Step(mark=(_OF_UPDATE[answer],), told=f"UpdateResponse {answer}")


def _variant(command: WorkflowCommand) -> str:
    return command.WhichOneof("variant") or ""
