"""Foreign tool servers, configured in `mcp.json` as for other MCP clients (AGT-6).

    {"mcpServers": {"time":   {"command": "uvx", "args": ["mcp-server-time"], "trusted": true},
                    "issues": {"url": "https://example.org/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}}}}

`${NAME}` or `${env:NAME}` in a text is replaced by that environment variable; `${NAME:-default}` has a default for one
that is empty or not set. References cannot be nested. A file may also be as other MCP clients write it: with comments,
with their names of our keys, and with keys that we don't have.

An error belongs to its server, which is left out: the others start. A file that can't be read is one error. Values are
often credentials, so no message and no `repr` has one.
"""

import difflib
import json
import math
import os
import re
import shlex
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, AnyHttpUrl, Field, TypeAdapter, ValidationError, model_validator

from turnkeeper.models.errors import TurnkeeperError
from turnkeeper.models.settings.settings import DEFAULT_FILE as SETTINGS_FILE
from turnkeeper.models.settings.settings import Settings, SettingsError, settings_file
from turnkeeper.models.texts import count_unencodable, encodable_text
from turnkeeper.models.wire import Strict, reason_of

ALIASES = {
    "serverUrl": "url",
    "httpUrl": "url",
    "transport": "type",
    "environment": "env",
    "workingDirectory": "cwd",
    "env_file": "envFile",
    "tools": "includeTools",
    "enabledTools": "includeTools",
    "allowedTools": "includeTools",
    "disabledTools": "excludeTools",
}
"""Keys of other clients that mean one of ours."""

TYPES = {
    "stdio": "stdio",
    "local": "stdio",
    "http": "http",
    "remote": "http",
    "streamable-http": "http",
    "streamableHttp": "http",
    "streamable_http": "http",
    "sse": "sse",
}

APPROVALS = ("alwaysAllow", "autoApprove", "trust")
"""Keys with which other clients approve tool calls in advance."""

MILLISECONDS_FROM = 1_000
"""A `timeout` from this on is in milliseconds, as in most other clients."""

_STRING_OR_COMMENT = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_STRING_OR_COMMA = re.compile(r'"(?:\\.|[^"\\])*"|,(?=\s*[}\]])', re.DOTALL)


def parse_jsonc(text: str) -> tuple[Any, list[str]]:
    r"""Return the value of a JSON text that may have comments and trailing commas, and what is doubtful about it.

    >>> parse_jsonc('{"a": [1, /* two */], // "b"\n}')
    ({'a': [1]}, [])
    >>> parse_jsonc('{"a": 1, "a": "//"}')
    ({'a': '//'}, ["the key 'a' appears twice in one object; the last one counts"])

    Raises:
        ValueError: The text is invalid. The message has the place.
        RecursionError: It is nested too deeply.
    """
    notes: list[str] = []

    def note_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        twice = sorted({key for key in keys if keys.count(key) > 1}) if len(set(keys)) < len(keys) else []
        notes.extend(f"the key {key!r:.80} appears twice in one object; the last one counts" for key in twice)
        return dict(pairs)

    return json.loads(_without_extras(text), object_pairs_hook=note_duplicates), notes


def _without_extras(text: str) -> str:
    """Return the text with spaces in place of comments and trailing commas, so that places in errors stay right."""

    def blank(match: re.Match[str]) -> str:
        text = match[0]
        return text if text.startswith('"') else re.sub(r"[^\n]", " ", text)

    return _STRING_OR_COMMA.sub(blank, _STRING_OR_COMMENT.sub(blank, text))


