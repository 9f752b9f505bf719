"""Mapping vendors' errors to our own types, for all vendors (AGT-9).

The type of a failure comes from the first of these that is conclusive:

1. *Its meaning*: codes and wordings that always mean the same: no quota, too long, stale reasoning, refused. No vendor
   has a code for all of them, so wordings are matched; each one was seen.
2. *The general kind* that the vendor names (`overloaded_error`, `server_error`), if the HTTP status says nothing: an
   error in the middle of a stream has status 200. Otherwise the status is more reliable: OpenAI calls both a wrong key
   and an unknown model `invalid_request_error`.
3. *The HTTP status*, or in a stream the number in its place (`"code": 402`).

A router's error wraps that of the server behind it (OpenRouter's `metadata.raw`): both are read. A redirection is none
of these: it is not followed, and the address has to be fixed.

The message is our own sentence, the status, and the vendor's id of the request. The vendor's own words are quoted only
where nobody could act without them, redacted by `redaction.py`. `activities/failures.py` decides what to do.

A vendor says how long to wait in a header or a field, as seconds, milliseconds, a duration (`1m30s`, `PT30S`), an HTTP
date, an ISO 8601 time, or a Unix time. Numbers are durations or times depending on their size.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import islice

from turnkeeper.activities.providers.answer_fields import UNCLEAR_ANSWER
from turnkeeper.activities.providers.protocol import ErrorKind, ModelError, VendorRefusal
from turnkeeper.activities.providers.provider import Vendor
from turnkeeper.activities.providers.redaction import is_repeated, redact, vendor_words
from turnkeeper.activities.providers.vendor_words import (
    BOTCHED_CALLS,
    GENERAL_KINDS,
    MEANINGS,
    MEANINGS_OF_NO_ACCESS,
    NOT_IN_THIS_COUNTRY,
    OF_THE_ACCOUNT,
    PASSING,
    TOO_LONG_IN_ANY_WORDS,
    attachment_refusal,
)

MAX_PARAMETER_CHARS = 200
"""Maximum characters of a parameter's name."""

MAX_PASSAGES = 3
"""Passages of one meaning that are compared with the request."""

MAX_FIELD_ERRORS = 20
"""Maximum number of a server's validation errors that are read."""


def should_retry_of(headers: Mapping[str, str]) -> bool | None:
    """Return the vendor's own statement on whether to retry the request; `None` if there is none.

    >>> should_retry_of({"x-should-retry": "false"}), should_retry_of({})
    (False, None)
    """
    return {"true": True, "false": False}.get(headers.get("x-should-retry", "").strip().lower())


def error_from(
    status: int,
    headers: Mapping[str, str],
    body: object,
    *,
    vendor: Vendor,
    now: datetime,
    request_body: Mapping[str, object] | None = None,
) -> ModelError:
    """Return the failure with our own type. `body` is the response's JSON or text, or a stream's error event.

    `request_body` is the body of the request: what the vendor repeats of its texts is redacted.

    >>> nobody = Vendor(name="acme", title="Acme")
    >>> parsed = {"error": {"type": "overloaded_error", "message": "Overloaded"}}
    >>> error = error_from(529, {"request-id": "req_1"}, parsed, vendor=nobody, now=datetime.now().astimezone())
    >>> error.error_type, error.message
    ('overloaded', 'HTTP 529, request req_1')
    """
    request = _Request(vendor, request_body or {})
    parsed = _ErrorBody.of(body)
    where = ", ".join(filter(None, [_status_text(status, parsed), _request_id_text(headers, body)]))
    if 300 <= status < 400:
        message = f"it redirects, which is not followed; check the address of {vendor.title} ({where})"
        return ModelError("bad_request", message, vendor=vendor.title)
    kind = _kind_of(status, parsed, request)
    effective_status = parsed.status if status < 400 else status
    refused_media = attachment_refusal(
        effective_status, parsed.codes, parsed.message, parameter=parsed.parameter, more_words=vendor.attachment_words
    )
    if refused_media and status == 500 and kind == "provider_error":
        kind = "bad_request"  # llama.cpp, for an image
    retry_after, should_retry = _retry_after(status, headers, parsed, kind, now=now), should_retry_of(headers)
    lasting = "" if retry_after is not None or should_retry else _lasting(status, parsed, kind)
    refusal = VendorRefusal(effective_status, parsed.message, parsed.parameter, refused_media)
    is_of_account = parsed.codes & OF_THE_ACCOUNT or NOT_IN_THIS_COUNTRY.search(parsed.message)
    return ModelError(
        "auth" if kind == "permission" else kind,
        _sentence(kind, parsed.message, where, request, is_quoted=bool(lasting)),
        retry_after=retry_after,
        should_retry=should_retry,
        vendor=vendor.title,
        lasting=lasting,
        refusal=None if is_of_account else refusal,
    )


