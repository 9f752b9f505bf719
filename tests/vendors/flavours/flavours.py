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


def _error_type(violation: Violation) -> str:
    return "server_error" if violation.status >= 500 else "invalid_request_error"


def _as_openai(violation: Violation) -> Reply:
    error = {
        "message": violation.words,
        "type": _error_type(violation),
        "param": violation.parameter,
        "code": violation.code,
    }
    return Reply.error(violation.status, {"error": error})


def _as_mistral(violation: Violation) -> Reply:
    body: dict[str, Any] = {"object": "error", "type": "invalid_request_error", "param": None, "code": violation.code}
    message: object = violation.words
    if violation.status == 422:
        place = ["body", *(violation.parameter or "").split(".")]
        message = {"detail": [{"type": "extra_forbidden", "loc": place, "msg": "Extra inputs are not permitted"}]}
    return Reply.error(violation.status, {**body, "message": message})


def _as_llama_cpp(violation: Violation) -> Reply:
    error = {"code": violation.status, "message": violation.words, "type": _error_type(violation)}
    return Reply.error(violation.status, {"error": error})


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


def _chat(
    name: str, model: str, refuse: Callable[[Violation], Reply], dialect: ChatDialect, *validators: Validator
) -> Flavour:
    return Flavour(name, "openai-chat", model, (chat_rules.shape, *validators), refuse, dialect)


def _claude(name: str, model: str, *validators: Validator, vendor: str = "anthropic") -> Flavour:
    return Flavour(name, "anthropic", model, (anthropic_rules.shape, *validators), _as_anthropic, claude, vendor)


FLAVOURS = {
    flavour.name: flavour
    for flavour in (
        _chat(
            "mistral",
            "devstral-small-latest",
            _as_mistral,
            ChatDialect(lambda number: f"Call{number:05}"),
            chat_rules.mistral,
            chat_rules.no_blank_texts,
        ),
        _chat(
            "llama.cpp",
            "Devstral-Small-2-24B-Instruct-2512-UD-Q4_K_XL.gguf",
            _as_llama_cpp,
            ChatDialect(lambda number: f"{number:032}", thinking="reasoning_content"),
            chat_rules.alternating_with_tools,
            chat_rules.llama_cpp,
        ),
        _chat(
            "gemini",
            "gemini-3-pro-preview",
            _as_gemini,
            ChatDialect(lambda number: f"function-call-{number:019}", signs_calls=True),
            chat_rules.gemini,
            _GEMINI_FIELDS,
            chat_rules.no_blank_texts,
        ),
        _chat(
            "openrouter",
            "anthropic/claude-sonnet-4.5",
            _as_openrouter,
            ChatDialect(lambda number: f"toolu_vrtx_{number:012}", thinking="reasoning", has_details=True),
            chat_rules.openrouter_claude,
            chat_rules.no_blank_texts,
        ),
        _chat(
            "groq",
            "openai/gpt-oss-120b",
            _as_groq,
            ChatDialect(lambda number: f"fc_{number:08}-a1b2", thinking="reasoning"),
            _GROQ_FIELDS,
            chat_rules.max_answer(65_536, _GROQ_ANSWER),
            chat_rules.max_tools(128, "'tools' : maximum number of items is 128"),
        ),
        _chat(
            "deepseek",
            "deepseek-reasoner",
            _as_openai,
            ChatDialect(lambda number: f"call_00_{number:024}", thinking="reasoning_content"),
            chat_rules.deepseek,
            chat_rules.max_answer(8_192, "Invalid {name} value, the valid range of {name} is [1, {limit}]"),
            chat_rules.max_tools(128, "Invalid 'tools': array too long, at most 128 are allowed, but got {}"),
        ),
        _chat(
            "vllm",
            "google/gemma-3-27b-it",
            _as_vllm,
            ChatDialect(lambda number: f"chatcmpl-tool-{number:032}", thinking="reasoning_content"),
            chat_rules.alternating,
        ),
        _chat(
            "ollama",
            "qwen3:8b",
            _as_openai,
            ChatDialect(lambda number: f"call_{number:08}", thinking="reasoning"),
            chat_rules.ollama,
        ),
        _chat(
            "openai-chat",
            "gpt-5.5",
            _as_openai,
            ChatDialect(lambda number: f"call_{number:024}"),
            chat_rules.openai_chat,
            chat_rules.unknown_fields("Unrecognized request argument supplied: {0}"),
            chat_rules.max_tools(128, "Invalid 'tools': array too long. Expected at most 128, but got {}."),
        ),
        Flavour("openai", "openai", "gpt-5.5", (responses_rules.shape,), _as_openai, gpt),
        _claude(
            "anthropic",
            "claude-sonnet-5-5",
            anthropic_rules.claude_thinking(adaptive=True, budget=False, max_tokens=128_000),
            anthropic_rules.signed_thinking(binds_prefix=True),
        ),
        _claude(
            "claude-4.5",
            "claude-sonnet-4-5-20250929",
            anthropic_rules.claude_thinking(adaptive=False, budget=True, max_tokens=64_000),
            anthropic_rules.signed_thinking(binds_prefix=False),
        ),
        _claude("anthropic-compatible", "kimi-k3", anthropic_rules.compatible, vendor=""),
    )
}

ANY_CLAUDE = _claude("any-claude", "claude-sonnet-5-5", vendor="")
"""A Claude whose thinking a row describes."""

BY_NAME = {**FLAVOURS, ANY_CLAUDE.name: ANY_CLAUDE}
