"""A conversation at a terminal: prints the session's events and executes what is typed.

Three tasks run concurrently: one applies events, one sends typed prompts, and one redraws animations. The chat ends
when the user leaves or the session ends.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing

from rich.console import RenderableType
from rich.text import Text

from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.clients.python.request_sender import GatewayError
from turnkeeper.clients.terminal import texts
from turnkeeper.clients.terminal.formatting import legible
from turnkeeper.clients.terminal.interactive import renderer
from turnkeeper.clients.terminal.interactive.chat_session import ChatSession
from turnkeeper.clients.terminal.interactive.input_handler import InputHandler
from turnkeeper.clients.terminal.interactive.live_output import FRAME_SECONDS
from turnkeeper.clients.terminal.interactive.screen import Screen, Sign, TerminalStyle
from turnkeeper.clients.terminal.one_shot import OpenedSession, newest_page
from turnkeeper.models.transcript.attachments import Attachment

GOODBYE_SECONDS = 2.0
"""How long leaving may take before a note explains the delay."""


class Interactive:
    """A chat with one session at one terminal."""

    def __init__(
        self, gateway: GatewayClient, opened_session: OpenedSession, resume_command: Callable[[str], str]
    ) -> None:
        """`resume_command` returns the command that continues a session."""
        self._gateway = gateway
        self._opened_session = opened_session
        self._resume_command = resume_command(opened_session.session_id)
        self._style = TerminalStyle(
            lambda: self._screen.size.columns,
            colour=not os.environ.get("NO_COLOR"),
            encoding=sys.stdout.encoding or "ascii",
        )
        self._screen = Screen(
            sign=self._style.encodable(Sign.PROMPT),
            on_line=lambda line: self._input.on_line(line),
            on_interrupt=lambda: self._input.on_interrupt(),
            on_escape=lambda: self._input.on_escape(),
            on_change=lambda text: self._input.on_change(text),
        )
        self._session = ChatSession(opened_session.session_id, self._screen, self._style, resume_command)
        self._input = InputHandler(self._session, gateway, self._screen)
        self._description_task: asyncio.Task[None] | None = None
        self._has_failed = False

    async def run(self, first: str | None, attachments: Sequence[Attachment]) -> int:
        """Run until the user leaves or the session ends; return the exit code.

        `attachments` are sent with the prompt `first`, or without one with the first that is typed.
        """
        if attachments:
            self._input.attach(attachments)
        if first:
            self._input.send(first)
        with _on_signals(self._screen.leave, signal.SIGTERM, signal.SIGHUP):
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._follow()),
                    group.create_task(self._input.send_prompts()),
                    group.create_task(self._animate()),
                ]
                await self._screen.run()
                is_all_sent = await self._finish(group.create_task(self._input.finish()))
                for task in tasks:
                    task.cancel()
        await self._say_goodbye()
        return int(self._has_failed or not is_all_sent)

    # ---- events

    async def _follow(self) -> None:
        session = self._session
        try:
            await self._describe()
            session.print(*self._header())
            if self._opened_session.page:
                session.open_at(self._opened_session.page)
            await self._input.load_question()
            async with aclosing(self._gateway.events(session.session_id, session.conversation.cursor)) as events:
                async for event in events:
                    if session.apply(event):
                        self._description_task = asyncio.create_task(self._describe())
                    if session.must_reopen and not session.conversation.has_more:
                        page = await newest_page(self._gateway, session.session_id)
                        if page:
                            session.open_at(page)
                    await self._input.load_question()
            session.note(texts.session_over(session.conversation.status))
        except GatewayError as error:
            self._has_failed = True
            session.error(str(error))
        self._screen.leave()

    async def _describe(self) -> None:
        with contextlib.suppress(GatewayError):  # read again after the next turn
            self._session.description = await self._gateway.describe(self._session.session_id)
            self._session.refresh()

    def _header(self) -> list[RenderableType]:
        session, description = self._session, self._session.description
        title = f"  {legible(description.title)}" if description and description.title else ""
        return [
            Text.assemble(("Turnkeeper", "bold"), f" {Sign.DOT} {session.session_id}{title}"),
            renderer.note(session.model_line),
            renderer.command(f"  {texts.RESUME_WITH.format(command=self._resume_command)}", style="dim"),
            renderer.note(texts.HINT),
        ]

    # ---- animation and leaving

    async def _animate(self) -> None:
        while True:
            await asyncio.sleep(FRAME_SECONDS)
            if self._session.is_busy:
                self._session.refresh()

    async def _finish(self, finishing: asyncio.Task[None]) -> bool:
        """Wait until all prompts are sent; a Ctrl-C ends the wait. Return whether all were sent."""
        with _on_signals(finishing.cancel, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            await asyncio.wait([finishing], timeout=GOODBYE_SECONDS)
            if not finishing.done():
                self._session.note(texts.STILL_SENDING)
                await asyncio.wait([finishing])
        return not self._input.print_unsent()

    async def _say_goodbye(self) -> None:
        session = self._session
        if self._opened_session.is_new and not session.has_prompts:
            with contextlib.suppress(GatewayError, TimeoutError):
                async with asyncio.timeout(GOODBYE_SECONDS):
                    await self._gateway.end(session.session_id, reason=texts.NO_PROMPTS_REASON)
                session.note(texts.SESSION_ENDED)
                return
        if not session.conversation.is_over and not self._has_failed:
            goodbye = texts.SESSION_GOES_ON.format(command=self._resume_command)
            session.print("", renderer.command(goodbye))


@contextlib.contextmanager
def _on_signals(action: Callable[[], object], *signals: signal.Signals) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number in signals:
        loop.add_signal_handler(number, action)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
