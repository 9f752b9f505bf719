"""A browser tab controlled by a test. It records everything that a page must not do, and fails the test at the end."""

import html
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx
from playwright.async_api import Browser, BrowserContext, Locator, Page, Request, ViewportSize, expect

from tests.harness import BOUND
from turnkeeper.api.markdown import render_markdown
from turnkeeper.clients.terminal.texts import stopped_turn
from turnkeeper.models.transcript.conversation import ConversationMessage, ConversationState

expect.set_options(timeout=BOUND * 1000)

WATCH_THE_POLICY = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) =>
  window.violations.push(`${event.violatedDirective}: ${event.blockedURI} ${event.sample}`));
"""

SHOW = """(path) => {
  if (!document.querySelector("#new-session")) return false;
  history.pushState(null, "", path);
  dispatchEvent(new PopStateEvent("popstate"));
  return true;
}"""
"""Show another session in a page that is there, as the browser's own Back does. There may be no page yet."""

FORGET = """() => {
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
  document.querySelector("#new-model").value = "";
  for (const [id, event] of [["theme", "change"], ["status-filter", "change"], ["search", "input"]]) {
    const field = document.getElementById(id);
    if (!field.value) continue;
    field.value = "";
    field.dispatchEvent(new Event(event, { bubbles: true }));
  }
  localStorage.clear();
  sessionStorage.clear();
  window.violations.length = 0;
}"""

DESK: ViewportSize = {"width": 1280, "height": 720}


def _ending(turn: ConversationMessage) -> str | None:
    """Return how the turn ended, in the words that page and terminal have in common."""
    return stopped_turn(turn.error) if turn.error is not None and turn.status == "cancelled" else turn.error


def http_client(url: str) -> httpx.AsyncClient:
    """Return a client for plain HTTP. It loads no certificates, which would cost 30 ms."""
    return httpx.AsyncClient(base_url=url, timeout=60, verify=False)


