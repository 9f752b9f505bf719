"""Whatever can be longer than its box scrolls by the wheel, up to its last line, in every window (API-5)."""

import re
from collections.abc import Awaitable, Callable

import pytest
from playwright.async_api import FilePayload, Locator, Route, ViewportSize, expect

from tests.clients.page.tab import Tab, http_client
from tests.clients.page.test_accessibility import MOTION_ENDS
from tests.clients.page.test_sessions import started
from tests.harness import Environment, Gate, asks, says
from tests.waiting import until
from turnkeeper.models.transcript.conversation import ToolResult
from turnkeeper.models.transcript.model_call import ToolInvocation

WINDOWS: list[ViewportSize] = [
    {"width": 1920, "height": 1080},
    {"width": 1440, "height": 900},
    {"width": 1024, "height": 768},
    {"width": 900, "height": 700},
    {"width": 768, "height": 1024},
    {"width": 390, "height": 844},
]

LINES = [f"Line number {number} of many" for number in range(200)]

SESSIONS = [
    {
        "workflow_id": f"listed-{number}",
        "title": f"Session number {number}",
        "status": "open",
        "started_at": "2026-01-01T00:00:00Z",
        "last_activity_at": "2026-01-01T00:00:00Z",
        "turn_count": 1,
    }
    for number in range(60)
]

FILES: list[FilePayload] = [
    {"name": f"notes-{number}.txt", "mimeType": "text/plain", "buffer": b"note"} for number in range(20)
]

REPEAT_LAST_CHILD = "(box) => { for (let i = 0; i < 60; i++) box.append(box.lastElementChild.cloneNode(true)); }"

END_IS_IN_VIEW = """(box) => {
  const view = () => {
    const frame = box.getBoundingClientRect();
    return { top: Math.max(frame.top, 0), bottom: Math.min(frame.bottom, innerHeight) + 1 };
  };
  const end = () => {
    if (box instanceof HTMLTextAreaElement) {
      return { bottom: box.getBoundingClientRect().bottom + box.scrollHeight - box.clientHeight - box.scrollTop };
    }
    const last = [...box.childNodes].filter((node) => node instanceof Element || node.data.trim()).at(-1);
    if (last instanceof Element) return last.getBoundingClientRect();
    const text = document.createRange();
    text.setStart(last, last.length - 1);
    text.setEnd(last, last.length);
    return text.getBoundingClientRect();
  };
  return end().bottom <= view().bottom && end().bottom > view().top;
}"""
"""Whether the end of a box's last child, or its last letter, is in the part of the box that is in the window."""


# ---- the boxes, each with more than fits


async def list_of_sessions(tab: Tab, env: Environment) -> Locator:
    async def answer(route: Route) -> None:
        await route.fulfill(json={"sessions": SESSIONS, "next_cursor": "next"})

    await tab.page.route(re.compile(r"/workflow(\?.*)?$"), answer)
    await tab.load()
    await expect(tab.page.locator("#sessions a")).to_have_count(len(SESSIONS))
    return tab.page.locator("#sidebar nav")


async def conversation(tab: Tab, env: Environment) -> Locator:
    env.vendor.script = [says("\n\n".join(LINES))]
    await tab.open(await started(tab.url, "Write"))
    await tab.shows(1)
    return tab.log


async def result_of_a_tool(tab: Tab, env: Environment) -> Locator:
    async def look(call: ToolInvocation) -> ToolResult:
        return ToolResult(outcome="200 lines", content="\n".join(LINES))

    env.tools.run = look
    env.vendor.script = [asks(("look", {"path": "a"})), says("Done.")]
    await tab.open(await started(tab.url, "Look"))
    await tab.tools.locator("summary").click()
    return tab.tools.get_by_label("Result", exact=True)


async def text_to_approve(tab: Tab, env: Environment) -> Locator:
    await open_pending_call(tab, env)
    return tab.tools.get_by_label("What you decide on", exact=True)


async def conversation_that_waits_for_approval(tab: Tab, env: Environment) -> Locator:
    await open_pending_call(tab, env)
    await tab.page.locator(".approval p").first.evaluate(REPEAT_LAST_CHILD)
    return tab.log


async def open_pending_call(tab: Tab, env: Environment) -> None:
    await tab.open(await started(tab.url, tool_policy={"pay": "ask"}))
    env.vendor.script = [asks(("pay", {"text": "\n".join(LINES)})), says("Paid.")]
    await tab.send("Pay")
    await expect(tab.page.locator(".approval")).to_be_visible()


async def queue(tab: Tab, env: Environment) -> Locator:
    env.vendor.script = [Gate(is_open=False)]
    session = await started(tab.url)
    async with http_client(tab.url) as http:
        for number in range(20):
            (await http.post(f"/workflow/{session}/prompt", json={"message": f"Prompt {number}"})).raise_for_status()
    await tab.open(session)
    await expect(tab.queue).to_have_count(19)
    return tab.page.locator("#queue-list")


