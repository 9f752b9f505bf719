"""From what a vendor answered to our own terms: one table for all vendors (AGT-9).

Theory of operation. A failure is judged in three looks, the first that knows it counts:

1. *what it means*, by codes and wordings that say one thing wherever they stand: no quota, too long, stale reasoning,
   refused. No vendor has a code for all of them, so wordings are matched; each is one that was seen.
2. *the general kind* the vendor names (`overloaded_error`, `server_error`), where the HTTP status says nothing: an
   error in the middle of a stream comes with status 200. Elsewhere the status is more to be trusted: OpenAI calls a
   wrong key and an unknown model both `invalid_request_error`.
3. *the HTTP status*, or in a stream the number that the error has in its place (`"code": 402`).

A router's error wraps that of the server behind it (OpenRouter's `metadata.raw`): both are read.

A redirection is none of these: nothing is sent to where it points, and it is the address that is to be mended.

What is shown is our own sentence, the status, and the vendor's name for the request. The vendor's own words are shown
where nobody could act without them, and as `quotes.py` allows. What is to be done about an error is not judged here but
in `activities/failures.py`.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from turnkeeper.activities.providers.errors.vendor_words import (
    BOTCHED_CALLS,
    GENERAL_KINDS,
    MEANINGS,
    MEANINGS_OF_NO_ACCESS,
    Kind,
)
from turnkeeper.activities.providers.errors.waiting_times import delays_in, reset_of, retry_after_of
from turnkeeper.activities.providers.protocol import ModelError
from turnkeeper.activities.providers.redaction import redact, vendor_words

MAX_PARAMETER_CHARS = 200
"""Most characters of how a vendor names what it blames."""

MAX_BOTCHED_ATTEMPTS = 3
"""How often a model may write a call that its own server cannot read."""

MAX_FIELD_ERRORS = 20
"""Of so many values a server says what is wrong with them, before the rest is left out."""


@dataclass(frozen=True)
class Vendor:
    """Who is asked, as sentences for people name it."""

    name: str
    """`Anthropic`."""
    key: str
    """Where its key is set: `ANTHROPIC_API_KEY`."""
    package: str
    """Its SDK, and the extra of ours that installs it."""


def should_retry_of(headers: Mapping[str, str]) -> bool | None:
    """Return the vendor's own word on whether the same request is worth a repetition; None where it gives none.

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
    """Return the failure in our own terms. `body` is the answer's JSON or text; of a stream, its error event.

    `request_body` is the body of the request: what the vendor repeats of it is not shown.

    >>> nobody = Vendor(name="Acme", key="ACME_KEY", package="acme")
    >>> parsed = {"error": {"type": "overloaded_error", "message": "Overloaded"}}
    >>> error = error_from(529, {"request-id": "req_1"}, parsed, vendor=nobody, now=datetime.now().astimezone())
    >>> error.error_type, error.message
    ('overloaded', 'HTTP 529, request req_1')
    """
    parsed = _ErrorBody.of(body)
    where = ", ".join(filter(None, [_status_text(status, parsed), _request_id_text(headers, body)]))
    if 300 <= status < 400:
        message = f"it redirects, which is not followed; check the address of {vendor.name} ({where})"
        return ModelError("bad_request", message, vendor=vendor.name)
    kind = _kind_of(status, parsed, request_body)
    error_type = "auth" if kind == "permission" else kind
    return ModelError(
        error_type,
        _sentence(kind, parsed.message, where, vendor, request_body),
        retry_after=_retry_after(status, headers, parsed, kind, now=now),
        should_retry=should_retry_of(headers),
        parameter=parsed.parameter or None,
        vendor=vendor.name,
        max_attempts=MAX_BOTCHED_ATTEMPTS if parsed.codes & BOTCHED_CALLS else None,
    )


def _retry_after(
    status: int, headers: Mapping[str, str], parsed: "_ErrorBody", kind: Kind, *, now: datetime
) -> float | None:
    seconds = retry_after_of(headers, now=now)
    seconds = parsed.retry_after if seconds is None else seconds
    # Every answer has the reset headers. In a stream they are of the time when it began.
    if seconds is None and kind == "rate_limited":
        # One that is over says nothing of when to ask again.
        seconds = reset_of(parsed.headers if status < 400 else {**headers, **parsed.headers}, now=now) or None
    return seconds


# ---- what the body says


