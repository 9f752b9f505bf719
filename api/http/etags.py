"""ETags: how clients learn that nothing has changed."""

from hashlib import sha256


def matches(etag: str, if_none_match: str) -> bool:
    """Return whether the header `If-None-Match` contains `etag`.

    >>> matches('"a"', 'W/"b", "a"'), matches('"a"', '*'), matches('"a"', '"b"')
    (True, True, False)
    """
    candidates = [candidate.strip().removeprefix("W/") for candidate in if_none_match.split(",")]
    return etag in candidates or "*" in candidates


def content_etag(text: str) -> str:
    """Return the ETag of `text`, made from its hash.

    >>> content_etag("a") == content_etag("a") != content_etag("b")
    True
    """
    return f'"{sha256(text.encode()).hexdigest()[:32]}"'
