"""Foreign tool servers, configured in `mcp.json` as for other MCP clients (AGT-6).

    {"mcpServers": {"time":   {"command": "uvx", "args": ["mcp-server-time"], "trusted": true},
                    "issues": {"url": "https://example.org/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}}}}

`${NAME}` in a text is replaced by that environment variable; `${NAME:-default}` has a default for one that is empty or
not set. References cannot be nested. `trusted`, `disabled` and `timeout` are our own keys.

An invalid file stops the start with a sentence that names file, server and key. Values are often credentials, so no
message and no `repr` has one.
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
from turnkeeper.models.errors import TurnkeeperError
from turnkeeper.models.invalid_values import reason_of
from turnkeeper.models.settings.settings import DEFAULT_FILE as SETTINGS_FILE
from turnkeeper.models.settings.settings import Settings, SettingsError, settings_file
from turnkeeper.models.wire import Strict

DEFAULT_FILE = "mcp.json"
"""Read from the working directory, if it exists and no other file is named."""

MAX_SERVERS = 100

OUR_OWN = "turnkeeper"
"""The name of the server of the built-in tools."""

_SERVER_NAME = re.compile(r"(?=.{1,32}$)[A-Za-z0-9-]+(_[A-Za-z0-9-]+)*")
"""It becomes part of the tools' names, `server__tool`: every vendor accepts it, and its end is unambiguous."""

_REFERENCE = re.compile(r"\$\{((?P<name>[A-Za-z_][A-Za-z0-9_]*)(:-(?P<default>[^{}]*))?\})?")
"""A reference to a variable; without a `name`: text that only begins like one."""

_PRINTABLE_KEY = re.compile(r"[\w.-]{1,64}")
"""A key that a message may repeat; anything else could contain a value, as in `TOKEN=secret`."""


def _encodable(text: str) -> str:
    if count_unencodable(text):
        raise ValueError("may not contain NUL or a lone surrogate")
    return text


def _matches(pattern: str, reason: str) -> AfterValidator:
    """Reject a text that does not match, with our own `reason`: pydantic would quote the pattern."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(reason)
        return text

    return AfterValidator(check)


def _check_url(url: str) -> str:
    """Reject an invalid URL with our own reason: pydantic would quote the URL."""
    reason = "is not a URL of the form http://host:port/path or https://host:port/path"
    if not re.fullmatch(r"https?://[^\s/\\]+\S*", url):
        raise ValueError(reason)  # pydantic would correct it, but we use the text as it is
    try:
        _HTTP_URL.validate_python(url)
    except ValidationError:
        raise ValueError(reason) from None
    return url


_HTTP_URL = TypeAdapter(AnyHttpUrl)

Text = Annotated[str, AfterValidator(_encodable)]
VariableName = Annotated[Text, _matches(r"[^=]+", "is not a valid name for an environment variable")]
HeaderName = Annotated[str, _matches(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", "is not a valid name for an HTTP header")]
HeaderValue = Annotated[str, _matches(r"[\x20-\x7e\t]*", "may only have printable ASCII characters")]
Url = Annotated[str, AfterValidator(_check_url)]


class ForeignServer(Strict):
    """A tool server: a local program, with a `command`, or an HTTP endpoint, with a `url`."""

    command: Annotated[Text, _matches(r"(?s).+", "is empty")] | None = None
    """The program, looked up on its own `PATH`."""
    args: list[Text] = Field([], repr=False)
    env: dict[VariableName, Text] = Field({}, repr=False)
    """Added to the few variables that every server gets. Ours, with the vendors' keys, are not passed on."""
    cwd: Annotated[Text, _matches(r"(?s).+", "is empty")] | None = None
    """Its working directory; `None`: ours."""

    url: Url | None = Field(None, repr=False)
    """A streamable HTTP endpoint."""
    headers: dict[HeaderName, HeaderValue] = Field({}, repr=False)
    """Sent with every request."""

    type: Literal["stdio", "http", "streamable-http", "streamableHttp", "sse"] | None = None
    """Optional: it follows from `command` or `url`."""

    trusted: bool = False
    """Whether its annotations count: then a tool that it calls read-only or idempotent is retried after a failure."""
    disabled: bool = False
    """Whether to ignore it."""
    timeout: float | None = Field(None, gt=0, le=86_400)
    """Timeout of one call in seconds; `None`: `limits.tool_timeout`."""

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        if self.type == "sse":
            raise ValueError("type: 'sse' is a deprecated transport; give the url of a streamable HTTP endpoint")
        if (self.command is None) == (self.url is None):
            raise ValueError("give either a command or a url")
        transport, others = ("command", {"headers"}) if self.url is None else ("url", {"args", "env", "cwd"})
        for key in sorted(others & self.model_fields_set):
            raise ValueError(f"{key}: cannot be used with {transport}")
        if self.type is not None and (self.type == "stdio") != (transport == "command"):
            raise ValueError(f"type: {self.type!r} does not go with {transport}")
        return self


def load_foreign_servers(settings: Settings) -> dict[str, ForeignServer]:
    """Return the enabled servers of the operator's file, by name.

    Raises:
        SettingsError: A named file does not exist, can't be read, or is invalid.
    """
    file = settings.mcp_config or Path(DEFAULT_FILE)
    if not file.is_file():
        if settings.mcp_config is None:
            return {}
        raise SettingsError(f"mcp_config names {str(file)!r}, but there is no such file.")
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file} cannot be read: {type(error).__name__}.") from error
    return foreign_servers(text, file=str(file), variables=os.environ)


