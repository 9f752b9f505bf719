"""`mcp.json`: what it may say, and the sentences about the rest (AGT-6, OPS-4)."""

import json
import re
from pathlib import Path

import pytest

from turnkeeper.activities.toolbox.toolbox import Toolbox, own_tool_server
from turnkeeper.models.settings.mcp_config import (
    DEFAULT_FILE,
    ForeignServer,
    McpConfig,
    foreign_servers,
    load_foreign_servers,
)
from turnkeeper.models.settings.settings import Settings, SettingsError
from turnkeeper.models.transcript.conversation import ToolResult
from turnkeeper.models.transcript.model_call import ToolInvocation

SECRET = "hunter2"
COMMENT = f"# {SECRET}"

NO_URL = "is not a URL of the form http://host:port/path or https://host:port/path"
NO_REFERENCE = (
    "has a reference that is none of ${NAME}, ${env:NAME} and ${NAME:-default} (the default may not contain braces)"
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def config_of(servers: object, **variables: str) -> McpConfig:
    return foreign_servers(json.dumps({"mcpServers": servers}), file="mcp.json", variables=variables)


def read(servers: object, **variables: str) -> dict[str, ForeignServer]:
    config = config_of(servers, **variables)
    assert not config.problems
    return config.servers


def problem_of(entry: object, **variables: str) -> str:
    """Return why a server is left out, beside which another starts."""
    config = config_of({"a": entry, "other": {"command": "x"}}, **variables)
    assert list(config.servers) == ["other"]
    return config.problems["a"]


def test_agt_6_the_usual_form_is_read_as_by_other_clients():
    servers = read(
        {
            "time": {"command": "uvx", "args": ["mcp-server-time"], "env": {"TZ": "UTC"}, "cwd": "/srv"},
            "issues": {"type": "http", "url": "https://example.org/mcp", "headers": {"Authorization": "Bearer x"}},
        }
    )
    assert servers == {
        "time": ForeignServer(command="uvx", args=["mcp-server-time"], env={"TZ": "UTC"}, cwd="/srv"),
        "issues": ForeignServer(type="http", url="https://example.org/mcp", headers={"Authorization": "Bearer x"}),
    }
    assert not servers["time"].trusted


def test_agt_6_our_own_keys_set_trust_exclusions_and_timeouts():
    servers = read(
        {
            "a": {"command": "a", "trusted": True, "timeout": 30},
            "off": {"command": "b", "disabled": True, "env": {"KEY": "${NOT_ON_THIS_MACHINE}"}},
        }
    )
    assert servers == {"a": ForeignServer(command="a", trusted=True, timeout=30)}


def test_agt_6_variables_are_substituted_in_every_text_but_not_in_names():
    (server,) = read(
        {
            "a": {
                "command": "${BIN}/run",
                "args": ["--key=${KEY}", "${MISSING:-one}${EMPTY:-two}", "$KEY", "{KEY}"],
                "env": {"TOKEN": "${KEY}", "${KEY}": ""},
                "cwd": "${BIN}",
            }
        },
        BIN="/bin",
        KEY="${BIN}",
        EMPTY="",
    ).values()
    assert (server.command, server.cwd) == ("/bin/run", "/bin")
    assert server.args == ["--key=${BIN}", "onetwo", "$KEY", "{KEY}"]
    assert server.env == {"TOKEN": "${BIN}", "${KEY}": ""}


def test_agt_6_the_documented_example_is_valid_and_every_key_is_documented():
    page = (Path(__file__).parents[3] / "docs" / "settings.md").read_text()
    (example,) = re.findall(r"^```json\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    servers = foreign_servers(example, file="mcp.json", variables={"HOME": "/home/me"}).servers
    assert list(servers) == ["time", "files", "issues"]
    assert servers["files"].args[-1] == "/home/me/notes"
    for key in ForeignServer.model_fields:
        assert re.search(rf"^\|.*`{key}`.*\|.*\|$", page, re.MULTILINE)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "cannot be read as JSON: Expecting value: line 1 column 1 (char 0)"),
        ("[" * 100_000, "cannot be read as JSON: it is nested too deeply"),
        (
            '{"mcpServers": {\n  // ok\n  "a": {"command" "x"}}}',
            "cannot be read as JSON: Expecting ':' delimiter: line 3 column 19 (char 43)",
        ),
        ("[]", 'is not of the form {"mcpServers": {"name": {...}}}'),
        ('{"mcpServers": []}', 'is not of the form {"mcpServers": {"name": {...}}}'),
    ],
)
def test_agt_6_an_unreadable_file_is_one_error_with_its_location(text, problem):
    assert foreign_servers(text, file="mcp.json", variables={}) == McpConfig(problems={"mcp.json": problem})


