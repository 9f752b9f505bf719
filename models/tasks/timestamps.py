"""Timestamps of handed-off messages: stored as written, compared by time (CTX-11)."""

import re
from datetime import UTC, date, datetime

_CHARACTERS = re.compile(r"[0-9T:.,+ WZ-]{8,40}")
"""Only characters of ISO 8601: `fromisoformat` would accept a line break between date and time."""


def moment_of(timestamp: str) -> datetime:
    """Return the time of an ISO 8601 `timestamp`; without a zone it is UTC. Raises `ValueError`.

    >>> moment_of("2025-10-29T14:00:00+02:00") == moment_of("2025-10-29T12:00:00")
    True
    """
    if not _CHARACTERS.fullmatch(timestamp):
        raise ValueError("is no ISO 8601 timestamp")
    moment = datetime.fromisoformat(timestamp)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def is_timestamp(value: object) -> bool:
    """Return whether `value` is an ISO 8601 timestamp.

    >>> is_timestamp("2025-10-29"), is_timestamp("yesterday"), is_timestamp(17)
    (True, False, False)
    """
    try:
        return isinstance(value, str) and moment_of(value) is not None
    except ValueError:
        return False


def clock_time(timestamp: str) -> str:
    r"""Return the time of day in the timestamp's own zone; without one, the timestamp itself, on one line.

    >>> clock_time("2025-10-29T14:13:17.5+02:00"), clock_time("2025-10-29"), clock_time("at\nnoon")
    ('14:13:17', '2025-10-29', 'at noon')
    """
    if _is_date(timestamp) or not is_timestamp(timestamp):
        return " ".join(timestamp.split())
    return f"{moment_of(timestamp):%H:%M:%S}"


def _is_date(timestamp: str) -> bool:
    try:
        return date.fromisoformat(timestamp) is not None
    except ValueError:
        return False
