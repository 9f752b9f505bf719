"""Sessions that use the tools of others, named in `mcp.json`: AGT-6, AGT-7."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from temporalio.client import Client

from tests.harness import BOUND, Environment, asks, environment, says, tools_of
from tests.servers import odd
from tests.servers.from_registries import everything_server, time_server
from tests.waiting import until
from turnkeeper.activities.toolbox import server_connection
from turnkeeper.activities.toolbox.toolbox import Toolbox, build_toolbox
from turnkeeper.models.limits import Limits
from turnkeeper.models.session import tools as session_tools
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.transcript.conversation import ToolResult
from turnkeeper.models.transcript.model_call import ServerText, ToolInvocation, ToolSpec

ALLOWED = SessionInput(tool_policy={"*": "allow"})

FRESH_TURNS = 3
"""In place of the product's, for which a session would have many turns."""


def toolbox_of(folder: Path, **servers: object) -> Toolbox:
    """Return a toolbox as a worker builds it from an `mcp.json`."""
    file = folder / "mcp.json"
    file.write_text(json.dumps({"mcpServers": servers}))
    return build_toolbox(Settings(mcp_config=file, state_dir=folder / "state", workspace_root=folder))


@asynccontextmanager
async def foreign_environment(temporal: Client, toolbox: Toolbox) -> AsyncIterator[Environment]:
    async with toolbox, environment(temporal, toolbox=toolbox) as env:
        yield env


async def results_of(env: Environment, *calls: tuple[str, dict[str, object]]) -> list[ToolResult]:
    """Return the results of a session's calls, all of one step; the turn continues after them."""
    env.vendor.script = [asks(*calls), says("done")]
    session = await env.start(ALLOWED)
    await session.prompt("go")
    (turn,) = await session.idle(turns=1)
    assert (turn.status, turn.agent_message) == ("completed", "done")
    return [call.result for call in turn.steps[0].tool_calls]


def program(folder: Path, *flags: str, **keys: object) -> dict[str, object]:
    return {"command": sys.executable, "args": ["-I", odd.__file__, *flags], "cwd": str(folder), **keys}


async def test_agt_6_a_session_uses_several_tools_of_a_configured_server_at_once(temporal, tmp_path):
    async with foreign_environment(temporal, toolbox_of(tmp_path, odd=program(tmp_path))) as env:
        met = await results_of(env, *[("meet", {"people": 3})] * 3)
        assert [result.outcome for result in met] == ["met"] * 3
        assert {"file_read", "meet"} <= {tool.name for tool in env.vendor.requests[-1].head.tools}


async def test_agt_7_a_server_killed_during_a_call_gives_a_result_and_the_turn_continues(temporal, tmp_path):
    async with foreign_environment(temporal, toolbox_of(tmp_path, odd=program(tmp_path))) as env:
        (first,) = await results_of(env, ("pid", {}))
        env.vendor.script = [asks(("hang", {})), asks(("pid", {})), says("done")]
        session = await env.start(ALLOWED)
        await session.prompt("go")
        await until((tmp_path / "hanging").exists)
        os.kill(int(first.outcome), signal.SIGKILL)
        (turn,) = await session.idle(turns=1)
    assert (turn.status, turn.agent_message) == ("completed", "done")
    hung, after = (step.tool_calls[0].result for step in turn.steps[:2])
    assert hung.status == "outcome_unknown"
    assert after.status == "ok"
    assert after.outcome != first.outcome


@pytest.mark.parametrize(
    ("keys", "flags", "deaths", "status", "runs"),
    [
        ({}, ["repeatable"], 1, "outcome_unknown", 1),
        ({"trusted": True}, ["repeatable"], 2, "ok", 3),
        ({"trusted": True}, ["repeatable"], 9, "error", 3),
    ],
)
async def test_agt_7_a_call_is_retried_with_its_key_if_a_trusted_server_dies(
    temporal, tmp_path, keys, flags, deaths, status, runs
):
    async with foreign_environment(temporal, toolbox_of(tmp_path, odd=program(tmp_path, *flags, **keys))) as env:
        (result,) = await results_of(env, ("die_first", {"times": deaths}))
    assert result.status == status
    used = (tmp_path / "keys").read_text().split()
    assert (len(used), len(set(used))) == (runs, 1)
    assert used[0].endswith("/1.1.0")