NAMES = {
    "a b": "a b",
    "a.b/c": "a.b/c",
    "é": "é",
    "x" * 60: "x" * 60,
    "": "server",
    "a__b": "a_b",
    "a_b": "a_b_2",
    "_a": "a",
    "a*": "a_2",
    "turnkeeper": "turnkeeper_2",
    "\ud800": "\ufffd",
}
"""Names in a file, and those by which policies name the servers."""


def test_agt_6_a_server_may_have_any_name():
    config = config_of({name: {"command": "x"} for name in NAMES})
    assert list(config.servers) == list(NAMES.values())
    renamed = {usable for name, usable in NAMES.items() if name != usable}
    assert set(config.notes) == renamed
    assert config.notes["a_b"] == ["is called a_b in the names of tools and in policies"]


URL = "https://example.org/mcp"
RUN = {"command": "npx", "args": ["-y", "server"]}
OTHERS_FILES: list[tuple[dict[str, object] | str, dict[str, object] | str]] = [
    # what other clients document                                       what is read, or why it is left out
    (RUN, {"command": "npx", "args": ["-y", "server"]}),
    ({**RUN, "autoApprove": ["read"]}, {"command": "npx"}),
    ({**RUN, "alwaysAllow": ["read"]}, {"command": "npx"}),
    ({**RUN, "trust": True}, {"command": "npx", "trusted": False}),
    ({"type": "sse", "url": URL}, {"url": URL, "type": "sse", "is_sse": True}),
    ({"url": f"{URL}/sse"}, {"url": f"{URL}/sse", "is_sse": True}),
    ({"type": "http", "url": f"{URL}/sse"}, {"is_sse": False}),
    ({"type": "streamable-http", "url": URL}, {"type": "http"}),
    ({"type": "streamableHttp", "url": URL}, {"type": "http"}),
    ({"transport": "http", "url": URL}, {"type": "http"}),
    ({**RUN, "type": "local", "tools": ["*"]}, {"type": "stdio", "includeTools": ["*"]}),
    ({**RUN, "tools": ["get", "put"]}, {"includeTools": ["get", "put"]}),
    ({**RUN, "includeTools": ["get"]}, {"includeTools": ["get"]}),
    ({**RUN, "excludeTools": ["put"]}, {"excludeTools": ["put"]}),
    ({**RUN, "disabledTools": ["put"]}, {"excludeTools": ["put"]}),
    ({"serverUrl": URL}, {"url": URL}),
    ({"httpUrl": URL, "headers": {"A": 5}}, {"url": URL, "headers": {"A": "5"}}),
    ({**RUN, "envFile": "${workspaceFolder}/keys.env", "env": {"B": "2"}}, {"env": {"A": "1", "B": "2"}}),
    ({**RUN, "envFile": "none.env"}, "envFile: cannot be read: FileNotFoundError"),
    ({**RUN, "env": {"KEY": "${env:TOKEN}"}}, {"env": {"KEY": "secret"}}),
    ({**RUN, "args": ["${workspaceFolder}/a"]}, {"args": ["WORKSPACE/a"]}),
    ({"url": URL, "oauth": {"clientId": "x"}}, {"url": URL}),
    ({"url": URL, "headersHelper": "helper"}, {"url": URL}),
    ({**RUN, "alwaysLoad": True}, {"command": "npx"}),
    ({**RUN, "description": "Files", "icon": "x.png"}, {"command": "npx"}),
    ({**RUN, "enabled": True}, {"disabled": False}),
    ({**RUN, "env": {"PORT": 3000, "DEBUG": True, "NONE": None}}, {"env": {"PORT": "3000", "DEBUG": "true"}}),
    ({**RUN, "env": None, "cwd": None}, {"env": {}, "cwd": None}),
    ({**RUN, "args": ["--port", 3000]}, {"args": ["--port", "3000"]}),
    ({**RUN, "timeout": 60_000}, {"timeout": 60.0}),
    ({**RUN, "timeout": 30}, {"timeout": 30.0}),
    ({"command": "npx -y 'my server'", "args": ["a"]}, {"command": "npx", "args": ["-y", "my server", "a"]}),
    ({"command": "my program/run it"}, {"command": "my program/run it", "args": []}),
    ({"command": ["npx", "-y", "server"]}, {"command": "npx", "args": ["-y", "server"]}),
    ({**RUN, "environment": {"A": "1"}}, {"env": {"A": "1"}}),
    ({"url": URL, "headers": {"Authorization": "Bearer ${TOKEN}"}}, {"headers": {"Authorization": "Bearer secret"}}),
    (
        {"url": URL, "headers": {"Authorization": "Bearer ${NOT_SET}"}},
        "headers.Authorization: the environment variable NOT_SET is not set, and ${NOT_SET} has no default",
    ),
    (
        {"url": URL, "headers": {"Authorization": "Bearer ${input:key}"}},
        "headers.Authorization: has an input, as ${input:…}; set an environment variable and refer to it as ${NAME}",
    ),
    ('{"servers": {"a": {"type": "stdio", "command": "npx"}}, "inputs": [{"id": "key"}]}', {"command": "npx"}),
    ('{"$schema": "https://example.org/s.json", "mcpServers": {"a": {"command": "npx"}}}', {"command": "npx"}),
    ('{"mcpServers": { // mine\n "a": {"command": "npx", /* old */ "args": ["//",],},}}', {"args": ["//"]}),
    ('{"mcp": {"servers": {"a": {"command": "npx"}}}}', {"command": "npx"}),
    ('{"a": {"command": "npx"}}', {"command": "npx"}),
    ('{"mcpServers": {"a": {"command": "old"}, "a": {"command": "npx"}}}', {"command": "npx"}),
]


