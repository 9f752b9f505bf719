"""Concurrent callers share one call, and one that gives up does not cancel it for the others."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.harness import BOUND
from tests.waiting import run_other_tasks
from turnkeeper.api.coalescer import Coalescer


class Calls:
    """Calls that wait to be answered: each notes its name when it starts."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.may_answer = asyncio.Event()

    def named(self, name: str) -> Callable[[], Coroutine[Any, Any, str]]:
        async def call() -> str:
            self.started.append(name)
            await self.may_answer.wait()
            return f"answer to {name}"

        return call


async def settled() -> None:
    """Let everything run that can."""
    await run_other_tasks(times=10)


async def failing() -> str:
    raise ValueError("no answer")


@pytest.fixture
async def calls() -> Calls:
    return Calls()


# ---- joining a call in progress


async def test_callers_with_the_same_key_share_a_call_and_others_do_not(calls: Calls) -> None:
    coalescer = Coalescer[str, str]()
    callers = [asyncio.create_task(coalescer.run(key, calls.named(key))) for key in ("a", "a", "b")]
    await settled()
    callers.append(asyncio.create_task(coalescer.run("a", calls.named("a"))))
    await settled()
    assert calls.started == ["a", "b"]
    calls.may_answer.set()
    async with asyncio.timeout(BOUND):
        assert await asyncio.gather(*callers) == ["answer to a", "answer to a", "answer to b", "answer to a"]


async def test_a_caller_that_gives_up_does_not_cancel_the_call_for_others(calls: Calls) -> None:
    coalescer = Coalescer[str, str]()
    first, second = (asyncio.create_task(coalescer.run("a", calls.named("a"))) for _ in range(2))
    await settled()
    first.cancel()
    await settled()
    assert first.cancelled()
    calls.may_answer.set()
    async with asyncio.timeout(BOUND):
        assert await second == "answer to a"


async def test_a_finished_call_is_not_joined(calls: Calls) -> None:
    coalescer = Coalescer[str, str]()
    calls.may_answer.set()
    for _ in range(2):
        await coalescer.run("a", calls.named("a"))
    with pytest.raises(ValueError, match="no answer"):
        await coalescer.run("a", failing)
    await coalescer.run("a", calls.named("a"))
    assert calls.started == ["a", "a", "a"]


async def test_a_failure_without_waiting_callers_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    coalescer = Coalescer[str, str]()
    caller = asyncio.create_task(coalescer.run("a", failing))
    await run_other_tasks(times=1)
    caller.cancel()
    await settled()
    del coalescer, caller
    assert caplog.records == []


async def test_closing_stops_every_call_before_it_returns(calls: Calls) -> None:
    coalescer = Coalescer[str, str]()
    callers = [asyncio.create_task(coalescer.run(key, calls.named(key))) for key in ("a", "b")]
    await settled()
    async with asyncio.timeout(BOUND):
        await coalescer.close()
        for caller in callers:
            with pytest.raises(asyncio.CancelledError):
                await caller


# ---- joining a call that has not started


async def test_calls_in_one_lane_run_one_by_one_and_lanes_run_in_parallel(calls: Calls) -> None:
    coalescer = Coalescer[str, str]()
    callers = [asyncio.create_task(coalescer.run(key, calls.named(key), lane="s")) for key in ("a", "b")]
    callers.append(asyncio.create_task(coalescer.run("c", calls.named("c"), lane="t")))
    await settled()
    assert calls.started == ["a", "c"]
    calls.may_answer.set()
    async with asyncio.timeout(BOUND):
        await asyncio.gather(*callers)
    assert calls.started == ["a", "c", "b"]


async def test_a_call_in_a_lane_can_be_joined_until_it_starts(calls: Calls) -> None:
    coalescer = Coalescer[str, str]()
    callers = [asyncio.create_task(coalescer.run("a", calls.named("a"), lane="s"))]
    await settled()
    callers += [asyncio.create_task(coalescer.run("a", calls.named("a again"), lane="s")) for _ in range(3)]
    await settled()
    assert calls.started == ["a"]
    calls.may_answer.set()
    async with asyncio.timeout(BOUND):
        assert await asyncio.gather(*callers) == ["answer to a", *["answer to a again"] * 3]
    assert calls.started == ["a", "a again"]


async def test_a_call_without_waiting_callers_is_not_made(calls: Calls) -> None:
    coalescer = Coalescer[str, str]()
    first = asyncio.create_task(coalescer.run("a", calls.named("a"), lane="s"))
    await settled()
    gives_up = asyncio.create_task(coalescer.run("b", calls.named("b"), lane="s"))
    await settled()
    gives_up.cancel()
    await settled()
    calls.may_answer.set()
    async with asyncio.timeout(BOUND):
        await first
        await coalescer.run("c", calls.named("c"), lane="s")
    assert calls.started == ["a", "c"]


async def test_a_failure_is_raised_and_the_next_call_is_made(calls: Calls) -> None:
    coalescer = Coalescer[str, str]()
    failed = asyncio.create_task(coalescer.run("a", failing, lane="s"))
    after = asyncio.create_task(coalescer.run("b", calls.named("b"), lane="s"))
    calls.may_answer.set()
    async with asyncio.timeout(BOUND):
        with pytest.raises(ValueError, match="no answer"):
            await failed
        assert await after == "answer to b"


async def test_a_lane_is_removed_when_its_calls_are_done(calls: Calls) -> None:
    coalescer = Coalescer[str, str]()
    calls.may_answer.set()
    await coalescer.run("a", calls.named("a"), lane="s")
    await settled()
    assert (dict(coalescer._calls), dict(coalescer._locks)) == ({}, {})
