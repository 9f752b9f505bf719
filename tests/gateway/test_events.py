"""Watching a session live over a real connection: API-1, API-3."""

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from uuid import uuid4

import httpx
import pytest

from activities.providers.protocol import Delta
from tests.gateway.watching import Watcher, idle_after
from tests.harness import BOUND, Gate, Stage, says


@pytest.fixture
async def http(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=url, timeout=BOUND, limits=httpx.Limits(max_connections=400)) as client:
        yield client


async def started(http: httpx.AsyncClient, prompt: str | None = None, **more: object) -> str:
    session = f"e-{uuid4()}"
    answer = await http.post("/workflow", json={"id": session, "prompt": prompt, **more})
    assert answer.status_code == 201
    return session


async def test_api_1_a_watcher_sees_a_turn_from_its_beginning_to_its_end(http: httpx.AsyncClient, on: Stage) -> None:
    on.vendor.gate.close()
    session = await started(http)
    watcher = Watcher(http, session)
    async with watcher.stream() as events:
        first = await anext(events)
        assert (first.event, first.data["new_messages"], first.data["status"]) == ("update", [], "idle")
        await http.post(f"/workflow/{session}/prompt", json={"message": "hello", "id": "p1"})
        await watcher.until_in(events, lambda so_far: so_far.last.current_message_id == "p1")
        assert watcher.answers == [None]
        on.vendor.gate.open()
        await watcher.until_in(events, idle_after(1))
    assert watcher.answers == ["echo: hello"]


async def test_api_1_what_waits_is_told_whenever_it_changes(http: httpx.AsyncClient, on: Stage) -> None:
    on.vendor.gate.close()
    session = await started(http, "slow")
    await on.vendor.gate.until_arrived(1)
    watcher = Watcher(http, session)
    async with watcher.stream() as events:
        for number in (1, 2):
            await http.post(f"/workflow/{session}/prompt", json={"message": "more", "id": f"p{number}"})
        await watcher.until_in(events, lambda so_far: len(so_far.waiting) == 2)
        assert [(prompt["id"], prompt["position"]) for prompt in watcher.waiting] == [("p1", 1), ("p2", 2)]
        await http.delete(f"/workflow/{session}/queue/p1")
        await watcher.until_in(events, lambda so_far: [prompt["id"] for prompt in so_far.waiting] == ["p2"])
        on.vendor.gate.open()
        await watcher.until_in(events, lambda so_far: so_far.waiting == [])
    asked = [event for event in watcher.told if event.event == "queue"]
    assert all(before != after for before, after in pairwise(asked))


async def test_api_1_one_who_comes_while_something_waits_is_told_after_the_first_update(
    http: httpx.AsyncClient, on: Stage
) -> None:
    on.vendor.gate.close()
    session = await started(http, "slow")
    await http.post(f"/workflow/{session}/prompt", json={"message": "more", "id": "p1"})
    await on.vendor.gate.until_arrived(1)
    async with Watcher(http, session).stream() as events, asyncio.timeout(BOUND):
        assert [(await anext(events)).event, (await anext(events)).event] == ["update", "queue"]


async def test_agt_5_what_the_model_writes_is_shown_and_never_after_its_step(
    http: httpx.AsyncClient, on: Stage
) -> None:
    rest = Gate(is_open=False)
    on.vendor.script = [[Delta("respond", "Hel"), Delta("respond", "lo"), rest, says("Hello")]]
    session = await started(http, "hi")
    early, late = Watcher(http, session), Watcher(http, session)
    async with early.stream() as events:
        await early.until_in(events, lambda so_far: so_far.shown == ["Hello"])
        await late.until(lambda so_far: so_far.shown == ["Hello"])
        assert late.partial[0].fresh
        rest.open()
        await early.until_in(events, idle_after(1))
    assert early.answers == ["Hello"]
    assert early.told[-1].event == "update"
    assert early.shown == []
