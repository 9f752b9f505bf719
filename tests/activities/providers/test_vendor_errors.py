"""How a vendor's failure is classified, for every vendor and every shape of error: AGT-9."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio.exceptions import ApplicationError

from tests.activities.test_failures import failed
from tests.speed import cpu_seconds
from turnkeeper.activities.failures import describe_failure
from turnkeeper.activities.providers.openai.responses import OpenAIProvider
from turnkeeper.activities.providers.protocol import ModelError
from turnkeeper.activities.providers.provider import Vendor
from turnkeeper.activities.providers.redaction import MAX_READ_CHARS, redact
from turnkeeper.activities.providers.vendor_errors import error_from, retry_after_of, should_retry_of

ACME = Vendor(name="acme", title="Acme", key="ACME_API_KEY", package="acme")
NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def judged(
    status: int,
    body: object = None,
    headers: Mapping[str, str] | None = None,
    request_body: Mapping[str, object] | None = None,
) -> ModelError:
    return error_from(status, headers or {}, body, vendor=ACME, now=NOW, request_body=request_body)


def anthropic(kind: str, message: str = "?", **details: Any) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message, **details}}


def openai(
    message: str = "?", *, code: str | None = None, kind: str | None = "invalid_request_error"
) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


# ---- when to ask again


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "250", "retry-after": "60"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "60"}, 60),
        ({"retry-after": "2"}, 2),
        ({"retry-after": " 0.5 "}, 0.5),
        ({"retry-after": "0"}, 0),
        ({"retry-after": "86400"}, 86_400),
        ({"retry-after": format_datetime(NOW + timedelta(seconds=90), usegmt=True)}, 90),
        ({"retry-after": "Sat, 21 Nov 2026 13:00:30 +0100"}, 30),
        ({"retry-after": "Sat, 21 Nov 2026 12:00:30"}, 30),
        ({"retry-after": format_datetime(NOW - timedelta(days=400), usegmt=True)}, 0),
        ({"retry-after": "7s"}, 7),
        ({"retry-after": "1m30s"}, 90),
        ({"retry-after": "1h2m3.5s"}, 3_723.5),
        ({"retry-after": "250ms"}, 0.25),
        ({"retry-after": "2 minutes"}, 120),
        ({"retry-after": "2026-11-21T12:00:30Z"}, 30),
        ({"retry-after": "2026-11-21T13:00:30.5+01:00"}, 30.5),
        ({"retry-after": "2026-11-21T12:00:30"}, 30),
        ({"retry-after": str(int(NOW.timestamp()) + 30)}, 30),
        ({"retry-after": str(int(NOW.timestamp() + 30) * 1000)}, 30),
        ({"retry-after": "2026-99-21T12:00:30Z"}, None),
        ({"retry-after": "PT30S"}, 30),
        ({"retry-after": "PT1M30S"}, 90),
        ({"x-ms-retry-after-ms": "1500", "retry-after": "60"}, 1.5),
        ({"retry-after": "PT"}, None),
        ({"retry-after": "7 parsecs"}, None),
        ({"retry-after": "tomorrow"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "1e999"}, None),
        ({"retry-after": "Sat, 99 Nov 2026 99:00:00 GMT"}, None),
        ({}, None),
    ],
)
def test_agt_9_retry_after_is_read_in_each_of_its_forms(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_of(headers, now=NOW) == seconds


NO_TIMES = [f"PT{'1ms' * 30}!", f"{'1ms' * 30}!", f"{'1milli' * 16}!", "1ms" * 1_000, "9" * 1_000]


@pytest.mark.timeout(30)
@pytest.mark.parametrize("value", NO_TIMES)
@pytest.mark.parametrize("name", ["retry-after", "retry-after-ms", "x-ratelimit-reset-tokens"])
def test_agt_9_an_invalid_retry_time_is_recognised_at_once(name: str, value: str) -> None:
    """It is read on the worker's event loop: a unit that can be read in two ways stops all sessions for minutes."""
    assert judged(429, None, {name: value}).retry_after is None
    upstream = {"error": {"code": 429, "message": "?", "metadata": {"headers": {name: value}}}}
    assert judged(429, upstream).retry_after is None


