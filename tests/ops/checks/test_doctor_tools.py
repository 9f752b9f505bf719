"""What the doctor and `turnkeeper up` say about foreign tool servers (OPS-3, OPS-4, AGT-6)."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.ops.local.test_cli import run
from tests.servers import odd
from turnkeeper.ops.checks import doctor
from turnkeeper.ops.checks.doctor import Finding, examine


def write(folder: Path, **servers: object) -> None:
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": servers}))


async def findings() -> list[Finding]:
    """Return the doctor's findings on tool servers, without running the checks after them."""
    result = []
    examined = examine()
    async for finding in examined:
        if finding.subject.startswith("tool"):
            result.append(finding)
        elif result:
            await examined.aclose()
            break
    return result


def program(*flags: str) -> dict[str, object]:
    return {"command": sys.executable, "args": ["-I", odd.__file__, *flags]}


async def test_ops_3_without_a_file_there_is_only_the_built_in_server():
    assert await findings() == [Finding("tool servers", "good", "only the built-in one")]


async def test_ops_3_every_tool_server_is_asked_and_what_is_wrong_is_told_with_the_mend(folder, monkeypatch):
    monkeypatch.setattr(doctor, "TOOL_SERVER_SECONDS", 3.0)
    crash = {"command": sys.executable, "args": ["-c", "raise SystemExit('no such database')"]}
    write(
        folder, good=program(), silent=program("no list"), crash=crash, web={"url": "http://127.0.0.1:1/?key=hunter2"}
    )

    def fix(name: str) -> str:
        return f'see .turnkeeper/logs/mcp-{name}.log; or set "disabled": true'

    results = await findings()
    # How it ended is known a moment after its connection has closed.
    assert [replace(finding, message=finding.message.removesuffix(" / [ended with 1]")) for finding in results] == [
        Finding("tools of good", "good", f"{len(odd.TOOLS)} tools"),
        Finding("tools of silent", "broken", "no answer within 3 s", fix("silent")),
        Finding("tools of crash", "broken", "Connection closed. It wrote: no such database", fix("crash")),
        Finding(
            "tools of web",
            "broken",
            "The server was not reached (ConnectError)",
            'check that it runs, and its url and headers; or set "disabled": true',
        ),
    ]
    assert "no such database" in (folder / ".turnkeeper/logs/mcp-crash.log").read_text()


async def test_ops_3_of_a_program_that_is_not_there_the_doctor_says_what_its_log_knows(folder):
    write(folder, bad={"command": "no-such-command"})
    for _ in range(2):  # nothing of an older run is reported
        (finding,) = await findings()
        message = "Connection closed. It wrote: 'no-such-command' cannot be run: No such file or directory"
        assert (finding.state, finding.message) == ("broken", message)


async def test_ops_3_a_list_of_tools_that_is_none_is_told(folder):
    write(folder, bad=program("no tools"))
    (finding,) = await findings()
    assert (finding.state, finding.message) == ("broken", "its list of tools cannot be read (ValidationError)")


async def test_ops_3_tools_whose_schema_vendors_would_refuse_are_named(folder):
    write(folder, odd=program("refused schema"))
    message = f"{len(odd.TOOLS) + 1} tools; vendors reject the schema of refused, so the model gets it as text"
    assert await findings() == [Finding("tools of odd", "good", message)]


async def test_ops_4_a_wrong_file_is_a_finding(folder):
    write(folder, a={"comand": "x"})
    message = "mcp.json, server 'a': comand: unknown key. Did you mean command?"
    assert await findings() == [Finding("tool servers", "broken", message)]


@pytest.mark.parametrize("command", ["up", "doctor"])
async def test_ops_4_a_wrong_file_of_tool_servers_stops_the_start_with_its_sentence(folder, command):
    write(folder, a={"command": "x", "env": {"KEY": "${NOT_SET_ANYWHERE}"}})
    code, output = await run(command)
    assert code == 1
    assert "mcp.json, server 'a': env.KEY: the environment variable NOT_SET_ANYWHERE is not set" in output
    assert "Traceback" not in output


async def test_ops_4_a_worker_does_not_start_with_a_wrong_file_of_tool_servers(server, folder):
    write(folder, a={"url": "http://a", "type": "sse"})
    code, output = await run("worker", TEMPORAL_ADDRESS=server.address)
    assert code == 1
    assert "mcp.json, server 'a': type: 'sse' is a deprecated transport" in output
    assert "Traceback" not in output
