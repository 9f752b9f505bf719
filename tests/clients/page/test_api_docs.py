"""`/docs` and `/redoc` in a real browser: all from here, and something to see (API-1, API-5)."""

from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, Request, expect


@pytest.mark.parametrize(
    ("path", "shows"),
    [("/docs", "/workflow/{id}/prompt"), ("/redoc", "Durable AI-agent sessions on Temporal.")],
    ids=["docs", "redoc"],
)
async def test_api_5_the_pages_about_the_api_show_it_and_ask_nobody_else(
    browser: Browser, url: str, path: str, shows: str
) -> None:
    page = await browser.new_page()
    asked: list[str] = []
    thrown: list[str] = []

    def note(request: Request) -> None:
        asked.append(request.url)

    page.on("request", note)
    page.on("pageerror", lambda error: thrown.append(str(error)))
    await page.goto(f"{url}{path}")
    await expect(page.get_by_text(shows).first).to_be_visible(timeout=60_000)
    here = urlsplit(url).netloc
    foreign = [address for address in asked if urlsplit(address).scheme in ("http", "https", "ws", "wss")]
    assert [address for address in foreign if urlsplit(address).netloc != here] == []
    assert thrown == []
    await page.close()


async def test_api_7_a_request_is_tried_out_from_the_page_about_the_api(browser: Browser, url: str) -> None:
    page = await browser.new_page()
    await page.goto(f"{url}/docs#/health/health")
    block = page.locator("#operations-health-health")
    await block.get_by_role("button", name="Try it out").click(timeout=60_000)
    await block.get_by_role("button", name="Execute").click()
    await expect(block.locator(".live-responses-table td.response-col_status:not(.col_header)")).to_contain_text(
        "200", timeout=60_000
    )
    await page.close()
