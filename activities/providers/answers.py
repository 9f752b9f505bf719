"""What every vendor's adapter does to read an answer: put texts together, take arguments for what they are (AGT-3).

A vendor's answer is kept for months, in JSON and in a database: what neither can hold is replaced here, where it comes
in.
"""

import math
from collections.abc import Iterable, Mapping

from pydantic import JsonValue
from pydantic_core import from_json

from turnkeeper.models.bounds import encodable_text
from turnkeeper.models.limits import MAX_NESTING


def joined(pieces: Iterable[str]) -> str:
    r"""Return the whole text of a stream's pieces, as it can be kept.

    A character of two UTF-16 halves may come in two pieces; a half without its other one can't be kept.

    >>> joined(["a \ud83d", "\ude00"]) == "a \U0001f600", joined(["\ud83d!"]) == "\ufffd!"
    (True, True)
    """
    text = "".join(pieces)
    if not text.isascii():
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return encodable_text(text)


def arguments_of(text: str) -> dict[str, JsonValue] | str:
    """Return a call's arguments; the text itself where it is no JSON object, so that the model can be told.

    None at all are an empty object. Nor are `NaN`, `1e999`, and what is nested without end.

    >>> arguments_of('{"a": [1]}'), arguments_of(""), arguments_of('{"a": '), arguments_of('{"a": NaN}')
    ({'a': [1]}, {}, '{"a": ', '{"a": NaN}')
    """
    if not text.strip():
        return {}
    try:
        value = from_json(text, allow_inf_nan=False)
    except ValueError:
        return text
    return value if isinstance(value, dict) and is_keepable(value) else text


def is_keepable(value: JsonValue) -> bool:
    """Return whether a value can be kept as JSON: not nested over `MAX_NESTING`, every number in it finite.

    >>> is_keepable({"a": [1.5]}), is_keepable({"a": [math.inf]})
    (True, False)
    """
    level: list[JsonValue] = [value]
    for _ in range(MAX_NESTING + 1):
        if any(isinstance(inner, float) and not math.isfinite(inner) for inner in level):
            return False
        level = [inner for outer in level for inner in _held(outer)]
    return not level


def _held(value: JsonValue) -> Iterable[JsonValue]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def name_of(told: object) -> str:
    r"""Return a vendor's name for something, as it can be kept; empty where it is none: it is no part of an answer.

    >>> name_of("gpt-5.5"), name_of(7), name_of(None)
    ('gpt-5.5', '', '')
    """
    return joined([told]) if isinstance(told, str) else ""


def counts_in(told: object) -> Mapping[str, object]:
    """Return what a vendor counts by its names; nothing where it has another shape.

    >>> counts_in({"cached_tokens": 7}), counts_in([7]), counts_in("none")
    ({'cached_tokens': 7}, {}, {})
    """
    return told if isinstance(told, dict) else {}


MOST_TOKENS = 10**12
"""A count beyond is none."""


def count_of(told: Mapping[str, object], name: str) -> int:
    """Return a count of tokens among those a vendor tells.

    Raises `ValueError` where it is none, or not told: taken for 0, it would let a turn go on beyond its limits.

    >>> count_of({"input_tokens": 7}, "input_tokens")
    7
    """
    count = told.get(name)
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MOST_TOKENS:
        raise ValueError(f"{name} is no count of tokens")
    return count


def share_of(told: Mapping[str, object], name: str) -> int:
    """Return a count that is a part of another one; 0 where it is missing or null. Raises `ValueError`.

    >>> share_of({"cached_tokens": 7}, "cached_tokens"), share_of({"cached_tokens": None}, "cached_tokens")
    (7, 0)
    """
    return 0 if told.get(name) is None else count_of(told, name)
