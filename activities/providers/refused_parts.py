"""The parts of a request that may be left out, and the request in the form that is sent: without them. Pure (AGT-9).

One place decides about a part that a vendor refuses, for all vendors and parts:

send, and remember   `vendor_provider.py`: send a request; if it is refused, send it without the refused part; by
                     endpoint and model for a day (the session carries its own: `models/session`)
find the part        `blamed_parts.py`: what the vendor's words, place and codes blame, and what may be left out unnamed
leave it out         here: of our own request, and of the encoded body
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from turnkeeper.activities.providers.request_encoding import (
    FULL,
    Sight,
    description_with_schema,
    result_text,
    visible_request,
)
from turnkeeper.models.session.tools import tools_digest
from turnkeeper.models.transcript.model_call import (
    CallPart,
    ModelMessage,
    ModelRequest,
    PartKind,
    RefusedPart,
    ToolSpec,
)

Body = dict[str, Any]
"""A request's body as JSON."""

Encode = Callable[[ModelRequest, "Parts"], Body]
"""Encodes a request from which parts are left out; fields of messages it omits or adds itself."""

NEVER_OMITTED = frozenset({"model", "messages", "input", "stream", "system", "instructions", "tools"})
"""Parameters that no request can do without, and those that are parts of their own."""


@dataclass(frozen=True)
class RefusableApi:
    """The parts that can be left out of an API's requests."""

    sight_of: Callable[[str], Sight] = lambda name: FULL
    """Returns the kinds of attachments that a model reads, by its name. Where that is not sure, all are sent."""
    bounds: tuple[str, ...] = ()
    """Parameters with a number that a model may limit."""
    needed: frozenset[str] = frozenset()
    """Further parameters that can't be omitted."""
    only_named: frozenset[str] = frozenset()
    """Parameters that are omitted only if the vendor names them."""
    replacements: Mapping[str, str] = field(default_factory=dict)
    """Parameters that another name replaces before they are omitted."""
    in_blocks: frozenset[str] = frozenset()
    """Fields that are added to blocks of the system prompt, tools and messages, and may be omitted everywhere."""
    wordings: Mapping[str, re.Pattern[str]] = field(default_factory=dict)
    """How vendors name a parameter without its name."""
    fields_in: Callable[[Body], frozenset[str]] = lambda body: frozenset()
    """The optional fields of a body's messages."""
    missing_in: Callable[[Body], frozenset[str]] = lambda body: frozenset()
    """The fields that its messages lack and that an endpoint may require."""
    learns_sight: bool = True
    """Whether a refusal of a kind of attachments is remembered for the model."""
    advice_without_tools: str = ""
    """The advice if a model does not support tools."""


class Parts:
    """The parts that are left out of one request.

    >>> parts = Parts([RefusedPart(kind="bound", name="max_tokens", limit=limit) for limit in (9, 12)])
    >>> [part.limit for part in parts.of("bound")]
    [9]
    """

    def __init__(self, parts: Iterable[RefusedPart] = ()) -> None:
        """Of several parts with the same key the last one counts, of several limits the lowest."""
        self._parts: dict[tuple[str, str, str], RefusedPart] = {}
        for part in parts:
            earlier = self._parts.get(part.key)
            is_higher = earlier is not None and (earlier.limit or 0) < (part.limit or 0)
            self._parts[part.key] = earlier if earlier and is_higher else part

    def __iter__(self) -> Iterator[RefusedPart]:
        return iter(self._parts.values())

    def with_more(self, parts: Iterable[RefusedPart]) -> "Parts":
        return Parts([*self, *parts])

    def of(self, kind: PartKind) -> Sequence[RefusedPart]:
        return [part for part in self if part.kind == kind]

    def names(self, kind: PartKind) -> Sequence[str]:
        return [part.name for part in self.of(kind)]

    @property
    def required_fields(self) -> frozenset[str]:
        return frozenset(self.names("required"))

    @property
    def omitted_fields(self) -> frozenset[str]:
        """A field that is required stays, even if it was refused before."""
        return frozenset(self.names("field")) - self.required_fields


@dataclass(frozen=True)
class SentRequest:
    """A request in the form that is sent: what is left out, our own request without it, and the encoded body."""

    parts: Parts
    request: ModelRequest
    body: Body


def present_parameters(body: Mapping[str, object], api: RefusableApi) -> list[str]:
    """Return the names of a body's optional parameters, inner ones as `reasoning.summary`, the longest first.

    >>> api = RefusableApi(needed=frozenset({"max_tokens"}))
    >>> present_parameters({"model": "m", "max_tokens": 9, "reasoning": {"summary": "auto"}}, api)
    ['reasoning.summary', 'reasoning']
    """
    names = [name for name in body if name not in NEVER_OMITTED | api.needed]
    inner = [f"{name}.{key}" for name in names if isinstance(value := body[name], Mapping) for key in value]
    in_blocks = [name for name in api.in_blocks if has_in_blocks(body, name)]
    return sorted([*names, *inner, *in_blocks], key=lambda name: (-len(name), name))


_OPAQUE = frozenset({"input_schema", "parameters", "arguments", "input", "properties"})
"""Keys within blocks whose values are schemas and arguments, which are nobody's fields."""


def blocks_in(value: object) -> Iterable[dict[str, Any]]:
    """Yield all blocks in a list of a body, outer ones first."""
    if isinstance(value, list):
        for item in value:
            yield from blocks_in(item)
    elif isinstance(value, dict):
        yield value
        for key, inner in value.items():
            if key not in _OPAQUE and isinstance(inner, dict | list):
                yield from blocks_in(inner)


def has_in_blocks(body: Mapping[str, object], name: str) -> bool:
    return any(name in block for section in body.values() if isinstance(section, list) for block in blocks_in(section))


def names_of_tools(body: Mapping[str, object]) -> Collection[str]:
    """Return the names of a body's tools, in their order."""
    tools = body.get("tools")
    return [name_of_tool(tool) for tool in tools] if isinstance(tools, list) else []


def name_of_tool(tool: Mapping[str, Any]) -> str:
    return str(tool.get("name") or tool.get("function", {}).get("name", ""))


# ---- leaving parts out


MIN_THINKING_TOKENS = 1_024
"""The least budget for thinking that Anthropic's API takes."""


def sent_request(name: str, request: ModelRequest, parts: Parts, api: RefusableApi, encode: Encode) -> SentRequest:
    """Return the request in the form that the model `name` is sent, without `parts`."""
    trimmed = without(request, parts, sight=api.sight_of(name))
    return SentRequest(parts, trimmed, trimmed_body(encode(trimmed, parts), parts, api))


def without(request: ModelRequest, parts: Parts, *, sight: Sight) -> ModelRequest:
    """Return our own request without tools, state and attachments among `parts`, as a model of this `sight` sees it.

    >>> from turnkeeper.models.transcript.model_call import RefusedPart
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
        # Every vendor accepts this schema, and its own stands in the text.
        tool.model_copy(update={"description": description_with_schema(tool), "input_schema": {"type": "object"}})
        if _is_meant(tool, request, parts, "tool_schema")
        else tool
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

    >>> from turnkeeper.models.transcript.model_call import RefusedPart
    >>> api = RefusableApi(bounds=("max_tokens",))
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
        for section, value in body.items():
            if isinstance(value, list):
                body[section] = _without_key(value, name)
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
