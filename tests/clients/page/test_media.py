"""The page on paper, on a high-contrast screen, at 400 %, and with texts of any direction (API-5)."""

# ruff: noqa: RUF001  # letters of other scripts are the point

import re

from playwright.async_api import Locator, ViewportSize, expect

from tests.clients.page.tab import Tab
from tests.clients.page.test_sessions import started
from tests.harness import Environment, Gate, says
from turnkeeper.activities.providers.protocol import Delta

LONG = "\n\n".join(f"Paragraph number {number}" for number in range(200))


async def test_api_5_printing_includes_the_whole_conversation_and_nothing_else(tab: Tab, env: Environment) -> None:
    """U14: one sheet of paper showed what the window showed."""
    env.vendor.script = [says(f"The first answer.\n\n{LONG}"), says("The last answer.")]
    await tab.open(await started(tab.url, "one", "two"))
    await tab.shows(2)
    await tab.emulate(media="print", color_scheme="dark")
    for part in ("#sidebar", "#dock", "#session-actions"):
        await expect(tab.page.locator(part)).to_be_hidden()
    assert await tab.log.evaluate("(log) => log.scrollHeight === log.clientHeight")
    assert await _style(tab.page.locator(".turn").first, "contentVisibility") == "visible"
    assert await _style(tab.page.locator(".prose").first, "color") == "rgb(29, 28, 26)"
    sheets = re.findall(rb"/Type\s*/Page\b", await tab.page.pdf(format="A4"))
    assert len(sheets) > 5


async def test_api_5_turns_that_are_not_in_the_dom_are_printed_too(tab: Tab, env: Environment) -> None:
    await tab.open(await started(tab.url, *(f"prompt {number}" for number in range(3))))
    await tab.shows(3)
    await tab.page.locator("#turns > .turn").first.evaluate("(turn) => turn.remove()")
    await tab.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    await tab.shows(3)


async def test_api_5_with_forced_colours_every_option_and_button_is_visible(tab: Tab, env: Environment) -> None:
    other = await started(tab.url, "Hi", title="Another")
    gate = Gate(is_open=False)
    env.vendor.script = [[Delta("respond", "Some"), gate, says("Some text.")]]
    await tab.emulate(forced_colors="active")
    await tab.open()
    await tab.send("Hi")
    await expect(tab.growing).to_have_text("Some")
    chosen, unchosen = tab.page.locator("#modes :checked + span"), tab.page.locator("#modes :not(:checked) + span")
    assert await _style(chosen, "backgroundColor") != await _style(unchosen.first, "backgroundColor")
    marked = tab.page.locator("#sessions a[aria-current]")
    unmarked = tab.page.locator(f'#sessions a[href="/?session={other}"]')
    assert await _style(marked, "backgroundColor") != await _style(unmarked, "backgroundColor")
    await tab.text.fill("more")
    for button in (tab.stop, tab.page.locator("#send")):
        assert await _style(button, "borderTopWidth") == "2px"
    gate.open()
    await tab.shows(1)


async def test_api_5_at_400_percent_zoom_all_main_controls_are_in_view(tab: Tab, env: Environment) -> None:
    gate = Gate(is_open=False)
    env.vendor.script = [[Delta("respond", "Some"), gate, says("Some text.")]]
    await tab.open()
    await tab.send("Hi")
    await expect(tab.growing).to_have_text("Some")
    windows: list[ViewportSize] = [{"width": 320, "height": 568}, {"width": 320, "height": 256}]
    for window in windows:
        await tab.emulate(viewport=window)
        await tab.text.fill("more")
        for needed in (tab.page.locator("#send"), tab.stop, tab.text, tab.page.get_by_text("Interrupt")):
            await expect(needed).to_be_in_viewport(ratio=1)
        assert await tab.page.evaluate("document.documentElement.scrollWidth") == 320
        button, frame = tab.page.locator("#send"), tab.page.locator("#composer")
        assert await _right_edge(button) < await _right_edge(frame)
    gate.open()
    await tab.shows(1)


async def test_api_5_each_text_runs_in_the_direction_of_its_letters(tab: Tab, env: Environment) -> None:
    """U13: sentences in Arabic and Hebrew began at the left, and ended with the full stop at the wrong end."""
    env.vendor.script = [says("An answer.\n\nשלום לכולם.\n\n- שלום\n- עולם\n\n> ציטוט")]
    await tab.open(await started(tab.url, "שלום עולם.", title="כותרת"))
    await tab.shows(1)
    blocks = tab.answers.locator("> *")
    assert [await _style(block, "direction") for block in await blocks.all()] == ["ltr", "rtl", "rtl", "rtl"]
    await tab.text.fill("שלום")
    title = tab.page.locator("#sessions a[aria-current] span").first
    for part in (tab.page.locator(".bubble"), tab.page.locator("#session-title"), tab.text, title):
        assert await _style(part, "direction") == "rtl"
    await tab.text.fill("")


async def test_api_5_a_number_in_a_table_stays_on_its_line(tab: Tab, env: Environment) -> None:
    row = "| A-1001-2002-3003 | 2026-11-01 | " + "some words and more of them | " * 6
    env.vendor.script = [says(f"| a | b |{' c |' * 6}\n|{'---|' * 8}\n{row}")]
    await tab.emulate(viewport={"width": 390, "height": 844})
    await tab.open(await started(tab.url, "Hi"))
    await tab.shows(1)
    for cell in await tab.answers.locator("td").all():
        is_short = await cell.evaluate("(cell) => !cell.textContent.includes(' ')")
        assert await _style(cell, "whiteSpace") == ("nowrap" if is_short else "normal")
    assert await tab.answers.locator(".table").evaluate("(table) => table.scrollWidth > table.clientWidth")


async def _style(element: Locator, name: str) -> str:
    return str(await element.evaluate("(element, name) => getComputedStyle(element)[name]", name))


async def _right_edge(element: Locator) -> float:
    return float(await element.evaluate("(element) => element.getBoundingClientRect().right"))
