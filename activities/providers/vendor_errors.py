"""From what a vendor answered to our own terms: one table for all vendors (AGT-9).

Theory of operation. A failure is judged in three looks, the first that knows it counts:

1. *what it means*, by codes and wordings that say one thing wherever they stand: no quota, too long, stale reasoning,
   refused. No vendor has a code for all of them, so wordings are matched; each is one that was seen.
2. *the general kind* the vendor names (`overloaded_error`, `server_error`), where the HTTP status says nothing: an
   error in the middle of a stream comes with status 200. Elsewhere the status is more to be trusted: OpenAI calls a
   wrong key and an unknown model both `invalid_request_error`.
3. *the HTTP status*.

A redirection is none of these: nothing is sent to where it points, and it is the address that is to be mended.

What is shown is our own sentence, the status, and the vendor's name for the request. The vendor's own words are shown
where nobody could act without them, and as `quotes.py` allows. What is to be done about an error is not judged here but
in `activities/failures.py`.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Literal

from activities.providers.protocol import ModelError
from activities.providers.quotes import quoted, spoken
from models.errors import ErrorType

Kind = ErrorType | Literal["stale_reasoning", "permission"]
"""An error's type, before `permission` is counted among `auth`: the two are mended differently."""

LONGEST_PARAMETER = 200
"""Most characters of how a vendor names what it blames."""

MOST_COMPLAINTS = 20
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


def retry_after_of(headers: Mapping[str, str], *, now: datetime) -> float | None:
    """Return for how many seconds the vendor is not to be asked again; None where it does not say, or says nonsense.

    Names in `headers` are in lower case, or in any where the mapping does not mind. What is past is 0. Uncapped: that
    is for `activities/failures.py`.

    >>> now = datetime(2026, 1, 1, tzinfo=UTC)
    >>> retry_after_of({"retry-after-ms": "1500", "retry-after": "9"}, now=now), retry_after_of({}, now=now)
    (1.5, None)
    >>> retry_after_of({"retry-after": "Thu, 01 Jan 2026 00:01:00 GMT"}, now=now)
    60.0
    """
    milliseconds = _seconds(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    said = headers.get("retry-after")
    seconds = _seconds(said)
    return seconds if seconds is not None or said is None else _seconds_until(said, now)


def should_retry_of(headers: Mapping[str, str]) -> bool | None:
    """Return the vendor's own word on whether the same request is worth a repetition; None where it gives none.

    >>> should_retry_of({"x-should-retry": "false"}), should_retry_of({})
    (False, None)
    """
    return {"true": True, "false": False}.get(headers.get("x-should-retry", "").strip().lower())


def error_of(
    status: int,
    headers: Mapping[str, str],
    body: object,
    *,
    vendor: Vendor,
    now: datetime,
    asked: Mapping[str, object] | None = None,
) -> ModelError:
    """Return the failure in our own terms. `body` is the answer's JSON or text; of a stream, its error event.

    `asked` is the body of the request: what the vendor repeats of it is not shown.

    >>> nobody = Vendor(name="Acme", key="ACME_KEY", package="acme")
    >>> told = {"error": {"type": "overloaded_error", "message": "Overloaded"}}
    >>> error = error_of(529, {"request-id": "req_1"}, told, vendor=nobody, now=datetime.now(UTC))
    >>> error.error_type, error.message
    ('overloaded', 'HTTP 529, request req_1')
    """
    told = _Told.of(body)
    where = ", ".join(filter(None, [_place(status, told), _request_named(headers, body)]))
    if 300 <= status < 400:
        said = f"it redirects, which is not followed; check the address of {vendor.name} ({where})"
        return ModelError("bad_request", said)
    retry_after = retry_after_of(headers, now=now)
    general = _GENERAL_KINDS.get(told.kind) if status < 400 else None
    kind = _meant(status, told) or general or _kind_of_status(status)
    return ModelError(
        "auth" if kind == "permission" else kind,
        _sentence(kind, told.message, where, vendor, asked),
        retry_after=told.retry_after if retry_after is None else retry_after,
        should_retry=should_retry_of(headers),
        parameter=told.parameter or None,
    )


# ---- how long to wait


def _seconds(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _seconds_until(date: str, now: datetime) -> float | None:
    try:
        moment = parsedate_to_datetime(date)
    except (ValueError, OverflowError):
        return None
    # HTTP's dates are in GMT; one that leaves the zone out means the same.
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (aware - now).total_seconds())


# ---- what the body says


@dataclass(frozen=True)
class _Told:
    """What a body says, whatever its shape: the most specific `codes`, a general `kind`, and words."""

    codes: frozenset[str]
    kind: str
    message: str
    parameter: str = ""
    retry_after: float | None = None

    @classmethod
    def of(cls, body: object) -> "_Told":
        """Read `{"error": {…}}`, also in a list (Gemini), bare (vLLM), and plain text (LM Studio, a proxy)."""
        body = body[0] if isinstance(body, list) and body else body
        error = (body.get("error") or body) if isinstance(body, dict) else body
        if isinstance(error, dict):
            details = error.get("details")
            codes = (error.get("code"), error.get("type"), isinstance(details, dict) and details.get("error_code"))
            message = spoken(_first_text(error.get("message"), error.get("detail"), *_complaints(error.get("detail"))))
            return cls(
                codes=frozenset(code.lower() for code in codes if isinstance(code, str)),
                kind=next((kind for kind in map(_lower, codes[:2]) if kind in _GENERAL_KINDS), ""),
                message=message,
                parameter=_first_text(error.get("param"), *_blamed(error.get("detail")))[:LONGEST_PARAMETER],
                retry_after=next(_delays(details, message), None),
            )
        return cls(codes=frozenset(), kind="", message="" if _is_page(error) else spoken(_first_text(error)))


def _lower(value: object) -> str:
    return value.lower() if isinstance(value, str) else ""


def _first_text(*values: object) -> str:
    return next((value for value in values if isinstance(value, str) and value.strip()), "")


def _complaints(detail: object) -> Iterator[str]:
    """Return what FastAPI's servers say: `[{"loc": ["body", "stop"], "msg": "Extra inputs are not permitted"}]`."""
    found = [part for part in detail[:MOST_COMPLAINTS] if isinstance(part, dict)] if isinstance(detail, list) else []
    if found:
        yield "; ".join(filter(None, map(_complaint, found)))


def _blamed(detail: object) -> Iterator[str]:
    """Return the names of what these say is wrong with the request, as they name it."""
    for part in detail if isinstance(detail, list) else []:
        yield from _place_in(part)[-1:] if isinstance(part, dict) else ()


def _complaint(told: Mapping[str, object]) -> str:
    return ": ".join(filter(None, [".".join(_place_in(told)), _first_text(told.get("msg"))]))


def _place_in(complaint: Mapping[str, object]) -> list[str]:
    """Return the steps from the request to the part of it that the complaint is about."""
    steps = complaint.get("loc")
    return [str(step) for step in steps if isinstance(step, str | int)] if isinstance(steps, list | tuple) else []


def _delays(details: object, message: str) -> Iterator[float]:
    """Return in how many seconds the body says to ask again: Gemini's `RetryInfo`, or words."""
    infos = [part for part in details if isinstance(part, dict)] if isinstance(details, list) else []
    for said in (*(f"retry in {info['retryDelay']}" for info in infos if "retryDelay" in info), message):
        if (asked := _RETRY_IN.search(said)) is not None:
            yield sum(float(number) * _UNITS[unit.lower()] for number, unit in _DURATION.findall(asked[1]))


_UNITS = {"ms": 0.001, "milli": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0}
"""Seconds in each."""
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) ?(ms|milli|[smh])", re.IGNORECASE)
_RETRY_IN = re.compile(rf"(?:retry|try again) in ((?:{_DURATION.pattern}[a-z]* ?)+)", re.IGNORECASE)


