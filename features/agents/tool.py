"""`@tool`: a function becomes a tool of an agent (AGN-3).

The schema comes from the signature, the description from the docstring. A tool runs in a process of its own
(`tool_process.py`), so this module loads nothing but pydantic.
"""

import asyncio
import inspect
import re
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_type_hints, overload

from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, create_model
from pydantic.errors import PydanticSchemaGenerationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

Effect = Literal["read", "idempotent", "at_most_once"]
"""What a repeated call may do. `read` changes nothing; `idempotent` may run again with the same key; `at_most_once`
is never run twice, and its outcome is unknown if the process dies in the middle (AGT-7)."""

EFFECTS = ("read", "idempotent", "at_most_once")

NAME_PATTERN = r"[A-Za-z_][A-Za-z0-9_]{0,63}"


class ToolError(Exception):
    """What went wrong, in words for the model. Any other exception is reported without its traceback."""


@dataclass(frozen=True)
class Image:
    """An image as a tool's result."""

    data: bytes
    media_type: Literal["image/png", "image/jpeg", "image/gif", "image/webp"] = "image/png"

    @property
    def base64(self) -> str:
        return b64encode(self.data).decode()


Report = Callable[[float | None, str], None]


def _to_nobody(percent: float | None, text: str) -> None:
    """Report to nobody, as no session calls the tool."""


@dataclass(frozen=True)
class ToolContext:
    """For whom a call runs. A tool gets it as its first parameter, if that is annotated as `ToolContext`."""

    session_id: str = "local"
    turn: int = 1
    call_id: str = "local/1.1.0"
    """The same for every run of this call, and unique over all sessions: the key for what must happen once."""
    agent: str | None = None
    """The agent with its version, as in `weather@2`; `None`: the session was started without one."""
    user: str | None = None
    """The person the session was started for; `None`: unknown."""
    tenant: str = ""
    workspace: Path = Path()
    """The session's folder for files. The process works in its own folder, not in this one."""
    report: Report = field(default=_to_nobody, repr=False, compare=False)
    """Where `progress` goes; for tests."""

    def progress(self, percent: float, text: str = "") -> None:
        """Show how far the call is: `percent` from 0 to 100, and one line. Returns at once, also in a thread."""
        self.report(percent, text)

    def heartbeat(self) -> None:
        """Say that the call is alive, so that its timeout starts again."""
        self.report(None, "")


class ToolDefinitionError(TypeError):
    """A function can't be a tool. The message says why, and what to write instead."""


@dataclass(frozen=True)
class Tool:
    """A function with what a model and a session must know of it. `@tool` makes one; it can still be called."""

    name: str
    description: str
    effect: Effect
    ask: bool | None
    timeout: float | None
    input_schema: dict[str, Any]
    function: Callable[..., Any] = field(repr=False, compare=False)
    arguments: type[BaseModel] = field(repr=False, compare=False)
    takes_context: bool = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, as in its own tests."""
        return self.function(*args, **kwargs)

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Run the function with checked arguments; a function that is not `async` runs in a thread.

        Raises:
            pydantic.ValidationError: the arguments don't fit.
        """
        checked = self.arguments.model_validate(arguments)
        keywords = {name: getattr(checked, name) for name in type(checked).model_fields}
        positional = (context,) if self.takes_context else ()
        if inspect.iscoroutinefunction(self.function):
            return await self.function(*positional, **keywords)
        return await asyncio.to_thread(self.function, *positional, **keywords)


Function = Callable[..., Any]


@overload
def tool(function: Function) -> Tool: ...


@overload
def tool(
    *,
    effect: Effect | None = None,
    ask: bool | None = None,
    timeout: float | None = None,
    name: str | None = None,
) -> Callable[[Function], Tool]: ...


