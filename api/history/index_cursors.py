"""Cursors of lists from our own index: where a page ended (API-1)."""

import json
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from turnkeeper.api.temporal.lists.cursors import decode_cursor, encode_cursor
from turnkeeper.models.ids import WorkflowId
from turnkeeper.stores.session_index import IndexPosition

MAX_MOMENT = 2**62
"""Later than all times, in microseconds since 1970; databases have room for twice as much."""

BEGINNING = IndexPosition(MAX_MOMENT, WorkflowId(""))
"""Before all rows: they are in the order of last activity, the latest first."""

_LIST = "index"

_POSITION = TypeAdapter(
    tuple[
        Annotated[int, Field(strict=True, ge=-MAX_MOMENT, le=MAX_MOMENT)],
        Annotated[str, Field(pattern=r"^[^\x00]*$")],
    ]
)


def index_cursor(position: IndexPosition) -> str:
    token = json.dumps([position.last_activity_at, position.session_id]).encode()
    return encode_cursor(token, list_name=_LIST)


def index_position(cursor: str | None) -> IndexPosition | None:
    """Return the place in the index that a cursor stands for; `None` if it is not a cursor of the index."""
    token = decode_cursor(cursor or "", list_name=_LIST)
    if token is None:
        return None
    try:
        moment, workflow_id = _POSITION.validate_json(token)
    except ValidationError:
        return None
    return IndexPosition(moment, WorkflowId(workflow_id))
