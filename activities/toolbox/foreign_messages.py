"""Reads foreign servers' messages leniently (AGT-6, AGT-7).

Parsing finds the request of an unreadable answer, so that its call fails at once and doesn't wait for its time limit.
Our own side and the SDK use a few error codes for calls with an unknown outcome. Servers use them too, most of all
-32000. So these codes are replaced in errors from servers, since a server that sends an error has answered. A library
that repairs JSON would be worse: of half an answer it makes a whole one.

Sanitising keeps what the SDK would reject as a whole:

    a tool in a list        is repaired by leaving out what the SDK rejects; without a name or a usable schema it is
                            omitted and logged. No tool has an `outputSchema`: an answer is read whatever it promised
    a resource in a list    is omitted if it is invalid
    a call's result         has run, so everything readable in it counts: invalid content becomes a placeholder, and a
                            result of another form is its structured content

Answers are recognised by the requests that they answer, so this stands between both of the SDK's streams.

Images and files in results are attachments (AGT-4, CTX-16). A foreign server's content is checked as a person's is: an
image that is none would make vendors refuse every later request. What can't be attached is named in the result's text,
with the reason.
"""

import asyncio
import json
import logging
import re
from base64 import b64decode
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    PARSE_ERROR,
    REQUEST_TIMEOUT,
    AudioContent,
    BlobResourceContents,
    ContentBlock,
    EmbeddedResource,
    ErrorData,
    ImageContent,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    ResourceLink,
    TextContent,
    TextResourceContents,
    jsonrpc_message_adapter,
)
from mcp_types.methods import parse_server_result
from mcp_types.version import LATEST_HANDSHAKE_VERSION
from pydantic import JsonValue, ValidationError

from turnkeeper.models.limits import MAX_NESTING
from turnkeeper.models.texts import encodable
from turnkeeper.models.transcript.attachments import (
    IMAGE_MEDIA_TYPES,
    MAX_ATTACHMENTS,
    MAX_CONTENT_BYTES,
    MEDIA_TYPE_PATTERN,
    Attachment,
    FileAttachment,
    ImageAttachment,
    check_content,
    detect_image_type,
)

# Parsing


MAX_MESSAGE_BYTES = 10_000_000
"""Longer messages are not read: they would be in memory several times."""

NOT_SENT = -32_099
"""Our own error code for a request that did not reach the server, in the range that JSON-RPC reserves for that."""

LOST = (CONNECTION_CLOSED, REQUEST_TIMEOUT, PARSE_ERROR)
"""Error codes of our own side, including the SDK's, after which it is unknown whether a tool ran."""

_ID_AT_THE_BEGINNING = re.compile(r'\s*\{\s*("jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(?P<id>\d{1,15})\s*[,}]')


def parse_message(raw: bytes) -> JSONRPCMessage | None:
    r"""Return the message in a line or body; `None` if there is none.

    An unreadable answer to one of our requests becomes an error for its caller.

    >>> parse_message(b'{"jsonrpc": "2.0", "id": 3, "result": {"text": "a\\ud800b"}}').result
    {'text': 'a\ufffdb'}
    >>> parse_message(b'{"jsonrpc": "2.0", "id": 3, "result": [').error.message
    'The answer could not be read.'
    >>> parse_message(b"Listening on stdio ...")
    """
    text = raw.decode(errors="replace")
    return parse_whole_message(text) or _no_answer(text)


def parse_whole_message(text: str) -> JSONRPCMessage | None:
    """Return the message in a text; `None` if it is not a complete message.

    NUL, lone surrogates and excessive nesting are replaced. Our own error codes are replaced in errors of servers.

    >>> parse_whole_message('{"jsonrpc": "2.0", "id": 3, "error": {"code": -32000, "message": "no money"}}').error.code
    -32603
    """
    message = _parse_strictly(text) or _parse_repaired(text)
    if isinstance(message, JSONRPCError) and message.error.code in (*LOST, NOT_SENT):
        message.error.code = INTERNAL_ERROR
    return message


def lost_answer_error(request_id: int | str | None, message: str, *, code: int = CONNECTION_CLOSED) -> JSONRPCError:
    """Return an error in place of an answer that will not come: the outcome of the request is unknown."""
    return JSONRPCError(jsonrpc="2.0", id=request_id, error=ErrorData(code=code, message=message))


def _parse_strictly(text: str) -> JSONRPCMessage | None:
    try:
        return jsonrpc_message_adapter.validate_json(text, by_name=False)
    except ValueError:
        return None


