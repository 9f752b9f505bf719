"""A client that does what SES-12 says, and nothing else."""

from collections.abc import Awaitable, Callable
from typing import Any

from models.conversation import ConversationMessage, ConversationUpdate

Ask = Callable[[dict[str, Any]], Awaitable[ConversationUpdate]]


class Client:
    """Holds what it was told: drops all on a reset, replaces what was updated, appends what is new."""

    def __init__(self, *, sends_revision: bool) -> None:
        self.sends_revision = sends_revision
        self.messages: list[ConversationMessage] = []
        self.last_seen: str | None = None
        self.revision: int | None = None

    def cursor(self, limit: int | None = None) -> dict[str, Any]:
        """What it sends next time."""
        given = {
            "last_seen_message_id": self.last_seen,
            "since_revision": self.revision if self.sends_revision else None,
            "limit": limit,
        }
        return {name: value for name, value in given.items() if value is not None}

    def learn(self, update: ConversationUpdate) -> None:
        """Take an answer in."""
        if update.reset:
            self.messages = []
        changed = {turn.id: turn for turn in update.updated_messages}
        self.messages = [changed.get(turn.id, turn) for turn in self.messages]
        self.messages += update.new_messages
        self.last_seen, self.revision = update.last_seen_message_id, update.revision

    async def poll(self, ask: Ask, *, limit: int | None = None) -> ConversationUpdate:
        """Ask once."""
        update = await ask(self.cursor(limit))
        self.learn(update)
        return update

    async def catch_up(self, ask: Ask) -> None:
        """Ask until there is nothing new; the session is idle meanwhile."""
        for _ in range(1_000):
            update = await self.poll(ask)
            if not update.new_messages and not update.has_more:
                return
        raise AssertionError("the client never catches up")