@pytest.mark.parametrize(("entry", "expected"), OTHERS_FILES, ids=lambda value: json.dumps(value)[:60])
def test_agt_6_entries_of_other_clients_work_or_are_explained(folder, entry, expected):
    (folder / "keys.env").write_text("A=1\nB=1\n")
    (folder / "my program").mkdir()
    (folder / "my program" / "run it").touch()
    text = entry if isinstance(entry, str) else json.dumps({"mcpServers": {"a": entry}})
    config = foreign_servers(text, file="mcp.json", variables={"TOKEN": "secret", "workspaceFolder": str(folder)})
    if isinstance(expected, str):
        assert (config.servers, config.problems) == ({}, {"a": expected})
        return
    assert config.problems == {}
    read = {key: getattr(config.servers["a"], key) for key in expected}
    assert json.dumps(read).replace(str(folder), "WORKSPACE") == json.dumps(expected)


def test_agt_6_at_least_42_forms_of_entries_are_tried():
    assert len(OTHERS_FILES) >= 42


@pytest.mark.parametrize(
    ("entry", "note"),
    [
        (
            {"command": "x", "alwaysAllow": []},
            "alwaysAllow: ignored; the session's tool_policy decides what is approved",
        ),
        ({"command": "x", "timeout": 60_000}, "timeout: read as milliseconds"),
        ({"command": "x", "trused": True}, "trused: unknown key, ignored. Did you mean trusted?"),
        ({"command": "x", f"TOKEN={SECRET}": ""}, "…: unknown key, ignored"),
        ({"command": "x", "headers": {"A": "b"}}, "headers: ignored, it does not go with command"),
        ({"url": "http://a", "env": {"A": "b"}}, "env: ignored, it does not go with url"),
        ({"url": "http://a", "type": "stdio"}, "type: ignored, it does not go with url"),
        ({"command": "x", "url": "http://a", "type": "http"}, "command: ignored, because of the type"),
    ],
)
def test_agt_6_ignored_and_converted_keys_are_noted(entry, note):
    config = config_of({"a": entry})
    assert list(config.servers) == ["a"]
    assert config.notes["a"][-1] == note


def test_agt_6_a_disabled_server_needs_no_variables():
    assert (
        config_of({"a": {"url": "${X}", "enabled": False}, "b": {"command": "${X}", "disabled": True}}) == McpConfig()
    )