def _parse_repaired(text: str) -> JSONRPCMessage | None:
    try:
        message = encodable(_cut(json.loads(text), MAX_NESTING))
        if isinstance(message, dict) and not isinstance(message.get("result", {}), dict):
            message["result"] = {"result": message["result"]}  # an answer counts, whatever its form
        return jsonrpc_message_adapter.validate_python(message, by_name=False)
    except (ValueError, RecursionError):
        return None


def _cut(value: JsonValue, levels: int) -> JsonValue:
    """Return `value` with a text in place of what is nested over `levels` levels."""
    if not isinstance(value, dict | list):
        return value
    if not levels:
        return "[nested too deeply, left out]"
    if isinstance(value, list):
        return [_cut(item, levels - 1) for item in value]
    return {key: _cut(item, levels - 1) for key, item in value.items()}


def _no_answer(text: str) -> JSONRPCMessage | None:
    request_id = _id_in(text)
    return None if request_id is None else lost_answer_error(request_id, "The answer could not be read.")


def _id_in(text: str) -> int | None:
    """Return the id of an unreadable answer; `None` for a server's own request. Ids of our requests are numbers."""
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        beginning = _ID_AT_THE_BEGINNING.match(text)
        return int(beginning["id"]) if beginning else None
    if not isinstance(read, dict) or "method" in read:
        return None
    return read["id"] if type(read.get("id")) is int else None


# Sanitising


MAX_SANITIZED = 10_000
"""The rest of a longer list is omitted unchecked: each item blocks the event loop for some microseconds."""

MAX_OPEN_REQUESTS = 10_000

MAX_NUMBER = 2**63
"""The largest number in a report of progress. The SDK would end the connection if one doesn't fit into a float."""

_log = logging.getLogger(__name__)


@asynccontextmanager
async def sanitized(
    streams: AbstractAsyncContextManager[Any], *, server: str, stopping: asyncio.Event
) -> AsyncIterator[Any]:
    """Yield the SDK's two streams, with messages from `server` sanitised; `stopping` is set at their end."""
    async with streams as (received, to_send):
        requests = _RequestStream(to_send)
        yield _SanitizedStream(received, server, requests, stopping), requests


class _Stream:
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        is_suppressed: bool | None = await self._stream.__aexit__(kind, error, trace)
        return is_suppressed


class _RequestStream(_Stream):
    """The stream of our messages, which remembers the method of each open request."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._methods: dict[str, str] = {}

    async def send(self, item: Any) -> None:
        message = getattr(item, "message", None)
        if isinstance(message, JSONRPCRequest):
            while len(self._methods) >= MAX_OPEN_REQUESTS:  # answers that never came
                del self._methods[next(iter(self._methods))]
            self._methods[str(message.id)] = message.method
        await self._stream.send(item)

    def method_of(self, answer: JSONRPCResponse) -> str | None:
        """Return the method of the request that is answered now."""
        return self._methods.pop(str(answer.id), None)


class _SanitizedStream(_Stream):
    def __init__(self, stream: Any, server: str, requests: _RequestStream, stopping: asyncio.Event) -> None:
        super().__init__(stream)
        self._server = server
        self._requests = requests
        self._stopping = stopping

    @property
    def last_context(self) -> Any:
        """The SDK's context of the last message."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Any:
        return self._sanitize(await self._stream.receive())

    async def __anext__(self) -> Any:
        try:
            return self._sanitize(await self._stream.__anext__())
        except StopAsyncIteration:
            self._stopping.set()  # a message sent now would get no answer
            raise

    def __aiter__(self) -> Self:
        return self

    def _sanitize(self, item: Any) -> Any:
        message = getattr(item, "message", None)
        if isinstance(message, JSONRPCResponse):
            method = self._requests.method_of(message)
            if method == "tools/call":
                message.result = call_result(message.result)
            elif method in _LISTS and isinstance(message.result.get(_LISTS[method]), list):
                message.result = self._list(method, message.result)
        elif isinstance(message, JSONRPCNotification) and message.method == "notifications/progress":
            message.params = {
                key: max(-MAX_NUMBER, min(MAX_NUMBER, value)) if isinstance(value, int) else value
                for key, value in (message.params or {}).items()
            }
        return item

    def _list(self, method: str, result: dict[str, Any]) -> dict[str, Any]:
        key = _LISTS[method]
        repaired = [_tool(entry) if method == "tools/list" else entry for entry in result[key][:MAX_SANITIZED]]
        entries = [entry for entry in repaired if _is_accepted(method, {key: [entry]})]
        if omitted := len(result[key]) - len(entries):
            _log.warning(
                "of %d %s of %r %d are invalid or too many, and left out",
                *(len(result[key]), key, self._server, omitted),
            )
        cursor = result.get("nextCursor")
        rest = {name: value for name, value in result.items() if name != "nextCursor"}
        return {**rest, key: entries, **({} if cursor is None else {"nextCursor": str(cursor)})}


