"""Temporal's actions, as its cloud bills them: counted in histories, and heartbeats and queries by the server itself.

What a turn costs at once and with a model that streams, and what a watcher of an idle session costs (docs/scaling.md).
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from benchmarks.environment import ARCHIVED_SECONDS, GatewaySession, bench_environment
from benchmarks.results import Row, within

BILLED = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED: "start",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED: "signal",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED: "update",
    EventType.EVENT_TYPE_TIMER_STARTED: "timer",
    EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED: "activity",
    EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES: "search attributes",
    EventType.EVENT_TYPE_MARKER_RECORDED: "local activities of a workflow task",
}
"""The actions that a turn's history shows, by event."""

REQUESTS = {"RecordActivityTaskHeartbeat": "heartbeat", "QueryWorkflow": "query"}
"""The actions that no history shows, by the server's request."""

STREAMED = "openai-chat:tools-485"
"""Four calls of 10 s, of which three also call a tool."""

AT_ONCE = "offline:script/four"

IDLE_SECONDS = 30.0

WATCHER_SECONDS = 0.5
"""How long a watcher may need to read a turn that has ended; that is before it is archived."""


def actions_of(events: Sequence[HistoryEvent]) -> Counter[str]:
    """Return how many actions of each kind are billed for the events."""
    actions = Counter(BILLED[event.event_type] for event in events if event.event_type in BILLED)
    retries = (event.activity_task_started_event_attributes.attempt - 1 for event in events)
    actions["retry"] = sum(max(0, extra) for extra in retries)
    return +actions


def requested_actions(before: Mapping[str, int], after: Mapping[str, int]) -> Counter[str]:
    """Return the actions that no history shows, between two counts of a server's requests."""
    return +Counter({name: after.get(request, 0) - before.get(request, 0) for request, name in REQUESTS.items()})


def turns_of(events: Sequence[HistoryEvent]) -> list[Sequence[HistoryEvent]]:
    """Return the events of each turn of a run: from its prompt to the next one, or to the end.

    Prompts are updates if there are any, and signals otherwise.
    """
    types = [event.event_type for event in events]
    update, signal = (
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED,
    )
    prompt = update if update in types else signal
    starts = [place for place, kind in enumerate(types) if kind == prompt]
    return [events[start:end] for start, end in zip(starts, [*starts[1:], len(events)], strict=True)]


async def actions() -> list[Row]:
    """Count the actions of turns that nobody watches, and at the same time, on another server, of watched ones."""
    unwatched, watched = await asyncio.gather(_costs(is_watched=False), _costs(is_watched=True))
    return [
        _row("actions of a standard turn at once, unwatched", unwatched[0], 10),
        _row("actions of a standard turn at once, watched", watched[0], None),
        _row("actions of a turn of four calls of 10 s and three tools, unwatched", unwatched[1], 20),
        _row("actions of a turn of four calls of 10 s and three tools, watched", watched[1], 30),
        _row(f"actions and workflow tasks of an idle watcher in {IDLE_SECONDS:g} s", watched[2], 0),
    ]


def _row(what: str, costs: Counter[str], at_most: int | None) -> Row:
    kinds = ", ".join(f"{kind} {count}" for kind, count in costs.most_common())
    return within(what, costs.total(), at_most, note=kinds)


async def _costs(*, is_watched: bool) -> list[Counter[str]]:
    """Return the actions of a standard turn, of a streamed one, and of the time after it."""
    async with bench_environment(gateways=1) as environment:

        async def cost(seconds: float) -> Counter[str]:
            """Return the actions of the next turn, whose model writes for `seconds`."""
            before, events = await environment.requests(), (await session.handle.fetch_history()).events
            await session.prompt()
            await asyncio.sleep(seconds)
            await session.until_idle(pause=0.1)
            await asyncio.sleep(WATCHER_SECONDS)
            later = (await session.handle.fetch_history()).events[len(events) :]
            return actions_of(later) + requested_actions(before, await environment.requests())

        session = await environment.gateway_session(AT_ONCE, is_watched=is_watched)
        await cost(0)  # the first turn also loads something
        standard = await cost(0)
        await session.handle.execute_update("configure", {"model": STREAMED})
        await asyncio.sleep(ARCHIVED_SECONDS)
        costs = [standard, await cost(4 * 10)]
        if is_watched:
            await asyncio.sleep(ARCHIVED_SECONDS)
            before, tasks = await environment.requests(), await _workflow_tasks(session)
            await asyncio.sleep(IDLE_SECONDS)
            idle = requested_actions(before, await environment.requests())
            costs.append(idle + Counter({"workflow task": await _workflow_tasks(session) - tasks}))
        return costs


async def _workflow_tasks(session: GatewaySession) -> int:
    history = await session.handle.fetch_history()
    return sum(event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED for event in history.events)