def entries_in(content: Any) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the servers of a file by their names, and notes on its other keys; `None`: it has no such object.

    >>> entries_in({"servers": {"a": {}}, "inputs": []})
    ({'a': {}}, ['inputs: unknown key, ignored'])
    >>> entries_in({"a": {"command": "x"}})[0], entries_in({"mcpServers": []})[0]
    ({'a': {'command': 'x'}}, None)
    """
    if not isinstance(content, dict):
        return None, []
    if isinstance(inner := content.get("mcp"), dict) and not content.keys() & {"mcpServers", "servers"}:
        content = inner if inner.keys() & {"mcpServers", "servers"} else {"mcpServers": inner}
    present = [key for key in ("mcpServers", "servers") if key in content]
    if not present:
        is_bare = content and all(isinstance(entry, dict) and _has_target(entry) for entry in content.values())
        return (content, []) if is_bare else (None, [])
    if not all(isinstance(content[key], dict) for key in present):
        return None, []
    notes = [f"{printable(key)}: unknown key, ignored" for key in content if key not in (*present, "$schema")]
    return {name: entry for key in reversed(present) for name, entry in content[key].items()}, notes


def _has_target(entry: dict[str, Any]) -> bool:
    return any(ALIASES.get(key, key) in ("command", "url") for key in entry)


def plain_entry(entry: dict[str, Any], keys: Collection[str]) -> tuple[dict[str, Any], list[str]]:
    """Return a server's entry with our `keys` only, and notes on what was changed or ignored. It names no value.

    >>> plain_entry({"type": "local", "command": "x", "env": {"PORT": 1}, "timeout": 60000}, ["command", "env"])
    ({'type': 'stdio', 'command': 'x', 'env': {'PORT': '1'}, 'timeout': 60}, ['timeout: read as milliseconds'])
    """
    notes: list[str] = []
    plain: dict[str, Any] = {}
    for key, value in entry.items():
        if value is None:
            continue
        if key in APPROVALS:
            notes.append(f"{key}: ignored; the session's tool_policy decides what is approved")
        elif key == "enabled":
            plain["disabled"] = not value if isinstance(value, bool) else value
        elif form := _FORMS.get(ALIASES.get(key, key)):
            form(plain, ALIASES.get(key, key), value, notes)
        elif ALIASES.get(key, key) in keys:
            plain[ALIASES.get(key, key)] = value
        else:
            notes.append(unknown_key(key, keys))
    if {"url", "command", "type"} <= plain.keys():  # the type says which of the two is meant
        dropped_target = "url" if plain["type"] == "stdio" else "command"
        del plain[dropped_target]
        notes.append(f"{dropped_target}: ignored, because of the type")
    if ("url" in plain) != ("command" in plain):
        target, others = ("command", ("headers",)) if "command" in plain else ("url", ("args", "env", "envFile", "cwd"))
        dropped = [key for key in others if plain.pop(key, None)]
        if "type" in plain and (plain["type"] == "stdio") != (target == "command"):
            del plain["type"]
            dropped.append("type")
        notes += [f"{key}: ignored, it does not go with {target}" for key in dropped]
    return plain, notes


def unknown_key(key: str, keys: Iterable[str]) -> str:
    """Return a sentence about a key that we don't have.

    >>> unknown_key("comand", ["command"]), unknown_key("TOKEN=secret", [])
    ('comand: unknown key, ignored. Did you mean command?', '…: unknown key, ignored')
    """
    close = difflib.get_close_matches(key, [*keys, *ALIASES], n=1, cutoff=0.7)
    suggestion = f". Did you mean {close[0]}?" if close else ""
    return f"{printable(key)}: unknown key, ignored{suggestion}"


def printable(key: str) -> str:
    """Return a key as a message may repeat it; anything unusual could contain a value, as in `TOKEN=secret`."""
    return key if re.fullmatch(r"[\w$.-]{1,64}", key) else "…"


def split_command(plain: dict[str, Any]) -> dict[str, Any]:
    """Return an entry whose command is one program: a line is split as a shell does, unless there is such a file.

    >>> split_command({"command": "npx -y 'a b'", "args": ["c"]})
    {'command': 'npx', 'args': ['-y', 'a b', 'c']}

    Raises:
        ValueError: A quote is not closed.
    """
    command = plain.get("command")
    if not isinstance(command, str) or len(command.split()) < 2:
        return plain
    if shutil.which(command) or (Path(plain.get("cwd") or ".") / command).exists():
        return plain
    program, *args = shlex.split(command)
    return {**plain, "command": program, "args": [*args, *plain.get("args", [])]}


def parse_env_file(text: str) -> dict[str, str]:
    r"""Return the variables of an `envFile`: lines of `NAME=value`, with or without quotes; others are ignored.

    >>> parse_env_file('# keys\nexport A="b c" # d\nE=f#g h # i\n\nrest')
    {'A': 'b c', 'E': 'f#g h'}
    """
    line = re.compile(r"""\s*(?:export\s+)?([A-Za-z_]\w*)\s*=\s*(?:"([^"]*)"|'([^']*)'|(.*?))\s*(?:\s\#.*)?$""")
    matches = (line.match(row) for row in text.splitlines())
    return {match[1]: match[2] or match[3] or match[4] or "" for match in matches if match}


