"""Texts that enter the history: encodable, and not too long (CTX-14, SES-16); and numbers with their nouns.

Tools cut their own output where that makes sense; these functions are the last guard, for tools that don't.
"""

import re
from collections.abc import Iterable

from pydantic import JsonValue
from pydantic_core import to_json

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_REPLACEMENT = "\ufffd"


def encodable_text(text: str) -> str:
    r"""Return `text` with NUL and lone surrogates replaced, which UTF-8 or some databases can't store.

    >>> encodable_text("a\x00b\ud800c") == "a\ufffdb\ufffdc"
    True
    """
    return _UNSTORABLE.sub(_REPLACEMENT, text)


def count_unencodable(text: str) -> int:
    r"""Count the characters of `text` that `encodable_text` would replace.

    >>> count_unencodable("a\x00b\ud800c")
    2
    """
    return len(_UNSTORABLE.findall(text))


def encodable(value: JsonValue) -> JsonValue:
    r"""Return `value` with every text in it encodable, keys too.

    >>> encodable({"a\x00": ["\udfff", 1, None]}) == {"a\ufffd": ["\ufffd", 1, None]}
    True
    """
    if isinstance(value, str):
        return encodable_text(value)
    if isinstance(value, list):
        return [encodable(item) for item in value]
    if isinstance(value, dict):
        return {encodable_text(key): encodable(item) for key, item in value.items()}
    return value


def is_nested_over(value: JsonValue, levels: int) -> bool:
    """Return whether lists and objects are nested in `value` more than `levels` deep.

    >>> is_nested_over({"a": [1]}, 2), is_nested_over({"a": [[1]]}, 2)
    (False, True)
    """
    holders = _holders([value])
    for _ in range(levels):
        holders = [
            inner for outer in holders for inner in _holders(outer.values() if isinstance(outer, dict) else outer)
        ]
    return bool(holders)


def _holders(values: Iterable[JsonValue]) -> list[dict[str, JsonValue] | list[JsonValue]]:
    return [value for value in values if isinstance(value, dict | list)]


def head_within(text: str, max_bytes: int) -> str:
    """Return as much of the beginning of `text` as fits into `max_bytes` of UTF-8; no character is split.

    >>> head_within("naïve", 3), head_within("naïve", 4)
    ('na', 'naï')
    """
    # A character has at least one byte, so at most `max_bytes` characters need encoding.
    return text[: max(0, max_bytes)].encode()[: max(0, max_bytes)].decode(errors="ignore")


def tail_within(text: str, max_bytes: int) -> str:
    """Return as much of the end of `text` as fits into `max_bytes` of UTF-8; no character is split.

    >>> tail_within("naïve", 3), tail_within("naïve", 4), tail_within("naïve", 0)
    ('ve', 'ïve', '')
    """
    return text[-max_bytes:].encode()[-max_bytes:].decode(errors="ignore") if max_bytes > 0 else ""


def bound_text(text: str, max_chars: int, max_bytes: int) -> str:
    r"""Return `text` encodable and within both bounds: its head and tail, and a mark that counts what is left out.

    `max_bytes` counts UTF-8. The mark counts towards the bounds; if it does not fit, only the head stays. A text
    within the bounds is returned unchanged.

    >>> bound_text("short", 100, 100)
    'short'
    >>> bound_text("a" * 60 + "z" * 60, 80, 1_000)
    'aaaaaaaaaaaaaaaaaaaaaaaaaa\n[... 82 of 120 characters left out ...]\nzzzzzzzzzzzz'
    """
    text = encodable_text(text)
    if len(text) <= max_chars and _fits(text, max_bytes):
        return text
    # The mark is longest when it counts the whole text. It is ASCII: as many bytes as characters.
    mark_size = len(_mark(len(text), len(text)))
    chars, octets = max_chars - mark_size, max_bytes - mark_size
    if min(chars, octets) <= 0:
        return head_within(text[: max(0, max_chars)], max_bytes)
    tail = tail_within(text[max(0, len(text) - chars // 3) :], octets // 3)
    head = head_within(text[: chars - len(tail)], octets - len(tail.encode()))
    return head + _mark(len(text) - len(head) - len(tail), len(text)) + tail


def bound_json(text: str, max_chars: int, max_bytes: int) -> str:
    r"""Return `text` within both bounds, `max_bytes` counted as JSON, as histories store it (SES-16).

    >>> len(to_json(bound_json('"' * 1000, 1_000, 400))), len(to_json(bound_json("" * 1000, 1_000, 400))) <= 400
    (378, True)
    """
    room = max_bytes
    bounded = bound_text(text, max_chars, room)
    while room and (size := len(to_json(bounded))) > max_bytes:  # few rounds: the share of escapes hardly changes
        room = min(room - 1, room * max_bytes // size)
        bounded = bound_text(text, max_chars, room)
    return bounded


def _fits(text: str, max_bytes: int) -> bool:
    # A character has at most four bytes, so most texts need no encoding to be measured.
    return len(text) * 4 <= max_bytes or len(text.encode()) <= max_bytes


def _mark(left_out: int, total: int) -> str:
    return f"\n[... {left_out:,} of {total:,} characters left out ...]\n"


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, in the plural if needed.

    >>> counted(1, "prompt"), counted(1_200, "character"), counted(0, "entry")
    ('1 prompt', '1,200 characters', '0 entries')
    """
    return f"{count:,} {noun if count == 1 else plural(noun)}"


def plural(noun: str) -> str:
    return f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
