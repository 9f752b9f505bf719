"""Messages of servers about an overflow, an empty account or a refused prompt, each in its own words (AGT-9).

Texts that were seen at vendors, routers and local servers, as they come on the wire.
"""

import json
from typing import Any

import pytest

from tests.activities.providers.test_vendor_errors import anthropic, judged, openai, sentence_of
from turnkeeper.activities.providers.answer_fields import UNCLEAR_ANSWER
from turnkeeper.activities.providers.vendor_errors import MIN_LARGE_REQUEST

Case = tuple[int, Any]


def wrapped(raw: object, *, code: int = 400, message: str = "Provider returned error") -> dict[str, Any]:
    """An error of a server behind OpenRouter."""
    return {"error": {"message": message, "code": code, "metadata": {"raw": raw, "provider_name": "Acme"}}}


VLLM_TOO_LONG = (
    "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens (8000 in the messages, "
    "1000 in the completion). Please reduce the length of the messages or completion."
)
TOO_LONG: dict[str, Case] = {
    "Anthropic": (400, anthropic("invalid_request_error", "prompt is too long: 215000 tokens > 200000 maximum")),
    "Anthropic, with the answer": (
        400,
        anthropic("invalid_request_error", "input length and `max_tokens` exceed context limit: 190000 + 20000"),
    ),
    "Anthropic, by its size": (413, anthropic("request_too_large", "Request exceeds the maximum size")),
    "Anthropic, without extra usage": (
        429,
        anthropic("rate_limit_error", "Extra usage is required for long context requests."),
    ),
    "Bedrock": (400, {"message": "Input is too long for requested model."}),
    "Vertex": (400, anthropic("invalid_request_error", "Prompt is too long")),
    "OpenAI": (400, openai("Too long", code="context_length_exceeded")),
    "OpenAI, Responses": (
        400,
        openai("Your input exceeds the context window of this model. Please adjust your input and try again."),
    ),
    "OpenAI, a configured limit": (400, openai("Input tokens exceed the configured limit of 272000 tokens.")),
    "Azure": (400, openai("This model's maximum context length is 128000 tokens.", code="context_length_exceeded")),
    "OpenRouter": (
        400,
        {
            "error": {
                "code": 400,
                "message": "This endpoint's maximum context length is 131072 tokens. However, you requested about "
                'N tokens. Please use the "middle-out" transform to compress your prompt automatically.',
            }
        },
    ),
    "OpenRouter, an input": (
        400,
        {"error": {"code": 400, "message": "Input length 265330 exceeds the maximum allowed input length of 1 token"}},
    ),
    "OpenRouter, wrapped JSON": (400, wrapped(json.dumps(openai(VLLM_TOO_LONG)))),
    "OpenRouter, wrapped text": (400, wrapped("Input is too long for requested model.")),
    "OpenRouter, a wrapped object": (400, wrapped({"object": "error", "message": VLLM_TOO_LONG, "code": 400})),
    "OpenRouter, wrapped in a list": (400, wrapped(json.dumps([openai(VLLM_TOO_LONG)]))),
    "OpenRouter, wrapped, in a stream": (200, wrapped(json.dumps(openai(VLLM_TOO_LONG)))),
    "Groq": (400, openai("Please reduce the length of the messages or completion.", code=None)),
    "Groq, for its rate": (
        413,
        openai("Request too large for model `qwen` on tokens per minute (TPM): Limit 12000, Requested 15000"),
    ),
    "Mistral": (400, openai("Prompt contains 40000 tokens, too large for model with 32768 maximum context length")),
    "Mistral, with drafts": (
        400,
        {
            "object": "error",
            "message": "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum "
            "context length",
            "type": "invalid_request_prompt",
            "code": "3051",
        },
    ),
    "Mistral, in a detail": (
        400,
        {"object": "error", "message": {"detail": "Prompt contains 40 tokens, too large for model with 32 maximum "
                                                  "context length"}, "type": "invalid_request_error"},
    ),
    "DeepSeek": (400, openai(VLLM_TOO_LONG)),
    "Gemini": (
        400,
        [{"error": {"code": 400, "message": "The input token count (1196265) exceeds the maximum number of tokens"}}],
    ),
    "Gemini, without the count": (
        400,
        {"error": {"code": 400, "message": "The input token count exceeds the maximum number of tokens."}},
    ),
    "Vertex, Gemini": (
        400,
        [{"error": {"code": 400, "message": "Unable to submit request because the input token count is 1251952 but "
                                            "model only supports up to 1048576. Reduce the input token count and try "
                                            "again.", "status": "INVALID_ARGUMENT"}}],
    ),
    "xAI": (400, openai("This model's maximum prompt length is 131072 but the request contains 537812 tokens.")),
    "vLLM": (400, {"object": "error", "message": VLLM_TOO_LONG, "code": 400}),
    "vLLM, a prompt": (
        400,
        openai("The decoder prompt (length 5000) is longer than the maximum model length of 4096."),
    ),
    "vLLM, with the answer": (
        400,
        openai("'max_tokens' is too large: 8024. This model's maximum context length is 8192 tokens and …"),
    ),
    "llama.cpp": (
        400,
        {"error": {"code": 400, "message": "the request exceeds it", "type": "exceed_context_size_error"}},
    ),
    "llama.cpp, earlier": (500, openai("the request exceeds the available context size. try increasing it")),
    "llama.cpp, Python": (400, openai("Requested tokens (5000) exceed context window of 4096", kind=None)),
    "LM Studio": (
        400,
        {"error": "Trying to keep the first 9 tokens when context the overflows. However, the model is loaded with "
                  "context length of only 8 tokens, which is not enough."},
    ),
    "LM Studio, tokens to keep": (
        400,
        {"error": "The number of tokens to keep from the initial prompt is greater than the context length."},
    ),
    "LM Studio, reached": (400, "Reached context length of 4096 tokens with this model"),
    "LM Studio, MLX": (500, {"error": "Context size has been exceeded."}),
    "LM Studio, from 0.4.21": (
        200,
        {"message": "Input does not fit in context length. The input has 359277 tokens, but the context length only "
                    "supports 262144 tokens."},
    ),
    "Ollama": (400, {"error": {"message": "the input length exceeds the context length", "type": "api_error"}}),
    "Ollama, by so much": (400, openai("prompt too long; exceeded max context length by 5 tokens", kind="api_error")),
    "Together": (400, openai("The input (5000 tokens) is longer than the model's context length (4096 tokens).")),
    "Together, TGI": (
        422,
        {"error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097. Given: 5000"},
    ),
    "Hugging Face": (
        422,
        {"error": "Input validation error: `inputs` must have less than 32,768 tokens. Given: 40000"},
    ),
    "Fireworks": (400, openai("The prompt is too long: 140000, model maximum context length: 131071")),
    "Cerebras": (
        400,
        openai("Please reduce the length of the messages or completion. Current length is 9000 while limit is 8192"),
    ),
    "Cohere, in all": (400, {"message": "too many tokens: total tokens must be less than or equal to 4096"}),
    "Cohere, a prompt": (
        400,
        {"message": "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 4292."},
    ),
    "Cohere": (400, {"message": "too many tokens: size limit exceeded by 11 tokens. Try using shorter inputs."}),
    "SGLang": (
        400,
        openai("Requested token count exceeds the model's maximum context length of 131072 tokens."),
    ),
    "SGLang, an input": (400, openai("Input length (265330) exceeds model's maximum context length (262144).")),
    "Databricks": (400, {"error_code": "BAD_REQUEST", "message": "prompt is too long: 2150 tokens > 2000 maximum"}),
    "LiteLLM": (
        400,
        openai(f"litellm.ContextWindowExceededError: litellm.BadRequestError: {VLLM_TOO_LONG}", kind=None),
    ),
    "nginx": (413, "<html><h1>413 Request Entity Too Large</h1></html>"),
    "Kimi": (400, openai("Invalid request: Your request exceeded model token limit: 262144 (requested: 291351)")),
    "MiniMax": (
        400,
        {"type": "error", "error": {"type": "bad_request_error",
                                    "message": "invalid params, context window exceeds limit (2013)"}},
    ),
    "DashScope": (
        400,
        {"error": {"code": "invalid_parameter_error", "type": "invalid_request_error", "param": None,
                   "message": "InternalError.Algo.InvalidParameter: Range of input length should be [1, 129024]"}},
    ),
    "Copilot": (400, openai("prompt token count of 135355 exceeds the limit of 128000", code=None)),
    "DS4": (400, openai("Prompt has 5000 tokens, but the configured context size is 4096 tokens")),
    "z.ai": (400, {"error": {"code": "1261", "message": "Prompt exceeds max length"}}),
    "z.ai, by its number": (400, {"error": {"code": 1261, "message": "Prompt 超长"}}),
}  # fmt: skip


