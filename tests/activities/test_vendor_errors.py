"""What a vendor's failure means, whoever's and whatever its shape: AGT-9."""

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio.exceptions import ActivityError, ApplicationError, RetryState

from activities.failures import describe_failure
from activities.providers.protocol import ModelError
from activities.providers.vendor_errors import Vendor, error_of, quoted, retry_after_of, should_retry_of

ACME = Vendor(name="Acme", key="ACME_API_KEY", package="acme")
NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def judged(status: int, body: object = None, headers: Mapping[str, str] | None = None) -> ModelError:
    return error_of(status, headers or {}, body, vendor=ACME, now=NOW)


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


@given(st.dictionaries(st.sampled_from(["retry-after", "retry-after-ms"]), st.text(max_size=40)))
def test_agt_9_no_retry_after_is_taken_for_a_time_that_is_none(headers: dict[str, str]) -> None:
    seconds = retry_after_of(headers, now=NOW)
    assert seconds is None or (math.isfinite(seconds) and seconds >= 0)


@pytest.mark.parametrize(("said", "meant"), [("true", True), (" False ", False), ("1", None), ("", None)])
def test_agt_9_the_vendors_word_on_retrying_is_read(said: str, meant: bool | None) -> None:
    assert should_retry_of({"x-should-retry": said}) is meant
    assert judged(500, headers={"x-should-retry": said}).should_retry is meant


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
        (500, "provider_error"),
        (502, "provider_error"),
        (503, "overloaded"),
        (504, "timeout"),
        (520, "provider_error"),
        (529, "overloaded"),
        (200, "provider_error"),
        (304, "provider_error"),
    ],
)
@pytest.mark.parametrize("body", [None, "", "<html>Bad gateway</html>", {}, [], {"error": None}, {"error": {}}, 7])
def test_agt_9_without_words_the_status_decides(status: int, error_type: str, body: object) -> None:
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
def test_agt_9_no_quota_is_told_from_a_rate_limit(status: int, body: object) -> None:
    assert judged(status, body).error_type == "quota"


TOO_LONG = [
    (400, anthropic("invalid_request_error", "prompt is too long: 215000 tokens > 200000 maximum")),
    (
        400,
        anthropic(
            "invalid_request_error",
            "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease input length",
        ),
    ),
    (413, anthropic("request_too_large", "Request exceeds the maximum size")),
    (400, openai("This model's maximum context length is 128000 tokens.", code="context_length_exceeded")),
    (400, openai("Your input exceeds the context window of this model. Please adjust your input and try again.")),
    (400, openai("Input tokens exceed the configured limit of 272000 tokens.")),
    (429, openai("Request too large for gpt-5.5 on tokens per min (TPM): Limit 30000", code="rate_limit_exceeded")),
    (400, {"object": "error", "message": "This model's maximum context length is 4096 tokens.", "code": 400}),
    (400, {"error": {"message": "The decoder prompt (length 5000) is longer than the maximum model length of 4096."}}),
    (
        400,
        {
            "error": {
                "code": 400,
                "message": "the request exceeds the available context size, try increasing it",
                "type": "exceed_context_size_error",
                "n_ctx": 4096,
            }
        },
    ),
    (500, {"error": {"code": 500, "message": "Context size has been exceeded.", "type": "server_error"}}),
    (400, {"error": "Trying to keep the first 5000 tokens when context the overflows. However, the model is loaded "
                    "with context length of only 4096 tokens, which is not enough."}),
    (400, "The number of tokens to keep from the initial prompt is greater than the context length."),
    (400, {"error": {"message": "the input length exceeds the context length", "type": "api_error"}}),
    (400, openai("Prompt contains 40000 tokens, too large for model with 32768 maximum context length")),
    (400, openai("This model's maximum prompt length is 131072 but the request contains 537812 tokens.")),
    (400, openai("The input (5000 tokens) is longer than the model's context length (4096 tokens).")),
    (400, [{"error": {"code": 400, "message": "The input token count (1200000) exceeds the maximum number"}}]),
    (422, {"error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097"}),
    (400, {"message": "Input is too long for requested model."}),
]  # fmt: skip


@pytest.mark.parametrize(("status", "body"), TOO_LONG)
def test_agt_9_too_long_is_known_in_every_vendors_wording(status: int, body: object) -> None:
    assert judged(status, body).error_type == "context_too_long"


