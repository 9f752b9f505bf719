"""An API as the mechanism sees it, and a request in the form that is sent."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from turnkeeper.activities.providers.visible_request import Sight
from turnkeeper.models.transcript.model_call import ModelRequest
from turnkeeper.models.transcript.refused_parts import PartKind, RefusedPart

Body = dict[str, Any]
"""A request's body as JSON."""

Encode = Callable[[ModelRequest, "Parts"], Body]
"""Encodes a request from which parts are left out; fields of messages it omits or adds itself."""

NEVER_OMITTED = frozenset({"model", "messages", "input", "stream", "system", "instructions", "tools"})
"""Parameters that no request can do without, and those that are parts of their own."""


@dataclass(frozen=True)
class RefusableApi:
    """The parts that can be left out of an API's requests."""

    sight_of: Callable[[str], Sight]
    """Returns the kinds of attachments that a model reads, by its name."""
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

    >>> api = RefusableApi(sight_of=lambda name: Sight(), needed=frozenset({"max_tokens"}))
    >>> present_parameters({"model": "m", "max_tokens": 9, "reasoning": {"summary": "auto"}}, api)
    ['reasoning.summary', 'reasoning']
    """
    names = [name for name in body if name not in NEVER_OMITTED | api.needed]
    inner = [f"{name}.{key}" for name in names if isinstance(value := body[name], Mapping) for key in value]
    in_blocks = [name for name in api.in_blocks if has_in_blocks(body, name)]
    return sorted([*names, *inner, *in_blocks], key=lambda name: (-len(name), name))


SECTIONS = ("system", "tools", "messages", "input")
_OPAQUE = frozenset({"input_schema", "parameters", "arguments", "input", "properties"})
"""Keys within blocks whose values are schemas and arguments, which are nobody's fields."""


def blocks_in(value: object) -> Iterable[dict[str, Any]]:
    """Yield all blocks in sections of a body, outer ones first."""
    if isinstance(value, list):
        for item in value:
            yield from blocks_in(item)
    elif isinstance(value, dict):
        yield value
        for key, inner in value.items():
            if key not in _OPAQUE and isinstance(inner, dict | list):
                yield from blocks_in(inner)


def has_in_blocks(body: Mapping[str, object], name: str) -> bool:
    return any(name in block for section in SECTIONS for block in blocks_in(body.get(section)))


def names_of_tools(body: Mapping[str, object]) -> Collection[str]:
    """Return the names of a body's tools, in their order."""
    tools = body.get("tools")
    return [name_of_tool(tool) for tool in tools] if isinstance(tools, list) else []


def name_of_tool(tool: Mapping[str, Any]) -> str:
    return str(tool.get("name") or tool.get("function", {}).get("name", ""))
