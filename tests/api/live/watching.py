"""A client of a session's events, for tests: what a browser's `EventSource` and SES-12 make of a stream."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from tests import client
from tests.harness import BOUND
from turnkeeper.models.transcript.conversation import ConversationUpdate
from turnkeeper.models.transcript.partial_output import PartialGrowth


@dataclass(frozen=True)
class Sse:
    """An event as received."""

    event: str
    data: dict[str, Any]
    id: str | None = None


async def parsed(lines: AsyncIterator[str]) -> AsyncGenerator[Sse, None]:
    """Parse events as the HTML standard says, without comments."""
    fields: dict[str, str] = {}
    async for line in lines:
        if line.startswith(":"):
            continue
        if line:
            name, _, value = line.partition(":")
            fields[name] = fields[name] + "\n" + value.removeprefix(" ") if name in fields else value.removeprefix(" ")
        elif "data" in fields:
            yield Sse(fields.get("event", "message"), json.loads(fields["data"]), fields.get("id"))
            fields = {}


class Watcher:
    """A client of the event stream: its copy of the turns, every event it got, and its place in the stream."""

    def __init__(self, http: httpx.AsyncClient, session: str) -> None:
        self._http = http
        self.session = session
        self.copy = client.Client(sends_revision=True)
        self.last: ConversationUpdate | None = None
        self.last_event_id: str | None = None
        self.waiting: list[dict[str, Any]] = []
        self.partial: list[PartialGrowth] = []
        self.writing: dict[int, str] = {}
        self.events: list[Sse] = []
        self.trouble: str | None = None

    @asynccontextmanager
    async def stream(self, **params: Any) -> AsyncIterator[AsyncGenerator[Sse, None]]:
        """Connect after the last event that it got."""
        headers = {"Last-Event-ID": self.last_event_id} if self.last_event_id else {}
        async with self._http.stream(
            "GET", f"/workflow/{self.session}/events", headers=headers, params=params
        ) as answer:
            assert answer.status_code == 200, (answer.status_code, await answer.aread())
            yield self._learning(answer)

    async def _learning(self, answer: httpx.Response) -> AsyncGenerator[Sse, None]:
        async for event in parsed(answer.aiter_lines()):
            self.learn(event)
            yield event

    def learn(self, event: Sse) -> None:
        self.events.append(event)
        self.trouble = event.data["title"] if event.event == "problem" else None
        if event.event == "update":
            self.last = ConversationUpdate.model_validate(event.data)
            self.last_event_id = event.id
            known_ids = [] if self.last.reset else [turn.id for turn in self.copy.turns]
            assert not {turn.id for turn in self.last.new_messages} & set(known_ids), "sent twice as new"
            assert {turn.id for turn in self.last.updated_messages} <= set(known_ids), (
                "an update of a turn that was never sent"
            )
            self.copy.apply(self.last)
            self._check_id(event.id or "", self.last)
            self._drop_what_is_recorded()
        elif event.event == "queue":
            self.waiting = event.data["waiting"]
        elif event.event == "partial":
            self._grow(PartialGrowth.model_validate(event.data))

    def _check_id(self, event_id: str, update: ConversationUpdate) -> None:
        """The id is the cursor after the update, but stays before a turn that is only an excerpt."""
        before = [turn.revision - 1 for turn in self.copy.turns if turn.agent_message_blob]
        assert event_id == f"{min([update.revision, *before])}.{update.last_seen_message_id or ''}"

    def _grow(self, growth: PartialGrowth) -> None:
        """Add partial output; it must come after the steps that the copy has."""
        self.partial.append(growth)
        self.writing = {} if growth.fresh else self.writing
        for part in growth.parts:
            self.writing[part.index] = self.writing.get(part.index, "") + part.text
        assert self._is_next(growth), "shown after its step was recorded, or for another turn"

    def _is_next(self, growth: PartialGrowth) -> bool:
        current = {turn.id: turn for turn in self.copy.turns}.get(growth.message_id)
        numbers = (
            [step.number for step in current.reasoning_trajectory.model_steps] if current and current.steps else [0]
        )
        is_running = self.last is not None and self.last.current_message_id == growth.message_id
        return is_running and growth.step > numbers[-1]

    def _drop_what_is_recorded(self) -> None:
        if self.partial and not self._is_next(self.partial[-1]):
            self.writing = {}

    @property
    def partial_texts(self) -> list[str]:
        """The texts of the parts that are being written."""
        return [text for _, text in sorted(self.writing.items())]

    async def until(self, condition: Callable[["Watcher"], bool]) -> "Watcher":
        """Watch until `condition`, then disconnect."""
        async with asyncio.timeout(BOUND), self.stream() as events:
            await self.until_in(events, condition)
        return self

    async def until_in(self, events: AsyncGenerator[Sse, None], condition: Callable[["Watcher"], bool]) -> None:
        """Read on until `condition`, and stay connected."""
        async with asyncio.timeout(BOUND):
            async for _ in events:
                if condition(self):
                    return
        raise AssertionError(f"the stream ended first; the last event was {self.events[-1:]}")

    async def cut_after(self, events: int, condition: Callable[["Watcher"], bool]) -> "Watcher":
        """Watch until `condition`; disconnect after every `events` events, and connect again."""
        async with asyncio.timeout(2 * BOUND):
            while True:
                async with self.stream() as stream:
                    for _ in range(events):
                        await anext(stream)
                        if condition(self):
                            return self

    async def to_the_end(self) -> "Watcher":
        """Watch until the gateway ends the stream."""
        async with asyncio.timeout(BOUND), self.stream() as events:
            async for _ in events:
                pass
        return self

    @property
    def answers(self) -> list[str | None]:
        return [turn.agent_message for turn in self.copy.turns]

    @property
    def is_idle(self) -> bool:
        return self.last is not None and self.last.status == "idle" and not self.last.has_more


def idle_after(turns: int) -> Callable[[Watcher], bool]:
    return lambda watcher: watcher.is_idle and len(watcher.copy.turns) >= turns


async def full_state(http: httpx.AsyncClient, session: str) -> list[dict[str, Any]]:
    """Return the whole transcript, archive included."""
    turns: list[dict[str, Any]] = []
    page: str | None = f"/workflow/{session}/conversation/full"
    while page:
        answer = (await http.get(page)).json()
        turns = answer["messages"] + turns
        page = answer["links"]["older"]
    return turns
