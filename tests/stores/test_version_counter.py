"""Who waits for a change is woken by it, and by nothing that came before."""

import asyncio

from tests.waiting import BOUND, run_other_tasks
from turnkeeper.stores.waiting import VersionCounter


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_an_existing_version_is_not_waited_for() -> None:
    counter = VersionCounter()
    counter.advance()
    assert await counter.wait_beyond(0)


async def test_one_change_wakes_all_waiters() -> None:
    counter = VersionCounter()
    waiters = [asyncio.create_task(counter.wait_beyond(0)) for _ in range(3)]
    await run_other_tasks()
    counter.advance()
    async with asyncio.timeout(BOUND):
        assert await asyncio.gather(*waiters) == [True, True, True]


async def test_a_waiter_without_a_change_returns_in_time() -> None:
    counter = VersionCounter()
    counter.advance()
    assert not await counter.wait_beyond(1, until=now())


async def test_a_condition_is_checked_with_every_notification_and_the_version_stays() -> None:
    counter, values = VersionCounter(), list[int]()
    waiting = asyncio.create_task(counter.wait_for(lambda: len(values) == 2))
    for value in range(2):
        await run_other_tasks()
        assert not waiting.done()
        values.append(value)
        counter.notify()
    async with asyncio.timeout(BOUND):
        assert await waiting
    assert counter.version == 0
