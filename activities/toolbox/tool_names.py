"""Tools by name: unique names, validation of arguments, and results as outcomes (AGT-6, AGT-7).

A tool keeps its own name unless several servers offer the same, in which case it is `server__tool`. Sessions keep names
for months, so a name is never reassigned to another tool while this process runs.

The MCP SDK is loaded only for results of foreign servers.
"""

import hashlib
import json
import logging
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count
from typing import TYPE_CHECKING, NoReturn

from jsonschema import ValidationError
from pydantic import JsonValue
from pydantic_core import to_json

from turnkeeper.activities.toolbox.built_in import BuiltInConnection, BuiltInTool
from turnkeeper.activities.toolbox.schemas import ANY_OBJECT, argument_errors, schema_problem
from turnkeeper.activities.toolbox.tool_server import ToolHints, UnreachableError
from turnkeeper.activities.tools import ServerLostError
from turnkeeper.models.texts import bound_text, encodable, encodable_text
from turnkeeper.models.transcript.conversation import ToolResult, ToolStatus
from turnkeeper.models.transcript.model_call import MAX_DESCRIPTION_CHARS, ToolEffect, ToolInvocation, ToolSpec

if TYPE_CHECKING:
    from mcp_types import CallToolResult, Tool, ToolAnnotations

    from turnkeeper.activities.toolbox.server_connection import ServerConnection

MAX_NAME_CHARS = 64
"""Every vendor's API accepts a tool name of this length."""

