"""What a load of the chat page asks for, counted by a browser: bytes and requests (API-5, OPS-11)."""

import json

from playwright.async_api import async_playwright, expect

from benchmarks.copies import document, import_session
from benchmarks.environment import BOUND, bench_environment
from benchmarks.results import Row, row, within
from tests.clients.page.conftest import CHROMIUM
from tests.clients.page.network import Network
from turnkeeper.ops.local.processes import LOOPBACK

SHORT, LONG = 20, 2_000
"""The turns of two sessions, of which the page shows the newest."""

SHOWN_AT_FIRST = 30
TIMEOUT = BOUND * 1000


async def page() -> list[Row]:
    """Load a session twice in a new browser, and another one in another new browser."""
    if CHROMIUM is None:
        return [Row("the page: not measured, since there is no Chromium", "")]
    async with bench_environment(gateways=1) as environment, async_playwright() as playwright:
        (port,) = environment.gateway_ports
        for turns in (SHORT, LONG):
            await import_session(port, json.dumps(document(turns, has_media=False)).encode(), f"page-{turns}")
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        loads = []
        for turns, count in ((SHORT, 2), (LONG, 1)):
            tab = await (await browser.new_context()).new_page()
            network = await Network.of(tab)
            for _ in range(count):
                await tab.goto(f"http://{LOOPBACK}:{port}/?session=page-{turns}")
                await expect(tab.locator("#turns > .turn")).to_have_count(min(turns, SHOWN_AT_FIRST), timeout=TIMEOUT)
                await expect(tab.locator("#turns .prose.plain")).to_have_count(0, timeout=TIMEOUT)
                loads.append(network.sizes_since_last_load())
        await browser.close()
    first, warm, _ = loads
    files = [path for path in warm if path == "/" or path.startswith("/static/")]
    sizes = [sum(load.values()) for load in loads]
    return [
        within(f"the page, first load, {SHORT} turns: bytes", sizes[0] / 1000, 160, unit="KB"),
        within(f"the page, first load, {SHORT} turns: requests", len(first), 60),
        within(
            f"the page, warm load, {SHORT} turns: requests for files",
            len(files),
            3,
            note=f"{len(warm)} with those of the API",
        ),
        row(
            f"the page, first load: bytes, {LONG:,} turns to {SHORT}",
            f"{sizes[2] / 1000:.0f} KB",
            f"{sizes[0] / 1000:.0f} KB",
            sizes[2] / sizes[0],
            at_most=1.2,
        ),
    ]
