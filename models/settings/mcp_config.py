"""Foreign tool servers: what `mcp.json` may say, as other MCP clients read it too (AGT-6).

    {"mcpServers": {"time":   {"command": "uvx", "args": ["mcp-server-time"], "trusted": true},
                    "issues": {"url": "https://example.org/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}}}}

`${NAME}` within a text is the value of that environment variable, `${NAME:-default}` has a default for one that is not
set or empty; one reference does not stand in another. `trusted`, `disabled` and `timeout` are our own keys.

Whatever is wrong with the file stops the start, with a sentence that names file, server and key. Values are
credentials as often as not: no message repeats one, nor does a `repr`.
"""

import difflib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, AnyHttpUrl, Field, TypeAdapter, ValidationError, model_validator

from turnkeeper.models.bounds import count_unencodable
from turnkeeper.models.invalid_values import reason_of
from turnkeeper.models.settings.settings import DEFAULT_FILE as SETTINGS_FILE
from turnkeeper.models.settings.settings import Settings, SettingsError, settings_file
from turnkeeper.models.wire import Strict

DEFAULT_FILE = "mcp.json"
"""Read from the working directory if it is there and no other file is named."""

MOST_SERVERS = 100

OUR_OWN = "turnkeeper"
"""The name of the server of the built-in tools."""

_SERVER_NAME = re.compile(r"(?=.{1,32}$)[A-Za-z0-9-]+(_[A-Za-z0-9-]+)*")
"""A part of the names of tools, `server__tool`: what every vendor accepts, and no doubt where it ends."""

_REFERENCE = re.compile(r"\$\{((?P<name>[A-Za-z_][A-Za-z0-9_]*)(:-(?P<default>[^{}]*))?\})?")
"""A reference to a variable; without a name: what only begins like one."""

_SHOWN_KEY = re.compile(r"[\w.-]{1,64}")
"""A key that a message may name; what is put in the place of one may be a value, as in `TOKEN=secret`."""


def _utterable(text: str) -> str:
    if count_unencodable(text):
        raise ValueError("holds NUL or a lone surrogate, which no program can be given")
    return text


