"""The cost of a turn: Temporal's actions, as its cloud bills them, and events (OPS-11, docs/scaling.md).

The standard turn has four model calls and three tools.
"""

import pytest

from benchmarks.actions import actions_of
from tests.harness import Environment, asks, says
from turnkeeper.activities.providers.protocol import ModelError
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.transcript.model_call import ToolSpec

TURNS = 3
"""The cheapest counts: on a busy machine a workflow task may be lost."""


@pytest.mark.parametrize(
    ("tool", "activities"),
    [pytest.param("look", 7, id="tools as activities"), pytest.param("file_read", 4, id="quick reads")],
)
async def test_ops_11_a_standard_turn_costs_at_most_nine_actions(env: Environment, tool: str, activities: int) -> None:
    env.tools.specs.append(ToolSpec(name="file_read", effect="read", built_in=True))
    env.vendor.script = [*[asks((tool, {}))] * 3, says("Seen.")] * (TURNS + 1)
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
    # each activity. The turn's end starts a timer, and the prompt cancels that of the turn before.
    expected = ({"signal": 1, "activity": activities, "timer": 1}, 1 + 3 * activities + 3 * (activities + 1) + 2)
    assert min(costs, key=lambda cost: cost[1]) == expected


async def test_ops_11_a_retry_of_a_model_call_costs_a_timer_and_an_activity(env: Environment) -> None:
    env.vendor.script = [
        says("one"),
        *[
            answer
            for _ in range(TURNS)
            for answer in (ModelError("overloaded", "busy", retry_after=0.01), says("Seen."))
        ],
    ]
    session = await env.start(SessionInput(model="offline:m"))
    await session.prompt("the first turn, which also loads the tools")
    await session.idle(turns=1)
    costs = []
    for turn in range(2, TURNS + 2):
        before = len((await session.handle.fetch_history()).events)
        await session.prompt("hello")
        await session.idle(turns=turn)
        events = (await session.handle.fetch_history()).events[before:]
        costs.append((actions_of(events), len(events)))
    whole = 1 + 3 + 3 * 2 + 2
    assert min(costs, key=lambda cost: cost[1]) == ({"signal": 1, "activity": 2, "timer": 2}, whole + 11)
