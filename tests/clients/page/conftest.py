"""A real browser before a real gateway: what a person sees and does, and what must never happen meanwhile."""

import shutil
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from playwright.async_api import Browser, async_playwright
from temporalio.client import Client

from tests.api.conftest import served
from tests.clients.page.tab import Tab, tabs_of
from tests.harness import Environment, Tools, Vendor, environment
from turnkeeper.activities.providers.protocol import CallInfo, Delta, Provider
from turnkeeper.models.transcript.model_call import ModelRequest, ModelResponse, ToolInvocation, ToolList
from turnkeeper.models.transcript.trajectory import ToolResult
from turnkeeper.stores.partials.in_process import InProcessCarrier

CHROMIUM = (
    shutil.which("chromium-headless-shell")
    or shutil.which("chromium")
    or shutil.which("chromium-browser")
    or shutil.which("google-chrome")
)
"""The headless shell comes first: the same engine without a browser's windows, at half the processor time."""


@asynccontextmanager
async def launched(*arguments: str) -> AsyncIterator[Browser]:
    """A headless Chromium, as the machine has it; without one, these tests are skipped."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", *arguments]
        )
        yield browser
        await browser.close()


@pytest.fixture(scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with launched() as browser:
        yield browser


class Vendors:
    """Leads each session to the vendor and the tools of the test that it belongs to: one worker serves all tests."""

    def __init__(self) -> None:
        self.newest: Environment | None = None
        self._by_session: dict[str, Environment] = {}

    def resolve(self, model: str) -> tuple[Provider, str]:
        return self, model

    def stream(self, name: str, request: ModelRequest, info: CallInfo) -> AsyncGenerator[Delta | ModelResponse, None]:
        return self._of(info.session_id).vendor.stream(name, request, info)

    async def list_tools(self) -> ToolList:
        assert self.newest is not None
        return await self.newest.tools.list_tools()

    async def call(self, invocation: ToolInvocation) -> ToolResult:
        return await self._of(invocation.session_id).tools.call(invocation)

    def _of(self, session: str) -> Environment:
        assert self.newest is not None
        return self._by_session.setdefault(session, self.newest)


@pytest.fixture(scope="package")
def vendors() -> Vendors:
    return Vendors()


@pytest.fixture(scope="package")
async def shared_worker(temporal: Client, vendors: Vendors) -> AsyncIterator[Environment]:
    carrier = InProcessCarrier()
    async with environment(temporal, providers=vendors, toolbox=vendors, partials=carrier, model="offline:") as env:
        yield env


@pytest.fixture
async def env(shared_worker: Environment, vendors: Vendors) -> AsyncIterator[Environment]:
    """The worker of all tests of the page, with a vendor and tools of this test's own."""
    vendors.newest = env = replace(shared_worker, vendor=Vendor(), tools=Tools(), sessions=[])
    yield env
    for session in env.sessions:
        await session.watches.close()


@pytest.fixture(scope="package")
async def shared_url(temporal: Client, shared_worker: Environment) -> AsyncIterator[str]:
    """Where the gateway listens, with a worker behind it in the same process."""
    settings = shared_worker.settings.model_copy(update={"task_timeout": 2})
    async with served(temporal, settings, partials=shared_worker.partials) as url:
        yield url


@pytest.fixture
async def url(shared_url: str, env: Environment) -> str:
    return shared_url


@pytest.fixture(scope="package")
async def shared_tab(browser: Browser, shared_url: str) -> AsyncIterator[Tab]:
    context = await browser.new_context()
    yield await Tab.opened(context, shared_url)
    await context.close()


@pytest.fixture
async def tab(shared_tab: Tab, url: str) -> AsyncIterator[Tab]:
    """A tab at the gateway's address: the same for all tests, and nothing of the test before is left in it."""
    try:
        yield shared_tab
        await shared_tab.check()
    finally:
        await shared_tab.forget()


@pytest.fixture
async def own_tab(browser: Browser, url: str) -> AsyncIterator[Tab]:
    """A tab of this test's own, for what a tab keeps: a clock in the test's hands, for one."""
    async with tabs_of(browser, url) as open_tab:
        yield await open_tab()
