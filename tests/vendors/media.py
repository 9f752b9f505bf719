"""Images and documents that vendors accept: AGT-4, CTX-16. By the vendors' documentation."""

import re
from base64 import b64decode, b64encode

PNG = b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
"""A whole image of one pixel."""

PDF = b"%PDF-1.4\n1 0 obj<</Type/Catalog>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF"

MAX_IMAGE_BYTES = 5 * 1024 * 1024
"""Anthropic's limit, the lowest."""

_SIGNATURES = {
    "image/png": b"\x89PNG\r\n\x1a\n",
    "image/jpeg": b"\xff\xd8\xff",
    "image/gif": b"GIF8",
    "image/webp": b"RIFF",
    "application/pdf": b"%PDF-",
}


def base64_of(content: bytes) -> str:
    return b64encode(content).decode()


def check_data(media_type: str, data: str, *, kind: str) -> None:
    """Raise unless `data` is the base64 of an `image`, or of a document (`application`)."""
    content = b64decode(data, validate=True)
    assert media_type.startswith(f"{kind}/"), f"{media_type} is no {kind}"
    assert content.startswith(_SIGNATURES[media_type]), f"The {kind} does not match the provided media type"
    assert len(content) <= MAX_IMAGE_BYTES, f"{kind} exceeds 5 MB maximum"


def check_url(url: str, *, kind: str) -> None:
    """Raise unless `url` is an address that a vendor fetches, or a data URL of a whole content."""
    if not url.startswith("data:"):
        assert kind == "image"
        assert re.match(r"https?://[^\s/]+", url), f"{url!r} is no address"
        return
    match = re.fullmatch(r"data:([a-z]+/[a-z0-9.+-]+);base64,(.+)", url, re.DOTALL)
    assert match, "Expected a base64-encoded data URL with a MIME type"
    check_data(match[1], match[2], kind=kind)