class _Request:
    """What of a request matters to its error."""

    def __init__(self, vendor: Vendor, body: Mapping[str, object]) -> None:
        self.vendor = vendor
        self.texts = {key: body[key] for key in (*vendor.prompt_fields, *vendor.conversation_fields) if key in body}
        """The fields with texts of the session."""

    @property
    def is_large(self) -> bool:
        """Whether its conversation may be too long."""
        conversation = (self.texts.get(key) for key in self.vendor.conversation_fields)
        return sum(len(str(texts)) for texts in conversation if texts) >= MIN_LARGE_REQUEST


def _lasting(status: int, parsed: "_ErrorBody", kind: ErrorKind) -> str:
    """Return what is equal for equal failures that may last; empty if this one passes by its nature.

    overload, rate limit, connection, silence          passes
    a gateway's 502 or 504, a page, no words           passes
    a time to wait, or `x-should-retry: true`          passes
    500, or an error in a stream, in `PASSING` words   passes
    500, or an error in a stream, in other words       may last; ids and numbers in its words don't count
    a call that its own server could not read          may last, as every unclear answer
    """
    if parsed.codes & BOTCHED_CALLS:
        return UNCLEAR_ANSWER
    is_server_error = kind == "provider_error" and (status == 500 or (status < 400 and parsed.status in (0, 500)))
    if not is_server_error or not parsed.message or PASSING.search(parsed.message):
        return ""
    return f"{status} {_VARYING.sub('#', parsed.message[:MAX_IDENTITY_CHARS])}"


MAX_IDENTITY_CHARS = 1_000
"""The beginning of a message by which two failures are the same."""

_VARYING = re.compile(r"[\w.:-]*\d[\w.:-]*")
"""Ids, times and counts in a message."""


def _retry_after(
    status: int, headers: Mapping[str, str], parsed: "_ErrorBody", kind: ErrorKind, *, now: datetime
) -> float | None:
    seconds = retry_after_of(headers, now=now)
    seconds = parsed.retry_after if seconds is None else seconds
    # Every response has the reset headers. For a stream they are from its beginning.
    if seconds is None and kind == "rate_limited":
        # A reset in the past says nothing about when to retry.
        seconds = reset_of(parsed.headers if status < 400 else {**headers, **parsed.headers}, now=now) or None
    return seconds


# ---- reading the body