@pytest.mark.parametrize(
    "message",
    [
        "max_tokens: 200000 > 64000, which is the maximum allowed number of output tokens for claude-sonnet-4-5",
        "messages: text content blocks must be non-empty",
        "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024",
        "tools.0.custom.input_schema: JSON schema is invalid",
    ],
)
def test_agt_9_what_sounds_like_it_is_not_taken_for_too_long_or_stale(message: str) -> None:
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
        openai("The encrypted content gAAA… could not be verified.", code="invalid_encrypted_content"),
        openai("Item 'rs_1' of type 'reasoning' was provided without its required following item."),
        openai("Item with id 'rs_1' not found. Items are not persisted when `store` is set to false."),
    ],
)
@pytest.mark.parametrize("status", [400, 404])
def test_agt_9_reasoning_the_vendor_no_longer_takes_back_is_known(status: int, body: object) -> None:
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
        ({"code": "invalid_prompt", "message": "?"}, "bad_request"),
        ({"code": "content_filter", "message": "?"}, "refusal"),
        ({"code": "context_length_exceeded", "message": "?"}, "context_too_long"),
        ({"code": "server_is_overloaded", "message": "?"}, "overloaded"),
        ("overloaded", "provider_error"),
    ],
)
def test_agt_9_in_the_middle_of_a_stream_the_vendors_own_name_of_it_decides(body: object, error_type: str) -> None:
    assert judged(200, body).error_type == error_type


@pytest.mark.parametrize(
    ("status", "code", "error_type"),
    [(401, "invalid_api_key", "auth"), (404, "model_not_found", "not_found"), (400, "model_not_found", "not_found")],
)
def test_agt_9_openais_one_type_for_all_does_not_hide_the_status(status: int, code: str, error_type: str) -> None:
    assert judged(status, openai(code=code)).error_type == error_type


# ---- what is said


def shown(error: ModelError) -> str:
    failure = ActivityError(
        "failed",
        scheduled_event_id=1,
        started_event_id=2,
        identity="w",
        activity_type="call_model",
        activity_id="1",
        retry_state=RetryState.NON_RETRYABLE_FAILURE,
    )
    failure.__cause__ = ApplicationError(error.message, type=error.error_type, non_retryable=True)
    return describe_failure(failure)[1]


def test_agt_9_what_a_person_can_mend_is_told_apart() -> None:
    named = {"request-id": "req_1"}
    assert shown(judged(401, anthropic("authentication_error", "invalid x-api-key"), named)) == (
        "The model's provider did not accept the credentials: check ACME_API_KEY (HTTP 401, request req_1)."
    )
    assert shown(judged(403, anthropic("permission_error", "no"), named)) == (
        "The model's provider did not accept the credentials: the key in ACME_API_KEY lacks the permission; change it "
        "at Acme, or use another (HTTP 403, request req_1)."
    )
    assert shown(judged(402, None, {"x-request-id": "req_2"})) == (
        "The account with the model's provider has no quota left: add credit at Acme, or raise the spending limit "
        "there (HTTP 402, request req_2)."
    )
    assert shown(judged(404, anthropic("not_found_error", "model: claude-nobody"))) == (
        "The model was not found: check its name; Acme says “model: claude-nobody” (HTTP 404)."
    )
    assert shown(judged(400, openai("Unknown field 'x'.") | {"request_id": "req_3"})) == (
        "The model's provider did not accept the request: Acme says “Unknown field 'x'.” (HTTP 400, request req_3)."
    )
    assert shown(judged(400)) == ("The model's provider did not accept the request: Acme gives no reason (HTTP 400).")
    assert shown(judged(529, anthropic("overloaded_error"), named)) == (
        "The model's provider is overloaded: HTTP 529, request req_1."
    )
    assert shown(judged(200, anthropic("overloaded_error"), named)) == (
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
def test_agt_9_no_secret_of_a_vendors_words_is_shown(secret: str) -> None:
    for words in (f"Incorrect API key provided: {secret}.", f"header {secret}", f'{{"api_key": "{secret}"}}', secret):
        for status in (400, 404):
            assert secret.removeprefix("Bearer ") not in judged(status, openai(words)).message
    assert "hunter22" not in quoted("password=hunter22 at https://me:hunter22@proxy/")


@given(st.text(max_size=2_000))
def test_agt_9_a_vendors_words_are_one_short_line(words: str) -> None:
    line = quoted(words)
    assert len(line) <= 300
    assert line.isprintable()


@given(
    st.integers(min_value=100, max_value=599),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=30),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["error", "message", "type", "code", "details", "detail"]), inner)
        ),
        max_leaves=8,
    ),
)
def test_agt_9_no_body_is_too_odd_to_be_judged(status: int, body: object) -> None:
    error = judged(status, body)
    assert error.message
    assert "\n" not in error.message
    assert len(error.message) < 600


def test_agt_9_a_vendors_request_is_never_named_by_something_else() -> None:
    assert judged(500, None, {"request-id": "<script>"}).message == "HTTP 500"
    assert json.dumps(judged(500, {"request_id": ["x"]}).message) == '"HTTP 500"'