IN_SIX_SECONDS = (NOW + timedelta(seconds=6)).isoformat().replace("+00:00", "Z")


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"anthropic-ratelimit-requests-reset": IN_SIX_SECONDS}, 6),
        ({"anthropic-ratelimit-unified-reset": str(int(NOW.timestamp()) + 6)}, 6),
        ({"x-ratelimit-reset-requests": "6s", "x-ratelimit-reset-tokens": "1m30s"}, 6),
        ({"x-ratelimit-reset-tokens": "6ms"}, 0.006),
        ({"x-ratelimit-reset": "6"}, 6),
        ({"X-RateLimit-Reset": str(int(NOW.timestamp() * 1000) + 6_000)}, 6),
        ({"ratelimit-reset": "6"}, 6),
        ({"ratelimit-reset": "6", "ratelimit-remaining": "0"}, 6),
        ({"ratelimit": "limit=100, remaining=0, reset=6"}, 6),
        ({"ratelimit": '"default";r=0;t=6'}, 6),
        ({"ratelimit": "limit=100"}, None),
        ({"ratelimitbysize-reset": "6"}, 6),
        ({"anthropic-ratelimit-unified-5h-reset": str(int(NOW.timestamp()) + 6)}, 6),
        # A subscription's window that is used up is marked by its status.
        (
            {
                "anthropic-ratelimit-unified-5h-status": "allowed",
                "anthropic-ratelimit-unified-5h-reset": str(int(NOW.timestamp()) + 2),
                "anthropic-ratelimit-unified-7d-status": "rejected",
                "anthropic-ratelimit-unified-7d-reset": str(int(NOW.timestamp()) + 6),
            },
            6,
        ),
        # Where several limits are used up, the longest one counts.
        (
            {
                "anthropic-ratelimit-requests-remaining": "49",
                "anthropic-ratelimit-requests-reset": (NOW + timedelta(seconds=1)).isoformat(),
                "anthropic-ratelimit-input-tokens-remaining": "0",
                "anthropic-ratelimit-input-tokens-reset": IN_SIX_SECONDS,
                "anthropic-ratelimit-output-tokens-remaining": "0",
                "anthropic-ratelimit-output-tokens-reset": (NOW + timedelta(seconds=9)).isoformat(),
            },
            9,
        ),
        # What the vendor says of this request goes before what it says of its limits.
        ({"retry-after": "2", "x-ratelimit-reset-requests": "6s"}, 2),
        ({"x-ratelimit-reset-requests": "soon"}, None),
        ({"x-ratelimit-limit-requests": "6", "x-password-reset": "6"}, None),
    ],
)
def test_agt_9_without_retry_after_the_reset_headers_say_when_to_retry(
    headers: dict[str, str], seconds: float | None
) -> None:
    waited = judged(429, None, headers).retry_after
    assert waited == (seconds if seconds is None else pytest.approx(seconds))
    if "retry-after" not in headers:  # every answer has the reset headers
        assert judged(500, None, headers).retry_after is None
        assert judged(200, anthropic("rate_limit_error"), headers).retry_after is None


RESETS = ["anthropic-ratelimit-tokens-reset", "x-ratelimit-reset", "ratelimit-reset", "x-ratelimit-remaining"]


@given(st.dictionaries(st.sampled_from(RESETS), st.text(max_size=40) | st.text("0123456789.smhd-TZ:", max_size=30)))
def test_agt_9_any_reset_header_yields_a_finite_time_or_none(headers: dict[str, str]) -> None:
    seconds = judged(429, None, headers).retry_after
    assert seconds is None or (math.isfinite(seconds) and seconds >= 0)


@given(st.dictionaries(st.sampled_from(["retry-after", "retry-after-ms"]), st.text(max_size=40)))
def test_agt_9_any_retry_after_yields_a_finite_time_or_none(headers: dict[str, str]) -> None:
    seconds = retry_after_of(headers, now=NOW)
    assert seconds is None or (math.isfinite(seconds) and seconds >= 0)


