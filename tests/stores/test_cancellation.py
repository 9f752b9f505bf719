"""Tasks end although a library loses a cancellation: OPS-2."""

import asyncio
from contextlib import suppress

import pytest

from tests.waiting import BOUND, run_other_tasks
from turnkeeper.stores import waiting
from turnkeeper.stores.partials.carrier import FollowedSessions
from turnkeeper.stores.waiting import cancel_until_done


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "REPEAT_SECONDS", 0.01)


async def lose_a_cancellation(*_: object) -> None:
    """As `asyncio.wait_for` does in Python 3.11 if its call completes at the same time."""
    with suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    await asyncio.Event().wait()


async def test_ops_2_a_task_that_ignores_a_cancellation_is_cancelled_again() -> None:
    tasks = [asyncio.create_task(work) for work in (lose_a_cancellation(), asyncio.Event().wait(), run_other_tasks())]
    await run_other_tasks(3)
    async with asyncio.timeout(BOUND):
        await cancel_until_done(tasks)
    assert [task.cancelled() for task in tasks] == [True, True, False]


async def test_ops_2_cancelling_no_tasks_returns_at_once() -> None:
    await cancel_until_done([])


async def test_ops_2_agt_5_a_gateway_stops_even_if_a_reader_ignores_its_cancellation() -> None:
    followed = FollowedSessions(lose_a_cancellation)
    async with followed.following("left"):
        await run_other_tasks()
    async with asyncio.timeout(BOUND), followed.following("still followed"):
        await run_other_tasks()
        await followed.close()
