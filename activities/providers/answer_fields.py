"""Reading fields of vendors' answers: texts, arguments, names, counts, and fields that come in pieces (AGT-3).

An answer is stored for months as JSON in a database, so whatever can't be stored is replaced here.

It is complete only if the reason why the model stopped is known to mean that (AGT-9). At a length limit it is cut.
Every other reason is an error, so that an incomplete answer is never used.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence

from pydantic import JsonValue
from pydantic_core import from_json

from turnkeeper.activities.providers.protocol import ModelError
from turnkeeper.activities.providers.redaction import redact
from turnkeeper.models.errors import ErrorType
from turnkeeper.models.limits import MAX_NESTING
from turnkeeper.models.texts import encodable, encodable_text


def join_pieces(pieces: Iterable[str]) -> str:
    r"""Return the whole text of a stream's pieces.

    The halves of a surrogate pair may come in two pieces. A lone surrogate, which can't be stored, is replaced.

    >>> join_pieces(["a \ud83d", "\ude00"]) == "a \U0001f600", join_pieces(["\ud83d!"]) == "\ufffd!"
    (True, True)
    """
    text = "".join(pieces)
    if not text.isascii():
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return encodable_text(text)


def arguments_of(text: str) -> dict[str, JsonValue] | str:
    """Return a call's arguments, or the text itself if it is not a JSON object that can be stored.

    An empty text is an empty object. `NaN`, `1e999` and excessive nesting can't be stored.

    >>> arguments_of('{"a": [1]}'), arguments_of(""), arguments_of('{"a": '), arguments_of('{"a": NaN}')
    ({'a': [1]}, {}, '{"a": ', '{"a": NaN}')
    """
    if not text.strip():
        return {}
    try:
        value = from_json(text, allow_inf_nan=False)
    except ValueError:
        return text
    return value if isinstance(value, dict) and is_storable(value) else text


MAX_GLUED = 64
"""Maximum of objects that are read from one text of arguments."""


def objects_in(pieces: Sequence[str]) -> list[dict[str, JsonValue] | str]:
    r"""Return the arguments of one call from their pieces, as `arguments_of` does, or those of several calls.

    If together they are no JSON object, the server may have sent all of them again, or all so far each time, or the
    arguments of several calls one after the other.

    >>> objects_in(['{"te', 'xt": "ab"}']), objects_in(['{"te', 'xt": "ab"}', '{"text": "ab"}'])
    ([{'text': 'ab'}], [{'text': 'ab'}])
    >>> objects_in(['{"te', '{"text": "a', '{"text": "ab"}']), objects_in(['{"text": "a"}', '{"text": "b"}'])
    ([{'text': 'ab'}], [{'text': 'a'}, {'text': 'b'}])
    """
    text = join_pieces(pieces)
    args = arguments_of(text)
    if isinstance(args, dict):
        return [args]
    newest = pieces[-1]
    newest_args = arguments_of(join_pieces([newest]))
    if newest.strip() and isinstance(newest_args, dict) and all(newest.startswith(piece) for piece in pieces):
        return [newest_args]
    return _glued_objects(text) or [text]


def _glued_objects(text: str) -> list[dict[str, JsonValue] | str]:
    """Return the objects that a text is made of, only once if they are the same; none if it is anything else."""
    objects: dict[str, dict[str, JsonValue] | str] = {}
    decoder, start = json.JSONDecoder(), 0
    for _ in range(MAX_GLUED):
        try:
            _, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            return []
        args = arguments_of(text[start:end])
        if not isinstance(args, dict):
            return []
        objects.setdefault(json.dumps(args, sort_keys=True), args)
        start = end + len(text[end:]) - len(text[end:].lstrip())
        if start == len(text):
            return list(objects.values())
    return []


def is_storable(value: JsonValue) -> bool:
    """Return whether a value can be stored as JSON: at most `MAX_NESTING` levels, all numbers finite.

    >>> is_storable({"a": [1.5]}), is_storable({"a": [math.inf]})
    (True, False)
    """
    level: list[JsonValue] = [value]
    for _ in range(MAX_NESTING + 1):
        if any(isinstance(inner, float) and not math.isfinite(inner) for inner in level):
            return False
        level = [inner for outer in level for inner in _children(outer)]
        if not level:
            return True
    return False


def _children(value: JsonValue) -> Iterable[JsonValue]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def name_of(value: object) -> str:
    r"""Return a vendor's name for something; empty if `value` is not a text.

    >>> name_of("gpt-5.5"), name_of(7), name_of(None)
    ('gpt-5.5', '', '')
    """
    return join_pieces([value]) if isinstance(value, str) else ""


def counts_of(value: object) -> Mapping[str, object]:
    """Return a vendor's counts by their names; empty if `value` is not an object.

    >>> counts_of({"cached_tokens": 7}), counts_of([7]), counts_of("none")
    ({'cached_tokens': 7}, {}, {})
    """
    return value if isinstance(value, dict) else {}


MAX_TOKENS = 10**12
"""A larger count is invalid."""


def count_of(counts: Mapping[str, object], name: str) -> int:
    """Return one of a vendor's counts of tokens.

    Raises `ValueError` if it is missing or invalid: counting it as 0 would let a turn exceed its limits.

    >>> count_of({"input_tokens": 7}, "input_tokens")
    7
    """
    count = counts.get(name)
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MAX_TOKENS:
        raise ValueError(f"{name} is no count of tokens")
    return count


def count_or_zero(counts: Mapping[str, object], name: str) -> int:
    """Return a count that is a part of another one; 0 if it is missing or null. Raises `ValueError`.

    >>> count_or_zero({"cached_tokens": 7}, "cached_tokens"), count_or_zero({"cached_tokens": None}, "cached_tokens")
    (7, 0)
    """
    return 0 if counts.get(name) is None else count_of(counts, name)


class FieldAccumulator:
    """Accumulates fields that arrive in pieces: text and lists grow, all else is replaced; empty pieces add nothing.

    The initial fields stay even if they are empty.

    >>> grown = FieldAccumulator({"type": "dream", "scenes": None})
    >>> for key, piece in [("told", "a "), ("scenes", [1]), ("told", "boat"), ("scenes", [2]), ("depth", 1)]:
    ...     grown.add(key, piece)
    >>> grown.fields()
    {'type': 'dream', 'scenes': [1, 2], 'depth': 1, 'told': 'a boat'}
    """

    def __init__(self, initial: Mapping[str, JsonValue] | None = None) -> None:
        self._fields = dict(initial or {})
        self._texts: dict[str, list[str]] = {}

    def get(self, key: str) -> JsonValue:
        """Return a field so far; `None` if there is none."""
        return join_pieces(self._texts[key]) if key in self._texts else self._fields.get(key)

    def put(self, key: str, value: JsonValue) -> None:
        self._fields[key] = value
        self._texts.pop(key, None)

    def add(self, key: str, piece: JsonValue) -> None:
        current = self._fields.get(key)
        if piece in (None, "", [], {}):
            return
        if isinstance(piece, str) and isinstance(current, str | None):
            self._texts.setdefault(key, [current or ""]).append(piece)
        elif isinstance(piece, list) and isinstance(current, list):
            self.put(key, [*current, *piece])
        else:
            self.put(key, piece)

    def fields(self) -> dict[str, JsonValue]:
        """Return the fields in a form that can be stored."""
        fields: dict[str, JsonValue] = {
            **self._fields,
            **{key: join_pieces(pieces) for key, pieces in self._texts.items()},
        }
        return {encodable_text(key): encodable(value) for key, value in fields.items()}


# ---- reasons to stop

_COMPLETE = re.compile(
    r"stop(?:_sequence|_token)?|end(?:_turn)?|eos(?:_token)?|completed?|finished|tool_calls?|tool_use|function_call"
)
_CUT = re.compile(r"(?:max_|model_)?length|max_(?:output_|completion_|new_)?tokens|(?:token|output)_limit")
_BOTCHED_CALL = re.compile(r"malformed|unexpected_tool_call")
"""The model wrote a malformed call (Gemini's `function_call_filter: MALFORMED_FUNCTION_CALL`), which is no refusal."""
_AT_THE_END_OF_THE_CONTEXT = re.compile(r"context_(?:window|length|size)")
_REFUSED = re.compile(
    r"^(?:content|function_call)_?filter|filtered$|sensitive|safety|prohibited|guardrail|recitation|refus|blocklist"
    r"|spii|moderation|policy|unsafe|flagged"
)
_FAILED: dict[str, ErrorType] = {
    "error": "provider_error",
    "abort": "provider_error",
    "aborted": "provider_error",
    "network_error": "provider_error",
    "insufficient_system_resource": "overloaded",
    "time_limit": "timeout",
    "timeout": "timeout",
}
"""Failures at the server, which may succeed when retried."""


def is_length_limit(reason: str, *, vendor: str) -> bool:
    """Return whether an answer was cut at a length limit; otherwise it is complete.

    Raises `ModelError` for every other reason: a refusal, a failure, the end of the context, an unknown reason.

    >>> is_length_limit("STOP", vendor="Acme"), is_length_limit("max_tokens", vendor="Acme")
    (False, True)
    >>> is_length_limit("content_filter: SAFETY", vendor="Acme")
    Traceback (most recent call last):
    ...
    turnkeeper...ModelError: Acme stopped the answer with “content_filter: SAFETY”
    """
    code = reason.strip().lower().replace("-", "_").replace(" ", "_")
    if _COMPLETE.fullmatch(code) or _CUT.fullmatch(code):
        return _CUT.fullmatch(code) is not None
    quoted_reason = f"“{redact(reason)}”"
    if _AT_THE_END_OF_THE_CONTEXT.search(code):
        raise ModelError("context_too_long", f"the answer reached the end of the model's context, {quoted_reason}")
    if _BOTCHED_CALL.search(code):
        raise unclear_answer_error(
            f"{vendor} ended its answer with {quoted_reason}: the model wrote no proper call", vendor=vendor
        )
    if _REFUSED.search(code):
        raise ModelError("refusal", f"{vendor} stopped the answer with {quoted_reason}")
    if code in _FAILED:
        raise ModelError(_FAILED[code], f"{vendor} ended its answer with {quoted_reason}", vendor=vendor)
    raise unclear_answer_error(
        f"{vendor} ended its answer with {quoted_reason}, which is not known to end a complete answer", vendor=vendor
    )


def unclear_answer_error(message: str, *, vendor: str) -> ModelError:
    """Return the error of an answer that may be incomplete."""
    return ModelError("provider_error", message, vendor=vendor, lasting=UNCLEAR_ANSWER)


EARLY_END = "early end"
"""Marks answers that end before they are complete, although the connection was not lost."""

UNCLEAR_ANSWER = "unclear answer"
"""Marks all answers that may be incomplete as the same failure: each is billed, and the next may end like it."""