@pytest.mark.parametrize("server", TOO_LONG)
def test_agt_9_a_context_overflow_is_recognised_in_every_servers_words(server: str) -> None:
    status, body = TOO_LONG[server]
    assert judged(status, body).error_type == "context_too_long"


@pytest.mark.parametrize("body", [None, "", {}, {"error": {}}])
@pytest.mark.parametrize("key", ["messages", "input"])
def test_agt_9_a_large_request_rejected_without_a_message_is_a_context_overflow(key: str, body: object) -> None:
    """As Cerebras does; a small one was refused for something else."""
    large = {"model": "m", key: [{"role": "user", "content": "x" * MIN_LARGE_REQUEST}]}
    small = {"model": "m", key: [{"role": "user", "content": "x"}]}
    assert judged(400, body, request_body=large).error_type == "context_too_long"
    assert judged(400, body, request_body=small).error_type == "bad_request"
    assert judged(400, openai("top_p: must be ≤ 1"), request_body=large).error_type == "bad_request"
    assert judged(404, body, request_body=large).error_type == "not_found"


def test_agt_9_an_image_that_is_too_large_is_not_a_context_overflow() -> None:
    assert judged(400, openai("Image exceeds the maximum allowed size of 20 MB")).error_type == "bad_request"


NO_QUOTA: dict[str, Case] = {
    "OpenAI": (429, openai("You exceeded your current quota", code="insufficient_quota", kind="insufficient_quota")),
    "Anthropic": (400, anthropic("invalid_request_error", "Your credit balance is too low to access the API.")),
    "DeepSeek": (402, openai("Insufficient Balance")),
    "OpenRouter, in a stream": (200, {"error": {"message": "Insufficient credits", "code": 402}}),
    "OpenRouter, a number alone": (200, {"error": {"message": "This request requires more.", "code": "402"}}),
    "OpenRouter, wrapped": (429, wrapped(json.dumps(openai("?", code="insufficient_quota")), code=429)),
    "Moonshot": (
        429,
        {"error": {"message": "Your account org-1 <ak-2> is suspended, please check your plan and billing details",
                   "type": "exceeded_current_quota_error"}},
    ),
    "Moonshot, without its type": (
        429,
        {"error": {"message": "Your account org-1 is suspended, please check your plan and billing details"}},
    ),
    "Zhipu": (429, {"error": {"code": "1113", "message": "您的账户已欠费"}}),
    "Zhipu, by its number": (429, {"error": {"code": 1113, "message": "Please recharge."}}),
    "Zhipu, in words": (429, {"error": {"message": "余额不足或无可用资源包,请充值。"}}),
    "DashScope": (400, {"code": "Arrearage", "message": "Access denied, make sure your account is in good standing."}),
    "DashScope, free tier": (
        403,
        openai("The free tier of the model has been exhausted. Please disable the \"use free tier only\" mode."),
    ),
    "Hugging Face": (402, {"error": "You have exceeded your monthly included credits for Inference Providers."}),
    "xAI": (
        403,
        {"code": "The caller does not have permission to execute the specified operation",
         "error": "Your team t-1 has either used all available credits or reached its monthly spending limit."},
    ),
    "xAI, a new team": (403, {"error": "Your newly created team doesn't have any credits yet."}),
    "OpenRouter, the key's limit": (403, {"error": {"code": 403, "message": "Key limit exceeded (total limit)."}}),
    "Anthropic, a workspace": (
        400,
        anthropic("invalid_request_error", "You have reached your specified workspace API usage limits. You will …"),
    ),
    "LiteLLM, a budget": (
        400, openai("Budget has been exceeded! Current cost: 20.1, Max budget: 20.0", kind="budget_exceeded")
    ),
    "LiteLLM, a budget without its type": (400, openai("ExceededBudget: User=u over budget. Spend=21, Budget=20")),
    "Fireworks": (
        412,
        {"error": "Account a-1 is suspended, possibly due to reaching the monthly spending limit or failure to pay."},
    ),
    "z.ai, a plan": (429, {"error": {"code": "1309", "message": "Your GLM Coding Plan package has expired"}}),
    "z.ai, a plan without its number": (429, {"error": {"message": "Your plan has expired, please renew it."}}),
    "z.ai, a week": (429, {"error": {"message": "Weekly/Monthly Limit Exhausted. Your limit will reset at …"}}),
    "Ollama, a week": (429, {"error": "you (me) have reached your weekly usage limit, upgrade for higher limits"}),
}  # fmt: skip


