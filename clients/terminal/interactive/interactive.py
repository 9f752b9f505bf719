"""A conversation at a terminal: what happens in the session is printed, and what is typed is done.

Three things go on at once, and none waits for another: the session's events are applied, typed prompts are sent, and
whatever moves on the screen is drawn again. It ends when one leaves, or with the session.
"""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import aclosing

from rich.console import RenderableType
from rich.text import Text

from turnkeeper.clients.python.errors import GatewayError
from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.clients.terminal import texts
from turnkeeper.clients.terminal.formatting import legible, signature
from turnkeeper.clients.terminal.interactive.chat_session import ChatSession
from turnkeeper.clients.terminal.interactive.input_handler import InputHandler
from turnkeeper.clients.terminal.interactive.screen import Screen
from turnkeeper.clients.terminal.interactive.terminal_style import Sign, TerminalStyle, wants_colour
from turnkeeper.clients.terminal.opening import OpenedSession, newest_page, resume_command
from turnkeeper.models.transcript.trajectory import ToolCall

FRAME_SECONDS = 0.1
"""Between two frames of what moves."""

MAX_ARGUMENT_CHARS = 4_000

GOODBYE_SECONDS = 2.0
"""How long one waits for what is done at leaving, before a word is said of it."""


class Interactive:
    """One person, one terminal, one session."""

    def __init__(self, gateway: GatewayClient, opened: OpenedSession, *, first: str | None, url: str | None) -> None:
        """Take the terminal. `first` is asked at once; `url` stands in the command that leads back."""
        self._gateway = gateway
        self._opened = opened
        self._first = first
        self._resume_command = resume_command(opened.session_id, url=url)
        colour = wants_colour()
        self._style = TerminalStyle(
            lambda: self._screen.size.columns, colour=colour, encoding=sys.stdout.encoding or "ascii"
        )
        self._screen = Screen(
            sys.stdout,
            sign=self._style.encodable(Sign.PROMPT),
            colour=colour,
            on_line=lambda line: self._input.line(line),
            on_interrupt=lambda: self._input.interrupt(),
            on_escape=lambda: self._input.escape(),
            on_change=lambda text: self._input.change(text),
        )
        self._session = ChatSession(opened.session_id, self._screen, self._style)
        self._input = InputHandler(self._session, gateway, self._screen)
        self._asked: set[str] = set()
        self._describing: asyncio.Task[None] | None = None
        self._has_failed = False

    async def run(self) -> int:
        """Return the exit code once one has left."""
        if self._first:
            self._input.send(self._first)
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

    # ---- what happens in the session

    async def _follow(self) -> None:
        session = self._session
        try:
            await self._describe()
            session.print(*self._header())
            if self._opened.page:
                session.open_at(self._opened.page)
            await self._show_news()
            async with aclosing(self._gateway.events(session.session_id, session.conversation.cursor)) as events:
                async for event in events:
                    if session.apply(event):
                        self._describing = asyncio.create_task(self._describe())
                    if session.must_reopen and not session.conversation.has_more:
                        page = await newest_page(self._gateway, session.session_id)
                        if page:
                            session.open_at(page)
                    await self._show_news()
            session.note(texts.SESSION_OVER.format(status=session.conversation.status))
        except GatewayError as error:
            self._has_failed = True
            session.error(str(error))
        self._screen.leave()

    async def _describe(self) -> None:
        with contextlib.suppress(GatewayError):  # asked again after the next turn
            self._session.description = await self._gateway.describe(self._session.session_id)
            self._session.refresh()

    def _header(self) -> list[RenderableType]:
        session, renderer = self._session, self._session.renderer
        about = session.description
        title = f"  {legible(about.title)}" if about and about.title else ""
        return [
            Text.assemble(("Turnkeeper", "bold"), f" {Sign.DOT} {session.session_id}{title}"),
            renderer.note(texts.model(about.model if about else None)),
            renderer.command(texts.COME_BACK_WITH.format(command=self._resume_command), style="dim"),
            renderer.note(texts.HINT),
        ]

    # ---- questions

    async def _show_news(self) -> None:
        """Print in full what is asked about, once, where the line that asks has no room for it; show the rest."""
        for call in self._session.conversation.awaiting_calls:
            if call.id not in self._asked:
                self._asked.add(call.id)
                whole = signature(call.name, call.args, max_chars=sys.maxsize, max_value_chars=sys.maxsize)
                if call.args_blob or whole != signature(call.name, call.args, max_chars=self._style.width - 6):
                    self._session.print("", *await self._question(call))
        self._session.refresh()

    async def _question(self, call: ToolCall) -> list[RenderableType]:
        renderer = self._session.renderer
        question = texts.ASK_WITH_ARGUMENTS.format(tool=legible(call.name))
        asks = Text(f"{Sign.QUESTION} {question}", style="bold yellow")
        if call.args_blob is None:
            return [asks, *renderer.arguments(call, style=""), ""]
        try:
            whole = await self._gateway.blob(self._session.session_id, call.args_blob.hash)
        except GatewayError as error:
            return [asks, renderer.error(texts.ARGUMENTS_UNREADABLE.format(error=error))]
        left_out = len(whole) - MAX_ARGUMENT_CHARS
        more = [renderer.note(texts.left_out(left_out, "more character"))] if left_out > 0 else []
        return [asks, Text(legible(whole[:MAX_ARGUMENT_CHARS])), *more, ""]

    # ---- moving and leaving

    async def _animate(self) -> None:
        while True:
            await asyncio.sleep(FRAME_SECONDS)
            if self._session.is_busy:
                self._session.state.ticks += 1
                self._session.refresh()

    async def _finish(self, finishing: asyncio.Task[None]) -> bool:
        """Let what was typed be sent and done; a further Ctrl-C breaks it off. Returns whether all of it was sent."""
        with _on_signals(finishing.cancel, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            await asyncio.wait([finishing], timeout=GOODBYE_SECONDS)
            if not finishing.done():
                self._session.note(texts.STILL_SENDING)
                await asyncio.wait([finishing])
        return not self._input.print_unsent()

    async def _say_goodbye(self) -> None:
        session = self._session
        if self._opened.is_new and not session.has_prompts:
            with contextlib.suppress(GatewayError, TimeoutError):
                async with asyncio.timeout(GOODBYE_SECONDS):
                    await self._gateway.end(session.session_id, reason=texts.NOTHING_SAID)
                session.note(texts.SESSION_ENDED)
                return
        if not session.conversation.is_over and not self._has_failed:
            goodbye = texts.SESSION_GOES_ON.format(command=self._resume_command)
            session.print("", session.renderer.command(goodbye))


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
