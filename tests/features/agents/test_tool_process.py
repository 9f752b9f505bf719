"""Own tools in a process of their own: what each does to its call, and to nobody else's (AGN-3, AGT-7)."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.waiting import BOUND, until
from turnkeeper.activities.toolbox.toolbox import Toolbox
from turnkeeper.features.agents.versions import AgentVersions
from turnkeeper.features.agents.worker import WORKER, tool_server
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.transcript.conversation import ToolResult
from turnkeeper.models.transcript.model_call import ToolInvocation
from turnkeeper.stores.stores import Stores

SHOP = """
    import asyncio, os, subprocess
    from pathlib import Path
    from pydantic import BaseModel
    from turnkeeper.features.agents.agent import Agent
    from turnkeeper.features.agents.tool import Image, ToolContext, ToolError, tool

    class Order(BaseModel):
        number: str
        price: float = 9.5

    @tool(effect="read")
    async def find(number: str) -> Order:
        "Find an order."
        return Order(number=number)

    @tool(effect="read")
    def words() -> str:
        "Return a text."
        print("printed")
        subprocess.run(["echo", "printed by a program"])
        return "some words"

    @tool(effect="read")
    def nothing() -> None:
        "Return nothing."

    @tool(effect="read")
    def picture() -> Image:
        "Return an image."
        return Image(b"\\x89PNG\\r\\n\\x1a\\n" + b"0" * 20)

    @tool(effect="read")
    def large() -> str:
        "Return 5 MB."
        return "x" * 5_000_000

    @tool(effect="read")
    def hungry() -> str:
        "Need 2 GB."
        return str(len(bytearray(2_000_000_000)))

    @tool(effect="at_most_once")
    def refuse() -> str:
        "Refuse."
        raise ToolError("The shop is closed on Sundays.")

    @tool(effect="read")
    def broken() -> str:
        "Raise."
        return {}["price"]

    @tool(effect="read")
    def odd() -> object:
        "Return what has no JSON form."
        return object()

    @tool(effect="at_most_once")
    def exit_now() -> str:
        "End the process."
        os._exit(1)

    @tool(effect="read")
    def who(context: ToolContext) -> dict:
        "Say for whom the call runs."
        fields = "session_id", "turn", "call_id", "agent", "user", "tenant"
        return {**{name: getattr(context, name) for name in fields}, "folder": context.workspace.name}

    @tool(effect="read")
    def block(marker: str) -> str:
        "Block until the test lets it go."
        Path(marker + ".begun").touch()
        Path(marker).read_text()  # a pipe: until somebody has written to it
        return "done"

    @tool(effect="read", timeout=0.05)
    async def late() -> str:
        "Never end."
        await asyncio.Event().wait()

    @tool(effect="read")
    async def slow(context: ToolContext) -> str:
        "Report progress."
        context.progress(40, "four of ten")
        return "done"

    agent = Agent("shop", instructions="Sell.", tools=[find, words, nothing, picture, large, hungry, refuse])
    other = Agent("other", instructions="Break.", tools=[broken, odd, exit_now, who, block, late, slow])
