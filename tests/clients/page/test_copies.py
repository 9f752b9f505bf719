"""The page's exports and forks (SES-18, API-5)."""

import re

import httpx
from playwright.async_api import FilePayload, expect

from tests.clients.page.tab import Tab, http_client
from tests.clients.page.test_sessions import started


async def test_ses_18_the_page_exports_a_session_and_forks_it_at_a_turn(tab: Tab) -> None:
    session = await started(tab.url, "first question", "second question", title="Rome")
    await tab.open(session)
    await expect(tab.turns).to_have_count(2)
    await tab.page.get_by_role("button", name="More about this session").click()
    async with httpx.AsyncClient(base_url=tab.url) as http:
        for name, media_type in (("Export", "application/json"), ("Export as Markdown", "text/markdown")):
            link = tab.page.get_by_role("link", name=name, exact=True)
            answer = await http.get(await link.get_attribute("href") or "")
            assert answer.headers["content-type"].partition(";")[0] == media_type
            assert "first question" in answer.text
    await tab.page.keyboard.press("Escape")

    first = tab.turns.filter(has_text="first question")
    await first.get_by_role("button", name="Fork from here").click()
    await expect(tab.turns).to_have_count(1)
    await expect(tab.page.locator("#session-title")).to_have_text("Rome (fork)")
    assert re.search(r"session=(?!" + session + r")", tab.page.url)


async def test_ses_18_the_page_imports_an_exported_session(tab: Tab) -> None:
    session = await started(tab.url, "first question", title="Rome")
    async with http_client(tab.url) as http:
        document = (await http.get(f"/workflow/{session}/export")).content
    await tab.open()
    chooser = tab.page.locator("#import-input")
    damaged: FilePayload = {"name": "rome.json", "mimeType": "application/json", "buffer": document[:-9]}
    tab.may_be_cut_off = True  # the browser logs the 422
    await chooser.set_input_files(damaged)
    await expect(tab.notice).to_contain_text("is not valid JSON")
    async with tab.page.expect_file_chooser() as choosing:
        await tab.button("Import an exported session…").click()
    await (await choosing.value).set_files({**damaged, "buffer": document})
    await expect(tab.turns).to_have_count(1)
    await expect(tab.turns).to_contain_text("first question")
    await expect(tab.page.locator("#session-title")).to_have_text("Rome")
    assert tab.session != session
