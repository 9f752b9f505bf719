"""Texts that a session keeps by reference, put back wherever a client is shown a turn (SES-15, API-1).

Theory of operation. A turn with its answer by reference is shown to everyone who watches the session, at the same
moment. The text under a hash never changes, so callers who ask for it while it is being read share that read, and the
latest answers are cached. Turns without references cost nothing: the store is not touched.

While the store is down or slow, a client is shown an excerpt. An answer that has ended never changes again, so one who
watches would keep the excerpt for good. `ExcerptRetries` says what such a watcher is owed: its resume cursor stays
before the turn, for when it comes back, and while it stays the answer is read again, with growing pauses.
"""

import asyncio
from collections.abc import Awaitable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from turnkeeper.api.coalescer import Coalescer
from turnkeeper.api.store_calls import read_store
from turnkeeper.models.backoff import growing_pauses
from turnkeeper.models.transcript.conversation import ConversationMessage, ConversationUpdate
from turnkeeper.models.transcript.large_texts import resolve_answer, resolve_turn
from turnkeeper.stores.blobs import Blobs
from turnkeeper.stores.database.database import StoreUnavailableError
from turnkeeper.stores.recent_texts import RecentTexts

CACHED_CHARS = 8 * 1024 * 1024

FIRST_PAUSE_SECONDS = 1.0
MAX_PAUSE_SECONDS = 30.0
"""Before an excerpt is tried again."""


class TextRestorer:
    """Restores the large texts of all sessions. A text that can't be read by `until` stays an excerpt."""

    def __init__(self, blobs: Blobs, *, cached_chars: int = CACHED_CHARS) -> None:
        """Read texts from `blobs`; cache the latest answers, `cached_chars` characters of them."""
        self._blobs = blobs
        self._cached_answers = RecentTexts(most_chars=cached_chars)
        self._reads = Coalescer[tuple[str, frozenset[str]], dict[str, str]]()

    async def restore_answers(
        self, owner: str, turns: Sequence[ConversationMessage], *, until: float
    ) -> list[ConversationMessage]:
        """Return the turns with their whole answers; of the steps, excerpts stay."""
        hashes = frozenset(turn.agent_message_blob.hash for turn in turns if turn.agent_message_blob)
        texts = self._cached_answers.find(owner, hashes)
        if missing := frozenset(hashes - texts.keys()):
            reading = self._reads.run((owner, missing), lambda: self._read_answers(owner, missing))
            texts |= await _texts_in_time(reading, until)
        return [resolve_answer(turn, texts) for turn in turns]

    async def restore_update(self, owner: str, update: ConversationUpdate, *, until: float) -> ConversationUpdate:
        turns = await self.restore_answers(owner, [*update.new_messages, *update.updated_messages], until=until)
        new = len(update.new_messages)
        return update.model_copy(update={"new_messages": turns[:new], "updated_messages": turns[new:]})

    async def restore_texts(
        self, owner: str, turns: Sequence[ConversationMessage], hashes: Collection[str], *, until: float
    ) -> list[ConversationMessage]:
        """Return the turns with those of their texts that `hashes` names, also in steps. Nothing of it is cached."""
        texts = await _texts_in_time(self._blobs.get(owner, hashes), until) if hashes else {}
        return [resolve_turn(turn, texts) for turn in turns]

    async def _read_answers(self, owner: str, hashes: frozenset[str]) -> dict[str, str]:
        texts = await self._blobs.get(owner, hashes)
        self._cached_answers.remember(owner, texts)
        return texts


async def _texts_in_time(reading: Awaitable[dict[str, str]], until: float) -> dict[str, str]:
    try:
        return await read_store(reading, until=until)
    except StoreUnavailableError:
        return {}


@dataclass
class ExcerptRetries:
    """The turns whose answers one watcher has as excerpts, and when to read the next of them again."""

    _turns: dict[str, ConversationMessage] = field(default_factory=dict)
    _pauses: Iterator[float] = field(default_factory=lambda: _longer_pauses())
    _due_at: float = 0.0

    def __bool__(self) -> bool:
        return bool(self._turns)

    def note_update(self, update: ConversationUpdate) -> None:
        if update.reset:
            self._turns.clear()
        for turn in [*update.updated_messages, *update.new_messages]:
            self._turns.pop(turn.id, None)
            if turn.agent_message_blob:
                self._retry_in(FIRST_PAUSE_SECONDS)
                self._turns[turn.id] = turn

    def note_retry(self, turn: ConversationMessage) -> bool:
        """Note the turn that was read again; return whether it is whole. If not, another one is tried next."""
        del self._turns[turn.id]
        if not turn.agent_message_blob:
            self._retry_in(0.0)
            self._pauses = _longer_pauses()
            return True
        self._turns[turn.id] = turn
        self._retry_in(next(self._pauses))
        return False

    @property
    def resume_revision(self) -> int | None:
        """The latest of the session's revisions from which on a client is shown all of them again."""
        return min((turn.revision - 1 for turn in self._turns.values()), default=None)

    @property
    def due_at(self) -> float | None:
        """When to read the next one, on the loop's clock; `None` where there is none."""
        return self._due_at if self._turns else None

    @property
    def is_due(self) -> bool:
        return bool(self._turns) and asyncio.get_running_loop().time() >= self._due_at

    @property
    def next(self) -> ConversationMessage:
        return next(iter(self._turns.values()))

    def _retry_in(self, seconds: float) -> None:
        self._due_at = asyncio.get_running_loop().time() + seconds


def _longer_pauses() -> Iterator[float]:
    return growing_pauses(2 * FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