@dataclass(frozen=True)
class _ErrorBody:
    """What a body says, whatever its shape: the most specific `codes`, a general `kind`, and words.

    `status` is an HTTP status that stands in the body, or 0. `headers` are those of a server behind a router.
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
        body = body[0] if isinstance(body, list) and body else body
        error = (body.get("error") or body) if isinstance(body, dict) else body
        parsed = cls._unwrapped(error)
        metadata = error.get("metadata") if isinstance(error, dict) else None
        return parsed._with_metadata(metadata) if isinstance(metadata, dict) else parsed

    @classmethod
    def _unwrapped(cls, error: object) -> "_ErrorBody":
        if not isinstance(error, dict):
            return cls(codes=frozenset(), kind="", message="" if _is_page(error) else vendor_words(_first_text(error)))
        details, message = error.get("details"), error.get("message")
        # Mistral's stands within the message.
        detail = message.get("detail") if isinstance(message, dict) else error.get("detail")
        codes = (error.get("code"), error.get("type"), isinstance(details, dict) and details.get("error_code"))
        message = vendor_words(_first_text(message, detail, *_field_errors(detail)))
        return cls(
            codes=frozenset(filter(None, map(_code, codes))),
            kind=next((kind for kind in map(_code, codes[:2]) if kind in GENERAL_KINDS), ""),
            message=message,
            parameter=_first_text(error.get("param"), *_blamed_fields(detail))[:MAX_PARAMETER_CHARS],
            retry_after=next(delays_in(details, message), None),
            status=_status_in(error.get("code")),
        )

    def _with_metadata(self, metadata: Mapping[str, object]) -> "_ErrorBody":
        """Return it with what the server behind a router said (OpenRouter)."""
        headers = metadata.get("headers")
        status_text = headers.items() if isinstance(headers, dict) else ()
        parsed = replace(self, headers={str(name).lower(): str(value) for name, value in status_text})
        raw = metadata.get("raw")
        inner = _ErrorBody._unwrapped(_error_in(raw)) if raw else None
        if inner is None:
            return parsed
        # "Provider returned error" says nothing beside what the provider returned.
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


def _error_in(raw: object) -> object:
    """Return the error in a server's answer that a router wraps: as JSON, as text, or as it is."""
    if isinstance(raw, str) and raw.lstrip()[:1] in ("{", "["):
        try:
            raw = json.loads(raw)
        except (ValueError, RecursionError):
            return raw
    raw = raw[0] if isinstance(raw, list) and raw else raw
    return (raw.get("error") or raw) if isinstance(raw, dict) else raw


def _code(value: object) -> str:
    """Return a code as it is compared; empty where it is none."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_CODE:
        return str(value)
    return value.lower() if isinstance(value, str) else ""


def _status_in(code: object) -> int:
    """Return the HTTP status that a code is, as a number or as text; 0 where it is none."""
    text = _code(code)
    return int(text) if _ERROR_STATUS.fullmatch(text) else 0


MAX_CODE = 10**6
"""A larger number is no code."""
_ERROR_STATUS = re.compile(r"[45]\d\d", re.ASCII)


def _first_text(*values: object) -> str:
    return next((value for value in values if isinstance(value, str) and value.strip()), "")


def _field_errors(detail: object) -> Iterator[str]:
    """Return what FastAPI's servers say: `[{"loc": ["body", "stop"], "msg": "Extra inputs are not permitted"}]`."""
    parts = [part for part in detail[:MAX_FIELD_ERRORS] if isinstance(part, dict)] if isinstance(detail, list) else []
    if parts:
        yield "; ".join(filter(None, map(_field_error, parts)))


def _blamed_fields(detail: object) -> Iterator[str]:
    """Return the names of what these say is wrong with the request, as they name it."""
    for part in detail if isinstance(detail, list) else []:
        yield from _place_in(part)[-1:] if isinstance(part, dict) else ()


def _field_error(parsed: Mapping[str, object]) -> str:
    return ": ".join(filter(None, [".".join(_place_in(parsed)), _first_text(parsed.get("msg"))]))


def _place_in(field_error: Mapping[str, object]) -> list[str]:
    """Return the steps from the request to the part of it that the complaint is about."""
    steps = field_error.get("loc")
    return [str(step) for step in steps if isinstance(step, str | int)] if isinstance(steps, list | tuple) else []


def _is_page(body: object) -> bool:
    """Return whether it is markup of some proxy, which says nothing to anybody."""
    return isinstance(body, str) and body.lstrip()[:1] == "<"


