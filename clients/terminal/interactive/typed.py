"""What a typed line does: it is a prompt, an answer to a question, or a command.

Prompts are sent one after the other, in the order in which they were typed, each with its own id. Everything else is
done at once, so that a stop does not wait behind what it is to stop.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import uuid4

from pydantic import ValidationError
from rich.table import Table
from rich.text import Text

from turnkeeper.clients.python.errors import GatewayError
from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.clients.terminal.interactive.commands import HELP, Command, NotUnderstood, number, read_command
from turnkeeper.clients.terminal.interactive.decisions import Verdict, read_verdict
from turnkeeper.clients.terminal.interactive.live import OnItsWay
from turnkeeper.clients.terminal.interactive.screen import Screen
from turnkeeper.clients.terminal.interactive.sitting import Sitting
from turnkeeper.clients.terminal.words import legible
from turnkeeper.models.session.queue.prompts import PromptMode, sentence_of
from turnkeeper.models.session.session import Configure
from turnkeeper.models.transcript.conversation import ConversationMessage


class Typed:
    """Does what is typed at a sitting."""

    def __init__(self, sitting: Sitting, gateway: GatewayClient, screen: Screen) -> None:
        """Do it through `gateway`; `screen` is where it was typed."""
        self._sitting = sitting
        self._gateway = gateway
        self._screen = screen
        self._session_id = sitting.session_id
        self._outbox: asyncio.Queue[tuple[OnItsWay, PromptMode]] = asyncio.Queue()
        self._unsent: list[OnItsWay] = []
        """What no gateway has answered for; the first of it is being sent."""
        self._deeds: set[asyncio.Task[None]] = set()
        self._meant: str | None = None
        """The call that was asked about when the line began to be typed."""
        self._leaves_next = False
        self._started_here: set[str] = set()
        """The turns whose prompts were sent from here."""

    # ---- keys

    def notice(self, text: str) -> None:
        """Note that the line has changed to `text`."""
        self._leaves_next = False
        question = self._sitting.question
        if not text or self._meant is None:
            self._meant = question.id if question and text else None

    def interrupt(self) -> None:
        """Do what Ctrl-C does: stop a turn that was started here; leave one of somebody else to run (API-6)."""
        running = self._sitting.conversation.running_turn
        if running and running.id in self._started_here and self._sitting.stopping != running.id:
            self._stop(running)
        elif self._leaves_next:
            self._screen.leave()
        elif self._screen.typed:
            self._screen.clear_typed()
        elif running and running.id not in self._started_here:
            self._screen.leave()
        else:
            self._sitting.remark("Ctrl-C again leaves; the session goes on.")
            self._leaves_next = True

    def escape(self) -> None:
        """Do what Esc does: stop a turn that was started here, and never leave."""
        running = self._sitting.conversation.running_turn
        if running is None or self._sitting.stopping == running.id:
            return
        if running.id in self._started_here:
            self._stop(running)
        else:
            self._sitting.remark("This turn was not started here. /stop stops it.")

    def line(self, line: str) -> None:
        """Do what was typed."""
        meant, self._meant = self._meant, None
        try:
            understood = read_command(line)
            if isinstance(understood, Command):
                self._command(understood)
            elif self._sitting.question and (verdict := read_verdict(understood)):
                self._decide(verdict, meant)
            else:
                self._prompt(understood)
        except NotUnderstood as problem:
            self._sitting.trouble(str(problem))
            # A line that is being taken is emptied first.
            asyncio.get_running_loop().call_soon(self._give_back, line)
        self._sitting.refresh()

    def _give_back(self, text: str) -> None:
        """Put what was not taken back into the line; where something else stands there by then, print it."""
        if not self._screen.give_back(text):
            self._sitting.remark(legible(text))

    # ---- prompts

    def _prompt(self, text: str, mode: PromptMode = "enqueue") -> None:
        prompt = OnItsWay(str(uuid4()), text)
        self._started_here.add(prompt.message_id)
        self._sitting.on_its_way.append(prompt)
        self._unsent.append(prompt)
        self._outbox.put_nowait((prompt, mode))

    def ask(self, text: str) -> None:
        """Send a prompt that was not typed here."""
        self._prompt(text)

    async def send_prompts(self) -> None:
        """Send what was typed, in its order, for ever."""
        while True:
            prompt, mode = await self._outbox.get()
            try:
                await self._gateway.prompt(self._session_id, prompt.text, message_id=prompt.message_id, mode=mode)
            except GatewayError as error:
                self._sitting.trouble(f"Not sent: {error}")
                self._sitting.on_its_way = [other for other in self._sitting.on_its_way if other != prompt]
                self._give_back(prompt.text)
            self._unsent.remove(prompt)
            self._outbox.task_done()
            self._sitting.refresh()

    # ---- questions

    def _decide(self, verdict: Verdict, meant: str | None) -> None:
        call = self._sitting.question
        if call is None or call.approval is None or call.id != meant:
            raise NotUnderstood("The question changed while you were typing. Read it and answer again.")
        self._do(
            self._gateway.decide(
                self._session_id,
                call.id,
                args_digest=call.approval.args_digest,
                decision=verdict.decision,
                reason=verdict.reason,
            )
        )

    # ---- commands

    def _command(self, command: Command) -> None:
        deeds: dict[str, Callable[[str], None]] = {
            "queue": self._show_queue,
            "remove": self._remove,
            "steer": lambda text: self._prompt(text, "steer"),
            "interrupt": lambda text: self._prompt(text, "interrupt"),
            "retry": self._retry,
            "stop": self._stop_running,
            "details": lambda text: self._do(self._details(text)),
            "model": self._model,
            "title": self._title,
            "open": lambda text: self._do(self._links()),
            "help": self._help,
            "quit": lambda text: self._screen.leave(),
        }
        deeds[command.name](command.text)

    def _show_queue(self, _: str) -> None:
        waiting = self._sitting.conversation.waiting
        if not waiting:
            self._sitting.remark("No prompt is queued.")
        for prompt in waiting:
            joins = f" ({prompt.mode})" if prompt.mode != "enqueue" else ""
            self._sitting.remark(f"{prompt.position}{joins}  {legible(prompt.text)}")

    def _remove(self, text: str) -> None:
        waiting = self._sitting.conversation.waiting
        self._do(self._gateway.withdraw(self._session_id, waiting[number(text, most=len(waiting)) - 1].id))

    def _retry(self, _: str) -> None:
        failed = next((turn for turn in reversed(self._sitting.conversation.turns) if turn.is_error), None)
        self._do(self._send_again(failed.id if failed else None))

    async def _send_again(self, turn_id: str | None) -> None:
        accepted = await self._gateway.retry(self._session_id, message_id=turn_id)
        self._started_here.add(accepted.message_id)

    def _stop_running(self, _: str) -> None:
        running = self._sitting.conversation.running_turn
        if running is None:
            raise NotUnderstood("No turn is running.")
        self._stop(running)

    def _stop(self, turn: ConversationMessage) -> None:
        self._sitting.stopping = turn.id
        self._sitting.remark("Stopping this turn; the session goes on. Ctrl-C again leaves.")
        self._leaves_next = True
        self._sitting.refresh()
        self._do(self._gateway.cancel(self._session_id, message_id=turn.id))

    async def _details(self, text: str) -> None:
        narrator, turns = self._sitting.narrator, self._sitting.conversation.turns
        newest = narrator.number_of(turns[-1].id) if turns else None
        wanted = number(text, most=newest or 0) if text else newest
        if wanted is None:
            raise NotUnderstood("There is no turn yet.")
        held = next((turn for turn in turns if narrator.number_of(turn.id) == wanted), None)
        turn = held if held and not (held.steps_omitted and held.is_complete) else await self._archived(wanted)
        if turn is None:
            raise NotUnderstood(f"Turn {wanted} can't be read now.")
        self._sitting.say(*self._sitting.painter.opened(turn, wanted))

    async def _archived(self, wanted: int) -> ConversationMessage | None:
        async for page in self._gateway.transcript(self._session_id):
            first = page.first_number or 1
            if first <= wanted:
                return page.messages[wanted - first] if wanted - first < len(page.messages) else None
        return None

    def _model(self, name: str) -> None:
        if name:
            self._do(self._configure(f"The model is {name} from the next turn on.", model=name))
        else:
            about = self._sitting.about
            self._sitting.remark(
                f"The model is {about.model}." if about and about.model else "The model is not known now."
            )

    def _title(self, title: str) -> None:
        if title:
            self._do(self._configure(f"The title is {title!r}.", title=title))
        else:
            about = self._sitting.about
            self._sitting.remark(legible(about.title) if about and about.title else "It has no title yet.")

    async def _configure(self, done: str, **change: str) -> None:
        await self._gateway.configure(self._session_id, Configure.model_validate(change))
        self._sitting.remark(done)
        self._sitting.about = await self._gateway.describe(self._session_id)

    async def _links(self) -> None:
        links = (await self._gateway.describe(self._session_id)).links
        chat = links.chat or f"/?session={self._session_id}"
        self._sitting.remark(chat if "://" in chat else f"{self._gateway.url}{chat}")
        if links.temporal:
            self._sitting.remark(links.temporal)

    def _help(self, _: str) -> None:
        table = Table.grid(padding=(0, 2))
        table.add_row()
        for name, (takes, does) in HELP.items():
            table.add_row(Text(f"  /{name} {takes}".rstrip(), style="bold"), Text(does, style="dim"))
        keys = [
            ("Enter, Alt-Enter", "send; begin a new line"),
            ("Esc", "stop the running turn, if it was started here"),
            ("Ctrl-C", "the same; leave where there is nothing to stop, or pressed twice"),
            ("y, a, n REASON", "decide on the call above the line: yes, always in this session, or no"),
        ]
        for key, does in keys:
            table.add_row(Text(f"  {key}", style="bold"), Text(does, style="dim"))
        self._sitting.say(table)

    # ---- doing

    def _do(self, deed: Coroutine[Any, Any, Any]) -> None:
        """Do something without holding up the line."""
        task = asyncio.create_task(self._done(deed))
        self._deeds.add(task)
        task.add_done_callback(self._deeds.discard)

    async def _done(self, deed: Coroutine[Any, Any, Any]) -> None:
        try:
            await deed
        except (GatewayError, NotUnderstood) as problem:
            self._sitting.trouble(str(problem))
        except ValidationError as error:
            self._sitting.trouble(f"Not done: {sentence_of(error)}")
        except asyncio.CancelledError:
            self._sitting.trouble("The last action was not confirmed. It may not have been done.")
            raise
        self._sitting.refresh()

    # ---- leaving

    async def finish(self) -> None:
        """Wait until everything that was typed is sent and done."""
        await asyncio.gather(*self._deeds, return_exceptions=True)
        await self._outbox.join()

    def say_unsent(self) -> bool:
        """Print the prompts that will not be sent any more; returns whether there are any."""
        for place, prompt in enumerate(self._unsent):
            self._sitting.trouble(f"{'Not sent' if place else 'May not have arrived'}: {prompt.text}")
        return bool(self._unsent)
