"""Anthropic's Messages API on loopback. What it sends and receives is checked against the SDK's own types."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from tests.vendors.anthropic_cache import MAX_BREAKPOINTS
from tests.vendors.media import check_data, check_url
from tests.vendors.typed_dicts import TypedServer, adapter_of, check_request
from turnkeeper.activities.providers.anthropic.provider import AnthropicProvider
from turnkeeper.testing.vendor_server import BOUND, Answer, Call, Fault, Reply, sse

MODEL = "claude-sonnet-5-5"
KEY = "sk-ant-test-0123456789"

_EVENT = "anthropic.types:RawMessageStreamEvent"
_REQUEST = "anthropic.types.message_create_params:MessageCreateParamsStreaming"

_STOPS = {
    "end_turn": "end_turn",
    "tool_calls": "tool_use",
    "max_tokens": "max_tokens",
    "refusal": "refusal",
    "context_too_long": "model_context_window_exceeded",
}

FAULTS: dict[Fault, tuple[int, str, str]] = {
    "rate_limited": (
        429,
        "rate_limit_error",
        "This request would exceed your organization's rate limit of 50 requests",
    ),
    "overloaded": (529, "overloaded_error", "Overloaded"),
    "provider_error": (500, "api_error", "Internal server error"),
    "auth": (401, "authentication_error", "invalid x-api-key"),
    "permission": (403, "permission_error", "Your API key does not have permission to use the specified resource."),
    "quota": (400, "invalid_request_error", "Your credit balance is too low to access the Anthropic API."),
    "not_found": (404, "not_found_error", "model: claude-nobody"),
    "bad_request": (400, "invalid_request_error", "tools.0.name: String should match pattern '^[a-zA-Z0-9_-]{1,128}$'"),
    "context_too_long": (400, "invalid_request_error", "prompt is too long: 215000 tokens > 200000 maximum"),
    "stale_reasoning": (400, "invalid_request_error", "messages.1.content.0: Invalid `signature` in `thinking` block"),
}


class AnthropicWire(TypedServer):
    """`anthropic:`."""

    model = f"anthropic:{MODEL}"
    sdk_types = (_REQUEST, _EVENT)

    def check(self, body: Any) -> None:
        check_request(body, _REQUEST)
        _check_roles(body["messages"])
        _check_thinking(body)
        assert json.dumps(body).count('"cache_control"') <= MAX_BREAKPOINTS

    def system_of(self, body: Any) -> str:
        system = body.get("system", "")
        return system if isinstance(system, str) else "\n".join(block["text"] for block in system)

    def call_ids_of(self, body: Any) -> list[str]:
        return [block["id"] for block in _blocks(body) if block["type"] == "tool_use"]

    def result_ids_of(self, body: Any) -> list[str]:
        return [block["tool_use_id"] for block in _blocks(body) if block["type"] == "tool_result"]

    def reply(self, answer: Answer) -> Reply:
        return stream(*answer_events(answer))

    def fault(self, fault: Fault, headers: dict[str, str] | None = None) -> Reply:
        status, kind, message = FAULTS[fault]
        return Reply.error(status, error_body(kind, message), {"request-id": "req_fault", **(headers or {})})

    def fault_within(self, fault: Fault) -> Reply:
        _, kind, message = FAULTS[fault]
        reply = self.reply(Answer(text="half of an ans"))
        return Reply.stream([*reply.chunks[:3], sse({"type": "error", **error_body(kind, message)})])

    def provider(self, *, silence_timeout: float = BOUND) -> AnthropicProvider:
        return AnthropicProvider(silence_timeout=silence_timeout, base_url=self.base_url, api_key=KEY)


def error_body(kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_body"}


def stream(*events: dict[str, Any], is_known: bool = True) -> Reply:
    """A stream of these events; `is_known`: they are the vendor's of today."""
    if is_known:
        for event in events:
            adapter_of(_EVENT).validate_python(event)
    return Reply.stream(map(sse, events), {"request-id": "req_1"})


def answer_events(answer: Answer) -> Iterator[dict[str, Any]]:
    uncached = answer.input - answer.cached - answer.cache_write
    usage = {
        "input_tokens": uncached,
        "cache_read_input_tokens": answer.cached,
        "cache_creation_input_tokens": answer.cache_write,
        "output_tokens": 1,
    }
    yield message_start(usage)
    blocks = [thinking(answer.think)] if answer.think else []
    blocks += [text(answer.text)] if answer.text else []
    blocks += map(tool_use, answer.calls)
    for index, (start, deltas) in enumerate(blocks):
        yield from block_events(index, start, deltas)
    counted: dict[str, Any] = {"output_tokens": answer.output}
    if answer.reasoning:
        counted["output_tokens_details"] = {"thinking_tokens": answer.reasoning}
    yield from message_end(_STOPS[answer.ends_by], counted)


