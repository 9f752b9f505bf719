"""Attachments of prompts, tool results and handed-off messages: code, images and files (CTX-16).

Contents are in the attachment or, over 8 KB, in the blob store under their hash; Temporal's history never has more. An
attachment has exactly one of: its content (`content` or `data`), the `hash` of stored content, a `url`.
"""

import binascii
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Annotated, Literal, get_args
from unicodedata import normalize
from urllib.parse import urlsplit

from pydantic import Field, TypeAdapter

from turnkeeper.models.errors import RejectedError
from turnkeeper.models.limits import LARGE_TEXT_BYTES
from turnkeeper.models.texts import count_unencodable, counted, weighted_chars
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
    return min(MAX_SHOWN_CHARS, size) if is_text(attachment.media_type) else len(placeholder_text(attachment))


_TEXT_TYPES = re.compile(
    r"text/.*|.*\+(?:json|xml)|application/(?:json|javascript|sql|toml|x-ndjson|x-sh|xml|yaml|x-yaml)"
)


def is_text(media_type: str) -> bool:
    """Return whether a file of this type is shown to the model as text.

    >>> is_text("text/csv"), is_text("application/ld+json"), is_text("application/zip")
    (True, True, False)
    """
    return _TEXT_TYPES.fullmatch(media_type) is not None


def with_names(text: str, attachments: Sequence[Attachment], *, note: str = "") -> str:
    r"""Return `text`, and below it one line for each attachment; `note` follows each name.

    >>> with_names("Look.", [ImageAttachment(type="image", name="cat.png", media_type="image/png")])
    'Look.\n\n[Image: cat.png, image/png]'
    """
    lines = [f"{placeholder_text(attachment)}{note}" for attachment in attachments]
    return "\n\n".join(filter(None, (text, "\n".join(lines))))


