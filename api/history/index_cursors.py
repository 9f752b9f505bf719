"""Cursors of lists from our own index: where a page ended, with a checksum (API-1)."""

import base64
import binascii
import json
from hashlib import sha256

from turnkeeper.models.ids import WorkflowId
from turnkeeper.stores.session_index import IndexPosition

BEGINNING = IndexPosition(2**62, WorkflowId(""))
"""Before all rows: they are in the order of last activity, the latest first."""

_CHECKSUM_BYTES = 12


def index_cursor(position: IndexPosition) -> str:
    token = json.dumps([position.last_activity_at, position.session_id]).encode()
    return base64.urlsafe_b64encode(_checksum(token) + token).decode()


def index_position(cursor: str | None) -> IndexPosition | None:
    """Return the place in the index that a cursor stands for; `None` if it is not a cursor of the index."""
    try:
        decoded = base64.b64decode(cursor or "", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    checksum, token = decoded[:_CHECKSUM_BYTES], decoded[_CHECKSUM_BYTES:]
    if not token or checksum != _checksum(token):
        return None
    moment, workflow_id = json.loads(token)
    return IndexPosition(moment, WorkflowId(workflow_id))


def _checksum(token: bytes) -> bytes:
    return sha256(b"turnkeeper:index:" + token).digest()[:_CHECKSUM_BYTES]
