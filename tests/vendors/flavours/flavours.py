"""The vendors: their rules, the words of their refusals, and how they answer."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tests.vendors.flavours import anthropic_rules, chat_rules, responses_rules
from tests.vendors.flavours.answers import ChatDialect, Render, claude, gpt
from tests.vendors.flavours.rules import Body, Issued, Validator, Violation
from turnkeeper.testing.vendor_server import Reply

Api = Literal["anthropic", "openai", "openai-chat"]


@dataclass(frozen=True)
class Flavour:
    """One vendor. `model` is the name that its API gets."""

    name: str
    api: Api
    model: str
    validators: Sequence[Validator]
    refuse: Callable[[Violation], Reply]
    render: Render
    vendor: str = ""
    """Flavours of the same vendor accept each other's signatures; empty: it is alone."""

    def violation_of(self, body: Body, issued: Issued) -> Violation | None:
        """Return the first rule that the request breaks."""
        for validator in self.validators:
            for violation in validator(body, issued):
                return violation
        return None


# ---- how vendors refuse


def _as_openai(violation: Violation) -> Reply:
    kind = "server_error" if violation.status >= 500 else "invalid_request_error"
    error = {"message": violation.words, "type": kind, "param": violation.parameter, "code": violation.code}
    return Reply.error(violation.status, {"error": error})


def _as_mistral(violation: Violation) -> Reply:
    body: dict[str, Any] = {"object": "error", "type": "invalid_request_error", "param": None, "code": violation.code}
    message: object = violation.words
    if violation.status == 422:
        place = ["body", *(violation.parameter or "").split(".")]
        message = {"detail": [{"type": "extra_forbidden", "loc": place, "msg": "Extra inputs are not permitted"}]}
    return Reply.error(violation.status, {**body, "message": message})


def _as_llama_cpp(violation: Violation) -> Reply:
    kind = "server_error" if violation.status >= 500 else "invalid_request_error"
    return Reply.error(
        violation.status, {"error": {"code": violation.status, "message": violation.words, "type": kind}}
    )


def _as_gemini(violation: Violation) -> Reply:
    error = {"code": violation.status, "message": violation.words, "status": "INVALID_ARGUMENT"}
    return Reply.error(violation.status, [{"error": error}])


def _as_anthropic(violation: Violation) -> Reply:
    error = {"type": "invalid_request_error", "message": violation.words}
    return Reply.error(violation.status, {"type": "error", "error": error, "request_id": "req_1"})


def _as_openrouter(violation: Violation) -> Reply:
    raw = json.dumps({"type": "error", "error": {"type": "invalid_request_error", "message": violation.words}})
    metadata = {"raw": raw, "provider_name": "Anthropic"}
    error = {"message": "Provider returned error", "code": violation.status, "metadata": metadata}
    return Reply.error(violation.status, {"error": error})


def _as_groq(violation: Violation) -> Reply:
    return Reply.error(violation.status, {"error": {"message": violation.words, "type": "invalid_request_error"}})


def _as_vllm(violation: Violation) -> Reply:
    body = {"object": "error", "message": violation.words, "type": "BadRequestError", "param": None}
    return Reply.error(violation.status, {**body, "code": violation.status})


# ---- the vendors

_CHAT = (chat_rules.shape,)
_ANTHROPIC = (anthropic_rules.shape,)

_GROQ_FIELDS = chat_rules.unknown_fields(
    "property '{0}' is unsupported",
    message_words="'messages.{index}' : for 'role:{role}' the following must be satisfied[('messages.{index}' : "
    "property '{0}' is unsupported)]",
)
_GEMINI_FIELDS = chat_rules.unknown_fields(
    'Invalid JSON payload received. Unknown name "{0}": Cannot find field.',
    allowed={"extra_content", "reasoning_content"},
)
_GROQ_ANSWER = (
    "`{name}` must be less than or equal to `{limit}`, the maximum value for `{name}` is less than the "
    "`context_window` for this model"
)

