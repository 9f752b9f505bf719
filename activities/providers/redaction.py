r"""Quoting vendors' error messages without secrets and without text from the request (AGT-9).

Errors are written to the history and to logs, and the conversation must not get there that way. But vendors repeat
requests: validators print the values that they reject, proxies print whole bodies, up to a hundred megabytes. The
useful part is short and comes before that: `top_p: must be ≤ 1`. So there are two steps:

1. `vendor_words`: the text up to a few thousand characters, and up to the first value that is printed with its name
   (`'input': …`, `messages = [`). Only this part is matched against wordings: the rest could be the prompt's words.
2. `redact`: one short line, without what looks like a secret, and without passages of the request, wherever they come
   from. Names of parameters, models and tools stay, since people search for them.
"""

import re
from collections.abc import Iterator, Mapping

MAX_QUOTE_CHARS = 300
"""Maximum characters of a quotation."""

MAX_READ_CHARS = 4_000
"""Maximum characters of a message that are read."""

ECHO_WORDS = 4
"""This many words in a row that are also in the request count as an echo; fewer can be a coincidence."""

MIN_ECHO_CHARS = 5
"""Shorter texts of the request are not searched for."""


def vendor_words(words: str) -> str:
    """Return the vendor's own words: the beginning of its message, up to a value of the request.

    >>> vendor_words("1 error: top_p: must be ≤ 1 [type=less_than, input_value='about Anna', input_type=str]")
    '1 error: top_p: must be ≤ 1 [type=less_than'
    >>> vendor_words("Invalid type for 'input': expected a string"), vendor_words("[{'input': 'about Anna'}]")
    ("Invalid type for 'input': expected a string", '')
    """
    text = words[:MAX_READ_CHARS]
    value = _VALUE.search(text)
    return text[: value.start()].rstrip(" \n\t,;:([{'\"") if value else text


def redact(words: str, *, max_chars: int = MAX_QUOTE_CHARS, request_body: Mapping[str, object] | None = None) -> str:
    r"""Return a vendor's words as one line that is safe to show.

    `request_body` has the texts of the request that it answers.

    >>> redact("model: x\nkey sk-ant-api03-abcdef, Bearer eyJhbGciOi.x.y")
    'model: x key [secret], [secret]'
    >>> body = {"messages": [{"content": "Well, I leave Anna in May."}]}
    >>> redact("can't do “I leave Anna in May.”", request_body=body)
    "can't do “[…].”"
    """
    text = _ESCAPED.sub(lambda one: chr(int(one[1], 16)) if one[1] else " ", words[:MAX_READ_CHARS])
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    line, request_text = line[: 2 * max_chars], _request_text(request_body or {})
    words_in_line = list(_WORD.finditer(line)) if request_text else []
    visible, end = "", 0
    for first, last in _echoes([word[0] for word in words_in_line], request_text):
        visible += line[end : words_in_line[first].start()] + "[…]"
        end = words_in_line[last].end()
    line = _SECRET.sub("[secret]", visible + line[end:])
    return line if len(line) <= max_chars else f"{line[: max_chars - 1]}…"


def is_repeated(words: str, passage: re.Match[str], request_body: Mapping[str, object] | None) -> bool:
    """Return whether a `passage` of a vendor's words is part of a longer one that the vendor repeats of the request.

    A message that begins with that one is the vendor's own: then the conversation quotes an error like it.

    >>> body, wording = {"messages": [{"content": "I think my plan has expired"}]}, re.compile("plan has expired")
    >>> quoted, own = "invalid text: I think my plan has expired", "Sorry, your plan has expired"
    >>> [is_repeated(words, wording.search(words), body) for words in (quoted, own)]
    [True, False]
    """
    start = max(0, passage.start() - MAX_AROUND)
    around = list(_WORD.finditer(words[start : passage.end() + MAX_AROUND]))
    for first, last in _echoes([word[0] for word in around], _request_text(request_body or {})):
        if around[first].start() <= passage.start() - start and passage.end() - start <= around[last].end():
            begins_the_message = start == first == 0
            return not begins_the_message and last - first > len(_WORD.findall(passage[0]))
    return False


MAX_AROUND = 300
"""Characters on both sides of a passage that are compared with the request."""


_KEYS = r"input|prompt|messages|content|text|body|request|received|got"
_VALUE = re.compile(
    rf"\binput_value\s*=|['\"]?\b(?:{_KEYS})['\"]?\s*[:=]\s*(?=b?['\"“\[{{(]|-?\d|(?:none|null|true|false)\b)",
    re.IGNORECASE,
)
"""The beginning of a value of the request that is printed with its name."""

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


# ---- echoes of the request


_NAMES = frozenset({"type", "role", "name", "id", "call_id", "tool_use_id", "tool_call_id", "status"})


def _request_text(request_body: Mapping[str, object]) -> str:
    """Return the words of the request's texts: each text on its own line, a space around every word."""
    texts = (text for value in request_body.values() for text in _texts_in(value))
    return "".join(f"\n {' '.join(_WORD.findall(text))} \n" for text in texts)


_DATA_URL = re.compile(r"data:[^,\s]{0,200};base64,[A-Za-z0-9+/=]*", re.ASCII)


def _texts_in(value: object) -> Iterator[str]:
    """Yield all texts in a value, except the data of images and documents."""
    if isinstance(value, str):
        if not _DATA_URL.fullmatch(value):
            yield value
    elif isinstance(value, Mapping):
        if value.get("type") == "base64":
            return
        for key, inner in value.items():
            if key not in _NAMES:
                yield from _texts_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts_in(inner)


def _echoes(words: list[str], request_text: str) -> Iterator[tuple[int, int]]:
    """Yield the first and last index of each echo, which may contain up to two other words in a row."""
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
    """Return whether the request contains these words; fewer than `ECHO_WORDS` must be a whole text of it."""
    text = " ".join(run)
    if len(run) == ECHO_WORDS:
        return f" {text} " in request_text
    if len(text) < MIN_ECHO_CHARS or _LOWER_LETTERS.fullmatch(text):
        return False
    # Some languages have no spaces between words, while vendors write English.
    return (f"\n {text} \n" if text.isascii() else f" {text} ") in request_text