@dataclass
class Tab:
    """One tab. `faults` are the browser's complaints, `strays` the requests to any address but the gateway's."""

    page: Page
    url: str
    faults: list[str] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)
    may_be_cut_off: bool = False
    """Whether this test kills the gateway: then failed requests to it are no fault of the page."""
    is_altered: bool = False
    """Whether this test changes the page's own code: then no other test may have it."""
    _is_emulating: bool = False

    @classmethod
    async def opened(cls, context: BrowserContext, url: str) -> "Tab":
        page = await context.new_page()
        tab = cls(page, url)
        page.on("console", lambda message: tab._note(message.type, message.text))
        page.on("pageerror", lambda error: tab.faults.append(f"uncaught: {error}"))
        page.on("request", tab._note_request)
        await page.add_init_script(WATCH_THE_POLICY)
        page.set_default_timeout(BOUND * 1000)
        return tab

    def _note(self, kind: str, text: str) -> None:
        if kind not in ("error", "warning"):
            return
        is_network = "Failed to load resource" in text or "net::ERR_" in text
        if not (is_network and self.may_be_cut_off):
            self.faults.append(f"{kind}: {text}")

    def _note_request(self, request: Request) -> None:
        address = urlsplit(request.url)
        if address.scheme not in ("blob", "data") and f"{address.scheme}://{address.netloc}" != self.url:
            self.strays.append(request.url)

    async def check(self) -> None:
        """Check that nothing forbidden has happened."""
        assert self.faults == []
        assert self.strays == []
        assert await self.page.evaluate("window.violations") == []

    async def forget(self) -> None:
        """Remove everything of one test before the next: routes, permissions, storage and recorded faults.

        The page stays, and shows no session: to load it costs more than most tests.
        """
        await self.page.unroute_all(behavior="ignoreErrors")
        await self.page.context.clear_permissions()
        await self.page.context.set_offline(False)
        if self._is_emulating:
            await self.emulate()
            self._is_emulating = False
        if await self.page.evaluate(SHOW, "/"):
            await self.page.evaluate(FORGET)
        if self.is_altered:
            await self.page.goto("about:blank")
        self.faults.clear()
        self.strays.clear()
        self.may_be_cut_off = self.is_altered = False

    async def emulate(
        self,
        *,
        viewport: ViewportSize = DESK,
        color_scheme: Literal["dark", "light", "null"] = "null",
        reduced_motion: Literal["reduce", "null"] = "null",
        forced_colors: Literal["active", "null"] = "null",
        media: Literal["print", "null"] = "null",
    ) -> None:
        """Be another screen until the end of the test."""
        self._is_emulating = True
        await self.page.set_viewport_size(viewport)
        await self.page.emulate_media(
            color_scheme=color_scheme, reduced_motion=reduced_motion, forced_colors=forced_colors, media=media
        )

    # ---- going somewhere

    async def open(self, session: str | None = None) -> None:
        """Show a session, or the start page; a page that is there already is not loaded again."""
        if not await self.page.evaluate(SHOW, _path(session)):
            await self.load(session)

    async def load(self, session: str | None = None) -> None:
        """Load the page at the address of a session, or at its own."""
        await self.page.goto(f"{self.url}{_path(session)}")

    @property
    def session(self) -> str:
        """The session that the address names."""
        return urlsplit(self.page.url).query.removeprefix("session=")

    # ---- what is there

    @property
    def text(self) -> Locator:
        return self.page.get_by_label("Your prompt")

    @property
    def log(self) -> Locator:
        return self.page.get_by_role("log")

    @property
    def turns(self) -> Locator:
        return self.page.locator("#turns > .turn")

    @property
    def answers(self) -> Locator:
        """The rendered texts of the model."""
        return self.page.locator("#turns .prose:not(.plain)")

    @property
    def growing(self) -> Locator:
        return self.page.locator(".growing")

    @property
    def tools(self) -> Locator:
        return self.page.locator(".tool")

    @property
    def queue(self) -> Locator:
        return self.page.locator("#queue-list > li")

    @property
    def state(self) -> Locator:
        return self.page.get_by_role("status")

    @property
    def notice(self) -> Locator:
        """The message on a failed action, until it is dismissed."""
        return self.page.get_by_role("alert")

    @property
    def stop(self) -> Locator:
        return self.page.get_by_role("button", name="Stop")

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    # ---- doing something

    async def send(self, text: str) -> None:
        await self.text.fill(text)
        await self.text.press("Enter")

    async def shows(self, count: int) -> None:
        """Wait until the page shows `count` turns, and nothing runs or waits any more."""
        await expect(self.turns).to_have_count(count)
        await expect(self.stop).to_be_hidden()
        await expect(self.queue).to_have_count(0)
        await expect(self.page.locator("#turns .prose.plain")).to_have_count(0)

    async def shown_turns(self) -> list[dict[str, Any]]:
        """The visible parts of each turn."""
        turns: list[dict[str, Any]] = await self.page.evaluate(
            """() => [...document.querySelectorAll("#turns > .turn")].map((turn) => ({
              id: turn.dataset.turn,
              status: turn.dataset.status,
              asked: turn.querySelector(".request .bubble").textContent,
              said: [...turn.querySelectorAll(".prose")].map((prose) => prose.textContent.trim()),
              error: turn.querySelector(".turn-error p")?.textContent ?? null,
            }))"""
        )
        return turns

    async def shows_the_transcript(self) -> None:
        """Check that the page shows what the gateway has, turn by turn: nothing is missing, nothing is there twice."""
        async with http_client(self.url) as http:
            full = (await http.get(f"/workflow/{self.session}/conversation/full")).json()
        turns = await self.shown_turns()
        state = ConversationState.model_validate({key: value for key, value in full.items() if key != "links"})
        assert [(turn["id"], turn["status"], turn["asked"], turn["error"]) for turn in turns] == [
            (turn.id, turn.status, turn.user_message, _ending(turn)) for turn in state.messages
        ]
        assert [turn["said"][-1] for turn in turns if turn["status"] == "completed"] == [
            words_of(turn.agent_message) for turn in state.messages if turn.agent_message is not None
        ]


def _path(session: str | None) -> str:
    return f"/?session={session}" if session else "/"


def words_of(markdown: str) -> str:
    """The visible text after rendering."""
    return html.unescape(re.sub(r"<[^>]*>", "", render_markdown(markdown))).strip()


@asynccontextmanager
async def tabs_of(browser: Browser, url: str, **context_options: Any) -> AsyncIterator[Callable[[], Awaitable[Tab]]]:
    """Yield a function that opens tabs of one person; at the end, check that none did anything forbidden."""
    context = await browser.new_context(**context_options)
    tabs: list[Tab] = []

    async def open_tab() -> Tab:
        tabs.append(await Tab.opened(context, url))
        return tabs[-1]

    try:
        yield open_tab
        for tab in tabs:
            await tab.check()
    finally:
        await context.close()
