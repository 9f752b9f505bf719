"""Calls that concurrent callers share, so that the same question is asked once.

A caller that is cancelled doesn't cancel the call for the others. The two classes differ in which call may be joined:
`Coalescer` joins one in progress; `SerialCoalescer` only one that has not started, so that the result includes what
the caller did before.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

from turnkeeper.stores.cancellation import cancel_until_done

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


class SharedCall(Generic[Result]):
    """A call in progress, or its result, for any number of callers."""

    def __init__(self, call: Coroutine[Any, Any, Result]) -> None:
        self.waiters = 0
        """Callers that wait for the result now."""
        self._task = asyncio.create_task(call)
        self._task.add_done_callback(_mark_as_retrieved)

    @property
    def is_done(self) -> bool:
        """Return whether the call has returned or failed."""
        return self._task.done()

    def peek(self) -> Result | None:
        """Return the result; `None` while the call is in progress, and if it failed."""
        is_there = self._task.done() and not self._task.cancelled() and self._task.exception() is None
        return self._task.result() if is_there else None

    async def result(self) -> Result:
        """Wait for the result; a caller who stops waiting does not stop the call. Raises what the call raises."""
        self.waiters += 1
        try:
            return await asyncio.shield(self._task)
        finally:
            self.waiters -= 1

    def when_done(self, callback: Callable[[], object]) -> None:
        """Run `callback` once the call is done, before its waiters resume."""
        self._task.add_done_callback(lambda _: callback())

    async def cancel(self) -> None:
        """Stop the call, and return once it has stopped."""
        await cancel_until_done([self._task])


class Coalescer(Generic[Key, Result]):
    """Callers with the same key share the call that is in progress."""

    def __init__(self) -> None:
        self._calls: dict[Key, SharedCall[Result]] = {}

    async def run(self, key: Key, call: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Return the result of the call in progress, or else of `call`. Raises what the call raises."""
        shared = self._calls.get(key)
        if shared is None:
            shared = self._calls[key] = SharedCall(call())
            shared.when_done(lambda: self._calls.pop(key))
        return await shared.result()

    async def close(self) -> None:
        """Stop all calls, and return once they have stopped."""
        await asyncio.gather(*(shared.cancel() for shared in self._calls.values()))


class SerialCoalescer(Generic[Key, Result]):
    """Runs the calls of a group one at a time. Callers with the same key share a call until it starts, never after."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group[Key, Result]] = {}

    async def run(self, group: str, key: Key, call: Callable[[], Awaitable[Result]]) -> Result:
        """Return the result of a call that starts after this moment. Raises what the call raises.

        The call is skipped if all its callers have given up before it starts.
        """
        calls = self._groups.setdefault(group, _Group())
        shared = calls.pending.get(key)
        if shared is None:
            shared = calls.pending[key] = SharedCall(_run_in_turn(calls, key, call))
            calls.count += 1
            shared.when_done(lambda: self._finish(group, calls))
        return await shared.result()

    def _finish(self, group: str, calls: "_Group[Key, Result]") -> None:
        calls.count -= 1
        if not calls.count:
            del self._groups[group]


class _Group(Generic[Key, Result]):
    """The calls of one group, until the last of them is done."""

    def __init__(self) -> None:
        self.pending: dict[Key, SharedCall[Result]] = {}
        """Those that have not started."""
        self.count = 0
        self.lock = asyncio.Lock()


async def _run_in_turn(calls: _Group[Key, Result], key: Key, call: Callable[[], Awaitable[Result]]) -> Result:
    async with calls.lock:
        shared = calls.pending.pop(key)
        if not shared.waiters:
            raise asyncio.CancelledError
        return await call()


def _mark_as_retrieved(task: "asyncio.Task[Any]") -> None:
    # Otherwise asyncio logs a failure as never retrieved where all callers have given up.
    if not task.cancelled():
        task.exception()
