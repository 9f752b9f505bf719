"""The client that watches the session from its beginning to its end, and remembers all it was shown.

It only follows the event stream, as the chat page does, and is told nothing else: what it holds when all is over is
compared with the transcript.
"""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from turnkeeper.clients.python.conversation import Conversation
from turnkeeper.clients.python.events import ConnectionLost, Event, PartialEvent, QueueEvent, UpdateEvent
from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.models.transcript.conversation import ConversationMessage, ConversationUpdate
from turnkeeper.models.transcript.partial_output import PartialGrowth
from turnkeeper.ops.demo.record import Glimpse


class NotSeenError(Exception):
    """Something that had to happen was not seen in time; the message is a sentence that names it."""


class Spectator:
    """One session, watched. As an asynchronous context manager: it watches inside."""

    def __init__(
        self,
        gateway: GatewayClient,
        session_id: str,
        *,
        patience: float,
        on_text: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Watch through `gateway`; what is waited for comes within `patience` seconds. `on_text`: of growing text."""
        self.conversation = Conversation()
        self.announced: list[str] = []
        """The ids that were told as new, since the last reset."""
        self.pieces: dict[str, int] = {}
        """By turn: in how many pieces its text was seen to grow."""
        self.first_text_at: dict[str, float] = {}
        self.attempts_at: dict[str, dict[int, float]] = {}
        """By turn: when the first text was seen of each attempt to write it."""
        self.ended_at: dict[str, float] = {}
        self.losses: list[str] = []
        """Why the stream was lost, each time that it was."""
        self._glimpses: dict[tuple[str, int], Glimpse] = {}
        self._events = gateway.events(session_id)
        self._patience = patience
        self._on_text = on_text
        self._clock = asyncio.get_running_loop().time
        self._changed = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Begin to watch."""
        self._watching = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Watch no more. Raises what ended the stream, if that was before."""
        if self._watching:
            self._watching.cancel()
            await asyncio.wait([self._watching])
            if kind is None and not self._watching.cancelled():
                self._watching.result()
        await self._events.aclose()

    @property
    def glimpses(self) -> list[Glimpse]:
        """The partial text that was shown last of every step."""
        return list(self._glimpses.values())

    @property
    def text(self) -> str:
        """What the model has written so far of the answer it is writing."""
        return "".join(part.text for part in self.conversation.partial_parts if part.kind == "respond")

    async def until_answered(self, message_id: str) -> ConversationMessage:
        """Return the turn of a prompt once it has ended. Raises `NotSeenError`, or what ended the stream."""
        await self.until(f"an answer to prompt {message_id!r}", lambda: message_id in self.ended_at)
        turn = self.conversation.find(message_id)
        if turn is None:
            raise NotSeenError(f"Turn {message_id!r} was seen to end, and is no longer there.")
        return turn

    async def until_writing(self, message_id: str, *, words: int) -> None:
        """Wait until so many words of a turn's answer are there and it goes on. Raises like `until_answered`."""

        def is_writing() -> bool:
            turn = self.conversation.running_turn
            return turn is not None and turn.id == message_id and len(self.text.split()) >= words

        await self.until(f"the first words of the answer to prompt {message_id!r}", is_writing)

    async def until_written_again(self, message_id: str) -> float:
        """Return when a second attempt at a turn's answer was seen to begin. Raises like `until_answered`."""
        attempts_at = self.attempts_at.setdefault(message_id, {})
        await self.until(f"a second attempt at the answer to prompt {message_id!r}", lambda: len(attempts_at) > 1)
        return attempts_at[max(attempts_at)]

    async def until(self, what: str, holds: Callable[[], bool]) -> None:
        """Wait until `holds`, asked whenever something was told. Raises like `until_answered`."""
        try:
            async with asyncio.timeout(self._patience):
                while not holds():
                    self._changed.clear()
                    await self._news()
        except TimeoutError as error:
            raise NotSeenError(f"The watching client saw nothing of {what} within {self._patience:g} s.") from error

    async def _news(self) -> None:
        news = asyncio.create_task(self._changed.wait())
        watching = [self._watching] if self._watching else []
        try:
            await asyncio.wait([news, *watching], return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()
        for task in watching:
            if task.done():
                await task
                raise NotSeenError("The event stream ended although the session had not.")

    async def _watch(self) -> None:
        async for event in self._events:
            self._take(event)
            self._changed.set()

    def _take(self, event: Event) -> None:
        match event:
            case UpdateEvent(update=update):
                self._take_update(update)
            case QueueEvent(waiting=waiting):
                self.conversation.apply_queue(waiting)
            case PartialEvent(partial=growth):
                self.conversation.apply_partial(growth)
                self._note_text(growth)
            case ConnectionLost(reason=reason):
                self.losses.append(reason)

    def _take_update(self, update: ConversationUpdate) -> None:
        self.conversation.apply(update)
        if update.reset:
            self.announced = []
        self.announced += [turn.id for turn in update.new_messages]
        for turn in [*update.updated_messages, *update.new_messages]:
            if turn.is_complete:
                self.ended_at.setdefault(turn.id, self._clock())

    def _note_text(self, growth: PartialGrowth) -> None:
        if not self.conversation.partial_parts:
            return
        message_id, step = growth.message_id, growth.step
        self.first_text_at.setdefault(message_id, self._clock())
        self.attempts_at.setdefault(message_id, {}).setdefault(growth.attempt, self._clock())
        self.pieces[message_id] = self.pieces.get(message_id, 0) + 1
        if self.text:
            self._glimpses[message_id, step] = Glimpse(message_id=message_id, step=step, text=self.text)
            self._on_text(self.text)
