"""`make pictures`: the README's pictures, taken of the real chat page and the real terminal.

A stack like the demo's is started, a conversation is played with a scripted model, and both are photographed while a
tool call waits for approval and another prompt waits behind it. Needs a Chromium; nothing is loaded from elsewhere.
"""

import asyncio
import json
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pyte
from playwright.async_api import Page, async_playwright
from terminal_picture import FaintScreen, svg_of

from tests.clients.terminal.terminal import Terminal, terminal_with
from turnkeeper.clients.python.conversation import Conversation
from turnkeeper.clients.python.events import UpdateEvent
from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.ops.demo.environment import DemoEnvironment, demo_environment
from turnkeeper.ops.local.supervisor import own_command

PICTURES = Path(__file__).with_name("pictures")
MOST_BYTES = 400_000
"""Of a picture in a README that people load over the phone."""

WIDTH, HEIGHT = 1440, 900
MOST_HEIGHT = 1300
"""The window is made as high as the conversation needs, up to this."""

SCALES = (2.0, 1.5, 1.0)
"""Pixels of the picture for one of the page: the finest that stays within `MOST_BYTES`."""

SESSION = "release-1-4"
BOUND = 60.0

CHANGES = """\
# Changes

## Unreleased
- Sessions continue as new in the middle of a turn.
- A killed worker is missed after 6 s, not after 60.
- `GET /conversation` takes `since_revision`.

## 1.3
- Approvals expire after a day.
"""

NOTES = """\
# 1.4

- A turn of 500 tool calls is no problem any more.
- After a crash the answer goes on within 10 s.
- Clients may send `since_revision`.
"""

SCRIPT = {
    "responses": [
        {
            "think": "The changes are in CHANGES.md. I should read it before I say anything about it.",
            "calls": [{"name": "file_read", "args": {"path": "CHANGES.md"}}],
        },
        {
            "text": (
                "Three changes since **1.3**:\n\n"
                "| change | who notices |\n|---|---|\n"
                "| a turn can continue as new | sessions with very long turns |\n"
                "| a killed worker is missed after 6 s | everyone, after a crash |\n"
                "| `since_revision` in `GET /conversation` | clients; they may send it |\n\n"
                "Only the last one shows on the wire, and it is optional."
            ),
        },
        {
            "think": "The notes belong beside the changes. Writing a file needs somebody's consent.",
            "calls": [{"name": "file_write", "args": {"path": "notes/1.4.md", "content": NOTES}}],
        },
        {"text": "The notes are in `notes/1.4.md`."},
        {"text": "Nothing is open."},
    ]
}

PROMPTS = (
    "What changed since 1.3, and who will notice?",
    "Write release notes for it to notes/1.4.md",
    "Is anything still open?",
)

HIDDEN_HEIGHT = """
Math.max(...[...document.querySelectorAll("main, main *")].map(
  (element) => getComputedStyle(element).overflowY === "auto" ? element.scrollHeight - element.clientHeight : 0))
"""
"""How much of the conversation has to be scrolled to."""

OTHERS = {"harbour": "Harbour timetable", "invoices": "Invoices of October", "parser": "A test for the parser"}
"""Sessions that make a list, by their ids."""


