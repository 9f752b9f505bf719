"""Accessibility: axe finds nothing serious in any state, size and colour; the keyboard reaches everything."""

import asyncio

import pytest
from playwright.async_api import Page, ViewportSize, expect

from tests.clients.page.tab import Tab, http_client
from tests.harness import BOUND, Environment, Gate, asks, says
from tests.servers.from_registries import npm_package
from turnkeeper.activities.providers.protocol import Delta, ModelError
from turnkeeper.models.transcript.model_call import CallPart, ModelResponse, RespondPart, ThinkPart

PHONE: ViewportSize = {"width": 390, "height": 844}
DESK: ViewportSize = {"width": 1440, "height": 900}

EVERYTHING = """# Heading

Some **bold**, *emphasis*, `code`, ~~gone~~ and a [link](https://example.org).

- one
- two

> quoted

```python
# a comment
def double(x: int) -> str:
    return "text" * 2
```

| File | Lines |
|:-----|------:|
| a.py | 12 |
"""


async def test_api_5_axe_finds_nothing_serious_in_any_state(
    tab: Tab, env: Environment, request: pytest.FixtureRequest
) -> None:
    axe = (npm_package(request.config.cache, "axe-core@4.14.1") / "axe.min.js").read_text()
    faults: dict[str, list[str]] = {}

    async def look(state: str) -> None:
        await tab.emulate(viewport=PHONE, color_scheme="light")
        faults[f"{state}, on a phone"] = await grave_faults(tab.page, axe)
        await tab.emulate(viewport=DESK, color_scheme="dark")
        faults[f"{state}, on a desk, dark"] = await grave_faults(tab.page, axe)

    await tab.open()
    await look("nothing yet")
    await _every_kind_of_turn(tab, env)
    for summary in await tab.page.locator("#turns summary").all():
        await summary.click()
    await look("a conversation, all of it open")
    await _open_turn_with_approval(tab, env)
    await look("an approval and a queue")
    await tab.button("Reject…").click()
    await look("a rejection")
    await tab.page.get_by_role("button", name="What the model remembers").click()
    await look("what the model remembers")
    await tab.button("Close").click()
    await tab.page.get_by_role("button", name="More about this session").click()
    await look("the menu")
    await tab.button("Change the model…").click()
    await look("a question")
    await tab.page.keyboard.press("Escape")
    await tab.emulate(viewport=PHONE, color_scheme="light")
    await tab.button("Sessions").click()
    faults["the list of sessions, on a phone"] = await grave_faults(tab.page, axe)
    await tab.page.keyboard.press("Escape")
    assert {state: serious for state, serious in faults.items() if serious} == {}


async def grave_faults(page: Page, axe: str) -> list[str]:
    """Return the serious and critical findings of axe in the page, with their places."""
    if not await page.evaluate("'axe' in window"):
        await page.evaluate(axe)  # by the debugger, which the page's own policy does not bind
    # Only a rule that is still an experiment needs the style sheets fetched, which takes as long as all the others.
    report = await page.evaluate("axe.run(document, {resultTypes: ['violations'], preload: false})")
    return [
        f"{fault['id']} ({fault['impact']}): {[node['html'][:200] for node in fault['nodes']]}"
        for fault in report["violations"]
        if fault["impact"] in ("serious", "critical")
    ]


async def _every_kind_of_turn(tab: Tab, env: Environment) -> None:
    parts = [
        ThinkPart(kind="think", text="Let me look."),
        CallPart(kind="call", id="c", name="look", args={"path": "src"}),
    ]
    env.vendor.script = [
        ModelResponse(parts=parts, stop="tool_calls", model="test"),
        ModelResponse(parts=[RespondPart(kind="respond", text=EVERYTHING)], model="test"),
        ModelError("auth", "the key was refused"),
    ]
    await tab.send("What is there?")
    await tab.shows(1)
    await tab.send("And now?")
    await expect(tab.page.locator(".turn-error")).to_be_visible()


async def _open_turn_with_approval(tab: Tab, env: Environment) -> None:
    async with http_client(tab.url) as http:
        (await http.patch(f"/workflow/{tab.session}", json={"tool_policy": {"pay": "ask"}})).raise_for_status()
    env.vendor.script = [asks(("pay", {"amount": 12})), says("Paid.")]
    await tab.send("Pay")
    await expect(tab.page.locator(".approval")).to_be_visible()
    await tab.send("and then this")
    await expect(tab.queue).to_have_count(1)


