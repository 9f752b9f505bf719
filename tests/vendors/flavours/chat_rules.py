"""Rules of Chat Completions and its dialects, by the reference of each vendor and by bug reports."""

import re
from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise
from typing import Any

from tests.vendors.flavours.rules import (
    Body,
    Issued,
    Violation,
    arrays_without_items,
    has_text,
    is_json_object,
    names_at_the_top,
    problem_of_url,
    schemas_within,
    unresolved_references,
)

Message = dict[str, Any]

PARAMETERS = frozenset(
    {
        *("model", "messages", "tools", "tool_choice", "parallel_tool_calls", "stream", "stream_options", "stop", "n"),
        *("max_tokens", "max_completion_tokens", "temperature", "top_p", "seed", "user", "metadata", "store"),
        *("reasoning_effort", "response_format", "frequency_penalty", "presence_penalty", "logprobs", "service_tier"),
    }
)
"""Parameters of OpenAI's reference that matter here; an endpoint may have fewer."""

MESSAGE_FIELDS = {
    "system": {"role", "content", "name"},
    "user": {"role", "content", "name"},
    "assistant": {"role", "content", "name", "tool_calls", "refusal", "audio", "function_call"},
    "tool": {"role", "content", "tool_call_id"},
}
CALL_FIELDS = {"id", "type", "function"}
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def calls_of(message: Message) -> list[dict[str, Any]]:
    return message.get("tool_calls") or []


def functions_in(body: Body) -> list[dict[str, Any]]:
    return [tool["function"] for tool in body.get("tools", [])]


# ---- what every endpoint with this API has


