"""The process of a library: `python -m benchmarks.peers.process LIBRARY PLACE`, in the library's own environment.

`LIBRARY` is a module of `benchmarks.peers.libraries`, and `PLACE` the address of the Temporal server, or a folder.
Input and output are lines of JSON. The first line of output has the versions of the module's `PACKAGES`. A library with
a worker then works for the server until the input ends. Another one gets a line for each prompt, and answers with a
line.
"""

import asyncio
import importlib
import json
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from importlib.metadata import version
from time import perf_counter
from typing import Any, Protocol, TextIO

from benchmarks.peers.work import ANSWER

Ask = Callable[[str, str], Awaitable[str]]
"""Sends a prompt to a session, which it starts if it is new; returns the answer."""


class Library(Protocol):
    """What a module of `benchmarks.peers.libraries` has."""

    PACKAGES: tuple[str, ...]

    def running(self, place: str) -> AbstractAsyncContextManager[Ask | None]:
        """Run the library's worker, or yield the function that answers prompts."""


async def serve(library: Library, place: str, output: TextIO) -> None:
    """Run the library until the input ends."""

    def reply(value: dict[str, Any]) -> None:
        output.write(json.dumps(value) + "\n")
        output.flush()

    async def answer(ask: Ask, request: dict[str, Any]) -> None:
        started_at = perf_counter()
        try:
            text = await ask(request["session"], request["prompt"])
        except Exception as failure:  # noqa: BLE001  # any error of the library is the reply
            error = f"{type(failure).__name__}: {failure}"
        else:
            error = None if text == ANSWER else "an answer is not what the model said"
        reply({"id": request["id"], "seconds": perf_counter() - started_at, "error": error})

    async with library.running(place) as ask, asyncio.TaskGroup() as answers:
        reply({"versions": {name: version(name) for name in library.PACKAGES}})
        while line := await asyncio.to_thread(sys.stdin.readline):
            if ask is not None:
                answers.create_task(answer(ask, json.loads(line)))


def main() -> None:
    logging.basicConfig(level=logging.ERROR)
    name, place = sys.argv[1:]
    library: Any = importlib.import_module(f"benchmarks.peers.libraries.{name}")
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no reply
    asyncio.run(serve(library, place, output))


if __name__ == "__main__":
    main()
