"""Temporal's actions, as its cloud bills them, counted in a history (OPS-11, docs/scaling.md)."""

from collections import Counter
from collections.abc import Sequence

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

BILLED = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED: "start",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED: "signal",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED: "update",
    EventType.EVENT_TYPE_TIMER_STARTED: "timer",
    EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED: "activity",
    EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES: "search attributes",
    EventType.EVENT_TYPE_MARKER_RECORDED: "local activities of a workflow task",
}
"""The actions that a turn's history shows, by event. It shows no heartbeats and queries."""


def actions_of(events: Sequence[HistoryEvent]) -> Counter[str]:
    """Return how many actions of each kind are billed for the events."""
    actions = Counter(BILLED[event.event_type] for event in events if event.event_type in BILLED)
    retries = (event.activity_task_started_event_attributes.attempt - 1 for event in events)
    actions["retry"] = sum(max(0, extra) for extra in retries)
    return +actions


def turns_of(events: Sequence[HistoryEvent]) -> list[Sequence[HistoryEvent]]:
    """Return the events of each turn of a run: from its prompt's signal to the next one, or to the end."""
    starts = [place for place, event in enumerate(events) if event.event_type == _SIGNAL]
    return [events[start:end] for start, end in zip(starts, [*starts[1:], len(events)], strict=True)]


_SIGNAL = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
