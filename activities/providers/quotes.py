r"""What of a vendor's own words is read and shown: no secret, and nothing the request said (AGT-9).

Theory of operation. An error is written into the history and into logs, and the conversation must not get there by way
of it. But vendors repeat requests: validators print the values they refuse, proxies whole bodies, up to a hundred
megabytes. What helps is short and stands before that: `top_p: must be ≤ 1`. So there are two steps:

1. `spoken`: the words end after a few thousand characters, and before the first value that is printed by its name
   (`'input': …`, `messages = [`). More is never searched for what it means: it would be the prompt's meaning.
2. `quoted`: one short line, without what looks like a secret, and without what stands in the request in the same words,
   however it got there. Names that people look for, of parameters, models and tools, are no such text.
"""

import re
from collections.abc import Iterator, Mapping

LONGEST_QUOTE = 300
"""Most characters of a vendor's own words that are shown."""

MOST_READ = 4_000
"""Most characters of them that are read."""

RUN = 4
"""So many words in a row that stand in the request too are repeated from there; fewer come together by chance."""

LEAST_REPEATED = 5
"""Fewer characters are not looked for."""

LEFT_OUT = "[…]"


def spoken(words: str) -> str:
    """Return what a vendor says itself: the beginning of its words, up to a value of the request.

    >>> spoken("1 error: top_p: must be ≤ 1 [type=less_than, input_value='about Anna', input_type=str]")
    '1 error: top_p: must be ≤ 1 [type=less_than'
    >>> spoken("Invalid type for 'input': expected a string"), spoken("[{'input': 'about Anna'}]")
    ("Invalid type for 'input': expected a string", '')
    """
    read = words[:MOST_READ]
    value = _VALUE.search(read)
    return read[: value.start()].rstrip(" \n\t,;:([{'\"") if value else read


def quoted(words: str, *, most: int = LONGEST_QUOTE, asked: Mapping[str, object] | None = None) -> str:
    r"""Return a vendor's own words as they may be shown; `asked` is the body of the request they answer.

    >>> quoted("model: x\nkey sk-ant-api03-abcdef, Bearer eyJhbGciOi.x.y")
    'model: x key [secret], [secret]'
    >>> quoted("can't do “I leave Anna in May.”", asked={"messages": [{"content": "Well, I leave Anna in May."}]})
    "can't do “[…].”"
    """
    told = _ESCAPED.sub(_unescaped, words[:MOST_READ])
    line = " ".join("".join(char if char.isprintable() else " " for char in told).split())
    line = _SECRET.sub("[secret]", _without_echo(line[: 2 * most], _said_in(asked or {})))
    return line if len(line) <= most else f"{line[: most - 1]}…"


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


def _said_in(asked: Mapping[str, object]) -> str:
    """Return the words of the request's texts: each text on a line, a space around every word."""
    texts = (text for key in _WITH_TEXTS for text in _texts_in(asked.get(key)))
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


def _without_echo(line: str, said: str) -> str:
    """Return the line with `LEFT_OUT` for whatever in it the request said."""
    words = list(_WORD.finditer(line)) if said else []
    kept, end = "", 0
    for first, last in _echoes([word[0] for word in words], said):
        kept += line[end : words[first].start()] + LEFT_OUT
        end = words[last].end()
    return kept + line[end:]


def _echoes(words: list[str], said: str) -> Iterator[tuple[int, int]]:
    """Return the first and the last of each row of words that is an echo, with at most two other words within."""
    echoed = sorted(
        {
            place
            for length in range(1, RUN + 1)
            for start in range(len(words) - length + 1)
            if _is_echo(words[start : start + length], said)
            for place in range(start, start + length)
        }
    )
    for number, place in enumerate(echoed):
        if number == 0 or place - echoed[number - 1] > 3:
            first = place
        if number == len(echoed) - 1 or echoed[number + 1] - place > 3:
            yield first, place


def _is_echo(run: list[str], said: str) -> bool:
    """Return whether the request says this; short of `RUN` words, whether it is all that one of its texts says."""
    text = " ".join(run)
    if len(run) == RUN:
        return f" {text} " in said
    if len(text) < LEAST_REPEATED or _LOWER_LETTERS.fullmatch(text):
        return False
    # There are languages that put no space between words, and vendors speak English.
    return (f"\n {text} \n" if text.isascii() else f" {text} ") in said
