"""Foreign servers as separate programs: good, dying, hanging, changing, sending rubbish (AGT-6, AGT-7)."""

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from mcp_types import CONNECTION_CLOSED, PARSE_ERROR, REQUEST_TIMEOUT

from tests.servers import odd
from tests.waiting import BOUND, until
from turnkeeper.activities.toolbox import foreign_messages, server_connection, transports
from turnkeeper.activities.toolbox.foreign_messages import NOT_SENT
from turnkeeper.activities.toolbox.schemas import argument_errors
from turnkeeper.activities.toolbox.toolbox import Toolbox, build_toolbox
from turnkeeper.activities.tools import ServerLostError
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.transcript.conversation import ToolResult
from turnkeeper.models.transcript.model_call import ToolInvocation

ODD = Path(odd.__file__)

OUR_CODES = [CONNECTION_CLOSED, REQUEST_TIMEOUT, PARSE_ERROR, NOT_SENT]
"""Codes of errors by which our side tells itself that an answer will not come; servers use some of them too."""

UNKNOWN = "The call may have taken effect, so it was not repeated."


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def configured(**servers: dict[str, Any]) -> Toolbox:
    """Return a toolbox as a worker builds it from an `mcp.json`."""
    Path("mcp.json").write_text(json.dumps({"mcpServers": servers}))
    return build_toolbox(Settings(state_dir=Path("state")))