def _is_page(body: object) -> bool:
    """Tell whether it is markup of some proxy, which says nothing to anybody."""
    return isinstance(body, str) and body.lstrip()[:1] == "<"


def _request_named(headers: Mapping[str, str], body: object) -> str:
    """Return how the vendor names the request, for its support; nothing that is no plain name."""
    in_body = body.get("request_id") if isinstance(body, dict) else None
    names = (headers.get("request-id"), headers.get("x-request-id"), in_body)
    found = (name for name in names if isinstance(name, str) and _REQUEST_ID.fullmatch(name))
    return next((f"request {name}" for name in found), "")


_REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,80}")


# ---- what it means


_MEANINGS: dict[Kind, tuple[frozenset[str], re.Pattern[str]]] = {
    "quota": (
        frozenset(
            {
                "insufficient_quota",
                "billing_hard_limit_reached",
                "billing_not_active",
                "billing_error",
                "insufficient_balance",
                "enforced_spend_limit_reached",
                "contract_spend_limit_reached",
                "linked_organization_spend_limit_reached",
                "linked_organization_billing_unavailable",
            }
        ),
        re.compile(
            r"credit balance is too low|exceeded your current quota|insufficient (?:credits?|balance|funds)"
            r"|(?:spend|usage|billing) limits? (?:has been |was )?reached|reached your specified api usage limits"
            r"|account is not active, please check your billing",
            re.IGNORECASE,
        ),
    ),
    "stale_reasoning": (
        frozenset({"invalid_encrypted_content"}),
        re.compile(
            r"bound to a different conversation|expected `?thinking`? or `?redacted_thinking`?, but found"
            r"|`?(?:redacted_)?thinking`?.{0,80}blocks?.{0,80}cannot be modified"
            r"|invalid `?signature`? in `?thinking`?"
            r"|encrypted content .{0,120}could not be (?:verified|decrypted)"
            r"|of type 'reasoning' was provided without its required following item"
            r"|without its required 'reasoning' item"
            r"|item with id '\w+' not found"
            r"|reasoning input items can only be provided to",
            re.IGNORECASE,
        ),
    ),
    "context_too_long": (
        frozenset(
            {
                "context_length_exceeded",
                "exceed_context_size_error",
                "request_too_large",
                "request_body_too_large_after_decoding",
            }
        ),
        re.compile(
            # Anthropic; its proxies
            r"prompt is too long|input is too long|exceed(?:s|ed)? context limit|exceeds the maximum (?:allowed )?size"
            # OpenAI, vLLM, Groq, OpenRouter, xAI, Mistral: "maximum context length", "maximum prompt length"
            r"|maximum (?:context|prompt|model) length|exceeds? (?:the )?context window|input tokens exceed"
            r"|model's context length|reduce the length of the (?:messages|prompt)|request too large for"
            # llama.cpp and its Python server, Ollama, SGLang, LM Studio
            r"|exceeds the available context size|context size has been exceeded"
            r"|exceeds? the (?:model's )?context length|exceed(?:s|ed)? max context length"
            r"|loaded with context length of|greater than the context length|reached context length"
            # Gemini, TGI, Cohere
            r"|input token count .{0,40}exceeds|`inputs` tokens \+ `max_new_tokens` must be"
            r"|too many tokens: (?:total (?:number of )?tokens (?!per\b)|size limit exceeded)",
            re.IGNORECASE,
        ),
    ),
    "refusal": (frozenset({"content_filter", "content_policy_violation"}), re.compile(r"(?!)")),
    "auth": (frozenset({"invalid_api_key", "organization_on_hold"}), re.compile(r"(?!)")),
    "not_found": (frozenset({"model_not_found"}), re.compile(r"(?!)")),
}
"""Codes and wordings that mean one thing wherever they stand; the first that fits counts."""