"""


@pytest.fixture
async def toolbox(tmp_path: Path) -> AsyncIterator[Toolbox]:
    file = tmp_path / "shop.py"
    file.write_text(dedent(SHOP))
    settings = Settings(state_dir=tmp_path / "state", workspace_root=tmp_path / "files", agents=file)
    async with Toolbox([tool_server(file, settings)]) as toolbox:
        await until(lambda: are_listed(toolbox))
        yield toolbox


async def are_listed(toolbox: Toolbox) -> bool:
    return not (await toolbox.list_tools()).unread


async def call(toolbox: Toolbox, name: str, *, on_progress: Any = None, **args: object) -> ToolResult:
    invocation = ToolInvocation(
        session_id="acme:s-1", call_id="3.2.0", name=name, args=args, user="anna", agent="shop@2", workspace="a"
    )
    async with asyncio.timeout(BOUND):
        return await toolbox.call(invocation, on_progress=on_progress)


@pytest.mark.parametrize(
    ("name", "status", "text"),
    [
        ("words", "ok", "some words"),
        ("nothing", "ok", "returned nothing"),
        ("hungry", "error", "needed more memory"),
        ("refuse", "error", "The shop is closed on Sundays."),
        ("broken", "error", "broken raised KeyError: 'price'"),
        ("odd", "error", "has no JSON form"),
        ("late", "error", "late took too long"),
    ],
)
async def test_agn_3_the_model_reads_what_a_tool_returned_or_raised(
    toolbox: Toolbox, name: str, status: str, text: str
) -> None:
    result = await call(toolbox, name)
    assert (result.status, text in f"{result.outcome}\n{result.content}") == (status, True), result


async def test_agn_3_a_model_image_and_long_text_are_results(toolbox: Toolbox) -> None:
    order, picture, large = [await call(toolbox, name, **args) for name, args in RESULTS]
    assert (order.status, order.outcome) == ("ok", '{"number": "A-1", "price": 9.5}')
    assert [one.media_type for one in picture.attachments] == ["image/png"]
    assert large.status == "ok"
    assert len(large.content) < 100_000


RESULTS: list[tuple[str, dict[str, object]]] = [("find", {"number": "A-1"}), ("picture", {}), ("large", {})]


async def test_agn_3_wrong_arguments_are_a_result_and_the_tool_does_not_run(toolbox: Toolbox) -> None:
    result = await call(toolbox, "find", numbr="A-1")
    assert result.status == "error"
    assert "numbr" in result.content


async def test_agn_3_a_tool_knows_for_whom_it_runs(toolbox: Toolbox) -> None:
    result = await call(toolbox, "who")
    assert result.outcome == (
        '{"session_id": "s-1", "turn": 3, "call_id": "acme:s-1/3.2.0", "agent": "shop@2", "user": "anna", '
        '"tenant": "acme", "folder": "a"}'
    )


async def test_agn_3_a_process_that_ends_is_started_again(toolbox: Toolbox) -> None:
    ended = await call(toolbox, "exit_now")
    assert ended.status == "outcome_unknown"
    assert (await call(toolbox, "find", number="A-2")).status == "ok"


async def test_agn_3_a_tool_that_blocks_delays_no_other_call(toolbox: Toolbox, tmp_path: Path) -> None:
    os.mkfifo(marker := tmp_path / "marker")
    blocked = asyncio.create_task(call(toolbox, "block", marker=str(marker)))
    await until((tmp_path / "marker.begun").exists)
    assert (await call(toolbox, "find", number="A-3")).status == "ok"
    marker.write_text("go")
    assert (await blocked).outcome == "done"


async def test_agn_3_progress_reaches_the_session(toolbox: Toolbox) -> None:
    reports: list[object] = []
    result = await call(toolbox, "slow", on_progress=lambda *report: reports.append(report))
    assert result.outcome == "done"
    await until(lambda: reports == [(40, 100, "four of ten")])


async def test_agn_1_a_saved_file_serves_new_calls_and_running_ones_end(tmp_path: Path) -> None:
    code = """
        from pathlib import Path
        from turnkeeper import Agent, tool

        @tool(effect="read")
        def wait(marker: str) -> str:
            "Wait until the test lets it go."
            Path(marker + ".begun").touch()
            Path(marker).read_text()
            return "old"

        agent = Agent("waiter", instructions="Wait.", tools=[wait])
    """
    (file := tmp_path / "waiter.py").write_text(dedent(code))
    os.mkfifo(marker := tmp_path / "marker")
    settings = Settings(state_dir=tmp_path / "state", workspace_root=tmp_path, agents=file, agents_reload=True)
    stores = Stores.of(settings)
    async with stores, Toolbox([tool_server(file, settings)]) as toolbox:
        running = asyncio.create_task(call(toolbox, "wait", marker=str(marker)))
        await until((tmp_path / "marker.begun").exists)
        async with WORKER.running(settings, stores, toolbox):
            versions = AgentVersions(stores.database)
            await until(lambda: versions.find("waiter"))
            file.write_text("broken(")
            await until(lambda: toolbox.problems.get("waiter"))
            assert "SyntaxError" in toolbox.problems["waiter"]
            new = dedent(code).replace('"Wait."', '"Wait a bit."').replace("Path(marker).read_text()", "")
            file.write_text(new.replace('return "old"', 'return "new"'))
            await until(lambda: versions.find("waiter", 2))
            assert toolbox.problems == {}
            assert (await call(toolbox, "wait", marker=str(marker))).outcome == "new"
            marker.write_text("go")
            assert (await running).outcome == "old"
