"""What a turn costs: Temporal's actions, as its cloud bills them, and events (OPS-11, docs/scaling.md)."""

from benchmarks.actions import actions_of
from tests.harness import Environment, asks, says
from turnkeeper.models.session.messages import SessionInput

LOOK = asks(("look", {}))
STANDARD_TURN = [LOOK, LOOK, LOOK, says("Seen.")]
"""Four model calls and three tools."""

TURNS = 3
"""The cheapest counts: on a busy machine a workflow task may be lost."""


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
