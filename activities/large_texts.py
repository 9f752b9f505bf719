"""Storing large texts by reference, and reading them back, for activities (SES-15).

An unavailable store fails nothing: texts that should be stored are cut and marked, attachments of results are named in
text, and texts that can't be read back stay excerpts. The log says so.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence

from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.transcript.attachments import (
    MAX_REQUEST_BYTES,
    NO_ROOM_NOTE,
    Attachment,
    count_within,
    has_inline_content,
    hashes_of,
    refer_attachments,
    resolve_attachments,
    split_by_room,
    with_names,
)
from turnkeeper.models.transcript.conversation import BlobRef, ConversationMessage, ToolResult
from turnkeeper.models.transcript.large_texts import (
    Texts,
    cut_response,
    cut_result,
    hashes_in,
    opaque_hashes_in,
    refer_response,
    refer_result,
    resolve_answer,
    resolve_args,
    resolve_request,
)
from turnkeeper.models.transcript.model_call import ModelMessage, ModelRequest, ModelResponse, ToolInvocation
from turnkeeper.stores.blobs import Blobs, RecentTexts, attachments_owner, opaque_owner
from turnkeeper.stores.database.database import StoreUnavailableError

CACHED_ATTACHMENT_BYTES = 64 * 1024 * 1024
"""Contents of attachments that a worker caches: each is sent again with every step."""

NO_ROOM = " (left out: the turn has no room for more)"
"""Follows the name of an attachment of a result that the session can't carry."""

NOT_STORED = " (left out: it could not be stored)"
"""Follows the name of an attachment of a result while the store is down."""

CACHED_CHARS = 16 * 1024 * 1024
"""Characters of texts that a worker caches: a text is read again with every step of its turn."""

_log = logging.getLogger(__name__)


class LargeTexts:
    """Stores and resolves large texts, and caches the latest `cached_chars` characters."""

    def __init__(self, blobs: Blobs, *, cached_chars: int = CACHED_CHARS) -> None:
        self._blobs = blobs
        self._recent = RecentTexts[str](max_chars=cached_chars)
        self._attachments = RecentTexts[bytes](max_chars=CACHED_ATTACHMENT_BYTES)

    async def keep_result(self, session_id: WorkflowId, result: ToolResult, inline_bytes: int) -> ToolResult:
        """Return the result with its content and its attachments by reference if they are over `inline_bytes`."""
        result = await self._keep_attachments(session_id, result, inline_bytes // 2)
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

    async def resolve_answers(
        self, session_id: WorkflowId, turns: Sequence[ConversationMessage]
    ) -> list[ConversationMessage]:
        """Return the turns with their whole answers, as far as they can be read."""
        hashes = {turn.agent_message_blob.hash for turn in turns if turn.agent_message_blob}
        texts = await self._read(session_id, hashes) if hashes else {}
        return [resolve_answer(turn, texts) for turn in turns]

    async def resolve(self, session_id: WorkflowId, request: ModelRequest) -> ModelRequest:
        """Return the request with its large texts restored, as far as they can be read."""
        hashes, opaque = hashes_in(request), opaque_hashes_in(request)
        if not hashes and not opaque:
            return request
        texts = await self._read(session_id, hashes) | await self._read(opaque_owner(session_id), opaque)
        return resolve_request(request, texts)

    async def with_attachments(self, session_id: WorkflowId, request: ModelRequest) -> ModelRequest:
        """Return the request with the contents of its attachments.

        Texts name those that the store has lost, and the oldest beyond `MAX_REQUEST_BYTES`. Unlike a text, an
        attachment has no excerpt. Raises `StoreUnavailableError`.
        """
        if not any(message.attachments for message in request.messages):
            return request
        messages = _within_room(request.messages)
        hashes = {name for message in messages for name in hashes_of(message.attachments)}
        contents = await self._contents_of(attachments_owner(session_id), hashes)
        if lost := hashes - contents.keys():
            _log.warning("%d attachments are no longer stored: the model is told only their names", len(lost))
        return request.model_copy(update={"messages": [_resolved(message, contents) for message in messages]})

    async def _contents_of(self, owner: WorkflowId, hashes: set[str]) -> dict[str, bytes]:
        contents = self._attachments.find(owner, hashes)
        # One by one, since reading all of them could take longer than an operation of the store may.
        for name in sorted(hashes - contents.keys()):
            contents |= await self._blobs.get_data(owner, [name])
        self._attachments.remember(owner, contents)
        return contents

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

    async def _keep_attachments(self, session_id: WorkflowId, result: ToolResult, max_bytes: int) -> ToolResult:
        """Return the result with at most `max_bytes` of attachments as JSON, or one; the text names the others."""
        if not result.attachments:
            return result
        referred, contents = refer_attachments(result.attachments, inline_bytes=max_bytes)
        count = count_within(referred, max_bytes)
        carried, rest = referred[:count], referred[count:]
        text = with_names(result.content, rest, note=NO_ROOM)
        if not await self._store_data(attachments_owner(session_id), carried, contents):
            text = with_names(text, [one for one in carried if not has_inline_content(one)], note=NOT_STORED)
            carried = [one for one in carried if has_inline_content(one)]
        return result.model_copy(update={"content": text, "attachments": carried})

    async def _store_data(
        self, owner: WorkflowId, attachments: Iterable[Attachment], contents: Mapping[str, bytes]
    ) -> bool:
        data = {name: contents[name] for name in hashes_of(attachments)}
        try:
            if data:
                await self._blobs.put_data(owner, data.values())
        except StoreUnavailableError as error:
            _log.warning("attachments of a result are left out, since the store is down: %s", error)
            return False
        self._attachments.remember(owner, data)
        return True

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


def _within_room(messages: Sequence[ModelMessage]) -> list[ModelMessage]:
    split = split_by_room([message.attachments for message in messages], max_bytes=MAX_REQUEST_BYTES)
    return [
        message.model_copy(
            update={"content": with_names(message.content, left_out, note=NO_ROOM_NOTE), "attachments": fitting}
        )
        if left_out
        else message
        for message, (fitting, left_out) in zip(messages, split, strict=True)
    ]


def _resolved(message: ModelMessage, contents: Mapping[str, bytes]) -> ModelMessage:
    if not message.attachments:
        return message
    text, attachments = resolve_attachments(message.content, message.attachments, contents)
    return message.model_copy(update={"content": text, "attachments": attachments})
