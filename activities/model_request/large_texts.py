"""Storing large texts by reference, and reading them back, for activities (SES-15).

An unavailable store fails nothing: texts that should be stored are cut and marked, and texts that can't be read back
stay excerpts. The log says so.
"""

import logging
from collections.abc import Iterable

from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.transcript.large_texts import (
    Texts,
    cut_response,
    cut_result,
    hashes_in,
    opaque_hashes_in,
    refer_response,
    refer_result,
    resolve_args,
    resolve_request,
)
from turnkeeper.models.transcript.model_call import ModelRequest, ModelResponse, ToolInvocation
from turnkeeper.models.transcript.trajectory import BlobRef, ToolResult
from turnkeeper.stores.blobs import Blobs, opaque_owner
from turnkeeper.stores.database.database import StoreUnavailableError
from turnkeeper.stores.recent_texts import RecentTexts

CACHED_CHARS = 16 * 1024 * 1024
"""Characters of texts that a worker caches: a text is read again with every step of its turn."""

_log = logging.getLogger(__name__)


class LargeTexts:
    """Stores and resolves large texts, and caches the latest `cached_chars` characters."""

    def __init__(self, blobs: Blobs, *, cached_chars: int = CACHED_CHARS) -> None:
        self._blobs = blobs
        self._recent = RecentTexts(max_chars=cached_chars)

    async def keep_result(self, session_id: WorkflowId, result: ToolResult, inline_bytes: int) -> ToolResult:
        """Return the result with its content by reference if it is over `inline_bytes`."""
        texts = Texts()
        reduced = refer_result(result, inline_bytes=inline_bytes, texts=texts)
        return reduced if await self._store(session_id, texts) else cut_result(result, inline_bytes=inline_bytes)

    async def keep_response(
        self, session_id: WorkflowId, response: ModelResponse, inline_bytes: int, *, max_bytes: int
    ) -> ModelResponse:
        """Return the response with every text over `inline_bytes` by reference."""
        texts = Texts()
        reduced = refer_response(response, inline_bytes=inline_bytes, texts=texts)
        return reduced if await self._store(session_id, texts) else cut_response(response, answer_bytes=max_bytes)

    async def resolve(self, session_id: WorkflowId, request: ModelRequest) -> ModelRequest:
        """Return the request with its large texts restored, as far as they can be read."""
        hashes, opaque = hashes_in(request), opaque_hashes_in(request)
        if not hashes and not opaque:
            return request
        texts = await self._read(session_id, hashes) | await self._read(opaque_owner(session_id), opaque)
        return resolve_request(request, texts)

    async def resolve_call(self, session_id: WorkflowId, invocation: ToolInvocation) -> ToolInvocation | None:
        """Return the invocation with its arguments; `None` if they can't be read."""
        if invocation.args_blob is None:
            return invocation
        texts = await self._read(session_id, [invocation.args_blob.hash])
        args = resolve_args(invocation.args, invocation.args_blob, texts)
        return None if args is None else invocation.model_copy(update={"args": args, "args_blob": None})

    async def read(self, session_id: WorkflowId, ref: BlobRef) -> str | None:
        """Return the text that `ref` refers to; `None` where it can't be read."""
        return (await self._read(session_id, [ref.hash])).get(ref.hash)

    async def _store(self, session_id: WorkflowId, texts: Texts) -> bool:
        try:
            for owner, by_hash in ((session_id, texts.by_hash), (opaque_owner(session_id), texts.opaque)):
                if by_hash:
                    await self._blobs.put(owner, by_hash.values())
                self._recent.remember(owner, by_hash)
        except StoreUnavailableError as error:
            _log.warning("large texts are cut, since the store is down: %s", error)
            return False
        return True

    async def _read(self, session_id: WorkflowId, hashes: Iterable[str]) -> dict[str, str]:
        missing_or_cached = set(hashes)
        texts = self._recent.find(session_id, missing_or_cached)
        missing = missing_or_cached - texts.keys()
        if missing:
            try:
                texts |= await self._blobs.get(session_id, missing)
            except StoreUnavailableError as error:
                _log.warning("large texts stay excerpts, since the store is down: %s", error)
        self._recent.remember(session_id, texts)
        return texts
