r"""What of a vendor's own words is read and shown: no secret, and nothing the request said (AGT-9).

Theory of operation. An error is written into the history and into logs, and the conversation must not get there by way
of it. But vendors repeat requests: validators print the values they refuse, proxies whole bodies, up to a hundred
megabytes. What helps is short and stands before that: `top_p: must be ≤ 1`. So there are two steps:

1. `vendor_words`: the words end after a few thousand characters, and before the first value that is printed by its name
   (`'input': …`, `messages = [`). More is never searched for what it means: it would be the prompt's meaning.
2. `redact`: one short line, without what looks like a secret, and without what stands in the request in the same words,
   however it got there. Names that people look for, of parameters, models and tools, are no such text.
"""

import re
from collections.abc import Iterator, Mapping

MAX_QUOTE_CHARS = 300
"""Most characters of a vendor's own words that are shown."""

MAX_READ_CHARS = 4_000
"""Most characters of them that are read."""

ECHO_WORDS = 4
"""So many words in a row that stand in the request too are repeated from there; fewer come together by chance."""

MIN_ECHO_CHARS = 5
"""Fewer characters are not looked for."""

OMISSION = "[…]"


def vendor_words(words: str) -> str:
    """Return what a vendor says itself: the beginning of its words, up to a value of the request.

    >>> vendor_words("1 error: top_p: must be ≤ 1 [type=less_than, input_value='about Anna', input_type=str]")
    '1 error: top_p: must be ≤ 1 [type=less_than'
    >>> vendor_words("Invalid type for 'input': expected a string"), vendor_words("[{'input': 'about Anna'}]")
    ("Invalid type for 'input': expected a string", '')
    """
    text = words[:MAX_READ_CHARS]
    value = _VALUE.search(text)
    return text[: value.start()].rstrip(" \n\t,;:([{'\"") if value else text


def redact(words: str, *, max_chars: int = MAX_QUOTE_CHARS, request_body: Mapping[str, object] | None = None) -> str:
    r"""Return a vendor's own words as they may be shown; `request_body` is the body of the request they answer.

    >>> redact("model: x\nkey sk-ant-api03-abcdef, Bearer eyJhbGciOi.x.y")
    'model: x key [secret], [secret]'
    >>> redact("can't do “I leave Anna in May.”", request_body={"messages": [{"content": "Well, I leave Anna in May."}]})
    "can't do “[…].”"
    """
    text = _ESCAPED.sub(_unescaped, words[:MAX_READ_CHARS])
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    line = _SECRET.sub("[secret]", _without_echo(line[: 2 * max_chars], _request_text(request_body or {})))
    return line if len(line) <= max_chars else f"{line[: max_chars - 1]}…"


_KEYS = r"input|prompt|messages|content|text|body|request|received|got"
_VALUE = re.compile(
    rf"\binput_value\s*=|['\"]?\b(?:{_KEYS})['\"]?\s*[:=]\s*(?=b?['\"“\[{{(]|-?\d|(?:none|null|true|false)\b)",
    re.IGNORECASE,
)
"""Where a value of the request is printed by its name."""

_ESCAPED = re.compile(r"\\(?:u([0-9a-fA-F]{4})|[nrt])")
_WORD = re.compile(r"\w+")
_LOWER_LETTERS = re.compile(r"[a-z]+")

_SECRET = re.compile(
    r"\bbearer\s+[\w.~+/=-]+"
    r"|\b(?:sk|pk|rk|gsk|xai|ghp|hf|key)[-_][\w*.-]{5,}"
    r"|\bAIza[\w-]{10,}"
    r"|\beyJ[\w.-]{10,}"
    r"|(?<=://)[^\s/@]+(?=@)"
    r"|\b(?:api[-_ ]?key|authorization|token|secret|password)[\"']?\s*[:=]\s*[\"']?(?:bearer\s+)?[^\s\"',;]{4,}"
    r"|\b(?=[A-Za-z0-9+/_-]*\d)(?=[A-Za-z0-9+/_-]*[A-Za-z])[A-Za-z0-9+/_-]{40,}={0,2}",
    re.IGNORECASE,
)


def _unescaped(escaped: re.Match[str]) -> str:
    return chr(int(escaped[1], 16)) if escaped[1] else " "


# ---- what the request said


_WITH_TEXTS = ("system", "instructions", "messages", "input")
_NAMES = frozenset({"type", "role", "name", "id", "call_id", "tool_use_id", "tool_call_id", "status"})


def _request_text(request_body: Mapping[str, object]) -> str:
    """Return the words of the request's texts: each text on a line, a space around every word."""
    texts = (text for key in _WITH_TEXTS for text in _texts_in(request_body.get(key)))
    return "".join(f"\n {' '.join(_WORD.findall(text))} \n" for text in texts)


def _texts_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if key not in _NAMES:
                yield from _texts_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts_in(inner)


def _without_echo(line: str, request_text: str) -> str:
    """Return the line with `OMISSION` for whatever in it the request said."""
    words = list(_WORD.finditer(line)) if request_text else []
    result, end = "", 0
    for first, last in _echoes([word[0] for word in words], request_text):
        result += line[end : words[first].start()] + OMISSION
        end = words[last].end()
    return result + line[end:]


def _echoes(words: list[str], request_text: str) -> Iterator[tuple[int, int]]:
    """Return the first and the last of each row of words that is an echo, with at most two other words within."""
    positions = sorted(
        {
            position
            for length in range(1, ECHO_WORDS + 1)
            for start in range(len(words) - length + 1)
            if _is_echo(words[start : start + length], request_text)
            for position in range(start, start + length)
        }
    )
    for number, position in enumerate(positions):
        if number == 0 or position - positions[number - 1] > 3:
            first = position
        if number == len(positions) - 1 or positions[number + 1] - position > 3:
            yield first, position


def _is_echo(run: list[str], request_text: str) -> bool:
    """Return whether the request says this; short of `ECHO_WORDS` words, whether it is all that one of its texts says."""
    text = " ".join(run)
    if len(run) == ECHO_WORDS:
        return f" {text} " in request_text
    if len(text) < MIN_ECHO_CHARS or _LOWER_LETTERS.fullmatch(text):
        return False
    # There are languages that put no space between words, and vendors speak English.
    return (f"\n {text} \n" if text.isascii() else f" {text} ") in request_text
