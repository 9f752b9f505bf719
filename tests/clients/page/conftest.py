"""A real browser and a real gateway: what users see and do, and what must never happen."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from playwright.async_api import Browser, async_playwright

from tests.clients.page.tab import Tab

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


@pytest.fixture(scope="session")
async def shared_tab(browser: Browser, shared_url: str) -> AsyncIterator[Tab]:
    context = await browser.new_context()
    yield await Tab.opened(context, shared_url)
    await context.close()


@pytest.fixture
async def tab(shared_tab: Tab, url: str) -> AsyncIterator[Tab]:
    """A tab at the gateway's address: shared by all tests, and reset between them."""
    async with reset_after(shared_tab):
        yield shared_tab


@pytest.fixture(scope="session")
async def shared_clock_tab(browser: Browser, shared_url: str) -> AsyncIterator[Tab]:
    context = await browser.new_context()
    await context.clock.install()
    yield await Tab.opened(context, shared_url)
    await context.close()


@pytest.fixture
async def clock_tab(shared_clock_tab: Tab, url: str) -> AsyncIterator[Tab]:
    """A tab of another user, whose clock a test can advance."""
    async with reset_after(shared_clock_tab):
        yield shared_clock_tab


@asynccontextmanager
async def reset_after(tab: Tab) -> AsyncIterator[None]:
    """Let a test use the tab; check what happened in it, and reset it."""
    try:
        yield
        await tab.check()
    finally:
        await tab.forget()
