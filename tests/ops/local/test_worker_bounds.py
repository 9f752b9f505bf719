"""How many workflow tasks a worker takes on at once (OPS-8, OPS-10)."""

import asyncio
from dataclasses import dataclass
from typing import Any

from tests.harness import BOUND
from turnkeeper.workflows.hosting import TaskSlots


@dataclass(frozen=True)
class Context:
    is_sticky: bool = False
    permit: Any = None


async def test_ops_10_a_worker_limits_concurrent_replays_but_not_cached_sessions() -> None:
    slots = TaskSlots(max_tasks=3, max_replays=2)
    permits = [await slots.reserve_slot(Context()) for _ in range(2)]  # type: ignore[arg-type]
    third = asyncio.ensure_future(slots.reserve_slot(Context()))  # type: ignore[arg-type]
    for _ in range(3):
        await slots.reserve_slot(Context(is_sticky=True))  # type: ignore[arg-type]
    assert not third.done()
    # As the SDK does it: from a thread of its own.
    await asyncio.to_thread(slots.release_slot, Context(permit=permits[0]))  # type: ignore[arg-type]
    async with asyncio.timeout(BOUND):
        await third
