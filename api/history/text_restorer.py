"""Restoring the texts that a session stores by reference, before turns are sent to clients (SES-15, API-1).

A turn whose answer is stored by reference is sent to all watching clients at the same moment. The text of a hash never
changes, so callers that need it while it is being read share that read, and the latest answers are cached. Turns
without references don't touch the store.

While the store is down or slow, clients get an excerpt. A finished answer never changes again, so a watching client
would keep the excerpt forever. `ExcerptRetries` says what such a client still needs: its resume cursor stays before the
turn for when it reconnects, and meanwhile the answer is read again, with growing pauses.
"""

import asyncio
from collections.abc import Awaitable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from turnkeeper.api.coalescer import Coalescer
from turnkeeper.api.store_calls import read_store
from turnkeeper.models.backoff import growing_pauses
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.texts.legible import with_legible_args
from turnkeeper.models.transcript.conversation import ConversationMessage, ConversationUpdate
from turnkeeper.models.transcript.large_texts import resolve_answer, resolve_turn
from turnkeeper.stores.blobs import Blobs, RecentTexts
from turnkeeper.stores.database.database import StoreUnavailableError

CACHED_CHARS = 8 * 1024 * 1024

FIRST_PAUSE_SECONDS = 1.0
MAX_PAUSE_SECONDS = 30.0
"""Between two attempts to restore an excerpt."""


class TextRestorer:
    """Restores large texts. A text that can't be read by `until` stays an excerpt.

    `cached_chars`: how many characters of the latest answers are cached.
    """

    def __init__(self, blobs: Blobs, *, cached_chars: int = CACHED_CHARS) -> None:
        self._blobs = blobs
        self._cached_answers = RecentTexts[str](max_chars=cached_chars)
        self._reads = Coalescer[tuple[str, frozenset[str]], dict[str, str]]()

    async def restore_answers(
        self, owner: WorkflowId, turns: Sequence[ConversationMessage], *, until: float
    ) -> list[ConversationMessage]:
        """Return the turns with whole answers and legible arguments (AGT-8). Texts in steps stay excerpts."""
        hashes = frozenset(turn.agent_message_blob.hash for turn in turns if turn.agent_message_blob)
        texts = self._cached_answers.find(owner, hashes)
        if missing := frozenset(hashes - texts.keys()):
            reading = self._reads.run((owner, missing), lambda: self._read_answers(owner, missing))
            texts |= await _texts_in_time(reading, until)
        return [with_legible_args(resolve_answer(turn, texts)) for turn in turns]

    async def restore_update(
        self, owner: WorkflowId, update: ConversationUpdate, *, until: float
    ) -> ConversationUpdate:
        turns = await self.restore_answers(owner, [*update.new_messages, *update.updated_messages], until=until)
        new = len(update.new_messages)
        return update.model_copy(update={"new_messages": turns[:new], "updated_messages": turns[new:]})

    async def restore_texts(
        self, owner: WorkflowId, turns: Sequence[ConversationMessage], hashes: Collection[str], *, until: float
    ) -> list[ConversationMessage]:
        """Return the turns with the texts of `hashes`, also in steps. Nothing is cached."""
        texts = await self.read_texts(owner, hashes, until=until)
        return [resolve_turn(turn, texts) for turn in turns]

    async def read_texts(self, owner: WorkflowId, hashes: Collection[str], *, until: float) -> dict[str, str]:
        """Return the texts of `hashes` that can be read. Nothing is cached."""
        return await _texts_in_time(self._blobs.get(owner, hashes), until) if hashes else {}

    async def _read_answers(self, owner: WorkflowId, hashes: frozenset[str]) -> dict[str, str]:
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
    """The turns whose answers one watcher has as excerpts, and when to retry the next one."""

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
        """Note that a turn was read again; return whether it is whole. If not, another one is retried next."""
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
        """The latest revision from which a client gets all these turns again."""
        return min((turn.revision - 1 for turn in self._turns.values()), default=None)

    @property
    def due_at(self) -> float | None:
        """When to retry the next turn, on the loop's clock; `None` if there is none."""
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