def _fits(pattern: str, told: str) -> AfterValidator:
    """Refuse a text that is not of this form, in our own words: pydantic would quote the pattern."""

    def fitting(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(told)
        return text

    return AfterValidator(fitting)


def _reachable(url: str) -> str:
    """Refuse what is no URL in our own words: pydantic would quote it."""
    told = "is no URL of the form http://host:port/path or https://host:port/path"
    if not re.fullmatch(r"https?://[^\s/\\]+\S*", url):
        raise ValueError(told)  # what pydantic would mend, while we keep what is written
    try:
        _HTTP_URL.validate_python(url)
    except ValidationError:
        raise ValueError(told) from None
    return url


_HTTP_URL = TypeAdapter(AnyHttpUrl)

Text = Annotated[str, AfterValidator(_utterable)]
VariableName = Annotated[Text, _fits(r"[^=]+", "is no name of an environment variable")]
HeaderName = Annotated[str, _fits(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", "is no name of an HTTP header")]
HeaderValue = Annotated[str, _fits(r"[\x20-\x7e\t]*", "holds what no HTTP header can; printable ASCII is allowed")]
Url = Annotated[str, AfterValidator(_reachable)]


class ForeignServer(Strict):
    """A tool server that is a program of this machine, with a `command`, or an HTTP endpoint, with a `url`."""

    command: Annotated[Text, _fits(r"(?s).+", "is empty")] | None = None
    """The program, found on its own `PATH`."""
    args: list[Text] = Field([], repr=False)
    env: dict[VariableName, Text] = Field({}, repr=False)
    """Added to the few variables that every server is given; ours, with the vendors' keys, are not passed on."""
    cwd: Annotated[Text, _fits(r"(?s).+", "is empty")] | None = None
    """Where it runs; None: in our own working directory."""

    url: Url | None = Field(None, repr=False)
    """A streamable HTTP endpoint."""
    headers: dict[HeaderName, HeaderValue] = Field({}, repr=False)
    """Sent with every request."""

    type: Literal["stdio", "http", "streamable-http", "streamableHttp", "sse"] | None = None
    """Optional: it follows from `command` or `url`."""

    trusted: bool = False
    """Whether its annotations count: a tool it calls read-only or idempotent is then run again after a failure."""
    disabled: bool = False
    """Whether it is left out, as if it were not there."""
    timeout: float | None = Field(None, gt=0, le=86_400)
    """Seconds that one call may take; None: as long as `limits.tool_timeout` lets it."""

    @model_validator(mode="after")
    def _one_way_to_it(self) -> Self:
        if self.type == "sse":
            raise ValueError("type: 'sse' is a deprecated transport; give the url of a streamable HTTP endpoint")
        if (self.command is None) == (self.url is None):
            raise ValueError("give either a command or a url")
        given, foreign = ("command", {"headers"}) if self.url is None else ("url", {"args", "env", "cwd"})
        for key in sorted(foreign & self.model_fields_set):
            raise ValueError(f"{key}: has no meaning beside {given}")
        if self.type is not None and (self.type == "stdio") != (given == "command"):
            raise ValueError(f"type: {self.type!r} does not go with {given}")
        return self


def load_foreign_servers(settings: Settings) -> dict[str, ForeignServer]:
    """Return the servers that the operator's file names, by their names, without the disabled ones.

    Raises:
        SettingsError: The file is named and not there, can't be read, or holds something that is not allowed.
    """
    file = settings.mcp_config or Path(DEFAULT_FILE)
    if not file.is_file():
        if settings.mcp_config is None:
            return {}
        raise SettingsError(f"mcp_config names {str(file)!r}, and there is no such file.")
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file} cannot be read: {type(error).__name__}.") from error
    return foreign_servers(text, file=str(file), variables=os.environ)


def configuration(settings: Settings) -> list[Path]:
    """Return what a worker is configured by, now or when it is started otherwise, as absolute paths.

    Whoever can write one of them can have any program run. The state folder is among them: it says where Temporal is.
    """
    files = {settings_file(), Path(SETTINGS_FILE), settings.mcp_config or Path(DEFAULT_FILE), Path(DEFAULT_FILE)}
    return sorted(path.absolute() for path in {*files, settings.state_dir})


def foreign_servers(text: str, *, file: str, variables: Mapping[str, str]) -> dict[str, ForeignServer]:
    """Return what `text` says, with `variables` in the place of references to them; `file` is its name in refusals.

    >>> text = '{"mcpServers": {"git": {"command": "uvx", "args": ["mcp-server-git", "${REPO:-.}"]}}}'
    >>> foreign_servers(text, file="mcp.json", variables={"REPO": "/src"})["git"].args
    ['mcp-server-git', '/src']

    Raises:
        SettingsError: Something in it is not allowed.
    """
    found = {}
    for name, entry in _entries(text, file).items():
        server = _server(entry, file=file, name=name, variables=variables)
        if not server.disabled:
            found[name] = server
    return found


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """Return `text` with the values of the variables it refers to.

    >>> expanded("Bearer ${TOKEN}", {"TOKEN": "abc"}), expanded("${HOST:-localhost}:${PORT:-80}", {"PORT": ""})
    ('Bearer abc', 'localhost:80')

    Raises:
        ValueError: A variable is not set and has no default, or a reference is none we know.
    """

    def value(reference: re.Match[str]) -> str:
        name, default = reference["name"], reference["default"]
        if name is None:
            raise ValueError(
                "holds a reference that is neither ${NAME} nor ${NAME:-default}, with no braces in the default"
            )
        if default is not None:
            return variables.get(name) or default
        if name not in variables:
            raise ValueError(f"the environment variable {name} is not set, and ${{{name}}} has no default")
        return variables[name]

    return _REFERENCE.sub(value, text)


def _entries(text: str, file: str) -> dict[str, Any]:
    """Return what stands below `mcpServers`, its names checked."""
    try:
        content = json.loads(text, object_pairs_hook=_without_doubles)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{file} cannot be read as JSON: {_json_told(error)}.") from error
    if not isinstance(content, dict) or not isinstance(content.get("mcpServers"), dict):
        raise SettingsError(f'{file} is not of the form {{"mcpServers": {{"name": {{...}}}}}}.')
    for key in content.keys() - {"mcpServers"}:
        raise SettingsError(f"{file}: {key!r} is not a key; the only one is mcpServers.")
    entries: dict[str, Any] = content["mcpServers"]
    if len(entries) > MOST_SERVERS:
        raise SettingsError(f"{file} names {len(entries)} servers; {MOST_SERVERS} are allowed.")
    for name in entries:
        if not _SERVER_NAME.fullmatch(name) or name == OUR_OWN:
            raise SettingsError(
                f"{file}, server {name!r}: the name becomes a part of its tools' names; up to 32 letters, digits, "
                f"hyphens and single underscores between them are allowed, and {OUR_OWN!r} is taken."
            )
    return entries


def _server(entry: object, *, file: str, name: str, variables: Mapping[str, str]) -> ForeignServer:
    place = f"{file}, server {name!r}"
    if not isinstance(entry, dict):
        raise SettingsError(f"{place}: it is no object with a command or a url.")
    try:
        # One that is disabled may refer to what this machine does not have.
        values = entry if entry.get("disabled") is True else _with_variables(entry, variables)
        return ForeignServer.model_validate(values)
    except _ReferenceError as error:
        raise SettingsError(f"{place}: {error.key}: {error}.") from error
    except ValidationError as error:
        # Not `from error`: its text has the values in it.
        told = _told(error)
    raise SettingsError(f"{place}: {told}")


class _ReferenceError(Exception):
    def __init__(self, key: str, told: str) -> None:
        super().__init__(told)
        self.key = key


def _with_variables(value: Any, variables: Mapping[str, str], key: str = "") -> Any:
    """Return `value` with every text in it expanded, but not the names of keys."""
    if isinstance(value, dict):
        return {
            name: _with_variables(inner, variables, f"{key}.{_shown(name)}" if key else _shown(name))
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [_with_variables(inner, variables, f"{key}[{index}]") for index, inner in enumerate(value)]
    if not isinstance(value, str):
        return value
    try:
        return expanded(value, variables)
    except ValueError as error:
        raise _ReferenceError(key, str(error)) from error


def _told(error: ValidationError) -> str:
    """Say the first thing that is wrong, without any value."""
    problem = error.errors(include_input=False, include_url=False)[0]
    path = ".".join(_shown(str(part)) for part in problem["loc"] if part != "[key]")
    if problem["type"] == "extra_forbidden":
        close = difflib.get_close_matches(path, ForeignServer.model_fields, n=1, cutoff=0.7)
        meant = f". Did you mean {close[0]}?" if close else f" (allowed: {', '.join(ForeignServer.model_fields)})."
        return f"{path}: unknown key{meant}"
    return f"{path}: {reason_of(problem)}." if path else f"{reason_of(problem)}."


def _shown(key: str) -> str:
    return key if _SHOWN_KEY.fullmatch(key) else "…"


def _json_told(error: Exception) -> str:
    # The message of the decoder's own error tells the place only; ours names the key.
    return str(error) if isinstance(error, ValueError) else "it is nested too deeply"


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; the same key twice would silently be the second one only."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        double = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {double!r} stands in one object twice")
    return found
