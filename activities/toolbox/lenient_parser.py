"""A lenient parser of foreign servers' messages, which finds the request of an unreadable answer.

A call whose answer is unreadable fails at once and doesn't wait for its time limit.

Our own side and the SDK use a few error codes for calls with an unknown outcome. Servers use them too, most of all
-32000. So these codes are replaced in errors from servers, since a server that sends an error has answered.
"""

import json
import re

from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    PARSE_ERROR,
    REQUEST_TIMEOUT,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    jsonrpc_message_adapter,
)
from pydantic import JsonValue

from turnkeeper.models.bounds import encodable
from turnkeeper.models.limits import MAX_NESTING

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
