"""What an answer says it is, before it is read."""

from collections.abc import Mapping

NO_STREAMS = ("text/html", "application/xhtml+xml", "application/json")
"""Others are read as streams of events: some servers name the kind of theirs wrongly, or not at all."""


def content_type(headers: Mapping[str, str]) -> str:
    """Return the content type without its parameters; empty where there is none.

    >>> content_type({"content-type": "Application/JSON; charset=utf-8"})
    'application/json'
    """
    return headers.get("content-type", "").partition(";")[0].strip().lower()