def program(*flags: str, **keys: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-I", str(ODD), *flags], **keys}


def invocation(name: str, **args: Any) -> ToolInvocation:
    options = {field: args.pop(field) for field in ("server", "tool_digest", "built_in") if field in args}
    return ToolInvocation(session_id="s-1", call_id="1.2.0", name=name, args=args, **options)


async def call(toolbox: Toolbox, name: str, **args: Any) -> ToolResult:
    async with asyncio.timeout(BOUND):
        try:
            return await toolbox.call(invocation(name, **args))
        except ServerLostError as lost:
            return lost.result


async def names(toolbox: Toolbox) -> list[str]:
    """Return the names of all foreign tools."""
    async with asyncio.timeout(BOUND):
        return [tool.name for tool in (await toolbox.list_tools()).tools if not tool.built_in]


async def pid_of(toolbox: Toolbox, tool: str = "pid") -> int:
    return int((await call(toolbox, tool)).outcome)


def is_running(pid: int) -> bool:
    """Return whether a process exists and isn't a zombie, whatever its parent is."""
    try:
        os.kill(pid, 0)
        return sys.platform != "linux" or Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


async def cancel(call: Awaitable[ToolResult], *, once: Callable[[], bool]) -> None:
    """Begin a call, cancel it once the condition holds, and check that it ends at once."""
    calling = asyncio.ensure_future(call)
    await until(once)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(calling, BOUND)


# A good server


async def test_agt_6_a_program_starts_with_its_own_arguments_and_variables_only(folder, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "hunter2")
    monkeypatch.setenv("GIVEN", "to it")
    (folder / "there").mkdir()
    server = program("flag ${GIVEN}", env={"TOKEN": "${GIVEN}"}, cwd="there")
    async with configured(a=server) as toolbox:
        result = await call(toolbox, "env")
    report = json.loads(result.content or result.outcome)
    assert (report["args"], report["cwd"]) == (["flag to it"], str(folder / "there"))
    assert report["env"]["TOKEN"] == "to it"
    assert "hunter2" not in json.dumps(report)


async def test_agt_6_calls_of_one_server_run_concurrently():
    async with configured(a=program()) as toolbox:
        results = await asyncio.gather(*(call(toolbox, "meet", people=5) for _ in range(5)))
    assert [result.outcome for result in results] == ["met"] * 5


async def test_agt_6_three_servers_with_the_same_tools_are_distinguished():
    async with configured(a=program(), b=program(), c_d=program()) as toolbox:
        assert {"a__pid", "b__pid", "c_d__pid"} <= set(await names(toolbox))
        assert "pid" not in await names(toolbox)
        assert len({await pid_of(toolbox, f"{name}__pid") for name in ("a", "b", "c_d")}) == 3


async def test_agt_6_a_tool_keeps_its_name_when_another_server_offers_the_same(folder):
    late = program(cwd="late")
    async with configured(early=program(), late=late) as toolbox:
        assert "pid" in await names(toolbox)
        first = await pid_of(toolbox)
        (folder / "late").mkdir()
        toolbox._connections["late"]._paused_until = 0
        assert {"pid", "late__pid"} <= set(await names(toolbox))
        assert await pid_of(toolbox) == first == await pid_of(toolbox, "early__pid")


async def test_agt_6_a_servers_stderr_goes_to_its_own_file_and_not_to_the_log(folder, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    async with configured(a=program()) as toolbox:
        await call(toolbox, "noise")
    file = folder / "state" / "logs" / "mcp-a.log"
    assert "secret words to stderr" in file.read_text()
    assert "secret words" not in caplog.text
    assert capfd.readouterr().out == ""


# Dying


@pytest.mark.parametrize(
    ("keys", "status"),
    [
        ({}, "outcome_unknown"),
        ({"trusted": False, "flag": "repeatable"}, "outcome_unknown"),
        ({"trusted": True, "flag": "repeatable"}, "error"),
    ],
)
async def test_agt_7_a_server_that_dies_in_a_call_gives_a_result_and_is_restarted(keys, status):
    server = program(*filter(None, [keys.pop("flag", "")]), **keys)
    async with configured(a=server) as toolbox:
        first = await pid_of(toolbox)
        result = await call(toolbox, "die")
        assert result.status == status
        assert (UNKNOWN in result.content) == (status == "outcome_unknown")
        assert result.content.startswith("The tool server disconnected before answering")
        assert await pid_of(toolbox) != first


async def test_agt_7_a_server_killed_between_two_calls_is_restarted_silently():
    async with configured(a=program()) as toolbox:
        first = await pid_of(toolbox)
        os.kill(first, signal.SIGKILL)
        await until(lambda: not is_running(first))
        await until(lambda: not toolbox._connections["a"]._link.is_usable)
        assert await pid_of(toolbox) != first


async def test_agt_7_all_pending_calls_of_a_dying_server_end():
    async with configured(a=program()) as toolbox:
        waiting = [asyncio.create_task(call(toolbox, "hang")) for _ in range(3)]
        await until(Path("hanging").exists)
        os.kill(await pid_of(toolbox), signal.SIGKILL)
        assert [result.status for result in await asyncio.gather(*waiting)] == ["outcome_unknown"] * 3


@pytest.mark.parametrize("code", OUR_CODES)
async def test_agt_7_a_call_with_an_error_reported_by_the_server_is_not_repeated(code):
    async with configured(a=program()) as toolbox:
        claim = await call(toolbox, "claim", code=code)
        assert (claim.status, claim.outcome, claim.content) == ("error", "claim failed", "call 1 was not so")
        assert (await call(toolbox, "claim", code=code)).content == "call 2 was not so"


@pytest.mark.parametrize(
    "server",
    [
        {"command": "no-such-program-anywhere"},
        {"command": sys.executable, "args": ["-c", "raise SystemExit(3)"]},
        {"command": sys.executable, "cwd": "no/such/folder"},
        {"url": "http://127.0.0.1:1/mcp"},
    ],
)
async def test_agt_6_a_server_that_cannot_be_started_does_not_hide_the_tools_of_others(server, caplog):
    async with configured(broken=server, a=program()) as toolbox:
        assert "echo" in await names(toolbox)
        assert "the tools of 'broken' could not be read" in caplog.text
        assert (await call(toolbox, "echo", text="hello")).outcome == "hello"
        unknown = await call(toolbox, "broken__tool")
    assert (unknown.status, unknown.outcome) == ("error", "There is no tool 'broken__tool'")
    assert "Unknown, because unreachable: the tools of broken" in unknown.content


# Hanging


async def test_agt_7_a_cancelled_call_ends_at_once_and_a_responsive_server_stays():
    async with configured(a=program()) as toolbox:
        first = await pid_of(toolbox)
        await cancel(call(toolbox, "hang"), once=Path("hanging").exists)
        assert await pid_of(toolbox) == first
        await until(lambda: not toolbox._connections["a"]._background)
        assert await pid_of(toolbox) == first


async def test_agt_7_a_hanging_server_is_killed_with_its_process_group_and_replaced(monkeypatch):
    monkeypatch.setattr(server_connection, "PROBE_SECONDS", 0.2)
    async with configured(a=program("stubborn")) as toolbox:
        first, grandchild = await pid_of(toolbox), await pid_of(toolbox, "child")
        await cancel(call(toolbox, "freeze"), once=Path("frozen").exists)
        await until(lambda: not toolbox._connections["a"]._link.is_usable)
        assert await pid_of(toolbox) != first
        await until(lambda: not is_running(first) and not is_running(grandchild))
        monkeypatch.setattr(transports, "END_SECONDS", 0.1)  # for the other one, which is as stubborn


async def test_agt_7_a_hanging_server_has_limited_time_to_answer_its_other_calls(monkeypatch):
    monkeypatch.setattr(server_connection, "PROBE_SECONDS", 0.2)
    monkeypatch.setattr(server_connection, "DRAIN_SECONDS", 0.2)
    async with configured(a=program()) as toolbox:
        first = await pid_of(toolbox)
        other = asyncio.create_task(call(toolbox, "hang"))
        await until(Path("hanging").exists)
        await cancel(call(toolbox, "freeze"), once=Path("frozen").exists)
        assert (await other).status == "outcome_unknown"
        assert await pid_of(toolbox) != first


async def test_agt_7_a_call_ends_at_the_servers_own_timeout_with_a_message():
    async with configured(a=program(timeout=0.5)) as toolbox:
        result = await call(toolbox, "hang")
    assert result.status == "outcome_unknown"
    assert result.content == f"No answer came within 0.5 s. {UNKNOWN}"


async def test_agt_7_a_call_that_reports_progress_is_not_timed_out():
    """F10: no progress is requested, and a call has `timeout` seconds in all."""
    async with configured(a=program(timeout=2)) as toolbox:
        result = await call(toolbox, "work", times=25, pause=0.1)
    assert (result.status, result.outcome) == ("ok", "worked")


async def test_agt_6_a_server_that_is_slow_to_list_delays_only_one_listing(monkeypatch):
    monkeypatch.setattr(server_connection, "LISTING_SECONDS", 0.2)
    async with configured(slow=program("no list"), a=program()) as toolbox:
        await names(toolbox)
        assert toolbox._connections["slow"]._reading is not None
        await until(lambda: toolbox._connections["a"].is_known)
        monkeypatch.setattr(server_connection, "LISTING_SECONDS", 2 * BOUND)
        for _ in range(20):
            assert "echo" in await names(toolbox)


async def test_agt_6_a_list_names_the_servers_that_could_not_be_reached(monkeypatch):
    monkeypatch.setattr(server_connection, "LISTING_SECONDS", 0.2)
    async with configured(slow=program("no list"), gone={"command": "no-such-program"}, a=program()) as toolbox:
        await names(toolbox)
        await until(lambda: toolbox._connections["a"].is_known)
        listed = await toolbox.list_tools()
        assert listed.unread == ["slow", "gone"]
        assert "echo" in [tool.name for tool in listed.tools]


async def test_agt_6_a_server_that_keeps_failing_is_retried_less_and_less_often(monkeypatch):
    async with configured(gone={"command": "no-such-program"}) as toolbox:
        failing, rests = toolbox._connections["gone"], []
        for _ in range(9):
            failing._paused_until = 0.0
            start = asyncio.get_running_loop().time()
            await names(toolbox)
            rests.append(failing._pause_seconds)
            assert failing._paused_until >= start + failing._pause_seconds
    assert rests == [5, 10, 20, 40, 80, 160, *[server_connection.MAX_PAUSE_SECONDS] * 3]


# Changing


async def as_known(toolbox: Toolbox, name: str) -> dict[str, str]:
    """Return what a session that reads its tools now sends with a call of one of them."""
    (tool,) = [tool for tool in (await toolbox.list_tools()).tools if tool.name == name]
    return {"server": tool.server, "tool_digest": tool.digest}


CHANGED = "echo has changed, and was not called"


async def test_agt_8_a_tool_that_changed_since_the_session_read_it_is_not_called():
    async with configured(a=program("changing")) as toolbox:
        before = await as_known(toolbox, "echo")
        gone_later = await as_known(toolbox, "pid")
        assert (await call(toolbox, "echo", text="a", **before)).outcome == "a"
        await call(toolbox, "change")
        now = await as_known(toolbox, "echo")
        for text in ("a", 1):
            result = await call(toolbox, "echo", text=text, **before)
            assert (result.status, result.outcome, result.tool_changed) == ("error", CHANGED, True)
        assert (await call(toolbox, "echo", text=1, **now)).outcome == "1"
        complaint = await call(toolbox, "echo", text="a", **now)
        assert "text: 'a' is not of type 'integer'" in complaint.content
        gone_result = await call(toolbox, "pid", **gone_later)
        assert (gone_result.outcome, gone_result.tool_changed) == ("There is no tool 'pid' of a", True)
        # A call without the server and the digest.
        assert (await call(toolbox, "echo", text=1)).outcome == "1"


@pytest.mark.parametrize("why", ["restarted", "told", "long ago"])
async def test_agt_8_a_tool_that_may_have_changed_is_listed_again_before_a_call(why, monkeypatch):
    async with configured(a=program("changing", *["telling"] * (why == "told"))) as toolbox:
        before = await as_known(toolbox, "echo")
        first = await pid_of(toolbox)
        await call(toolbox, "change")
        if why == "restarted":
            os.kill(first, signal.SIGKILL)
            await until(lambda: not toolbox._connections["a"]._link.is_usable)
        if why == "long ago":
            monkeypatch.setattr(server_connection, "LIST_COUNTS_SECONDS", 0.001)
        result = await call(toolbox, "echo", text="a", **before)
        assert (result.outcome, result.tool_changed) == (CHANGED, True)


async def test_agt_8_a_changed_tool_that_was_read_on_another_worker_is_called_here():
    async with configured(a=program("changing")) as toolbox, configured(a=program("changing")) as other:
        await names(toolbox)
        await call(other, "change")
        result = await call(toolbox, "echo", text=1, **await as_known(other, "echo"))
        assert (result.status, result.outcome) == ("ok", "1")


async def test_agt_8_a_tool_with_another_effect_is_another_tool():
    async with configured(a=program("repeatable", trusted=True)) as toolbox:
        before = await as_known(toolbox, "echo")
    async with configured(a=program(trusted=True)) as toolbox:
        result = await call(toolbox, "echo", text="a", **before)
        assert (result.outcome, result.tool_changed) == (CHANGED, True)


async def test_agt_8_a_call_of_a_built_in_tool_never_reaches_a_foreign_tool():
    async with configured(a=program()) as toolbox:
        result = await call(toolbox, "echo", text="a", built_in=True)
        assert (result.status, result.tool_changed) == ("error", True)
        assert (await call(toolbox, "now", built_in=True)).status == "ok"


# Rubbish


@pytest.mark.parametrize("kind", list(odd.RUBBISH))
async def test_agt_7_an_unreadable_answer_is_reported_at_once_and_the_server_stays(kind):
    async with configured(a=program()) as toolbox:
        first = await pid_of(toolbox)
        result = await call(toolbox, "rubbish", kind=kind)
        assert result.status == "outcome_unknown"
        assert UNKNOWN in result.content
        assert await pid_of(toolbox) == first


TEXT = {"type": "text", "text": "plain answer 7"}


@pytest.mark.parametrize(
    ("result", "outcome", "content"),
    [
        ({"content": [TEXT]}, "plain answer 7", ""),
        ({"content": [TEXT], "structuredContent": {"a": "seven"}}, "plain answer 7", '{"a": "seven"}'),
        ({"content": [TEXT], "structuredContent": {"a": 7, "b": 8}}, "plain answer 7", '{"a": 7, "b": 8}'),
        ({"content": [TEXT], "structuredContent": None}, "plain answer 7", ""),
        ({"content": [TEXT], "structuredContent": "seven"}, "plain answer 7", '{"result": "seven"}'),
        ({"content": [TEXT], "structuredContent": "plain answer 7"}, "plain answer 7", ""),
        ({"content": [TEXT], "structuredContent": [7]}, "plain answer 7", '{"result": [7]}'),
        ({"content": [{"type": "text", "text": '{"a": 7.0}'}], "structuredContent": {"a": 7}}, '{"a": 7.0}', ""),
        ({"content": None}, "Called result", ""),
        ({"content": None, "structuredContent": {"a": 7}}, '{"a": 7}', ""),
        ({"content": "plain answer 7"}, "plain answer 7", ""),
        ({"content": TEXT, "isError": None, "_meta": 5}, "plain answer 7", ""),
        ({"rows": [7]}, '{"rows": [7]}', ""),
        ({}, "Called result", ""),
        (7, '{"result": 7}', ""),
    ],
)
async def test_agt_7_an_answer_of_any_shape_is_read(result, outcome, content):
    """F3: reported as opentokenz/mcpx#28. L12: reported as open-webui#28926, opencode#38923, kimi-code#2554."""
    async with configured(a=program("strict output")) as toolbox:
        answer = await call(toolbox, "result", result=result)
    assert (answer.status, answer.outcome, answer.content) == ("ok", outcome, content)


async def test_agt_6_tools_with_a_malformed_field_are_offered_and_called():
    """L8, F3: a tool is left out for a field that the SDK refuses."""
    odd_names = [tool["name"] for tool in odd.ODD_TOOLS]
    async with configured(a=program("odd tools")) as toolbox:
        assert await names(toolbox) == sorted([*odd.TOOLS, *odd_names])
        for name in odd_names:
            assert (await call(toolbox, name)).outcome == name


@pytest.mark.parametrize(
    ("kind", "outcome"), [("no UTF-8", "a\ufffd\ufffdb"), ("NUL", "a\ufffdb"), ("surrogate", "a\ufffdb")]
)
async def test_agt_7_nul_and_lone_surrogates_in_a_result_are_replaced(kind, outcome):
    """Half a character in a tool's result ends the connection or the conversation.

    Reported as claude-code#86560, opencode#17758, openclaw#7275.
    """
    async with configured(a=program()) as toolbox:
        first = await pid_of(toolbox)
        assert (await call(toolbox, "text", kind=kind)).outcome == outcome
        assert await pid_of(toolbox) == first


async def test_ctx_14_a_huge_answer_is_cut():
    async with configured(a=program()) as toolbox:
        result = await call(toolbox, "text", kind="huge")
    assert result.status == "ok"
    assert len(result.content) <= 30_000
    assert "of 5,000,000 characters left out" in result.content


async def test_agt_7_invalid_lines_and_answers_to_no_request_are_ignored(caplog):
    async with configured(a=program()) as toolbox:
        assert (await call(toolbox, "noise")).outcome == "after the noise"
        assert (await call(toolbox, "wrong_id")).outcome == "and then the right one"
    assert "lines to its output that are not messages" in caplog.text


@pytest.mark.parametrize("flag", ["many", "endless", "circling", "twice", "odd names"])
async def test_agt_6_any_listing_yields_a_bounded_list_of_valid_names(flag, caplog):
    async with configured(a=program(flag), b=program()) as toolbox:
        listed = await names(toolbox)
        assert len(set(listed)) == len(listed) <= server_connection.MAX_TOOLS + len(odd.TOOLS)
        assert "b__pid" in listed or flag == "endless"
        assert (await call(toolbox, "b__echo", text="a")).outcome == "a"
        if flag == "odd names":
            for name in listed:
                assert len(name) <= 64
                assert name.isascii()


@pytest.mark.parametrize("flag", ["many", "twice", "circling"])
async def test_agt_6_entries_left_out_of_a_list_are_logged(flag, caplog):
    async with configured(a=program(flag)) as toolbox:
        assert "echo" in await names(toolbox)
    assert "are left out: too many, or of the same name" in caplog.text


@pytest.mark.parametrize("flag", ["endless", "circling"])
async def test_agt_6_an_endless_tool_list_is_bounded_and_logged(flag, caplog):
    """`nextCursor` never ends, and neither does the listing of the tools.

    Reported as codebase-memory-mcp#1247.
    """
    async with configured(a=program(flag)) as toolbox:
        listed = await names(toolbox)
        assert len(set(listed)) == len(listed) <= server_connection.MAX_PAGES + 1
    assert "tools of 'a' are left out: its list has no end" in caplog.text


async def test_agt_6_every_page_of_a_tool_list_is_read():
    """Only the first page of `tools/list` is read, and the other tools are missing.

    Reported as vercel/ai#19240, Factory#7, kimi-code#3757.
    """
    async with configured(a=program("pages")) as toolbox:
        assert await names(toolbox) == sorted(f"tool_{number}" for number in range(120))


async def test_agt_6_an_unreadable_list_is_logged_and_does_not_hide_the_tools_of_others(caplog):
    async with configured(a=program("no tools"), b=program()) as toolbox:
        assert "echo" in await names(toolbox)
    assert "the tools of 'a' could not be read" in caplog.text


async def test_agt_6_invalid_entries_of_a_list_are_left_out_and_logged(caplog):
    async with configured(a=program("no schema")) as toolbox:
        assert await names(toolbox) == sorted([*odd.TOOLS, "bad"])
        assert (await call(toolbox, "echo", text="a")).outcome == "a"
    assert f"of {len(odd.TOOLS) + 4} tools of 'a' 3 are invalid or too many" in caplog.text


@pytest.mark.parametrize("levels", [60, 120, 150, 400])
async def test_agt_6_a_tool_with_an_overly_nested_schema_does_not_hide_other_tools(levels):
    async with configured(a=program(f"levels {levels}")) as toolbox:
        assert await names(toolbox) == sorted([*odd.TOOLS, "deep"])
        assert (await call(toolbox, "echo", text="a")).outcome == "a"


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ({"type": "hologram", "x": 1}, "[hologram, left out]"),
        ({"type": "text"}, "[text, left out]"),
        ({"type": "x" * 100}, f"[{'x' * 40}, left out]"),
        ({"type": ["text"]}, "[of no type, left out]"),
        ({}, "[of no type, left out]"),
        (5, "[of no type, left out]"),
    ],
)
async def test_agt_7_a_result_has_its_readable_blocks_and_the_names_of_the_others(block, expected):
    text = {"type": "text", "text": "words"}
    async with configured(a=program()) as toolbox:
        result = await call(toolbox, "blocks", blocks=[text, block, text])
    assert (result.status, result.content) == ("ok", f"words\n{expected}\nwords")


