"""The large texts of a session: results, answers, thinking and arguments that turns refer to by hash."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import PlainTextResponse

from turnkeeper.api.dependencies import BlobHash, ServicesDep, SessionId
from turnkeeper.api.http.etags import matches
from turnkeeper.api.http.openapi import SESSION, errors
from turnkeeper.api.problems import problem
from turnkeeper.api.roles import access
from turnkeeper.api.store_calls import read_store, seconds_from_now
from turnkeeper.models.texts.legible import legible_json

router = APIRouter(tags=["conversation"])

PLAIN_TEXT_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    # Shown and not downloaded, since people follow the link to read. Plain text, nosniff and sandbox prevent scripts.
    "Content-Disposition": "inline",
}
"""For untrusted text: of a tool, a file, a web page."""


@router.get(
    "/workflow/{id}/blobs/{hash}",
    operation_id="get_blob",
    response_class=PlainTextResponse,
    responses={
        200: {
            "description": "The whole text; arguments of a call are JSON.",
            "content": {"text/plain": {"schema": {"type": "string"}, "example": "The tool's whole output …"}},
            "headers": {"ETag": {"description": "The hash.", "schema": {"type": "string"}}},
        },
        304: {"description": "`If-None-Match` contains the hash; the text never changes."},
        **errors(*SESSION, "unknown-blob", "archive-unavailable"),
    },
)
@access("reader")
async def get_blob(
    services: ServicesDep,
    workflow_id: SessionId,
    blob_hash: BlobHash,
    legible: Annotated[bool, Query(description="Arguments as people read them, not as JSON.")] = False,
    if_none_match: Annotated[str | None, Header(max_length=2_000)] = None,
) -> Response:
    """Return a whole text that a turn refers to by the `hash` of its blob.

    With `legible`, a call's arguments are the text that people approve: digits as they are, a marker for what can't be
    seen, and texts of several lines as lines.
    """
    until = seconds_from_now(services.timeouts.request)
    await services.reader.describe_if_retained(workflow_id)
    # A vendor's opaque state has an owner that is no valid session id, so that nobody can read it here (AGT-3).
    texts = await read_store(services.stores.blobs.get(workflow_id, [blob_hash]), until=until)
    if blob_hash not in texts:
        raise problem("unknown-blob", name=blob_hash)
    headers = {**PLAIN_TEXT_HEADERS, "ETag": f'"{blob_hash}"'}
    if if_none_match and matches(headers["ETag"], if_none_match):
        return Response(status_code=304, headers=headers)
    text = texts[blob_hash]
    # In a thread: a megabyte takes a while.
    return PlainTextResponse(await asyncio.to_thread(legible_json, text) if legible else text, headers=headers)
