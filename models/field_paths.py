"""Paths of wrong fields in a caller's input: one form for every error and warning."""

from collections.abc import Iterable

MAX_NAME_CHARS = 60


def field_path(location: Iterable[int | str]) -> str:
    r"""Return the path of a field, with indexes in brackets; empty for the whole input.

    Keys are the caller's: those that are not printable ASCII are escaped, since a lone surrogate could not be sent
    back, and long ones are cut.

    >>> field_path(["history_policy", "roles", 0]), field_path([0, "role"]), field_path([])
    ('history_policy.roles[0]', '[0].role', '')
    >>> field_path(["tool_policy", "pay\n\ud800"])
    'tool_policy.pay\\n\\ud800'
    """
    parts = (f"[{part}]" if isinstance(part, int) else f".{_name(part)}" for part in location)
    return "".join(parts).removeprefix(".")


def _name(key: str) -> str:
    is_plain = key.isascii() and key.isprintable()
    return (key if is_plain else ascii(key)[1:-1])[:MAX_NAME_CHARS]
