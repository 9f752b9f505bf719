"""Content types of responses."""

from collections.abc import Mapping

NO_STREAMS = ("text/html", "application/xhtml+xml", "application/json")
"""All others are read as streams of events, since some servers have a wrong content type, or none."""


def content_type(headers: Mapping[str, str]) -> str:
    """Return the content type without its parameters; empty if there is none.

    >>> content_type({"content-type": "Application/JSON; charset=utf-8"})
    'application/json'
    """
    return headers.get("content-type", "").partition(";")[0].strip().lower()