@pytest.mark.parametrize("server", NO_QUOTA)
def test_agt_9_an_empty_account_is_recognised_in_every_servers_words(server: str) -> None:
    status, body = NO_QUOTA[server]
    assert judged(status, body).error_type == "quota"


NO_KEY: dict[str, Case] = {
    "Gemini": (
        400,
        [{"error": {"code": 400, "message": "API key not valid. Please pass a valid API key.",
                    "status": "INVALID_ARGUMENT"}}],
    ),
    "Gemini, an old one": (400, openai("API key expired. Please renew the API key.")),
    "xAI": (
        400,
        {"code": "Client specified an invalid argument", "error": "Incorrect API key provided: xa***1."},
    ),
}  # fmt: skip


@pytest.mark.parametrize("server", NO_KEY)
def test_agt_9_a_wrong_key_is_recognised_in_every_servers_words(server: str) -> None:
    status, body = NO_KEY[server]
    assert judged(status, body).error_type == "auth"


@pytest.mark.parametrize("status", [400, 403])
def test_agt_9_an_unsupported_region_is_not_a_key_error(status: int) -> None:
    error = judged(status, openai("User location is not supported for the API use."))
    assert error.error_type == "bad_request"
    assert "location is not supported" in error.message
    assert error.refusal is None, "no part of the request is the reason"


