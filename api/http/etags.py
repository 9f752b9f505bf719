"""ETags: how clients learn that nothing has changed.

Those of what may be compressed are weak: they stand for both encodings.
"""

from hashlib import sha256

from turnkeeper.models.session.messages import UpdatesRequest


def matches(etag: str, if_none_match: str) -> bool:
    """Return whether the header `If-None-Match` contains `etag`.

    >>> matches('W/"a"', 'W/"b", "a"'), matches('"a"', '*'), matches('"a"', '"b"')
    (True, True, False)
    """
    candidates = [candidate.strip().removeprefix("W/") for candidate in if_none_match.split(",")]
    return etag.removeprefix("W/") in candidates or "*" in candidates


def poll_etag(first_run_id: str, cursor: UpdatesRequest, revision: int) -> str:
    """Return the ETag of an answer to a poll: the session's first run, its revision, and the request.

    >>> page = UpdatesRequest(last_seen_message_id="p-1", since_revision=7, limit=1)
    >>> poll_etag("r", page, 7) == poll_etag("r", UpdatesRequest(limit=1), 7)
    False
    """
    question = sha256(cursor.model_dump_json().encode()).hexdigest()[:12]
    return f'W/"{first_run_id}-{revision}-{question}"'