OUTCOME_CHARS = 300

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class NamedTool:
    """A tool of a server with its unique name."""

    name: str
    connection: "BuiltInConnection | ServerConnection"
    tool: "BuiltInTool | Tool"

    @property
    def qualified_name(self) -> str:
        """The name with the server's name before it, even if that is not needed."""
        return _sanitized_name(f"{self.connection.server.name}__{self.tool.name}")

    def matches(self, invocation: ToolInvocation) -> bool:
        """Return whether a call means this tool, by its current name or an earlier one.

        A session keeps the names that it began with, and a tool may since have gained or lost its server's name. The
        server must be the same, since the call was approved for that server.
        """
        server = self.connection.server
        if (invocation.server and invocation.server != server.name) or (invocation.built_in and not server.built_in):
            return False
        names = {self.name, self.qualified_name, *([_sanitized_name(self.tool.name)] if invocation.server else [])}
        return invocation.name in names

    def is_unchanged(self, invocation: ToolInvocation) -> bool:
        """Return whether the tool is unchanged since policies and people decided about it (AGT-8).

        Built-in tools always count as unchanged: a new version may add arguments, but not change what they do.
        """
        if not invocation.tool_digest:
            return True
        return self.spec.model_copy(update={"name": invocation.name}).digest == invocation.tool_digest

    @cached_property
    def schema_problem(self) -> str | None:
        """Why vendors would reject every request with the tool's schema; `None` if they would not."""
        return schema_problem(self._schema_json)

    @cached_property
    def spec(self) -> ToolSpec:
        """The tool as sessions store it. If vendors would reject its schema, the schema is in the description."""
        server, description, schema = self.connection.server, self.tool.description or "", self._schema
        if self.schema_problem:
            description = f"{description}\n\nIts arguments, in its server's words: {self._schema_json}"
            schema = ANY_OBJECT
        has_our_hints = server.built_in or getattr(self.tool, "always_qualified", False)
        return ToolSpec(
            name=self.name,
            description=bound_text(description, MAX_DESCRIPTION_CHARS, 4 * MAX_DESCRIPTION_CHARS),
            input_schema=schema,
            effect=repetition_effect(self.tool.annotations, trusted=server.trusted or has_our_hints),
            built_in=server.built_in,
            server="" if server.built_in else server.name,
            own_name="" if server.built_in else _sanitized_name(self.tool.name),
            local=server.signer is not None,
        )

    @cached_property
    def _schema(self) -> dict[str, JsonValue]:
        return {encodable_text(key): encodable(value) for key, value in self.tool.input_schema.items()}

    @cached_property
    def _schema_json(self) -> str:
        return to_json(self._schema, inf_nan_mode="null").decode()

    def argument_errors(self, args: Mapping[str, JsonValue]) -> list[str]:
        """Return what is wrong with the arguments; empty if they fit, or if only the server can check them."""
        return [_complaint(error) for error in argument_errors(self._schema_json, args)]

    def result_of(self, answer: "CallToolResult") -> ToolResult:
        """Return the result of a foreign server as an outcome, its content, and its images and files."""
        from turnkeeper.activities.toolbox.foreign_messages import contents_of

        texts, attachments = contents_of(answer.content)
        status: ToolStatus = "error" if answer.is_error else "ok"
        content, structured = "\n".join(texts), ""
        if answer.structured_content is not None and not _says_the_same(texts, answer.structured_content):
            structured = json.dumps(answer.structured_content, ensure_ascii=False)
        if not texts:
            content, structured = structured, ""
        if content.strip() and "\n" not in content.strip() and len(content) <= OUTCOME_CHARS:
            return ToolResult(outcome=content, content=structured, status=status, attachments=attachments)
        outcome = f"{self.name} failed" if answer.is_error else f"Called {self.name}"
        content = f"{content}\n{structured}" if structured else content
        return ToolResult(outcome=outcome, content=content, status=status, attachments=attachments)

    def failure_result(self, error: Exception) -> ToolResult:
        """Return the result after a foreign server's `error`: an error, or outcome unknown if it must not be repeated.

        Raises `ServerLostError` if a repeated call is safe and may help.
        """
        from mcp import MCPError

        from turnkeeper.activities.toolbox.foreign_messages import LOST

        if isinstance(error, MCPError) and error.code not in LOST:
            return error_result(f"{self.name} failed", error.message)
        # The error's text may contain addresses and credentials, so it goes to the log and not to the model.
        _log.warning("the call of %r failed", self.name, exc_info=error)
        is_repeatable = self.spec.effect != "at_most_once"
        if isinstance(error, UnreachableError):
            result = error_result(f"{self.name} was not called", "Its server can't be reached now.")
            return _raise_server_lost(result) if is_repeatable else result
        is_lost = isinstance(error, MCPError)
        why = self._failure_reason(error, is_lost=is_lost)
        if is_repeatable:
            result = error_result(f"{self.name} failed", why)
            return _raise_server_lost(result) if is_lost else result
        return ToolResult(
            outcome=f"Outcome unknown: {self.name} was started, but returned no result",
            content=f"{why} The call may have taken effect, so it was not repeated.",
            status="outcome_unknown",
        )

    def _failure_reason(self, error: Exception, *, is_lost: bool) -> str:
        if isinstance(error, TimeoutError):
            return str(error)
        if is_lost:
            return "The tool server disconnected before answering, or its answer was not valid, or over 10 MB."
        return "Its answer could not be read."


def _says_the_same(texts: list[str], structured: JsonValue) -> bool:
    """Return whether texts are the JSON of structured content, or of the only value in it (AGT-7).

    Most servers send both, and `{"result": ...}` around what is no object, for clients that read only one.

    >>> _says_the_same(['{"rows": [1.0]}'], {"rows": [1]}), _says_the_same(["7"], {"result": 7})
    (True, True)
    >>> _says_the_same(["Sunny"], {"result": "Sunny"}), _says_the_same(["1 row"], {"rows": [1]})
    (True, False)
    """
    values = [structured]
    if isinstance(structured, dict) and len(structured) == 1:
        values += [value.strip() if isinstance(value, str) else value for value in structured.values()]
    whole = "\n".join(texts).strip()
    # A list is often sent as one text for each of its items.
    same = [{}, [], whole, _parsed(whole), texts, [_parsed(text) for text in texts]]
    return any(value in same for value in values)


