"""A client that watches the session from start to end and keeps what it receives.

Like the chat page, it only follows the event stream. In the end, its conversation is compared with the transcript.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from turnkeeper.clients.python.conversation import Conversation
from turnkeeper.clients.python.events import ConnectionLostEvent, Event, PartialEvent, QueueEvent, UpdateEvent
from turnkeeper.models.errors import TurnkeeperError
from turnkeeper.models.transcript.conversation import ConversationMessage

Result = TypeVar("Result")


class NotObservedError(TurnkeeperError):
    """An expected event did not arrive in time; the message is a sentence that names it."""


class Observer:
    """Watches one session through a gateway."""

    def __init__(self, events: AsyncIterator[Event], *, patience: float, on_text: Callable[[str], None]) -> None:
        """`patience`: the timeout of every wait, in seconds; `on_text` receives an answer's text as it grows."""
        self.conversation = Conversation()
        self.new_turn_ids: list[str] = []
        """The ids of new turns since the last reset."""
        self.partial_texts: dict[tuple[str, int], str] = {}
        """The newest partial text of each step, by turn and step."""
        self.attempts: dict[str, set[int]] = defaultdict(set)
        """By turn: the attempts with partial output."""
        self.losses = 0
        """How often the connection was lost."""
        self._events = events
        self._patience = patience
        self._on_text = on_text

    @property
    def text(self) -> str:
        """What the model has written of its current answer."""
        return "".join(part.text for part in self.conversation.partial_parts if part.kind == "respond")

    async def until_answered(self, message_id: str) -> ConversationMessage:
        """Return the turn of a prompt once it has ended. Raises as `until` does."""

        def ended_turn() -> ConversationMessage | None:
            turn = self.conversation.find(message_id)
            return turn if turn and turn.is_complete else None

        return await self.until(f"an answer to prompt {message_id!r}", ended_turn)

    async def until_writing(self, message_id: str, *, words: int) -> None:
        """Wait until a turn's answer has `words` words and is still incomplete. Raises as `until` does."""

        def is_writing() -> bool:
            turn = self.conversation.running_turn
            return turn is not None and turn.id == message_id and len(self.text.split()) >= words

        await self.until(f"the first words of the answer to prompt {message_id!r}", is_writing)

    async def until(self, description: str, find: Callable[[], Result | None]) -> Result:
        """Read events until `find` returns something true, and return that.

        Raises:
            NotObservedError: That took longer than `patience`, or the stream ended first.
            GatewayError: The stream failed.
        """
        try:
            async with asyncio.timeout(self._patience):
                while not (result := find()):
                    self._apply(await anext(self._events))
                return result
        except StopAsyncIteration as error:
            raise NotObservedError("The event stream ended before the session.") from error
        except TimeoutError as error:
            message = f"The client did not see {description} within {self._patience:g} s."
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
            case ConnectionLostEvent():
                self.losses += 1
