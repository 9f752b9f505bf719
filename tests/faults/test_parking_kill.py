"""The worker dies while prompts are parked or come back: none is lost or starts twice, all in order: SES-6, OPS-10."""

import signal
from pathlib import Path

import pytest
from temporalio.client import Client

from tests.faults.scripted import check_replay, next_worker, plan_of, start
from tests.faults.test_worker_kills import doomed_worker

PROMPTS = [f"m{number}" for number in range(30)]


@pytest.mark.parametrize("dies_at", ["move_to_archive has run", "unpark has run"])
async def test_ses_6_parked_prompts_start_once_in_order_wherever_the_worker_dies(
    temporal: Client, tmp_path: Path, dies_at: str
) -> None:
    limits = {"max_history_events": 50, "max_queued_prompts": 6}
    session, settings = await start(temporal, tmp_path, [], model="offline:", limits=limits)
    settings["offline_words_per_second"] = 0
    for message_id in PROMPTS:
        await session.prompt(id=message_id, text="hello")
    async with doomed_worker(plan_of(temporal, settings, dies_at=dies_at)) as doomed:
        assert await doomed.exit_code() == -signal.SIGKILL
    for message_id in PROMPTS:
        await session.prompt(id=message_id, text="the same again")
    async with next_worker(temporal, settings):
        await session.until(lambda s: s.session.turn_count >= len(PROMPTS) and s.status == "idle", turns=0, bound=120)
        turns = (await session.state()).messages
        assert [turn.id for turn in turns] == PROMPTS
        assert {turn.status for turn in turns} == {"completed"}
        view = await session.queue({"message_ids": PROMPTS})
        assert [(fate.id, fate.fate) for fate in view.fates] == [(message_id, "started") for message_id in PROMPTS]
    await check_replay(session)
