"""The client that watches the session from its beginning to its end, and remembers what it was shown.

It only follows the event stream, as the chat page does, and has no other source: what it holds when all is over is
compared with the transcript.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from turnkeeper.clients.python.conversation import Conversation
from turnkeeper.clients.python.events import ConnectionLost, Event, PartialEvent, QueueEvent, UpdateEvent
from turnkeeper.models.transcript.conversation import ConversationMessage

Found = TypeVar("Found")


class NotObservedError(Exception):
    """Something that had to happen was not seen in time; the message is a sentence that names it."""


class Observer:
    """One session, watched through a gateway."""

    def __init__(self, events: AsyncIterator[Event], *, patience: float, on_text: Callable[[str], None]) -> None:
        """Wait for anything at most `patience` seconds; `on_text` is called with an answer's text as it grows."""
        self.conversation = Conversation()
        self.new_turn_ids: list[str] = []
        """The ids that were new, since the last reset."""
        self.partial_texts: dict[tuple[str, int], str] = {}
        """The newest partial text of each step, by turn and step."""
        self.attempts: dict[str, set[int]] = defaultdict(set)
        """By turn: the attempts to write it of which something was seen."""
        self.losses = 0
        """How often the stream was lost."""
        self._events = events
        self._patience = patience
        self._on_text = on_text

    @property
    def text(self) -> str:
        """What the model has written so far of the answer it is writing."""
        return "".join(part.text for part in self.conversation.partial_parts if part.kind == "respond")

    async def until_answered(self, message_id: str) -> ConversationMessage:
        """Return the turn of a prompt once it has ended. Raises like `until`."""

        def ended_turn() -> ConversationMessage | None:
            turn = self.conversation.find(message_id)
            return turn if turn and turn.is_complete else None

        return await self.until(f"an answer to prompt {message_id!r}", ended_turn)

    async def until_writing(self, message_id: str, *, words: int) -> None:
        """Wait until a turn's answer has `words` words and is not complete. Raises like `until`."""

        def is_writing() -> bool:
            turn = self.conversation.running_turn
            return turn is not None and turn.id == message_id and len(self.text.split()) >= words

        await self.until(f"the first words of the answer to prompt {message_id!r}", is_writing)

    async def until(self, description: str, find: Callable[[], Found | None]) -> Found:
        """Read events until `find` returns something that is true, and return that.

        Raises `NotObservedError`, or what ended the stream.
        """
        try:
            async with asyncio.timeout(self._patience):
                while not (found := find()):
                    self._apply(await anext(self._events))
                return found
        except StopAsyncIteration as error:
            raise NotObservedError("The event stream ended although the session had not.") from error
        except TimeoutError as error:
            message = f"The watching client saw nothing of {description} within {self._patience:g} s."
            raise NotObservedError(message) from error

    def _apply(self, event: Event) -> None:
        match event:
            case UpdateEvent(update=update):
                self.conversation.apply(update)
                if update.reset:
                    self.new_turn_ids = []
                self.new_turn_ids += [turn.id for turn in update.new_messages]
            case QueueEvent(waiting=waiting):
                self.conversation.apply_queue(waiting)
            case PartialEvent(partial=growth):
                self.conversation.apply_partial(growth)
                if self.conversation.partial_parts:
                    self.attempts[growth.message_id].add(growth.attempt)
                if self.text:
                    self.partial_texts[growth.message_id, growth.step] = self.text
                    self._on_text(self.text)
            case ConnectionLost():
                self.losses += 1