async def test_agt_8_a_tool_stays_with_its_server_if_another_offers_its_name(temporal, tmp_path):
    async with foreign_environment(temporal, toolbox_of(tmp_path, odd=program(tmp_path))) as env:
        session = await env.start(ALLOWED)
        await session.prompt("begin")
        await session.idle(turns=1)
        task_queue = env.task_queue
    for servers in (["other"], ["other", "odd"]):
        async with (
            toolbox_of(tmp_path, **{name: program(tmp_path) for name in servers}) as other,
            environment(temporal, task_queue=task_queue, toolbox=other) as env,
        ):
            env.vendor.script = [asks(("pid", {})), says("done")]
            session = env.adopt(session.handle)
            before = (await session.state()).session.turn_count
            await session.prompt("go")
            turn = (await session.idle(turns=before + 1))[-1]
            result = turn.steps[0].tool_calls[0].result
            outcome = (result.status, result.outcome)
            if "odd" not in servers:
                assert outcome == ("error", "There is no tool 'pid' of odd")
            else:
                mine = await call(other, "odd__pid")
                assert outcome == ("ok", mine.outcome)


async def test_agt_8_an_approval_is_for_the_tool_as_shown_and_not_for_a_changed_one(temporal, tmp_path):
    toolbox = toolbox_of(tmp_path, odd=program(tmp_path, "changing", "telling"))
    async with foreign_environment(temporal, toolbox) as env:
        env.vendor.script = [asks(("echo", {"text": "a"})), asks(("echo", {"text": 1})), says("done")]
        session = await env.start()
        await session.prompt("go")
        (pending,) = await session.awaited_approvals()
        await call(toolbox, "change")
        await session.decide(pending, "allow_for_session")
        # It needs a new approval: the allowance was for another tool.
        await session.until(lambda state: state.messages[-1].steps[1:] and state.status == "awaiting_approval")
        (again,) = await session.awaited_approvals()
        await session.decide(again, "approve")
        (turn,) = await session.idle(turns=1)
        first, second = (step.tool_calls[0].result for step in turn.steps[:2])
        assert (first.status, first.outcome) == ("error", "echo has changed, and was not called")
        assert (second.status, second.outcome) == ("ok", "1")
        offered = [
            {tool.name: tool.input_schema for tool in request.head.tools if not tool.built_in}
            for request in env.vendor.requests
        ]
        assert [schemas["echo"]["properties"]["text"]["type"] for schemas in offered] == [
            "string",
            "integer",
            "integer",
        ]
        assert "pid" in offered[0]
        assert "pid" not in offered[1]


async def test_agt_6_a_session_keeps_the_tools_of_a_server_that_is_down_until_it_is_back(temporal):
    mail, news = ToolSpec(name="send_mail", server="mail"), ToolSpec(name="read_news", server="news")
    async with environment(temporal) as env:
        built_in = env.tools.specs

        async def offered(turns: int) -> list[str]:
            """Return the tools of the next turn's two requests, which are the same."""
            env.vendor.script = [asks(("look", {})), says("done")]
            await session.prompt(f"turn {turns}")
            await session.idle(turns=turns)
            first, second = map(tools_of, env.vendor.requests[-2:])
            assert first == second
            return first[len(built_in) :]

        env.tools.specs, env.tools.unread = built_in, ["mail"]
        session = await env.start()
        assert await offered(1) == []
        env.tools.specs, env.tools.unread = [*built_in, mail, news], []
        assert await offered(2) == ["send_mail", "read_news"]
        segment = (await session.context()).segment
        assert env.tools.listings == 2
        env.tools.specs = built_in  # from here on all could be asked: its list is whole until the segment ends
        assert await offered(3) == ["send_mail", "read_news"]
        assert (env.tools.listings, (await session.context()).segment) == (2, segment)


async def test_agt_6_listing_again_removes_no_tool_of_an_unreachable_server(temporal, monkeypatch):
    """It keeps tools that the server still lists and ones it doesn't; only tools of other servers go."""
    monkeypatch.setattr(session_tools, "FRESH_TURNS", FRESH_TURNS)
    foreign = {"send_mail": "mail", "read_news": "news", "pay_bill": "bank"}
    specs = {name: ToolSpec(name=name, server=server) for name, server in foreign.items()}
    window = {"max_messages": 6, "preserve_last_n": 2, "evict_block": 3}
    async with environment(temporal) as env:
        built_in = env.tools.specs
        env.tools.specs = [*built_in, *specs.values()]
        session = await env.start(SessionInput.model_validate({"history": window}))
        await session.prompt("turn 0")
        await session.idle(turns=1)
        env.tools.specs = [*built_in, specs["read_news"]]
        env.tools.unread = ["mail", "news"]
        for number in range(1, 2 * FRESH_TURNS):
            await session.prompt(f"turn {number}")
        await session.idle(turns=2 * FRESH_TURNS)
        assert env.tools.listings > 1
        names = tools_of(env.vendor.requests[-1])[len(built_in) :]
        assert names == ["send_mail", "read_news"]
        before = env.tools.listings
        env.tools.specs, env.tools.unread = built_in, []
        await session.prompt("one more")
        await session.idle(turns=2 * FRESH_TURNS + 1)
        assert env.tools.listings == before + 1
        assert tools_of(env.vendor.requests[-1]) == [tool.name for tool in built_in]