@pytest.mark.parametrize(("header", "expected"), [("true", True), (" False ", False), ("1", None), ("", None)])
def test_agt_9_the_should_retry_header_is_read(header: str, expected: bool | None) -> None:
    assert should_retry_of({"x-should-retry": header}) is expected
    assert judged(500, headers={"x-should-retry": header}).should_retry is expected


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        ("Please retry in 23.2s.", 23.2),
        ("Please retry in 41.183297461s", 41.183297461),
        ("Please try again in 6m0s. Visit", 360),
        ("please try again in 1h2m3.5s", 3_723.5),
        ("Please try again in 250ms.", 0.25),
        ("Please retry in 5 seconds", 5),
        ("Please retry after 5 seconds.", 5),
        ("try again in 20 milliseconds", 0.02),
        ("Try again in 2 minutes and 3 seconds", 120),
        ("Please try again in a while", None),
        ("Please try again in 7", None),
        ("we retry in our own time", None),
    ],
)
def test_agt_9_without_a_header_the_message_says_when_to_retry(words: str, seconds: float | None) -> None:
    assert judged(429, openai(f"Rate limit reached. {words}")).retry_after == seconds
    assert judged(429, openai(f"Rate limit reached. {words}"), {"retry-after": "2"}).retry_after == 2


def gemini(message: str, *details: Any) -> list[Any]:
    return [{"error": {"code": 429, "message": message, "status": "RESOURCE_EXHAUSTED", "details": [*details]}}]


USED_UP = "You exceeded your current quota, please check your plan and billing details."
RETRY_INFO = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "23s"}
QUOTA_FAILURE = {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaValue": "15"}]}


@pytest.mark.parametrize(
    ("body", "error_type", "seconds"),
    [
        (gemini(f"{USED_UP}\nPlease retry in 23.2s.", QUOTA_FAILURE), "rate_limited", 23.2),
        (gemini(USED_UP, QUOTA_FAILURE, RETRY_INFO), "rate_limited", 23),
        (gemini(USED_UP, QUOTA_FAILURE, {"retryDelay": {"seconds": 3}}, 7), "quota", None),
        (gemini(USED_UP), "quota", None),
    ],
)
def test_agt_9_a_quota_that_resets_soon_is_a_rate_limit(body: object, error_type: str, seconds: float | None) -> None:
    error = judged(429, body)
    assert (error.error_type, error.retry_after) == (error_type, seconds)


# ---- what it means


@pytest.mark.parametrize(
    ("status", "error_type"),
    [
        (400, "bad_request"),
        (401, "auth"),
        (402, "quota"),
        (403, "auth"),
        (404, "not_found"),
        (405, "bad_request"),
        (408, "timeout"),
        (409, "provider_error"),
        (413, "context_too_long"),
        (422, "bad_request"),
        (429, "rate_limited"),
        (498, "overloaded"),
        (500, "provider_error"),
        (501, "bad_request"),
        (502, "provider_error"),
        (503, "overloaded"),
        (504, "timeout"),
        (520, "provider_error"),
        (529, "overloaded"),
        (200, "provider_error"),
        (304, "bad_request"),
    ],
)
@pytest.mark.parametrize("body", [None, "", "<html>Bad gateway</html>", {}, [], {"error": None}, {"error": {}}, 7])
def test_agt_9_without_a_message_the_status_decides(status: int, error_type: str, body: object) -> None:
    assert judged(status, body).error_type == error_type


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (429, openai("You exceeded your current quota", code="insufficient_quota", kind="insufficient_quota")),
        (429, openai(code="billing_hard_limit_reached")),
        (400, openai(code="billing_not_active")),
        (400, anthropic("invalid_request_error", "Your credit balance is too low to access the Anthropic API.")),
        (400, anthropic("invalid_request_error", "You have reached your specified API usage limits.")),
        (403, anthropic("billing_error", "?")),
        (429, anthropic("rate_limit_error", "?", details={"error_code": "enforced_spend_limit_reached"})),
        (402, {"error": {"message": "Insufficient Balance", "type": "unknown_error", "code": "invalid_request_error"}}),
    ],
)
def test_agt_9_quota_and_rate_limit_errors_are_distinguished(status: int, body: object) -> None:
    assert judged(status, body).error_type == "quota"


