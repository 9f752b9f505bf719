"""`/docs` and `/redoc` in a real browser: all from here, and something to see (API-1, API-5).

That nobody else is asked, and nothing thrown, is what every tab checks at its end.
"""

from playwright.async_api import Route, expect

from tests.clients.page.tab import Tab


async def test_api_5_redoc_shows_the_api_without_external_requests(tab: Tab) -> None:
    await tab.page.goto(f"{tab.url}/redoc")
    await expect(tab.page.get_by_text("Durable AI-agent sessions on Temporal.").first).to_be_visible()


async def with_two_paths(route: Route) -> None:
    """Let Swagger draw little: the whole document is drawn by Redoc."""
    answer = await route.fetch()
    document = await answer.json()
    paths = {path: document["paths"][path] for path in ("/healthz", "/workflow/{id}/prompt")}
    await route.fulfill(response=answer, json={**document, "paths": paths})


async def test_api_5_api_7_swagger_ui_works_without_external_requests(tab: Tab) -> None:
    await tab.page.route("**/openapi.json", with_two_paths)
    await tab.page.goto(f"{tab.url}/docs#/health/health")
    await expect(tab.page.get_by_text("/workflow/{id}/prompt").first).to_be_visible()
    block = tab.page.locator("#operations-health-health")
    await block.get_by_role("button", name="Try it out").click()
    await block.get_by_role("button", name="Execute").click()
    await expect(block.locator(".live-responses-table td.response-col_status:not(.col_header)")).to_contain_text("200")
