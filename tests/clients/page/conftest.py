"""A real browser before a real gateway: what a person sees and does, and what must never happen meanwhile."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from playwright.async_api import Browser, async_playwright
from temporalio.client import Client

from tests.api.conftest import served
from tests.clients.page.tab import Tab, tabs_of
from tests.harness import Stage, stage
from turnkeeper.models.settings.settings import Settings
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


@pytest.fixture
async def on(temporal: Client) -> AsyncIterator[Stage]:
    async with stage(temporal, partials=InProcessCarrier()) as staged:
        yield staged


@pytest.fixture
async def url(temporal: Client, on: Stage) -> AsyncIterator[str]:
    """Where the gateway listens, with a worker behind it in the same process."""
    settings = Settings(task_queue=on.task_queue, state_dir=on.settings.state_dir, task_timeout=2)
    async with served(temporal, settings, partials=on.partials) as url:
        yield url


@pytest.fixture
async def tab(browser: Browser, url: str) -> AsyncIterator[Tab]:
    """A tab at the gateway's address, and nothing else open."""
    async with tabs_of(browser, url) as open_tab:
        yield await open_tab()
