"""Paths of wrong fields in a caller's input: one form for every error and warning."""

from collections.abc import Iterable, Iterator

MAX_NAME_CHARS = 64
"""As long as a hash."""

_TAGS = {"attachments": frozenset({"code", "image", "file"}), "steps": frozenset({"model", "user"})}
"""What validation adds to the path of a list's item: which of several models it is. By the list's name."""


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
