"""Rules of the Messages API, by its reference and by bug reports, and of endpoints that copy it."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tests.vendors.flavours.rules import (
    Body,
    Issued,
    Violation,
    fingerprint,
    has_text,
    names_at_the_top,
    problem_of_data,
    unresolved_references,
)

Block = dict[str, Any]

TOP_FIELDS = frozenset(
    {
        *("model", "messages", "max_tokens", "system", "tools", "tool_choice", "stream", "stop_sequences", "thinking"),
        *("metadata", "service_tier", "cache_control", "output_config", "context_management", "container"),
    }
)
BLOCK_FIELDS = {
    "text": {"type", "text", "cache_control", "citations"},
    "image": {"type", "source", "cache_control"},
    "document": {"type", "source", "title", "context", "citations", "cache_control"},
    "tool_use": {"type", "id", "name", "input", "cache_control", "caller"},
    "tool_result": {"type", "tool_use_id", "content", "is_error", "cache_control"},
    "thinking": {"type", "thinking", "signature"},
    "redacted_thinking": {"type", "data"},
}
BY_ROLE = {
    "user": {"text", "image", "document", "tool_result"},
    "assistant": {"text", "tool_use", "thinking", "redacted_thinking"},
}


def blocks_of(message: Mapping[str, Any]) -> list[Block]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def shape(body: Body, issued: Issued) -> Iterator[Violation]:
    """Fields, roles, blocks and pairs of calls and results."""
    for name in body.keys() - TOP_FIELDS:
        yield Violation(f"parameter {name}", f"{name}: Extra inputs are not permitted")
    if not isinstance(body.get("max_tokens"), int) or body["max_tokens"] < 1:
        yield Violation("max_tokens", "max_tokens: Field required")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        yield Violation("messages", "messages: at least one message is required")
        return
    if messages[0].get("role") != "user":
        yield Violation("order", 'messages: first message must use the "user" role')
    if messages[-1].get("role") != "user":
        words = "This model does not support assistant message prefill. The conversation must end with a user message."
        yield Violation("order", words)
    for index, message in enumerate(messages):
        if message.get("role") not in BY_ROLE or message.keys() - {"role", "content"}:
            yield Violation("role", f"messages.{index}: Input should be 'user' or 'assistant'")
            return
        if not message["content"]:
            yield Violation("content", f"messages.{index}: all messages must have non-empty content")
        for number, block in enumerate(blocks_of(message)):
            yield from _check_block(block, f"messages.{index}.content.{number}", role=message["role"])
    yield from _pairs(messages)
    yield from _tools(body.get("tools", []))
    yield from _breakpoints(body)


def _check_block(block: Block, place: str, *, role: str) -> Iterator[Violation]:
    kind = block.get("type", "")
    if kind not in BLOCK_FIELDS or kind not in BY_ROLE[role]:
        yield Violation("block", f"{place}: Input tag '{kind}' found using 'type' does not match any of the expected")
        return
    for name in block.keys() - BLOCK_FIELDS[kind]:
        yield Violation(f"field {name}", f"{place}.{kind}.{name}: Extra inputs are not permitted")
    if kind == "text" and not has_text(block["text"]):
        yield Violation("blank text", "messages: text content blocks must contain non-whitespace text")
    if kind in ("image", "document"):
        yield from _medium(block, f"{place}.{kind}")
    if kind == "tool_use":
        if not re.fullmatch(r"[a-zA-Z0-9_-]+", block["id"]):
            words = f"{place}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
            yield Violation("call id", words)
        if not re.fullmatch(r"[a-zA-Z0-9_-]{1,200}", block["name"]):
            words = f"{place}.tool_use.name: String should match pattern '^[a-zA-Z0-9_-]{{1,200}}$'"
            yield Violation("call name", words)
        if not isinstance(block["input"], dict):
            yield Violation("input", f"{place}.tool_use.input: Input should be a valid dictionary")
    if kind == "tool_result" and not isinstance(block.get("content", ""), str):
        for part in block["content"]:
            if part["type"] != "text" and block.get("is_error"):
                words = f'{place}.tool_result: all content must be type "text" if `is_error` is true'
                yield Violation("error with media", words)
            yield from _check_block(part, f"{place}.tool_result.content.0", role="user")


def _medium(block: Block, place: str) -> Iterator[Violation]:
    source = block["source"]
    if source.get("type") == "url":
        return
    problem = problem_of_data(source.get("media_type", ""), source.get("data", ""))
    if problem:
        yield Violation("media", f"{place}.source.base64: {problem}")


def _pairs(messages: list[dict[str, Any]]) -> Iterator[Violation]:
    seen = set[str]()
    waiting: list[str] = []
    for index, message in enumerate(messages):
        blocks = blocks_of(message)
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        leading = [block for block in blocks[: len(waiting)] if block["type"] == "tool_result"]
        if sorted(results) != sorted(waiting) or len(leading) != len(waiting):
            missing = ", ".join(sorted(set(waiting) - set(results))) or ", ".join(results)
            words = (
                f"messages.{index}: `tool_use` ids were found without `tool_result` blocks immediately after:"
                f" {missing}. Each `tool_use` block must have a corresponding `tool_result` block in the next message."
            )
            yield Violation("pairs", words)
            return
        waiting = [block["id"] for block in blocks if block["type"] == "tool_use"]
        if len(set(waiting)) != len(waiting) or seen & set(waiting):
            yield Violation("call id", f"messages.{index}: `tool_use` ids must be unique")
        seen |= set(waiting)
    if waiting:
        yield Violation("pairs", "`tool_use` ids were found without `tool_result` blocks immediately after")


def _tools(tools: list[Block]) -> Iterator[Violation]:
    names = [tool.get("name") for tool in tools]
    if len(set(names)) != len(names):
        yield Violation("tool names", "tools: Tool names must be unique.")
    for index, tool in enumerate(tools):
        place, schema = f"tools.{index}.custom", tool.get("input_schema", {})
        if not re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", str(tool.get("name"))):
            words = f"{place}.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'"
            yield Violation("tool name", words)
        for name in tool.keys() - {"name", "description", "input_schema", "cache_control", "type"}:
            yield Violation(f"tool field {name}", f"{place}.{name}: Extra inputs are not permitted")
        if schema.get("type") != "object":
            yield Violation("schema", f"{place}.input_schema.type: Input should be 'object'")
        if names_at_the_top(schema, ("oneOf", "allOf", "anyOf")):
            words = f"{place}.input_schema: input_schema does not support oneOf, allOf, or anyOf at the top level"
            yield Violation("schema", words)
        for key in schema.get("properties", {}):
            if not re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", key):
                words = "Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'"
                yield Violation("schema", f"{place}.input_schema.properties: {words}")
        for reference in unresolved_references(schema):
            words = f"JSON schema is invalid. It must match JSON Schema draft 2020-12: {reference}"
            yield Violation("schema", f"{place}.input_schema: {words}")


def _breakpoints(body: Body) -> Iterator[Violation]:
    count = json.dumps(body).count('"cache_control"')
    if count > 4:
        yield Violation("cache", f"A maximum of 4 blocks with cache_control may be provided. Found {count}.")


# ---- Claude's thinking


def claude_thinking(*, adaptive: bool, budget: bool, max_tokens: int) -> Any:
    """Check `thinking` and `max_tokens` for a model that takes one form of thinking, both, or none."""

    def check(body: Body, issued: Issued) -> Iterator[Violation]:
        thinking = body.get("thinking", {})
        kind = thinking.get("type", "disabled")
        if kind == "adaptive" and not adaptive:
            yield Violation("thinking", "adaptive thinking is not supported on this model")
        if kind == "enabled" and not budget:
            words = '"thinking.type.enabled" is not supported for this model. Use "thinking.type.adaptive".'
            yield Violation("thinking", words)
        if kind == "enabled" and not 1_024 <= thinking.get("budget_tokens", 0) < body["max_tokens"]:
            yield Violation("budget", "`max_tokens` must be greater than `thinking.budget_tokens`.")
        if body["max_tokens"] > max_tokens:
            words = (
                f"max_tokens: {body['max_tokens']} > {max_tokens}, which is the maximum allowed number of output tokens"
                f" for {body['model']}"
            )
            yield Violation("bound", words)
        if kind == "enabled":
            yield from _begins_with_thinking(body["messages"])

    return check


def _begins_with_thinking(messages: list[dict[str, Any]]) -> Iterator[Violation]:
    if all(block["type"] != "tool_result" for block in blocks_of(messages[-1])):
        return
    first = len(messages) - 2
    while first > 1 and all(block["type"] == "tool_result" for block in blocks_of(messages[first - 1])):
        first -= 2
    kind = blocks_of(messages[first])[0]["type"]
    if kind not in ("thinking", "redacted_thinking"):
        words = (
            f"messages.{first}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{kind}`. When"
            " `thinking` is enabled, a final `assistant` message must start with a thinking block."
        )
        yield Violation("thinking first", words)


def signed_thinking(*, binds_prefix: bool) -> Any:
    """Check that each thinking block is one of the vendor's, unchanged, and behind the same conversation."""

    def check(body: Body, issued: Issued) -> Iterator[Violation]:
        for index, message in enumerate(body["messages"]):
            for number, block in enumerate(blocks_of(message)):
                if block["type"] != "thinking":
                    continue
                expected = issued.signatures.get(block.get("signature", ""))
                place = f"messages.{index}.content.{number}"
                if expected is None:
                    yield Violation("signature", f"{place}: Invalid `signature` in `thinking` block")
                elif not expected.startswith(fingerprint(block["thinking"])[:-1]):
                    words = f"{place}: `thinking` blocks in the latest assistant message cannot be modified."
                    yield Violation("modified", words)
                elif binds_prefix and expected != fingerprint(block["thinking"], prefix_of(body, index)):
                    yield Violation("prefix", f"{place}: The block is bound to a different conversation")

    return check


