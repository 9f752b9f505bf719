"""The AI SDK's chats in a Node process of their own, driven by a test."""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.harness import BOUND
from tests.interop.npm import installed, node

PROGRAM = Path(__file__).parent / "ai_sdk"
PACKAGES = {7: PROGRAM, 6: Path(__file__).parent / "ai_sdk_6"}
"""Which release of each major version is driven."""


def installed_driver(version: int = 7) -> tuple[str, Path]:
    """Return Node and the driver, with the packages of its lock file."""
    program = PROGRAM / "driver.mjs"
    return str(node()), installed(PACKAGES[version], program) / program.name


@dataclass
class Chat:
    """One chat as its page would show it. `seen` are all states it was in, the newest last."""

    driver: "Driver"
    name: str
    id: str
    seen: list[dict[str, Any]] = field(default_factory=list)
    finishes: list[dict[str, Any]] = field(default_factory=list)

    @property
    def status(self) -> str:
        return self.seen[-1]["status"] if self.seen else "ready"

    @property
    def error(self) -> str | None:
        return self.seen[-1]["error"] if self.seen else None

    @property
    def messages(self) -> list[dict[str, Any]]:
        return self.seen[-1]["messages"] if self.seen else []

    @property
    def is_answered(self) -> bool:
        """The last message is an answer, whole or not."""
        return bool(self.messages) and self.messages[-1]["role"] == "assistant"

    @property
    def answer(self) -> dict[str, Any]:
        """The last message, which is an answer."""
        assert self.is_answered, self.messages
        return self.messages[-1]

    def parts(self, kind: str) -> list[dict[str, Any]]:
        """The parts of the last answer that are of a kind."""
        return [part for part in self.answer["parts"] if part["type"] == kind]

    @property
    def text(self) -> str:
        """All text of the last answer."""
        return "".join(part["text"] for part in self.parts("text"))

    async def send(self, text: str, **more: Any) -> None:
        """Send a message; returns when its stream has ended."""
        message = {"parts": [{"type": "text", "text": text}], **more}
        await self.driver.run("send", chat=self.name, message=message)

    def sending(self, text: str, **more: Any) -> "asyncio.Task[None]":
        """Send a message without waiting for the end of its stream."""
        return asyncio.create_task(self.send(text, **more))

    async def do(self, name: str, **arguments: Any) -> None:
        await self.driver.run(name, chat=self.name, **arguments)

    def doing(self, name: str, **arguments: Any) -> "asyncio.Task[None]":
        return asyncio.create_task(self.do(name, **arguments))

    async def until(self, is_so: Callable[["Chat"], bool]) -> None:
        """Wait until the chat is as asked."""
        try:
            await self.driver.until(lambda: bool(self.seen) and is_so(self))
        except TimeoutError:
            raise AssertionError(
                f"never so; the last state was {json.dumps(self.seen[-1:], indent=1)[:4000]}"
            ) from None

    async def until_shows(self, text: str) -> None:
        """Wait until the last message is an answer with exactly this text."""
        await self.until(lambda chat: chat.is_answered and chat.text == text)

    def texts_shown(self) -> list[str]:
        """Every text that the answer had, one after the other."""
        texts: list[str] = []
        for state in self.seen:
            last = state["messages"][-1] if state["messages"] else {"role": "user"}
            if last["role"] == "assistant":
                text = "".join(part["text"] for part in last["parts"] if part["type"] == "text")
                texts += [text] if texts[-1:] != [text] else []
        return texts


class Driver:
    """The Node process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._numbers = count(1)
        self._chats: dict[str, Chat] = {}
        self._done: dict[int, str | None] = {}
        self._changed = asyncio.Condition()
        self._reading = asyncio.create_task(self._read())

    async def open(self, url: str, *, id: str | None = None, **options: Any) -> Chat:
        """Open a chat at a gateway, as a page would."""
        chat = Chat(self, name=f"chat-{next(self._numbers)}", id=id or f"s-{uuid4()}")
        self._chats[chat.name] = chat
        await self.run("open", chat=chat.name, id=chat.id, url=url, **options)
        return chat

    async def run(self, name: str, **arguments: Any) -> None:
        """Do something, and wait until it is done."""
        number = next(self._numbers)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"number": number, "name": name, **arguments}).encode() + b"\n")
        await self.until(lambda: number in self._done)
        assert self._done[number] is None, self._done[number]

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(BOUND), self._changed:
            await self._changed.wait_for(lambda: is_so() or self._reading.done())
        assert is_so(), "the driver has ended"

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(BOUND):
                await self._process.wait()
        finally:
            if self._process.returncode is None:
                self._process.kill()
        await self._reading

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self._take(json.loads(line))
            async with self._changed:
                self._changed.notify_all()
        async with self._changed:
            self._changed.notify_all()

    def _take(self, event: dict[str, Any]) -> None:
        if "done" in event:
            self._done[event["done"]] = event.get("threw")
        elif "finish" in event:
            self._chats[event["chat"]].finishes.append(event["finish"])
        else:
            self._chats[event["chat"]].seen.append(event)


@asynccontextmanager
async def running_driver(version: int = 7) -> AsyncIterator[Driver]:
    node, program = await asyncio.to_thread(installed_driver, version)
    process = await asyncio.create_subprocess_exec(
        *(node, str(program)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, limit=64 * 1024 * 1024
    )
    driver = Driver(process)
    try:
        yield driver
    finally:
        await driver.close()
