"""A Chat Completions endpoint on loopback. What it sends and receives is checked against the SDK's own types."""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from tests.vendors.media import check_url
from tests.vendors.typed_dicts import TypedServer, adapter_of, check_request
from turnkeeper.activities.providers.openai.chat import OpenAIChatProvider
from turnkeeper.testing.vendor_server import BOUND, Answer, Call, Fault, Reply

MODEL = "qwen3:8b"
KEY = "local-test-0123456789"

_CHUNK = "openai.types.chat:ChatCompletionChunk"
_REQUEST = "openai.types.chat.completion_create_params:CompletionCreateParamsStreaming"

_STOPS = {"end_turn": "stop", "tool_calls": "tool_calls", "max_tokens": "length", "refusal": "content_filter"}

FAULTS: dict[Fault, tuple[int, Any]] = {
    "rate_limited": (429, {"error": {"message": "Too many requests", "type": "rate_limit_error", "code": None}}),
    "overloaded": (503, {"error": {"message": "Overloaded", "type": "overloaded_error", "code": 503}}),
    "provider_error": (500, {"object": "error", "message": "Internal Server Error", "type": "", "code": 500}),
    "auth": (401, {"error": "Unauthorized"}),
    "permission": (403, {"error": {"message": "This key may not use this model."}}),
    "quota": (402, {"error": {"message": "Insufficient credits", "code": 402}}),
    "not_found": (404, {"error": {"message": "model 'nobody' not found", "type": "api_error", "code": None}}),
    "bad_request": (400, {"object": "error", "message": "top_k must be -1 (disable), or at least 1.", "code": 400}),
    "context_too_long": (
        400,
        {"object": "error", "message": "This model's maximum context length is 8192 tokens.", "code": 400},
    ),
    # No server of this kind says so; `refused_parts` leaves out what one refuses.
    "stale_reasoning": (400, {"error": {"message": "invalid", "code": "invalid_encrypted_content"}}),
}


class ChatWire(TypedServer):
    """`openai-chat:`."""

    model = f"openai-chat:{MODEL}"
    sdk_types = (_REQUEST, _CHUNK)

    def __init__(
        self, protocol: Literal["native", "text"] = "native", *, images: Literal["auto", "yes", "no"] = "auto"
    ) -> None:
        super().__init__()
        self.protocol = protocol
        self.images = images

    @property
    def base_url(self) -> str:
        return f"{self.server.base_url}/v1"

    def check(self, body: Any) -> None:
        check_request(body, _REQUEST)
        _check_roles(body["messages"])

    def system_of(self, body: Any) -> str:
        first = body["messages"][0]
        return str(first["content"]) if first["role"] == "system" else ""

    def call_ids_of(self, body: Any) -> list[str]:
        return [call["id"] for message in body["messages"] for call in message.get("tool_calls", [])]

    def result_ids_of(self, body: Any) -> list[str]:
        return [message["tool_call_id"] for message in body["messages"] if message["role"] == "tool"]

    def reply(self, answer: Answer) -> Reply:
        """Render `answer`. By the protocol `text`, a model writes its thoughts and calls as text."""
        if self.protocol == "text":
            answer = Answer(**{**vars(answer), "text": as_text(answer), "think": "", "calls": ()})
        *chunks, finish, usage = answer_chunks(answer)
        # A finish reason completes an answer, so its chunk is sent with all that follow.
        return Reply.stream([*map(sse, chunks), sse(finish) + sse(usage) + DONE])

    def fault(self, fault: Fault, headers: dict[str, str] | None = None) -> Reply:
        status, body = FAULTS[fault]
        return Reply.error(status, body, {"x-request-id": "req_fault", **(headers or {})})

    def fault_within(self, fault: Fault) -> Reply:
        _, body = FAULTS[fault]
        reply = self.reply(Answer(text="half of an ans"))
        error = body if "error" in body else {"error": body}
        return Reply.stream([*reply.chunks[:2], sse(error)], {"x-request-id": "req_fault"})

    def provider(self, *, silence_timeout: float = BOUND) -> OpenAIChatProvider:
        return OpenAIChatProvider(
            silence_timeout=silence_timeout,
            base_url=self.base_url,
            api_key=KEY,
            protocol=self.protocol,
            images=self.images,
        )


DONE = b"data: [DONE]\n\n"


def sse(event: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(event)}\n\n".encode()


def stream(*chunks: dict[str, Any], is_known: bool = True) -> Reply:
    """A stream of these chunks; `is_known`: they have the form of OpenAI's own API, not of another server."""
    if is_known:
        for each in chunks:
            adapter_of(_CHUNK).validate_python(each)
    return Reply.stream([*map(sse, chunks), DONE])


