"""Storing the contents of attachments before a prompt is signalled (CTX-16).

A prompt in Temporal's history has references only. Its contents are stored first, by session and hash: the same prompt
sent again stores the same rows, and they are deleted with the session. If this gateway dies before the prompt is
signalled, or the session started, nobody refers to them, and nobody can read what is under an id without a session.
"""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from turnkeeper.api.problems import UNKNOWN_UPLOAD, ProblemError, invalid, problem
from turnkeeper.api.store_calls import Answer, read_store, seconds_from_now
from turnkeeper.api.temporal.session_reader import SessionReader
from turnkeeper.models.errors import RejectedError
from turnkeeper.models.ids import WorkflowId, session_id_of
from turnkeeper.models.limits import LARGE_TEXT_BYTES, Limits
from turnkeeper.models.transcript.attachments import (
    HASH_PATTERN,
    LANGUAGE_PATTERN,
    MAX_ATTACHMENT_BYTES,
    MAX_ATTACHMENTS,
    MAX_NAME_CHARS,
    MAX_URL_CHARS,
    MEDIA_TYPE_PATTERN,
    SIGNATURE_BYTES,
    Attachment,
    CodeAttachment,
    FileAttachment,
    ImageAttachment,
    ImageMediaType,
    check_attachments,
    check_content,
    hashes_of,
    json_bytes,
    refer_attachments,
)
from turnkeeper.models.wire import Items, Strict
from turnkeeper.stores.blobs import attachments_owner
from turnkeeper.stores.database.database import StoreUnavailableError
from turnkeeper.stores.stores import Stores


@dataclass(frozen=True)
class PreparedAttachments:
    """The attachments of a prompt as the session gets them, and the contents to store before, by hash."""

    attachments: list[Attachment] = field(default_factory=list)
    contents: Mapping[str, bytes] = field(default_factory=dict)


NO_ATTACHMENTS = PreparedAttachments()


class AttachmentKeeper:
    """Checks and stores attachments of prompts. Methods raise `ProblemError`."""

    def __init__(
        self,
        reader: SessionReader,
        stores: Stores,
        *,
        inline_bytes: int = LARGE_TEXT_BYTES,
    ) -> None:
        """`inline_bytes`: what the attachments of a prompt may have as JSON, unless a session has limits of its own."""
        self._reader = reader
        self._blobs = stores.blobs
        self._inline_bytes = inline_bytes

    async def prepare(
        self,
        workflow_id: WorkflowId,
        attachments: Sequence[Attachment],
        *,
        name: str = "attachments",
        limits: Limits | None = None,
    ) -> PreparedAttachments:
        """Check attachments, and return them with large contents by reference. Nothing is stored yet.

        `limits` are those of the session, if they are known.
        Raises 422 naming the field below `name`, also for an unknown upload hash, and 503.
        """
        if not attachments:
            return NO_ATTACHMENTS
        await asyncio.to_thread(check_attachments, attachments, field=name)
        attachments = await self._with_uploads(workflow_id, attachments, name=name)
        inline_bytes = limits.attachments_bytes if limits else self._inline_bytes
        referred, contents = await asyncio.to_thread(refer_attachments, attachments, inline_bytes=inline_bytes)
        check_attachments(referred, field=name)  # their sizes together, with those of uploads
        if json_bytes(referred) > inline_bytes:
            reason = f"names and addresses are too long: without contents, {inline_bytes:,} bytes of JSON are allowed"
            raise invalid(name, reason)
        return PreparedAttachments(referred, contents)

    async def store(
        self, workflow_id: WorkflowId, contents: Mapping[str, bytes], *, is_started_next: bool = False
    ) -> None:
        """Store contents of a session, or of one that is started next; a repetition changes nothing.

        Raises 404 if the session does not exist, or was deleted meanwhile, and 503. Then nothing may be signalled.
        """
        if not contents:
            return
        owner = attachments_owner(workflow_id)
        if not is_started_next:
            await self._reader.describe_if_retained(workflow_id)
        await self._call(self._blobs.put_data(owner, contents.values()))
        if is_started_next:
            return
        try:
            await self._reader.describe_if_retained(workflow_id)
        except ProblemError as problem:
            if problem.problem.status == 404:  # its deletion may have passed before the contents were there
                await self._call(self._blobs.delete_some(owner, contents))
            raise

    async def _call(self, call: Awaitable[Answer]) -> Answer:
        """Return what a call of the store returns. Raises 503."""
        try:
            return await read_store(call, until=seconds_from_now(self._reader.timeouts.request))
        except StoreUnavailableError as error:
            detail = f"{error} The attachments can't be stored, so nothing was sent. Try again."
            raise problem("archive-unavailable", detail) from error

    async def _with_uploads(
        self, workflow_id: WorkflowId, attachments: Sequence[Attachment], *, name: str
    ) -> list[Attachment]:
        """Return the attachments with the sizes of those that were uploaded before, whose types are checked."""
        hashes, owner = hashes_of(attachments), attachments_owner(workflow_id)
        if not hashes:
            return [one.model_copy(update={"bytes": None}) for one in attachments]
        sizes = await self._call(self._blobs.read_sizes(owner, hashes))
        heads = await self._call(self._blobs.read_heads(owner, hashes, max_bytes=SIGNATURE_BYTES))
        for index, one in enumerate(attachments):
            if one.hash and (problem := _problem_of_upload(one, heads.get(one.hash))):
                path = f"{name}[{index}].{problem[0]}"
                raise RejectedError("invalid", f"{path}: {problem[1]}", field=path)
        return [one.model_copy(update={"bytes": sizes.get(one.hash or "")}) for one in attachments]


