"""`mcp.json` as other MCP clients write it: comments, their names of our keys, and keys that we don't have (AGT-6)."""

import difflib
import json
import math
import re
import shlex
import shutil
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

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
