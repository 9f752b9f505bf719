"""Slips of a hand, and what the page makes of them: the right session, nothing twice, nothing lost (API-5)."""

from playwright.async_api import expect

from tests.clients.page.tab import Tab
from tests.clients.page.test_sessions import started
from tests.harness import Environment


async def test_api_5_a_dialog_closes_when_another_session_is_opened(tab: Tab, env: Environment) -> None:
    first = await started(tab.url, "one", title="First")
    second = await started(tab.url, "two", title="Second")
    await tab.open(second)
    await expect(tab.answers).to_have_text("echo: two")
    await tab.page.get_by_label("Search sessions").fill("First")
    await tab.page.locator(f'#sessions a[href="/?session={first}"]').click()
    await expect(tab.page.locator("#session-title")).to_have_text("First")
    await tab.page.get_by_role("button", name="More about this session").click()
    await tab.button("End the session…").click()
    await expect(tab.page.get_by_role("dialog", name="End “First”")).to_be_visible()
    await tab.page.go_back()
    await expect(tab.answers).to_have_text("echo: two")
    await expect(tab.page.get_by_role("dialog")).to_have_count(0)


async def test_api_5_a_failed_start_restores_the_prompt_and_the_model(tab: Tab, env: Environment) -> None:
    tab.may_be_cut_off = True  # the browser notes the 422
    await tab.open()
    await tab.page.get_by_role("textbox", name="Model").fill("nonsense")
    await tab.send("one")
    await expect(tab.notice).to_contain_text("nonsense")
    await expect(tab.page).to_have_url(f"{tab.url}/")
    await expect(tab.text).to_have_value("one")
    model = tab.page.get_by_role("textbox", name="Model")
    await expect(model).to_have_value("nonsense")
    await model.fill("openai:gpt-x")
    await tab.text.press("Enter")
    await tab.shows(1)
    await tab.shows_the_transcript()


async def test_api_5_an_example_is_sent_once_and_the_composer_is_empty_and_focused(tab: Tab, env: Environment) -> None:
    await tab.open()
    await tab.button("What time is it?").dblclick()
    await tab.shows(1)
    await tab.send("last")
    await tab.shows(2)
    await expect(tab.text).to_have_value("")
    await tab.page.get_by_role("link", name="New session").click()
    await expect(tab.text).to_have_value("")
    await tab.button("What time is it?").click()
    await tab.shows(1)
    await expect(tab.text).to_be_focused()


async def test_api_5_a_duration_is_rounded_before_it_is_split_into_units(tab: Tab) -> None:
    await tab.open()
    words = await tab.page.evaluate(
        """async (all) => {
          const { duration } = await import(new URL("words.js", document.scripts[0].src));
          return all.map(duration);
        }""",
        [999.4, 999.6, 9_940, 9_960, 59_400, 59_600, 119_400, 119_700, 3_599_700, 7_260_000],
    )
    assert words == [
        "999 ms", "1.0 s", "9.9 s", "10 s", "59 s", "1 min 0 s", "1 min 59 s", "2 min 0 s", "1 h 0 min", "2 h 1 min",
    ]  # fmt: skip
