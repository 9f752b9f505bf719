"""Timestamps of handed-over messages: kept as they were written, compared as moments (CTX-11)."""

import re
from datetime import UTC, date, datetime

_WRITTEN = re.compile(r"[0-9T:.,+ WZ-]{8,40}")
"""What ISO 8601 is written with. Python's own reading would take a line break between date and time."""


def moment_of(timestamp: str) -> datetime:
    """Return the moment that an ISO 8601 `timestamp` names; one without a zone counts as UTC. Raises `ValueError`.

    >>> moment_of("2025-10-29T14:00:00+02:00") == moment_of("2025-10-29T12:00:00")
    True
    """
    if not _WRITTEN.fullmatch(timestamp):
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
    r"""Return the time of day as it was written, whatever its zone; without one, the timestamp itself, in one line.

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
