"""A web page of another site, in a real browser: it neither reads nor writes, on any route (API-4)."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, Page, Route

from tests.clients.page.conftest import launched
from tests.clients.page.tab import http_client
from tests.harness import BOUND, Environment, asks
from turnkeeper.api.http.limits import EXEMPT_PATHS
from turnkeeper.api.routes.page import page_files
from turnkeeper.models.transcript.model_call import ToolSpec

FOREIGN = "rebind.example"
SECRET = "the code is 4711"

# Every way to ask that a page has, of the origin `base`; what comes back is all that the page can see.
ASK = """async ({base, requests}) => {
  const seen = [];
  for (const {method, path, body} of requests) {
    const options = {method, signal: AbortSignal.timeout(10_000)};
    if (body !== null) Object.assign(options, {body, headers: {"content-type": "application/json"}});
    try {
      const answer = await fetch(base + path, options);
      seen.push([method, path, answer.status, await answer.text()]);
    } catch (error) {
      seen.push([method, path, 0, String(error)]);
    }
  }
  return seen;
}"""

SEND_BLINDLY = """async ({base, paths}) => {
  for (const path of paths) {
    for (const body of [undefined, "{}", new URLSearchParams("a=1")]) {
      await fetch(base + path, {method: "POST", mode: "no-cors", body}).catch(() => null);
    }
  }
}"""

EMBED = """async ({base, paths}) => {
  const loaded = [];
  const settled = (element, name, path) => new Promise((resolve) => {
    element.onload = () => { loaded.push([name, path]); resolve(); };
    element.onerror = resolve;
    document.body.append(element);
  });
  for (const path of paths) {
    for (const [name, attribute] of [["script", "src"], ["img", "src"], ["object", "data"]]) {
      const element = document.createElement(name);
      element[attribute] = base + path;
      await settled(element, name, path);
    }
    const style = document.createElement("link");
    style.rel = "stylesheet";
    style.href = base + path;
    await settled(style, "link", path);
  }
  return loaded;
}"""

LISTEN = """({base, path}) => new Promise((resolve) => {
  const source = new EventSource(base + path);
  source.onopen = () => { source.close(); resolve("open"); };
  source.onerror = () => { source.close(); resolve("refused"); };
})"""

FRAME = """({base, path}) => new Promise((resolve) => {
  const frame = document.createElement("iframe");
  frame.onload = () => {
    try { resolve(frame.contentDocument.documentElement.innerText); } catch { resolve(""); }
  };
  frame.src = base + path;
  document.body.append(frame);
})"""

SUBMIT = """({base, path}) => new Promise((resolve) => {
  const frame = document.createElement("iframe");
  frame.name = "target";
  document.body.append(frame);
  frame.onload = resolve;
  const form = document.createElement("form");
  Object.assign(form, {method: "post", action: base + path, target: "target", enctype: "text/plain"});
  document.body.append(form);
  form.submit();
})"""


@pytest.fixture(scope="module")
async def misled_browser() -> AsyncIterator[Browser]:
    """A browser that resolves the foreign name to this machine, as after DNS rebinding.

    It lets pages from elsewhere reach this machine, as all browsers do that do not ask a person first.
    """
    rules = f"--host-resolver-rules=MAP {FOREIGN} 127.0.0.1"
    async with launched(rules, "--disable-features=LocalNetworkAccessChecks") as browser:
        yield browser


class Victim:
    """A session with something to read, and with a call that waits for a decision."""

    def __init__(self, url: str, session: str, since: datetime) -> None:
        self.url = url
        self.session = session
        self._since = since

    async def look(self) -> dict[str, Any]:
        """Return everything that a foreign page may want to change."""
        async with http_client(self.url) as http:
            sessions = (await http.get("/workflow")).json()["sessions"]
            full = (await http.get(f"/workflow/{self.session}/conversation/full")).json()
            approvals = (await http.get(f"/workflow/{self.session}/approvals")).json()
        # Those of earlier tests may still be added to the list.
        new = [one["workflow_id"] for one in sessions if datetime.fromisoformat(one["started_at"]) >= self._since]
        return {"new": new, "full": full, "approvals": approvals}

    async def requests(self) -> list[dict[str, Any]]:
        """One request for each operation there is, such as would do something."""
        bodies = {
            "/workflow": "{}",
            "/chat": '{"message": "hello", "session_id": "new"}',
            f"/workflow/{self.session}": '{"title": "Taken over"}',
            f"/workflow/{self.session}/prompt": '{"message": "hello"}',
            f"/workflow/{self.session}/approvals/1.1.0": '{"decision": "approve"}',
        }
        async with http_client(self.url) as http:
            document = (await http.get("/openapi.json")).json()
        pages = [("get", path) for path in ("/", f"{page_files().path}/page.js", "/docs", "/redoc", "/openapi.json")]
        operations = [(method, path) for path, methods in document["paths"].items() for method in methods]
        calls = []
        for method, template in [*pages, *operations]:
            path = template.replace("{id}", self.session).replace("{call_id}", "1.1.0")
            path = path.replace("{message_id}", "p1").replace("{hash}", "0" * 64)
            body = None if method == "get" else bodies.get(path, "{}")
            calls.append({"method": method.upper(), "path": path, "body": body})
        # What ends the session comes last: until then there is something to be read.
        return sorted(calls, key=lambda request: (request["method"] == "DELETE", request["path"].endswith("/end")))


@pytest.fixture
async def victim(url: str, env: Environment) -> Victim:
    env.tools.specs = [*env.tools.specs, ToolSpec(name="file_write", effect="idempotent", built_in=True)]
    env.vendor.script = [asks(("file_write", {"path": "Makefile", "content": SECRET}))]
    since = datetime.now(UTC)
    session = await env.start()
    await session.prompt(id="p1", text=SECRET)
    await session.awaited_approvals()
    return Victim(url, session.handle.id, since)


async def page_at(browser: Browser, url: str) -> Page:
    """A page at a foreign address; nothing but this one document comes from the test."""
    page = await browser.new_page()
    page.set_default_timeout(BOUND * 1000)

    async def answer(route: Route) -> None:
        await route.fulfill(content_type="text/html", body="<!doctype html><title>A game</title><body>")

    await page.route(url, answer)
    await page.goto(url)
    return page


async def test_api_4_a_rebound_dns_name_can_neither_read_nor_change_anything(
    misled_browser: Browser, victim: Victim
) -> None:
    before = await victim.look()
    base = f"http://{FOREIGN}:{urlsplit(victim.url).port}"
    page = await page_at(misled_browser, f"{base}/game")
    requests = await victim.requests()
    seen = await page.evaluate(ASK, {"base": "", "requests": requests})
    assert len(seen) == len(requests) > 25
    for method, path, status, text in seen:
        assert (status == 403) is (path not in EXEMPT_PATHS), (method, path, status)
        assert SECRET not in text
    for path in ("/", "/docs", "/workflow", f"/workflow/{victim.session}/conversation/full"):
        assert await page.evaluate(FRAME, {"base": "", "path": path}) == ""  # no response may be in a frame
    assert await page.evaluate(LISTEN, {"base": "", "path": f"/workflow/{victim.session}/events"}) == "refused"
    paths = [
        "/workflow",
        f"{page_files().path}/icon.svg",
        f"{page_files().path}/page.js",
        f"/workflow/{victim.session}",
    ]
    assert [name for name, _ in await page.evaluate(EMBED, {"base": "", "paths": paths}) if name != "object"] == []
    await page.evaluate(SUBMIT, {"base": "", "path": f"/workflow/{victim.session}/cancel"})
    assert await victim.look() == before
    await page.close()


async def test_api_4_a_page_on_another_port_cannot_change_anything(
    misled_browser: Browser, victim: Victim, foreign_server: str
) -> None:
    before = await victim.look()
    page = await misled_browser.new_page()
    page.set_default_timeout(BOUND * 1000)
    answered: list[int] = []
    page.on("response", lambda response: answered.append(response.status))
    requests = await victim.requests()
    posts = [request["path"] for request in requests if request["method"] == "POST"]
    paths = ["/workflow", f"/workflow/{victim.session}", "/workflow/no-such-session"]
    for name in ("127.0.0.1", "localhost", FOREIGN):
        base = f"http://{name}:{urlsplit(victim.url).port}"
        await page.goto(foreign_server)
        answered.clear()
        # Every route is asked by one name; what judges a name is the same for all routes.
        targets = posts if name == FOREIGN else [f"/workflow/{victim.session}/{verb}" for verb in ("cancel", "prompt")]
        await page.evaluate(SEND_BLINDLY, {"base": base, "paths": targets})
        await page.evaluate(SUBMIT, {"base": base, "path": f"/workflow/{victim.session}/cancel"})
        assert len(answered) > 3 * len(targets), "what is refused has to have arrived"
        assert set(answered) == {403}
        sample = requests if name == FOREIGN else requests[::5]
        seen = await page.evaluate(ASK, {"base": base, "requests": sample})
        assert {status for _, _, status, _ in seen} == {0}, "nothing of another origin can be read"
        assert await page.evaluate(LISTEN, {"base": base, "path": f"/workflow/{victim.session}/events"}) == "refused"
        assert await page.evaluate(EMBED, {"base": base, "paths": paths}) == []
        assert await victim.look() == before
    await page.close()


async def test_api_4_another_site_may_link_to_the_chat_page(
    misled_browser: Browser, victim: Victim, foreign_server: str
) -> None:
    page = await misled_browser.new_page()
    page.set_default_timeout(BOUND * 1000)
    await page.goto(foreign_server)
    target = f"{victim.url}/?session={victim.session}"
    await page.evaluate("(target) => { document.body.innerHTML = `<a href='${target}'>chat</a>`; }", target)
    await page.get_by_text("chat").click()
    await page.get_by_role("button", name="Approve").first.wait_for()
    await page.close()


@pytest.fixture
async def foreign_server() -> AsyncIterator[str]:
    """Another program's web server on this machine, called by the foreign name."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b"<!doctype html><title>A game</title><body>"
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n" + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://{FOREIGN}:{server.sockets[0].getsockname()[1]}/"