FLAVOURS = {
    flavour.name: flavour
    for flavour in (
        Flavour(
            "mistral",
            "openai-chat",
            "devstral-small-latest",
            [*_CHAT, chat_rules.mistral, chat_rules.no_blank_texts],
            _as_mistral,
            ChatDialect(lambda number: f"Call{number:05}"),
        ),
        Flavour(
            "llama.cpp",
            "openai-chat",
            "Devstral-Small-2-24B-Instruct-2512-UD-Q4_K_XL.gguf",
            [*_CHAT, chat_rules.alternating_with_tools, chat_rules.llama_cpp],
            _as_llama_cpp,
            ChatDialect(lambda number: f"{number:032}", thinking="reasoning_content"),
        ),
        Flavour(
            "gemini",
            "openai-chat",
            "gemini-3-pro-preview",
            [*_CHAT, chat_rules.gemini, _GEMINI_FIELDS, chat_rules.no_blank_texts],
            _as_gemini,
            ChatDialect(lambda number: f"function-call-{number:019}", signs_calls=True),
        ),
        Flavour(
            "openrouter",
            "openai-chat",
            "anthropic/claude-sonnet-4.5",
            [*_CHAT, chat_rules.openrouter_claude, chat_rules.no_blank_texts],
            _as_openrouter,
            ChatDialect(lambda number: f"toolu_vrtx_{number:012}", thinking="reasoning", has_details=True),
        ),
        Flavour(
            "groq",
            "openai-chat",
            "openai/gpt-oss-120b",
            [
                *_CHAT,
                _GROQ_FIELDS,
                chat_rules.max_answer(65_536, _GROQ_ANSWER),
                chat_rules.max_tools(128, "'tools' : maximum number of items is 128"),
            ],
            _as_groq,
            ChatDialect(lambda number: f"fc_{number:08}-a1b2", thinking="reasoning"),
        ),
        Flavour(
            "deepseek",
            "openai-chat",
            "deepseek-reasoner",
            [
                *_CHAT,
                chat_rules.deepseek,
                chat_rules.max_answer(8_192, "Invalid {name} value, the valid range of {name} is [1, {limit}]"),
                chat_rules.max_tools(128, "Invalid 'tools': array too long, at most 128 are allowed, but got {}"),
            ],
            _as_openai,
            ChatDialect(lambda number: f"call_00_{number:024}", thinking="reasoning_content"),
        ),
        Flavour(
            "vllm",
            "openai-chat",
            "google/gemma-3-27b-it",
            [*_CHAT, chat_rules.alternating],
            _as_vllm,
            ChatDialect(lambda number: f"chatcmpl-tool-{number:032}", thinking="reasoning_content"),
        ),
        Flavour(
            "ollama",
            "openai-chat",
            "qwen3:8b",
            [*_CHAT, chat_rules.ollama],
            _as_openai,
            ChatDialect(lambda number: f"call_{number:08}", thinking="reasoning"),
        ),
        Flavour(
            "openai-chat",
            "openai-chat",
            "gpt-5.5",
            [
                *_CHAT,
                chat_rules.openai_chat,
                chat_rules.unknown_fields("Unrecognized request argument supplied: {0}"),
                chat_rules.max_tools(128, "Invalid 'tools': array too long. Expected at most 128, but got {}."),
            ],
            _as_openai,
            ChatDialect(lambda number: f"call_{number:024}"),
        ),
        Flavour("openai", "openai", "gpt-5.5", [responses_rules.shape], _as_openai, gpt),
        Flavour(
            "anthropic",
            "anthropic",
            "claude-sonnet-5-5",
            [
                *_ANTHROPIC,
                anthropic_rules.claude_thinking(adaptive=True, budget=False, max_tokens=128_000),
                anthropic_rules.signed_thinking(binds_prefix=True),
            ],
            _as_anthropic,
            claude,
            vendor="anthropic",
        ),
        Flavour(
            "claude-4.5",
            "anthropic",
            "claude-sonnet-4-5-20250929",
            [
                *_ANTHROPIC,
                anthropic_rules.claude_thinking(adaptive=False, budget=True, max_tokens=64_000),
                anthropic_rules.signed_thinking(binds_prefix=False),
            ],
            _as_anthropic,
            claude,
            vendor="anthropic",
        ),
        Flavour(
            "anthropic-compatible",
            "anthropic",
            "kimi-k3",
            [*_ANTHROPIC, anthropic_rules.compatible],
            _as_anthropic,
            claude,
        ),
    )
}

ANY_CLAUDE = Flavour("any-claude", "anthropic", "claude-sonnet-5-5", _ANTHROPIC, _as_anthropic, claude)
"""A Claude whose thinking a row describes."""

BY_NAME = {**FLAVOURS, ANY_CLAUDE.name: ANY_CLAUDE}
