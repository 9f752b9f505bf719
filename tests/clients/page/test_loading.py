"""Requests and bytes of a page load (API-5, OPS-11)."""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import Browser

from tests.clients.page.tab import Tab, tabs_of
from tests.harness import Environment, says
from turnkeeper.api.routes.page import page_files

ROOT = Path(__file__).parents[3]

TURNS = 20
CHARS = 3_000


class Network:
    """The requests of a tab, as the browser counts them: with all headers, without cached files."""

    def __init__(self) -> None:
        self._paths: dict[str, str] = {}
        self._cached: set[str] = set()
        self._bytes: dict[str, int] = {}

    @classmethod
    async def of(cls, tab: Tab) -> "Network":
        network = cls()
        devtools = await tab.page.context.new_cdp_session(tab.page)
        devtools.on("Network.requestWillBeSent", network._on_request)
        devtools.on("Network.requestServedFromCache", lambda event: network._cached.add(event["requestId"]))
        devtools.on("Network.responseReceived", network._on_response)
        devtools.on("Network.loadingFinished", network._on_end)
        await devtools.send("Network.enable")
        return network

    def _on_request(self, event: dict[str, Any]) -> None:
        self._paths[event["requestId"]] = urlsplit(event["request"]["url"]).path

    def _on_response(self, event: dict[str, Any]) -> None:
        if event["response"]["fromDiskCache"]:
            self._cached.add(event["requestId"])
        self._bytes[event["requestId"]] = event["response"]["encodedDataLength"]

    def _on_end(self, event: dict[str, Any]) -> None:
        self._bytes[event["requestId"]] = event["encodedDataLength"]

    def sizes_since_last_load(self) -> dict[str, int]:
        """Return the bytes of each path."""
        sizes = {path: self._bytes.get(key, 0) for key, path in self._paths.items() if key not in self._cached}
        self._paths.clear()
        return sizes


async def test_ops_11_a_first_load_is_small_and_a_warm_one_fetches_only_the_page(
    browser: Browser, url: str, env: Environment
) -> None:
    text = (ROOT / "docs" / "http.md").read_text()
    env.vendor.script = [says(text[turn * CHARS : (turn + 1) * CHARS]) for turn in range(TURNS)]
    session = await env.start()
    for turn in range(TURNS):
        await session.prompt(f"Question {turn}?")
        await session.idle(turns=turn + 1)
    async with tabs_of(browser, url) as open_tab:
        tab = await open_tab()
        network = await Network.of(tab)
        loads = []
        for _ in range(2):
            await tab.load(session.handle.id)
            await tab.shows(TURNS)
            loads.append(network.sizes_since_last_load())
    cold, warm = loads
    assert f"{page_files().path}/words.js" in cold
    assert len(cold) <= 60
    assert sum(cold.values()) <= 160_000
    assert [path for path in warm if path == "/" or path.startswith("/static/")] == ["/"]
    assert warm["/"] < 1_000
