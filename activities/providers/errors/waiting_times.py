"""How long a vendor says to wait, in all formats (AGT-9).

A header or a field has seconds, milliseconds, a duration (`1m30s`, `PT30S`), an HTTP date, an ISO 8601 time, or a Unix
time.
Numbers are durations or times depending on their size. `activities/failures.py` applies the maximum.
"""

import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

MIN_UNIX_TIME = 1e9
"""A larger number is not a duration but a time in seconds; from a thousand times this on, in milliseconds."""

MAX_CHARS = 100
"""Longer values are ignored: they are untrusted, and parsed on the worker's event loop."""


def retry_after_of(headers: Mapping[str, str], *, now: datetime) -> float | None:
    """Return how many seconds to wait before a retry; 0 for a time in the past, `None` if missing or invalid.

    Names in `headers` are in lower case, or the mapping ignores case.

    >>> now = datetime(2026, 1, 1, tzinfo=UTC)
    >>> retry_after_of({"retry-after-ms": "1500", "retry-after": "9"}, now=now), retry_after_of({}, now=now)
    (1.5, None)
    >>> retry_after_of({"retry-after": "Thu, 01 Jan 2026 00:01:00 GMT"}, now=now)
    60.0
    """
    for name in _MILLISECONDS:
        milliseconds = _number(headers.get(name, ""))
        if milliseconds is not None:
            return milliseconds / 1000
    return seconds_until(headers.get("retry-after", ""), now=now)


_MILLISECONDS = ("retry-after-ms", "x-ms-retry-after-ms")  # OpenAI, Azure


def reset_of(headers: Mapping[str, str], *, now: datetime) -> float | None:
    """Return in how many seconds the vendor's rate limit is reset, by its `*-reset` headers; `None` if unknown.

    Vendors have several limits. All that are used up (`…-remaining: 0`, `…-status: rejected`) must be reset; if none is
    marked as used up, the earliest reset counts.

    >>> now = datetime(2026, 1, 1, tzinfo=UTC)
    >>> reset_of({"anthropic-ratelimit-requests-reset": "2026-01-01T00:00:06Z"}, now=now)
    6.0
    >>> limits = {"x-ratelimit-reset-tokens": "1m30s", "x-ratelimit-reset-requests": "20ms"}
    >>> reset_of(limits, now=now), reset_of({**limits, "x-ratelimit-remaining-tokens": "0"}, now=now)
    (0.02, 90.0)
    """
    open_limits: list[float] = []
    used_up: list[float] = []
    for name, value in headers.items():
        name = name.lower()
        if name in _LIMIT_FIELDS and (field := _RESET_FIELD.search(value[:MAX_CHARS])):
            value = field[1]
        elif not _RESET.fullmatch(name):
            continue
        seconds = seconds_until(value, now=now)
        if seconds is not None:
            is_used_up = _number(headers.get(name.replace("reset", "remaining"), "")) == 0
            is_used_up |= headers.get(name.replace("reset", "status"), "").strip().lower() == "rejected"
            (used_up if is_used_up else open_limits).append(seconds)
    if used_up:
        return max(used_up)
    return min(open_limits, default=None)


_RESET = re.compile(
    r"(?:anthropic-(?:priority-)?ratelimit-(?:[a-z0-9-]+-)?reset|(?:x-)?ratelimit(?:by[a-z]+)?-reset(?:-[a-z-]+)?)",
    re.ASCII,
)
_LIMIT_FIELDS = ("ratelimit", "x-ratelimit")
_RESET_FIELD = re.compile(r"(?:\breset=|;\s*t=)(\d{1,12})", re.ASCII)
"""The IETF's header: `limit=100, remaining=0, reset=50`, later `"default";r=0;t=50`."""


def seconds_until(value: str, *, now: datetime) -> float | None:
    """Return the seconds until the time in `value`; 0 if it is past, `None` if `value` is not a time.

    >>> now = datetime(2026, 1, 1, tzinfo=UTC)
    >>> [seconds_until(value, now=now) for value in ("7", "7s", "1m30s", "250ms", "2026-01-01T00:01:00Z", "soon")]
    [7.0, 7.0, 90.0, 0.25, 60.0, None]
    """
    value = value.strip()
    if len(value) > MAX_CHARS:
        return None
    number = _number(value)
    if number is not None:
        if number < MIN_UNIX_TIME:
            return number
        return max(0.0, (number / 1000 if number >= 1000 * MIN_UNIX_TIME else number) - now.timestamp())
    iso = _ISO_DURATION.fullmatch(value)
    if iso or _LENGTHS.fullmatch(value):
        return _seconds_in(iso[1] if iso else value)
    try:
        moment = datetime.fromisoformat(value) if _ISO_DATE.match(value) else parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    # HTTP dates are in GMT, also without a zone.
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (aware - now).total_seconds())


def delays_in(details: object, message: str) -> Iterator[float]:
    """Yield the seconds to wait according to a body: Gemini's `RetryInfo`, or the message."""
    infos = [part for part in details if isinstance(part, dict)] if isinstance(details, list) else []
    for words in (*(f"retry in {info['retryDelay']}" for info in infos if "retryDelay" in info), message):
        if (match := _RETRY_IN.search(words)) is not None:
            yield _seconds_in(match[1])


def _number(value: str) -> float | None:
    if len(value) > MAX_CHARS:
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _seconds_in(lengths: str) -> float:
    return sum(float(number) * _UNITS[unit.lower()] for number, unit in _LENGTH.findall(lengths))


_ISO_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_UNITS = {"ms": 0.001, "milli": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
"""Seconds in each."""
_LENGTH = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) ?(?>(ms|milli|[smhd])[a-z]*)", re.IGNORECASE | re.ASCII)
"""The atomic group (`?>`) prevents backtracking: otherwise n times `1ms` could be matched in 2^n ways."""
_LENGTHS = re.compile(rf"(?:{_LENGTH.pattern} ?)+", re.IGNORECASE | re.ASCII)
_ISO_DURATION = re.compile(rf"PT((?:{_LENGTH.pattern})+)", re.IGNORECASE | re.ASCII)
_RETRY_IN = re.compile(rf"(?:retry|try again) (?:in|after) ({_LENGTHS.pattern})", re.IGNORECASE | re.ASCII)