def prefix_of(body: Body, index: int) -> str:
    """Return what a block of the message at `index` is bound to: everything before it but the cache's breakpoints."""
    whole = [_plain_system(body.get("system")), body.get("tools", []), body["messages"][:index]]
    return json.dumps(_without_breakpoints(whole), sort_keys=True)


def _plain_system(system: object) -> object:
    return [{"type": "text", "text": system}] if isinstance(system, str) else system


def _without_breakpoints(value: object) -> object:
    if isinstance(value, list):
        return [_without_breakpoints(inner) for inner in value]
    if isinstance(value, dict):
        return {key: _without_breakpoints(inner) for key, inner in value.items() if key != "cache_control"}
    return value


# ---- endpoints that copy the API


def compatible(body: Body, issued: Issued) -> Iterator[Violation]:
    """An endpoint for another model: no Claude's thinking, no breakpoints, shorter answers."""
    if "thinking" in body:
        yield Violation("thinking", "thinking: Extra inputs are not permitted")
    if body["max_tokens"] > 8_192:
        yield Violation("bound", f"max_tokens: {body['max_tokens']} > 8192")
    system = body.get("system")
    if isinstance(system, list) and any("cache_control" in block for block in system):
        yield Violation("cache_control", "system.0.cache_control: Extra inputs are not permitted")
    for index, message in enumerate(body["messages"]):
        if any("cache_control" in block for block in blocks_of(message)):
            words = f"messages.{index}.content.0.cache_control: Extra inputs are not permitted"
            yield Violation("cache_control", words)
        if any(block["type"] == "document" for block in blocks_of(message)):
            yield Violation("file", f"messages.{index}.content.1: Input tag 'document' does not match any of: 'text'")