@pytest.mark.parametrize(
    ("entry", "expected_error"),
    [
        ([], "must be an object with a command or a url"),
        ({}, "give either a command or a url"),
        ({"command": "x", "url": "http://a"}, "give either a command or a url"),
        ({"comand": "x"}, "comand: unknown key. Did you mean command?"),
        ({"command": ""}, "command: is empty"),
        ({"command": "x", "args": SECRET}, "args: must be a list"),
        ({"command": "x", "env": {"A=B": SECRET}}, "env.…: is not a valid name for an environment variable"),
        (
            {"command": "x", "env": {f"TOKEN={SECRET}": ""}},
            "env.…: is not a valid name for an environment variable",
        ),
        ({"command": "x", "timeout": 600_000_000}, "timeout: must be at most 86,400"),
        (
            {"command": "x", "disabled": "perhaps"},
            "disabled: must be true or false",
        ),
        ({"command": f"{SECRET}\0"}, "command: may not contain NUL or a lone surrogate"),
        ({"url": f"ftp://{SECRET}"}, f"url: {NO_URL}"),
        (
            {"url": "http://a", "headers": {"Key": f"{SECRET}\n"}},
            "headers.Key: may only have printable ASCII characters",
        ),
        ({"url": "http://a", "headers": {"A b": SECRET}}, "headers.…: is not a valid name for an HTTP header"),
        (
            {"url": "http://a", "headers": {f"Key: {SECRET}": ""}},
            "headers.…: is not a valid name for an HTTP header",
        ),
        ({"url": f"http://a:99999/{SECRET}"}, f"url: {NO_URL}"),
        ({"url": f"http://[::1/{SECRET}"}, f"url: {NO_URL}"),
        ({"url": f"http://a:{SECRET}/"}, f"url: {NO_URL}"),
        ({"url": f"http://me:{SECRET}@/"}, f"url: {NO_URL}"),
        ({"url": f"http://?{SECRET}"}, f"url: {NO_URL}"),
        ({"url": f" http://a/{SECRET}"}, f"url: {NO_URL}"),
        (
            {"command": "x", "args": ["a", "${TOKEN}"]},
            "args[1]: the environment variable TOKEN is not set, and ${TOKEN} has no default",
        ),
        ({"command": "npx -y 'x"}, "command: has a quote that is not closed"),
        ({"command": "x", "env": {"KEY": "${OTHER:-${TOKEN}}"}}, f"env.KEY: {NO_REFERENCE}"),
        ({"command": "x", "args": ["${OTHER"]}, f"args[0]: {NO_REFERENCE}"),
        ({"command": "x", "args": ["${OTHER}${"]}, f"args[0]: {NO_REFERENCE}"),
        ({"command": "x", "args": ["${OTHER ${TOKEN}"]}, f"args[0]: {NO_REFERENCE}"),
        ({"command": "x", "env": {f"TOKEN={SECRET}": "${TOKEN"}}, f"env.…: {NO_REFERENCE}"),
    ],
)
def test_agt_6_an_error_of_a_server_names_its_key_but_not_its_value(entry, expected_error):
    assert problem_of(entry, OTHER=SECRET) == expected_error
    assert SECRET not in expected_error


def test_agt_6_credentials_are_in_no_repr_and_in_no_chained_exception():
    servers = read(
        {
            "a": {"command": "x", "args": ["${KEY}"], "env": {"KEY": "${KEY}"}},
            "b": {"url": "http://me:${KEY}@a", "headers": {"Key": "${KEY}"}},
        },
        KEY=SECRET,
    )
    assert SECRET not in repr(servers)
    assert SECRET not in problem_of({"url": "http://a", "headers": {"Key": "${KEY}"}}, KEY=f"{SECRET}\n")


def test_agt_6_without_a_file_there_are_no_foreign_servers(folder):
    assert load_foreign_servers(Settings()) == McpConfig()
    (folder / DEFAULT_FILE).write_text('\ufeff{"mcpServers": {"a": {"command": "x"}}}')
    assert load_foreign_servers(Settings()).servers == {"a": ForeignServer(command="x")}


def test_agt_6_a_configured_file_is_read_and_must_exist(folder, monkeypatch):
    (folder / DEFAULT_FILE).write_text("{}")
    monkeypatch.setenv("TURNKEEPER_MCP_CONFIG", "servers.json")
    with pytest.raises(SettingsError, match=r"^mcp_config names 'servers.json', but there is no such file\.$"):
        load_foreign_servers(Settings())
    (folder / "servers.json").write_text('{"mcpServers": {}}')
    assert load_foreign_servers(Settings()) == McpConfig()


