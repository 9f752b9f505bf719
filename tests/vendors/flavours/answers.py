"""How each vendor streams an answer, with its own ids, thinking and signatures, which it must get back."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from tests.vendors import anthropic_wire, responses_wire
from tests.vendors.flavours.anthropic_rules import prefix_of
from tests.vendors.flavours.rules import Body, Issued, fingerprint
from turnkeeper.testing.vendor_server import Answer, Call, Reply

Render = Callable[[Answer, Body, Issued], Reply]


@dataclass(frozen=True)
class ChatDialect:
    """Properties of the streams of one Chat endpoint. `call_id` makes the id of the n-th call."""

    call_id: Callable[[int], str]
    thinking: str = ""
    """The field of a delta with thinking; empty: the model shows none."""
    has_details: bool = False
    """Thinking also comes in signed fragments (OpenRouter)."""
    signs_calls: bool = False
    """The first call of each answer is signed (Gemini)."""

    def __call__(self, answer: Answer, body: Body, issued: Issued) -> Reply:
        *chunks, finish, usage = self._chunks(answer, body, issued)
        # A finish reason completes an answer, so its chunk is sent with all that follow.
        return Reply.stream([*map(_data, chunks), _data(finish) + _data(usage) + b"data: [DONE]\n\n"])

    def _chunks(self, answer: Answer, body: Body, issued: Issued) -> Iterator[dict[str, Any]]:
        def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            return {"id": "chat-1", "object": "chat.completion.chunk", "model": body["model"], "choices": [choice]}

        yield chunk({"role": "assistant", "content": ""})
        yield from map(chunk, self._thinking(answer.think, issued))
        yield from (chunk({"content": piece}) for piece in halves(answer.text))
        for index, call in enumerate(answer.calls):
            yield from map(chunk, self._call(index, call, issued))
        stops = {"tool_calls": "tool_calls", "max_tokens": "length", "refusal": "content_filter"}
        yield chunk({}, finish=stops.get(answer.ends_by, "stop"))
        usage = {"prompt_tokens": answer.input, "completion_tokens": answer.output, "total_tokens": 120}
        yield {**chunk({}), "choices": [], "usage": usage}

    def _thinking(self, thought: str, issued: Issued) -> Iterator[dict[str, Any]]:
        if not thought or not self.thinking:
            return
        signature = f"sig{issued.next_number()}=="
        issued.signatures[signature] = thought
        for piece in halves(thought):
            fragment = {"type": "reasoning.text", "text": piece, "format": "anthropic-claude-v1", "index": 0}
            yield {self.thinking: piece, **({"reasoning_details": [fragment]} if self.has_details else {})}
        if self.has_details:
            end = {"type": "reasoning.text", "signature": signature, "format": "anthropic-claude-v1", "index": 0}
            yield {"reasoning_details": [end]}

    def _call(self, index: int, call: Call, issued: Issued) -> Iterator[dict[str, Any]]:
        function = {"name": call.name, "arguments": ""}
        first: dict[str, Any] = {"index": index, "id": self.call_id(issued.next_number()), "type": "function"}
        if self.signs_calls and index == 0:
            signature = f"thought{issued.next_number()}+/=="
            issued.signatures[signature] = call.name
            first["extra_content"] = {"google": {"thought_signature": signature}}
        yield {"tool_calls": [{**first, "function": function}]}
        arguments = call.args if isinstance(call.args, str) else json.dumps(call.args)
        for piece in halves(arguments):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def claude(answer: Answer, body: Body, issued: Issued) -> Reply:
    """Thinking that is signed, and bound to all that was sent before it."""
    number = issued.next_number()
    blocks = []
    if answer.think and "thinking" in body:
        signature = f"sig{number}+/="
        issued.signatures[signature] = fingerprint(answer.think, prefix_of(body, len(body["messages"])))
        blocks.append(anthropic_wire.thinking(answer.think, signature))
    blocks += [anthropic_wire.text(answer.text)] if answer.text else []
    calls = [replace(call, id=f"toolu_{number}_{at}") for at, call in enumerate(answer.calls)]
    blocks += map(anthropic_wire.tool_use, calls)
    events = [anthropic_wire.message_start()]
    for index, (start, deltas) in enumerate(blocks):
        events += anthropic_wire.block_events(index, start, deltas)
    stops = {"tool_calls": "tool_use", "max_tokens": "max_tokens", "refusal": "refusal"}
    events += anthropic_wire.message_end(stops.get(answer.ends_by, "end_turn"))
    return anthropic_wire.stream(*events, is_known=False)


def gpt(answer: Answer, body: Body, issued: Issued) -> Reply:
    """Reasoning with encrypted content; what follows it can't be sent back without it."""
    number = issued.next_number()
    items: list[dict[str, Any]] = []
    if answer.think and "reasoning" in body:
        content = f"gAAAA{number}+/="
        issued.signatures[content] = f"rs_{number}"
        encrypted = content if "reasoning.encrypted_content" in body.get("include", []) else None
        items.append(responses_wire.reasoning(answer.think, encrypted, id=f"rs_{number}"))
    if answer.stop == "refusal":
        items.append(responses_wire.refusal(answer.text, id=f"msg_{number}"))
    elif answer.text:
        items.append(responses_wire.message(answer.text, id=f"msg_{number}"))
    items += [
        responses_wire.function_call(replace(call, id=f"call_{number}_{at}")) for at, call in enumerate(answer.calls)
    ]
    if items and items[0]["type"] == "reasoning":
        issued.signatures |= {str(item["id"]): str(items[0]["id"]) for item in items[1:2]}
    end = responses_wire.incomplete("max_output_tokens") if answer.stop == "max_tokens" else None
    return responses_wire.stream(*responses_wire.events_of(items, end), is_known=False)


def _data(event: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(event)}\n\n".encode()


def halves(value: str) -> list[str]:
    middle = len(value) // 2
    return [piece for piece in (value[:middle], value[middle:]) if piece]