def _as_text(value: Any) -> Any:
    """Return a number or a boolean as the text that JSON has for it; anything else as it is."""
    return json.dumps(value) if isinstance(value, bool | int | float) else value


def _mapping(plain: dict[str, Any], key: str, value: Any, _: list[str]) -> None:
    if isinstance(value, dict):
        value = {name: _as_text(one) for name, one in value.items() if one is not None}
    plain[key] = value


def _list(plain: dict[str, Any], key: str, value: Any, notes: list[str]) -> None:
    if isinstance(value, list):
        value = [_as_text(one) for one in value]
        plain[key] = [*value, *plain[key]] if key == "args" and key in plain else value
    elif key == "includeTools" and isinstance(value, bool | dict):
        notes.append("tools: ignored, it is no list of names")
    else:
        plain[key] = value


def _command(plain: dict[str, Any], key: str, value: Any, _: list[str]) -> None:
    if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        plain["args"] = [*value[1:], *plain.get("args", [])]
        value = value[0]
    plain[key] = value


def _type(plain: dict[str, Any], key: str, value: Any, notes: list[str]) -> None:
    if isinstance(value, str) and value in TYPES:
        plain[key] = TYPES[value]
    else:
        notes.append(f"type: ignored; there are {', '.join(TYPES)}")


def _timeout(plain: dict[str, Any], key: str, value: Any, notes: list[str]) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if is_number and value >= MILLISECONDS_FROM:
        value = value / 1_000 if value % 1_000 else value // 1_000
        notes.append("timeout: read as milliseconds")
    plain[key] = value


_FORMS: dict[str, Callable[[dict[str, Any], str, Any, list[str]], None]] = {
    "command": _command,
    "args": _list,
    "env": _mapping,
    "headers": _mapping,
    "type": _type,
    "timeout": _timeout,
    "includeTools": _list,
    "excludeTools": _list,
}
"""Keys whose values other clients write in further forms."""


DEFAULT_FILE = "mcp.json"
"""Read from the working directory, if it exists and no other file is named."""

MAX_SERVERS = 100

OUR_OWN = "turnkeeper"
"""The name of the server of the built-in tools."""

MAX_NAME_CHARS = 100

_POLICY_NAME = re.compile(r"(?!_)(?:(?!__)[^\x00-\x1f\x7f*?\[\]]){1,100}(?<!_)")
"""A name that patterns of policies, `server__tool`, match unambiguously."""

_REFERENCE = re.compile(r"\$\{((?:env:)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)(:-(?P<default>[^{}]*))?\})?")
"""A reference to a variable; without a `name`: text that only begins like one."""


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
    envFile: Text | None = Field(None, repr=False)  # noqa: N815  # a key of the file
    """A file of lines `NAME=value`, read when the worker starts; `env` comes first."""
    cwd: Annotated[Text, _matches(r"(?s).+", "is empty")] | None = None
    """Its working directory; `None`: ours."""

    url: Url | None = Field(None, repr=False)
    """A streamable HTTP endpoint."""
    headers: dict[HeaderName, HeaderValue] = Field({}, repr=False)
    """Sent with every request."""

    type: Literal["stdio", "http", "sse"] | None = None
    """Optional: it follows from `command` or `url`."""

    trusted: bool = False
    """Whether its annotations count: then a tool that it calls read-only or idempotent is retried after a failure."""
    disabled: bool = False
    """Whether to ignore it."""
    timeout: float | None = Field(None, gt=0, le=86_400)
    """Timeout of one call in seconds; `None`: `limits.tool_timeout`. In the file, 1,000 and more are milliseconds."""
    includeTools: list[Text] | None = None  # noqa: N815  # a key of the file
    """The only tools to offer, by their names at the server or patterns; `None`: all."""
    excludeTools: list[Text] = []  # noqa: N815  # a key of the file
    """Tools that are not offered."""

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("give either a command or a url")
        if self.type == "sse" and self.url is None:
            raise ValueError("type: 'sse' does not go with command")
        return self

    @property
    def is_sse(self) -> bool:
        """Whether the server speaks the older HTTP transport. Its addresses end in `/sse` by convention."""
        if self.type is None and self.url is not None:
            return self.url.partition("?")[0].rstrip("/").endswith("/sse")
        return self.type == "sse"


