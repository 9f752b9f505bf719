"""Texts and their sizes: encodable and not too long (CTX-14, SES-16), numbers with their nouns, tokens (CTX-6).

Tools cut their own output where that makes sense; these functions are the last guard, for tools that don't.

Sizes of messages are estimated locally: characters, and a quarter of them as tokens. Four characters of English or code
are about a token. Of scripts without spaces nearly every character is one, of some others every second. So a character
counts as many as `_WEIGHTS` says. Measured with a vendor's tokenizer: English, code, European languages, Arabic,
Chinese, Japanese, Korean, Thai and Burmese are within about 20 %; of Hindi, Lao and Khmer it counts less than there
are.
"""

import json
import re
from collections.abc import Iterable, Mapping

from pydantic import JsonValue
from pydantic_core import to_json, to_jsonable_python

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


# ---- sizes

CHARS_PER_TOKEN = 4
"""A rule of thumb: good enough to decide and to log, not to bill."""

_WEIGHTS = {
    # Lao, Khmer; ideographs and their punctuation
    re.compile(
        "[\u0e80-\u0eff\u1780-\u17ff\u3000-\u303f\u3100-\u312f\u31a0-\u31ef\u3200-\u9fff\uf900-\ufaff\uff00-\uffef"
        "\U00020000-\U0003ffff]+"
    ): 4,
    # kana
    re.compile("[\u3040-\u30ff\u31f0-\u31ff]+"): 3,
    # Thai, Burmese, Hangul
    re.compile("[\u0e00-\u0e7f\u1000-\u109f\u1100-\u11ff\u3130-\u318f\uac00-\ud7af]+"): 2,
}
"""As how many characters one of these counts; all others count once."""

_COMPACT_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=to_jsonable_python)


def get_field(message: object, name: str) -> object:
    """Return the field `name` of `message`, a mapping or an object; `None` if it has none.

    >>> get_field({"role": "user"}, "role"), get_field({"role": "user"}, "content")
    ('user', None)
    """
    return message.get(name) if isinstance(message, Mapping) else getattr(message, name, None)


def weighted_chars(text: str) -> int:
    """Count the characters of a text, those of some scripts several times, such that four are about a token.

    >>> weighted_chars("héllo"), weighted_chars("你好"), weighted_chars("สวัสดี")
    (5, 8, 12)
    """
    if text.isascii():
        return len(text)
    more = ((weight - 1) * sum(map(len, script.findall(text))) for script, weight in _WEIGHTS.items())
    return len(text) + sum(more)


def count_chars(message: object) -> int:
    """Count the weighted characters of `content` and of `tool_calls`; role and other fields count nothing (CTX-6).

    A string counts its own length, null counts 0, anything else counts as compact JSON with non-ASCII unescaped. An
    empty list of calls counts 0, like an absent one, so that a message has the same size in every form.

    >>> count_chars({"role": "user", "content": "héllo"})
    5
    >>> count_chars({"role": "assistant", "content": None, "tool_calls": [{"id": "é"}]})
    12
    """
    calls = get_field(message, "tool_calls")
    return _length(get_field(message, "content")) + (_length(calls) if calls else 0)


def estimate_tokens(messages: Iterable[object]) -> int:
    """Estimate the tokens of `messages`: the sum of their weighted characters / 4, rounded up (CTX-6).

    >>> estimate_tokens([{"role": "user", "content": "abc"}, {"role": "assistant", "content": "de"}])
    2
    >>> estimate_tokens([{"role": "user", "content": "東京の天気"}])
    5
    >>> estimate_tokens([])
    0
    """
    return tokens_of(sum(map(count_chars, messages)))


def tokens_of(chars: int) -> int:
    """Estimate the tokens of `chars` weighted characters, rounded up.

    >>> tokens_of(0), tokens_of(4), tokens_of(5)
    (0, 1, 2)
    """
    return -(-chars // CHARS_PER_TOKEN)


def _length(value: object) -> int:
    if value is None:
        return 0
    return weighted_chars(value if isinstance(value, str) else _COMPACT_JSON.encode(value))
