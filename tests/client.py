"""The Python client's copy of a conversation; the test decides when it polls."""

from collections.abc import Awaitable, Callable
from typing import Any

from turnkeeper.clients.python.conversation import Conversation
from turnkeeper.models.transcript.conversation import ConversationUpdate

Ask = Callable[[dict[str, Any]], Awaitable[ConversationUpdate]]


class Client(Conversation):
    """Polls. `sends_revision`: a client that doesn't send it may receive a turn twice."""

    def __init__(self, *, sends_revision: bool) -> None:
        super().__init__()
        self.sends_revision = sends_revision

    async def poll(self, ask: Ask, **instead: Any) -> ConversationUpdate:
        """Poll once; `instead` replaces fields of the cursor."""
        cursor_fields = self.cursor.model_dump(exclude=None if self.sends_revision else {"since_revision"})
        update = await ask({name: value for name, value in {**cursor_fields, **instead}.items() if value is not None})
        self.apply(update)
        return update

    async def catch_up(self, ask: Ask) -> None:
        """Poll until there is nothing new; the session must be idle."""
        for _ in range(1_000):
            update = await self.poll(ask)
            if not update.new_messages and not update.has_more:
                return
        raise AssertionError("the client never catches up")