_LISTS = {
    "tools/list": "tools",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
    "resources/read": "contents",
}
"""Methods whose results are lists, and the key of the list."""


def _tool(entry: Any) -> Any:
    """Return a tool of a list without what the SDK rejects, as far as it can be called without that.

    >>> _tool({"name": "now", "outputSchema": {"type": "nonsense"}, "title": 5, "inputSchema": {"oneOf": []}})
    {'name': 'now', 'inputSchema': {'oneOf': [], 'type': 'object'}}
    """
    if not isinstance(entry, dict):
        return entry
    # Nothing here uses an `outputSchema`, and the SDK would reject answers that don't match it.
    tool = {key: value for key, value in entry.items() if key != "outputSchema"}
    tool["inputSchema"] = _input_schema(tool.get("inputSchema"))
    if _is_accepted("tools/list", {"tools": [tool]}):
        return tool
    required = {key: tool[key] for key in ("name", "inputSchema") if key in tool}
    optional = [
        (key, value)
        for key, value in tool.items()
        if key not in required and _is_accepted("tools/list", {"tools": [{**required, key: value}]})
    ]
    return {**required, **dict(optional)}


def _input_schema(schema: Any) -> Any:
    """Return the schema as one of objects, which arguments always are, unless it is that of something else.

    >>> _input_schema(None), _input_schema({"type": ["object", "null"]}), _input_schema({"type": "array"})
    ({'type': 'object'}, {'type': 'object'}, {'type': 'array'})
    """
    if not isinstance(schema, dict):
        return {"type": "object"}
    kind = schema.get("type")
    if kind is None or (isinstance(kind, list) and "object" in kind):
        return {**schema, "type": "object"}
    return schema