def placeholder_text(attachment: Attachment) -> str:
    """Return the line that stands for an attachment in text.

    >>> placeholder_text(ImageAttachment(type="image", name="cat.png", media_type="image/png", hash="0", bytes=12_300))
    '[Image: cat.png, image/png, 12 KB]'
    >>> placeholder_text(ImageAttachment(type="image", url="https://example.com/cat.png"))
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


_LIST: TypeAdapter[list[Attachment]] = TypeAdapter(list[Attachment])

MAX_REQUEST_BYTES = 20_000_000
"""Maximum of all stored contents in one request: vendors accept bodies of 32 MB, and contents travel as base64."""

NO_ROOM_NOTE = " (left out: the attachments of the conversation are too large together)"
"""Follows the name of an attachment that a request has no room for."""


def decode_content(attachment: Attachment) -> bytes | None:
    r"""Return the inline content; `None` if there is none. Raises `ValueError` for what is not base64.

    >>> decode_content(CodeAttachment(type="code", content="é")), decode_content(CodeAttachment(type="code", hash="0"))
    (b'\xc3\xa9', None)
    """
    if isinstance(attachment, CodeAttachment):
        return attachment.content.encode() if attachment.content else None
    try:
        return b64decode(attachment.data, validate=True) if attachment.data else None
    except binascii.Error as error:
        raise ValueError("must be base64") from error


def with_content(attachment: Attachment, content: bytes) -> Attachment:
    """Return the attachment with its content inline; its hash stays."""
    if isinstance(attachment, CodeAttachment):
        return attachment.model_copy(update={"content": content.decode(errors="replace")})
    return attachment.model_copy(update={"data": b64encode(content).decode()})


def as_reference(attachment: Attachment, content: bytes) -> Attachment:
    """Return the attachment with the hash and the size of `content` in the place of its content.

    >>> as_reference(CodeAttachment(type="code", content="x"), b"x").bytes
    1
    """
    field = "content" if isinstance(attachment, CodeAttachment) else "data"
    return attachment.model_copy(update={field: "", "hash": sha256(content).hexdigest(), "bytes": len(content)})


def json_bytes(attachments: Sequence[Attachment]) -> int:
    """Return the JSON bytes of a message's attachments; 0 without any.

    >>> json_bytes([]), json_bytes([CodeAttachment(type="code", content="x")])
    (0, 31)
    """
    return len(_LIST.dump_json(list(attachments))) if attachments else 0


def refer_attachments(
    attachments: Sequence[Attachment], *, inline_bytes: int = LARGE_TEXT_BYTES
) -> tuple[list[Attachment], dict[str, bytes]]:
    """Return the attachments in at most `inline_bytes` of JSON, if possible, and the contents to store, by hash.

    The largest contents go by reference first, so the same attachments always have the same references.
    """
    referred, stored = list(attachments), dict[str, bytes]()
    contents = [decode_content(attachment) for attachment in attachments]
    largest_first = sorted(range(len(contents)), key=lambda index: -len(contents[index] or b""))
    for index in largest_first:
        content = contents[index]
        if content is None or json_bytes(referred) <= inline_bytes:
            break
        referred[index] = reference = as_reference(referred[index], content)
        stored[reference.hash or ""] = content
    return referred, stored


def count_within(attachments: Sequence[Attachment], max_bytes: int) -> int:
    """Return how many of the first attachments have at most `max_bytes` of JSON together; at least one counts.

    >>> count_within([CodeAttachment(type="code", content="x")] * 3, 70)
    2
    """
    counts = range(len(attachments), 1, -1)
    return next((count for count in counts if json_bytes(attachments[:count]) <= max_bytes), min(1, len(attachments)))


def hashes_of(attachments: Iterable[Attachment]) -> set[str]:
    """Return the hashes of the contents that only the store has."""
    return {one.hash for one in attachments if one.hash and not has_inline_content(one)}


def has_inline_content(attachment: Attachment) -> bool:
    return bool(attachment.content if isinstance(attachment, CodeAttachment) else attachment.data)


def split_by_room(
    groups: Sequence[Sequence[Attachment]], *, max_bytes: int
) -> list[tuple[list[Attachment], list[Attachment]]]:
    """Return which attachments of each message a request has room for, and which not: the newest come first.

    >>> old, new = (CodeAttachment(type="code", name=name, hash="0", bytes=6_000) for name in ("old", "new"))
    >>> [[len(part) for part in parts] for parts in split_by_room([[old], [new]], max_bytes=10_000)]
    [[0, 1], [1, 0]]
    """
    split = list[tuple[list[Attachment], list[Attachment]]]()
    for group in reversed(groups):
        fitting, left_out = list[Attachment](), list[Attachment]()
        for one in reversed(group):
            max_bytes -= one.bytes or 0
            (fitting if max_bytes >= 0 else left_out).insert(0, one)
        split.insert(0, (fitting, left_out))
    return split


def resolve_attachments(
    text: str, attachments: Sequence[Attachment], contents: Mapping[str, bytes]
) -> tuple[str, list[Attachment]]:
    r"""Return a message's text and attachments with their contents; the text names those that it can't have.

    These are what the store has lost, and code whose content is not text.

    >>> resolve_attachments("Look.", [CodeAttachment(type="code", name="a.py", hash="0", bytes=9000)], {})
    ('Look.\n\n[Code: a.py, 9 KB] (no longer stored)', [])
    """
    resolved, lost, no_text = list[Attachment](), list[Attachment](), list[Attachment]()
    for one in attachments:
        if one.hash is None or has_inline_content(one) or (isinstance(one, ImageAttachment) and one.url):
            resolved.append(one)
        elif one.hash not in contents:
            lost.append(one)
        elif isinstance(one, CodeAttachment) and not _is_text(contents[one.hash]):
            no_text.append(one)
        else:
            resolved.append(with_content(one, contents[one.hash]))
    named = with_names(text, lost, note=" (no longer stored)")
    return with_names(named, no_text, note=" (not shown: it is not text)"), resolved


def _is_text(content: bytes) -> bool:
    try:
        return "\0" not in content.decode()
    except UnicodeDecodeError:
        return False


_SIGNATURES: dict[str, re.Pattern[bytes]] = {
    "image/png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "image/jpeg": re.compile(rb"\xff\xd8\xff"),
    "image/gif": re.compile(rb"GIF8[79]a"),
    "image/webp": re.compile(rb"RIFF....WEBP", re.DOTALL),
    "application/pdf": re.compile(rb".{0,1024}?%PDF-", re.DOTALL),
}
"""How contents begin, within `SIGNATURE_BYTES`.