@pytest.mark.parametrize(
    ("parameter", "error_type"),
    [
        ("messages[3].content", "context_too_long"),
        ("messages", "context_too_long"),
        ("input", "context_too_long"),
        ("input[2].output", "context_too_long"),
        ("tools[0].function.description", "bad_request"),
        ("tools[0].function.parameters.properties.input", "bad_request"),
        ("instructions", "bad_request"),
        ("inputs_of_something", "bad_request"),
        (None, "bad_request"),
    ],
)
def test_agt_9_a_too_long_string_is_a_context_overflow_only_for_the_conversation(
    parameter: str | None, error_type: str
) -> None:
    body = openai("Invalid text: string too long.", code="string_above_max_length")
    body["error"]["param"] = parameter
    assert judged(400, body).error_type == error_type


@pytest.mark.parametrize(
    "message",
    [
        "Too many tokens per minute, please slow down.",
        "Too many tokens, please wait before trying again.",
        "too many tokens: limit of 40000 tokens per minute reached",
        "too many tokens: total tokens per minute must be less than or equal to 40000",
        "Rate limit reached: too many tokens: total of 5000 exceeds 4000 tokens / min",
        "This request would exceed your organization's rate limit of 40,000 input tokens per minute.",
        "You have exceeded your window of requests; the context of this limit is your plan.",
    ],
)
def test_agt_9_too_many_tokens_per_minute_is_a_rate_limit(message: str) -> None:
    assert judged(429, {"message": message}).error_type == "rate_limited"


@pytest.mark.parametrize(
    "message",
    [
        "max_tokens: 200000 > 64000, which is the maximum allowed number of output tokens for claude-sonnet-4-5",
        "messages: text content blocks must be non-empty",
        "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024",
        "tools.0.custom.input_schema: JSON schema is invalid",
    ],
)
def test_agt_9_similar_messages_are_not_mistaken_for_overflow_or_stale_reasoning(message: str) -> None:
    assert judged(400, anthropic("invalid_request_error", message)).error_type == "bad_request"


@pytest.mark.parametrize(
    "body",
    [
        anthropic("invalid_request_error", "messages.3.content.0: The block is bound to a different conversation."),
        anthropic(
            "invalid_request_error",
            "messages.1.content.0: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be "
            "modified. These blocks must remain as they were in the original response.",
        ),
        anthropic("invalid_request_error", "messages.1.content.0: Invalid `signature` in `thinking` block"),
        anthropic(
            "invalid_request_error",
            "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`. When "
            "`thinking` is enabled, a final `assistant` message must start with a thinking block (preceeding the "
            "lastmost set of `tool_use` and `tool_result` blocks).",
        ),
        openai("The encrypted content gAAA… could not be verified.", code="invalid_encrypted_content"),
        openai("Item 'rs_1' of type 'reasoning' was provided without its required following item."),
        openai("Item with id 'rs_1' not found. Items are not persisted when `store` is set to false."),
    ],
)
@pytest.mark.parametrize("status", [400, 404])
def test_agt_9_stale_reasoning_is_recognised(status: int, body: object) -> None:
    assert judged(status, body).error_type == "stale_reasoning"


@pytest.mark.parametrize(
    ("body", "error_type"),
    [
        (anthropic("overloaded_error"), "overloaded"),
        (anthropic("rate_limit_error"), "rate_limited"),
        (anthropic("api_error"), "provider_error"),
        (anthropic("timeout_error"), "timeout"),
        (anthropic("authentication_error"), "auth"),
        (anthropic("permission_error"), "auth"),
        (anthropic("not_found_error"), "not_found"),
        (anthropic("request_too_large"), "context_too_long"),
        (anthropic("invalid_request_error"), "bad_request"),
        (anthropic("error_of_next_year"), "provider_error"),
        ({"code": "server_error", "message": "The server had an error"}, "provider_error"),
        ({"type": "error", "code": "rate_limit_exceeded", "message": "Rate limit reached"}, "rate_limited"),
        ({"code": "invalid_prompt", "message": "?"}, "refusal"),
        ({"code": "content_filter", "message": "?"}, "refusal"),
        ({"code": "context_length_exceeded", "message": "?"}, "context_too_long"),
        ({"code": "server_is_overloaded", "message": "?"}, "overloaded"),
        ("overloaded", "provider_error"),
    ],
)
def test_agt_9_in_the_middle_of_a_stream_the_vendors_error_type_decides(body: object, error_type: str) -> None:
    assert judged(200, body).error_type == error_type


