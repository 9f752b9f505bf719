"""The progress of running tools in the terminal: AGT-7."""

from pathlib import Path

from tests.api.live.test_progress import reporting, started
from tests.clients.terminal.conftest import Chat
from tests.harness import Environment, asks, says


async def test_agt_7_the_line_of_a_running_call_shows_its_progress(
    chat: Chat, env: Environment, tmp_path: Path
) -> None:
    calls = [
        reporting('"progress": 3, "total": 12, "message": "Reading\\npages"', until="one"),
        reporting('"progress": 1, "message": "\\u001b[31mred"'),
    ]
    env.vendor.script = [asks(*calls), says("Done.")]
    toolbox, session = await started(env, tmp_path)
    async with toolbox, chat("--session", session.handle.id, columns=120) as terminal:
        terminal.type("read")
        await terminal.until("3 of 12 (25 %) · Reading pages")
        await terminal.until("<U+001B>[31mred")
        (tmp_path / "one").touch()
        await terminal.until_gone("Reading pages")
        (tmp_path / "done").touch()
        await terminal.until("turn 1 ·")
        assert "of 12" not in terminal.on_screen