A vendor refuses a request with an image of another type, and so the whole conversation.
"""


SIGNATURE_BYTES = 1_029
"""Leading bytes that determine a file's type: a PDF may begin after 1,024."""


def check_attachments(attachments: Sequence[Attachment], *, field: str = "attachments") -> None:
    """Raise `RejectedError` for the first wrong attachment; it names the field and what is allowed."""
    if len(attachments) > MAX_ATTACHMENTS:
        raise RejectedError("invalid", f"{field}: may have at most {MAX_ATTACHMENTS} items.", field=field)
    total = 0
    for index, attachment in enumerate(attachments):
        if problem := first_problem(attachment):
            path = f"{field}[{index}].{problem[0]}"
            raise RejectedError("invalid", f"{path}: {problem[1]}.", field=path)
        total += len(decode_content(attachment) or b"") or attachment.bytes or 0
    if total > MAX_CONTENT_BYTES:
        allowed = f"{MAX_CONTENT_BYTES:,} are allowed"
        raise RejectedError("invalid", f"{field}: hold {total:,} bytes together; {allowed}.", field=field)


def first_problem(attachment: Attachment) -> tuple[str, str] | None:
    """Return the first wrong field of an attachment, and what is allowed; `None` if nothing is wrong.

    >>> first_problem(CodeAttachment(type="code", content="x", language="a b"))
    ('language', 'letters, digits and + # . _ - are allowed, 40 at most')
    """
    return next(_problems(attachment), None)


def check_content(content: bytes, media_type: str | None) -> str | None:
    """Return why the bytes are not a valid file of this type; `None` if they are.

    >>> check_content(b"GIF89a", "image/png"), check_content(b"GIF89a", "image/gif"), check_content(b"", "text/plain")
    ('is not a PNG image', None, 'is empty')
    """
    if not content:
        return "is empty"
    if len(content) > MAX_ATTACHMENT_BYTES:
        return f"has {len(content):,} bytes; {MAX_ATTACHMENT_BYTES:,} are allowed"
    signature = _SIGNATURES.get(media_type or "")
    if signature is None or signature.match(content):
        return None
    kind, _, name = (media_type or "").partition("/")
    return f"is not a {name.upper()} image" if kind == "image" else f"is not a {name.upper()}"


def with_true_type(attachment: Attachment, content: bytes) -> Attachment:
    """Return the attachment with the type that its content has; what is no image and no PDF becomes any other file.

    >>> image = ImageAttachment(type="image", media_type="image/png", hash="0", bytes=6)
    >>> with_true_type(image, b"GIF89a").media_type, with_true_type(image, b"A text").media_type
    ('image/gif', 'application/octet-stream')
    """
    if isinstance(attachment, CodeAttachment) or check_content(content, attachment.media_type) is None:
        return attachment
    if image_type := detect_image_type(content):
        return attachment.model_copy(update={"media_type": image_type})
    return FileAttachment(
        type="file",
        name=attachment.name or "unnamed",
        media_type="application/octet-stream",
        data=attachment.data,
        hash=attachment.hash,
        bytes=attachment.bytes,
    )


def detect_image_type(content: bytes) -> str | None:
    """Return the media type of an image; `None` for any other content.

    >>> detect_image_type(b"GIF89a..."), detect_image_type(b"<svg/>")
    ('image/gif', None)
    """
    images = ((name, start) for name, start in _SIGNATURES.items() if name.startswith("image/"))
    return next((name for name, start in images if start.match(content)), None)