def message_start(usage: dict[str, Any] | None = None) -> dict[str, Any]:
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 100, "output_tokens": 1} if usage is None else usage,
    }
    return {"type": "message_start", "message": message}


def block_events(index: int, start: dict[str, Any], deltas: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    yield {"type": "content_block_start", "index": index, "content_block": start}
    for delta in deltas:
        yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}


def message_end(
    stop: str | None, usage: dict[str, Any] | None = None, details: dict[str, Any] | None = None
) -> Iterator[dict[str, Any]]:
    delta = {"stop_reason": stop, "stop_sequence": None, **({"stop_details": details} if details else {})}
    yield {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 20} if usage is None else usage}
    yield {"type": "message_stop"}


Block = tuple[dict[str, Any], list[dict[str, Any]]]
"""A block as the stream begins it, and its deltas."""


def thinking(thought: str, signature: str = "sig+/=") -> Block:
    deltas: list[dict[str, Any]] = [{"type": "thinking_delta", "thinking": piece} for piece in _halves(thought)]
    return {"type": "thinking", "thinking": "", "signature": ""}, [
        *deltas,
        {"type": "signature_delta", "signature": signature},
    ]


def text(words: str) -> Block:
    deltas: list[dict[str, Any]] = [{"type": "text_delta", "text": piece} for piece in _halves(words)]
    return {"type": "text", "text": "", "citations": None}, deltas


def tool_use(call: Call) -> Block:
    arguments = call.args if isinstance(call.args, str) else json.dumps(call.args)
    deltas: list[dict[str, Any]] = [{"type": "input_json_delta", "partial_json": piece} for piece in _halves(arguments)]
    start = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}, "caller": {"type": "direct"}}
    return start, deltas


def _halves(value: str) -> list[str]:
    middle = len(value) // 2
    return [piece for piece in (value[:middle], value[middle:]) if piece]


def _check_roles(messages: list[dict[str, Any]]) -> None:
    """Check the API's rules beyond its types: the order of roles, and every call directly followed by its result."""
    roles = [message["role"] for message in messages]
    assert roles == (["user", "assistant"] * len(roles))[: len(roles)]
    assert roles[-1] == "user"
    seen: set[str] = set()
    waiting: list[str] = []
    for message in messages:
        blocks = message["content"]
        assert all(block["text"].strip() for block in blocks if block["type"] == "text")
        for block in blocks:
            _check_medium(block)
            _check_result(block)
        assert [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"] == waiting
        assert [block["type"] for block in blocks[: len(waiting)]] == ["tool_result"] * len(waiting)
        waiting = [block["id"] for block in blocks if block["type"] == "tool_use"]
        assert len(set(waiting)) == len(waiting)
        assert not seen & set(waiting)
        seen.update(waiting)


def _check_result(block: dict[str, Any]) -> None:
    """Check the API's rules for results: parts that are not blank, and nothing but text in an error."""
    parts = block.get("content", []) if block["type"] == "tool_result" else []
    for part in [] if isinstance(parts, str) else parts:
        assert part["type"] in ("text", "image", "document")
        assert part.get("text", "-").strip(), "text content blocks must be non-empty"
        assert part["type"] == "text" or not block.get("is_error"), "all content must be type `text` if `is_error`"
        _check_medium(part)


def _check_medium(block: dict[str, Any]) -> None:
    kind = {"image": "image", "document": "application"}.get(block["type"])
    if kind is None:
        return
    source = block["source"]
    if source["type"] == "url":
        check_url(source["url"], kind=kind)
    else:
        check_data(source["media_type"], source["data"], kind=kind)


def _check_thinking(body: dict[str, Any]) -> None:
    """Check the API's rule for models with a thinking budget: an answer that continues begins with its thinking."""
    if body.get("thinking", {}).get("type") != "enabled" or "tool_result" not in _kinds(body["messages"][-1]):
        return
    began = max(at for at, message in enumerate(body["messages"][:-1]) if message["role"] == "user"
                and _kinds(message) != {"tool_result"}) + 1  # fmt: skip
    kind = body["messages"][began]["content"][0]["type"]
    assert kind in ("thinking", "redacted_thinking"), (
        f"messages.{began}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{kind}`"
    )


def _blocks(body: dict[str, Any]) -> list[dict[str, Any]]:
    return [block for message in body["messages"] for block in message["content"]]


def _kinds(message: dict[str, Any]) -> set[str]:
    return {block["type"] for block in message["content"]}
