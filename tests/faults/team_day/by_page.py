"""A person who works on the page, in a browser with a cookie of their own."""

import asyncio
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from playwright.async_api import Browser, Page, expect
from playwright.async_api import Error as PageError

from tests.faults.team_day.evidence import Evidence
from tests.faults.team_day.people import Person, Tenant

ANSWER_MS = 60_000


@dataclass
class PagePerson:
    """Logs in, then sends one prompt after the other, each to a new session."""

    person: Person
    tenant: Tenant
    url: str
    browser: Browser
    evidence: Evidence

    async def run(self, over: asyncio.Event) -> None:
        context = await self.browser.new_context()
        page = await context.new_page()
        try:
            while not over.is_set() and not self.person.is_leaving:
                key = self.person.key
                try:
                    await self._prompt(page)
                    self.evidence.count("page", "prompt", "answered")
                except (PageError, AssertionError) as error:
                    # While the gateway restarts, and after the key was rotated.
                    self.evidence.count("page", "prompt", "no answer" if key == self.person.key else "key rotated")
                    self.evidence.events.append(f"{self.person.name} on the page: {str(error).splitlines()[0][:200]}")
        finally:
            await context.close()

    async def _prompt(self, page: Page) -> None:
        await page.goto(self.url)
        await self._log_in_if_asked(page)
        # Also what the list of sessions shows.
        self.evidence.check_text(self.person, await page.inner_text("body"), "the page")
        await page.get_by_label("Your prompt").fill(f"what time is it? {self.tenant.word}")
        await page.get_by_label("Your prompt").press("Enter")
        await page.wait_for_url(lambda url: "session=" in url, timeout=ANSWER_MS)
        session = parse_qs(urlsplit(page.url).query)["session"][0]
        for action in ("start", "prompt"):
            self.evidence.doubt(self.person, action, session)
        await expect(page.locator("#turns .prose:not(.plain)").first).to_be_visible(timeout=ANSWER_MS)
        self.tenant.sessions.append(session)
        self.evidence.check_text(self.person, await page.inner_text("body"), "the page")

    async def _log_in_if_asked(self, page: Page) -> None:
        await expect(page.locator("#me:visible, dialog[open]").first).to_be_visible()
        if await page.get_by_role("dialog", name="Log in").is_visible():
            await page.get_by_label("Key", exact=True).fill(self.person.key)
            await page.get_by_label("Key", exact=True).press("Enter")
            await expect(page.locator("#me")).to_contain_text(self.person.name)