async def test_agt_7_a_hanging_server_costs_a_call_its_timeout_and_is_killed(temporal, tmp_path, monkeypatch):
    monkeypatch.setattr(server_connection, "PROBE_SECONDS", 0.3)
    toolbox = toolbox_of(tmp_path, odd=program(tmp_path))
    async with foreign_environment(temporal, toolbox) as env:
        (first,) = await results_of(env, ("pid", {}))
        link = toolbox._connections["odd"]._link
        env.vendor.script = [asks(("freeze", {})), says("done"), asks(("pid", {})), says("done")]
        session = await env.start(ALLOWED.model_copy(update={"limits": Limits(tool_timeout=1)}))
        await session.prompt("go")
        (turn,) = await session.idle(turns=1)
        result = turn.steps[0].tool_calls[0].result
        assert (result.status, turn.agent_message) == ("outcome_unknown", "done")
        async with asyncio.timeout(BOUND):
            await link.keeper
        await session.update("configure", {"limits": {"tool_timeout": 60}})  # a busy machine starts it slowly
        await session.prompt("go on")
        after = (await session.idle(turns=2))[-1].steps[0].tool_calls[0].result
    assert after.status == "ok"
    assert after.outcome != first.outcome


async def test_agt_7_a_worker_without_a_sessions_tool_reports_it_and_the_turn_continues(temporal, tmp_path):
    async with foreign_environment(temporal, toolbox_of(tmp_path, odd=program(tmp_path))) as env:
        session = await env.start(ALLOWED)
        await session.prompt("begin")
        await session.idle(turns=1)
        task_queue = env.task_queue
    async with (
        toolbox_of(tmp_path, gone={"command": "no-such-program"}) as other,
        environment(temporal, task_queue=task_queue, toolbox=other) as env,
    ):
        env.vendor.script = [asks(("pid", {})), says("done")]
        session = env.adopt(session.handle)
        await session.prompt("go")
        turn = (await session.idle(turns=2))[-1]
    assert turn.agent_message == "done"
    result = turn.steps[0].tool_calls[0].result
    assert (result.status, result.outcome) == ("error", "There is no tool 'pid' of odd")
    assert result.content.endswith("Unknown, because unreachable: the tools of gone")


async def test_agt_8_a_denied_tool_is_not_offered_but_a_call_gets_a_denied_result(temporal):
    """L12, U9: a denied tool is in every request, and costs a step."""
    foreign = [ToolSpec(name="send", server="mail"), ToolSpec(name="read", server="news")]
    async with environment(temporal) as env:
        env.tools.specs = [*env.tools.specs, *foreign]
        session = await env.start(SessionInput(tool_policy={"mail__*": "deny", "pay": "deny", "*": "allow"}))
        env.vendor.script = [asks(("pay", {}), ("send", {})), says("done")]
        await session.prompt("go")
        (turn,) = await session.idle(turns=1)
        assert [call.result.status for call in turn.steps[0].tool_calls] == ["denied", "denied"]
        first = tools_of(env.vendor.requests[0])
        assert {"look", "read"} <= set(first)
        assert not {"pay", "send"} & set(first)
        segment = (await session.context()).segment
        await session.update("configure", {"tool_policy": {"look": "deny", "*": "allow"}})
        await session.prompt("again")
        await session.idle(turns=2)
        changed = tools_of(env.vendor.requests[-1])
        assert {"pay", "send"} <= set(changed)
        assert "look" not in changed
        assert (await session.context()).segment == segment + 1
        await session.prompt("and again")
        await session.idle(turns=3)
        assert tools_of(env.vendor.requests[-1]) == changed
        assert ((await session.context()).segment, env.tools.listings) == (segment + 1, 1)
        assert env.tools.calls == []


