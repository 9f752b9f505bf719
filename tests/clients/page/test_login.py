"""The page before a gateway that needs a key (API-4, API-5)."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect
from temporalio.client import Client

from tests.api.auth.matrix import Column, key_of
from tests.api.conftest import served
from tests.clients.page.tab import Tab
from turnkeeper.models.settings.settings import Settings
from turnkeeper.stores.stores import Stores


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path, task_queue="nobody", auth={"keys": True})


@pytest.fixture
async def locked_tab(browser: Browser, temporal: Client, settings: Settings) -> AsyncIterator[Tab]:
    """A tab at a gateway that needs a key, behind which no worker is."""
    async with served(temporal, settings) as url:
        context = await browser.new_context()
        tab = await Tab.opened(context, url)
        tab.may_be_cut_off = True  # the browser logs each 401
        yield tab
        await tab.check()
        await context.close()


async def test_api_4_the_page_asks_for_a_key_says_who_one_is_and_forgets_the_key(
    locked_tab: Tab, settings: Settings
) -> None:
    key = await key_of(settings, Column("Rob", "reader"))
    page = locked_tab.page
    dialog = page.get_by_role("dialog", name="Log in")
    await locked_tab.load()
    await expect(dialog).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(dialog).to_be_visible()
    key_field = page.get_by_label("Key", exact=True)
    await key_field.fill("tk_wrong")
    await key_field.press("Enter")
    await expect(dialog.get_by_role("alert")).to_contain_text("not valid")
    await key_field.fill(key)
    await key_field.press("Enter")
    await expect(page.locator("#me")).to_have_text("Rob · reader")
    await expect(dialog).to_be_hidden()
    assert await page.evaluate("document.cookie") == ""
    assert key not in await page.content()
    await locked_tab.button("Log out").click()
    await expect(dialog).to_be_visible()
    await key_field.fill(key)
    await key_field.press("Enter")
    await expect(page.locator("#me")).to_have_text("Rob · reader")
    async with Stores.of(settings) as stores:
        await stores.api_keys.revoke(key.split("_")[1], now=datetime.now(UTC))
    await page.get_by_label("Search sessions").fill("after the key was revoked")
    await expect(dialog).to_be_visible()
