"""Rules of the Responses API, by its reference and by bug reports."""

import re
from collections.abc import Iterator
from typing import Any

from tests.vendors.flavours.chat_rules import problems_of_openai_schema
from tests.vendors.flavours.rules import Body, Issued, Violation, has_text, is_json_object, problem_of_url

Item = dict[str, Any]

PARAMETERS = frozenset(
    {
        *("model", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "stream", "store"),
        *("include", "max_output_tokens", "prompt_cache_key", "reasoning", "text", "metadata", "truncation"),
        "previous_response_id",
    }
)
ITEM_FIELDS = {
    "message": {"type", "role", "content", "id", "status", "phase"},
    "reasoning": {"type", "id", "summary", "content", "encrypted_content"},
    "function_call": {"type", "id", "call_id", "name", "arguments", "caller"},
    "function_call_output": {"type", "call_id", "output", "id", "status"},
}


def kind_of(item: Item) -> str:
    return str(item.get("type", "message"))


def shape(body: Body, issued: Issued) -> Iterator[Violation]:
    for name in body.keys() - PARAMETERS:
        yield Violation(f"parameter {name}", f"Unknown parameter: '{name}'.", name, "unknown_parameter")
    items = body.get("input")
    if not isinstance(items, list) or not items:
        yield Violation("input", "Missing required parameter: 'input'.", "input")
        return
    for index, item in enumerate(items):
        yield from _check_item(item, f"input[{index}]")
    yield from _pairs(items)
    yield from _reasoning(items, issued)
    yield from _tools(body.get("tools", []))
    if body.get("max_output_tokens", 16) < 16:
        words = "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16."
        yield Violation("bound", words, "max_output_tokens")


def _check_item(item: Item, place: str) -> Iterator[Violation]:
    kind = kind_of(item)
    if kind not in ITEM_FIELDS:
        yield Violation("item", f"Invalid value: '{kind}'. Supported values are: {sorted(ITEM_FIELDS)}", place)
        return
    for name in item.keys() - ITEM_FIELDS[kind]:
        path = f"{place}.{name}"
        yield Violation(f"field {name}", f"Unknown parameter: '{path}'.", path, "unknown_parameter")
    if kind == "message":
        yield from _message(item, place)
    if kind == "function_call":
        if not re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", item["name"]):
            yield Violation("call name", f"Invalid '{place}.name': string does not match pattern.", f"{place}.name")
        if not is_json_object(item["arguments"]):
            yield Violation("arguments", f"Invalid '{place}.arguments': not a JSON object.", f"{place}.arguments")
        if len(item["call_id"]) > 64 or not item["call_id"]:
            words = f"Invalid '{place}.call_id': string too long. Expected a string with maximum length 64."
            yield Violation("call id", words, f"{place}.call_id", "string_above_max_length")
    if kind == "function_call_output" and not isinstance(item["output"], str):
        yield from _parts(item["output"], f"{place}.output", allowed={"input_text", "input_image", "input_file"})


def _message(item: Item, place: str) -> Iterator[Violation]:
    role, content = item.get("role"), item.get("content")
    if role not in ("user", "assistant", "system", "developer"):
        yield Violation("role", f"Invalid value: '{role}'.", f"{place}.role")
    if isinstance(content, str):
        if not has_text(content) and role == "user":
            yield Violation("blank text", f"Invalid '{place}.content': empty string.", f"{place}.content")
        return
    ours = {"output_text", "refusal"} if role == "assistant" else {"input_text", "input_image", "input_file"}
    yield from _parts(content or [], f"{place}.content", allowed=ours)


def _parts(parts: list[Item], place: str, *, allowed: set[str]) -> Iterator[Violation]:
    for index, part in enumerate(parts):
        kind = part.get("type")
        if kind not in allowed:
            words = f"Invalid value: '{kind}'. Supported values are: {', '.join(sorted(allowed))}."
            yield Violation("part", words, f"{place}[{index}].type", "invalid_value")
        url = part.get("image_url") or part.get("file_data")
        problem = problem_of_url(url) if isinstance(url, str) else ""
        if problem:
            yield Violation("media", f"Invalid '{place}[{index}].{kind}': {problem}", f"{place}[{index}]")


def _pairs(items: list[Item]) -> Iterator[Violation]:
    calls = [item["call_id"] for item in items if kind_of(item) == "function_call"]
    outputs = [item["call_id"] for item in items if kind_of(item) == "function_call_output"]
    for call_id in calls:
        if call_id not in outputs:
            yield Violation("pairs", f"No tool output found for function call {call_id}.", "input")
    for call_id in outputs:
        if call_id not in calls:
            words = f"No tool call found for function call output with call_id {call_id}."
            yield Violation("pairs", words, "input")
    if len(set(calls)) != len(calls) or len(set(outputs)) != len(outputs):
        yield Violation("call id", "Duplicate call_id in input.", "input")
    ids = [item["id"] for item in items if item.get("id")]
    if len(set(ids)) != len(ids):
        twice = next(one for one in ids if ids.count(one) > 1)
        words = f"Duplicate item found with id {twice}. Remove duplicate items from your input and try again."
        yield Violation("item id", words, "input")


def _reasoning(items: list[Item], issued: Issued) -> Iterator[Violation]:
    for index, item in enumerate(items):
        if kind_of(item) != "reasoning":
            continue
        following = items[index + 1] if index + 1 < len(items) else {}
        is_followed = following.get("role") == "assistant" or kind_of(following) in ("function_call", "reasoning")
        if not following or not is_followed:
            words = f"Item '{item['id']}' of type 'reasoning' was provided without its required following item."
            yield Violation("lone reasoning", words, "input")
        content = item.get("encrypted_content")
        if content is None or issued.signatures.get(content) != item["id"]:
            words = (
                f"The encrypted content for item {item['id']} could not be verified. Reason: Encrypted content"
                " could not be decrypted or parsed."
            )
            yield Violation("encrypted content", words, code="invalid_encrypted_content")
    reasoned = {item["id"] for item in items if kind_of(item) == "reasoning"}
    for item in items:
        needed = issued.signatures.get(str(item.get("id")))
        if needed and needed not in reasoned:
            kind, item_id = kind_of(item), item["id"]
            words = f"Item '{item_id}' of type '{kind}' was provided without its required 'reasoning' item: '{needed}'."
            yield Violation("lone item", words, "input")


def _tools(tools: list[Item]) -> Iterator[Violation]:
    if len(tools) > 128:
        words = f"Invalid 'tools': array too long. Expected an array with maximum length 128, but got {len(tools)}."
        yield Violation("tools", words, "tools", "array_above_max_length")
    for index, tool in enumerate(tools):
        if tool.get("type") != "function" or not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", tool.get("name", "")):
            words = f"Invalid 'tools[{index}].name': string does not match pattern."
            yield Violation("tool name", words, f"tools[{index}].name")
        for problem in problems_of_openai_schema(tool.get("parameters", {})):
            words = f"Invalid schema for function '{tool['name']}': {problem}"
            yield Violation("schema", words, f"tools[{index}].parameters", "invalid_function_parameters")
