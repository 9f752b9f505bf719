"""Reading a session: the largest state that it keeps, one that no worker has in memory, and one with nothing new."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from statistics import median
from time import perf_counter
from typing import Any

from temporalio.client import WorkflowHandle

from benchmarks.copies import document, import_session
from benchmarks.environment import BOUND, BenchEnvironment, bench_environment, interleaved
from benchmarks.http_client import HttpConnection
from benchmarks.results import Row, ms, row, within
from benchmarks.scripts import LARGE_STEPS
from turnkeeper.models.limits import Limits
from turnkeeper.models.transcript.conversation import ConversationState, ConversationUpdate

QUESTION = "And what is it? " * 375
"""6,000 characters: longer texts are stored by reference."""

LARGE_BYTES = 500_000
"""A session has this much with its running turn; the most is about 1 MB (SES-11)."""

SAMPLES, POLLS = 40, 200
TURNS = 200
COLD_READS = 5

SHORT, LONG = 10, 2_000
"""The turns of a young session, and of one that has lived for months."""


async def reading() -> list[Row]:
    async with bench_environment(in_memory=False, gateways=1) as environment:
        return [
            await _largest_state(environment),
            *await _nothing_new(environment),
            await _after_a_restart(environment),
        ]


async def _largest_state(environment: BenchEnvironment) -> Row:
    """Query a session that has about as many ended turns as it keeps, and a large running one."""
    session = await environment.session("answer")
    size = 0
    while size < 0.75 * Limits().archive_above_bytes or session.rounds % LARGE_STEPS:
        await session.round(QUESTION)
        size = len((await _state(session.handle)).model_dump_json())
    await session.handle.execute_update("configure", {"model": "offline:script/large"})
    session.rounds += 1
    await session.send("Read all of it.")
    last_size = 0
    async with asyncio.timeout(BOUND):
        while size != last_size or size < LARGE_BYTES:
            await asyncio.sleep(0.2)
            last_size, size = size, len((await _state(session.handle)).model_dump_json())
    seconds = [await _timed(lambda: _state(session.handle)) for _ in range(SAMPLES)]
    note = f"of {size / 1000:.0f} kB"
    return within("largest full state, query and decode", median(seconds) * 1000, 15, unit="ms", digits=1, note=note)


async def _nothing_new(environment: BenchEnvironment) -> list[Row]:
    """Poll two sessions that were imported and have had a turn since, over HTTP and by a bare query."""
    http = HttpConnection(environment.gateway_ports[0])
    polls = list[Callable[[], Awaitable[float]]]()
    for turns in (SHORT, LONG):
        session_id = f"imported-{turns}"
        await import_session(environment.gateway_ports[0], json.dumps(document(turns)).encode(), session_id)
        handle = environment.client.get_workflow_handle(session_id)
        first = await http.get(f"/workflow/{session_id}/conversation?last_seen_message_id=m{turns}")
        revision = first["conversation_update"]["revision"]
        path = f"/workflow/{session_id}/conversation?last_seen_message_id=m{turns}&since_revision={revision}"
        cursor = {"last_seen_message_id": f"m{turns}", "since_revision": revision}

        async def poll(path: str = path) -> None:
            update = (await http.get(path))["conversation_update"]
            assert not update["new_messages"] + update["updated_messages"]

        async def bare(handle: WorkflowHandle[Any, Any] = handle, cursor: dict[str, Any] = cursor) -> None:
            await handle.query("get_conversation_updates", cursor, result_type=ConversationUpdate)

        polls += [lambda poll=poll: _timed(poll), lambda bare=bare: _timed(bare)]  # type: ignore[misc]
    short, bare_short, long, bare_long = map(median, await interleaved(POLLS, *polls))
    what = "GET /conversation with nothing new"
    return [
        row(f"{what}, {LONG:,} turns to {SHORT}", ms(long), ms(short), long / short, at_most=1.2),
        row(f"{what}, to a bare query, {SHORT} turns", ms(short), ms(bare_short), short / bare_short, at_most=1),
        row(f"{what}, to a bare query, {LONG:,} turns", ms(long), ms(bare_long), long / bare_long, at_most=1),
    ]


async def _after_a_restart(environment: BenchEnvironment) -> Row:
    """Restart the worker, and query a long session as soon as it answers for a short one."""
    long, short = await environment.session("tool"), await environment.session("tool")
    (worker,) = environment.workers
    for _ in range(TURNS):
        await long.round()
    seconds = []
    for _ in range(COLD_READS):
        await worker.stop(seconds=BOUND)
        await worker.start()
        await _state(short.handle)
        seconds.append(await _timed(lambda: _state(long.handle)))
    what = f"cold read after a worker restart, {TURNS}-turn session, slowest of {COLD_READS}"
    return within(what, max(seconds), 2, unit="s", digits=2)


async def _state(handle: WorkflowHandle[Any, Any]) -> ConversationState:
    return await handle.query("get_conversation_state", result_type=ConversationState)


async def _timed(read: Callable[[], Awaitable[Any]]) -> float:
    started_at = perf_counter()
    await read()
    return perf_counter() - started_at
