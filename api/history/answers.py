"""Answers that a session keeps by reference, put back whole wherever a client is shown a turn (SES-15).

Theory of operation. A turn that has its answer by reference is shown to everyone who watches the session, at the same
moment. The text under a hash never changes, so whoever asks for it while it is being read waits for that read, and
the latest texts are remembered. Turns without references cost nothing: the store is not touched.
"""

import asyncio
from collections.abc import Sequence

from turnkeeper.api.store_calls import read_store
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.transcript.large_texts import resolve_answer
from turnkeeper.stores.blobs import Blobs
from turnkeeper.stores.database.database import StoreUnavailableError
from turnkeeper.stores.recent_texts import RecentTexts

REMEMBERED_CHARS = 8 * 1024 * 1024


class Answers:
    """The large answers of all sessions."""

    def __init__(self, blobs: Blobs, *, remembered_chars: int = REMEMBERED_CHARS) -> None:
        """Read them from `blobs`; remember the latest `remembered_chars` characters."""
        self._blobs = blobs
        self._recent = RecentTexts(most_chars=remembered_chars)
        self._reads: dict[tuple[str, frozenset[str]], asyncio.Task[dict[str, str]]] = {}

    async def put_back(
        self, owner: str, turns: Sequence[ConversationMessage], *, until: float
    ) -> list[ConversationMessage]:
        """Return the turns with their whole answers, in one read; what can't be read by `until` stays an excerpt."""
        hashes = {turn.agent_message_blob.hash for turn in turns if turn.agent_message_blob}
        if not hashes:
            return list(turns)
        texts = self._recent.find(owner, hashes)
        missing = frozenset(hashes - texts.keys())
        if missing:
            texts |= await self._read(owner, missing, until)
        return [resolve_answer(turn, texts) for turn in turns]

    async def _read(self, owner: str, hashes: frozenset[str], until: float) -> dict[str, str]:
        reading = self._reads.get((owner, hashes))
        if reading is None:
            reading = self._reads[owner, hashes] = asyncio.create_task(self._blobs.get(owner, hashes))
            reading.add_done_callback(lambda read: self._finish(owner, hashes, read))
        try:
            # Whoever gives up must not take the others' answer away.
            return await read_store(asyncio.shield(reading), until=until)
        except StoreUnavailableError:
            return {}

    def _finish(self, owner: str, hashes: frozenset[str], read: "asyncio.Task[dict[str, str]]") -> None:
        del self._reads[owner, hashes]
        if not read.cancelled() and read.exception() is None:
            self._recent.remember(owner, read.result())