def test_agt_6_a_binary_file_is_one_error_without_its_content(folder):
    (folder / DEFAULT_FILE).write_bytes(b"\xff" + SECRET.encode())
    problems = {"mcp.json": "cannot be read: UnicodeDecodeError"}
    assert load_foreign_servers(Settings()) == McpConfig(problems=problems)


# No session gets at what the worker is configured by


TOUCHES: list[tuple[str, dict[str, object]]] = [
    ("file_read", {}),
    ("file_write", {"content": '{"mcpServers": {}}'}),
    ("file_list", {}),
    ("file_search", {"query": SECRET}),
]


async def touched(path: str, *, workspace: str = "", settings: Settings | None = None) -> list[ToolResult]:
    """Return the result of every file tool when it is called with `path`."""
    async with Toolbox([own_tool_server(settings or Settings(workspace_root=Path()))]) as toolbox:
        return [
            await toolbox.call(
                ToolInvocation(call_id="1.1.0", name=tool, args={"path": path, **args}, workspace=workspace)
            )
            for tool, args in TOUCHES
        ]


def is_off_limits(result: ToolResult) -> bool:
    output = result.outcome + result.content
    return result.status == "error" and "is not part of the workspace" in output and SECRET not in output


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("name", ["mcp.json", "turnkeeper.toml"])
@pytest.mark.parametrize(
    "spelled", ["{}", "./x/..//{}", "{}/inside", "{upper}", "{title}", "{0}. ", "\u200d{}", "deep/../{}"]
)
async def test_agt_6_no_session_can_read_the_workers_configuration(folder, name, spelled, exists):
    if exists:
        (folder / name).write_text(COMMENT)
    path = spelled.format(name, upper=name.upper(), title=name.title())
    assert all(map(is_off_limits, await touched(path)))
    assert [file.read_text() for file in folder.glob("[!.]*")] == [COMMENT] * exists


@pytest.mark.parametrize("exists", [True, False])
async def test_agt_6_no_session_can_read_the_configuration_through_its_folder_or_an_alias(folder, monkeypatch, exists):
    (folder / "conf").mkdir()
    monkeypatch.setenv("TURNKEEPER_CONFIG", "conf/my.toml")
    (folder / "turnkeeper.toml").symlink_to("conf/linked.toml")
    settings = Settings(workspace_root=Path(), mcp_config=Path("conf/tools.json"), state_dir=Path("conf/state"))
    names = ["my.toml", "tools.json", "linked.toml", "state"]
    for name in names * exists:
        (folder / "conf" / name).write_text(SECRET)
        (folder / "conf" / f"other {name}").hardlink_to(folder / "conf" / name)
        read, written_chars, _, searched = await touched(f"other {name}", workspace="conf", settings=settings)
        assert all(map(is_off_limits, [read, written_chars, searched]))
    for name in names:
        assert all(map(is_off_limits, await touched(name, workspace="conf", settings=settings)))
        assert all(map(is_off_limits, await touched("x", workspace=f"conf/{name}", settings=settings)))


async def test_agt_6_the_workers_configuration_is_neither_listed_nor_searched(folder):
    for name in ("mcp.json", "turnkeeper.toml", "notes.txt"):
        (folder / name).write_text(COMMENT)
    async with Toolbox([own_tool_server(Settings(workspace_root=Path()))]) as toolbox:
        for tool, args in (
            ("file_list", {}),
            ("file_list", {"pattern": "*"}),
            ("file_search", {"query": SECRET}),
        ):
            result = await toolbox.call(ToolInvocation(call_id="1.1.0", name=tool, args=args))
            assert (result.status, result.content.split(":")[0].split(" ")[0]) == ("ok", "notes.txt")
            assert "mcp.json" not in result.content
            assert "turnkeeper.toml" not in result.content


async def test_agt_6_a_file_of_the_same_name_in_a_subfolder_is_an_ordinary_file(folder):
    (folder / "app").mkdir()
    results = await touched("app/mcp.json")
    assert not any(map(is_off_limits, results))
    assert [result.outcome.split(" (")[0] for result in results[:2]] == [
        "'app/mcp.json' does not exist in the workspace.",
        "Wrote app/mcp.json",
    ]
