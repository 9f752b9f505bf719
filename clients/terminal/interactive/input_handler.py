"""Parses and executes typed lines and keys.

A line is a command, which starts with a slash, a decision, or a prompt. Prompts are sent one after the other, in the
order in which they were typed. Everything else runs at once, so that a stop does not wait behind prompts.

A decision applies to the call that was shown when the line was begun: a question that appears meanwhile must not get
the answer to another one.
"""

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from pydantic import ValidationError
from rich.table import Table
from rich.text import Text

from turnkeeper.clients.python.attachments import read_attachment
from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.clients.python.request_sender import GatewayError
from turnkeeper.clients.terminal import texts
from turnkeeper.clients.terminal.formatting import attachment_problem
from turnkeeper.clients.terminal.interactive import renderer
from turnkeeper.clients.terminal.interactive.chat_session import ChatSession
from turnkeeper.clients.terminal.interactive.live_output import PendingPrompt
from turnkeeper.clients.terminal.interactive.screen import Screen
from turnkeeper.models.errors import TurnkeeperError
from turnkeeper.models.session.approvals import PendingApproval
from turnkeeper.models.session.messages import Configure
from turnkeeper.models.session.prompts import PromptMode, sentence_for
from turnkeeper.models.transcript.attachments import Attachment, placeholder_text, with_names
from turnkeeper.models.transcript.conversation import ApprovalDecision, ConversationMessage
from turnkeeper.models.wire import REASON_CHARS


class InputError(TurnkeeperError):
    """An invalid line; the message says what is valid."""


def read_command(line: str) -> tuple[str | None, str]:
    r"""Return the name and the argument of a command, or None and a prompt. Raises `InputError`.

    Two slashes start a prompt with one.

    >>> read_command("/remove 2"), read_command("hello"), read_command("//etc is a folder")
    (('remove', '2'), (None, 'hello'), (None, '/etc is a folder'))
    >>> read_command("/dance")
    Traceback (most recent call last):
    ...
    turnkeeper...InputError: Unknown command /dance. /help lists the commands; // starts a prompt with a slash.
    >>> read_command("/steer")
    Traceback (most recent call last):
    ...
    turnkeeper...InputError: /steer TEXT: add a prompt to the running turn, before its next step
    """
    if not line.startswith("/"):
        return None, line
    if line.startswith("//"):
        return None, line[1:]
    name, _, rest = line[1:].partition(" ")
    if name not in texts.COMMANDS:
        raise InputError(texts.UNKNOWN_COMMAND.format(name=name))
    text = rest.strip()
    argument, help_text = texts.COMMANDS[name]
    is_required = argument != "" and not argument.startswith("[")
    if (text and not argument) or (is_required and not text):
        raise InputError(f"/{name} {argument}".rstrip() + f": {help_text}")
    return name, text


def read_number(text: str, *, last: int) -> int:
    """Return the typed number, from 1 to `last`. Raises `InputError`.

    >>> read_number("2", last=3)
    2
    >>> read_number("4", last=3)
    Traceback (most recent call last):
    ...
    turnkeeper...InputError: '4' is not a number from 1 to 3.
    """
    if not last:
        raise InputError(texts.NOTHING_TO_CHOOSE)
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= last:
        raise InputError(texts.NOT_IN_RANGE.format(text=text, last=last))
    return int(text)


def read_decision(line: str) -> tuple[ApprovalDecision, str | None] | None:
    """Return the decision on a tool call and the reason for the model; None if the line is a prompt.

    >>> read_decision("y"), read_decision("Always")
    (('approve', None), ('allow_for_session', None))
    >>> read_decision("no, use notes.txt"), read_decision("n")
    (('reject', 'use notes.txt'), ('reject', None))
    >>> read_decision("a list of files, please"), read_decision("notes?"), read_decision("yes please do")
    (None, None, None)
    """
    answer = line.strip()
    if answer.casefold() in ("y", "yes"):
        return "approve", None
    if answer.casefold() in ("a", "always"):
        return "allow_for_session", None
    if rejection := re.fullmatch(r"no?(?:[\s,:]+(.*))?", answer, re.IGNORECASE | re.DOTALL):
        return "reject", (rejection[1] or "")[:REASON_CHARS] or None
    return None