def shape(body: Body, issued: Issued) -> Iterator[Violation]:
    """The types of fields, and calls with their results."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        yield Violation("messages", "Invalid 'messages': empty array. Expected an array with minimum length 1.")
        return
    for index, message in enumerate(messages):
        yield from _check_message(index, message)
    yield from _pairs(messages)
    for index, tool in enumerate(body.get("tools", [])):
        yield from _shape_of_tool(index, tool)
    names = [function.get("name") for function in functions_in(body)]
    if len(set(names)) != len(names):
        yield Violation("tool names", "Tool names must be unique.", parameter="tools")
    if body.get("tools") == []:
        yield Violation("tools", "Invalid 'tools': empty array. Expected an array with minimum length 1.")


def _check_message(index: int, message: Message) -> Iterator[Violation]:
    role, content, place = message.get("role"), message.get("content"), f"messages[{index}]"
    if role not in MESSAGE_FIELDS:
        yield Violation("role", f"Invalid value: {role!r}. Supported values are: 'system', 'assistant', 'user', 'tool'")
        return
    if content is None and not (role == "assistant" and calls_of(message)):
        yield Violation("content", f"Invalid value for 'content': expected a string, got null. {place}", place)
    if isinstance(content, list) and role != "user":
        yield Violation("parts", f"{place}.content must be a string for the role {role}", f"{place}.content")
    if "tool_calls" in message and not calls_of(message):
        yield Violation("tool calls", f"Invalid '{place}.tool_calls': empty array.", f"{place}.tool_calls")
    for call in calls_of(message):
        function = call.get("function", {})
        if call.get("type") != "function" or not has_text(call.get("id")):
            yield Violation("call", f"Missing tool call type or id in {place}", f"{place}.tool_calls[0]")
        if not is_json_object(function.get("arguments")):
            yield Violation("arguments", f"{place}.tool_calls: the arguments are not a valid JSON object", place)
    for part in content if isinstance(content, list) else []:
        yield from _shape_of_part(part, place)


def _shape_of_part(part: Mapping[str, Any], place: str) -> Iterator[Violation]:
    match part:
        case {"type": "text", "text": str()}:
            return
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            problem = problem_of_url(url)
        case {"type": "file", "file": {"filename": str(), "file_data": str(url)}}:
            problem = problem_of_url(url)
        case _:
            problem = f"unknown part type {part.get('type')!r}"
    if problem:
        yield Violation("media", f"Invalid {part.get('type')} in {place}.content: {problem}", f"{place}.content")


def _shape_of_tool(index: int, tool: Mapping[str, Any]) -> Iterator[Violation]:
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, dict):
        yield Violation("tool", f"tools[{index}] must be a function", f"tools[{index}]")
    elif not NAME.fullmatch(str(function.get("name", ""))):
        words = f"Invalid 'tools[{index}].function.name': string does not match pattern '^[a-zA-Z0-9_-]+$'."
        yield Violation("tool name", words, f"tools[{index}].function.name")
    elif not isinstance(function.get("parameters", {}), dict) or not isinstance(function.get("description", ""), str):
        yield Violation("tool", f"tools[{index}].function has a field of the wrong type", f"tools[{index}]")


def _pairs(messages: list[Message]) -> Iterator[Violation]:
    waiting: list[str] = []
    for index, message in enumerate(messages):
        if message.get("role") == "tool":
            if message.get("tool_call_id") not in waiting:
                words = "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
                yield Violation("result without a call", words, f"messages[{index}].role")
                return
            waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            yield _unanswered(waiting)
            return
        waiting = [str(call.get("id")) for call in calls_of(message)]
        if len(set(waiting)) != len(waiting):
            yield Violation("ids", "Duplicate value for 'tool_call_id'", f"messages[{index}].tool_calls")
    if waiting:
        yield _unanswered(waiting)


def _unanswered(waiting: Collection[str]) -> Violation:
    words = "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'"
    return Violation("call without a result", f"{words}. No response messages for: {', '.join(waiting)}")


def no_blank_texts(body: Body, issued: Issued) -> Iterator[Violation]:
    for message in body["messages"]:
        content = message.get("content")
        texts = content if isinstance(content, list) else [{"type": "text", "text": content}] if content else []
        if content == "" or any(part["type"] == "text" and not has_text(part["text"]) for part in texts):
            yield Violation("blank text", "messages: text content blocks must contain non-whitespace text")


def unknown_fields(words: str, *, allowed: Collection[str] = (), message_words: str = "") -> Any:
    """Refuse parameters, and fields of messages and calls, that are not in the reference; `allowed` are more."""

    def check(body: Body, issued: Issued) -> Iterator[Violation]:
        for name in body.keys() - PARAMETERS - set(allowed):
            yield Violation(f"parameter {name}", words.format(name), name)
        for index, message in enumerate(body["messages"]):
            extra = message.keys() - MESSAGE_FIELDS[message["role"]]
            extra |= {name for call in calls_of(message) for name in call.keys() - CALL_FIELDS}
            for name in sorted(extra - set(allowed)):
                text = (message_words or words).format(name, index=index, role=message["role"])
                yield Violation(f"field {name}", text, f"messages[{index}].{name}" if not message_words else None)

    return check


def max_tools(count: int, words: str) -> Any:
    def check(body: Body, issued: Issued) -> Iterator[Violation]:
        if len(body.get("tools", [])) > count:
            yield Violation("tools", words.format(len(body["tools"])), "tools")

    return check


def max_answer(count: int, words: str) -> Any:
    def check(body: Body, issued: Issued) -> Iterator[Violation]:
        for name in ("max_tokens", "max_completion_tokens"):
            if body.get(name, 0) > count:
                yield Violation("bound", words.format(name=name, value=body[name], limit=count), name)

    return check


# ---- OpenAI


def openai_chat(body: Body, issued: Issued) -> Iterator[Violation]:
    if "max_tokens" in body:
        words = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens'."
        yield Violation("max_tokens", words, "max_tokens", "unsupported_parameter")
    for index, message in enumerate(body["messages"]):
        for number, call in enumerate(calls_of(message)):
            if len(call["id"]) > 40:
                place = f"messages[{index}].tool_calls[{number}].id"
                words = f"Invalid '{place}': string too long. Expected a string with maximum length 40."
                yield Violation("call id", words, place, "string_above_max_length")
    yield from openai_schemas(body, issued)


def openai_schemas(body: Body, issued: Issued) -> Iterator[Violation]:
    for index, function in enumerate(functions_in(body)):
        for problem in problems_of_openai_schema(function.get("parameters", {})):
            words = f"Invalid schema for function '{function['name']}': {problem}"
            yield Violation("schema", words, f"tools[{index}].function.parameters", "invalid_function_parameters")


def problems_of_openai_schema(schema: Mapping[str, Any]) -> Iterator[str]:
    if schema.get("type") != "object":
        yield f"schema must be a JSON Schema of 'type: \"object\"', got 'type: {schema.get('type')!r}'."
    if names_at_the_top(schema, ("oneOf", "anyOf", "allOf", "enum", "not")):
        yield "schema must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level."
    for path in arrays_without_items(schema):
        yield f"In context={path}, array schema missing items."
    for reference in unresolved_references(schema):
        yield f"reference {reference!r} can only point to definitions defined at the top level of the schema."


# ---- Mistral (mistral-common's validator)


def mistral(body: Body, issued: Issued) -> Iterator[Violation]:
    if "stream_options" in body:
        words = '{"detail": [{"type": "extra_forbidden", "loc": ["body", "stream_options"]}]}'
        yield Violation("parameter stream_options", words, "stream_options", status=422)
    after = {
        "system": {"user", "assistant", "system"},
        "user": {"assistant", "system", "user"},
        "assistant": {"assistant", "user", "tool"},
        "tool": {"assistant", "tool"},
    }
    roles = [message["role"] for message in body["messages"]]
    for before, role in pairwise(roles):
        if role not in after[before]:
            words = f"Unexpected role '{role}' after role '{before}'"
            yield Violation("order", words, code="3230")
    if roles[-1] not in ("user", "tool"):
        words = f"Expected last role User or Tool (or Assistant with prefix True) for serving but got {roles[-1]}"
        yield Violation("order", words, code="3230")
    for message in body["messages"]:
        ids = [call["id"] for call in calls_of(message)] + [message.get("tool_call_id", "123456789")]
        for call_id in ids:
            if not re.fullmatch(r"[a-zA-Z0-9]{9}", call_id):
                words = f"Tool call id was {call_id} but must be a-z, A-Z, 0-9, with a length of 9."
                yield Violation("call id", words, code="3280")
        if message["role"] == "assistant" and not message.get("content") and not calls_of(message):
            yield Violation("content", "Assistant message must have either content or tool_calls, but not none.")
        for call in calls_of(message):
            name = call["function"]["name"]
            if not NAME.fullmatch(name):
                words = f"Function name was {name} but must be a-z, A-Z, 0-9, or contain underscores and dashes"
                yield Violation("call name", words)
    for function in functions_in(body):
        for reference in unresolved_references(function.get("parameters", {})):
            yield Violation("schema", f"Invalid tool schema: {function['name']}: unresolvable {reference}")


# ---- templates


def alternating_with_tools(body: Body, issued: Issued) -> Iterator[Violation]:
    """Devstral's and Mistral Small's template: calls and results don't count, all others alternate."""
    speakers = [
        message["role"] for message in body["messages"] if message["role"] in ("user", "assistant")
        and not calls_of(message)
    ]  # fmt: skip
    if speakers != (["user", "assistant"] * len(speakers))[: len(speakers)]:
        words = (
            "\n------------\nWhile executing CallExpression at line 47, column 32 in source:\n...== 0) %}\n"
            "Error: Jinja Exception: After the optional system message, conversation roles must alternate user and"
            " assistant roles except for tool calls and results."
        )
        yield Violation("order", words, status=500)