def _request_id_text(headers: Mapping[str, str], body: object) -> str:
    """Return how the vendor names the request, for its support; nothing that is no plain name."""
    in_body = body.get("request_id") if isinstance(body, dict) else None
    names = (headers.get("request-id"), headers.get("x-request-id"), in_body)
    parts = (name for name in names if isinstance(name, str) and _REQUEST_ID.fullmatch(name))
    return next((f"request {name}" for name in parts), "")


_REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,80}")


# ---- what it means


_STATUSES: dict[int, Kind] = {
    401: "auth",
    402: "quota",
    403: "permission",
    404: "not_found",
    408: "timeout",
    409: "provider_error",  # a lock at the vendor; its SDKs try again too
    413: "context_too_long",
    425: "provider_error",
    429: "rate_limited",
    499: "connection",
    501: "bad_request",  # vLLM, of what it has not got
    503: "overloaded",
    504: "timeout",
    529: "overloaded",
}


def _kind_of(status: int, parsed: _ErrorBody, request_body: Mapping[str, object] | None) -> Kind:
    effective_status = parsed.status if status < 400 else status
    if parsed.codes & BOTCHED_CALLS:
        return "provider_error"
    general = GENERAL_KINDS.get(parsed.kind) if effective_status < 400 else None
    return (
        _explicit_kind(effective_status, parsed)
        or general
        or _kind_of_silent_error(effective_status, parsed, request_body)
        or _kind_of_status(effective_status)
    )


def _explicit_kind(status: int, parsed: _ErrorBody) -> Kind | None:
    kinds = MEANINGS_OF_NO_ACCESS if status in (401, 403) else tuple(MEANINGS)
    for kind in kinds:
        codes, wording = MEANINGS[kind]
        if parsed.codes & codes or wording.search(parsed.message):
            # Gemini says "quota" of what is used up for this minute, and when there is more.
            return "rate_limited" if kind == "quota" and parsed.retry_after is not None else kind
    if _TOO_LONG_SOMEWHERE in parsed.codes and _OF_THE_CONVERSATION.match(parsed.parameter):
        return "context_too_long"
    return None


def _kind_of_silent_error(status: int, parsed: _ErrorBody, request_body: Mapping[str, object] | None) -> Kind | None:
    """Return what a large request was refused for without a word: Cerebras says no more of one that is too long."""
    if status != 400 or parsed.message or parsed.codes or request_body is None:
        return None
    texts = [request_body.get("messages"), request_body.get("input")]
    return "context_too_long" if sum(len(str(text)) for text in texts) >= MIN_LARGE_REQUEST else None


MIN_LARGE_REQUEST = 24_000
"""Characters of a conversation that may be too long: about 6,000 tokens, where the smallest windows have 8,192."""

_TOO_LONG_SOMEWHERE = "string_above_max_length"
_OF_THE_CONVERSATION = re.compile(r"(?:messages|input)\b")
"""What a smaller window mends; a tool's description would stay too long in any."""


def _kind_of_status(status: int) -> Kind:
    """Return the kind by status alone. One below 400 is a stream's that failed without a reason that is known."""
    if status in _STATUSES:
        return _STATUSES[status]
    return "bad_request" if 400 <= status < 500 else "provider_error"


# ---- what is said


def _status_text(status: int, parsed: _ErrorBody) -> str:
    if status >= 300:
        return f"HTTP {status}"
    status_text = parsed.kind or (str(parsed.status) if parsed.status else "")
    return f"in the middle of its answer{status_text and ', ' + status_text}"


def _sentence(kind: Kind, words: str, where: str, vendor: Vendor, request_body: Mapping[str, object] | None) -> str:
    """Return what follows the beginning that `activities/failures.py` has for the kind."""
    match kind:
        case "auth":
            fix = f"check {vendor.key}"
        case "permission":
            fix = f"the key in {vendor.key} lacks the permission; change it at {vendor.name}, or use another"
        case "quota":
            fix = f"add credit at {vendor.name}, or raise the spending limit there"
        case "not_found":
            address = "" if "model" in words.lower() else f", and the address of {vendor.name}"
            fix = f"check its name{address}; {_vendor_says(words, vendor, request_body)}"
        case "bad_request" | "refusal":
            fix = _vendor_says(words, vendor, request_body)
        case _:
            return where
    return f"{fix} ({where})"


def _vendor_says(words: str, vendor: Vendor, request_body: Mapping[str, object] | None) -> str:
    return (
        f"{vendor.name} says “{redact(words, request_body=request_body)}”"
        if words
        else f"{vendor.name} gives no reason"
    )
