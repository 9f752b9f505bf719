"""What a foreign server sends, read with patience: one message, and if it is none, whose answer it should have been.

A call whose answer can't be read is over: told so at once, it does not wait for its time limit.
"""

import json
import re

from mcp_types import (
    CONNECTION_CLOSED,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    jsonrpc_message_adapter,
)

from models.context.bounds import encodable

MOST_MESSAGE_BYTES = 10_000_000
"""A longer message is not read: it would be held in memory as a whole, several times."""

NOT_SENT = -32_099
"""Code of an error of our own making: the request did not reach the server. Within JSON-RPC's range for that."""

_ID_AT_THE_BEGINNING = re.compile(r'\s*\{\s*("jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(?P<id>\d{1,15})\s*[,}]')


def message_in(sent: bytes) -> JSONRPCMessage | None:
    r"""Return the message in a line or body; `None` if there is none, and nothing that answers a request of ours.

    What is no UTF-8, NUL and lone surrogates are replaced. What claims to be an answer and can't be read becomes an
    error for the one who waits.

    >>> message_in(b'{"jsonrpc": "2.0", "id": 3, "result": {"text": "a\\ud800b"}}').result
    {'text': 'a\ufffdb'}
    >>> message_in(b'{"jsonrpc": "2.0", "id": 3, "result": [').error.message
    'The answer could not be read.'
    >>> message_in(b"Listening on stdio ...")
    """
    text = sent.decode(errors="replace")
    try:
        return jsonrpc_message_adapter.validate_json(text, by_name=False)
    except ValueError:
        return _mended(text) or _no_answer(text)


def lost(request_id: int | str | None, told: str, *, code: int = CONNECTION_CLOSED) -> JSONRPCError:
    """Return an error in the place of an answer that will not come: nobody knows what became of the request."""
    return JSONRPCError(jsonrpc="2.0", id=request_id, error=ErrorData(code=code, message=told))


def _mended(text: str) -> JSONRPCMessage | None:
    try:
        return jsonrpc_message_adapter.validate_python(encodable(json.loads(text)), by_name=False)
    except (ValueError, RecursionError):
        return None


def _no_answer(text: str) -> JSONRPCMessage | None:
    request_id = _id_in(text)
    return None if request_id is None else lost(request_id, "The answer could not be read.")


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