class InputHandler:
    """Executes what is typed in a chat."""

    def __init__(self, session: ChatSession, gateway: GatewayClient, screen: Screen) -> None:
        self._session = session
        self._gateway = gateway
        self._screen = screen
        self._session_id = session.session_id
        self._outbox: asyncio.Queue[tuple[PendingPrompt, PromptMode]] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._question_id: str | None = None
        """The call that was shown when the current line was begun."""
        self._shown_tasks = set[str]()
        """The tasks that wait for a decision, whose calls were loaded."""
        self._printed_of_tasks = dict[str, str]()
        """The texts of calls in tasks that were printed, by session and call."""
        self._leaves_next = False
        self._attached: list[Attachment] = []
        """Attachments of the next prompt."""
        self._started_here: set[str] = set()
        """The ids of turns whose prompts were sent from here."""
        self._commands: dict[str, Callable[[str], None]] = {
            "queue": lambda text: self._show_queue(),
            "remove": self._remove,
            "attach": self._attach,
            "steer": lambda text: self.send(text, "steer"),
            "interrupt": lambda text: self.send(text, "interrupt"),
            "retry": lambda text: self._run(self._retry()),
            "stop": lambda text: self._stop_running(),
            "show": lambda text: self._run(self._show()),
            "details": lambda text: self._run(self._details(text)),
            "model": self._model,
            "title": self._title,
            "open": lambda text: self._run(self._links()),
            "help": lambda text: self._help(),
            "quit": lambda text: self._screen.leave(),
        }

    # ---- keys

    def on_change(self, text: str) -> None:
        """Handle a change of the line to `text`."""
        self._leaves_next = False
        question = self._session.question
        if not text or self._question_id is None:
            self._question_id = question.call_id if question and text else None

    def on_interrupt(self) -> None:
        """Handle Ctrl-C: stop a turn that was started here, or leave. Another client's turn keeps running (API-6)."""
        running = self._session.conversation.running_turn
        is_ours = running is not None and running.id in self._started_here
        if running and is_ours and self._session.live.stopping != running.id:
            self._stop(running)
        elif self._leaves_next:
            self._screen.leave()
        elif self._screen.input:
            self._screen.clear_input()
        elif running and not is_ours:
            self._screen.leave()
        else:
            self._session.note(texts.CTRL_C_AGAIN)
            self._leaves_next = True

    def on_escape(self) -> None:
        """Handle Esc: stop a turn that was started here."""
        running = self._session.conversation.running_turn
        if running is None or self._session.live.stopping == running.id:
            return
        if running.id in self._started_here:
            self._stop(running)
        else:
            self._session.note(texts.NOT_STARTED_HERE)

    def on_line(self, line: str) -> bool:
        """Execute a command, decide on the shown call, or send a prompt; False if the line is invalid."""
        question_id, self._question_id = self._question_id, None
        try:
            name, text = read_command(line)
            if name:
                self._commands[name](text)
            elif self._session.awaited_call and (decision := read_decision(text)):
                self._decide(*decision, question_id=question_id)
            else:
                self.send(text)
        except InputError as error:
            self._session.error(str(error))
            self.on_change(line)  # which can be corrected, or sent again as it is
            return False
        self._session.refresh()
        return True

    # ---- prompts

    def send(self, text: str, mode: PromptMode = "enqueue") -> None:
        """Send a prompt, with the attached files, after those typed before it."""
        prompt = PendingPrompt(str(uuid4()), text, self._attached)
        self._attached = []
        self._started_here.add(prompt.message_id)
        self._session.live.pending.append(prompt)
        self._outbox.put_nowait((prompt, mode))

    async def send_prompts(self) -> None:
        """Send prompts in their order, until cancelled."""
        while True:
            prompt, mode = await self._outbox.get()
            try:
                await self._gateway.prompt(
                    self._session_id,
                    prompt.text,
                    message_id=prompt.message_id,
                    mode=mode,
                    attachments=prompt.attachments,
                )
                prompt.is_accepted = True
                await self._gateway.raise_if_refused(self._session_id, prompt.message_id)
            except GatewayError as error:
                self._session.error(texts.NOT_SENT.format(text=error))
                self._session.live.pending = [other for other in self._session.live.pending if other != prompt]
                if not self._screen.restore(prompt.text):
                    self._session.note(prompt.text)
                if prompt.attachments:
                    self.attach(prompt.attachments)
            self._outbox.task_done()
            self._session.refresh()

    # ---- attachments

    def attach(self, attachments: Iterable[Attachment]) -> None:
        """Send `attachments` with the next prompt."""
        self._attached += attachments
        names = ", ".join(map(placeholder_text, self._attached))
        self._session.note(texts.ATTACHED.format(names=names))

    def _attach(self, path: str) -> None:
        if not path:
            self._attached = []
            self._session.note(texts.NOTHING_ATTACHED)
            return
        try:
            attachment = read_attachment(Path(path).expanduser())
        except (OSError, ValueError) as error:
            raise InputError(texts.NOT_ATTACHED.format(reason=attachment_problem(error))) from None
        self.attach([attachment])

    # ---- questions

    def _decide(self, decision: ApprovalDecision, reason: str | None, *, question_id: str | None) -> None:
        approval = self._session.question
        if approval is None or approval.call_id != question_id:
            raise InputError(texts.QUESTION_CHANGED)
        call_id, digest = approval.call_id, approval.args_digest
        if decision != "reject" and not self._session.questions.is_shown_whole(call_id):
            raise InputError(texts.NOT_SHOWN_WHOLE if approval.is_whole else texts.ARGUMENTS_MISSING)
        self._run(self._gateway.decide(self._session_id, call_id, args_digest=digest, decision=decision, reason=reason))

    async def load_question(self) -> None:
        """Load the text of the call that is decided on next, unless it was, and print its first part.

        The texts of calls that wait in tasks are loaded and printed too, each once.
        """
        session, blocked = self._session, self._session.blocked_tasks
        is_missing = session.awaited_call is not None and not session.questions.has(session.awaited_call.id)
        if is_missing or blocked - self._shown_tasks:
            try:
                self._learn((await self._gateway.approvals(self._session_id)).approvals)
            except GatewayError as error:
                session.error(texts.APPROVAL_UNREADABLE.format(error=error))
            self._shown_tasks |= blocked
        self._shown_tasks &= blocked
        if session.question is None:
            session.print_question()
        session.refresh()

    def _learn(self, approvals: Sequence[PendingApproval]) -> None:
        """Note the session's own calls that wait, and print those of its tasks that were not printed."""
        # Calls of two sessions can have the same id.
        own = [approval for approval in approvals if approval.workflow_id in (None, self._session_id)]
        self._session.questions.learn(own)
        of_tasks = {f"{approval.workflow_id} {approval.call_id}": approval for approval in approvals}
        for key, approval in of_tasks.items():
            if approval not in own and self._printed_of_tasks.get(key) != approval.text:
                self._session.print_call_of_task(approval)
                self._printed_of_tasks[key] = approval.text

    async def _show(self) -> None:
        session = self._session
        if session.awaited_call is None:
            if not session.blocked_tasks:
                raise InputError(texts.NOTHING_TO_SHOW)
            self._shown_tasks.clear()
            self._printed_of_tasks.clear()
            await self.load_question()
            return
        if session.questions.is_shown_whole(session.awaited_call.id):
            session.note(texts.ALL_SHOWN)
        elif session.questions.has(session.awaited_call.id):
            session.print_question()
        else:
            await self.load_question()

    # ---- commands

    def _show_queue(self) -> None:
        waiting = self._session.conversation.waiting
        if not waiting:
            self._session.note(texts.NO_PROMPT_QUEUED)
        for prompt in waiting:
            mode = f" ({prompt.mode})" if prompt.mode != "enqueue" else ""
            text = with_names(prompt.text, prompt.attachments)
            self._session.note(f"{prompt.position}{mode}  {text}")

    def _remove(self, text: str) -> None:
        waiting = self._session.conversation.waiting
        prompt = waiting[read_number(text, last=len(waiting)) - 1]
        self._run(self._gateway.withdraw(self._session_id, prompt.id))

    async def _retry(self) -> None:
        turns = reversed(self._session.conversation.turns)
        failed = next((turn.id for turn in turns if turn.is_error), None)
        accepted = await self._gateway.retry(self._session_id, message_id=failed)
        self._started_here.add(accepted.message_id)

    def _stop_running(self) -> None:
        running = self._session.conversation.running_turn
        if running is None:
            raise InputError(texts.NO_TURN_RUNS)
        self._stop(running)

    def _stop(self, turn: ConversationMessage) -> None:
        self._session.live.stopping = turn.id
        self._session.note(texts.STOPPING_TURN)
        self._leaves_next = True
        self._session.refresh()
        self._run(self._gateway.cancel(self._session_id, message_id=turn.id))

    async def _details(self, text: str) -> None:
        numbers, turns = self._session.transcript.numbers, self._session.conversation.turns
        newest = numbers.get(turns[-1].id) if turns else None
        number = read_number(text, last=newest or 0) if text else newest
        if number is None:
            raise InputError(texts.NO_TURN_YET)
        turn = next((turn for turn in turns if numbers.get(turn.id) == number), None)
        if turn is None or (turn.steps_omitted and turn.is_complete):
            turn = await self._archived_turn(number)
        if turn is None:
            raise InputError(texts.TURN_UNREADABLE.format(number=number))
        self._session.print(*renderer.turn_details(turn, number))

    async def _archived_turn(self, number: int) -> ConversationMessage | None:
        async for page in self._gateway.transcript(self._session_id):
            first = page.first_number or 1
            if first <= number:
                return page.messages[number - first] if number - first < len(page.messages) else None
        return None

    def _model(self, name: str) -> None:
        if name:
            self._run(self._configure(texts.NEXT_MODEL.format(model=name), model=name))
        else:
            self._session.note(self._session.model_line)

    def _title(self, title: str) -> None:
        if title:
            self._run(self._configure(texts.NEW_TITLE.format(title=title), title=title))
            return
        description = self._session.description
        self._session.note((description.title if description else None) or texts.NO_TITLE)

    async def _configure(self, success: str, **change: str) -> None:
        await self._gateway.configure(self._session_id, Configure.model_validate(change))
        self._session.note(success)
        self._session.description = await self._gateway.describe(self._session_id)

    async def _links(self) -> None:
        links = (await self._gateway.describe(self._session_id)).links
        chat = links.chat or f"/?session={self._session_id}"
        self._session.note(chat if "://" in chat else f"{self._gateway.url}{chat}")
        if links.temporal:
            self._session.note(links.temporal)

    def _help(self) -> None:
        rows = {f"/{name} {argument}".rstrip(): text for name, (argument, text) in texts.COMMANDS.items()}
        table = Table.grid(padding=(0, 2))
        table.add_row()
        for key, text in (rows | texts.KEYS).items():
            table.add_row(Text(f"  {key}", style="bold"), Text(text, style="dim"))
        self._session.print(table)

    # ---- actions

    def _run(self, action: Coroutine[Any, Any, Any]) -> None:
        """Run an action in the background."""
        task = asyncio.create_task(self._await_and_report(action))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _await_and_report(self, action: Coroutine[Any, Any, Any]) -> None:
        """Await an action and print its error."""
        try:
            await action
        except (GatewayError, InputError) as error:
            self._session.error(str(error))
        except ValidationError as error:
            self._session.error(texts.NOT_DONE.format(error=sentence_for(error)))
        except asyncio.CancelledError:
            self._session.error(texts.NOT_CONFIRMED)
            raise
        self._session.refresh()

    # ---- leaving

    async def finish(self) -> None:
        """Wait until all prompts are sent and all actions are done."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._outbox.join()

    def print_unsent(self) -> bool:
        """Print the prompts that were not sent; return whether there are any."""
        unsent = [prompt for prompt in self._session.live.pending if not prompt.is_accepted]
        for index, prompt in enumerate(unsent):
            # They are sent one after the other: only the first may have arrived.
            sentence = texts.NOT_SENT if index else texts.MAYBE_NOT_SENT
            self._session.error(sentence.format(text=prompt.text))
        return bool(unsent)