async def main() -> None:
    """Take all pictures."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="turnkeeper-pictures-") as folder:
        async with demo_environment(Path(folder)) as environment:
            _furnish(environment)
            await environment.start()
            await _play(environment)
            await _photograph_page(environment)
            await _photograph_chat(environment)
    await _photograph_demo()


def _furnish(environment: DemoEnvironment) -> None:
    """Put the workspace's files and the model's script in their places."""
    (environment.workspace / "CHANGES.md").write_text(CHANGES)
    scripts = environment.folder / "state" / "scripts"
    scripts.mkdir(parents=True)
    (scripts / "release.json").write_text(json.dumps(SCRIPT))


async def _play(environment: DemoEnvironment) -> None:
    """Have a session in which a call waits for approval and a prompt waits for its turn, and a few others."""
    async with GatewayClient(environment.url) as gateway:
        for session_id, title in OTHERS.items():
            await gateway.start(session_id, title=title, user="mira")
            await gateway.ask(session_id, "list files", wait=BOUND)
        await gateway.end("invoices")
        await _start(gateway, SESSION)
        await gateway.ask(SESSION, PROMPTS[0], wait=BOUND)
        await gateway.prompt(SESSION, PROMPTS[1])
        await _until(gateway, lambda conversation: bool(conversation.awaiting_calls))
        await gateway.prompt(SESSION, PROMPTS[2])
        await _until(gateway, lambda conversation: conversation.queue_length == 1)


async def _start(gateway: GatewayClient, session_id: str) -> None:
    await gateway.start(
        session_id, title="Release 1.4", user="mira", model="offline:script/release", tool_policy={"file_write": "ask"}
    )


async def _until(gateway: GatewayClient, holds: Callable[[Conversation], bool]) -> None:
    conversation = Conversation()
    async with asyncio.timeout(BOUND):
        async for event in gateway.events(SESSION):
            if isinstance(event, UpdateEvent):
                conversation.apply(event.update)
            if holds(conversation):
                return


async def _photograph_page(environment: DemoEnvironment) -> None:
    """Write `page.png` and `page-dark.png`."""
    for name, scheme in (("page", "light"), ("page-dark", "dark")):
        picture = b""
        for scale in SCALES:
            async with _page(environment, scheme=scheme, scale=scale) as page:
                picture = await page.screenshot()
            if len(picture) <= MOST_BYTES:
                break
        (PICTURES / f"{name}.png").write_bytes(picture)


@asynccontextmanager
async def _page(environment: DemoEnvironment, *, scheme: str, scale: float) -> AsyncIterator[Page]:
    """Open the session's page, and have all of it there."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=shutil.which("chromium") or shutil.which("google-chrome"), args=["--no-sandbox"]
        )
        page = await browser.new_page(
            viewport={"width": WIDTH, "height": HEIGHT},
            device_scale_factor=scale,
            color_scheme="dark" if scheme == "dark" else "light",
            reduced_motion="reduce",
        )
        await page.goto(f"{environment.url}/?session={SESSION}")
        await page.get_by_role("button", name="Approve").first.wait_for()
        await page.get_by_text(PROMPTS[2]).first.wait_for()
        await page.get_by_text(OTHERS["harbour"]).first.wait_for()
        hidden = await page.evaluate(HIDDEN_HEIGHT)
        await page.set_viewport_size({"width": WIDTH, "height": min(MOST_HEIGHT, HEIGHT + hidden)})
        yield page
        await browser.close()


async def _photograph_chat(environment: DemoEnvironment) -> None:
    """Write `terminal.svg`: the same conversation, held in a terminal."""
    session_id = "release-notes"
    async with GatewayClient(environment.url) as gateway:
        await _start(gateway, session_id)
    command = own_command("chat", "--url", environment.url, "--session", session_id)
    async with terminal_with(command, env=_environment(), cwd=environment.folder, columns=100, rows=46) as terminal:
        await terminal.until(session_id)
        terminal.type(PROMPTS[0])
        await terminal.until("and it is optional.")
        terminal.type(PROMPTS[1])
        await terminal.until("needs your approval", bound=BOUND)
        _save(terminal, "terminal", title="turnkeeper chat")


async def _photograph_demo() -> None:
    """Write `demo.svg`: a demo from its first line to its verdict."""
    command = own_command("demo")
    async with terminal_with(command, env=_environment(), cwd=PICTURES, columns=100, rows=80) as terminal:
        if await terminal.exit_code(bound=2 * BOUND):
            raise RuntimeError(f"The demo failed:\n{terminal.text}")
        await terminal.until("everything in order.")
        _save(terminal, "demo", title="turnkeeper demo")


def _environment() -> dict[str, str]:
    """Have colours, whatever the terminal is that this was started in, and `turnkeeper` as a command without a path."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "COLORTERM": "truecolor", "NO_COLOR": ""}


def _save(terminal: Terminal, name: str, *, title: str) -> None:
    """Write what was recorded, as it stands on the screen now."""
    screen = FaintScreen(terminal.screen.columns, terminal.screen.lines)
    stream = pyte.ByteStream(screen)
    for _, written in terminal.recording:
        stream.feed(written)
    (PICTURES / f"{name}.svg").write_text(svg_of(screen, title=title))


if __name__ == "__main__":
    asyncio.run(main())
