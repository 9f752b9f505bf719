"""Attachments in bodies of requests (CTX-16). Unknown fields are errors; `attachment_rules.py` has the other rules."""

from typing import Annotated, Literal

from pydantic import Field

from turnkeeper.models.ids import WorkflowId, session_id_of
from turnkeeper.models.transcript.attachments import (
    HASH_PATTERN,
    LANGUAGE_PATTERN,
    MAX_ATTACHMENT_BYTES,
    MAX_ATTACHMENTS,
    MAX_NAME_CHARS,
    MAX_URL_CHARS,
    MEDIA_TYPE_PATTERN,
    Attachment,
    CodeAttachment,
    FileAttachment,
    ImageAttachment,
    ImageMediaType,
)
from turnkeeper.models.wire import Items, Strict

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
