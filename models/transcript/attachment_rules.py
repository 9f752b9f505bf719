"""What an attachment may be (CTX-16). The gateway and the session check the same."""

import re
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from unicodedata import normalize
from urllib.parse import urlsplit

from turnkeeper.models.bounds import count_unencodable
from turnkeeper.models.errors import RejectedError
from turnkeeper.models.transcript.attachment_contents import content_of
from turnkeeper.models.transcript.attachments import (
    HASH_PATTERN,
    LANGUAGE_PATTERN,
    MAX_ATTACHMENT_BYTES,
    MAX_ATTACHMENTS,
    MAX_CONTENT_BYTES,
    MAX_NAME_CHARS,
    MAX_URL_CHARS,
    MEDIA_TYPE_PATTERN,
    NAME_PATTERN,
    URL_PATTERN,
    Attachment,
    CodeAttachment,
    FileAttachment,
    ImageAttachment,
)

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
"""Bytes of a content that tell its type: a PDF may begin after 1,024."""


def check_attachments(attachments: Sequence[Attachment], *, field: str = "attachments") -> None:
    """Raise `RejectedError` for the first wrong attachment; it names the field and what is allowed."""
    if len(attachments) > MAX_ATTACHMENTS:
        raise RejectedError("invalid", f"{field}: may have at most {MAX_ATTACHMENTS} items.", field=field)
    total = 0
    for index, attachment in enumerate(attachments):
        if problem := first_problem(attachment):
            path = f"{field}[{index}].{problem[0]}"
            raise RejectedError("invalid", f"{path}: {problem[1]}.", field=path)
        total += len(content_of(attachment) or b"") or attachment.bytes or 0
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
    """Return what is wrong with a content of this type; `None` if nothing is.

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
    if image_type := image_type_of(content):
        return attachment.model_copy(update={"media_type": image_type})
    return FileAttachment(
        type="file",
        name=attachment.name or "unnamed",
        media_type="application/octet-stream",
        data=attachment.data,
        hash=attachment.hash,
        bytes=attachment.bytes,
    )


def image_type_of(content: bytes) -> str | None:
    """Return the media type of an image; `None` for any other content.

    >>> image_type_of(b"GIF89a..."), image_type_of(b"<svg/>")
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
        content = content_of(attachment) or b""
    except ValueError as error:
        yield field, str(error)
        return
    media_type = None if isinstance(attachment, CodeAttachment) else attachment.media_type
    if problem := check_content(content, media_type):
        yield field, problem


def _storable(text: str) -> bool:
    return not count_unencodable(text)
