"""Every story once more on a server with tiny limits, our own scaled below them: OPS-10, SES-16."""

from datetime import timedelta

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

from tests.conftest import TINY
from tests.harness import DrivenSession, environment
from tests.replay.stories import STORIES

SCALED = {
    "max_state_bytes": 40_000,
    "max_queued_bytes": 6_000,
    "max_queued_prompts": 20,
    "max_history_events": 50,
    "max_parallel_tools": 4,
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if at % 3 == 0 else pytest.mark.wide) for at, name in enumerate(STORIES)]
)
async def test_ops_10_every_scenario_passes_on_a_server_with_tiny_limits(
    tiny_temporal: Client, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("turnkeeper.models.session.archive.FIRST_PAUSE", timedelta(seconds=0.2))
    monkeypatch.setattr("turnkeeper.models.session.tools.FRESH_TURNS", 4)
    async with environment(tiny_temporal, limits=SCALED) as env:
        session = await STORIES[name](env)
        await stays_within_the_limits(session)


async def stays_within_the_limits(session: DrivenSession) -> None:
    for history in await session.histories():
        assert len(history.events) < int(TINY["limit.historyCount.error"])
        assert max(len(event.SerializeToString()) for event in history.events) < int(TINY["limit.blobSize.error"])
        assert not [event for event in history.events if event.event_type in _TROUBLE]


_TROUBLE = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED,
}