@pytest.mark.parametrize(
    ("status", "code", "error_type"),
    [(401, "invalid_api_key", "auth"), (404, "model_not_found", "not_found"), (400, "model_not_found", "not_found")],
)
def test_agt_9_openais_generic_error_type_does_not_hide_the_status(status: int, code: str, error_type: str) -> None:
    assert judged(status, openai(code=code)).error_type == error_type


# ---- what is said


def sentence_of(error: ModelError) -> str:
    return describe_failure(failed(ApplicationError(error.message, type=error.error_type, non_retryable=True)))[1]


JINJA = "Jinja Exception: Conversation roles must alternate (slot 7, request 4f2a-11)"


@pytest.mark.parametrize(
    ("status", "body", "headers", "lasts"),
    [
        (500, openai(JINJA), {}, True),
        (500, openai("model requires more system memory (8.0 GiB) than is available (4.2 GiB)"), {}, True),
        (500, {"error": "Failed to parse input at pos 0"}, {}, True),
        (500, openai(f"litellm.APIConnectionError: OllamaException - {JINJA}"), {}, True),
        (200, {"error": {"message": JINJA, "code": 500}}, {}, True),
        (200, anthropic("api_error", "Failed to parse input"), {}, True),
        # Whatever passes by its nature keeps its patience.
        (500, openai(JINJA), {"retry-after": "1"}, False),
        (500, openai(JINJA), {"x-should-retry": "true"}, False),
        (500, None, {}, False),
        (500, "<html>Oops</html>", {}, False),
        (500, "Internal Server Error", {}, False),
        (500, anthropic("api_error", "Internal server error"), {}, False),
        (500, openai("The server had an error while processing your request. Sorry about that!"), {}, False),
        (500, openai("An internal error has occurred. Please retry or report in …"), {}, False),
        (500, openai("Internal error encountered."), {}, False),
        (500, openai("litellm.InternalServerError: AnthropicException - Overloaded"), {}, False),
        (200, anthropic("api_error", "Internal server error"), {}, False),
        (502, openai(JINJA), {}, False),
        (503, openai(JINJA), {}, False),
        (504, openai(JINJA), {}, False),
        (529, anthropic("overloaded_error", "Overloaded"), {}, False),
        (429, openai("Rate limit reached for tokens per minute."), {}, False),
        (408, None, {}, False),
    ],
)
def test_agt_9_only_an_error_with_a_specific_message_can_be_lasting(
    status: int, body: object, headers: dict[str, str], lasts: bool
) -> None:
    error = judged(status, body, headers)
    assert bool(error.lasting) is lasts
    if lasts:
        assert "Acme says “" in sentence_of(error)


def test_agt_9_ids_and_numbers_do_not_change_the_error_type() -> None:
    again = JINJA.replace("4f2a-11", "90cc-12").replace("7", "8")
    assert judged(500, openai(JINJA)).lasting == judged(500, openai(again)).lasting
    assert judged(500, openai(JINJA)).lasting != judged(500, openai("Failed to parse input")).lasting


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "so it is"}},
        {"message": "so it is"},
        {"detail": "so it is"},
        {"error": {"detail": "so it is"}},
        {"errors": [{"code": "x", "message": "so it is"}], "trace": "t"},
        {"errors": ["so it is"]},
        {"Message": "so it is"},
        {"error": "so it is"},
        {"code": "invalid", "error": "so it is"},
        {"status": 400, "error": "so", "message": "it is", "path": "/x"},
        {"detail": {"message": "so it is"}},
        {"type": "about:blank", "title": "so it is"},
        "so it is",
    ],
)
def test_agt_9_a_message_is_read_from_every_common_place(body: object) -> None:
    assert "Acme says “so it is”" in judged(400, body).message.replace("so: it", "so it")


def test_agt_9_an_address_without_responses_suggests_the_other_api() -> None:
    missing = error_from(404, {}, {"detail": "Not Found"}, vendor=OpenAIProvider.vendor, now=NOW)
    assert "'openai-chat:'" in missing.message
    model = error_from(404, {}, openai("The model `x` does not exist"), vendor=OpenAIProvider.vendor, now=NOW)
    assert "openai-chat" not in model.message


