"""The way from a name to a tool: the name itself, the checks before a call, the words after it (AGT-6, AGT-7).

A name is the tool's own where no other server offers the same, else `server__tool`. Sessions hold on to a name for
months: one that was given is not given to another tool as long as this process runs.
"""

import hashlib
import json
import logging
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, count, islice
from typing import NoReturn, cast

from jsonschema import Draft202012Validator, SchemaError, ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend, validator_for
from mcp import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    PARSE_ERROR,
    REQUEST_TIMEOUT,
    AudioContent,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
    Tool,
    ToolAnnotations,
)
from pydantic import JsonValue
from referencing import Registry

from activities.toolbox.connection import Connection, UnreachableError
from activities.tools import LostCallError
from models.context.bounds import bound_text, encodable, encodable_text
from models.model_call import ToolEffect, ToolInvocation, ToolSpec
from models.trajectory import ToolResult, ToolStatus

MOST_NAME_CHARS = 64
"""What every vendor's API accepts as a tool name."""

MOST_COMPLAINTS = 5
OUTCOME_CHARS = 300
DESCRIPTION_CHARS = 4_000

_LOST = (CONNECTION_CLOSED, REQUEST_TIMEOUT, PARSE_ERROR)
"""Errors after which nobody knows whether the tool ran."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Route:
    """The way from a name to a tool of a server, and what is known of the tool."""

    name: str
    connection: Connection
    tool: Tool

    @property
    def qualified_name(self) -> str:
        """The name with the server's before it, whether or not that is needed."""
        return _usable(f"{self.connection.server.name}__{self.tool.name}")

    def is_meant_by(self, invocation: ToolInvocation) -> bool:
        """Tell whether a call is of this tool, by the name it has now or one it had.

        A session keeps the names it began with: one that needed its server's name then may need it no longer, and the
        other way round. Whose tool it is does not change with that: it was that server's when it was approved.
        """
        if invocation.server and invocation.server != self.connection.server.name:
            return False
        names = {self.name, self.qualified_name, *([_usable(self.tool.name)] if invocation.server else [])}
        return invocation.name in names

    @cached_property
    def spec(self) -> ToolSpec:
        """The tool as the session keeps it."""
        server = self.connection.server
        description = bound_text(self.tool.description or "", DESCRIPTION_CHARS, 4 * DESCRIPTION_CHARS)
        return ToolSpec(
            name=self.name,
            description=description,
            input_schema={encodable_text(key): encodable(value) for key, value in self.tool.input_schema.items()},
            effect=effect_of(self.tool.annotations, trusted=server.trusted or server.built_in),
            built_in=server.built_in,
            server="" if server.built_in else server.name,
        )

    @cached_property
    def _validator(self) -> Validator | None:
        return validator_of(json.dumps(self.tool.input_schema))

    def complaints(self, args: Mapping[str, JsonValue]) -> list[str]:
        """Say what is wrong with the arguments: nothing if they fit, or if the schema itself can't be used."""
        if self._validator is None:
            return []
        try:
            return [_complaint(error) for error in islice(self._validator.iter_errors(args), MOST_COMPLAINTS)]
        except Exception:  # noqa: BLE001  # references to nowhere, bad patterns, ...: its server checks once more
            return []

    def told(self, answer: CallToolResult) -> ToolResult:
        """Return what the server answered, as an outcome and its content."""
        texts = [_text_of(block) for block in answer.content]
        if not texts and answer.structured_content is not None:
            texts = [json.dumps(answer.structured_content, ensure_ascii=False)]
        status: ToolStatus = "error" if answer.is_error else "ok"
        if self.connection.server.built_in:
            return ToolResult(outcome="".join(texts[:1]), content="\n".join(texts[1:]), status=status)
        content = "\n".join(texts)
        if content.strip() and "\n" not in content.strip() and len(content) <= OUTCOME_CHARS:
            return ToolResult(outcome=content, status=status)
        outcome = f"{self.name} failed" if answer.is_error else f"Called {self.name}"
        return ToolResult(outcome=outcome, content=content, status=status)

    def failure(self, error: Exception) -> ToolResult:
        """Return what is known after `error`; of a tool that must not be repeated it may be that nothing is known.

        Raises `LostCallError` of a tool that may be repeated, where that may help.
        """
        if isinstance(error, MCPError) and error.code not in _LOST:
            return error_result(f"{self.name} failed", error.message)
        # Its text may hold addresses and credentials of the server: for the log, not for the model.
        _log.warning("the call of %r failed", self.name, exc_info=error)
        may_be_repeated = self.spec.effect != "at_most_once"
        if isinstance(error, UnreachableError):
            unreached = error_result(f"{self.name} was not called", "Its server can't be reached now.")
            return _lost(unreached) if may_be_repeated else unreached
        why = self._why(error)
        if may_be_repeated:
            failed = error_result(f"{self.name} failed", why)
            return _lost(failed) if isinstance(error, MCPError) else failed
        return ToolResult(
            outcome=f"{self.name}: outcome unknown",
            content=f"{why} It may have had its effect, and is not repeated.",
            status="outcome_unknown",
        )

    def _why(self, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            return f"No answer came within {self.connection.server.timeout:g} s."
        if isinstance(error, MCPError):
            return "No answer could be had: the connection to its server was lost, or what it answered was none."
        return "Its answer could not be read."


def _lost(result: ToolResult) -> NoReturn:
    raise LostCallError(result)


def effect_of(annotations: ToolAnnotations | None, *, trusted: bool) -> ToolEffect:
    """Return what a repeated call may do; where the server is not trusted, its word does not count (AGT-7).

    >>> effect_of(ToolAnnotations(read_only_hint=True), trusted=True)
    'read'
    >>> effect_of(ToolAnnotations(read_only_hint=True), trusted=False)
    'at_most_once'
    """
    if annotations is None or not trusted:
        return "at_most_once"
    if annotations.read_only_hint:
        return "read"
    return "idempotent" if annotations.idempotent_hint else "at_most_once"


class Names:
    """Which tool has which name, and had it: names are unique, and never go from one tool to another (AGT-6)."""

    def __init__(self, reserved: Collection[str] = ()) -> None:
        """Give no name in `reserved`."""
        self._reserved = frozenset(reserved)
        self._given: dict[str, tuple[str, str]] = {}

    def routes_over(self, connections: Iterable[Connection]) -> dict[str, Route]:
        """Return all tools by their names: with the server's before it where several servers offer the same.

        Our own keep their names in any case: prompts and policies speak of them.
        """
        offers = [(connection, tool) for connection in connections for tool in connection.tools]
        offered = Counter(_usable(tool.name) for _, tool in offers)
        routes: dict[str, Route] = {}
        for connection, tool in offers:
            plain, qualified = _usable(tool.name), _usable(f"{connection.server.name}__{tool.name}")
            owner = (connection.server.name, tool.name)
            is_free = connection.server.built_in or offered[plain] == 1 or self._given.get(plain) == owner
            numbered = (_usable(f"{qualified}_{number}") for number in count(2))
            name = self._first_free(chain([plain] if is_free else [], [qualified], numbered), owner)
            routes[name] = Route(name, connection, tool)
        return routes

    def _first_free(self, candidates: Iterable[str], owner: tuple[str, str]) -> str:
        """Give `owner` the first name that is nobody else's."""
        name = next(name for name in candidates if name not in self._reserved and self._given.get(name, owner) == owner)
        self._given[name] = owner
        return name


def _usable(name: str) -> str:
    """Return a name that every vendor accepts; what is too long keeps apart by a digest.

    >>> _usable("search.web"), len(_usable("x" * 100)), _usable("x" * 100) == _usable("x" * 101)
    ('search_web', 64, False)
    """
    usable = re.sub(r"[^A-Za-z0-9_-]", "_", name) or "_"
    if len(usable) <= MOST_NAME_CHARS:
        return usable
    digest = hashlib.sha256(name.encode(errors="replace")).hexdigest()[:8]
    return f"{usable[: MOST_NAME_CHARS - 9]}_{digest}"


@lru_cache(maxsize=1_024)
def validator_of(schema_json: str) -> Validator | None:
    """Return what checks arguments against a schema; `None` if it is no valid one, or not one for us.

    Patterns are left to the server: one can be written that takes for ever, and would hold up the whole worker.
    """
    schema = json.loads(schema_json)
    if '"patternProperties"' in schema_json:
        return None
    validator = validator_for(schema, default=Draft202012Validator)
    without_patterns = cast(type[Validator], extend(validator, {"pattern": lambda *_: ()}))  # type: ignore[no-untyped-call]
    try:
        validator.check_schema(schema)
    except SchemaError:
        return None
    # With a registry of its own it does not fetch what a foreign schema refers to.
    return without_patterns(schema, registry=Registry())


def _complaint(error: ValidationError) -> str:
    """Say which argument does not fit, and what would."""
    field = error.json_path.removeprefix("$").lstrip(".") or "arguments"
    rule = f"{error.validator}: {json.dumps(error.validator_value, ensure_ascii=False)}"
    if error.validator == "additionalProperties" and isinstance(error.schema, Mapping):
        rule = f"allowed: {', '.join(error.schema.get('properties', {}))}"
    return one_line(f"{field}: {error.message} ({rule})")


def _text_of(block: ContentBlock) -> str:
    """Return a text, or name what is none."""
    match block:
        case TextContent():
            return block.text
        case ImageContent() | AudioContent():
            return f"[{block.type}, {block.mime_type}, {len(block.data) * 3 // 4:,} bytes: not shown]"
        case ResourceLink():
            return f"[link to {block.name}: {block.uri}]"
        case EmbeddedResource(resource=TextResourceContents() as resource):
            return f"[{resource.uri}]\n{resource.text}"
        case EmbeddedResource():
            return f"[{block.resource.uri}, {block.resource.mime_type or 'of unknown type'}: not shown]"


def error_result(outcome: str, content: str) -> ToolResult:
    """Return a result for a call that came to nothing."""
    return ToolResult(outcome=outcome, content=content, status="error")


def one_line(text: str) -> str:
    """Return `text` on one line of at most about `OUTCOME_CHARS` characters, its middle cut."""
    line = " ".join(encodable_text(text).splitlines()).strip()
    if len(line) <= OUTCOME_CHARS:
        return line
    return f"{line[: OUTCOME_CHARS // 2]} ... {line[-OUTCOME_CHARS // 2 :]}"
