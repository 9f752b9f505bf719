"""Whatever happens to a tab or a gateway, the page shows what is true, once (API-5)."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Browser, expect
from temporalio.client import Client

from tests.api.conftest import served
from tests.clients.page.tab import Tab, tabs_of
from tests.clients.page.test_sessions import started
from tests.harness import Environment, Gate, environment, product, says
from tests.processes.forked import ForkedProcess, fork
from tests.restart_ports import restart_port
from tests.waiting import until
from turnkeeper.activities.providers.protocol import Delta
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.settings.settings import Settings
from turnkeeper.workflows import activity_options

ROOT = Path(__file__).parents[3]


async def test_api_5_two_tabs_on_one_session_show_the_same(tab: Tab, clock_tab: Tab, env: Environment) -> None:
    gate = Gate(is_open=False)
    env.vendor.script = [[Delta("respond", "Half of"), gate, says("Half of it, and the rest.")]]
    first, second = tab, clock_tab
    await first.open()
    await first.send("one")
    await expect(first.growing).to_have_text("Half of")
    await second.open(first.session)
    await expect(second.growing).to_have_text("Half of")
    await second.send("two")
    await expect(first.queue).to_contain_text("two")
    await first.send("three")
    await expect(second.queue).to_have_count(2)
    await first.button("Remove: three").click()
    await expect(second.queue).to_have_count(1)
    gate.open()
    for one in (first, second):
        await one.shows(2)
        await one.shows_the_transcript()
    assert await first.shown_turns() == await second.shown_turns()


async def test_api_5_a_reload_in_the_middle_of_an_answer_loses_nothing(tab: Tab, env: Environment) -> None:
    gate = Gate(is_open=False)
    env.vendor.script = [[Delta("respond", "Half of"), gate, says("Half of it, and the rest.")]]
    await tab.open()
    await tab.send("one")
    await expect(tab.growing).to_have_text("Half of")
    await tab.send("two")
    await expect(tab.queue).to_have_count(1)
    await tab.text.fill("three, not yet sent")
    await tab.page.reload()
    await expect(tab.growing).to_have_text("Half of")
    await expect(tab.queue).to_contain_text("two")
    await expect(tab.text).to_have_value("three, not yet sent")
    gate.open()
    await tab.shows(2)
    await tab.shows_the_transcript()


async def test_api_5_an_unsent_prompt_survives_a_reload_and_is_sent_once(tab: Tab, env: Environment) -> None:
    await tab.open()
    await tab.send("one")
    await tab.shows(1)
    tab.may_be_cut_off = True
    # The gateway has done it, but its response is lost: the worst kind of failure.
    await tab.page.route("**/prompt", lambda route: _done_but_not_answered(route))
    await tab.send("two")
    await tab.shows(2)
    await tab.page.unroute_all(behavior="wait")
    await tab.page.route("**/prompt", lambda route: route.abort())
    await tab.send("three")
    await expect(tab.queue).to_contain_text("Not sent: Can't reach the server. Trying again soon.")
    await tab.page.unroute("**/prompt")
    await tab.page.reload()
    await tab.shows(3)
    await tab.shows_the_transcript()


async def test_api_5_a_rejected_prompt_is_shown_after_a_reload_and_not_sent_again(tab: Tab) -> None:
    await tab.open()
    await tab.send("one")
    await tab.shows(1)
    tab.may_be_cut_off = True
    rejected = {"type": "urn:turnkeeper:problem:forbidden", "status": 403, "detail": "Not with this key."}
    await tab.page.route("**/prompt", lambda route: route.fulfill(status=403, json=rejected))
    await tab.send("two")
    await expect(tab.queue).to_contain_text("Not with this key.")
    await tab.page.unroute("**/prompt")
    await tab.page.reload()
    await expect(tab.queue).to_contain_text("Not with this key.")
    await tab.send("three")
    await expect(tab.turns).to_have_count(2)
    await expect(tab.queue).to_have_count(1)
    await expect(tab.queue).to_contain_text("two")
    await tab.shows_the_transcript()


async def _done_but_not_answered(route) -> None:
    await route.fetch()
    await route.abort()


@asynccontextmanager
async def gateway_process(client: Client, env: Environment, port: int) -> AsyncIterator[ForkedProcess]:
    """A gateway in a process of its own, which can be killed; at the end it is."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("TURNKEEPER_")},
        "TEMPORAL_ADDRESS": client.service_client.config.target_host,
        "TURNKEEPER_TASK_QUEUE": env.task_queue,
        "TURNKEEPER_STATE_DIR": str(env.settings.state_dir),
        "TURNKEEPER_API_PORT": str(port),
        "TURNKEEPER_LOG_LEVEL": "error",
    }
    process = await fork("turnkeeper.cli", "api", cwd=ROOT, env=environment)
    try:
        await _answers(port)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _answers(port: int) -> None:
    async with httpx.AsyncClient() as http:

        async def is_up() -> bool:
            try:
                return (await http.get(f"http://127.0.0.1:{port}/healthz")).status_code == 200
            except httpx.TransportError:
                return False

        await until(is_up)