def test_agt_9_errors_that_a_person_can_fix_are_distinguished() -> None:
    named = {"request-id": "req_1"}
    assert sentence_of(judged(401, anthropic("authentication_error", "invalid x-api-key"), named)) == (
        "The model's provider did not accept the credentials: check ACME_API_KEY (HTTP 401, request req_1)."
    )
    assert sentence_of(judged(403, anthropic("permission_error", "no"), named)) == (
        "The model's provider did not accept the credentials: the key in ACME_API_KEY lacks the permission; change it "
        "at Acme, or use another (HTTP 403, request req_1)."
    )
    assert sentence_of(judged(402, None, {"x-request-id": "req_2"})) == (
        "The account with the model's provider has no quota left: add credit at Acme, or raise the spending limit "
        "there (HTTP 402, request req_2)."
    )
    assert sentence_of(judged(404, anthropic("not_found_error", "model: claude-nobody"))) == (
        "The model was not found: check its name; Acme says “model: claude-nobody” (HTTP 404)."
    )
    assert sentence_of(judged(400, openai("Unknown field 'x'.") | {"request_id": "req_3"})) == (
        "The model's provider did not accept the request: Acme says “Unknown field 'x'.” (HTTP 400, request req_3)."
    )
    assert sentence_of(judged(400)) == (
        "The model's provider did not accept the request: Acme gives no reason (HTTP 400)."
    )
    assert sentence_of(judged(529, anthropic("overloaded_error"), named)) == (
        "The model's provider is overloaded: HTTP 529, request req_1."
    )
    assert sentence_of(judged(200, anthropic("overloaded_error"), named)) == (
        "The model's provider is overloaded: in the middle of its answer, overloaded_error, request req_1."
    )


SECRETS = [
    "sk-ant-api03-" + "Ab1_" * 8,
    "sk-proj-" + "Zz9" * 10,
    "Bearer abc.def-ghi_jkl",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln",
    "AIza" + "SyA1234567890abcdefghij",
    "gsk_" + "abc123" * 4,
    "a1b2c3d4e5f6a7b8c9d0a1b2c3d4e5f6a7b8c9d0a1b2",
]


@pytest.mark.parametrize("secret", SECRETS)
def test_agt_9_no_secret_in_a_vendors_message_is_shown(secret: str) -> None:
    for words in (f"Incorrect API key provided: {secret}.", f"header {secret}", f'{{"api_key": "{secret}"}}', secret):
        for status in (400, 404):
            assert secret.removeprefix("Bearer ") not in judged(status, openai(words)).message
    assert "hunter22" not in redact("password=hunter22 at https://me:hunter22@proxy/")


@given(st.text(max_size=2_000))
def test_agt_9_a_vendors_message_is_shortened_to_one_line(words: str) -> None:
    line = redact(words)
    assert len(line) <= 300
    assert line.isprintable()


DELAYED = st.fixed_dictionaries({"retryDelay": st.text("0123456789.smh", max_size=40) | st.integers() | st.none()})
ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30) | st.just("\ud83d\x00"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "error", "message", "type", "code", "details", "detail", "error_code", "loc", "msg", "param",
                    "request_id", "retryDelay",
                ]
            ),
            inner,
        )
    ),
    max_leaves=12,
)  # fmt: skip


@given(
    st.integers(min_value=100, max_value=599),
    ODD
    | st.fixed_dictionaries({"detail": st.lists(st.fixed_dictionaries({}, optional={"loc": ODD, "msg": ODD}))})
    | st.fixed_dictionaries({"error": st.fixed_dictionaries({"details": st.lists(ODD | DELAYED), "param": ODD})}),
)
def test_agt_9_any_error_body_is_classified(status: int, body: object) -> None:
    error = judged(status, body)
    assert error.message
    assert "\n" not in error.message
    assert len(error.message.encode()) < 6_000
    assert len(error.message) < 600
    assert error.retry_after is None or math.isfinite(error.retry_after)


@pytest.mark.parametrize("place", [None, 7, "body", {}, [], [None], [["body"], {"x": 1}], [1, 2.5, True]])
def test_agt_9_a_validation_error_without_a_location_is_reported(place: object) -> None:
    error = judged(
        422, {"detail": [{"loc": place, "msg": "so long"}, {"loc": ["body", 0, "stop"], "msg": 7}, {}, None]}
    )
    assert error.error_type == "bad_request"
    assert "so long" in error.message
    assert "body.0.stop" in error.message


