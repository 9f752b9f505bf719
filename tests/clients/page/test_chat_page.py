"""docs/chat-page.md: its words are those of the page, and what it describes works (API-5)."""

import re
from pathlib import Path

from playwright.async_api import expect

from tests.clients.page.tab import Tab
from tests.clients.page.test_sessions import started
from tests.harness import Environment, Gate, asks, says

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "chat-page.md").read_text()


def test_api_5_the_words_in_the_guide_are_those_of_the_page() -> None:
    texts = "".join((ROOT / "clients" / "page" / name).read_text() for name in ("index.html", "words.js"))
    words = {" ".join(word.split()) for word in re.findall(r"\*\*(.+?)\*\*", PAGE, re.DOTALL)}
    assert [word for word in words if not re.search(rf"[\">]\s*{re.escape(word)}\s*[\"<]", texts)] == []


async def test_api_5_the_guide_holds_from_the_first_prompt_to_the_approval(tab: Tab, env: Environment) -> None:
    first = Gate(is_open=False)
    env.vendor.script = [[first, says("It is noon.")], asks(("pay", {"amount": 12})), says("Paid.")]
    await tab.open(await started(tab.url, tool_policy={"pay": "ask"}))
    await tab.send("What time is it?")
    await expect(tab.stop).to_be_visible()
    await tab.page.get_by_role("radio", name="Queue").check()
    await tab.send("Pay")
    await expect(tab.queue).to_have_count(1)
    first.open()
    await expect(tab.page).to_have_title("(!) What time is it? · Turnkeeper")
    await expect(tab.tools.get_by_label("What you decide on", exact=True)).to_contain_text("amount: 12")
    await tab.button("Allow for this session").click()
    await tab.shows(2)
    assert [call.name for call in env.tools.calls] == ["pay"]
