"""Limits of request bodies (API-4)."""

import re

MAX_BODY_BYTES = 1024 * 1024
MAX_HISTORY_BYTES = 10 * 1024 * 1024
"""For routes that accept a conversation or attachments."""

_TAKING_HISTORIES = frozenset({"/api/chat", "/mcp", "/tasks", "/tasks/preview", "/workflow", "/chat"})
_TAKING_ATTACHMENTS = re.compile(r"/workflow/[^/]+/(?:prompt|attachments)")

IMPORT_PATH = "/workflow/import"


def max_body_bytes(path: str, *, max_import_bytes: int = MAX_HISTORY_BYTES) -> int:
    """Return the limit of a body sent to `path`, in bytes.

    >>> max_body_bytes("/workflow/s1"), max_body_bytes("/workflow/s1/prompt")
    (1048576, 10485760)
    >>> max_body_bytes("/workflow/import", max_import_bytes=64 * 1024 * 1024)
    67108864
    """
    if path == IMPORT_PATH:
        return max_import_bytes
    takes_more = path in _TAKING_HISTORIES or _TAKING_ATTACHMENTS.fullmatch(path)
    return MAX_HISTORY_BYTES if takes_more else MAX_BODY_BYTES