@pytest.mark.parametrize("status", [300, 301, 302, 303, 304, 307, 308, 399])
@pytest.mark.parametrize(
    "body", [None, "<html>", openai("?", code="insufficient_quota"), anthropic("overloaded_error")]
)
def test_agt_9_a_redirect_is_a_wrong_address(status: int, body: object) -> None:
    error = judged(status, body)
    assert error.error_type == "bad_request"
    assert error.message == f"it redirects, which is not followed; check the address of Acme (HTTP {status})"


def test_agt_9_only_a_vendors_request_id_is_used_as_one() -> None:
    assert judged(500, None, {"request-id": "<script>"}).message == "HTTP 500"
    assert json.dumps(judged(500, {"request_id": ["x"]}).message) == '"HTTP 500"'


# ---- what is not said


PROMPT = 'I divorce Anna. Don\'t tell "Ben"!\nPIN 1234, Grüße aus Köln'
SHORT = "Anna, 4711"
REQUEST_BODY = {
    "model": "qwen3",
    "tools": [{"name": "look_up_weather", "description": "Look the weather up in a place."}],
    "messages": [
        {"role": "system", "content": "You are the lawyer of a rich man in Cologne."},
        {"role": "user", "content": [{"type": "text", "text": PROMPT}]},
        {"role": "tool", "tool_call_id": "c1", "content": SHORT},
        {"role": "user", "content": "请告诉我离婚协议书怎么写"},
    ],
}
PRIVATE = ("divorce", "Anna", "Ben", "1234", "4711", "lawyer", "Köln", "rich man", "离婚协议书")

PYDANTIC = [
    {"type": "less_than_equal", "loc": ("body", "top_p"), "msg": "Input should be ≤ 1", "input": 7, "ctx": {"le": 1}},
    {
        "type": "string_type",
        "loc": ("body", "messages", 1, "content"),
        "msg": "Input should be a string",
        "input": PROMPT,
    },
    {"type": "missing", "loc": ("body", "user"), "msg": "Field required", "input": REQUEST_BODY},
]
REPR = (
    f"1 validation error\ntop_p\n  Input should be ≤ 1 [type=less_than, input_value={REQUEST_BODY!r}, input_type=dict]"
)

ECHOES: dict[str, object] = {
    "vLLM, a repr in the message": {"object": "error", "message": repr(PYDANTIC), "code": 400},
    "vLLM, JSON in the message": {"error": {"message": json.dumps(PYDANTIC), "type": "Bad Request", "code": 400}},
    "pydantic, in the message": {"error": {"message": REPR}},
    "pydantic, as text": REPR,
    "FastAPI's details": {"detail": PYDANTIC},
    "a detail of its own": {"detail": f"top_p: Input should be ≤ 1, got {PROMPT!r}"},
    "a proxy's whole request": {"message": f"top_p: Input should be ≤ 1; request = {json.dumps(REQUEST_BODY)}"},
    "llama.cpp": {
        "message": f"top_p: Input should be ≤ 1; messages = {json.dumps(REQUEST_BODY['messages'], indent=1)}"
    },
    "jsonschema": {"message": f"top_p: Input should be ≤ 1: {[PROMPT, SHORT]!r} is not of type 'string'"},
    "as text": f"top_p: Input should be ≤ 1. Your prompt was “{PROMPT}” and “{SHORT}”.",
    "escaped": f"top_p: Input should be ≤ 1 after {json.dumps(PROMPT)} and {json.dumps(REQUEST_BODY['messages'])}",
    "cut": 'top_p: Input should be ≤ 1 {"messages": [{"role": "system", "content": "You are the lawyer of a ri',
    "before the point": f"{PROMPT}: top_p: Input should be ≤ 1",
    "without spaces": f"top_p: Input should be ≤ 1: {REQUEST_BODY['messages'][3]['content']}。",  # type: ignore[index]
}  # fmt: skip