@dataclass(frozen=True)
class McpConfig:
    """The configuration in the file. Problems and notes are sentences without values, by server or file."""

    servers: dict[str, ForeignServer] = field(default_factory=dict)
    """The enabled servers by name."""
    problems: dict[str, str] = field(default_factory=dict)
    """Why a server is left out, or the whole file."""
    notes: dict[str, list[str]] = field(default_factory=dict)
    """Entries that were ignored, or converted."""


def load_foreign_servers(settings: Settings) -> McpConfig:
    """Return the servers of the operator's file.

    Raises:
        SettingsError: A named file does not exist.
    """
    file = settings.mcp_config or Path(DEFAULT_FILE)
    if not file.is_file():
        if settings.mcp_config is None:
            return McpConfig()
        raise SettingsError(f"mcp_config names {str(file)!r}, but there is no such file.")
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        return McpConfig(problems={str(file): f"cannot be read: {type(error).__name__}"})
    places = {"workspaceFolder": str(settings.workspace_root.resolve()), "userHome": str(Path.home())}
    return foreign_servers(text, file=str(file), variables={**os.environ, **places})


def configuration(settings: Settings) -> list[Path]:
    """Return the absolute paths of every file and folder that can configure a worker, however it is started.

    Write access to one of them is enough to run any program. The state folder has the address of Temporal.
    """
    files = {settings_file(), Path(SETTINGS_FILE), settings.mcp_config or Path(DEFAULT_FILE), Path(DEFAULT_FILE)}
    if (settings.mcp_config or Path(DEFAULT_FILE)).is_file():
        files |= {Path(server.envFile) for server in load_foreign_servers(settings).servers.values() if server.envFile}
    return sorted(path.absolute() for path in {*files, settings.state_dir})


def foreign_servers(text: str, *, file: str, variables: Mapping[str, str]) -> McpConfig:
    """Return what `text` configures, with references replaced by `variables`.

    >>> text = '{"mcpServers": {"git": {"command": "uvx", "args": ["mcp-server-git", "${REPO:-.}"]}, "b": {}}}'
    >>> config = foreign_servers(text, file="mcp.json", variables={"REPO": "/src"})
    >>> config.servers["git"].args, config.problems
    (['mcp-server-git', '/src'], {'b': 'give either a command or a url'})
    """
    try:
        content, notes = parse_jsonc(text)
    except (ValueError, RecursionError) as error:
        # The decoder's message has the position only.
        reason = str(error) if isinstance(error, ValueError) else "it is nested too deeply"
        return McpConfig(problems={file: f"cannot be read as JSON: {reason}"})
    entries, key_notes = entries_in(content)
    if entries is None:
        return McpConfig(problems={file: 'is not of the form {"mcpServers": {"name": {...}}}'})
    config = McpConfig(notes={file: notes} if (notes := [*notes, *key_notes]) else {})
    for key, entry in entries.items():
        name = _usable_name(key, {*config.servers, *config.problems})
        own_notes = [] if name == key else [f"is called {name} in the names of tools and in policies"]
        if len(config.servers) >= MAX_SERVERS:
            config.problems[name] = f"{MAX_SERVERS} servers are allowed"
            continue
        try:
            server = _server(entry, own_notes, variables)
        except _EntryError as error:
            config.problems[name] = str(error)
            continue
        if not server.disabled:
            config.servers[name] = server
            if own_notes:
                config.notes[name] = own_notes
    return config


