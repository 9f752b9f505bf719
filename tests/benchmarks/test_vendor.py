"""The fake vendor that streams as vendors do, and the SDK's loop that it is measured with: OPS-11."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from openai import AsyncOpenAI

from benchmarks.direct import direct_loop
from benchmarks.environment import until_open
from benchmarks.vendor import CHUNKS_A_SECOND, FIRST_SECONDS, TOOL_CALLS, serve
from turnkeeper.ops.local.processes import LOOPBACK, free_port


@pytest.fixture
async def vendor_port() -> AsyncIterator[int]:
    port = free_port()
    serving = asyncio.create_task(serve(port))
    await until_open(port)
    yield port
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


async def test_ops_11_the_sdk_sees_each_chunk_and_when_it_was_written(vendor_port: int) -> None:
    chunks = 5
    async with direct_loop(vendor_port) as direct:
        answers, cpu = await direct.answers(f"text-{chunks}", 2)
        at_once, _ = await direct.answers("text-0")
    assert [len(answer.lags) for answer in (*answers, *at_once)] == [chunks, chunks, 1]
    for answer in answers:
        assert answer.first >= FIRST_SECONDS
        assert answer.whole >= FIRST_SECONDS + (chunks - 1) / CHUNKS_A_SECOND
        assert min(answer.lags) >= 0
    assert cpu > 0


async def test_ops_11_the_vendor_calls_a_tool_in_all_but_the_last_answer(vendor_port: int) -> None:
    messages: list[dict[str, object]] = [{"role": "user", "content": "Read it."}]
    stops = []
    async with AsyncOpenAI(base_url=f"http://{LOOPBACK}:{vendor_port}/v1", api_key="none") as client:
        for call in range(TOOL_CALLS + 1):
            events = await client.chat.completions.create(model="tools-0", messages=messages, stream=True)  # type: ignore[call-overload]
            stops += [event.choices[0].finish_reason async for event in events if event.choices]
            messages.append({"role": "tool", "tool_call_id": f"c{call}", "content": "a line"})
    assert [stop for stop in stops if stop] == ["tool_calls"] * TOOL_CALLS + ["stop"]
