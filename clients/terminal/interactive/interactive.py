"""A conversation at a terminal: what the session tells is printed as it happens, and what is typed is done.

Three things go on at once, and none waits for another: the session's events are taken in, typed prompts are sent, and
whatever moves on the screen is drawn again. It ends when one leaves, or with the session.
"""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import aclosing
from datetime import UTC, datetime

from rich.console import RenderableType
from rich.text import Text

from turnkeeper.clients.python.errors import GatewayError
from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.clients.terminal.interactive.look import Look, wants_colour
from turnkeeper.clients.terminal.interactive.narrator import Ended
from turnkeeper.clients.terminal.interactive.screen import Screen
from turnkeeper.clients.terminal.interactive.sitting import Sitting
from turnkeeper.clients.terminal.interactive.typed import Typed
from turnkeeper.clients.terminal.opening import Opened, newest_page, way_back
from turnkeeper.clients.terminal.words import counted, fits_in_a_line, legible
from turnkeeper.models.transcript.trajectory import ToolCall

FRAME_SECONDS = 0.1
"""Between two pictures of what moves."""

MOST_ARGUMENT_CHARS = 4_000

GOODBYE_SECONDS = 2.0
"""So long one waits for what is done at leaving, before a word is said of it."""


class Interactive:
    """One person, one terminal, one session."""

    def __init__(self, gateway: GatewayClient, opened: Opened, *, first: str | None, url: str | None) -> None:
        """Take the terminal. `first` is asked at once; `url` stands in the command that leads back."""
        self._gateway = gateway
        self._opened = opened
        self._first = first
        self._way_back = way_back(opened.session_id, url=url)
        colour = wants_colour()
        self._look = Look(lambda: self._screen.size.columns, colour=colour, encoding=sys.stdout.encoding or "ascii")
        self._screen = Screen(
            sys.stdout,
            sign=self._look.sign("prompt"),
            colour=colour,
            on_line=lambda line: self._typed.line(line),
            on_interrupt=lambda: self._typed.interrupt(),
            on_escape=lambda: self._typed.escape(),
            on_key=lambda text: self._typed.notice(text),
        )
        self._sitting = Sitting(
            opened.session_id,
            self._screen,
            self._look,
            rows=lambda: self._screen.size.rows,
            now=lambda: datetime.now(UTC),
        )
        self._typed = Typed(self._sitting, gateway, self._screen)
        self._asked: set[str] = set()
        self._describing: asyncio.Task[None] | None = None
        self._failed = False

    async def run(self) -> int:
        """Return the exit code once one has left."""
        if self._first:
            self._typed.ask(self._first)
        with _told_by(self._screen.leave, signal.SIGTERM, signal.SIGHUP):
            async with asyncio.TaskGroup() as group:
                going_on = [
                    group.create_task(self._follow()),
                    group.create_task(self._typed.send_prompts()),
                    group.create_task(self._animate()),
                ]
                await self._screen.run()
                is_all_sent = await self._finish(group.create_task(self._typed.finish()))
                for task in going_on:
                    task.cancel()
        await self._say_goodbye()
        return int(self._failed or not is_all_sent)

    # ---- what the session tells

    async def _follow(self) -> None:
        try:
            await self._begin()
            async with aclosing(
                self._gateway.events(self._sitting.session_id, self._sitting.conversation.cursor)
            ) as events:
                async for event in events:
                    news = self._sitting.take(event)
                    if any(isinstance(item, Ended) for item in news):
                        self._describe_soon()
                    if self._sitting.has_to_reopen and not self._sitting.conversation.has_more:
                        await self._reopen()
                    await self._ask_questions()
                    self._sitting.refresh()
            self._sitting.remark(f"The session is over ({self._sitting.conversation.status}).")
        except GatewayError as error:
            self._failed = True
            self._sitting.trouble(str(error))
        self._screen.leave()

    async def _begin(self) -> None:
        await self._describe()
        self._sitting.say(*self._header())
        if self._opened.page:
            self._sitting.open_at(self._opened.page)
        await self._ask_questions()
        self._sitting.refresh()

    async def _reopen(self) -> None:
        page = await newest_page(self._gateway, self._sitting.session_id)
        if page:
            self._sitting.open_at(page)

    async def _describe(self) -> None:
        with contextlib.suppress(GatewayError):  # it is told at another time
            self._sitting.about = await self._gateway.describe(self._sitting.session_id)
            self._sitting.refresh()

    def _describe_soon(self) -> None:
        self._describing = asyncio.create_task(self._describe())

    def _header(self) -> list[RenderableType]:
        about = self._sitting.about
        title = f"  {legible(about.title)}" if about and about.title else ""
        lines = [
            Text.assemble(("Turnkeeper", "bold"), (f" {self._look.sign('dot')} {self._sitting.session_id}{title}", "")),
            self._sitting.painter.aside(_model_words(about.model if about else None)),
            self._sitting.painter.command(f"  Come back with: {self._way_back}", style="dim"),
            self._sitting.painter.aside(
                "/help lists the commands. Ctrl-C stops a turn that you started; twice leaves."
            ),
        ]
        return list(lines)

    # ---- questions

    async def _ask_questions(self) -> None:
        """Print in full what is asked about, once, where the line that asks has no room for it."""
        for call in self._sitting.conversation.awaiting_calls:
            if call.id not in self._asked:
                self._asked.add(call.id)
                if call.args_blob is None and fits_in_a_line(call.name, call.args, most=self._look.width - 6):
                    continue  # the line that asks says it all
                self._sitting.say(*await self._question(call))

    async def _question(self, call: ToolCall) -> list[RenderableType]:
        sign = self._look.sign("asks")
        asks = Text(f"{sign} Run {legible(call.name)} with these arguments?", style="bold yellow")
        if call.args_blob is None:
            return [Text(""), asks, *self._sitting.painter.arguments(call, style=""), Text("")]
        try:
            whole = await self._gateway.blob(self._sitting.session_id, call.args_blob.hash)
        except GatewayError as error:
            return [Text(""), asks, self._sitting.painter.trouble(f"Its arguments can't be read: {error}")]
        left_out = len(whole) - MOST_ARGUMENT_CHARS
        more = [self._sitting.painter.aside(f"… {counted(left_out, 'more character')}")] if left_out > 0 else []
        return [Text(""), asks, Text(legible(whole[:MOST_ARGUMENT_CHARS])), *more, Text("")]

    # ---- moving and leaving

    async def _animate(self) -> None:
        while True:
            await asyncio.sleep(FRAME_SECONDS)
            if self._sitting.is_busy:
                self._sitting.refresh(moved=True)

    async def _finish(self, finishing: asyncio.Task[None]) -> bool:
        """Let what was typed be sent and done; a further Ctrl-C breaks it off. Returns whether all of it was sent."""
        with _told_by(finishing.cancel, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            await asyncio.wait([finishing], timeout=GOODBYE_SECONDS)
            if not finishing.done():
                self._sitting.remark("Still sending what was typed; Ctrl-C leaves without.")
                await asyncio.wait([finishing])
        return not self._typed.say_unsent()

    async def _say_goodbye(self) -> None:
        if self._opened.is_new and not self._sitting.has_begun:
            with contextlib.suppress(GatewayError, TimeoutError):
                async with asyncio.timeout(GOODBYE_SECONDS):
                    await self._gateway.end(self._sitting.session_id, reason="Nothing was said.")
                self._sitting.remark("Nothing was said, so the session was ended.")
                return
        if not self._sitting.conversation.is_over and not self._failed:
            self._sitting.say(
                Text(""),
                self._sitting.painter.command(f"The session goes on. Come back with: {self._way_back}"),
            )


def _model_words(model: str | None) -> str:
    """Say which model it is, and what it means if it is none of a vendor.

    >>> _model_words("anthropic:claude-opus-5-5")
    'Model: anthropic:claude-opus-5-5'
    >>> _model_words("offline:")
    'Model: offline: (the built-in demo model: it works offline and uses real tools)'
    >>> _model_words("offline:script/story.json")
    'Model: offline:script/story.json'
    """
    if model is None:
        return "Model: not known, as no worker is running. What you send is safe."
    if model == "offline:":
        return f"Model: {model} (the built-in demo model: it works offline and uses real tools)"
    return f"Model: {model}"


@contextlib.contextmanager
def _told_by(told: Callable[[], object], *signals: signal.Signals) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number in signals:
        loop.add_signal_handler(number, told)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
