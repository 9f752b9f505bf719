"""`make pictures`: takes the README's pictures of the real chat page and terminal.

It starts a stack like the demo's, plays a conversation with a scripted model, and takes the pictures while a tool call
waits for approval and another prompt is queued. It needs Chromium, and no network.
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
from turnkeeper.clients.python.conversation import Conversation, UpdateEvent
from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.ops.demo.scenario import DemoEnvironment, demo_environment
from turnkeeper.ops.local.supervisor import own_command

PICTURES = Path(__file__).with_name("pictures")
MAX_BYTES = 400_000
"""The size limit of a picture, since people load the README on phones."""

WIDTH, HEIGHT = 1440, 900
MAX_HEIGHT = 1300
"""The window grows to fit the conversation, up to this height."""

SCALES = (2.0, 1.5, 1.0)
"""Device scale factors; the first whose picture fits into `MAX_BYTES` is used."""

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
"""The height of the conversation outside the viewport."""

OTHERS = {"harbour": "Harbour timetable", "invoices": "Invoices of October", "parser": "A test for the parser"}
"""Titles of other sessions for the list, by id."""


async def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="turnkeeper-pictures-") as folder:
        async with demo_environment(Path(folder)) as environment:
            _write_files(environment)
            await environment.start()
            await _play(environment)
            await _picture_page(environment)
            await _picture_chat(environment)
    await _picture_demo()


def _write_files(environment: DemoEnvironment) -> None:
    """Write the workspace's files and the model's script."""
    (environment.workspace / "CHANGES.md").write_text(CHANGES)
    scripts = environment.folder / "state" / "scripts"
    scripts.mkdir(parents=True)
    (scripts / "release.json").write_text(json.dumps(SCRIPT))


async def _play(environment: DemoEnvironment) -> None:
    """Start a session with a call that waits for approval and a queued prompt, and a few other sessions."""
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


async def _until(gateway: GatewayClient, is_true: Callable[[Conversation], bool]) -> None:
    conversation = Conversation()
    async with asyncio.timeout(BOUND):
        async for event in gateway.events(SESSION):
            if isinstance(event, UpdateEvent):
                conversation.apply(event.update)
            if is_true(conversation):
                return


async def _picture_page(environment: DemoEnvironment) -> None:
    """Write `page.png` and `page-dark.png`."""
    for name, scheme in (("page", "light"), ("page-dark", "dark")):
        picture = b""
        for scale in SCALES:
            async with _page(environment, scheme=scheme, scale=scale) as page:
                picture = await page.screenshot()
            if len(picture) <= MAX_BYTES:
                break
        (PICTURES / f"{name}.png").write_bytes(picture)


@asynccontextmanager
async def _page(environment: DemoEnvironment, *, scheme: str, scale: float) -> AsyncIterator[Page]:
    """Open the session's page and wait until it is complete."""
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
        await page.set_viewport_size({"width": WIDTH, "height": min(MAX_HEIGHT, HEIGHT + hidden)})
        yield page
        await browser.close()


async def _picture_chat(environment: DemoEnvironment) -> None:
    """Write `terminal.svg`: the same conversation in a terminal."""
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


async def _picture_demo() -> None:
    """Write `demo.svg`: the output of the whole demo."""
    command = own_command("demo")
    async with terminal_with(command, env=_environment(), cwd=PICTURES, columns=100, rows=80) as terminal:
        if await terminal.exit_code(bound=2 * BOUND):
            raise RuntimeError(f"The demo failed:\n{terminal.text}")
        await terminal.until("everything in order.")
        _save(terminal, "demo", title="turnkeeper demo")


def _environment() -> dict[str, str]:
    """Return an environment with colours, and with `turnkeeper` on PATH."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "COLORTERM": "truecolor", "NO_COLOR": ""}


def _save(terminal: Terminal, name: str, *, title: str) -> None:
    """Write the terminal's current screen."""
    screen = FaintScreen(terminal.screen.columns, terminal.screen.lines)
    stream = pyte.ByteStream(screen)
    for _, output in terminal.recording:
        stream.feed(output)
    (PICTURES / f"{name}.svg").write_text(svg_of(screen, title=title))


if __name__ == "__main__":
    asyncio.run(main())