def _problems(attachment: Attachment) -> Iterator[tuple[str, str]]:
    """Yield the wrong fields of an attachment, each with what is allowed."""
    yield from _name_problems(attachment)
    field = "content" if isinstance(attachment, CodeAttachment) else "data"
    inline = attachment.content if isinstance(attachment, CodeAttachment) else attachment.data
    url = attachment.url if isinstance(attachment, ImageAttachment) else None
    if sum((bool(inline), attachment.hash is not None, url is not None)) != 1:
        others = "hash or url" if isinstance(attachment, ImageAttachment) else "hash"
        yield field, f"give exactly one of {field}, {others}"
    if attachment.hash is not None and not re.fullmatch(HASH_PATTERN, attachment.hash):
        yield "hash", "must be a SHA-256 in hex"
    if attachment.bytes is not None and not 0 < attachment.bytes <= MAX_ATTACHMENT_BYTES:
        yield "bytes", f"must be 1 to {MAX_ATTACHMENT_BYTES:,}"
    if url is not None and (len(url) > MAX_URL_CHARS or not re.fullmatch(URL_PATTERN, url)):
        yield "url", f"must be an http or https address of at most {MAX_URL_CHARS:,} characters"
    elif url is not None and not _is_public(url):
        yield "url", "must be a public address: the model's provider fetches it"
    if isinstance(attachment, ImageAttachment) and url is None and attachment.media_type is None:
        yield "media_type", "is required"
    if inline:
        yield from _content_problems(attachment, field, inline)


def _is_public(url: str) -> bool:
    """Return whether an address may be public: its host is no name or number of a private network.

    Nothing is looked up: a public name of a private number is not noticed.

    Libraries read a host that ends in a number as an IPv4 address, in several notations: only the usual one is allowed.
    """
    try:
        parts = urlsplit(url)
        if parts.port == 0:  # raises for a number that no port has
            return False
        host = normalize("NFKC", parts.hostname or "").replace("。", ".").rstrip(".")
        if ":" in host or host.rpartition(".")[2][:1].isdecimal():
            return _is_global(ip_address(host))
    except ValueError:
        return False
    # Some decode the first of these in a host, and read the second as a slash.
    is_plain = "%" not in parts.netloc and "\\" not in parts.netloc
    return is_plain and "." in host and host.rpartition(".")[2] not in _PRIVATE_DOMAINS


_WITH_IPV4 = tuple(map(IPv6Network, ("::/96", "::ffff:0:0/96", "64:ff9b::/96")))
"""IPv6 addresses that end with an IPv4 address, to which gateways of networks translate them."""


def _is_global(address: IPv4Address | IPv6Address) -> bool:
    """Return whether an address is public, and so is the IPv4 address in it.

    >>> [_is_global(IPv6Address(text)) for text in ("2606:4700::1111", "64:ff9b::a00:1", "2002:a00:1::", "::1")]
    [True, False, False, False]
    """
    if isinstance(address, IPv4Address):
        return address.is_global
    inner = address.sixtofour
    if any(address in network for network in _WITH_IPV4):
        inner = IPv4Address(int(address) & 0xFFFF_FFFF)
    return inner.is_global if inner else address.is_global


_PRIVATE_DOMAINS = frozenset({"localhost", "local", "internal", "localdomain"})


def _name_problems(attachment: Attachment) -> Iterator[tuple[str, str]]:
    name = attachment.name
    if name is not None and not (len(name) <= MAX_NAME_CHARS and re.fullmatch(NAME_PATTERN, name) and _storable(name)):
        yield "name", f"must have 1 to {MAX_NAME_CHARS} characters, none of them a control character"
    if isinstance(attachment, CodeAttachment) and not re.fullmatch(LANGUAGE_PATTERN, attachment.language):
        yield "language", "letters, digits and + # . _ - are allowed, 40 at most"
    if isinstance(attachment, FileAttachment) and not re.fullmatch(MEDIA_TYPE_PATTERN, attachment.media_type):
        yield "media_type", "must be a media type in lower case, as text/csv"


def _content_problems(attachment: Attachment, field: str, inline: str) -> Iterator[tuple[str, str]]:
    if not _storable(inline):
        yield field, "may not contain NUL or a lone surrogate"
        return
    try:
        content = decode_content(attachment) or b""
    except ValueError as error:
        yield field, str(error)
        return
    media_type = None if isinstance(attachment, CodeAttachment) else attachment.media_type
    if problem := check_content(content, media_type):
        yield field, problem


def _storable(text: str) -> bool:
    return not count_unencodable(text)
