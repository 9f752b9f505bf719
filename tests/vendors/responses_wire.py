"""OpenAI's Responses API on loopback. What it sends and receives is checked against the SDK's own types."""

import json
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

from tests.vendors.media import check_url
from tests.vendors.typed_dicts import TypedServer, adapter_of, check_request
from turnkeeper.activities.providers.openai.responses import OpenAIProvider
from turnkeeper.testing.vendor_server import BOUND, Answer, Call, Fault, Reply, sse

MODEL = "gpt-5.5"
KEY = "sk-test-0123456789"

_EVENT = "openai.types.responses:ResponseStreamEvent"
_REQUEST = "openai.types.responses.response_create_params:ResponseCreateParamsStreaming"

FAULTS: dict[Fault, tuple[int, str, str | None, str]] = {
    "rate_limited": (429, "requests", "rate_limit_exceeded", "Rate limit reached for gpt-5.5 on requests per min."),
    "overloaded": (503, "server_error", "server_is_overloaded", "The engine is currently overloaded."),
    "provider_error": (500, "server_error", "server_error", "The server had an error while processing your request."),
    "auth": (401, "invalid_request_error", "invalid_api_key", f"Incorrect API key provided: {KEY}."),
    "permission": (403, "invalid_request_error", "insufficient_permissions", "You have insufficient permissions."),
    "quota": (429, "insufficient_quota", "insufficient_quota", "You exceeded your current quota, check your plan."),
    "not_found": (404, "invalid_request_error", "model_not_found", "The model `gpt-nobody` does not exist."),
    "bad_request": (400, "invalid_request_error", "invalid_type", "Invalid type for 'tools[0].name'."),
    "context_too_long": (
        400,
        "invalid_request_error",
        "context_length_exceeded",
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
    ),
    "stale_reasoning": (
        400,
        "invalid_request_error",
        "invalid_encrypted_content",
        "The encrypted content for item rs_1 could not be verified. Reason: Encrypted content could not be decrypted.",
    ),
}

Item = dict[str, Any]
"""An item of the output, whole, as `response.output_item.done` has it."""


class ResponsesWire(TypedServer):
    """`openai:`."""

    model = f"openai:{MODEL}"
    sdk_types = (_REQUEST, _EVENT)

    def check(self, body: Any) -> None:
        check_request(body, _REQUEST)
        assert body["store"] is False
        _check_pairs(body["input"])
        for item in body["input"]:
            if item.get("type") == "function_call_output":
                _check_content(item["output"])
            elif item.get("role") == "user":
                _check_content(item["content"])

    def system_of(self, body: Any) -> str:
        return str(body.get("instructions") or "")

    def call_ids_of(self, body: Any) -> list[str]:
        return [item["call_id"] for item in body["input"] if item.get("type") == "function_call"]

    def result_ids_of(self, body: Any) -> list[str]:
        return [item["call_id"] for item in body["input"] if item.get("type") == "function_call_output"]

    def reply(self, answer: Answer) -> Reply:
        return stream(*answer_events(answer))

    def fault(self, fault: Fault, headers: dict[str, str] | None = None) -> Reply:
        status, kind, code, message = FAULTS[fault]
        return Reply.error(status, error_body(kind, code, message), {"x-request-id": "req_fault", **(headers or {})})

    def fault_within(self, fault: Fault) -> Reply:
        _, _, code, message = FAULTS[fault]
        reply = self.reply(Answer(text="half of an ans"))
        return Reply.stream([*reply.chunks[:5], sse(error_event(code, message))], {"x-request-id": "req_fault"})

    def provider(self, *, silence_timeout: float = BOUND) -> OpenAIProvider:
        return OpenAIProvider(silence_timeout=silence_timeout, base_url=self.base_url, api_key=KEY)


