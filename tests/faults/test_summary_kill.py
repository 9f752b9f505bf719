"""The worker dies while a summary is made (CTX-5, OPS-10): another one makes it, and nothing more is seen of it."""

import signal
from pathlib import Path

import pytest
from temporalio.client import Client

from tests.faults.scripted import check_replay, next_worker, plan_of, start
from tests.faults.test_worker_kills import doomed_worker
from turnkeeper.models.http_responses import ContextView

SUMMARY = "They counted from one to four."
SCRIPT = [{"text": f"Answer {number}."} for number in range(1, 7)] + [{"text": SUMMARY}, {"text": "Answer 7."}]
"""The seventh request to the model is for a summary."""

WINDOW = {"max_messages": 12, "preserve_last_n": 1, "evict_block": 9, "summarize_on_trim": True}


@pytest.mark.parametrize("pieces", [1, 3])
async def test_ctx_5_a_worker_killed_during_a_summary_costs_nothing(
    temporal: Client, tmp_path: Path, pieces: int
) -> None:
    session, settings = await start(temporal, tmp_path, SCRIPT, history=WINDOW)
    for number in range(1, 8):
        await session.prompt(id=f"p{number}", text=f"This is prompt number {number}, and it has some more words.")
    async with doomed_worker(plan_of(temporal, settings, dies_at=f"model call 7 has written {pieces}")) as doomed:
        assert await doomed.exit_code() == -signal.SIGKILL
    async with next_worker(temporal, settings):
        turns = await session.idle(turns=7)
        assert [turn.agent_message for turn in turns] == [f"Answer {number}." for number in range(1, 8)]
        view = await session.handle.query("get_context_view", result_type=ContextView)
        assert view.summary is not None
        assert (view.summary.text, view.summaries_failed) == (SUMMARY, 0)
    await check_replay(session)
