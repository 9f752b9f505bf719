"""The page when a session is deleted or the gateway is unavailable (API-5)."""

import asyncio
import re

import pytest
from playwright.async_api import Route, expect

from tests.clients.page.tab import Tab, http_client
from tests.harness import Environment
from tests.waiting import until

LIST = re.compile(r"/workflow(\?|$)")


async def test_api_5_a_session_deleted_while_it_is_open_disappears_from_the_page(tab: Tab, env: Environment) -> None:
    tab.may_be_cut_off = True  # the browser notes the 404
    await tab.open()
    await tab.send("My secret")
    await tab.shows(1)
    async with http_client(tab.url) as http:

        async def is_deleted() -> bool:
            return (await http.delete(f"/workflow/{tab.session}")).status_code in (200, 404)

        await until(is_deleted)
    await expect(tab.log).to_contain_text("It was deleted, or the link is wrong.", use_inner_text=True)
    await expect(tab.turns).to_have_count(0)
    await expect(tab.page.locator("#session-usage")).to_have_text("")


async def test_api_4_a_rate_limited_request_is_sent_again_after_retry_after(tab: Tab) -> None:
    tab.may_be_cut_off = True  # the browser notes the 429
    tries: list[float] = []

    async def limit(route: Route) -> None:
        if route.request.method == "POST":
            tries.append(asyncio.get_running_loop().time())
        if len(tries) == 1 and route.request.method == "POST":
            over = {"type": "urn:turnkeeper:problem:rate-limited", "detail": "Too many.", "limit": "rate_limit"}
            await route.fulfill(status=429, headers={"retry-after": "1"}, json=over)
        else:
            await route.fallback()

    await tab.page.route(LIST, limit)
    await tab.open()
    await tab.send("Hello")
    await tab.shows(1)
    assert len(tries) == 2
    assert tries[1] - tries[0] >= 1


async def test_api_5_a_session_list_that_cannot_be_loaded_is_not_shown_as_empty(tab: Tab) -> None:
    tab.may_be_cut_off = True  # the browser notes the 503

    async def fail(route: Route) -> None:
        await route.fulfill(status=503, json={"type": "urn:turnkeeper:problem:temporal-unreachable", "detail": "No."})

    await tab.page.route(LIST, fail)
    await tab.open()
    note = tab.page.locator("#sessions-note")
    await expect(note).to_have_text("Can't load sessions. Trying again.")
    await tab.open("never-started")  # which shows the list again
    await expect(tab.page.locator("#session-title")).to_have_text("Session not found")
    await expect(note).to_have_text("Can't load sessions. Trying again.")


@pytest.mark.parametrize("status", [404, 405])
async def test_api_5_a_gateway_without_the_feature_listing_is_said_to_list_nothing(tab: Tab, status: int) -> None:
    tab.may_be_cut_off = True  # the browser notes the status

    async def refuse(route: Route) -> None:
        await route.fulfill(status=status, json={"type": "about:blank", "detail": "No."})

    await tab.page.route(LIST, refuse)
    await tab.open()
    await expect(tab.page.locator("#sessions-note")).to_have_text("This gateway doesn't list sessions.")
    await expect(tab.page.locator("#search")).to_be_hidden()