async def test_api_5_notices_and_the_status_line_are_announced_but_no_countdown(tab: Tab, env: Environment) -> None:
    gate = Gate(is_open=False)
    env.vendor.script = [[Delta("respond", "Some"), gate, says("Some text.")]]
    await tab.open()
    await tab.send("Hi")
    await expect(tab.growing).to_have_text("Some")
    live = await tab.page.evaluate(
        """() => [...document.querySelectorAll("[aria-live], [role=status], [role=log], [role=alert]")]
             .filter((element) => element.ariaLive !== "off").map((element) => element.id)"""
    )
    assert live == ["notice", "state-words", "login-problem"]
    changes = tab.page.evaluate(
        """() => new Promise((resolve) => {
             const spoken = [];
             new MutationObserver(() => spoken.push(document.querySelector("#state-words").textContent))
               .observe(document.querySelector("#state-words"), {childList: true, characterData: true, subtree: true});
             new MutationObserver((_, observer) => {
               if (!/^2 s/.test(document.querySelector("#state-seconds").textContent)) return;
               observer.disconnect();
               resolve(spoken);
             }).observe(document.querySelector("#state-seconds"), {childList: true});
           })"""
    )
    assert await changes == []
    gate.open()
    await tab.shows(1)


async def test_api_5_everything_can_be_done_with_the_keyboard(tab: Tab, env: Environment) -> None:
    await tab.open()
    await expect(tab.text).to_be_focused()
    await tab.send("Hi")
    await tab.shows(1)
    await expect(tab.text).to_be_focused()
    async with http_client(tab.url) as http:
        (await http.patch(f"/workflow/{tab.session}", json={"tool_policy": {"pay": "ask"}})).raise_for_status()
    env.vendor.script = [asks(("pay", {"amount": 12})), says("Paid.")]
    await tab.send("Pay")
    await expect(tab.page.locator(".approval")).to_be_visible()
    for _ in range(20):
        await tab.page.keyboard.press("Shift+Tab")
        if await tab.button("Approve").evaluate("(button) => button === document.activeElement"):
            break
    await tab.page.keyboard.press("Enter")
    await tab.shows(2)


async def test_api_5_on_a_small_screen_the_session_list_opens_as_an_overlay(tab: Tab) -> None:
    await tab.emulate(viewport=PHONE)
    await tab.open()
    opener = tab.button("Sessions")
    await expect(tab.page.get_by_label("Search sessions")).to_be_hidden()
    await opener.click()
    await expect(tab.page.get_by_label("Search sessions")).to_be_visible()
    await expect(tab.page.locator("#main")).to_have_attribute("inert", "")
    await tab.page.keyboard.press("Escape")
    await expect(tab.page.get_by_label("Search sessions")).to_be_hidden()
    await expect(opener).to_be_focused()
    assert await tab.page.evaluate("document.documentElement.scrollWidth") == 390


async def test_api_5_with_a_phone_keyboard_the_log_and_all_main_controls_stay_in_view(
    tab: Tab, env: Environment
) -> None:
    await tab.emulate(viewport={"width": 390, "height": 420})
    env.vendor.script = [[Delta("respond", "Some"), Gate(is_open=False), says("Some text.")]]
    await tab.open()
    await tab.send("Hi")
    await expect(tab.growing).to_have_text("Some")
    for number in range(8):
        await tab.send(f"and number {number}, which is long enough to need more than a line of its own")
    await expect(tab.queue).to_have_count(8)
    for lines, part_of_the_screen in ((1, 1 / 3), (40, 1 / 5)):
        await tab.text.fill("a line\n" * lines)
        for needed in (tab.page.locator("#send"), tab.stop, tab.text, tab.queue.first.get_by_role("button")):
            await expect(needed).to_be_in_viewport(ratio=1)
        log = await tab.log.bounding_box()
        assert log is not None
        assert log["height"] >= 420 * part_of_the_screen


MOTION_ENDS = """async () => {
  const isOver = () => document.getAnimations().every((one) => one.playState === "finished");
  while (!isOver()) await new Promise(requestAnimationFrame);
}"""


async def test_api_5_reduced_motion_disables_all_animations(tab: Tab, env: Environment) -> None:
    gate = Gate(is_open=False)
    env.vendor.script = [[Delta("respond", "Some"), gate, says("Some text.")]]
    await tab.emulate(reduced_motion="reduce")
    await tab.open()
    await tab.send("Hi")
    await expect(tab.growing).to_have_text("Some")
    # An animation that runs once, for no time, is over before anyone could look.
    async with asyncio.timeout(BOUND):
        await tab.page.evaluate(MOTION_ENDS)
    gate.open()
    await tab.shows(1)