_OF_NO_ACCESS: tuple[Kind, ...] = ("quota", "auth", "not_found")

_GENERAL_KINDS: dict[str, Kind] = {
    "overloaded_error": "overloaded",
    "server_is_overloaded": "overloaded",
    "slow_down": "overloaded",
    "rate_limit_error": "rate_limited",
    "rate_limit_exceeded": "rate_limited",
    "api_error": "provider_error",
    "server_error": "provider_error",
    "internal_server_error": "provider_error",
    "timeout_error": "timeout",
    "authentication_error": "auth",
    "permission_error": "permission",
    "not_found_error": "not_found",
    "invalid_request_error": "bad_request",
    "invalid_prompt": "bad_request",
}

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
    503: "overloaded",
    504: "timeout",
    529: "overloaded",
}


def _meant(status: int, told: _Told) -> Kind | None:
    # Of a request that was not let through, no words say that it is too long or that its reasoning is stale.
    kinds = _OF_NO_ACCESS if status in (401, 403) else tuple(_MEANINGS)
    for kind in kinds:
        codes, wording = _MEANINGS[kind]
        if told.codes & codes or wording.search(told.message):
            # Gemini says "quota" of what is used up for this minute, and when there is more.
            return "rate_limited" if kind == "quota" and told.retry_after is not None else kind
    if _TOO_LONG_SOMEWHERE in told.codes and _OF_THE_CONVERSATION.match(told.parameter):
        return "context_too_long"
    return None


_TOO_LONG_SOMEWHERE = "string_above_max_length"
_OF_THE_CONVERSATION = re.compile(r"(?:messages|input)\b")
"""What a smaller window mends; a tool's description would stay too long in any."""


def _kind_of_status(status: int) -> Kind:
    """Return the kind by status alone. One below 400 is a stream's that failed without a reason we know."""
    if status in _STATUSES:
        return _STATUSES[status]
    return "bad_request" if 400 <= status < 500 else "provider_error"


# ---- what is said


def _place(status: int, told: _Told) -> str:
    return f"HTTP {status}" if status >= 300 else f"in the middle of its answer{told.kind and ', ' + told.kind}"


def _sentence(kind: Kind, words: str, where: str, vendor: Vendor, asked: Mapping[str, object] | None) -> str:
    """Return what follows the beginning that `activities/failures.py` has for the kind."""
    match kind:
        case "auth":
            mend = f"check {vendor.key}"
        case "permission":
            mend = f"the key in {vendor.key} lacks the permission; change it at {vendor.name}, or use another"
        case "quota":
            mend = f"add credit at {vendor.name}, or raise the spending limit there"
        case "not_found":
            mend = f"check its name; {_said(words, vendor, asked)}"
        case "bad_request":
            mend = _said(words, vendor, asked)
        case _:
            return where
    return f"{mend} ({where})"


def _said(words: str, vendor: Vendor, asked: Mapping[str, object] | None) -> str:
    return f"{vendor.name} says “{quoted(words, asked=asked)}”" if words else f"{vendor.name} gives no reason"