@pytest.mark.parametrize("status", [500, 501])
def test_agt_9_an_image_that_a_local_server_rejects_is_not_retried(status: int) -> None:
    body = openai("image input is not supported - hint: you may need to provide the mmproj", kind="server_error")
    assert judged(status, body).error_type == "bad_request"


@pytest.mark.parametrize(
    "words",
    [
        "My API key is invalid, what now?",
        "I have reached my limit: insufficient credits on the account",
        "They said that the prompt is too long for them",
        "She told me your plan has expired",
        "The input was flagged by somebody as odd",
    ],
)
def test_agt_9_words_of_the_conversation_do_not_change_the_error_type(words: str) -> None:
    body = {"messages": [{"role": "user", "content": f"Well. {words} Tell me."}]}
    refused = openai(f"Invalid value for messages[0]: {words}")
    assert judged(400, refused, request_body=body).error_type == "bad_request"


@pytest.mark.parametrize("before", ["", "litellm.BadRequestError: AnthropicException - "])
@pytest.mark.parametrize(
    "quoted", ["prompt is too long", "prompt is too long: 215000 tokens > 200000 maximum", "is too long", "nothing"]
)
def test_agt_9_an_error_that_the_conversation_quotes_is_still_recognised(before: str, quoted: str) -> None:
    error = openai(f"{before}prompt is too long: 230000 tokens > 200000 maximum")
    body = {"messages": [{"role": "user", "content": f"It said: {before}{quoted}. Why?"}]}
    assert judged(400, error, request_body=body).error_type == "context_too_long"


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "Invalid API key parameter in the schema of a tool"),
        (400, "tools.0: the plan must be an object"),
        (429, "You have reached the limit of requests per minute"),
        (403, "m requires moderation. No credits were charged."),
    ],
)
def test_agt_9_similar_messages_are_not_mistaken_for_key_or_account_errors(status: int, message: str) -> None:
    expected = {400: "bad_request", 403: "auth", 429: "rate_limited"}[status]
    assert judged(status, openai(message)).error_type == expected


