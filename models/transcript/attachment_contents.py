"""The contents of attachments as bytes: inline, or in the blob store under their hash (CTX-16, SES-15)."""

import binascii
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256

from pydantic import TypeAdapter

from turnkeeper.models.limits import LARGE_TEXT_BYTES
from turnkeeper.models.transcript.attachments import Attachment, CodeAttachment, ImageAttachment, with_names

_LIST: TypeAdapter[list[Attachment]] = TypeAdapter(list[Attachment])

LOST_NOTE = " (no longer stored)"
"""Follows the name of an attachment whose content the store has lost."""

NO_TEXT_NOTE = " (not shown: it is not text)"
"""Follows the name of code whose content is none."""

MAX_REQUEST_BYTES = 20_000_000
"""Maximum of all stored contents in one request: vendors accept bodies of 32 MB, and contents travel as base64."""

NO_ROOM_NOTE = " (left out: the attachments of the conversation are too large together)"
"""Follows the name of an attachment that a request has no room for."""


def content_of(attachment: Attachment) -> bytes | None:
    r"""Return the inline content; `None` if there is none. Raises `ValueError` for what is not base64.

    >>> content_of(CodeAttachment(type="code", content="é")), content_of(CodeAttachment(type="code", hash="0"))
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
    contents = [content_of(attachment) for attachment in attachments]
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
    return with_names(with_names(text, lost, note=LOST_NOTE), no_text, note=NO_TEXT_NOTE), resolved


def _is_text(content: bytes) -> bool:
    try:
        return "\0" not in content.decode()
    except UnicodeDecodeError:
        return False
