"""Leaving parts out of a request: of our own one before it is encoded, then of the encoded body. Pure (AGT-9)."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from turnkeeper.activities.providers.refused_parts.api import (
    SECTIONS,
    Body,
    Encode,
    Parts,
    RefusableApi,
    SentRequest,
    blocks_in,
)
from turnkeeper.activities.providers.result_text import result_text
from turnkeeper.activities.providers.tool_schemas import description_with_schema
from turnkeeper.activities.providers.visible_request import Sight, visible_request
from turnkeeper.models.session.tools.session_tools import tools_digest
from turnkeeper.models.transcript.model_call import CallPart, ModelMessage, ModelRequest, ToolSpec

MIN_THINKING_TOKENS = 1_024
"""The least budget for thinking that Anthropic's API takes."""


def sent_request(name: str, request: ModelRequest, parts: Parts, api: RefusableApi, encode: Encode) -> SentRequest:
    """Return the request in the form that the model `name` is sent, without `parts`."""
    trimmed = without(request, parts, sight=api.sight_of(name))
    return SentRequest(parts, trimmed, trimmed_body(encode(trimmed, parts), parts, api))


def without(request: ModelRequest, parts: Parts, *, sight: Sight) -> ModelRequest:
    """Return our own request without tools, state and attachments among `parts`, as a model of this `sight` sees it.

    >>> from turnkeeper.models.transcript.refused_parts import RefusedPart
    >>> head = {"tools": [ToolSpec(name="look"), ToolSpec(name="now")]}
    >>> request = ModelRequest.model_validate({"head": head, "messages": []})
    >>> parts = Parts([RefusedPart(kind="tool", name="look")])
    >>> [tool.name for tool in without(request, parts, sight=Sight()).head.tools]
    ['now']
    """
    if parts.of("state") and any(message.state for message in request.messages):
        messages = [message.model_copy(update={"state": None}) for message in request.messages]
        request = request.model_copy(update={"messages": messages})
    request = _without_tools(request, parts)
    seen = Sight(images=sight.images and not parts.of("images"), pdfs=sight.pdfs and not parts.of("pdfs"))
    notes = {part.name: f"({part.reason})" for part in parts.of("attachment")}
    return visible_request(request, seen, withheld=notes.get)


def list_version(tools: Sequence[ToolSpec]) -> str:
    """Return the version of a part that is all tools of a list."""
    return tools_digest(list(tools))


def tool_version(tool: ToolSpec) -> str:
    return tool.digest[:16]


def _without_tools(request: ModelRequest, parts: Parts) -> ModelRequest:
    if not request.head.tools or not (parts.of("tool") or parts.of("tool_schema")):
        return request
    tools = [
        _with_open_schema(tool) if _is_meant(tool, request, parts, "tool_schema") else tool
        for tool in request.head.tools
        if not _is_meant(tool, request, parts, "tool")
    ]
    request = request.model_copy(update={"head": request.head.model_copy(update={"tools": tools})})
    # Some vendors refuse calls in a request without tools.
    return request if tools else request.model_copy(update={"messages": list(_calls_as_text(request.messages))})


def _is_meant(tool: ToolSpec, request: ModelRequest, parts: Parts, kind: Any) -> bool:
    return any(
        part.version in ("", tool_version(tool))
        if part.name
        else part.version in ("", list_version(request.head.tools))
        for part in parts.of(kind)
        if part.name in ("", tool.name)
    )


def _with_open_schema(tool: ToolSpec) -> ToolSpec:
    """Return the tool with a schema that every vendor accepts, and its own as text."""
    return tool.model_copy(update={"description": description_with_schema(tool), "input_schema": {"type": "object"}})


def _calls_as_text(messages: Iterable[ModelMessage]) -> Iterable[ModelMessage]:
    """Yield the messages with calls and results as text; the results of a step are one message of the user."""
    results: list[str] = []
    for message in messages:
        if message.role == "tool":
            results.append(f"[Result of {message.tool_name or 'the tool'}: {result_text(message)}]")
            continue
        content = message.content
        if results and message.role == "user":
            content, results = "\n\n".join([*results, content]), []
        elif results:
            yield ModelMessage(role="user", content="\n\n".join(results))
            results = []
        if message.tool_calls:
            texts = filter(None, [content, *map(_call_text, message.tool_calls)])
            message = message.model_copy(update={"tool_calls": [], "state": None})
            content = "\n\n".join(texts)
        yield message.model_copy(update={"content": content})
    if results:
        yield ModelMessage(role="user", content="\n\n".join(results))


def _call_text(call: CallPart) -> str:
    args = call.args if isinstance(call.args, str) else json.dumps(call.args, ensure_ascii=False)
    return f"[Called {call.name} with {args}]"


# ---- the body


def trimmed_body(body: Body, parts: Parts, api: RefusableApi) -> Body:
    """Return the body without the parameters among `parts`, and within their bounds.

    >>> from turnkeeper.models.transcript.refused_parts import RefusedPart
    >>> api = RefusableApi(sight_of=lambda name: Sight(), bounds=("max_tokens",))
    >>> bound = RefusedPart(kind="bound", name="max_tokens", limit=9)
    >>> parts = Parts([RefusedPart(kind="parameter", name="a.b"), bound])
    >>> trimmed_body({"a": {"b": 1, "c": 2}, "max_tokens": 20}, parts, api)
    {'a': {'c': 2}, 'max_tokens': 9}
    """
    body = dict(body)
    for part in parts:
        if part.kind == "parameter":
            _omit(body, part.name, api)
        elif part.kind == "bound" and part.limit is not None:
            _bound(body, part.limit, api)
    return body


def _omit(body: Body, name: str, api: RefusableApi) -> None:
    first, _, inner = name.partition(".")
    if name in api.in_blocks:
        for section in SECTIONS:
            if section in body:
                body[section] = _without_key(body[section], name)
    elif name in body and name in api.replacements:
        body[api.replacements[name]] = body.pop(name)
    elif not inner:
        body.pop(name, None)
    elif isinstance(body.get(first), dict):
        body[first] = {key: value for key, value in body[first].items() if key != inner}
        if not body[first]:
            del body[first]


def _without_key(section: Any, name: str) -> Any:
    """Return a section without a field in its blocks; what the vendors' own blocks share with others stays as it is."""
    if not any(name in block for block in blocks_in(section)):
        return section
    copied = json.loads(json.dumps(section))
    for block in blocks_in(copied):
        block.pop(name, None)
    return copied


def _bound(body: Body, limit: int, api: RefusableApi) -> None:
    for name in api.bounds:
        if isinstance(value := body.get(name), int) and value > limit:
            body[name] = limit
    thinking = body.get("thinking")
    if isinstance(thinking, dict) and thinking.get("budget_tokens", 0) >= limit:
        # A budget for thinking is part of the answer's length.
        if limit >= 2 * MIN_THINKING_TOKENS:
            body["thinking"] = {**thinking, "budget_tokens": limit // 2}
        else:
            del body["thinking"]
