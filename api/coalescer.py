"""Calls that concurrent callers share, so that the same question is asked once."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from turnkeeper.stores.waiting import cancel_until_done

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


class Coalescer(Generic[Key, Result]):
    """Callers with the same key share a call. A caller that is cancelled doesn't cancel it for the others.

    A call may be joined while it is in progress. In a lane, calls run one at a time, and each may be joined until it
    starts, never after: its result includes what all its callers did before.
    """

    def __init__(self) -> None:
        self._calls: dict[tuple[str, Key], _SharedCall[Result]] = {}
        """Those that may be joined."""
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Of the lanes that have calls."""
        self._tasks: set[asyncio.Task[Result]] = set()

    async def run(self, key: Key, call: Callable[[], Awaitable[Result]], *, lane: str = "") -> Result:
        """Return the result of a call that may be joined, or else of `call`. Raises what the call raises.

        A call in a lane is skipped if all its callers have given up before it starts.
        """
        shared = self._calls.get((lane, key))
        if shared is None:
            shared = self._calls[lane, key] = _SharedCall()
            shared.task = asyncio.create_task(self._run(shared, lane, key, call))
            self._tasks.add(shared.task)
            shared.task.add_done_callback(self._finish)
        shared.callers += 1
        try:
            return await asyncio.shield(shared.task)
        finally:
            shared.callers -= 1

    async def close(self) -> None:
        """Stop all calls, and return once they have stopped."""
        await cancel_until_done(self._tasks)

    async def _run(
        self, shared: "_SharedCall[Result]", lane: str, key: Key, call: Callable[[], Awaitable[Result]]
    ) -> Result:
        if not lane:
            try:
                return await call()
            finally:
                del self._calls[lane, key]
        lock = self._locks.setdefault(lane, asyncio.Lock())
        async with lock:
            del self._calls[lane, key]
            if not shared.callers:
                raise asyncio.CancelledError
            return await call()

    def _finish(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # otherwise asyncio logs it as never retrieved where all callers have given up


class _SharedCall(Generic[Result]):
    task: asyncio.Task[Result]
    callers = 0