async def tasks(tab: Tab, env: Environment) -> Locator:
    await tab.open()
    await tab.page.locator("#tasks-panel").evaluate("(panel) => (panel.hidden = false)")
    box = tab.page.locator("#tasks-list")
    await box.evaluate("(box) => { box.append(document.createElement('li')); box.lastChild.textContent = 'A task'; }")
    await box.evaluate(REPEAT_LAST_CHILD)
    return box


async def files_of_the_prompt(tab: Tab, env: Environment) -> Locator:
    await tab.open()
    await tab.page.locator("#attach-input").set_input_files(FILES)
    box = tab.page.locator("#attachments")
    await box.evaluate(REPEAT_LAST_CHILD)
    return box


async def prompt(tab: Tab, env: Environment) -> Locator:
    await tab.open()
    await tab.text.fill("\n".join(LINES))
    return tab.text


async def notice(tab: Tab, env: Environment) -> Locator:
    await tab.open()
    await tab.page.locator("#notice").evaluate("(notice) => (notice.hidden = false)")
    box = tab.page.locator("#notice-words")
    await box.evaluate("(box, words) => (box.textContent = words)", " ".join(LINES))
    return box


async def context_dialog(tab: Tab, env: Environment) -> Locator:
    async def answer_long(route: Route) -> None:
        response = await route.fetch()
        context = await response.json()
        await route.fulfill(response=response, json={**context, "turns": context["turns"] * 60})

    await tab.page.route("**/context?*", answer_long)
    await tab.open(await started(tab.url, "Hi"))
    await tab.page.get_by_role("button", name="What the model remembers").click()
    await expect(tab.page.locator(".turns-in-context li")).to_have_count(60)
    return tab.page.locator("#context-dialog")


async def dialog(tab: Tab, env: Environment) -> Locator:
    await tab.open(await started(tab.url, title="A title " * 12))
    await tab.page.get_by_role("button", name="More about this session").click()
    await tab.button("End the session…").click()
    await tab.page.locator("#end-dialog form > p").evaluate("(p, words) => (p.textContent = words)", " ".join(LINES))
    return tab.page.locator("#end-dialog")


async def session_menu(tab: Tab, env: Environment) -> Locator:
    await tab.open(await started(tab.url))
    await tab.page.get_by_role("button", name="More about this session").click()
    box = tab.page.locator("#session-menu")
    await box.evaluate(REPEAT_LAST_CHILD)
    return box


Fill = Callable[[Tab, Environment], Awaitable[Locator]]

BOXES: list[Fill] = [
    list_of_sessions,
    conversation,
    result_of_a_tool,
    text_to_approve,
    conversation_that_waits_for_approval,
    queue,
    tasks,
    files_of_the_prompt,
    prompt,
    notice,
    context_dialog,
    dialog,
    session_menu,
]


@pytest.mark.parametrize("fill", BOXES, ids=[fill.__name__ for fill in BOXES])
async def test_api_5_the_wheel_reaches_the_end_of_every_box(tab: Tab, env: Environment, fill: Fill) -> None:
    """U1: in windows wider than 800 px the list of sessions could not be scrolled."""
    box = await fill(tab, env)
    tab.is_altered = True
    for window in WINDOWS:
        await tab.emulate(viewport=window)
        await _open_sidebar(tab, box)
        await box.evaluate("(box) => { box.scrollTop = 0; box.scrollIntoView({ block: 'nearest' }); }")
        assert await box.evaluate("(box) => box.scrollHeight > box.clientHeight + 1"), window
        await _scroll_to_end(tab, box)


async def test_api_5_the_sidebars_footer_stays_in_view(tab: Tab, env: Environment) -> None:
    box = await list_of_sessions(tab, env)
    for window in WINDOWS:
        await tab.emulate(viewport=window)
        await _open_sidebar(tab, box)
        await expect(tab.page.locator("#sidebar footer")).to_be_in_viewport(ratio=1)


async def _open_sidebar(tab: Tab, box: Locator) -> None:
    """Show the list of sessions where it is behind a button."""
    opener = tab.button("Sessions")
    is_in_sidebar = await box.evaluate("(box) => box.matches('#sidebar *')")
    if is_in_sidebar and await opener.is_visible() and await opener.get_attribute("aria-expanded") == "false":
        await opener.click()
        await tab.page.evaluate(MOTION_ENDS)


async def _scroll_to_end(tab: Tab, box: Locator) -> None:
    """Turn the wheel over a box until its end is in view. A box inside it may scroll first."""

    async def is_in_view() -> bool:
        await tab.page.mouse.move(*await _middle_of(box))
        await tab.page.mouse.wheel(0, 100_000)
        return bool(await box.evaluate(END_IS_IN_VIEW))

    await until(is_in_view)


async def _middle_of(box: Locator) -> tuple[float, float]:
    """Return the middle of the part of a box that is in the window."""
    x, y = await box.evaluate(
        """(box) => {
          const { left, right, top, bottom } = box.getBoundingClientRect();
          return [(Math.max(left, 0) + Math.min(right, innerWidth)) / 2,
                  (Math.max(top, 0) + Math.min(bottom, innerHeight)) / 2];
        }"""
    )
    return x, y