def _problem_of_upload(attachment: Attachment, head: bytes | None) -> tuple[str, str] | None:
    """Return the wrong field of an attachment whose content begins with `head`, and what is wrong with it."""
    if head is None:
        return "hash", UNKNOWN_UPLOAD
    media_type = None if isinstance(attachment, CodeAttachment) else attachment.media_type
    problem = check_content(head, media_type)
    return ("media_type", f"the content {problem}.") if problem else None


MAX_BASE64_CHARS = (MAX_ATTACHMENT_BYTES + 2) // 3 * 4

Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS, examples=["report.pdf"])]
Data = Annotated[str, Field(max_length=MAX_BASE64_CHARS, json_schema_extra={"contentEncoding": "base64"})]
Hash = Annotated[str, Field(pattern=HASH_PATTERN, description="Of a content that was uploaded to the session before.")]
Size = Annotated[int, Field(ge=1, le=MAX_ATTACHMENT_BYTES, description="As the upload answered; it need not be sent.")]


class _Uploaded(Strict):
    hash: Hash | None = None
    bytes: Size | None = None


class CodeBody(_Uploaded):
    """Source code: its `content`, or the `hash` of an upload."""

    type: Literal["code"]
    name: Name | None = None
    language: str = Field("", pattern=LANGUAGE_PATTERN)
    content: str = Field("", max_length=MAX_ATTACHMENT_BYTES)


class ImageBody(_Uploaded):
    """An image: its `data` in base64, the `hash` of an upload, or a public `url` that the model's vendor fetches."""

    type: Literal["image"]
    name: Name | None = None
    media_type: ImageMediaType | None = None
    data: Data = ""
    url: str | None = Field(None, max_length=MAX_URL_CHARS, examples=["https://example.org/cat.png"])


class FileBody(_Uploaded):
    """A file: its `data` in base64, or the `hash` of an upload."""

    type: Literal["file"]
    name: Name
    media_type: str = Field(pattern=MEDIA_TYPE_PATTERN, examples=["application/pdf"])
    data: Data = ""


AttachmentBody = Annotated[CodeBody | ImageBody | FileBody, Field(discriminator="type")]

AttachmentBodies = Annotated[
    Items[AttachmentBody],
    Field(
        max_length=MAX_ATTACHMENTS,
        examples=[[{"type": "code", "name": "add.py", "language": "python", "content": "print(1 + 1)"}]],
    ),
]

_MODELS: dict[str, type[CodeAttachment | ImageAttachment | FileAttachment]] = {
    "code": CodeAttachment,
    "image": ImageAttachment,
    "file": FileAttachment,
}


def attachments_of(bodies: list[AttachmentBody]) -> list[Attachment]:
    """Return the attachments of a body. Their contents have not been checked.

    >>> attachments_of([CodeBody(type="code", content="x")])
    [CodeAttachment(hash=None, bytes=None, type='code', name=None, language='', content='x')]
    """
    return [_MODELS[body.type].model_validate(body.model_dump(exclude_none=True)) for body in bodies]


def attachment_path(workflow_id: WorkflowId, content_hash: str) -> str:
    """Return the path of a stored content.

    >>> attachment_path(WorkflowId("acme:s1"), "abc")
    '/workflow/s1/attachments/abc'
    """
    return f"/workflow/{session_id_of(workflow_id)}/attachments/{content_hash}"
