"""Restoring the texts that a session stores by reference, before turns are sent to clients (SES-15, API-1).

A turn whose answer is stored by reference is sent to all watching clients at the same moment. The text of a hash never
changes, so callers that need it while it is being read share that read, and the latest answers are cached. Turns
without references don't touch the store.

While the store is down or slow, clients get an excerpt. Watching clients get the whole answer later (`live/feed.py`).
"""

from collections.abc import Awaitable, Collection, Sequence

from turnkeeper.api.coalescer import Coalescer
from turnkeeper.api.store_calls import read_store
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.legible import with_legible_args
from turnkeeper.models.transcript.conversation import ConversationMessage, ConversationUpdate
from turnkeeper.models.transcript.large_texts import resolve_answer, resolve_turn
from turnkeeper.stores.blobs import Blobs, RecentTexts
from turnkeeper.stores.database.database import StoreUnavailableError

CACHED_CHARS = 8 * 1024 * 1024


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