REFUSED: dict[str, Case] = {
    "OpenAI": (
        400,
        openai("Invalid prompt: your prompt was flagged as potentially violating our usage policy.",
               code="invalid_prompt"),
    ),
    "OpenAI, without its code": (400, openai("Your prompt was flagged as potentially violating our usage policy.")),
    "OpenAI, bio": (200, {"code": "bio_policy", "message": "?"}),
    "OpenAI, cyber": (200, {"code": "cyber_policy", "message": "?"}),
    "OpenAI, misalignment": (200, {"code": "misalignment_policy_violation", "message": "?"}),
    "OpenAI, an image": (200, {"code": "image_content_policy_violation", "message": "?"}),
    "Azure": (
        400,
        openai("The response was filtered due to the prompt triggering Azure OpenAI's content management policy.",
               code="content_filter"),
    ),
    "OpenRouter": (
        403,
        {"error": {"code": 403, "message": 'm requires moderation on OpenAI. Your input was flagged for "violence". No '
                                           "credits were charged.", "metadata": {"reasons": ["violence"]}}},
    ),
    "OpenRouter, in a stream": (
        200, {"error": {"code": 403, "message": 'm requires moderation on OpenAI. Your input was flagged for "x".'}}
    ),
    "Anthropic": (200, anthropic("invalid_request_error", "Output blocked by content filtering policy")),
    "DeepSeek": (400, openai("Content Exists Risk")),
    "DashScope": (
        400, {"error": {"code": "data_inspection_failed", "message": "Input data may contain inappropriate content."}}
    ),
    "Moonshot": (
        400,
        {"error": {"message": "The request was rejected because it was considered high risk.",
                   "type": "content_filter"}},
    ),
    "Zhipu": (400, {"error": {"code": "1301", "message": "系统检测到输入或生成内容可能包含不安全或敏感内容。"}}),
    "MiniMax": (400, openai("input new_sensitive (1026)", kind="bad_request_error")),
    "xAI": (403, {"code": "The caller does not have permission", "error": "Content violates usage guidelines. "
                  "Failed check: SAFETY_CHECK_TYPE_BIO"}),
}  # fmt: skip


@pytest.mark.parametrize("server", REFUSED)
def test_agt_9_a_content_policy_refusal_is_recognised_in_every_servers_words(server: str) -> None:
    status, body = REFUSED[server]
    assert judged(status, body).error_type == "refusal"


@pytest.mark.parametrize(
    ("status", "body", "error_type"),
    [
        (404, openai("No endpoints found matching your data policy. Enable prompt training."), "not_found"),
        (403, openai("This key may not use the content endpoints."), "auth"),
        (400, openai("The policy of this tool must be an object"), "bad_request"),
        (429, openai("The engine is overloaded, try later", kind="engine_overloaded_error"), "rate_limited"),
        (200, {"error": {"code": 1302, "message": "Too many requests"}}, "provider_error"),
    ],
)
def test_agt_9_similar_messages_are_not_mistaken_for_refusals_or_empty_accounts(
    status: int, body: object, error_type: str
) -> None:
    assert judged(status, body).error_type == error_type


@pytest.mark.parametrize(
    "words",
    [
        "Function call is missing a thought_signature in functionCall parts. This is required for tools to work.",
        "Thought signature is not valid.",
        "Corrupted thought signature.",
    ],
)
def test_agt_9_geminis_missing_signature_is_stale_reasoning(words: str) -> None:
    body = [{"error": {"code": 400, "message": words, "status": "INVALID_ARGUMENT"}}]
    assert judged(400, body).error_type == "stale_reasoning"
    assert judged(400, wrapped(json.dumps(body))).error_type == "stale_reasoning"


def test_agt_9_a_call_that_the_vendor_could_not_parse_is_retried_a_few_times() -> None:
    body = openai("Failed to call a function. See 'failed_generation' for more details.", code="tool_use_failed")
    error = judged(400, body)
    assert (error.error_type, error.lasting) == ("provider_error", UNCLEAR_ANSWER)


@pytest.mark.parametrize("code", [401, 402, 403, 404, 429, 400, 502, 503])
@pytest.mark.parametrize("kind", [int, str])
def test_agt_9_an_error_code_in_a_stream_counts_as_the_status(code: int, kind: type) -> None:
    assert judged(200, {"error": {"code": kind(code), "message": "?"}}).error_type == judged(code, None).error_type