def alternating(body: Body, issued: Issued) -> Iterator[Violation]:
    """Gemma's template, with results as a user's: roles alternate."""
    speakers = ["user" if message["role"] == "tool" else message["role"] for message in body["messages"]]
    speakers = [role for role in speakers if role != "system"]
    collapsed = [role for before, role in zip([None, *speakers], speakers, strict=False) if role != before]
    users = [message["role"] for message in body["messages"] if message["role"] != "tool"]
    doubled = any(one == other == "user" for one, other in pairwise(users))
    if collapsed[0] != "user" or doubled:
        words = "Conversation roles must alternate user/assistant/user/assistant/..."
        yield Violation("order", words)


def llama_cpp(body: Body, issued: Issued) -> Iterator[Violation]:
    for function in functions_in(body):
        for path, schema in schemas_within(function.get("parameters", {})):
            kind = schema.get("type")
            if kind is not None and not isinstance(kind, str | list):
                yield Violation("schema", f"JSON schema conversion failed: Unrecognized schema at {path}", status=500)
        for reference in unresolved_references(function.get("parameters", {})):
            words = f"JSON schema conversion failed: Error resolving ref {reference}: not in {function['name']}"
            yield Violation("schema", words)
    for message in body["messages"]:
        for part in message["content"] if isinstance(message["content"], list) else []:
            if part["type"] == "file":
                yield Violation("file", "unsupported content[].type")


