"""Violations of a vendor's rules, and rules that several vendors have in common."""

import json
import re
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Body = dict[str, Any]

SIGNATURES = {
    "image/png": b"\x89PNG\r\n\x1a\n",
    "image/jpeg": b"\xff\xd8\xff",
    "image/gif": b"GIF8",
    "image/webp": b"RIFF",
    "application/pdf": b"%PDF-",
}
"""How the contents begin that vendors read."""

MAX_IMAGE_BYTES = 5 * 1024 * 1024


@dataclass(frozen=True)
class Violation:
    """A rule that a request breaks, and how the vendor says so."""

    rule: str
    words: str
    parameter: str | None = None
    code: str | None = None
    status: int = 400


@dataclass
class Issued:
    """Ids and signatures that a vendor has issued, so that it can check them."""

    signatures: dict[str, str] = field(default_factory=dict)
    """The fingerprint that a signature, an encrypted content or an id belongs to."""
    count: int = 0

    def next_number(self) -> int:
        self.count += 1
        return self.count


Validator = Callable[[Body, Issued], Iterator[Violation]]
"""Yields what is wrong with a request, the first of which the vendor refuses."""


def fingerprint(*values: object) -> str:
    return json.dumps(values, sort_keys=True)


def has_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def is_json_object(text: object) -> bool:
    if not isinstance(text, str):
        return False
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def problem_of_data(media_type: str, data: str) -> str:
    """Return the error of base64 data; empty if it is valid."""
    try:
        content = b64decode(data, validate=True)
    except (NotBase64, ValueError):
        return "invalid base64 data"
    if media_type not in SIGNATURES:
        return f"unsupported media type {media_type}"
    if not content.startswith(SIGNATURES[media_type]):
        return f"the content does not match the media type {media_type}"
    if len(content) > MAX_IMAGE_BYTES:
        return f"image exceeds 5 MB maximum: {len(content)} bytes > {MAX_IMAGE_BYTES} bytes"
    return ""


def problem_of_url(url: str) -> str:
    """Return the error of an image or file URL; empty if it is valid."""
    match = re.fullmatch(r"data:([a-z]+/[a-z0-9.+-]+);base64,(.+)", url, re.DOTALL)
    if match:
        return problem_of_data(match[1], match[2])
    return "" if re.match(r"https?://[^\s/]+", url) else "expected a base64-encoded data URL, or an http URL"


# ---- JSON Schema


def schemas_within(schema: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Yield a schema and all that are within it, each with its path; values of `enum` and such are none."""
    if not isinstance(schema, dict):
        return
    yield path, schema
    for key, inner in schema.items():
        if key in ("properties", "patternProperties", "$defs", "definitions") and isinstance(inner, dict):
            for name, one in inner.items():
                yield from schemas_within(one, (*path, key, name))
        elif key in ("anyOf", "oneOf", "allOf", "prefixItems") and isinstance(inner, list):
            for index, one in enumerate(inner):
                yield from schemas_within(one, (*path, key, str(index)))
        elif key in ("items", "additionalProperties", "not"):
            yield from schemas_within(inner, (*path, key))


def arrays_without_items(schema: object) -> Iterator[tuple[str, ...]]:
    for path, one in schemas_within(schema):
        kind = one.get("type")
        if (kind == "array" or (isinstance(kind, list) and "array" in kind)) and not isinstance(one.get("items"), dict):
            yield path


def unresolved_references(schema: Mapping[str, Any]) -> Iterator[str]:
    for _, one in schemas_within(schema):
        reference = one.get("$ref")
        if isinstance(reference, str) and not _resolves(schema, reference):
            yield reference


def _resolves(schema: Mapping[str, Any], reference: str) -> bool:
    value: Any = schema
    if reference != "#" and not reference.startswith("#/"):
        return False
    for name in reference.split("/")[1:]:
        if not isinstance(value, dict) or name not in value:
            return False
        value = value[name]
    return True


def names_at_the_top(schema: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    return [name for name in names if name in schema]