def error_body(kind: str, code: str | None, message: str, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error_event(code: str | None, message: str) -> dict[str, Any]:
    event = {"type": "error", "code": code, "message": message, "param": None, "sequence_number": 9}
    adapter_of(_EVENT).validate_python(event)
    return event


def stream(*events: dict[str, Any], is_known: bool = True) -> Reply:
    """A stream of these events; `is_known`: they are the vendor's of today."""
    if is_known:
        for event in events:
            adapter_of(_EVENT).validate_python(event)
    return Reply.stream(map(sse, events), {"x-request-id": "req_1"})


def answer_events(answer: Answer) -> Iterator[dict[str, Any]]:
    """Render a neutral answer. A context that turns out too long is an error event here."""
    items = [reasoning(answer.think)] if answer.think else []
    items += [refusal(answer.text)] if answer.stop == "refusal" else [message(answer.text)] if answer.text else []
    items += map(function_call, answer.calls)
    end = incomplete("max_output_tokens") if answer.stop == "max_tokens" else {"status": "completed"}
    events = list(events_of(items, end, usage=usage_of(answer)))
    if answer.stop == "context_too_long":
        events[-1] = error_event("context_length_exceeded", "Your input exceeds the context window of this model.")
    yield from events


def usage_of(answer: Answer) -> dict[str, Any]:
    return {
        "input_tokens": answer.input,
        "input_tokens_details": {"cached_tokens": answer.cached, "cache_write_tokens": answer.cache_write},
        "output_tokens": answer.output,
        "output_tokens_details": {"reasoning_tokens": answer.reasoning},
        "total_tokens": answer.input + answer.output,
    }


def events_of(
    items: Iterable[Item], end: dict[str, Any] | None = None, *, usage: dict[str, Any] | None = None
) -> Iterator[dict[str, Any]]:
    """Stream `items`, then what `end` says of the response; by default it is completed."""
    items, end = list(items), end or {"status": "completed"}
    numbers = count()
    for event in _unnumbered(items, end, usage):
        yield {**event, "sequence_number": next(numbers)}


def _unnumbered(items: list[Item], end: dict[str, Any], usage: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    response = response_object({"status": "in_progress"}, [], None)
    yield {"type": "response.created", "response": response}
    yield {"type": "response.in_progress", "response": response}
    for index, item in enumerate(items):
        unfinished = {**item, "status": "in_progress"} if "status" in item else item
        yield {"type": "response.output_item.added", "output_index": index, "item": {**unfinished, **_empty(item)}}
        yield from ({**event, "output_index": index} for event in _deltas(item))
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": f"response.{end['status']}", "response": response_object(end, items, usage)}


def response_object(end: dict[str, Any], items: list[Item], usage: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1_790_000_000,
        "model": f"{MODEL}-2026-04-23",
        "output": items,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": usage,
        "error": None,
        "incomplete_details": None,
        **end,
    }


def incomplete(reason: str) -> dict[str, Any]:
    return {"status": "incomplete", "incomplete_details": {"reason": reason}}


def failed(code: str, message: str) -> dict[str, Any]:
    return {"status": "failed", "error": {"code": code, "message": message}}


def reasoning(summary: str, encrypted: str | None = "gAAAAAB+/=", id: str = "rs_1") -> Item:
    item: Item = {"type": "reasoning", "id": id, "summary": [{"type": "summary_text", "text": summary}]}
    return item if encrypted is None else {**item, "encrypted_content": encrypted}


def message(text: str, phase: str | None = "final_answer", id: str = "msg_1") -> Item:
    content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
    item = {"type": "message", "id": id, "role": "assistant", "status": "completed", "content": content}
    return item if phase is None else {**item, "phase": phase}


def refusal(text: str, id: str = "msg_1") -> Item:
    content = [{"type": "refusal", "refusal": text}]
    return {"type": "message", "id": id, "role": "assistant", "status": "completed", "content": content}


def function_call(call: Call) -> Item:
    arguments = call.args if isinstance(call.args, str) else json.dumps(call.args)
    return {
        "type": "function_call",
        "id": f"fc_{call.id}",
        "call_id": call.id,
        "name": call.name,
        "arguments": arguments,
        "status": "completed",
    }


def _empty(item: Item) -> Item:
    """Return how the growing fields of an item begin."""
    growing = {"reasoning": {"summary": []}, "message": {"content": []}, "function_call": {"arguments": ""}}
    return growing.get(item["type"], {})


def _deltas(item: Item) -> Iterator[dict[str, Any]]:
    match item:
        case {"type": "reasoning", "id": str(id), "summary": list(summary)}:
            for index, part in enumerate(summary):
                for piece in halves(part["text"]):
                    yield {
                        "type": "response.reasoning_summary_text.delta",
                        "item_id": id,
                        "summary_index": index,
                        "delta": piece,
                    }
        case {"type": "message", "id": str(id), "content": [{"type": "output_text", "text": str(text)}]}:
            for piece in halves(text):
                place = {"item_id": id, "content_index": 0, "logprobs": []}
                yield {"type": "response.output_text.delta", **place, "delta": piece}
        case {"type": "message", "id": str(id), "content": [{"type": "refusal", "refusal": str(text)}]}:
            for piece in halves(text):
                yield {"type": "response.refusal.delta", "item_id": id, "content_index": 0, "delta": piece}
        case {"type": "function_call", "id": str(id), "arguments": str(arguments)}:
            for piece in halves(arguments):
                yield {"type": "response.function_call_arguments.delta", "item_id": id, "delta": piece}


def halves(value: str) -> list[str]:
    middle = len(value) // 2
    return [piece for piece in (value[:middle], value[middle:]) if piece]


def _check_pairs(items: list[Item]) -> None:
    """Check the API's rules beyond its types: every call has its output, and reasoning can be decoded."""
    calls = [item["call_id"] for item in items if item.get("type") == "function_call"]
    arguments = [json.loads(item["arguments"]) for item in items if item.get("type") == "function_call"]
    assert all(isinstance(value, dict) for value in arguments)
    outputs = [item["call_id"] for item in items if item.get("type") == "function_call_output"]
    assert calls == outputs
    assert len(set(calls)) == len(calls)
    assert all(item.get("encrypted_content") for item in items if item.get("type") == "reasoning")


def _check_content(parts: Any) -> None:
    """Check the parts of a user's message or of a call's output."""
    for part in parts if isinstance(parts, list) else []:
        match part:
            case {"type": "input_image", "image_url": str(url), "detail": "auto" | "low" | "high"}:
                check_url(url, kind="image")
            case {"type": "input_file", "filename": str(name), "file_data": str(url)}:
                assert name.endswith(".pdf"), f"Expected a file with an extension, not {name!r}"
                check_url(url, kind="application")
            case {"type": "input_text", "text": str(text)}:
                assert text.strip()
            case _:
                raise AssertionError(f"Invalid value: {part.get('type')!r}")