async def test_api_5_a_gateway_killed_in_mid_answer_causes_no_gaps_or_repetitions(
    browser: Browser, temporal: Client
) -> None:
    gate = Gate(is_open=False)
    async with environment(temporal) as env:  # the answer travels by heartbeats: worker and gateway are two processes
        env.vendor.script = [says("first"), [Delta("respond", "Half of"), gate, says("Half of it, and the rest.")]]
        port = restart_port()
        async with tabs_of(browser, f"http://127.0.0.1:{port}") as open_tab:
            async with gateway_process(temporal, env, port) as process:
                tab = await open_tab()
                await tab.open()
                await tab.send("one")
                await tab.shows(1)
                await tab.send("two")
                await expect(tab.growing).to_have_text("Half of")
                tab.may_be_cut_off = True
                process.send_signal(signal.SIGKILL)
                await process.wait()
                await expect(tab.state).to_contain_text("Can't reach the server")
                await tab.send("three")
                await expect(tab.queue).to_contain_text("three")
            async with gateway_process(temporal, env, port):
                await expect(tab.growing).to_have_text("Half of")
                await expect(tab.queue).to_contain_text("three")
                gate.open()
                await tab.shows(3)
                await tab.shows_the_transcript()


async def test_api_5_the_page_reports_a_missing_worker_and_continues_when_one_is_back(
    browser: Browser, temporal: Client
) -> None:
    queue = "left-alone"
    async with environment(temporal, task_queue=queue) as env:
        settings = Settings(task_queue=queue, state_dir=env.settings.state_dir, task_timeout=2)
        async with served(temporal, settings, timeouts=product()) as url, tabs_of(browser, url) as open_tab:
            tab = await open_tab()
            tab.may_be_cut_off = True
            await tab.open()
            await tab.send("one")
            await tab.shows(1)
            await env.worker.shutdown()
            await tab.send("two")
            await expect(tab.state).to_contain_text("No worker is running")
            await expect(tab.log.get_by_text("two", exact=True)).to_have_count(1)
            async with environment(temporal, task_queue=queue):
                await tab.shows(2)
                await expect(tab.state).to_have_text("")
                await tab.shows_the_transcript()


async def test_ses_15_without_a_worker_the_page_shows_the_archived_turns(
    browser: Browser, temporal: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity_options, "IDLE_PAUSE", timedelta(seconds=0.1))
    queue = "left-later"
    async with environment(temporal, task_queue=queue) as env:
        settings = Settings(task_queue=queue, state_dir=env.settings.state_dir, task_timeout=2)
        async with served(temporal, settings, timeouts=product()) as url, tabs_of(browser, url) as open_tab:
            session = await started(url, "one")
            await until(lambda: env.stores.archive.count(WorkflowId(session)))
            await env.worker.shutdown()
            tab = await open_tab()
            tab.may_be_cut_off = True
            await tab.open(session)
            await tab.shows(1)
            await expect(tab.state).to_contain_text("no worker is running")
            await expect(tab.state).to_contain_text("As of ")
            async with environment(temporal, task_queue=queue):
                await expect(tab.state).to_have_text("")
                await tab.send("two")
                await tab.shows(2)


async def test_api_5_an_unknown_session_is_shown_as_not_found(tab: Tab) -> None:
    tab.may_be_cut_off = True  # the browser notes the 404
    await tab.open("never-started")
    await expect(tab.state).to_contain_text("This session doesn't exist or was deleted.")
    await expect(tab.page.locator("#session-title")).to_have_text("Session not found")
    await expect(tab.page.locator("#session-actions")).to_be_hidden()
    await expect(tab.text).to_be_disabled()
    await expect(tab.log).to_contain_text("It was deleted, or the link is wrong.")
    await tab.log.get_by_role("link", name="New session").click()
    await expect(tab.log).not_to_contain_text("It was deleted", use_inner_text=True)
    await expect(tab.page.locator("#session-title")).to_have_text("New session")
    await expect(tab.page).to_have_url(f"{tab.url}/")
    await tab.send("Hi")
    await tab.shows(1)


async def test_api_5_unreadable_and_stuck_sessions_are_not_shown_as_new(tab: Tab, env: Environment) -> None:
    session = await started(tab.url, "one")
    tab.may_be_cut_off = True
    await tab.page.route(f"**/workflow/{session}**", lambda route: route.abort())
    await tab.open(session)
    await expect(tab.state).to_contain_text("Can't reach the server")
    await expect(tab.page.locator("#session-title")).to_have_text(session)
    stuck = {"type": "urn:turnkeeper:problem:session-stuck", "status": 504, "detail": "It is stuck."}
    await tab.page.unroute(f"**/workflow/{session}**")
    await tab.page.route("**/conversation/full*", lambda route: route.fulfill(status=504, json=stuck))
    await expect(tab.state).to_contain_text("This session is stuck")
    await tab.page.unroute("**/conversation/full*")
    await tab.shows(1)
    await expect(tab.page.locator("#session-title")).to_have_text("one")
