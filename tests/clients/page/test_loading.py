"""Requests and bytes of a page load (API-5, OPS-11)."""

from pathlib import Path

from playwright.async_api import Browser

from tests.clients.page.network import Network
from tests.clients.page.tab import tabs_of
from tests.harness import Environment, says
from turnkeeper.api.routes.page import page_files

ROOT = Path(__file__).parents[3]

TURNS = 20
CHARS = 3_000


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
        network = await Network.of(tab.page)
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
