"""Limits of request bodies (API-4)."""

MAX_BODY_BYTES = 1024 * 1024
MAX_HISTORY_BYTES = 10 * 1024 * 1024
"""For routes that accept a conversation."""

_TAKING_HISTORIES = frozenset({"/api/chat", "/mcp", "/tasks", "/tasks/preview"})


def max_body_bytes(path: str) -> int:
    """Return the limit of a body sent to `path`, in bytes.

    >>> max_body_bytes("/chat"), max_body_bytes("/tasks/preview")
    (1048576, 10485760)
    """
    return MAX_HISTORY_BYTES if path in _TAKING_HISTORIES else MAX_BODY_BYTES