async def test_agt_7_numeric_strings_are_converted_before_approval(temporal):
    """L12: a small model's `"2"` for an integer is refused before the server sees it."""
    schema = {"properties": {"count": {"type": "integer"}, "to": {"type": "string"}, "now": {"type": "boolean"}}}
    async with environment(temporal) as env:
        env.tools.specs = [ToolSpec(name="order", server="shop", input_schema={"type": "object", **schema})]
        env.vendor.script = [asks(("order", {"count": "2", "to": "7", "now": "true"})), says("done")]
        session = await env.start()
        await session.prompt("go")
        (pending,) = await session.awaited_approvals()
        assert pending.args == {"count": 2, "to": "7", "now": True}
        await session.decide(pending, "approve")
        await session.idle(turns=1)
        (invocation,) = env.tools.calls
        assert invocation.args == {"count": 2, "to": "7", "now": True}


async def test_agt_6_instructions_of_servers_are_part_of_the_system_prompt(temporal):
    """L12: reported as gemini-cli#13432, crush#2015, koda#927."""
    async with environment(temporal) as env:
        env.tools.specs = [*env.tools.specs, ToolSpec(name="order", server="shop")]
        env.tools.instructions = [
            ServerText(server="gone", text="Never shown."),
            ServerText(server="shop", text="x" * 5_000),
        ]
        env.tools.absent = [ServerText(server="mail", text="it did not start")]
        session = await env.start(SessionInput(system_prompt="Be brief."))
        for turn in (1, 2):
            await session.prompt("go")
            await session.idle(turns=turn)
        first, second = (request.head.system for request in env.vendor.requests)
        assert first == second
        assert first.startswith("Be brief.\n\n# Instructions of the tool servers\n\n## shop\n\nxxx")
        assert "Never shown" not in first
        assert len(first) < 4_200
        assert (await session.context()).absent_tool_servers == env.tools.absent


# Servers of others


async def test_agt_6_a_server_from_pypi_gives_a_session_the_time(temporal, tmp_path, request):
    server = time_server(request.config.cache)
    server["args"] += ["--local-timezone", "${ZONE:-Europe/Berlin}"]
    toolbox = toolbox_of(tmp_path, clock={**server, "trusted": True})
    async with foreign_environment(temporal, toolbox) as env:
        effects = {tool.name: tool.effect for tool in (await toolbox.list_tools()).tools if not tool.built_in}
        assert effects == {"convert_time": "read", "get_current_time": "read"}
        now, difference, wrong, unknown = await results_of(
            env,
            ("get_current_time", {"timezone": "UTC"}),
            ("convert_time", {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Kathmandu"}),
            ("convert_time", {"source_timezone": "UTC"}),
            ("get_current_time", {"timezone": "Nowhere/Else"}),
        )
    assert json.loads(now.content)["timezone"] == "UTC"
    assert difference.status == "ok"
    assert json.loads(difference.content)["time_difference"] == "+5.75h"
    assert "'time' is a required property" in wrong.content
    assert unknown.status == "error"
    assert "Nowhere/Else" in unknown.outcome + unknown.content


async def call(toolbox: Toolbox, name: str, **args: object) -> ToolResult:
    async with asyncio.timeout(BOUND):
        return await toolbox.call(ToolInvocation(session_id="s", call_id="1.1.0", name=name, args=args))


@pytest.mark.parametrize("transport", ["stdio", "streamableHttp"])
async def test_agt_6_a_server_from_npm_is_listed_and_called_over_both_transports(tmp_path, request, transport):
    command = everything_server(request.config.cache)
    async with everything_over(transport, command) as server, toolbox_of(tmp_path, everything=server) as toolbox:
        assert {"echo", "get-sum"} <= {tool.name for tool in (await toolbox.list_tools()).tools}
        assert (await call(toolbox, "get-sum", a=2, b=3)).outcome == "The sum of 2 and 3 is 5."
        (image,) = (await call(toolbox, "get-tiny-image")).attachments
        assert (image.type, image.media_type) == ("image", "image/png")
        wrong = await call(toolbox, "echo", message=5)
        assert "message: 5 is not of type 'string'" in wrong.content


@asynccontextmanager
async def everything_over(transport: str, command: list[str]) -> AsyncIterator[dict[str, object]]:
    """Yield the server's entry in `mcp.json`. Over HTTP it runs for the block; otherwise the toolbox starts it."""
    if transport == "stdio":
        yield {"command": command[0], "args": [*command[1:], transport]}
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        *command,
        transport,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PORT": str(port)},
    )
    try:
        async with asyncio.timeout(BOUND):
            while b"listening" not in (line := await process.stderr.readline()):
                assert line, "it ended before it listened"
        yield {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"}
    finally:
        process.kill()
        await process.wait()
