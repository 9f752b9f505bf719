"""Watchers see only turns that the session has in the end, while workers are killed: SES-12, OPS-10."""

import asyncio
import json
import random
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from temporalio.client import Client

from tests.api.conftest import served
from tests.api.live.watching import Watcher, full_state
from tests.faults.test_months import Workers
from tests.waiting import BOUND, until
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.transcript.partial_output import PartialGrowth

KILLS = 5
SESSIONS = 2
FINISH_SECONDS = 3 * BOUND

SCRIPT = {
    "repeat": True,
    "responses": [
        {"calls": [{"name": "file_list", "args": {}}], "delay": 0.05},
        {"text": "The answer to {last_user}.", "delay": 0.05},
    ],
}


@pytest.mark.timeout(900)
async def test_ses_12_watchers_and_pollers_see_only_committed_data_when_workers_are_killed(
    temporal: Client, tmp_path: Path
) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "kills.json").write_text(json.dumps(SCRIPT))
    chosen = {"state_dir": str(tmp_path), "workspace_root": str(tmp_path), "task_queue": f"q-{uuid4()}"}
    async with (
        served(temporal, Settings(**chosen, task_timeout=2)) as url,
        httpx.AsyncClient(base_url=url, timeout=BOUND) as http,
        Workers(temporal, chosen) as one,
        Workers(temporal, chosen) as other,
    ):
        watchers = [TurnWatcher(http, await start_session(http)) for _ in range(SESSIONS)]
        streams = [asyncio.create_task(watched(watcher)) for watcher in watchers]
        sending = asyncio.create_task(prompts(http, [watcher.session for watcher in watchers]))
        chance = random.Random(12)
        for _ in range(KILLS):
            await turns_beyond(watchers, chance.randrange(1, 3))
            await chance.choice([one, other]).kill()
        sending.cancel()
        async with asyncio.timeout(FINISH_SECONDS):
            for watcher, stream in zip(watchers, streams, strict=True):
                transcript = await until(partial(finished, http, watcher.session), within=FINISH_SECONDS)
                await until(partial(holds_all, watcher, stream, len(transcript)), within=FINISH_SECONDS)
                for copied, turn in zip(watcher.copy.turns, transcript, strict=True):
                    actual = copied.model_dump(mode="json")
                    assert {name: actual[name] for name in turn if actual[name] != turn[name]} == {}, turn
        for stream in streams:
            stream.cancel()


async def start_session(http: httpx.AsyncClient) -> str:
    session = f"k-{uuid4()}"
    answer = await http.post("/workflow", json={"id": session, "model": "offline:script/kills", "prompt": "first"})
    assert answer.status_code == 201
    return session


class TurnWatcher(Watcher):
    """A watcher of turns; partial output is checked by other tests."""

    def _grow(self, growth: PartialGrowth) -> None:
        pass


async def watched(watcher: Watcher) -> None:
    """Watch forever; connect while a worker answers, and reconnect after any end of the stream, as browsers do."""
    while True:
        async with AsyncExitStack() as open_stream:
            try:
                events = await open_stream.enter_async_context(watcher.stream())
            except AssertionError:  # no worker answers
                continue
            with suppress(httpx.HTTPError):
                async for _ in events:
                    pass


async def prompts(http: httpx.AsyncClient, sessions: list[str]) -> None:
    """Keep every session working, and read it in between."""
    while True:
        for session in sessions:
            answer = await http.get(f"/workflow/{session}/conversation?limit=1")
            if answer.status_code == 200 and answer.json()["conversation_update"]["queue_length"] < 2:
                await http.post(f"/workflow/{session}/prompt", json={"message": "more"})


async def turns_beyond(watchers: list[Watcher], more: int) -> None:
    """Wait until a session has `more` more turns than now, but no longer than a takeover takes."""
    before = [len(watcher.copy.turns) for watcher in watchers]

    def are_there() -> bool:
        return any(len(w.copy.turns) >= n + more for w, n in zip(watchers, before, strict=True))

    with suppress(TimeoutError):
        await until(are_there, within=BOUND / 6)


async def finished(http: httpx.AsyncClient, session: str) -> list[dict[str, object]]:
    """Return the whole transcript if nothing is left to do; empty otherwise."""
    answer = await http.get(f"/workflow/{session}")
    if answer.status_code == 200 and (answer.json()["status"], answer.json()["queue_length"]) == ("idle", 0):
        return await full_state(http, session)
    return []


def holds_all(watcher: Watcher, stream: asyncio.Task[None], turns: int) -> bool:
    """Return whether the watcher has seen the end of as many turns; its stream stays open."""
    assert not stream.done(), stream.exception()
    return watcher.is_idle and len(watcher.copy.turns) >= turns
