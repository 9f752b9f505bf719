"""Runs `benchmarks.peers.process` in a library's environment, and sends it prompts."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from subprocess import PIPE

from benchmarks.environment import BOUND
from benchmarks.peers.install import LibraryError, last_line, python_of

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "peers"
"""The environments and logs of all libraries."""


class LibraryProcess:
    """A library that is ready. It ends with its input, so it ends with us."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log
        self._ids = count()
        self._replies: dict[int, asyncio.Future[float]] = {}
        self.versions: dict[str, str] = {}

    async def ask(self, session: str, prompt: str) -> float:
        """Send a prompt and wait for the answer; return the seconds that this took inside the library's process.

        Raises:
            LibraryError: The library failed, its process ended, or the answer is wrong.
        """
        request = next(self._ids)
        reply = self._replies[request] = asyncio.get_running_loop().create_future()
        self._stdin.write(json.dumps({"id": request, "session": session, "prompt": prompt}).encode() + b"\n")
        async with asyncio.timeout(BOUND):
            return await reply

    @property
    def _stdin(self) -> asyncio.StreamWriter:
        assert self._process.stdin
        return self._process.stdin

    async def start(self) -> None:
        """Wait until the library is ready."""
        async with asyncio.timeout(BOUND):
            line = await self._line()
        if not line:
            raise LibraryError(f"it stops while it starts: {self._last_line()}")
        self.versions = json.loads(line)["versions"]

    async def read_replies(self) -> None:
        while line := await self._line():
            reply = json.loads(line)
            future = self._replies.pop(reply["id"])
            if future.done():  # nobody waits for it any more
                continue
            if reply["error"] is None:
                future.set_result(reply["seconds"])
            else:
                future.set_exception(LibraryError(reply["error"]))
        for future in self._replies.values():
            if not future.done():
                future.set_exception(LibraryError(f"its process ended: {self._last_line()}"))

    async def _line(self) -> bytes:
        assert self._process.stdout
        return await self._process.stdout.readline()

    def _last_line(self) -> str:
        return last_line(self._log.read_text(errors="replace"))


@asynccontextmanager
async def library_process(library: str, place: str, *, model_seconds: float = 0.0) -> AsyncIterator[LibraryProcess]:
    """Run the library for the Temporal server at `place`, or with its database in the folder `place`.

    Raises:
        LibraryError: It can't be installed, or doesn't start.
    """
    python = await python_of(library, FOLDER)
    log = FOLDER / f"{library}.log"
    variables = {**os.environ, "BENCH_MODEL_SECONDS": str(model_seconds)}
    command = (str(python), "-m", "benchmarks.peers.process", library, place)
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=errors, cwd=ROOT, env=variables
        )
    running = LibraryProcess(process, log)
    replies = None
    try:
        await running.start()
        replies = asyncio.create_task(running.read_replies())
        yield running
    finally:
        await _end(process)
        if replies:
            await replies


async def _end(process: asyncio.subprocess.Process) -> None:
    """Close the input, and kill a process that goes on."""
    assert process.stdin
    process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), BOUND)
    except TimeoutError:
        process.kill()
        await process.wait()
