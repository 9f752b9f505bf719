"""How tests wait: nothing else in `tests` sleeps, and `tests/architecture/test_waits.py` holds it.

Most waits need none of this: an event, a queue, a stream, a gate and a session's watch tell of themselves.
"""

import asyncio
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import TypeVar

Answer = TypeVar("Answer")

BOUND = 60.0
"""Seconds that any wait of a test lasts at most: a safety net, which measures nothing."""

FIRST_PAUSE = 0.001
MAX_PAUSE = 0.05
"""Seconds between two checks: short where the answer comes at once, longer on a busy machine."""


async def until(
    condition: Callable[[], Answer | Awaitable[Answer]],
    *,
    within: float = BOUND,
    delay: float = 0.0,
    max_pause: float = MAX_PAUSE,
) -> Answer:
    """Call `condition` until its result is true, and return that.

    For what can only be polled: a process, a file, a list of Temporal's, a gateway that is starting. The
    pauses double up to `max_pause`. For what takes long and costs something each time, `max_pause` is longer, and
    `delay` is the pause before the first check; all in seconds.

    Raises:
        TimeoutError: after `within` seconds, with the last answer.
    """
    answer, pause = None, delay or FIRST_PAUSE
    try:
        async with asyncio.timeout(within):
            await asyncio.sleep(delay)
            while True:
                result = condition()
                answer = await result if isawaitable(result) else result
                if answer:
                    return answer
                await asyncio.sleep(pause)
                pause = min(2 * pause, max_pause)
    except TimeoutError as error:
        raise TimeoutError(f"not so within {within:g} s; the last answer was {answer!r}") from error


async def run_other_tasks(times: int = 1) -> None:
    """Run every ready task until it waits for something, `times` times over."""
    for _ in range(times):
        await asyncio.sleep(0)


async def pass_time(seconds: float) -> None:
    """Sleep: only for the fault campaign, whose faults and pauses have planned durations."""
    await asyncio.sleep(seconds)
