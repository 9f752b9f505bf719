"""The client that watches the session from its beginning to its end, and remembers what it was shown.

It only follows the event stream, as the chat page does, and has no other source: what it holds when all is over is
compared with the transcript.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from turnkeeper.clients.python.conversation import Conversation
from turnkeeper.clients.python.events import ConnectionLost, Event, PartialEvent, QueueEvent, UpdateEvent
from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.transcript.partial_output import PartialGrowth
from turnkeeper.ops.demo.log import PartialText


class NotObservedError(Exception):
    """Something that had to happen was not seen in time; the message is a sentence that names it."""


class Observer:
    """One session, watched through a gateway."""

    def __init__(
        self, gateway: GatewayClient, session_id: str, *, patience: float, on_text: Callable[[str], None]
    ) -> None:
        """Wait for anything at most `patience` seconds; `on_text` is called with an answer's text as it grows."""
        self.conversation = Conversation()
        self.new_turn_ids: list[str] = []
        """The ids that were new, since the last reset."""
        self.partial_texts: dict[tuple[str, int], PartialText] = {}
        """The newest partial text of each step, by turn and step."""
        self.text_counts: dict[str, int] = {}
        """By turn: how often its text was seen to grow."""
        self.first_text_at: dict[str, dict[int, float]] = {}
        """By turn: when the first text was seen of each attempt to write it, in the loop's time."""
        self.ended_at: dict[str, float] = {}
        self.losses: list[str] = []
        """Why the stream was lost, each time that it was."""
        self._events = gateway.events(session_id)
        self._patience = patience
        self._on_text = on_text
        self._clock = asyncio.get_running_loop().time
        self._changed = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[None]:
        """Watch inside the block. Raises what ended the stream before it."""
        self._watching = asyncio.create_task(self._follow_events())
        try:
            yield
            if self._watching.done():
                await self._watching
        finally:
            self._watching.cancel()
            await asyncio.wait([self._watching])
            await self._events.aclose()

    @property
    def text(self) -> str:
        """What the model has written so far of the answer it is writing."""
        return "".join(part.text for part in self.conversation.partial_parts if part.kind == "respond")

    async def until_answered(self, message_id: str) -> ConversationMessage:
        """Return the turn of a prompt once it has ended. Raises like `until`."""
        await self.until(f"an answer to prompt {message_id!r}", lambda: message_id in self.ended_at)
        turn = self.conversation.find(message_id)
        if turn is None:
            raise NotObservedError(f"Turn {message_id!r} was seen to end, and is no longer there.")
        return turn

    async def until_writing(self, message_id: str, *, words: int) -> None:
        """Wait until a turn's answer has `words` words and is not complete. Raises like `until`."""

        def is_writing() -> bool:
            turn = self.conversation.running_turn
            return turn is not None and turn.id == message_id and len(self.text.split()) >= words

        await self.until(f"the first words of the answer to prompt {message_id!r}", is_writing)

    async def until_written_again(self, message_id: str) -> float:
        """Return when a second attempt at a turn's answer was seen to begin. Raises like `until`."""
        attempts = self.first_text_at.setdefault(message_id, {})
        await self.until(f"a second attempt at the answer to prompt {message_id!r}", lambda: len(attempts) > 1)
        return attempts[max(attempts)]

    async def until(self, description: str, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds, tried after each event. Raises `NotObservedError`, or what ended the stream."""
        try:
            async with asyncio.timeout(self._patience):
                while not condition():
                    self._changed.clear()
                    if self._watching and self._watching.done():
                        await self._watching
                        raise NotObservedError("The event stream ended although the session had not.")
                    await self._changed.wait()
        except TimeoutError as error:
            message = f"The watching client saw nothing of {description} within {self._patience:g} s."
            raise NotObservedError(message) from error

    async def _follow_events(self) -> None:
        try:
            async for event in self._events:
                self._apply(event)
                self._changed.set()
        finally:
            self._changed.set()

    def _apply(self, event: Event) -> None:
        match event:
            case UpdateEvent(update=update):
                self.conversation.apply(update)
                if update.reset:
                    self.new_turn_ids = []
                self.new_turn_ids += [turn.id for turn in update.new_messages]
                for turn in [*update.updated_messages, *update.new_messages]:
                    if turn.is_complete:
                        self.ended_at.setdefault(turn.id, self._clock())
            case QueueEvent(waiting=waiting):
                self.conversation.apply_queue(waiting)
            case PartialEvent(partial=growth):
                self.conversation.apply_partial(growth)
                if self.conversation.partial_parts:
                    self._note_text(growth)
            case ConnectionLost(reason=reason):
                self.losses.append(reason)

    def _note_text(self, growth: PartialGrowth) -> None:
        message_id, step = growth.message_id, growth.step
        self.first_text_at.setdefault(message_id, {}).setdefault(growth.attempt, self._clock())
        self.text_counts[message_id] = self.text_counts.get(message_id, 0) + 1
        if self.text:
            self.partial_texts[message_id, step] = PartialText(message_id=message_id, step=step, text=self.text)
            self._on_text(self.text)
