"""The page before a gateway that needs a key (API-4, API-5)."""

import json
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from httpx import AsyncClient
from playwright.async_api import Browser, expect
from temporalio.client import Client

from tests.api.conftest import served
from tests.clients.conftest import gateway_settings
from tests.clients.page.tab import Tab
from tests.features.access.auth.matrix import Column, key_of
from tests.harness import Environment, asks, says
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.features.access.tables import ApiKeys, Logins
from turnkeeper.models.http_responses import ROLES
from turnkeeper.models.settings.settings import AuthSettings, Settings
from turnkeeper.stores.database.database import StoreUnavailableError
from turnkeeper.stores.stores import Stores


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path, task_queue="nobody", auth={"keys": True})


@pytest.fixture
async def locked_tab(browser: Browser, temporal: Client, settings: Settings, timeouts: Timeouts) -> AsyncIterator[Tab]:
    """A tab at a gateway that needs a key, behind which no worker is."""
    async with served(temporal, settings, timeouts=timeouts) as url:
        context = await browser.new_context()
        tab = await Tab.opened(context, url)
        tab.may_be_cut_off = True  # the browser logs each 401
        yield tab
        await tab.check()
        await context.close()


async def test_api_4_the_page_logs_in_with_a_key_shows_the_user_and_logs_out(
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
        await ApiKeys(stores.database).revoke(key.split("_")[1], now=datetime.now(UTC))
    await page.get_by_label("Search sessions").fill("after the key was revoked")
    await expect(dialog).to_be_visible()


async def test_api_4_drafts_of_another_user_of_the_tab_are_neither_shown_nor_sent(
    locked_tab: Tab, settings: Settings, timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "lookup_cache", 0.0)
    ann, bob = [await key_of(settings, Column(name, "writer")) for name in ("Ann", "Bob")]
    page = locked_tab.page
    key_field = page.get_by_label("Key", exact=True)
    prompts: list[str] = []
    page.on("request", lambda request: prompts.append(request.post_data) if request.url.endswith("/prompt") else None)
    async with AsyncClient(base_url=locked_tab.url, headers={"Authorization": f"Bearer {ann}"}) as http:
        session = (await http.post("/workflow")).json()["workflow_id"]
    await locked_tab.load()
    await key_field.fill(ann)
    await key_field.press("Enter")
    await expect(page.locator("#me")).to_have_text("Ann · writer")
    await locked_tab.text.fill("a draft of Ann")
    await page.reload()
    await expect(locked_tab.text).to_have_value("a draft of Ann")
    await locked_tab.load(session)
    await expect(page.locator("#me")).to_have_text("Ann · writer")
    await locked_tab.text.fill("from Ann")
    async with Stores.of(settings) as stores:
        await ApiKeys(stores.database).revoke(ann.split("_")[1], now=datetime.now(UTC))
    await locked_tab.text.press("Enter")  # at once: from now on the page's own requests are rejected, too
    await expect(page.get_by_role("dialog", name="Log in")).to_be_visible()
    await expect(page.locator("#queue-list > li")).to_have_count(1)
    await key_field.fill(bob)
    await key_field.press("Enter")
    await expect(page.locator("#me")).to_have_text("Bob · writer")
    async with page.expect_request("**/prompt"):
        await locked_tab.send("from Bob")
    assert [json.loads(prompt)["message"] for prompt in prompts] == ["from Ann", "from Bob"]
    await locked_tab.load()
    await expect(page.locator("#me")).to_have_text("Bob · writer")
    await expect(locked_tab.text).to_have_value("")
    await locked_tab.text.fill("a draft of Bob")
    await locked_tab.button("Log out").click()
    await expect(page.get_by_role("dialog", name="Log in")).to_be_visible()
    assert await page.evaluate("Object.keys(sessionStorage)") == []


async def test_api_4_the_page_is_logged_out_while_the_store_is_down(
    locked_tab: Tab, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise StoreUnavailableError("The store is down.")

    page = locked_tab.page
    key = await key_of(settings, Column("Rob", "writer"))
    await page.context.request.post(f"{locked_tab.url}/login", data={"key": key})
    await locked_tab.load()
    await expect(page.locator("#me")).to_have_text("Rob · writer")
    await locked_tab.text.fill("a draft of Rob")
    monkeypatch.setattr(Logins, "delete", fail)
    await locked_tab.button("Log out").click()
    await expect(page.get_by_role("dialog", name="Log in")).to_be_visible()
    assert await page.evaluate("Object.keys(sessionStorage)") == []


async def test_api_5_a_reader_skips_to_the_conversation(locked_tab: Tab, settings: Settings) -> None:
    page = locked_tab.page
    await page.context.request.post(
        f"{locked_tab.url}/login", data={"key": await key_of(settings, Column("Rob", "reader"))}
    )
    await locked_tab.load()
    await expect(page.locator("#me")).to_have_text("Rob · reader")
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="Skip to the conversation")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(locked_tab.log).to_be_focused()


async def test_api_4_the_page_offers_only_actions_that_the_role_allows(
    browser: Browser, temporal: Client, env: Environment
) -> None:
    settings = gateway_settings(env).model_copy(update={"auth": AuthSettings(keys=True)})
    env.vendor.script = [asks(("pay", {"amount": 12})), says("Paid.")]
    async with served(temporal, settings, partials=env.partials) as url:
        key_by_role = {role: await key_of(settings, Column(role, role)) for role in ROLES}
        async with AsyncClient(base_url=url, headers={"Authorization": f"Bearer {key_by_role['approver']}"}) as http:
            session = (await http.post("/workflow", json={"tool_policy": {"pay": "ask"}})).json()["workflow_id"]
            await http.post(f"/workflow/{session}/prompt", json={"message": "Pay"})
        context = await browser.new_context()
        tab = await Tab.opened(context, url)
        for role, may_write, may_decide in (
            ("reader", False, False),
            ("writer", True, False),
            ("approver", True, True),
        ):
            await context.request.post(f"{url}/login", data={"key": key_by_role[role]})
            await tab.load(session)
            await expect(tab.page.locator(".approval")).to_be_visible()
            await expect(tab.page.locator("#me")).to_have_text(f"{role} · {role}")
            await expect(tab.text).to_be_visible(visible=may_write)
            await expect(tab.page.locator("#new-session")).to_be_visible(visible=may_write)
            await expect(tab.page.locator("#read-only")).to_be_visible(visible=not may_write)
            await expect(tab.button("Approve")).to_be_visible(visible=may_decide)
            await expect(tab.page.get_by_text("approver role decides")).to_be_visible(visible=not may_decide)
            if not may_write:
                await tab.page.keyboard.press("Escape")
            await expect(tab.notice).to_be_hidden()
        await tab.button("Approve").click()
        await tab.shows(1)
        await expect(tab.tools).to_contain_text("Approved by approver.")
        await expect(tab.tools.locator("time")).to_have_text(re.compile(r"^\d\d:\d\d"))
        await tab.check()
        await context.close()
