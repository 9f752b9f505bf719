"""What turns refer to by hash, large texts and attachments (CTX-16), and what the model sees (CTX-8, CTX-12)."""

import asyncio
from collections.abc import Mapping
from hashlib import sha256
from typing import Annotated, Any, Literal, get_args
from urllib.parse import quote

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import PlainTextResponse

from turnkeeper.api.dependencies import BlobHash, ChangesDep, ServicesDep, SessionId
from turnkeeper.api.http.compression import matches
from turnkeeper.api.http.openapi import SESSION, WORKER, errors
from turnkeeper.api.problems import invalid, problem
from turnkeeper.api.prompts import attachment_path
from turnkeeper.api.roles import MAX_HISTORY_BYTES, access
from turnkeeper.api.timeouts import read_store, seconds_from_now
from turnkeeper.models.http_responses import ContextView
from turnkeeper.models.legible import legible_json
from turnkeeper.models.session.messages import ContextRequest, ReplayRequest
from turnkeeper.models.transcript.attachments import (
    MAX_ATTACHMENT_BYTES,
    MAX_NAME_CHARS,
    PDF,
    Attachment,
    FileAttachment,
    ImageAttachment,
    ImageMediaType,
    check_content,
    detect_image_type,
    first_problem,
)
from turnkeeper.stores.blobs import attachments_owner

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


HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; sandbox",
}
"""For untrusted contents."""

Name = Annotated[str | None, Query(min_length=1, max_length=MAX_NAME_CHARS, description="The file's name.")]

_ANY_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": f"The content itself, of any media type: 1 to {MAX_ATTACHMENT_BYTES:,} bytes.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary", "minLength": 1}}},
    }
}


UNKNOWN_TYPE = "application/octet-stream"

_TYPES_OF_ANYTHING = frozenset({"", UNKNOWN_TYPE, "application/x-www-form-urlencoded"})
"""What clients send that don't know the type; the last is `curl`'s."""

_FIELDS = {"name": "name", "media_type": "Content-Type"}
"""Where the fields of an attachment are in an upload; what is in none of these is in the body."""


@router.post(
    "/workflow/{id}/attachments",
    status_code=201,
    max_body_size=MAX_HISTORY_BYTES,
    operation_id="upload_attachment",
    response_model=Attachment,
    openapi_extra=_ANY_BODY,
    responses=errors(*SESSION, "too-large"),
)
@access("writer")
async def upload_attachment(
    request: Request,
    response: Response,
    services: ServicesDep,
    changes: ChangesDep,
    workflow_id: SessionId,
    name: Name = None,
) -> Any:
    """Store a content for a prompt of this session; the answer is an item of that prompt's `attachments`.

    The `Content-Type` says what it is; if it says nothing, the content's first bytes do. Without a `name`, a file is
    called `file`. Uploading the same content again changes nothing. A content without a prompt is deleted with the
    session.
    """
    content = await request.body()
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if len(content) > MAX_ATTACHMENT_BYTES:
        raise problem("too-large", f"An attachment may have at most {MAX_ATTACHMENT_BYTES:,} bytes.")
    if media_type.startswith("multipart/"):
        reason = "must be the content's own type: the body is the content, not a form with it"
        raise invalid(_FIELDS["media_type"], reason)
    if media_type in _TYPES_OF_ANYTHING:
        media_type = detect_image_type(content) or (PDF if content.startswith(b"%PDF-") else UNKNOWN_TYPE)
    attachment = _attachment_of(content, media_type, name)
    if wrong := first_problem(attachment):
        raise invalid(_FIELDS.get(wrong[0], "body"), wrong[1])
    if wrong_content := check_content(content, attachment.media_type):
        raise invalid("body", wrong_content)
    async with changes.begin("upload", workflow_id):
        await services.attachments.store(workflow_id, {attachment.hash or "": content})
    response.headers["Location"] = attachment_path(workflow_id, attachment.hash or "")
    return attachment


