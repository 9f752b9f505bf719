"""The worker dies in the middle of an answer, and the turn ends before there is another attempt: SES-9, OPS-10."""

import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from tests.faults.scripted import check_replay, next_worker, plan_of, start
from tests.faults.test_worker_kills import doomed_worker
from tests.harness import DrivenSession
from tests.stores.partials.test_carriers import seen
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.transcript.conversation import ModelStep
from turnkeeper.stores.partials.factory import carrier_factory

WORDS = " ".join(f"word{number}" for number in range(30))


async def killed_in_mid_answer(temporal: Client, folder: Path, **limits: Any) -> tuple[DrivenSession, dict[str, Any]]:
    """Return a session whose worker died when it had shown ten words, and the settings of the next one."""
    script = [{"text": WORDS, "chunk_delay": 0.1}, {"text": "It is noon."}]
    session, settings = await start(temporal, folder, script, limits=limits)
    settings["partials"] = "heartbeats"  # of a dead worker, only they leave what was written
    carrier = carrier_factory(Settings(**settings))(temporal)
    await session.prompt(id="p1", text="go on")
    plan = plan_of(temporal, settings, pauses_at="model call 1 has written 10", pause="forever")
    async with carrier, carrier.following(session.handle.id) as live, doomed_worker(plan) as doomed:
        await seen(live, lambda partial: len(partial.parts[0].text.split()) == 10)
        doomed.process.kill()
        assert await doomed.exit_code() == -signal.SIGKILL
    return session, settings


async def test_ses_9_a_stop_does_not_wait_for_a_dead_worker(
    temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnkeeper.workflows.activity_options.UNFINISHED_PATIENCE", timedelta(seconds=1.5))
    session, settings = await killed_in_mid_answer(temporal, tmp_path)
    await session.prompt(id="p2", text="what time is it?", mode="interrupt")
    async with next_worker(temporal, settings):
        first, second = await session.idle(turns=2)
        assert (first.id, first.status, first.reasoning_trajectory) == ("p1", "cancelled", None)
        assert (second.id, second.status) == ("p2", "completed")
    await check_replay(session)


async def test_ses_9_a_turn_at_its_time_limit_has_the_partial_answer_of_a_dead_worker(
    temporal: Client, tmp_path: Path
) -> None:
    session, settings = await killed_in_mid_answer(temporal, tmp_path, turn_timeout=5)
    async with next_worker(temporal, settings):
        (turn,) = await session.idle(turns=1)
        assert turn.error_type == "budget"
        step = turn.steps[-1]
        assert isinstance(step, ModelStep)
        assert step.interrupted
        assert (step.text or "").split()[:10] == WORDS.split()[:10]
    await check_replay(session)
