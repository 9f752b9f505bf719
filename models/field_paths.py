"""Paths of wrong fields in a caller's input: one form for every error and warning."""

from collections.abc import Iterable, Iterator

MAX_NAME_CHARS = 60

_TAGS = frozenset({"code", "image", "file"})


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
    """
    parts = (f"[{part}]" if isinstance(part, int) else f".{_name(part)}" for part in _without_tags(location))
    return "".join(parts).removeprefix(".")


def _without_tags(location: Iterable[int | str]) -> Iterator[int | str]:
    """Leave out what validation adds after an index of a list of attachments: which of the three models it is."""
    before: int | str = ""
    for part in location:
        if not (isinstance(before, int) and part in _TAGS):
            yield part
        before = part


def _name(key: str) -> str:
    is_plain = key.isascii() and key.isprintable()
    return (key if is_plain else ascii(key)[1:-1])[:MAX_NAME_CHARS]