@pytest.mark.parametrize("what", ECHOES)
@pytest.mark.parametrize("status", [400, 404, 422])
def test_agt_9_errors_do_not_repeat_the_request_that_the_vendor_quotes(what: str, status: int) -> None:
    message = judged(status, ECHOES[what], request_body=REQUEST_BODY).message
    assert not [private for private in PRIVATE if private in message], message
    assert "top_p" in message
    assert "≤ 1" in message


@pytest.mark.parametrize(
    "words",
    [
        "top_p: must be ≤ 1",
        "model: claude-nobody",
        "The model `qwen3` does not exist or you do not have access to it.",
        "Unsupported parameter: 'stream_options'. Did you mean 'stream'?",
        "Invalid type for 'input': expected a string, but got an object instead.",
        "Invalid schema for function 'look_up_weather': schema must be a JSON Schema of 'type: \"object\"'",
        "tools.0.custom.input_schema: JSON schema is invalid. It must match JSON Schema draft 2020-12",
        "messages: text content blocks must be non-empty",
        "Value error, 'qwen3' is not multimodal",
    ],
)
def test_agt_9_the_helpful_part_of_a_vendors_message_is_shown(words: str) -> None:
    assert f"“{words}”" in judged(400, openai(words), request_body=REQUEST_BODY).message


@pytest.mark.parametrize("start", ["data: ", "data:text/plain;base64, "])
def test_agt_9_a_prompt_that_looks_like_a_data_url_is_not_repeated(start: str) -> None:
    prompt = f"{start}Anna wants to divorce Ben, whose account is 4711"
    message = judged(400, openai(f"bad: {prompt}"), request_body={"messages": [{"role": "user", "content": prompt}]})
    assert "Anna" not in message.message


def test_agt_9_an_error_is_not_classified_by_the_prompt_it_quotes() -> None:
    request_body = {
        "messages": [{"role": "user", "content": "why is my prompt is too long, or my credit balance is too low?"}]
    }
    for words in (
        f"1 validation error [input_value={request_body!r}]",
        f"bad: messages = {json.dumps(request_body['messages'])}",
    ):
        assert judged(400, openai(words), request_body=request_body).error_type == "bad_request"
    # The vendor's own words count, even where the conversation has the same words.
    too_long = "prompt is too long: 215000 tokens > 200000 maximum"
    error = judged(400, openai(too_long), request_body={"messages": [{"role": "user", "content": too_long}]})
    assert error.error_type == "context_too_long"


@pytest.mark.parametrize(
    "filler", ["x", "thinking ", "encrypted content ", "a1-_", "1m1s", "retry in 1s ", '{"input": ']
)
def test_agt_9_only_the_beginning_of_a_huge_error_is_read(filler: str) -> None:
    huge = "Overloaded. " + filler * (5_000_000 // len(filler))
    for body in (huge, openai(huge), {"detail": [{"loc": ["body"], "msg": huge}] * 3}):
        assert len(judged(400, body).message) < 600
        assert cpu_seconds(partial(judged, 400, body)) < 0.5  # read to its end, it takes ten times as long
    assert judged(400, openai("?" * MAX_READ_CHARS + "prompt is too long")).error_type == "bad_request"


@pytest.mark.parametrize("filler", ["x", "a1-_", "a b ", "Ü "])
def test_agt_9_comparing_a_huge_request_takes_little_time(filler: str) -> None:
    huge = filler * (2_000_000 // len(filler))
    request = {"input": [{"role": "user", "content": huge}]}
    assert cpu_seconds(lambda: judged(400, openai(huge), request_body=request)) < 5


def test_agt_9_a_vendors_own_words_are_read_before_those_of_all() -> None:
    words = {"quota": (frozenset({"teapot"}), re.compile("prompt is too long for your plan"))}
    picky = replace(
        ACME, error_words=words, attachment_words={"too_many": (frozenset(), re.compile("one cat, please"))}
    )
    for status, error in ((400, {"code": "teapot"}), (400, {"message": "prompt is too long for your plan"})):
        assert error_from(status, {}, {"error": error}, vendor=picky, now=NOW).error_type == "quota"
    refusal = error_from(400, {}, {"error": {"message": "one cat, please"}}, vendor=picky, now=NOW).refusal
    assert refusal
    assert refusal.of_attachments
    assert refusal.of_attachments.problem == "too_many"