def call_result(result: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a call with nothing that the SDK rejects.

    >>> call_result({"content": None, "structuredContent": [1]})
    {'content': [], 'structuredContent': {'result': [1]}}
    >>> call_result({"content": "Done.", "isError": "no"})
    {'content': [{'type': 'text', 'text': 'Done.'}]}
    >>> call_result({"rows": 3})
    {'content': [], 'structuredContent': {'rows': 3}}
    """
    if result.get("resultType", "complete") != "complete" or "task" in result:
        return result  # another form of result, which the SDK handles
    read = {key: value for key, value in result.items() if key in ("content", "structuredContent")}
    read["content"] = _blocks_of(_list_of_blocks(result.get("content")))
    if not result.keys() & {"content", "structuredContent"}:
        read["structuredContent"] = {key: value for key, value in result.items() if key not in _NO_CONTENT} or None
    structured = read.pop("structuredContent", None)
    if structured is not None:
        read["structuredContent"] = structured if isinstance(structured, dict) else {"result": structured}
    others = {key: result[key] for key, kind in _NO_CONTENT.items() if isinstance(result.get(key), kind)}
    return {**read, **others}


_NO_CONTENT = {"_meta": dict, "isError": bool, "resultType": str}
"""The other keys of a result, and what they must be."""


def _list_of_blocks(content: Any) -> list[Any]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if isinstance(content, dict):
        return [content]
    return content if isinstance(content, list) else []


def is_content(blocks: list[Any]) -> bool:
    """Return whether the SDK accepts blocks of content.

    >>> is_content([{"type": "text", "text": "a"}]), is_content([{"type": "hologram"}])
    (True, False)
    """
    return _is_accepted("tools/call", {"content": blocks})


def _is_accepted(method: str, result: dict[str, Any]) -> bool:
    try:
        parse_server_result(method, LATEST_HANDSHAKE_VERSION, result)
    except ValidationError:
        return False
    return True


def _blocks_of(blocks: list[Any]) -> list[Any]:
    sanitized = [block if is_content([block]) else _placeholder(block) for block in blocks[:MAX_SANITIZED]]
    if omitted := len(blocks) - len(sanitized):
        sanitized.append({"type": "text", "text": f"[{omitted:,} more, left out]"})
    return sanitized


def _placeholder(block: Any) -> dict[str, str]:
    kind = block.get("type") if isinstance(block, dict) else None
    return {"type": "text", "text": f"[{kind:.40}, left out]" if isinstance(kind, str) else "[of no type, left out]"}


MAX_FILE_NAME_CHARS = 100

UNKNOWN_TYPE = "application/octet-stream"


def contents_of(blocks: Iterable[ContentBlock]) -> tuple[list[str], list[Attachment]]:
    """Return the texts of a result, and its images and files within the limits of one message.

    >>> contents_of([TextContent(text="Done."), ImageContent(data="R0lGODlh", mime_type="image/gif")])
    (['Done.'], [ImageAttachment(hash=None, bytes=None, type='image', name=None, media_type='image/gif', \
data='R0lGODlh', url=None)])
    >>> contents_of([ImageContent(data="AAAA", mime_type="image/gif")])
    (['[image, image/gif, 3 bytes: is not a GIF image]'], [])
    """
    texts: list[str] = []
    attachments: list[Attachment] = []
    room = MAX_CONTENT_BYTES
    for block in blocks:
        content = _Content.of(block)
        if content is None:
            texts.append(_text_of(block))
            continue
        problem = content.problem or _no_room(content.size, attachments, room)
        if problem:
            texts.append(f"[{content.kind}, {content.described_type}, {content.size:,} bytes: {problem}]")
        else:
            attachments.append(content.attachment)
            room -= content.size
    return texts, attachments


def _no_room(size: int, attachments: list[Attachment], room: int) -> str | None:
    if len(attachments) >= MAX_ATTACHMENTS:
        return f"left out, a result has at most {MAX_ATTACHMENTS}"
    return "left out, the result is too large" if size > room else None


class _Content:
    """A block's content that is no text."""

    def __init__(self, kind: str, data: str, media_type: str | None, name: str | None) -> None:
        self.kind = kind
        self.described_type = media_type or "of unknown type"
        self._data = data
        self._name = "".join(filter(str.isprintable, name or ""))[:MAX_FILE_NAME_CHARS] or None
        self.problem: str | None = None
        try:
            content = b64decode(data, validate=True)
        except ValueError:
            content, self.problem = b"", "is not base64"
        self.size = len(content) or len(data) * 3 // 4
        self._media_type = detect_image_type(content) or _media_type(media_type)
        self.problem = self.problem or check_content(content, self._media_type)

    @classmethod
    def of(cls, block: ContentBlock) -> "_Content | None":
        match block:
            case ImageContent() | AudioContent():
                return cls(block.type, block.data, block.mime_type, None)
            case EmbeddedResource(resource=BlobResourceContents() as resource):
                return cls("resource", resource.blob, resource.mime_type, _name_in(resource.uri))
            case _:
                return None

    @property
    def attachment(self) -> Attachment:
        if self._media_type in IMAGE_MEDIA_TYPES:
            fields = {"type": "image", "name": self._name, "media_type": self._media_type, "data": self._data}
            return ImageAttachment.model_validate(fields)
        name = self._name or f"{self.kind}.{_NOT_IN_NAMES.sub('', self._media_type.partition('/')[2])}"
        return FileAttachment(type="file", name=name, media_type=self._media_type, data=self._data)


_NOT_IN_NAMES = re.compile(r"[^a-z0-9]")


def _media_type(media_type: str | None) -> str:
    """Return a media type without parameters; `UNKNOWN_TYPE` for what is none.

    >>> _media_type("image/JPG"), _media_type("text/csv; charset=utf-8"), _media_type("?")
    ('image/jpeg', 'text/csv', 'application/octet-stream')
    """
    kind = (media_type or "").partition(";")[0].strip().lower()
    if kind == "image/jpg":
        return "image/jpeg"
    return kind if re.fullmatch(MEDIA_TYPE_PATTERN, kind) else UNKNOWN_TYPE


def _name_in(uri: str) -> str | None:
    """Return the name of the file at an address.

    >>> _name_in("file:///a/my%20cat.png"), _name_in("x://y")
    ('my cat.png', None)
    """
    try:
        return unquote(urlsplit(uri).path).rstrip("/").rpartition("/")[2] or None
    except ValueError:
        return None


def _text_of(block: ContentBlock) -> str:
    match block:
        case TextContent():
            return block.text
        case ResourceLink():
            description = f" ({block.description})" if block.description else ""
            return f"[link to {block.title or block.name}: {block.uri}{description}]"
        case EmbeddedResource(resource=TextResourceContents() as resource):
            return f"[{resource.uri}]\n{resource.text}"
        case _:
            return f"[{block.type}: not shown]"