@router.get(
    "/workflow/{id}/attachments/{hash}",
    operation_id="get_attachment",
    response_class=Response,
    responses={
        200: {
            "description": "The content. Images have their type, everything else is `application/octet-stream`.",
            "content": {
                name: {"schema": {"type": "string", "format": "binary"}}
                for name in ("application/octet-stream", *get_args(ImageMediaType))
            },
            "headers": {"ETag": {"description": "The hash.", "schema": {"type": "string"}}},
        },
        304: {"description": "`If-None-Match` contains the hash; the content never changes."},
        **errors(*SESSION, "unknown-blob"),
    },
)
@access("reader")
async def get_attachment(
    services: ServicesDep,
    workflow_id: SessionId,
    content_hash: BlobHash,
    name: Name = None,
    if_none_match: Annotated[str | None, Header(max_length=2_000)] = None,
) -> Response:
    """Return the content of an attachment by its `hash`. `name` is what a browser saves it as."""
    until = seconds_from_now(services.timeouts.request)
    await services.reader.describe_if_retained(workflow_id)
    reading = services.stores.blobs.get_data(attachments_owner(workflow_id), [content_hash])
    contents = await read_store(reading, until=until)
    if content_hash not in contents:
        raise problem("unknown-blob", name=content_hash)
    content = contents[content_hash]
    headers = {**HEADERS, "ETag": f'"{content_hash}"', **_disposition_headers(content, name)}
    if if_none_match and matches(headers["ETag"], if_none_match):
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=detect_image_type(content) or UNKNOWN_TYPE)


def _attachment_of(content: bytes, media_type: str, name: str | None) -> ImageAttachment | FileAttachment:
    place: dict[str, Any] = {"hash": sha256(content).hexdigest(), "bytes": len(content) or None}
    if media_type in get_args(ImageMediaType):
        return ImageAttachment.model_validate({"type": "image", "name": name, "media_type": media_type, **place})
    return FileAttachment(type="file", name=name or "file", media_type=media_type, **place)


def _disposition_headers(content: bytes, name: str | None) -> Mapping[str, str]:
    """Return the header by which a browser shows an image in its place, and saves everything else."""
    disposition = "inline" if detect_image_type(content) else "attachment"
    suffix = f"; filename*=UTF-8''{quote(name, safe='')}" if name else ""
    return {"Content-Disposition": disposition + suffix}


INCOMPLETE = "Turnkeeper-Incomplete"

Format = Annotated[
    Literal["view", "replay"],
    Query(
        alias="format",
        description="`view`: what the model sees of each turn. `replay`: the conversation as replay text.",
    ),
]
Before = Annotated[int | None, Query(ge=1, description="`view`: only turns before this number (from 1).")]
Limit = Annotated[int | None, Query(ge=1, le=2_000, description="`view`: maximum number of turns; default 500.")]
MaxHistory = Annotated[
    int | None,
    Query(ge=0, le=10_000, description="`replay`: maximum number of events in HISTORY; 0 for all, default 20."),
]


@router.get(
    "/workflow/{id}/context",
    operation_id="get_context",
    response_model=ContextView,
    responses={
        200: {
            "description": "The context view as JSON, or the replay text.",
            "content": {
                "text/plain": {
                    "schema": {"type": "string"},
                    "example": "=== HISTORY ===\n(showing last 2 of 6 messages)\n\n$user: Hi\n\n$respond: Hello!",
                }
            },
            "headers": {
                INCOMPLETE: {
                    "description": "`true` if part of the text can't be read now; the text says what is missing.",
                    "schema": {"type": "string"},
                }
            },
        },
        **errors(*WORKER),
    },
)
@access("reader")
async def get_context(
    services: ServicesDep,
    workflow_id: SessionId,
    context_format: Format = "view",
    before: Before = None,
    limit: Limit = None,
    max_history: MaxHistory = None,
) -> ContextView | PlainTextResponse:
    """Return what the model sees now, turn by turn, or the conversation as replay text.

    The replay text has HISTORY, up to about 10 MB, and CURRENT while a turn is unfinished. It includes archived turns
    and large texts. While the archive is unavailable, it contains what the session itself has.
    """
    if context_format == "replay":
        _reject_parameters("view", before=before, limit=limit)
        request = ReplayRequest.model_validate(_provided(max_history=max_history))
        replay = await services.replays.text(workflow_id, max_history=request.max_history)
        headers = PLAIN_TEXT_HEADERS if replay.is_whole else {**PLAIN_TEXT_HEADERS, INCOMPLETE: "true"}
        return PlainTextResponse(replay.text, headers=headers)
    _reject_parameters("replay", max_history=max_history)
    page = ContextRequest.model_validate(_provided(before=before, limit=limit))
    return await services.reader.context_view(workflow_id, page)


def _provided(**parameters: int | None) -> dict[str, int]:
    return {name: value for name, value in parameters.items() if value is not None}


def _reject_parameters(other_format: str, **parameters: int | None) -> None:
    """Reject parameters of the other format, so that no option is silently ignored (API-2)."""
    for name in _provided(**parameters):
        raise invalid(name, f"is for format={other_format} only")
