"""Reading a session whole: the largest state that it keeps, and one that no worker has in memory (OPS-11)."""

from collections.abc import Awaitable, Callable
from statistics import median
from time import perf_counter
from typing import Any

from temporalio.client import WorkflowHandle

from benchmarks.environment import BOUND, BenchEnvironment, bench_environment, stack_environment
from benchmarks.measurements import Row
from turnkeeper.models.limits import Limits
from turnkeeper.models.transcript.conversation import ConversationState
from turnkeeper.ops.local.processes import Program

QUESTION = "And what is it? " * 375
"""6,000 characters: longer texts are stored by reference."""

SAMPLES = 40
TURNS = 200
COLD_READS = 5


async def reading() -> list[Row]:
    async with bench_environment() as environment:
        rows = [await _largest_state(environment)]
    async with stack_environment() as environment:
        assert environment.worker
        return [*rows, await _after_a_restart(environment, environment.worker)]


async def _largest_state(environment: BenchEnvironment) -> Row:
    """Query a session that is about to move turns to the archive."""
    session = await environment.session("answer")
    size = 0
    while size < 0.95 * Limits().archive_above_bytes:
        await session.round(QUESTION)
        size = len((await _state(session.handle)).model_dump_json())
    seconds = [await _timed(lambda: _state(session.handle)) for _ in range(SAMPLES)]
    what = f"largest full state, {size / 1000:.0f} kB, query and decode"
    return Row(what, f"{median(seconds) * 1000:.1f} ms", "", "", "≤ 15 ms", median(seconds) <= 0.015)


async def _after_a_restart(environment: BenchEnvironment, worker: Program) -> Row:
    """Restart the worker, and query a long session as soon as it answers for a short one."""
    long, short = await environment.session("tool"), await environment.session("tool")
    for _ in range(TURNS):
        await long.round()
    seconds = []
    for _ in range(COLD_READS):
        await worker.stop(seconds=BOUND)
        await worker.start()
        await _state(short.handle)
        seconds.append(await _timed(lambda: _state(long.handle)))
    what = f"cold read after a worker restart, {TURNS}-turn session"
    measured = f"{median(seconds) * 1000:.0f} ms, worst {max(seconds) * 1000:.0f} ms"
    return Row(what, measured, "", "", "≤ 2 s", max(seconds) <= 2)


async def _state(handle: WorkflowHandle[Any, Any]) -> ConversationState:
    return await handle.query("get_conversation_state", result_type=ConversationState)


async def _timed(read: Callable[[], Awaitable[Any]]) -> float:
    started_at = perf_counter()
    await read()
    return perf_counter() - started_at
