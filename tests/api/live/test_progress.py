"""The progress of running tools, from a real MCP server to the watchers: AGT-7."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.live.watching import Watcher, idle_after
from tests.harness import BOUND, UNASKED, DrivenSession, Environment, asks, says
from tests.servers import odd
from tests.servers.from_registries import everything_server
from turnkeeper.activities.toolbox.toolbox import Toolbox, build_toolbox
from turnkeeper.activities.tools import MIN_PAUSE_SECONDS
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.transcript.conversation import ModelStep, ToolResult

ODD = {"command": sys.executable, "args": ["-I", str(Path(odd.__file__))]}

ODD_REPORTS = {
    '"progress": 1' + "0" * 400 + ', "total": 12, "message": "far"': "9.22337203685e+18 of 12 (100 %) · far",
    '"progress": 1e999, "total": 12, "message": "endless"': "0 of 12 (0 %) · endless",
    '"progress": NaN, "total": NaN, "message": "nothing"': "nothing",
    '"progress": -3, "total": 12': "-3 of 12 (0 %)",
    '"progress": 40, "total": 12': "40 of 12 (100 %)",
    '"progress": 3, "total": 0': "3",
    '"progress": 1, "message": "a\\nb\\u202ec\\u200b<b>d</b>\\ud800"': "a b<U+202E>c<U+200B><b>d</b>\ufffd",
    f'"progress": 1, "message": "{"long " * 10_000}"': "long " * 39 + "long…",
}
"""The progress that servers report, and the text that is shown."""


@pytest.fixture
async def http(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=url, timeout=BOUND) as client:
        yield client


async def started(
    env: Environment, folder: Path, server: dict[str, Any] | None = None
) -> tuple[Toolbox, DrivenSession]:
    """Return a toolbox with a foreign server, whose tools the environment offers, and a session."""
    file = folder / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"a": {**(server or ODD), "cwd": str(folder)}}}))
    toolbox = build_toolbox(Settings(mcp_config=file, state_dir=folder / "state"))
    env.tools.specs = [spec for spec in (await toolbox.list_tools()).tools if not spec.built_in]
    env.tools.foreign = toolbox
    return toolbox, await env.start(UNASKED)


def reporting(*reports: str, until: str = "done", times: int = 1) -> tuple[str, dict[str, Any]]:
    """Return a call that sends reports, and ends once there is a file."""
    return ("report", {"reports": list(reports), "until": until, "times": times})


def progress_of(watcher: Watcher) -> list[tuple[str, str]]:
    """Return the progress that a watcher was sent, as call id and text."""
    return [(event.data["call_id"], event.data["text"]) for event in watcher.events if event.event == "progress"]


def results_of(watcher: Watcher) -> list[ToolResult | None]:
    """Return the results of the calls in a watcher's transcript."""
    steps = [step for turn in watcher.copy.turns for step in turn.steps if isinstance(step, ModelStep)]
    return [call.result for step in steps for call in step.tool_calls]


async def test_agt_7_parallel_calls_show_their_own_progress_until_they_end(
    http: httpx.AsyncClient, env: Environment, tmp_path: Path
) -> None:
    """F10: the progress of a tool is not shown."""
    reports = [
        f'"progress": {done}, "total": 12, "message": "{verb} page NUMBER"'
        for done, verb in ((3, "Read"), (4, "Write"))
    ]
    env.vendor.script = [asks(reporting(reports[0], until="one"), reporting(reports[1], until="other")), says("Done.")]
    toolbox, session = await started(env, tmp_path)
    reading, writing = ("1.1.0", "3 of 12 (25 %) · Read page 0"), ("1.1.1", "4 of 12 (33 %) · Write page 0")
    watcher, late = Watcher(http, session.handle.id), Watcher(http, session.handle.id)
    async with toolbox, watcher.stream() as events:
        await session.prompt("read")
        await watcher.until_in(events, lambda so_far: {*progress_of(so_far)} == {reading, writing})
        await late.until(lambda so_far: {*progress_of(so_far)} == {reading, writing})
        assert late.last_event_id
        returning = Watcher(http, session.handle.id)
        returning.copy.turns, returning.last_event_id = late.copy.turns, late.last_event_id
        await returning.until(lambda so_far: {*progress_of(so_far)} == {reading, writing})
        (tmp_path / "one").touch()
        await watcher.until_in(events, lambda so_far: results_of(so_far)[0] is not None)
        # A new watcher sees only the call that still runs.
        last = await Watcher(http, session.handle.id).until(lambda so_far: bool(progress_of(so_far)))
        assert progress_of(last) == [writing]
        (tmp_path / "other").touch()
        await watcher.until_in(events, idle_after(1))
    assert len(progress_of(watcher)) == 2, "what is published again is not sent again"
    progress = next(event for event in watcher.events if event.event == "progress")
    assert progress.data.keys() == {"call_id", "progress", "total", "message", "text"}
    (history,) = await session.histories()
    assert "page NUMBER" in str(history.events)
    assert "page 0" not in str(history.events), "it is recorded"


async def test_agt_7_unusual_progress_values_are_shown_safely(
    http: httpx.AsyncClient, env: Environment, tmp_path: Path
) -> None:
    env.vendor.script = [asks(*(reporting(report) for report in ODD_REPORTS)), says("Done.")]
    toolbox, session = await started(env, tmp_path)
    watcher = Watcher(http, session.handle.id)
    async with toolbox, watcher.stream() as events:
        await session.prompt("go")
        await watcher.until_in(events, lambda so_far: len(progress_of(so_far)) == len(ODD_REPORTS))
        (tmp_path / "done").touch()
        await watcher.until_in(events, idle_after(1))
    assert [text for _, text in sorted(progress_of(watcher))] == list(ODD_REPORTS.values())
    assert {result and result.outcome for result in results_of(watcher)} == {"reported"}


async def test_agt_7_a_flood_of_progress_costs_four_events_a_second(
    http: httpx.AsyncClient, env: Environment, tmp_path: Path
) -> None:
    count = 20_000
    env.vendor.script = [asks(reporting('"progress": NUMBER, "total": 20000', times=count)), says("Done.")]
    toolbox, session = await started(env, tmp_path)
    watcher, clock = Watcher(http, session.handle.id), asyncio.get_running_loop().time
    async with toolbox, watcher.stream() as events:
        started_at = clock()
        await session.prompt("go")
        await watcher.until_in(events, lambda so_far: f"{count - 1:,} of 20,000" in str(progress_of(so_far)[-1:]))
        (tmp_path / "done").touch()
        await watcher.until_in(events, idle_after(1))
    assert len(progress_of(watcher)) <= 2 + (clock() - started_at) / MIN_PAUSE_SECONDS
    assert watcher.answers == ["Done."]


@pytest.mark.timeout(3 * BOUND)
async def test_agt_7_progress_of_the_mcp_everything_server_is_shown(
    http: httpx.AsyncClient, env: Environment, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    assert request.config.cache
    command, *args = everything_server(request.config.cache)
    env.vendor.script = [asks(("trigger-long-running-operation", {"duration": 2, "steps": 2})), says("Done.")]
    toolbox, session = await started(env, tmp_path, {"command": command, "args": [*args, "stdio"]})
    watcher = Watcher(http, session.handle.id)
    async with toolbox, watcher.stream() as events:
        await session.prompt("go")
        await watcher.until_in(events, idle_after(1))
    assert progress_of(watcher)[0] == ("1.1.0", "1 of 2 (50 %)")
