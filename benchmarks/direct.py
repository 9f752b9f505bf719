"""The vendor's own SDK in a bare loop, in a process of its own: `python -m benchmarks.direct PORT`.

Each line of input asks for a number of answers at once. The line of output has how long they took, and the process's
CPU time.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE
from time import monotonic, process_time

from openai import AsyncOpenAI

from benchmarks.vendor import written_at
from turnkeeper.ops.local.processes import LOOPBACK

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Answer:
    """An answer as its reader saw it: when its first text was there, and when all of it, in seconds from the request.

    `lags` are the seconds between the writing of each chunk and its arrival.
    """

    first: float
    whole: float
    lags: Sequence[float]


@dataclass
class DirectLoop:
    """The process."""

    process: asyncio.subprocess.Process

    async def answers(self, model: str, count: int = 1) -> tuple[list[Answer], float]:
        """Return `count` answers, all at once, and the CPU seconds that the process needed for them."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps([model, count]).encode() + b"\n")
        answers, cpu = json.loads(await self.process.stdout.readline())
        return [Answer(*answer) for answer in answers], cpu


@asynccontextmanager
async def direct_loop(port: int) -> AsyncIterator[DirectLoop]:
    """Run the loop for the vendor at `port`; it ends with its input."""
    command = (sys.executable, "-m", "benchmarks.direct", str(port))
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, cwd=ROOT, limit=2**24)
    try:
        yield DirectLoop(process)
    finally:
        assert process.stdin
        process.stdin.close()
        await process.wait()


async def _answer(client: AsyncOpenAI, model: str) -> tuple[float, float, list[float]]:
    started_at, text, seen_at = monotonic(), "", list[float]()
    messages = [{"role": "user", "content": "What is it?"}]
    async for event in await client.chat.completions.create(model=model, messages=messages, stream=True):  # type: ignore[call-overload]
        if event.choices and event.choices[0].delta.content:
            text += event.choices[0].delta.content
            seen_at.append(monotonic())
    lags = [seen - at for seen, at in zip(seen_at, written_at(text), strict=True)]
    return seen_at[0] - started_at, monotonic() - started_at, lags


async def _main(port: int) -> None:
    async with AsyncOpenAI(base_url=f"http://{LOOPBACK}:{port}/v1", api_key="none", max_retries=0) as client:
        while line := await asyncio.to_thread(sys.stdin.readline):
            model, count = json.loads(line)
            cpu = process_time()
            answers = await asyncio.gather(*(_answer(client, model) for _ in range(count)))
            print(json.dumps([answers, process_time() - cpu]), flush=True)


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1])))