def _parsed(text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value


def _raise_server_lost(result: ToolResult) -> NoReturn:
    raise ServerLostError(result)


def repetition_effect(annotations: "ToolHints | ToolAnnotations | None", *, trusted: bool) -> ToolEffect:
    """Return what a repeated call may do. Annotations count only if the server is trusted (AGT-7).

    >>> repetition_effect(ToolHints(read_only_hint=True), trusted=True)
    'read'
    >>> repetition_effect(ToolHints(read_only_hint=True), trusted=False)
    'at_most_once'
    """
    if annotations is None or not trusted:
        return "at_most_once"
    if annotations.read_only_hint:
        return "read"
    return "idempotent" if annotations.idempotent_hint else "at_most_once"


class ToolNames:
    """Assigns unique names to tools. A name is never reassigned to another tool (AGT-6)."""

    def __init__(self, reserved: Collection[str] = ()) -> None:
        self._reserved = frozenset(reserved)
        self._owners: dict[str, tuple[str, str]] = {}

    def assign(self, connections: "Iterable[BuiltInConnection | ServerConnection]") -> dict[str, NamedTool]:
        """Return all tools by their names, with the server's name if several servers offer the same.

        Built-in tools always keep their names, since prompts and policies refer to them.
        """
        tools = [(connection, tool) for connection in connections for tool in connection.tools]
        plain_counts = Counter(_sanitized_name(tool.name) for _, tool in tools)
        routes: dict[str, NamedTool] = {}
        for connection, tool in tools:
            plain, qualified = _sanitized_name(tool.name), _sanitized_name(f"{connection.server.name}__{tool.name}")
            owner = (connection.server.name, tool.name)
            is_free = connection.server.built_in or plain_counts[plain] == 1 or self._owners.get(plain) == owner
            is_free &= not getattr(tool, "always_qualified", False)
            numbered_names = (_sanitized_name(f"{qualified}_{number}") for number in count(2))
            name = self._first_free(chain([plain] if is_free else [], [qualified], numbered_names), owner)
            routes[name] = NamedTool(name, connection, tool)
        return routes

    def _first_free(self, candidates: Iterable[str], owner: tuple[str, str]) -> str:
        """Return the first name that no other tool has, and assign it to `owner`."""
        name = next(
            name for name in candidates if name not in self._reserved and self._owners.get(name, owner) == owner
        )
        self._owners[name] = owner
        return name


def _sanitized_name(name: str) -> str:
    """Return a name that every vendor accepts. Names that are too long are distinguished by a digest.

    >>> _sanitized_name("search.web"), len(_sanitized_name("x" * 100))
    ('search_web', 64)
    """
    usable = re.sub(r"[^A-Za-z0-9_-]", "_", name) or "_"
    if len(usable) <= MAX_NAME_CHARS:
        return usable
    digest = hashlib.sha256(name.encode(errors="replace")).hexdigest()[:8]
    return f"{usable[: MAX_NAME_CHARS - 9]}_{digest}"


def _complaint(error: ValidationError) -> str:
    field = error.json_path.removeprefix("$").lstrip(".") or "arguments"
    rule = f"{error.validator}: {json.dumps(error.validator_value, ensure_ascii=False)}"
    if error.validator == "additionalProperties" and isinstance(error.schema, Mapping):
        rule = f"allowed: {', '.join(error.schema.get('properties', {}))}"
    return one_line(f"{field}: {error.message} ({rule})")


def error_result(outcome: str, content: str) -> ToolResult:
    return ToolResult(outcome=outcome, content=content, status="error")


def one_line(text: str) -> str:
    """Return `text` as one line of at most about `OUTCOME_CHARS` characters, with its middle cut."""
    line = " ".join(encodable_text(text).splitlines()).strip()
    if len(line) <= OUTCOME_CHARS:
        return line
    return f"{line[: OUTCOME_CHARS // 2]} ... {line[-OUTCOME_CHARS // 2 :]}"
