"""The findings of the doctor and `turnkeeper up` about foreign tool servers (OPS-3, OPS-4, AGT-6)."""

import json
import sys
from dataclasses import replace
from pathlib import Path

from tests.ops.local.test_cli import forked_commands, run, running_stack
from tests.servers import odd
from turnkeeper.ops import doctor
from turnkeeper.ops.doctor import Finding, examine


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


async def test_ops_3_without_a_file_the_built_in_server_is_the_only_one():
    assert await findings() == [Finding("tool servers", "good", "only the built-in one")]


async def test_ops_3_every_tool_server_is_checked_and_problems_have_a_fix(folder, monkeypatch):
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
        Finding(
            "tools of crash",
            "broken",
            "did not start: it ended before it answered. It wrote: no such database",
            fix("crash"),
        ),
        Finding(
            "tools of web",
            "broken",
            "is not available: The server was not reached (ConnectError)",
            'check that it runs, and its url and headers; or set "disabled": true',
        ),
    ]
    assert "no such database" in (folder / ".turnkeeper/logs/mcp-crash.log").read_text()


async def test_ops_3_for_a_program_that_cannot_start_the_doctor_quotes_its_log(folder):
    write(folder, bad={"command": "no-such-command"})
    for _ in range(2):  # nothing of an older run is reported
        (finding,) = await findings()
        message = (
            "did not start: it ended before it answered. It wrote: "
            "'no-such-command' cannot be run: No such file or directory"
        )
        assert (finding.state, finding.message) == ("broken", message)


async def test_ops_3_an_invalid_list_of_tools_is_reported(folder):
    write(folder, bad=program("no tools"))
    (finding,) = await findings()
    assert (finding.state, finding.message) == (
        "broken",
        "its tools could not be read: its answer is not a list of tools (ValidationError)",
    )


async def test_ops_3_tools_with_a_schema_that_vendors_would_reject_are_reported(folder):
    write(folder, odd=program("refused schema"))
    message = f"{len(odd.TOOLS) + 1} tools; vendors reject the schema of refused, so the model gets it as text"
    assert await findings() == [Finding("tools of odd", "good", message)]


async def test_agt_6_errors_and_notes_of_the_file_are_findings(folder):
    write(folder, a={"comand": "x"}, b={**program(), "alwaysAllow": []})
    ignored = "alwaysAllow: ignored; the session's tool_policy decides what is approved"
    assert await findings() == [
        Finding("tools of a", "broken", "comand: unknown key. Did you mean command?", "correct mcp.json"),
        Finding("tools of b", "good", f"{len(odd.TOOLS)} tools; {ignored}"),
    ]


async def test_agt_6_a_file_that_is_not_json_is_a_finding(folder):
    (folder / "mcp.json").write_text("{")
    message = "cannot be read as JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"
    assert await findings() == [Finding("tools of mcp.json", "broken", message, "correct mcp.json")]


async def test_ops_4_a_named_file_of_tool_servers_must_exist(folder):
    code, output = await run("up", TURNKEEPER_MCP_CONFIG="servers.json")
    assert code == 1
    assert "mcp_config names 'servers.json', but there is no such file" in output
    assert "Traceback" not in output


async def test_agt_6_up_reports_the_tool_servers_that_did_not_start_and_runs(folder, monkeypatch):
    """U10, L4: a broken server is silent, or stops everything."""
    (folder / "shop_tools.py").write_text("def refund(:\n")
    shop = {"command": sys.executable, "args": ["shop_tools.py"]}
    write(folder, shop=shop, mail={"url": "${NOT_SET_ANYWHERE}"}, good=program())
    with forked_commands():
        async with running_stack(monkeypatch) as stack:
            output = await stack.until_said("shop: did not start: it ended before it answered. It wrote: ")
            if "mail: " not in output:
                output += await stack.until_said("mail: ")
    assert "SyntaxError: invalid syntax" in output
    assert "mail: url: the environment variable NOT_SET_ANYWHERE is not set" in output
    assert "good:" not in output
