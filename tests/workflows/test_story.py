"""The offline model completes the live tests' scenario in every test run (AGT-4, AGT-11)."""

from pathlib import Path

from temporalio.client import Client

from tests.live.story import has_thought, read_and_remember
from turnkeeper.models.transcript.conversation import ModelStep


async def test_agt_11_the_scenario_of_the_live_tests_can_be_completed(temporal: Client, tmp_path: Path) -> None:
    turns = await read_and_remember(temporal, "offline:", tmp_path)
    assert has_thought(turns)
    calls = [[call.name for call in step.tool_calls] for step in turns[0].steps if isinstance(step, ModelStep)]
    assert calls == [["file_read"], []]
    assert [turn.usage and turn.usage.cost for turn in turns] == [0.0, 0.0]