def as_text(answer: Answer) -> str:
    parts = [f"§think: {answer.think}"] if answer.think else []
    parts += [f"§respond: {answer.text}"] if answer.text else []
    for call in answer.calls:
        args = call.args if isinstance(call.args, str) else json.dumps(call.args)
        parts.append(f'§call: {{"name": {json.dumps(call.name)}, "args": {args}}}')
    return "\n\n".join(parts)


def answer_chunks(answer: Answer) -> Iterator[dict[str, Any]]:
    """Render a neutral answer, as vLLM streams it. A context that turns out too long is an error within the stream."""
    yield chunk({"role": "assistant", "content": ""})
    yield from (chunk({"reasoning_content": piece}) for piece in halves(answer.think))
    yield from (chunk({"content": piece}) for piece in halves(answer.text))
    for index, call in enumerate(answer.calls):
        yield from (chunk({"tool_calls": [delta]}) for delta in call_deltas(index, call))
    if answer.stop == "context_too_long":
        yield {"error": {"message": "the request exceeds the available context size"}}
    else:
        yield chunk({}, finish=_STOPS[answer.ends_by])
    yield {**chunk({}), "choices": [], "usage": usage_of(answer)}


def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1_790_000_000,
        "model": MODEL,
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }


def call_deltas(index: int, call: Call) -> Iterable[dict[str, Any]]:
    arguments = call.args if isinstance(call.args, str) else json.dumps(call.args)
    function = {"name": call.name, "arguments": ""}
    yield {"index": index, "id": call.id, "type": "function", "function": function}
    yield from ({"index": index, "function": {"arguments": piece}} for piece in halves(arguments))


def usage_of(answer: Answer) -> dict[str, Any]:
    return {
        "prompt_tokens": answer.input,
        "completion_tokens": answer.output,
        "total_tokens": answer.input + answer.output,
        "prompt_tokens_details": {"cached_tokens": answer.cached, "cache_write_tokens": answer.cache_write},
        "completion_tokens_details": {"reasoning_tokens": answer.reasoning},
    }


def halves(value: str) -> list[str]:
    middle = len(value) // 2
    return [piece for piece in (value[:middle], value[middle:]) if piece]


def _check_roles(messages: list[dict[str, Any]]) -> None:
    """Check the rules of strict templates beyond the types: order of roles, calls with their results, no blank text."""
    speakers = [message["role"] for message in messages if message["role"] not in ("system", "tool")]
    assert speakers[0] == "user"
    assert "system" not in [message["role"] for message in messages[1:]]
    waiting: list[str] = []
    seen: set[str] = set()
    for earlier, message in zip([{"role": ""}, *messages], messages, strict=False):
        assert message["content"] or (message["content"] is None and message["tool_calls"])
        assert not isinstance(message["content"], str) or message["content"].strip(), "blank text"
        assert (earlier["role"], message["role"]) != ("tool", "user"), "Unexpected role 'user' after role 'tool'"
        _check_content(message)
        assert message["role"] != earlier["role"] or message["role"] == "tool" or earlier.get("tool_calls")
        if message["role"] == "tool":
            assert waiting.pop(0) == message["tool_call_id"]
            continue
        assert waiting == []
        waiting = [call["id"] for call in message.get("tool_calls", [])]
        assert len(set(waiting)) == len(waiting)
        assert not seen & set(waiting), "the id of an earlier call"
        assert all(re.fullmatch(r"[A-Za-z0-9]{9}|functions\..*|.{65,}", call_id) for call_id in waiting), waiting
        seen.update(waiting)
        assert all(
            isinstance(json.loads(call["function"]["arguments"]), dict) for call in message.get("tool_calls", [])
        )
    assert waiting == [], "calls without a result"


def _check_content(message: dict[str, Any]) -> None:
    """Check a message's parts: only a user's message may have any, strict servers want a text in all others."""
    parts = message["content"] if isinstance(message["content"], list) else []
    assert not parts or message["role"] == "user", f"content of a {message['role']} message must be a string"
    for part in parts:
        match part:
            case {"type": "text", "text": str(text)}:
                assert text.strip()
            case {"type": "image_url", "image_url": {"url": str(url)}}:
                check_url(url, kind="image")
            case {"type": "file", "file": {"filename": str(name), "file_data": str(url)}}:
                assert name.endswith(".pdf"), f"Expected a file with an extension, not {name!r}"
                check_url(url, kind="application")
            case _:
                raise AssertionError(f"unknown part type: {part.get('type')}")
