"""Attachments of prompts, tool results and handed-off messages: code, images and files (CTX-16).

Contents are in the attachment or, over 8 KB, in the blob store under their hash; Temporal's history never has more. An
attachment has exactly one of: its content (`content` or `data`), the `hash` of stored content, a `url`.
"""

from collections.abc import Sequence
from typing import Annotated, Literal, get_args

from pydantic import Field

from turnkeeper.models.texts.counted import counted
from turnkeeper.models.tokens import weighted_chars
from turnkeeper.models.wire import Compact

MAX_ATTACHMENTS = 20
"""Maximum attachments of one message."""

MAX_ATTACHMENT_BYTES = 7_000_000
"""Maximum content of one attachment: as base64 it fits in a request of 10 MiB."""

MAX_CONTENT_BYTES = 7_500_000
"""Maximum content of all attachments of one message."""

MAX_NAME_CHARS = 200

MAX_URL_CHARS = 2_000

NAME_PATTERN = r"^[^\x00-\x1f\x7f-\x9f]+$"
"""Names: no control characters, since they stand in lines of text and in headers."""

LANGUAGE_PATTERN = r"^[A-Za-z0-9+#._-]{0,40}$"
"""Languages: they stand behind a fence."""

MEDIA_TYPE_PATTERN = r"^[a-z0-9][a-z0-9!#$&^_.+-]{0,63}/[a-z0-9][a-z0-9!#$&^_.+-]{0,63}$"

URL_PATTERN = r"^https?://[^\s\x00-\x1f\x7f]+$"

HASH_PATTERN = r"^[0-9a-f]{64}$"

ImageMediaType = Literal["image/png", "image/jpeg", "image/gif", "image/webp"]
"""The image formats that every vendor's vision models accept."""

IMAGE_MEDIA_TYPES: frozenset[str] = frozenset(get_args(ImageMediaType))

PDF = "application/pdf"

MAX_SHOWN_CHARS = 200_000
"""Maximum of one piece of code or text file in a request; a longer one loses its middle."""


class _Stored(Compact):
    """The content's place in the blob store."""

    hash: str | None = None
    """The SHA-256 of the content in hex, if the content is in the store."""
    bytes: int | None = None
    """Size of stored content."""


class CodeAttachment(_Stored):
    """A piece of source code, which the model sees in a fence."""

    type: Literal["code"]
    name: str | None = None
    language: str = ""
    content: str = ""


class ImageAttachment(_Stored):
    """An image. Models that can't see get its name in text."""

    type: Literal["image"]
    name: str | None = None
    media_type: ImageMediaType | None = None
    """`None` only with a `url`."""
    data: str = ""
    """The content as base64."""
    url: str | None = None
    """Where the vendor fetches the image; the session stores nothing of it."""


class FileAttachment(_Stored):
    """A file. Text is shown to the model in a fence, a PDF goes to models that read it, others are named in text."""

    type: Literal["file"]
    name: str
    media_type: str
    data: str = ""
    """The content as base64."""


Attachment = Annotated[CodeAttachment | ImageAttachment | FileAttachment, Field(discriminator="type")]


IMAGE_CHARS = 6_400
"""An image counts as many characters as 1,600 tokens have: what vendors count for one of 1.2 megapixels."""

PDF_CHARS_PER_PAGE = 8_000
"""A page of a PDF counts as 2,000 tokens: vendors read its text and see its image."""

PDF_BYTES_PER_PAGE = 50_000

MAX_PDF_PAGES = 100
"""Vendors refuse longer ones."""


def estimated_chars(attachment: Attachment) -> int:
    """Estimate the characters of what the model reads of an attachment (CTX-6).

    An image counts `IMAGE_CHARS`, code and text what is shown of them, a PDF 2,000 tokens for every 50 KB, and any
    other file the line that names it.

    >>> estimated_chars(CodeAttachment(type="code", content="print(1)"))
    8
    >>> estimated_chars(FileAttachment(type="file", name="a.pdf", media_type="application/pdf", hash="0", bytes=60_000))
    16000
    """
    if isinstance(attachment, ImageAttachment):
        return IMAGE_CHARS
    if isinstance(attachment, CodeAttachment):
        return min(MAX_SHOWN_CHARS, weighted_chars(attachment.content) or attachment.bytes or 0)
    size = attachment.bytes or len(attachment.data) * 3 // 4
    if attachment.media_type in IMAGE_MEDIA_TYPES:
        return IMAGE_CHARS
    if attachment.media_type == PDF:
        return PDF_CHARS_PER_PAGE * min(MAX_PDF_PAGES, max(1, -(-size // PDF_BYTES_PER_PAGE)))
    return min(MAX_SHOWN_CHARS, size) if is_text(attachment.media_type) else len(named_in_text(attachment))


_TEXT_TYPES = frozenset(
    {
        "application/json",
        "application/javascript",
        "application/sql",
        "application/toml",
        "application/x-ndjson",
        "application/x-sh",
        "application/xml",
        "application/yaml",
        "application/x-yaml",
    }
)


def is_text(media_type: str) -> bool:
    """Return whether a file of this type is shown to the model as text.

    >>> is_text("text/csv"), is_text("application/ld+json"), is_text("application/zip")
    (True, True, False)
    """
    return media_type.startswith("text/") or media_type in _TEXT_TYPES or media_type.endswith(("+json", "+xml"))


def with_names(text: str, attachments: Sequence[Attachment], *, note: str = "") -> str:
    r"""Return `text`, and below it one line for each attachment; `note` follows each name.

    >>> with_names("Look.", [ImageAttachment(type="image", name="cat.png", media_type="image/png")])
    'Look.\n\n[Image: cat.png, image/png]'
    """
    lines = [f"{named_in_text(attachment)}{note}" for attachment in attachments]
    return "\n\n".join(filter(None, (text, "\n".join(lines))))


def named_in_text(attachment: Attachment) -> str:
    """Return the line that stands for an attachment in text.

    >>> named_in_text(ImageAttachment(type="image", name="cat.png", media_type="image/png", hash="0", bytes=12_300))
    '[Image: cat.png, image/png, 12 KB]'
    >>> named_in_text(ImageAttachment(type="image", url="https://example.com/cat.png"))
    '[Image: https://example.com/cat.png]'
    """
    details = [attachment.name or ""]
    if isinstance(attachment, CodeAttachment):
        details.append(attachment.language)
    else:
        details.append(attachment.media_type or "")
    if isinstance(attachment, ImageAttachment):
        details.append(attachment.url or "")
    if attachment.bytes:
        details.append(_size(attachment.bytes))
    return f"[{attachment.type.capitalize()}: {', '.join(filter(None, details)) or 'unnamed'}]"


def _size(count: int) -> str:
    if count < 1_000:
        return counted(count, "byte")
    return f"{count / 1_000_000:.1f} MB" if count >= 1_000_000 else f"{round(count / 1_000)} KB"