# ---- Gemini's endpoint


def gemini(body: Body, issued: Issued) -> Iterator[Violation]:
    yield from _gemini_signatures(body, issued)
    for index, function in enumerate(functions_in(body)):
        place = f"GenerateContentRequest.tools[0].function_declarations[{index}].parameters"
        for path, schema in schemas_within(function.get("parameters", {})):
            inner = "".join(f".{name}" if name in ("properties", "items") else f"[{name}]" for name in path)
            kind = schema.get("type")
            if kind == "array" and not isinstance(schema.get("items"), dict):
                yield Violation("schema", f"* {place}{inner}.items: missing field.")
            if "enum" in schema and kind not in ("string", None):
                yield Violation("schema", f"* {place}{inner}.enum: only allowed for STRING type")
        for reference in unresolved_references(function.get("parameters", {})):
            yield Violation("schema", f"* {place}: reference to undefined schema at {reference}")
    for message in body["messages"]:
        if message["role"] in ("user", "assistant") and not message.get("content") and not calls_of(message):
            yield Violation("blank text", "Unable to submit request because it must include at least one parts field.")


NO_SIGNATURES = ("skip_thought_signature_validator", "context_engineering_is_the_way_to_go")


def _gemini_signatures(body: Body, issued: Issued) -> Iterator[Violation]:
    """The first call of each step of the current turn has its signature, or one of the two that mean none."""
    messages = body["messages"]
    begin = max((at for at, message in enumerate(messages) if message["role"] == "user"), default=0)
    for position, message in enumerate(messages):
        calls = calls_of(message)
        for number, call in enumerate(calls):
            signature = call.get("extra_content", {}).get("google", {}).get("thought_signature")
            if signature is None:
                if number == 0 and position > begin:
                    words = (
                        "Function call is missing a thought_signature in functionCall parts. This is required for tools"
                        " to work correctly, and missing thought_signature may lead to degraded model performance."
                        f" Additional data, function call `default_api:{call['function']['name']}`,"
                        f" position {position}."
                    )
                    yield Violation("missing signature", words)
            elif signature not in NO_SIGNATURES and issued.signatures.get(signature) != call["function"]["name"]:
                yield Violation("wrong signature", "Thought signature is not valid.")


# ---- OpenRouter, with Claude behind it


def openrouter_claude(body: Body, issued: Issued) -> Iterator[Violation]:
    """Each block of reasoning goes back whole and signed, once, where it was."""
    for index, message in enumerate(body["messages"]):
        for detail in message.get("reasoning_details", []):
            kind, signature = detail.get("type"), detail.get("signature")
            if kind == "reasoning.text" and issued.signatures.get(str(signature)) != detail.get("text"):
                words = f"messages.{index}.content.0: Invalid `signature` in `thinking` block"
                yield Violation("signature", words)


# ---- DeepSeek


def deepseek(body: Body, issued: Issued) -> Iterator[Violation]:
    messages = body["messages"]
    begin = max((at for at, message in enumerate(messages) if message["role"] == "user"), default=0)
    for index, message in enumerate(messages):
        if index > begin and calls_of(message) and not message.get("reasoning_content"):
            words = (
                f"Missing `reasoning_content` field in the assistant message at message index {index}. For more"
                " information, please refer to https://api-docs.deepseek.com/guides/thinking_mode#tool-calls"
            )
            yield Violation("missing reasoning_content", words, code="invalid_request_error")
        for part in message["content"] if isinstance(message["content"], list) else []:
            if part["type"] != "text":
                words = (
                    "Failed to deserialize the JSON body into the target type: "
                    f"messages[{index}]: unknown variant `{part['type']}`, expected `text` at line 1 column 2345"
                )
                yield Violation("media", words)


# ---- Ollama


def ollama(body: Body, issued: Issued) -> Iterator[Violation]:
    for message in body["messages"]:
        content = message.get("content")
        for part in content if isinstance(content, list) else []:
            if part["type"] == "file":
                yield Violation("file", "invalid message format")
            if part["type"] == "image_url" and not part["image_url"]["url"].startswith("data:"):
                yield Violation("image", "invalid image input")
    for function in functions_in(body):
        if not isinstance(function.get("parameters", {}).get("properties", {}), dict):
            words = "json: cannot unmarshal array into Go struct field .tools.function.parameters.properties"
            yield Violation("schema", words)
