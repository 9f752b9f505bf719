"""Cursors of lists as clients have them: a token with a checksum (API-1).

The checksum finds what is no cursor of ours, or one of another list. Anybody can compute it, so the token in a cursor
can still be anything.
"""

import base64
import binascii
from hashlib import sha256

_CHECKSUM_BYTES = 12


def encode_cursor(token: bytes, *, list_name: str) -> str:
    """Return a cursor of that list.

    >>> cursor = encode_cursor(b"7", list_name="index")
    >>> decode_cursor(cursor, list_name="index"), decode_cursor(cursor, list_name="sessions")
    (b'7', None)
    """
    return base64.urlsafe_b64encode(_checksum(token, list_name) + token).decode()


def decode_cursor(cursor: str, *, list_name: str) -> bytes | None:
    """Return the token in a cursor, which is not empty; `None` if it is no cursor of that list."""
    try:
        decoded = base64.b64decode(cursor, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    checksum, token = decoded[:_CHECKSUM_BYTES], decoded[_CHECKSUM_BYTES:]
    return token if token and checksum == _checksum(token, list_name) else None


def _checksum(token: bytes, list_name: str) -> bytes:
    return sha256(f"turnkeeper:{list_name}:".encode() + token).digest()[:_CHECKSUM_BYTES]
