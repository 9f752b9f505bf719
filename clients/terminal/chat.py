"""`turnkeeper chat`: a session in a terminal, over the gateway's HTTP API.

At a terminal it is a conversation (`interactive.py`). In a pipe it sends one prompt and prints only the answer
(`one_shot.py`), which also prints a session's events for programs.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from turnkeeper.clients.python.attachments import read_attachment
from turnkeeper.clients.python.conversation import Conversation
from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.clients.python.request_sender import GatewayError
from turnkeeper.clients.terminal import one_shot, texts
from turnkeeper.clients.terminal.formatting import attachment_problem, well_formed
from turnkeeper.clients.terminal.gateway_command import GatewayCommand, fail, print_answer, say, with_gateway
from turnkeeper.clients.terminal.one_shot import Final, OneShotPrompt, open_session
from turnkeeper.models.transcript.attachments import Attachment


@dataclass(frozen=True)
class ChatCommand(GatewayCommand):
    """The command with its options; the files `attach` are sent with the first prompt."""

    patience: float = 60.0
    message: str | None = None
    session: str | None = None
    agent: str | None = None
    attach: Sequence[Path] = ()

    @with_gateway
    async def chat(self, gateway: GatewayClient) -> int:
        is_watching = self.as_json and self.message is None
        message = None if is_watching else self._first_message()
        try:
            attachments = [read_attachment(path) for path in self.attach]
        except (OSError, ValueError) as error:
            return fail(texts.NOT_ATTACHED.format(reason=attachment_problem(error)))
        if message is not None and not message.strip() and not attachments:
            return fail(texts.BLANK_MESSAGE)
        if is_watching:
            return await one_shot.watch(
                gateway, (await open_session(gateway, self.session, agent=self.agent)).session_id
            )
        is_at_a_terminal = one_shot.is_typed() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        if is_at_a_terminal and not self.as_json:
            return await self._interactive(gateway, message, attachments)
        if message is not None:
            return await self._one_answer(gateway, message, attachments)
        return fail(texts.NO_TERMINAL)

    def _first_message(self) -> str | None:
        if self.message is not None:
            return well_formed(self.message)
        if one_shot.is_typed():
            return None
        return sys.stdin.buffer.read().decode(errors="replace") if sys.stdin is not None else ""

    async def _interactive(self, gateway: GatewayClient, message: str | None, attachments: list[Attachment]) -> int:
        from turnkeeper.clients.terminal.interactive.interactive import Interactive

        session = await open_session(gateway, self.session, agent=self.agent)
        interactive = Interactive(gateway, session, self.resume_command)
        return await interactive.run(message, attachments)

    async def _one_answer(self, gateway: GatewayClient, message: str, attachments: list[Attachment]) -> int:
        session = await open_session(gateway, self.session, agent=self.agent, turns=1)
        conversation = Conversation()
        if session.page:
            conversation.open_at(session.page)
        prompt = OneShotPrompt(gateway, session.session_id, message, conversation, attachments)
        try:
            final = await prompt.run(one_shot.write_event if self.as_json else lambda event: None)
        except asyncio.CancelledError:
            with contextlib.suppress(GatewayError):
                await prompt.stop()
                say(texts.STOPPED)
            raise
        if self.as_json:
            one_shot.write_line("final", final)
        elif final.answer is not None:
            print_answer(final.answer)
        elif final.unfinished is not None:
            # On stderr: a script would take it for the answer.
            say(f"{final.unfinished}\n{texts.INTERRUPTED}")
        self._explain(final)
        return final.exit_code

    def _explain(self, final: Final) -> None:
        """Print the error and the next command on stderr; after an answer, only if stderr is a terminal."""
        if final.error:
            say(final.error)
        command = self.resume_command(final.workflow_id)
        if final.status == "needs_decision":
            say(texts.DECIDE_WITH.format(command=command))
        elif sys.stderr.isatty():
            say(texts.RESUME_WITH.format(command=command))
