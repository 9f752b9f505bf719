"""A conversation, as a person leads it in the page (API-5)."""

from playwright.async_api import expect

from activities.providers.protocol import Delta
from tests.harness import Gate, Stage, asks, says
from tests.page.tab import Tab


async def test_api_5_a_first_prompt_starts_a_session_and_its_answer_is_streamed_then_rendered(
    tab: Tab, on: Stage
) -> None:
    begun, done = Gate(is_open=False), Gate(is_open=False)
    on.vendor.script = [
        [Delta("think", "He greets."), begun, Delta("respond", "**Hel"), done, Delta("respond", "lo**"), says("**Hello**")]
    ]
    await tab.open()
    await tab.send("Hi there")
    await begun.until_arrived(1)
    await expect(tab.turns).to_have_count(1)
    await expect(tab.page.locator(".thinking .peek")).to_have_text("He greets.")
    begun.open()
    await expect(tab.growing).to_have_text("**Hel")
    done.open()
    await tab.shows(1)
    await expect(tab.answers.locator("strong")).to_have_text("Hello")
    await tab.shows_the_transcript()
