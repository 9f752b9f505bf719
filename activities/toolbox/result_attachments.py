"""Images and files in the results of tools (AGT-4, CTX-16).

A foreign server's content is checked as a person's is: an image that is none would make vendors refuse every later
request. What can't be attached is named in the result's text, with the reason.
"""

import re
from base64 import b64decode
from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from turnkeeper.models.transcript.attachments import (
    IMAGE_MEDIA_TYPES,
    MAX_ATTACHMENTS,
    MAX_CONTENT_BYTES,
    MEDIA_TYPE_PATTERN,
    Attachment,
    FileAttachment,
    ImageAttachment,
    check_content,
    detect_image_type,
)

MAX_FILE_NAME_CHARS = 100

UNKNOWN_TYPE = "application/octet-stream"


def contents_of(blocks: Iterable[ContentBlock]) -> tuple[list[str], list[Attachment]]:
    """Return the texts of a result, and its images and files within the limits of one message.

    >>> contents_of([TextContent(text="Done."), ImageContent(data="R0lGODlh", mime_type="image/gif")])
    (['Done.'], [ImageAttachment(hash=None, bytes=None, type='image', name=None, media_type='image/gif', \
data='R0lGODlh', url=None)])
    >>> contents_of([ImageContent(data="AAAA", mime_type="image/gif")])
    (['[image, image/gif, 3 bytes: is not a GIF image]'], [])
    """
    texts: list[str] = []
    attachments: list[Attachment] = []
    room = MAX_CONTENT_BYTES
    for block in blocks:
        content = _Content.of(block)
        if content is None:
            texts.append(_text_of(block))
            continue
        problem = content.problem or _no_room(content.size, attachments, room)
        if problem:
            texts.append(f"[{content.kind}, {content.described_type}, {content.size:,} bytes: {problem}]")
        else:
            attachments.append(content.attachment)
            room -= content.size
    return texts, attachments


def _no_room(size: int, attachments: list[Attachment], room: int) -> str | None:
    if len(attachments) >= MAX_ATTACHMENTS:
        return f"left out, a result has at most {MAX_ATTACHMENTS}"
    return "left out, the result is too large" if size > room else None


class _Content:
    """A block's content that is no text."""

    def __init__(self, kind: str, data: str, media_type: str | None, name: str | None) -> None:
        self.kind = kind
        self.described_type = media_type or "of unknown type"
        self._data = data
        self._name = "".join(filter(str.isprintable, name or ""))[:MAX_FILE_NAME_CHARS] or None
        self.problem: str | None = None
        try:
            content = b64decode(data, validate=True)
        except ValueError:
            content, self.problem = b"", "is not base64"
        self.size = len(content) or len(data) * 3 // 4
        self._media_type = detect_image_type(content) or _media_type(media_type)
        self.problem = self.problem or check_content(content, self._media_type)

    @classmethod
    def of(cls, block: ContentBlock) -> "_Content | None":
        match block:
            case ImageContent() | AudioContent():
                return cls(block.type, block.data, block.mime_type, None)
            case EmbeddedResource(resource=BlobResourceContents() as resource):
                return cls("resource", resource.blob, resource.mime_type, _name_in(resource.uri))
            case _:
                return None

    @property
    def attachment(self) -> Attachment:
        if self._media_type in IMAGE_MEDIA_TYPES:
            fields = {"type": "image", "name": self._name, "media_type": self._media_type, "data": self._data}
            return ImageAttachment.model_validate(fields)
        name = self._name or f"{self.kind}.{_NOT_IN_NAMES.sub('', self._media_type.partition('/')[2])}"
        return FileAttachment(type="file", name=name, media_type=self._media_type, data=self._data)


_NOT_IN_NAMES = re.compile(r"[^a-z0-9]")


def _media_type(media_type: str | None) -> str:
    """Return a media type without parameters; `UNKNOWN_TYPE` for what is none.

    >>> _media_type("image/JPG"), _media_type("text/csv; charset=utf-8"), _media_type("?")
    ('image/jpeg', 'text/csv', 'application/octet-stream')
    """
    kind = (media_type or "").partition(";")[0].strip().lower()
    if kind == "image/jpg":
        return "image/jpeg"
    return kind if re.fullmatch(MEDIA_TYPE_PATTERN, kind) else UNKNOWN_TYPE


def _name_in(uri: str) -> str | None:
    """Return the name of the file at an address.

    >>> _name_in("file:///a/my%20cat.png"), _name_in("x://y")
    ('my cat.png', None)
    """
    try:
        return unquote(urlsplit(uri).path).rstrip("/").rpartition("/")[2] or None
    except ValueError:
        return None


def _text_of(block: ContentBlock) -> str:
    """Return the text of a block; of a link, its name, address and description."""
    match block:
        case TextContent():
            return block.text
        case ResourceLink():
            description = f" ({block.description})" if block.description else ""
            return f"[link to {block.title or block.name}: {block.uri}{description}]"
        case EmbeddedResource(resource=TextResourceContents() as resource):
            return f"[{resource.uri}]\n{resource.text}"
        case _:
            return f"[{block.type}: not shown]"
