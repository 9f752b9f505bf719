"""Answers of which a watcher was told an excerpt only, to be told whole later (SES-15, API-1).

Theory of operation. An answer that has ended never changes again, so a watcher that was told an excerpt of it, because
the store of large texts was down or slow, would keep that for good. So the watcher's event ids stay before the turn,
for one who comes back, and one who stays has the text asked for again, with growing pauses, until it is told.
"""

import asyncio
from dataclasses import dataclass, field

from turnkeeper.models.transcript.conversation import ConversationMessage, ConversationUpdate

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0


@dataclass
class Excerpts:
    """The turns that one watcher holds as excerpts."""

    _turns: dict[str, ConversationMessage] = field(default_factory=dict)
    _pause: float = FIRST_PAUSE_SECONDS
    _due_at: float = 0.0

    def __bool__(self) -> bool:
        """Tell whether there are any."""
        return bool(self._turns)

    def learn(self, update: ConversationUpdate) -> None:
        """Take in an update that the watcher is told."""
        if update.reset:
            self._turns.clear()
        for turn in [*update.updated_messages, *update.new_messages]:
            self._turns.pop(turn.id, None)
            if turn.agent_message_blob:
                self._ask_in(FIRST_PAUSE_SECONDS)
                self._turns[turn.id] = turn

    @property
    def revision(self) -> int | None:
        """The latest of the session's revisions from which on all of them are told again."""
        return min((turn.revision - 1 for turn in self._turns.values()), default=None)

    @property
    def due_at(self) -> float | None:
        """When to ask for the next one, on the loop's clock."""
        return self._due_at if self._turns else None

    @property
    def are_due(self) -> bool:
        """It is time to ask for one."""
        return bool(self._turns) and asyncio.get_running_loop().time() >= self._due_at

    @property
    def next(self) -> ConversationMessage:
        """The one to ask for."""
        return next(iter(self._turns.values()))

    def put_back(self, turn: ConversationMessage) -> bool:
        """Note what has come of asking for `turn`; tell whether it is whole. If not, another one is asked for next."""
        del self._turns[turn.id]
        if not turn.agent_message_blob:
            self._ask_in(0.0)
            self._pause = FIRST_PAUSE_SECONDS
            return True
        self._turns[turn.id] = turn
        self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)
        self._ask_in(self._pause)
        return False

    def _ask_in(self, seconds: float) -> None:
        self._due_at = asyncio.get_running_loop().time() + seconds
