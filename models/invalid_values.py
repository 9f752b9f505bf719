"""Reasons why a value is invalid: the one place that reads pydantic's errors (API-2, OPS-4).

A reason follows the name of its field: `limits.max_steps: must be at least 1`. It says what is allowed and never
repeats the value.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from turnkeeper.models.errors import TaskErrorType
from turnkeeper.models.ids import CALL_ID_PATTERN, ID_PATTERN, ID_RULE
from turnkeeper.models.texts.counted import counted

CALL_ID_RULE = "a call's id, as turn.step.index"

_PATTERNS = {ID_PATTERN: ID_RULE, CALL_ID_PATTERN: CALL_ID_RULE}
"""Patterns in words."""

_KINDS = {
    "bool_": "true or false",
    "bytes_": "a string",
    "date_": "a date, as 2026-11-22",
    "datetime_": "a date and time, as 2026-11-22T10:00:00Z",
    "dict_": "an object",
    "finite_number": "a finite number",
    "float_": "a number",
    "int_": "a whole number",
    "list_": "a list",
    "model_": "an object",
    "none_": "null",
    "set_": "a list",
    "string_type": "a string",
    "string_sub_type": "a string",
    "timezone_aware": "a date and time with its time zone, as 2026-11-22T10:00:00Z",
    "tuple_": "a list",
    "url_": "an address, as https://example.org",
}
"""The expected kind of value, by the prefix of pydantic's error type: `int` stands for `int_parsing` and `int_type`."""

Context = Mapping[str, Any]


def reason_of(error: Mapping[str, Any]) -> str:
    """Return the reason for one item of `ValidationError.errors()`.

    >>> reason_of({"type": "int_parsing", "msg": "Input should be a valid integer, unable to parse …"})
    'must be a whole number'
    >>> reason_of({"type": "literal_error", "msg": "…", "ctx": {"expected": "'user' or 'assistant'"}})
    'must be "user" or "assistant"'
    >>> reason_of({"type": "string_too_long", "msg": "…", "ctx": {"max_length": 1000}})
    'may have at most 1,000 characters'
    >>> reason_of({"type": "value_error", "msg": "Value error, is blank"})
    'is blank'
    """
    kind, context = str(error["type"]), error.get("ctx") or {}
    if kind in _REASONS:
        return _REASONS[kind](context)
    expected = next((value for prefix, value in _KINDS.items() if kind.startswith(prefix)), None)
    if expected is not None:
        return f"must be {expected}"
    message = str(error["msg"]).removeprefix("Value error, ").replace("Input should be", "must be", 1)
    return message[:1].lower() + message[1:] if message.startswith("Input") else message


def error_type_of(error: Mapping[str, Any]) -> TaskErrorType:
    """Return the kind of one item of `ValidationError.errors()`, for programs (TSK-1).

    >>> [error_type_of({"type": kind}) for kind in ("missing", "int_parsing", "bool_type", "string_too_long")]
    ['missing_field', 'type_error', 'type_error', 'invalid_value']
    """
    kind = str(error["type"])
    if kind in ("missing", "union_tag_not_found"):
        return "missing_field"
    return "type_error" if kind.endswith(("_type", "_parsing")) else "invalid_value"


def unknown_name(allowed: str) -> str:
    """Return the reason for an unknown field; `allowed` lists the known ones."""
    return f"unknown field (allowed: {allowed or 'none'})"


def _pattern(context: Context) -> str:
    pattern = str(context["pattern"])
    if pattern.startswith("^https?://"):
        return f"must be {_KINDS['url_']}"
    return f"must be {_PATTERNS[pattern]}" if pattern in _PATTERNS else f"must match {pattern}"


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() else f"{value:g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _quoted(names: Any) -> str:
    return str(names).replace("'", '"')


def _tags(context: Context) -> str:
    *names, last = _quoted(context["expected_tags"]).split(", ")
    expected = f"{', '.join(names)} or {last}" if names else last
    return f"{_discriminator(context)} must be {expected}"


def _discriminator(context: Context) -> str:
    return str(context["discriminator"]).strip("'")


_REASONS: dict[str, Callable[[Context], str]] = {
    "missing": lambda context: "is required",
    "extra_forbidden": lambda context: unknown_name(context["allowed"]) if "allowed" in context else "unknown field",
    "string_pattern_mismatch": _pattern,
    "string_too_short": lambda context: f"must have at least {counted(context['min_length'], 'character')}",
    "string_too_long": lambda context: f"may have at most {counted(context['max_length'], 'character')}",
    "string_unicode": lambda context: "must be valid Unicode",
    "too_short": lambda context: f"must have at least {counted(context['min_length'], 'item')}",
    "too_long": lambda context: f"may have at most {counted(context['max_length'], 'item')}",
    "greater_than": lambda context: f"must be over {_number(context['gt'])}",
    "greater_than_equal": lambda context: f"must be at least {_number(context['ge'])}",
    "less_than": lambda context: f"must be under {_number(context['lt'])}",
    "less_than_equal": lambda context: f"must be at most {_number(context['le'])}",
    "literal_error": lambda context: f"must be {_quoted(context['expected'])}",
    "enum": lambda context: f"must be {_quoted(context['expected'])}",
    "union_tag_invalid": _tags,
    "union_tag_not_found": lambda context: f"{_discriminator(context)} is required",
    "json_invalid": lambda context: "is not valid JSON",
}


MAX_NAME_CHARS = 64
"""As long as a hash."""

_TAGS = {"attachments": frozenset({"code", "image", "file"}), "steps": frozenset({"model", "user"})}
"""The union members that validation adds to the path of a list's item, by the list's name."""


def field_path(location: Iterable[int | str]) -> str:
    r"""Return the path of a field, with indexes in brackets; empty for the whole input.

    Keys are the caller's: those that are not printable ASCII are escaped, since a lone surrogate could not be sent
    back, and long ones are cut.

    >>> field_path(["history_policy", "roles", 0]), field_path([0, "role"]), field_path([])
    ('history_policy.roles[0]', '[0].role', '')
    >>> field_path(["tool_policy", "pay\n\ud800"])
    'tool_policy.pay\\n\\ud800'
    >>> field_path(["attachments", 1, "image", "data"])
    'attachments[1].data'
    >>> field_path(["steps", 0, "model", "model"]), field_path(["messages", 0, "user"])
    ('steps[0].model', 'messages[0].user')
    """
    parts = (f"[{part}]" if isinstance(part, int) else f".{_name(part)}" for part in _without_tags(location))
    return "".join(parts).removeprefix(".")


def _without_tags(location: Iterable[int | str]) -> Iterator[int | str]:
    parts = list(location)
    for index, part in enumerate(parts):
        is_in_item = index >= 2 and isinstance(parts[index - 1], int)
        if not (is_in_item and part in _TAGS.get(str(parts[index - 2]), ())):
            yield part


def _name(key: str) -> str:
    is_plain = key.isascii() and key.isprintable()
    return (key if is_plain else ascii(key)[1:-1])[:MAX_NAME_CHARS]
