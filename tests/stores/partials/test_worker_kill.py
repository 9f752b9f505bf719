"""The worker dies in the middle of an answer, and the next attempt replaces what it had shown: AGT-5, OPS-10."""

import signal
from pathlib import Path

import pytest
from temporalio.client import Client

from tests.faults.scripted import check_replay, next_worker, plan_of, start
from tests.faults.test_worker_kills import doomed_worker
from tests.stores.partials.conftest import CARRIERS, settings_of
from tests.stores.partials.test_carriers import seen
from turnkeeper.models.settings.settings import Settings
from turnkeeper.stores.partials.factory import carrier_factory

WORDS = " ".join(f"word{number}" for number in range(30))


@pytest.mark.parametrize(
    "kind", [CARRIERS[0], *(pytest.param(other, marks=pytest.mark.wide) for other in CARRIERS[1:])]
)
async def test_agt_5_the_attempt_after_a_killed_worker_replaces_its_output(
    request: pytest.FixtureRequest, temporal: Client, state_dir: Path, kind: str
) -> None:
    chosen = settings_of(kind, state_dir, request)
    chosen.state_dir.mkdir(exist_ok=True)
    session, settings = await start(temporal, chosen.state_dir, [{"text": WORDS, "chunk_delay": 0.1}])
    settings |= chosen.model_dump(include={"redis_url", "partials"})
    carrier = carrier_factory(Settings(**settings))(temporal)
    await session.prompt(id="p1", text="go on")
    async with carrier, carrier.following(session.handle.id) as live:
        plan = plan_of(temporal, settings, pauses_at="model call 1 has written 10", pause="forever")
        async with doomed_worker(plan) as doomed:
            left = await seen(live, lambda partial: len(partial.parts[0].text.split()) == 10)
            doomed.process.kill()
            assert await doomed.exit_code() == -signal.SIGKILL
        async with carrier.following(session.handle.id) as late:
            assert (await seen(late, lambda partial: True)).attempt == 1, "what it left is seen until the next attempt"
        async with next_worker(temporal, settings):
            again = await seen(live, lambda partial: partial.attempt == 2)
            assert again.parts[0].text.split() == WORDS.split()[: len(again.parts[0].text.split())]
            (turn,) = await session.idle(turns=1)
    assert (left.attempt, left.request, again.request, turn.agent_message) == (1, 1, 1, WORDS)
    await check_replay(session)
