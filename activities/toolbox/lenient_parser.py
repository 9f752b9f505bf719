"""What a foreign server sends, read with patience: one message, and if it is none, whose answer it should have been.

A call whose answer can't be read is over: told so at once, it does not wait for its time limit.

By a few codes of errors our own side, the SDK's with it, tells what became of a call. Servers use them too: -32000 is
the usual one of their own errors. So an error that was read bears another: whoever has sent one did answer.
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
from turnkeeper.models.limits import MOST_LEVELS

MAX_MESSAGE_BYTES = 10_000_000
"""A longer message is not read: it would be held in memory as a whole, several times."""

NOT_SENT = -32_099
"""Code of an error of our own making: the request did not reach the server. Within JSON-RPC's range for that."""

LOST = (CONNECTION_CLOSED, REQUEST_TIMEOUT, PARSE_ERROR)
"""Codes of errors of our own side, the SDK's among them, after which nobody knows whether a tool ran."""

_ID_AT_THE_BEGINNING = re.compile(r'\s*\{\s*("jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(?P<id>\d{1,15})\s*[,}]')


def parse_message(raw: bytes) -> JSONRPCMessage | None:
    r"""Return the message in a line or body; `None` if there is none, and nothing that answers a request of ours.

    What claims to be an answer and can't be read becomes an error for the one who waits.

    >>> parse_message(b'{"jsonrpc": "2.0", "id": 3, "result": {"text": "a\\ud800b"}}').result
    {'text': 'a\ufffdb'}
    >>> parse_message(b'{"jsonrpc": "2.0", "id": 3, "result": [').error.message
    'The answer could not be read.'
    >>> parse_message(b"Listening on stdio ...")
    """
    text = raw.decode(errors="replace")
    return parse_whole_message(text) or _no_answer(text)


def parse_whole_message(text: str) -> JSONRPCMessage | None:
    """Return the message in a text; `None` if it is none, or not all of one.

    NUL and lone surrogates are replaced, and so is what is nested too deeply for the SDK. No error of a server bears a
    code of ours.

    >>> parse_whole_message('{"jsonrpc": "2.0", "id": 3, "error": {"code": -32000, "message": "no money"}}').error.code
    -32603
    """
    message = _parse_strictly(text) or _parse_repaired(text)
    if isinstance(message, JSONRPCError) and message.error.code in (*LOST, NOT_SENT):
        message.error.code = INTERNAL_ERROR
    return message


def lost_answer_error(request_id: int | str | None, message: str, *, code: int = CONNECTION_CLOSED) -> JSONRPCError:
    """Return an error in the place of an answer that will not come: nobody knows what became of the request."""
    return JSONRPCError(jsonrpc="2.0", id=request_id, error=ErrorData(code=code, message=message))


def _parse_strictly(text: str) -> JSONRPCMessage | None:
    try:
        return jsonrpc_message_adapter.validate_json(text, by_name=False)
    except ValueError:
        return None


def _parse_repaired(text: str) -> JSONRPCMessage | None:
    try:
        return jsonrpc_message_adapter.validate_python(encodable(_cut(json.loads(text), MOST_LEVELS)), by_name=False)
    except (ValueError, RecursionError):
        return None


def _cut(value: JsonValue, levels: int) -> JsonValue:
    """Return `value` with words in the place of what is nested in it over so many levels."""
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
    """Return the id that something unreadable bears; ours are numbers. A server's own request is no answer."""
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        beginning = _ID_AT_THE_BEGINNING.match(text)
        return int(beginning["id"]) if beginning else None
    if not isinstance(read, dict) or "method" in read:
        return None
    return read["id"] if type(read.get("id")) is int else None