@dataclass(frozen=True)
class _ErrorBody:
    """The content of an error's body: the most specific `codes`, a general `kind`, and the message.

    `status` is an HTTP status in the body, or 0. `headers` are those of a server behind a router.
    """

    codes: frozenset[str]
    kind: str
    message: str
    parameter: str = ""
    retry_after: float | None = None
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, body: object) -> "_ErrorBody":
        """Read `{"error": {…}}`, also in a list (Gemini), bare (vLLM), plain text (LM Studio, a proxy), and wrapped."""
        error = _error_in(body)
        parsed = cls._unwrapped(error)
        metadata = error.get("metadata") if isinstance(error, dict) else None
        return parsed._with_metadata(metadata) if isinstance(metadata, dict) else parsed

    @classmethod
    def _unwrapped(cls, error: object) -> "_ErrorBody":
        if not isinstance(error, dict):
            return cls(codes=frozenset(), kind="", message="" if _is_page(error) else vendor_words(_first_text(error)))
        details, message = error.get("details"), error.get("message")
        # Mistral's is within the message.
        detail = message.get("detail") if isinstance(message, dict) else error.get("detail")
        detail = detail.get("message") if isinstance(detail, dict) else detail
        codes = (error.get("code"), error.get("type"), isinstance(details, dict) and details.get("error_code"))
        field_errors = _field_errors(detail)
        complaints = (": ".join(filter(None, [".".join(path), text])) for path, text in field_errors)
        listed = "; ".join(filter(None, complaints))
        message = vendor_words(_first_text(message, detail, listed, *map(error.get, _MESSAGE_FIELDS)))
        return cls(
            codes=frozenset(filter(None, map(_code, codes))),
            kind=next((kind for kind in map(_code, codes[:2]) if kind in GENERAL_KINDS), ""),
            message=message,
            parameter=_first_text(error.get("param"), *(path[-1] for path, _ in field_errors if path))[
                :MAX_PARAMETER_CHARS
            ],
            retry_after=next(delays_in(details, message), None),
            status=int(code) if _ERROR_STATUS.fullmatch(code := _code(error.get("code"))) else 0,
        )

    def _with_metadata(self, metadata: Mapping[str, object]) -> "_ErrorBody":
        """Return it combined with the error of the server behind a router (OpenRouter)."""
        headers = metadata.get("headers")
        pairs = headers.items() if isinstance(headers, dict) else ()
        parsed = replace(self, headers={str(name).lower(): str(value) for name, value in pairs})
        raw = metadata.get("raw")
        if isinstance(raw, str) and raw.lstrip()[:1] in ("{", "["):
            with suppress(ValueError, RecursionError):
                raw = json.loads(raw)
        inner = _ErrorBody._unwrapped(_error_in(raw)) if raw else None
        if inner is None:
            return parsed
        # "Provider returned error" adds nothing to what the provider returned.
        outer = "" if inner.message and _OF_A_ROUTER.match(self.message) else self.message
        return replace(
            parsed,
            codes=self.codes | inner.codes,
            kind=self.kind or inner.kind,
            message=" ".join(filter(None, [outer, inner.message])),
            parameter=self.parameter or inner.parameter,
            retry_after=inner.retry_after if self.retry_after is None else self.retry_after,
        )


_OF_A_ROUTER = re.compile(r"provider returned error", re.IGNORECASE)

_MESSAGE_FIELDS = ("Message", "msg", "error_message", "error_description", "title")
"""Other fields with the message, after `message` and `detail`: AWS has the first."""


def _error_in(body: object) -> object:
    """Return the error in a body: its `error`, the first of its `errors` (watsonx), or itself.

    An `error` that is a text may have a `message` (Spring) or a `code` (xAI) beside it.
    """
    body = body[0] if isinstance(body, list) and body else body
    if not isinstance(body, dict):
        return body
    errors = body.get("errors")
    error = body.get("error") or (errors[0] if isinstance(errors, list) and errors else None) or body
    if not isinstance(error, str) or _is_page(error):
        return error
    return {**body, "message": ": ".join(filter(None, [error, _first_text(body.get("message"))]))}


def _code(value: object) -> str:
    """Return a code in lower case; empty if `value` is not a code."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_CODE:
        return str(value)
    return value.lower() if isinstance(value, str) else ""


MAX_CODE = 10**6
"""Larger numbers are not codes."""
_ERROR_STATUS = re.compile(r"[45]\d\d", re.ASCII)


def _first_text(*values: object) -> str:
    return next((value for value in values if isinstance(value, str) and value.strip()), "")


def _field_errors(detail: object) -> list[tuple[list[str], str]]:
    """Return FastAPI's validation errors, each with the path of its field in the request, and its message.

    >>> _field_errors([{"loc": ["body", "stop"], "msg": "Extra inputs are not permitted"}])
    [(['body', 'stop'], 'Extra inputs are not permitted')]
    """
    errors: list[tuple[list[str], str]] = []
    for part in detail[:MAX_FIELD_ERRORS] if isinstance(detail, list) else []:
        if isinstance(part, dict):
            loc = part.get("loc")
            path = [str(one) for one in loc if isinstance(one, str | int)] if isinstance(loc, list | tuple) else []
            errors.append((path, _first_text(part.get("msg"))))
    return errors


def _is_page(body: object) -> bool:
    """Return whether the body is markup, such as a proxy's error page."""
    return isinstance(body, str) and body.lstrip()[:1] == "<"


def _request_id_text(headers: Mapping[str, str], body: object) -> str:
    """Return the vendor's id of the request, for its support; empty if there is none, or it has odd characters."""
    in_body = body.get("request_id") if isinstance(body, dict) else None
    names = (headers.get("request-id"), headers.get("x-request-id"), in_body)
    parts = (name for name in names if isinstance(name, str) and _REQUEST_ID.fullmatch(name))
    return next((f"request {name}" for name in parts), "")


_REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,80}")


# ---- the type


_STATUSES: dict[int, ErrorKind] = {
    401: "auth",
    402: "quota",
    403: "permission",
    404: "not_found",
    408: "timeout",
    409: "provider_error",  # a lock at the vendor; its SDKs try again too
    413: "context_too_long",
    425: "provider_error",
    429: "rate_limited",
    498: "overloaded",  # Groq, for its flex tier
    499: "connection",
    501: "bad_request",  # vLLM, for features that it lacks
    503: "overloaded",
    504: "timeout",
    529: "overloaded",
}


def _kind_of(status: int, parsed: _ErrorBody, request: _Request) -> ErrorKind:
    effective_status = parsed.status if status < 400 else status
    if parsed.codes & BOTCHED_CALLS:
        return "provider_error"
    general = GENERAL_KINDS.get(parsed.kind) if effective_status < 400 else None
    # Cerebras refuses a request that is too long without a word.
    is_silent = effective_status == 400 and not parsed.message and not parsed.codes
    return (
        _explicit_kind(effective_status, parsed, request)
        or general
        or ("context_too_long" if is_silent and request.is_large else None)
        # The status alone; one below 400 is that of a stream that failed for an unknown reason.
        or _STATUSES.get(effective_status)
        or ("bad_request" if 400 <= effective_status < 500 else "provider_error")
    )


def _explicit_kind(status: int, parsed: _ErrorBody, request: _Request) -> ErrorKind | None:
    kinds = MEANINGS_OF_NO_ACCESS if status in (401, 403) else tuple(MEANINGS)
    meanings = (*request.vendor.error_words.items(), *((kind, MEANINGS[kind]) for kind in kinds))
    for kind, (codes, wording) in meanings:
        # The request is compared only where it matters: it may be large.
        passages = islice(wording.finditer(parsed.message), MAX_PASSAGES)
        if parsed.codes & codes or not all(is_repeated(parsed.message, one, request.texts) for one in passages):
            # Gemini says "quota" for rate limits per minute too, but then also when to retry.
            return "rate_limited" if kind == "quota" and parsed.retry_after is not None else kind
    if status in _TOO_LONG_STATUSES and TOO_LONG_IN_ANY_WORDS.search(parsed.message):
        return "context_too_long"
    # A smaller window shortens only the conversation. A tool's description would stay too long.
    field_name = re.match(r"\w*", parsed.parameter)
    is_of_conversation = field_name is not None and field_name[0] in request.vendor.conversation_fields
    return "context_too_long" if _TOO_LONG_SOMEWHERE in parsed.codes and is_of_conversation else None


MIN_LARGE_REQUEST = 24_000
"""Characters of a conversation that may be too long: about 6,000 tokens, since the smallest windows have 8,192."""

_TOO_LONG_STATUSES = frozenset({400, 413, 422, 500})
"""Statuses of a request that is too long; local servers use 500."""

_TOO_LONG_SOMEWHERE = "string_above_max_length"


# ---- the message


def _status_text(status: int, parsed: _ErrorBody) -> str:
    if status >= 300:
        return f"HTTP {status}"
    status_text = parsed.kind or (str(parsed.status) if parsed.status else "")
    return f"in the middle of its answer{status_text and ', ' + status_text}"


def _sentence(kind: ErrorKind, words: str, where: str, request: _Request, *, is_quoted: bool) -> str:
    """Return the message, which follows the sentence of `activities/failures.py` for the kind."""
    vendor = request.vendor

    def quote() -> str:  # only where it is needed: the request may be large
        quoted = words and redact(words, request_body=request.texts)
        return f"{vendor.title} says “{quoted}”" if quoted else f"{vendor.title} gives no reason"

    match kind:
        case "auth":
            fix = f"check {vendor.key}"
        case "permission":
            fix = f"the key in {vendor.key} lacks the permission; change it at {vendor.title}, or use another"
        case "quota":
            fix = f"add credit at {vendor.title}, or raise the spending limit there"
        case "not_found":
            advice = "" if "model" in words.lower() else f", and the address of {vendor.title}{vendor.no_path_advice}"
            fix = f"check its name{advice}; {quote()}"
        case "bad_request" | "refusal" | "stale_reasoning":
            fix = quote()
        case _:
            if not is_quoted:
                return where
            fix = quote()
    return f"{fix} ({where})"


# ---- waiting times

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