async def test_agt_7_a_very_long_result_is_cut_after_its_first_blocks(monkeypatch):
    async with configured(a=program()) as toolbox:
        await pid_of(toolbox)
        monkeypatch.setattr(foreign_messages, "MAX_SANITIZED", 2)
        result = await call(toolbox, "blocks", blocks=[{"type": "text", "text": "words"}] * 1_002)
    assert result.content == "words\nwords\n[1,000 more, left out]"


def test_agt_7_a_pattern_that_takes_forever_is_not_evaluated():
    schema = json.dumps({"type": "object", "properties": {"text": {"type": "string", "pattern": "^(a+)+$"}}})
    assert argument_errors(schema, {"text": "a" * 60 + "b"}) == []
    assert argument_errors(schema, {"text": 1}) != []


# Nothing is left behind


@pytest.mark.parametrize("flags", [(), ("stubborn",)])
async def test_agt_7_closing_the_toolbox_ends_all_server_processes(flags, monkeypatch):
    async with configured(a=program(*flags)) as toolbox:
        pids = [await pid_of(toolbox), await pid_of(toolbox, "child")]
        assert all(map(is_running, pids))
    await until(lambda: not any(map(is_running, pids)))


WORKER = """
import asyncio, json, sys
from pathlib import Path
from turnkeeper.activities.toolbox.toolbox import build_toolbox
from turnkeeper.activities.toolbox.toolbox import Toolbox
from turnkeeper.models.transcript.model_call import ToolInvocation
from turnkeeper.models.settings.settings import Settings

async def main():
    async with build_toolbox(Settings(state_dir=Path("state"))) as toolbox:
        for tool in ("pid", "child"):
            result = await toolbox.call(ToolInvocation(session_id="s", call_id="1.1.0", name=tool, args={}))
            print(result.outcome, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_agt_7_killing_the_worker_ends_all_server_processes():
    configured(a=program("stubborn"))
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", WORKER),
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(BOUND):
        pids = [int(await worker.stdout.readline()) for _ in range(2)]
    assert all(map(is_running, pids))
    worker.kill()
    await until(lambda: not any(map(is_running, pids)))
    await worker.wait()


async def test_agt_7_killing_a_process_guard_ends_its_server_with_its_client():
    async with configured(a=program("stubborn")) as toolbox:
        pids = [await pid_of(toolbox), await pid_of(toolbox, "child")]
        guard_pid = os.getpgid(pids[0])
        os.kill(guard_pid, signal.SIGKILL)
        await until(lambda: not is_running(guard_pid))
        assert is_running(pids[0])
    await until(lambda: not any(map(is_running, pids)))