def _usable_name(name: str, others: set[str]) -> str:
    """Return the name as it is, if policies can name the server by it; otherwise one like it.

    >>> _usable_name("my server/1.0", set()), _usable_name("a__b", {"a_b"}), _usable_name(OUR_OWN, set())
    ('my server/1.0', 'a_b_2', 'turnkeeper_2')
    """
    usable = encodable_text(name)
    if not _POLICY_NAME.fullmatch(usable):
        usable = re.sub(r"[^A-Za-z0-9.-]+", "_", usable)[: MAX_NAME_CHARS - 4].strip("_") or "server"
    numbered = (f"{usable}_{number}" for number in range(2, len(others) + 4))
    return next(one for one in (usable, *numbered) if one not in others and one != OUR_OWN)


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """Return `text` with references replaced by the values of `variables`.

    >>> expanded("Bearer ${TOKEN}", {"TOKEN": "abc"}), expanded("${HOST:-localhost}:${PORT:-80}", {"PORT": ""})
    ('Bearer abc', 'localhost:80')

    Raises:
        ValueError: A variable without a default is not set, or a reference is malformed.
    """

    def value(reference: re.Match[str]) -> str:
        name, default = reference["name"], reference["default"]
        if text.startswith("${input:", reference.start()):
            raise ValueError("has an input, as ${input:…}; set an environment variable and refer to it as ${NAME}")
        if name is None:
            raise ValueError(
                "has a reference that is none of ${NAME}, ${env:NAME} and ${NAME:-default} "
                "(the default may not contain braces)"
            )
        if default is not None:
            return variables.get(name) or default
        if name not in variables:
            raise ValueError(f"the environment variable {name} is not set, and ${{{name}}} has no default")
        return variables[name]

    return _REFERENCE.sub(value, text)


class _EntryError(TurnkeeperError):
    """An entry can't be used. The message has no value of it."""


def _server(entry: object, notes: list[str], variables: Mapping[str, str]) -> ForeignServer:
    """Return the server of an entry, and add to `notes`. Raises `_EntryError`."""
    if not isinstance(entry, dict):
        raise _EntryError("must be an object with a command or a url")
    plain, more_notes = plain_entry(entry, ForeignServer.model_fields)
    notes += more_notes
    try:
        if plain.get("disabled") is True:
            # It may refer to variables that this machine does not have, and nothing of it is used.
            return ForeignServer(command=OUR_OWN, disabled=True)
        values = split_command(_with_variables(plain, variables))
        server = ForeignServer.model_validate(values)
    except ValidationError as error:
        # Not `from error`: its text contains the values.
        reason = _reason(error)
        suggestion = next((note for note in more_notes if "Did you mean" in note), None)
    except ValueError:
        reason, suggestion = "command: has a quote that is not closed", None
    else:
        return _with_env_file(server)
    raise _EntryError(suggestion.replace(", ignored", "") if suggestion else reason)


def _with_env_file(server: ForeignServer) -> ForeignServer:
    if server.envFile is None:
        return server
    try:
        listed = parse_env_file(Path(server.envFile).read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise _EntryError(f"envFile: cannot be read: {type(error).__name__}") from None
    return server.model_copy(update={"env": {**listed, **server.env}})


def _with_variables(value: Any, variables: Mapping[str, str], key: str = "") -> Any:
    """Return `value` with every text in it expanded; keys stay as they are."""
    if isinstance(value, dict):
        return {
            name: _with_variables(inner, variables, f"{key}.{printable(name)}" if key else printable(name))
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [_with_variables(inner, variables, f"{key}[{index}]") for index, inner in enumerate(value)]
    if not isinstance(value, str):
        return value
    try:
        return expanded(value, variables)
    except ValueError as error:
        raise _EntryError(f"{key}: {error}") from error


def _reason(error: ValidationError) -> str:
    """Return the first problem in words, without any value."""
    problem = error.errors(include_input=False, include_url=False)[0]
    path = ".".join(printable(str(part)) for part in problem["loc"] if part != "[key]")
    return f"{path}: {reason_of(problem)}" if path else reason_of(problem)