def configuration(settings: Settings) -> list[Path]:
    """Return the absolute paths of every file and folder that can configure a worker, however it is started.

    Write access to one of them is enough to run any program. The state folder has the address of Temporal.
    """
    files = {settings_file(), Path(SETTINGS_FILE), settings.mcp_config or Path(DEFAULT_FILE), Path(DEFAULT_FILE)}
    return sorted(path.absolute() for path in {*files, settings.state_dir})


def foreign_servers(text: str, *, file: str, variables: Mapping[str, str]) -> dict[str, ForeignServer]:
    """Return the enabled servers in `text`, with references replaced by `variables`; errors name the `file`.

    >>> text = '{"mcpServers": {"git": {"command": "uvx", "args": ["mcp-server-git", "${REPO:-.}"]}}}'
    >>> foreign_servers(text, file="mcp.json", variables={"REPO": "/src"})["git"].args
    ['mcp-server-git', '/src']

    Raises:
        SettingsError: The text is invalid.
    """
    servers = {}
    for name, entry in _entries(text, file).items():
        server = _server(entry, file=file, name=name, variables=variables)
        if not server.disabled:
            servers[name] = server
    return servers


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """Return `text` with references replaced by the values of `variables`.

    >>> expanded("Bearer ${TOKEN}", {"TOKEN": "abc"}), expanded("${HOST:-localhost}:${PORT:-80}", {"PORT": ""})
    ('Bearer abc', 'localhost:80')

    Raises:
        ValueError: A variable without a default is not set, or a reference is malformed.
    """

    def value(reference: re.Match[str]) -> str:
        name, default = reference["name"], reference["default"]
        if name is None:
            raise ValueError(
                "has a reference that is neither ${NAME} nor ${NAME:-default} (the default may not contain braces)"
            )
        if default is not None:
            return variables.get(name) or default
        if name not in variables:
            raise ValueError(f"the environment variable {name} is not set, and ${{{name}}} has no default")
        return variables[name]

    return _REFERENCE.sub(value, text)


def _entries(text: str, file: str) -> dict[str, Any]:
    """Return the value of `mcpServers`, with its names checked."""
    try:
        content = json.loads(text, object_pairs_hook=_check_duplicates)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{file} cannot be read as JSON: {_json_reason(error)}.") from error
    if not isinstance(content, dict) or not isinstance(content.get("mcpServers"), dict):
        raise SettingsError(f'{file} is not of the form {{"mcpServers": {{"name": {{...}}}}}}.')
    for key in content.keys() - {"mcpServers"}:
        raise SettingsError(f"{file}: {key!r} is not a key; the only one is mcpServers.")
    entries: dict[str, Any] = content["mcpServers"]
    if len(entries) > MAX_SERVERS:
        raise SettingsError(f"{file} names {len(entries)} servers; {MAX_SERVERS} are allowed.")
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
        raise SettingsError(f"{place}: must be an object with a command or a url.")
    try:
        # A disabled server may refer to variables that this machine does not have.
        values = entry if entry.get("disabled") is True else _with_variables(entry, variables)
        return ForeignServer.model_validate(values)
    except _ReferenceError as error:
        raise SettingsError(f"{place}: {error.key}: {error}.") from error
    except ValidationError as error:
        # Not `from error`: its text contains the values.
        reason = _reason(error)
    raise SettingsError(f"{place}: {reason}")


class _ReferenceError(TurnkeeperError):
    def __init__(self, key: str, reason: str) -> None:
        super().__init__(reason)
        self.key = key


def _with_variables(value: Any, variables: Mapping[str, str], key: str = "") -> Any:
    """Return `value` with every text in it expanded; keys stay as they are."""
    if isinstance(value, dict):
        return {
            name: _with_variables(inner, variables, f"{key}.{_printable(name)}" if key else _printable(name))
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


def _reason(error: ValidationError) -> str:
    """Return the first problem in words, without any value."""
    problem = error.errors(include_input=False, include_url=False)[0]
    path = ".".join(_printable(str(part)) for part in problem["loc"] if part != "[key]")
    if problem["type"] == "extra_forbidden":
        close = difflib.get_close_matches(path, ForeignServer.model_fields, n=1, cutoff=0.7)
        suggestion = f". Did you mean {close[0]}?" if close else f" (allowed: {', '.join(ForeignServer.model_fields)})."
        return f"{path}: unknown key{suggestion}"
    return f"{path}: {reason_of(problem)}." if path else f"{reason_of(problem)}."


def _printable(key: str) -> str:
    return key if _PRINTABLE_KEY.fullmatch(key) else "…"


def _json_reason(error: Exception) -> str:
    # The decoder's message has the position only; ours names the key.
    return str(error) if isinstance(error, ValueError) else "it is nested too deeply"


def _check_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object. Raises `ValueError` for a duplicate key: `json` would silently use the last one."""
    content = dict(pairs)
    if len(content) < len(pairs):
        keys = [key for key, _ in pairs]
        duplicate = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {duplicate!r} appears twice in one object")
    return content
