"""The progress of a running tool on its card: AGT-7."""

from pathlib import Path

from playwright.async_api import expect

from tests.api.live.test_progress import reporting, started
from tests.clients.page.tab import Tab
from tests.harness import Environment, asks, says


async def test_agt_7_a_card_shows_the_progress_of_its_call_until_the_result(
    tab: Tab, env: Environment, tmp_path: Path
) -> None:
    hostile = '"progress": 2, "total": 100, "message": "<img src=x onerror=alert(1)>\\n\\u202etxt"'
    calls = reporting('"progress": 3, "total": 12, "message": "Reading pages"', until="one"), reporting(hostile)
    env.vendor.script = [asks(*calls), says("Done.")]
    toolbox, session = await started(env, tmp_path)
    async with toolbox:
        await tab.open(session.handle.id)
        await tab.send("Read.")
        progress = tab.tools.locator(".tool-progress")
        texts = ["3 of 12 (25 %) · Reading pages", "2 % · <img src=x onerror=alert(1)> <U+202E>txt"]
        await expect(progress).to_have_text(texts)
        await expect(tab.tools.locator("img")).to_have_count(0)
        await tab.page.reload()
        await expect(progress).to_have_text(texts)
        (tmp_path / "one").touch()
        await expect(tab.tools.first.locator(".tool-state")).to_have_text("done")
        await expect(progress).to_have_text(["", texts[1]])
        (tmp_path / "done").touch()
        await tab.shows(1)
        await expect(progress).to_have_text(["", ""])
