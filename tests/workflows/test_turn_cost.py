"""What a turn costs: Temporal's actions, as its cloud bills them, and events (OPS-11, docs/scaling.md)."""

from collections import Counter
from collections.abc import Sequence

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from tests.harness import Environment, asks, says
from turnkeeper.models.session.messages import SessionInput

LOOK = asks(("look", {}))
STANDARD_TURN = [LOOK, LOOK, LOOK, says("Seen.")]
"""Four model calls and three tools."""

TURNS = 3
"""The cheapest counts: on a busy machine a workflow task may be lost."""

BILLED = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED: "start",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED: "signal",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED: "update",
    EventType.EVENT_TYPE_TIMER_STARTED: "timer",
    EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED: "activity",
    EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES: "search attributes",
    EventType.EVENT_TYPE_MARKER_RECORDED: "local activities of a workflow task",
}
"""The actions that a turn's history shows, by event. Heartbeats and queries are counted by other tests."""


def actions_of(events: Sequence[HistoryEvent]) -> Counter[str]:
    """Return how many actions of each kind are billed for the events."""
    actions = Counter(BILLED[event.event_type] for event in events if event.event_type in BILLED)
    retries = (event.activity_task_started_event_attributes.attempt - 1 for event in events)
    actions["retry"] = sum(max(0, extra) for extra in retries)
    return +actions


async def test_ops_11_a_standard_turn_costs_eight_actions(env: Environment) -> None:
    env.vendor.script = STANDARD_TURN * (TURNS + 1)
    session = await env.start(SessionInput(model="offline:m"))
    await session.prompt("the first turn, which also loads the tools")
    await session.idle(turns=1)
    costs = []
    for turn in range(2, TURNS + 2):
        before = len((await session.handle.fetch_history()).events)
        await session.prompt("the standard turn")
        await session.idle(turns=turn)
        events = (await session.handle.fetch_history()).events[before:]
        costs.append((actions_of(events), len(events)))
    # An event for the prompt, three for each activity, and three for each workflow task: after the prompt, and after
    # each activity.
    assert min(costs, key=lambda cost: cost[1]) == ({"signal": 1, "activity": 7}, 1 + 3 * 7 + 3 * 8)
