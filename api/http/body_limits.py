"""How large a request's body may be (API-4)."""

MOST_BODY_BYTES = 1024 * 1024
MOST_HISTORY_BYTES = 10 * 1024 * 1024
"""Where a conversation is handed over."""

_TAKING_HISTORIES = frozenset({"/api/chat", "/tasks", "/tasks/preview"})


def most_body_bytes(path: str) -> int:
    """Return the most bytes that a request to `path` may have.

    >>> most_body_bytes("/chat"), most_body_bytes("/tasks/preview")
    (1048576, 10485760)
    """
    return MOST_HISTORY_BYTES if path in _TAKING_HISTORIES else MOST_BODY_BYTES