def tool(
    function: Function | None = None,
    *,
    effect: Effect | None = None,
    ask: bool | None = None,
    timeout: float | None = None,
    name: str | None = None,
) -> Tool | Callable[[Function], Tool]:
    """Make a tool of a function.

    >>> @tool(effect="read")
    ... def forecast(city: str) -> str:
    ...     '''The weather of tomorrow in a city.'''
    ...     return f"{city}: rain"
    >>> forecast.name, forecast.effect, forecast("Ulm")
    ('forecast', 'read', 'Ulm: rain')

    Args:
        function: The function; it may be `async`. Its docstring is what the model reads.
        effect: What a repeated call may do. It has no default: only you know.
        ask: Whether a person must approve each call. By default, all but `read` are asked for.
        timeout: Seconds that one call may take; by default the session's `limits.tool_timeout`.
        name: Another name than the function's.

    Raises:
        ToolDefinitionError: no effect is named, or the function can't be a tool.
    """
    if effect not in EFFECTS:
        example = f"Write @tool(effect={EFFECTS[0]!r}), {EFFECTS[1]!r} or {EFFECTS[2]!r}"
        raise ToolDefinitionError(f"A tool must name its effect, what a repeated call may do. {example}.")
    if timeout is not None and not 0 < timeout <= 86_400:
        raise ToolDefinitionError(f"timeout is {timeout!r}; it must be over 0 and at most 86,400 seconds.")

    def decorate(function: Function) -> Tool:
        return _tool_of(function, effect, ask, timeout, name or str(getattr(function, "__name__", "")))

    return decorate(function) if function is not None else decorate


def _tool_of(function: Function, effect: Effect, ask: bool | None, timeout: float | None, name: str) -> Tool:
    if not re.fullmatch(NAME_PATTERN, name):
        raise ToolDefinitionError(f"The tool {name!r} needs another name: letters, digits and _, at most 64.")
    parameters = list(inspect.signature(function).parameters.values())
    hints = _hints(function, name)
    takes_context = bool(parameters) and hints.get(parameters[0].name) is ToolContext
    if takes_context:
        parameters = parameters[1:]
    description, texts = _described(inspect.getdoc(function) or "")
    fields: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ToolDefinitionError(f"{name}: a model can't fill in {parameter}; name each parameter.")
        if parameter.name not in hints:
            raise ToolDefinitionError(f"{name}: the parameter {parameter.name!r} has no type.")
        if hints[parameter.name] is ToolContext:
            raise ToolDefinitionError(f"{name}: the ToolContext must be the first parameter.")
        default = ... if parameter.default is parameter.empty else parameter.default
        text = texts.get(parameter.name)
        fields[parameter.name] = (hints[parameter.name], Field(default, description=text) if text else default)
    try:
        arguments = create_model(f"{name}_arguments", __config__=ConfigDict(extra="forbid"), **fields)
        schema = arguments.model_json_schema()
    except (PydanticSchemaGenerationError, PydanticUserError, NameError) as error:
        reason = str(error).splitlines()[0]
        raise ToolDefinitionError(f"{name}: a parameter has a type without a JSON schema: {reason}") from error
    schema.pop("title", None)
    return Tool(name, description, effect, ask, timeout, schema, function, arguments, takes_context)


def _hints(function: Function, name: str) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except NameError as error:
        raise ToolDefinitionError(f"{name}: {error}; a type of its signature is not there.") from error


_SECTION = re.compile(r"^(Args|Arguments|Parameters|Returns|Raises|Yields|Examples?|Notes?):\s*$")
_PARAMETER = re.compile(r"^\s+\*{0,2}(\w+)(?: *\([^)]*\))?: +(.*)$")


def _described(docstring: str) -> tuple[str, dict[str, str]]:
    r"""Return the description, and those of the parameters, of a docstring in Google's style.

    >>> _described("The weather.\n\nArgs:\n    city: Its name,\n        as people write it.\n    unit: C or F.")
    ('The weather.', {'city': 'Its name, as people write it.', 'unit': 'C or F.'})
    """
    description, texts, section, name = list[str](), dict[str, str](), "", ""
    for line in docstring.splitlines():
        if heading := _SECTION.match(line):
            section = heading[1]
        elif not section:
            description.append(line)
        elif section in ("Args", "Arguments", "Parameters"):
            if parameter := _PARAMETER.match(line):
                name, texts[parameter[1]] = parameter[1], parameter[2].strip()
            elif name and line.strip():
                texts[name] += f" {line.strip()}"
    return "\n".join(description).strip(), texts


def json_result(result: Any) -> Any:
    """Return what a function returned as a JSON value. Raises `ToolError` if it has no JSON form."""
    try:
        return to_jsonable_python(result)
    except (PydanticSerializationError, RecursionError) as error:
        kind = type(result).__name__
        raise ToolError(f"The tool returned a {kind}, which has no JSON form.") from error