@pytest.mark.parametrize("code", [True, 0, 200, 399, 600, -402, 10**9, 4.02, "40x", "٤٠٢", None])
def test_agt_9_an_error_code_that_is_not_a_status_is_ignored(code: object) -> None:
    assert judged(200, {"error": {"code": code, "message": "?"}}).error_type == "provider_error"


def test_agt_9_a_routers_message_includes_the_upstream_message() -> None:
    body = wrapped(json.dumps(openai("top_p: must be ≤ 1")))
    assert "Acme says “top_p: must be ≤ 1”" in sentence_of(judged(400, body))
    body = wrapped("temporarily rate-limited upstream", message="The model is busy:")
    assert "“The model is busy: temporarily rate-limited upstream”" in judged(400, body).message
    flagged = judged(403, REFUSED["OpenRouter"][1])
    assert "Your input was flagged for" in flagged.message


@pytest.mark.parametrize(
    "raw", [None, "", "{", "[", [], {}, 7, "[[[[", {"error": "x"}, [[]], "null", "{}", '{"error": 7}']
)
def test_agt_9_any_error_wrapped_by_a_router_is_classified(raw: object) -> None:
    assert judged(400, wrapped(raw)).error_type == "bad_request"


def test_agt_9_a_routers_reset_time_is_read_from_its_body() -> None:
    soon = str(round(1_795_262_406.0 * 1000))
    body = {"error": {"code": 429, "message": "Rate limit exceeded: free-models-per-day",
                      "metadata": {"headers": {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": soon}}}}  # fmt: skip
    error = judged(429, body)
    assert error.error_type == "rate_limited"
    assert error.retry_after is not None


UNSEEN_TOO_LONG = [
    "Too many input tokens. Max input tokens: 300000, request input token count: 315000",
    "Malformed input request: expected maxLength: 50000, actual: 52611, please reformat your input and try again.",
    "AiError: The estimated number of input and maximum output tokens (13000) exceeded this model context window"
    " limit (8000).",
    "5021: This model has a context limit of 8000, you sent 13000 tokens",
    "the number of input tokens 9000 cannot exceed the total tokens limit 8192 for this model",
    "Prompt has 9000 tokens, the limit is 8192",
    "Request body too large for the model. Max size: 8000 tokens.",
    "Requested input length 140000 exceeds maximum input length 131072",
    "tokens in request more than max tokens allowed",
    "The input is longer than the 32768 tokens that this model takes",
    "Input sequence length (9001) is larger than the engine's 8192",
    "Prompt length 40960 over the context of 32768",
    "prompt (9000 tokens) does not fit into the context (8192)",
    "the request exceeds the available context: 9000 > 8192",
    "Conversation too long: 200321 of 200000",
    "输入长度超过上下文限制 8192",
    "messages are too large: 131072 is the maximum",
]


@pytest.mark.parametrize("status", [400, 422, 500])
@pytest.mark.parametrize("text", UNSEEN_TOO_LONG)
def test_agt_9_a_context_overflow_is_recognised_in_unfamiliar_words(status: int, text: str) -> None:
    assert judged(status, openai(text)).error_type == "context_too_long"


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens: 32000 > 8192, which is the maximum allowed number of output tokens",
        "max_tokens is too large: 100000. This model supports at most 4096 completion tokens.",
        "Invalid 'max_output_tokens': integer above maximum value. Expected a value <= 16384, but got 32000.",
        "The maximum number of output tokens is 8192, but 32000 were requested",
        "Invalid 'tools': array too long. Expected an array with maximum length 128, but got 200.",
        "Invalid 'input[3].id': string too long. Expected a string with maximum length 64, but got 320.",
        "messages.0.content.1.image: image exceeds 5 MB maximum: 6966696 bytes > 5242880 bytes",
        "thinking.budget_tokens must be at least 1024, or the budget is too large",
        "Too many tokens per minute: 30000, the limit is 20000",
    ],
)
def test_agt_9_other_limits_with_a_number_are_not_context_overflows(text: str) -> None:
    assert judged(400, openai(text)).error_type == "bad_request"
