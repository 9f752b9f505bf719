"""One prompt and its answer, for scripts and pipes.

With `--json`, events are lines of JSON, in the format of the gateway's event stream:

{"event": "update", "data": {...}}     new and changed turns (a `ConversationUpdate`)
{"event": "queue", "data": {...}}      the queue
{"event": "partial", "data": {...}}    new partial output
{"event": "lost", "data": {...}}       the connection is lost and retried; the next line means that it is back
{"event": "refused", "data": {...}}    a line of stdin that the gateway rejected, and why
{"event": "final", "data": {...}}      the result of the command's prompt
"""

import asyncio
import json
import secrets
import sys
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import uuid4

from anyio import to_thread
from pydantic import computed_field

from turnkeeper.clients.python.conversation import (
    Conversation,
    Event,
    PartialEvent,
    ProgressEvent,
    QueueEvent,
    UpdateEvent,
)
from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.clients.python.request_sender import GatewayProblemError
from turnkeeper.clients.terminal import texts
from turnkeeper.clients.terminal.gateway_command import FAILED, NEEDS_DECISION
from turnkeeper.models.http_responses import FullConversation
from turnkeeper.models.session.approvals import PendingApproval
from turnkeeper.models.transcript.attachments import Attachment
from turnkeeper.models.transcript.conversation import ModelStep
from turnkeeper.models.wire import Frozen

PATIENCE_SECONDS = 60.0
"""How long to wait for a gateway that goes away during an answer."""

FinalStatus = Literal["answered", "failed", "needs_decision"]


class Final(Frozen):
    """The result of a prompt; the last line of `--json`.

    `unfinished`: the text of an answer that was stopped or interrupted (SES-9). `approvals`: the calls that need a
    decision, each with the text of what is decided on.
    """

    workflow_id: str
    message_id: str
    status: FinalStatus
    answer: str | None = None
    unfinished: str | None = None
    error: str | None = None
    approvals: list[PendingApproval] = []

    @computed_field  # type: ignore[prop-decorator]
    @property
    def exit_code(self) -> int:
        return {"answered": 0, "failed": FAILED, "needs_decision": NEEDS_DECISION}[self.status]


@dataclass
class OneShotPrompt:
    """A prompt and the wait for its answer. Its id makes sending it again safe."""

    gateway: GatewayClient
    session_id: str
    text: str
    conversation: Conversation
    attachments: Sequence[Attachment] = ()
    message_id: str = field(default_factory=lambda: str(uuid4()))

    async def run(self, on_event: Callable[[Event], None]) -> Final:
        """Send the prompt and return its result; `on_event` receives the events until then. Raises `GatewayError`."""
        await self._send()
        cursor = self.conversation.cursor
        events = self.gateway.events(self.session_id, cursor, patience=PATIENCE_SECONDS)
        async with aclosing(events):
            async for event in events:
                on_event(event)
                final = await self._after(event)
                if final:
                    return final
        return self._final("failed", error=texts.session_over(self.conversation.status))

    async def stop(self) -> None:
        """Stop the turn, or withdraw the prompt if it has none yet. Raises `GatewayError`."""
        if self.conversation.find(self.message_id) is None:
            try:
                await self.gateway.withdraw(self.session_id, self.message_id)
            except GatewayProblemError as problem:
                # Its turn may have started since the last event.
                if problem.problem.name != "not-waiting":
                    raise
            else:
                return
        await self.gateway.cancel(self.session_id, message_id=self.message_id)

    async def _send(self) -> None:
        await self.gateway.prompt(self.session_id, self.text, message_id=self.message_id, attachments=self.attachments)
        await self.gateway.raise_if_refused(self.session_id, self.message_id)

    async def _after(self, event: Event) -> Final | None:
        if event.event == "update":
            self.conversation.apply(event.update)
        turn = self.conversation.find(self.message_id)
        if turn and turn.is_complete:
            if turn.agent_message is not None:
                return self._final("answered", answer=turn.agent_message)
            last = turn.steps[-1] if turn.steps else None
            unfinished = last.text if isinstance(last, ModelStep) and last.interrupted else None
            return self._final("failed", error=turn.error, unfinished=unfinished)
        if self.conversation.awaiting_calls:
            turn = self.conversation.running_turn
            is_ours = turn is not None and turn.id == self.message_id
            return await self._needs_decision(texts.APPROVAL_NEEDED if is_ours else texts.APPROVAL_NEEDED_EARLIER)
        if blocked := [task.title for task in self.conversation.tasks if task.blocks_its_parent]:
            return await self._needs_decision(texts.TASK_APPROVAL_NEEDED, tasks=", ".join(blocked))
        if (
            isinstance(event, QueueEvent)
            and not turn
            and self.message_id not in {prompt.id for prompt in event.waiting}
        ):
            # Another client may have withdrawn it.
            await self.gateway.raise_if_refused(self.session_id, self.message_id)
        return None

    async def _needs_decision(self, sentence: str, **names: str) -> Final | None:
        """Return the calls that wait, those of tasks too, as the result; `None`: all are decided by now."""
        pending = await self.gateway.approvals(self.session_id)
        if not pending.approvals and not pending.omitted:
            return None
        calls = "\n\n".join(map(self._text_of, pending.approvals))
        error = sentence.format(calls=calls, **names).rstrip()
        return self._final("needs_decision", error=error, approvals=pending.approvals)

    def _text_of(self, approval: PendingApproval) -> str:
        if approval.workflow_id in (None, self.session_id):
            return approval.text
        return texts.TASK_CALL.format(session_id=approval.workflow_id, text=approval.text)

    def _final(self, status: FinalStatus, **details: Any) -> Final:
        return Final(workflow_id=self.session_id, message_id=self.message_id, status=status, **details)


class RejectedLine(Frozen):
    """A line of stdin that the gateway rejected. `problem`: the last word of the problem's type.

    `retry_after`: the gateway's header in seconds, if there is one.
    """

    text: str
    problem: str
    reason: str
    retry_after: float | None = None


def write_event(event: Event) -> None:
    match event:
        case UpdateEvent():
            write_line(event.event, event.update)
        case PartialEvent():
            write_line(event.event, event.partial)
        case ProgressEvent():
            write_line(event.event, event.progress)
        case _:
            write_line(event.event, event)


def write_line(event: str, data: Frozen) -> None:
    """Write a line; `data`'s own `event` is omitted, since the line has it."""
    fields = data.model_dump(mode="json", exclude={"event"})
    sys.stdout.write(json.dumps({"event": event, "data": fields}, separators=(",", ":")) + "\n")
    sys.stdout.flush()


async def watch(gateway: GatewayClient, session_id: str) -> int:
    """Write a session's events until it is over, and send every line of stdin as a prompt. Raises `GatewayError`.

    The end of stdin ends it only at a terminal, by Ctrl-D.
    """
    following = asyncio.create_task(_write_events(gateway, session_id))
    sending = asyncio.create_task(_send_lines(gateway, session_id))
    try:
        done, _ = await asyncio.wait([following, sending], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        if following not in done and not is_typed():
            await following
    finally:
        following.cancel()
        sending.cancel()
        await asyncio.gather(following, sending, return_exceptions=True)
    return 0


def is_typed() -> bool:
    """Return whether stdin is a terminal; there may be no stdin at all."""
    return sys.stdin is not None and sys.stdin.isatty()


async def _write_events(gateway: GatewayClient, session_id: str) -> None:
    async with aclosing(gateway.events(session_id)) as events:
        async for event in events:
            write_event(event)


async def _send_lines(gateway: GatewayClient, session_id: str) -> None:
    if sys.stdin is None:
        return
    # Nothing can end a read of a terminal: its thread is abandoned, and ends with the process.
    while line := await to_thread.run_sync(sys.stdin.buffer.readline, abandon_on_cancel=True):
        text = line.decode(errors="replace").removesuffix("\n")
        try:
            if text.strip():
                accepted = await gateway.prompt(session_id, text)
                await gateway.raise_if_refused(session_id, accepted.message_id)
        except GatewayProblemError as error:
            name, retry_after = error.problem.name, error.retry_after
            write_line("refused", RejectedLine(text=text, problem=name, reason=str(error), retry_after=retry_after))


SHOWN_TURNS = 3
"""How many turns of a continued session are printed."""


@dataclass(frozen=True)
class OpenedSession:
    """A session that exists. `page`: its newest turns; None if no worker is running."""

    session_id: str
    is_new: bool
    page: FullConversation | None = None


async def open_session(
    gateway: GatewayClient, session_id: str | None, *, agent: str | None = None, turns: int = SHOWN_TURNS
) -> OpenedSession:
    """Continue a session, or start one with an id that is easy to type, as this agent. Raises `GatewayError`."""
    await gateway.health()
    if session_id is not None:
        return OpenedSession(session_id, is_new=False, page=await newest_page(gateway, session_id, turns=turns))
    session = await gateway.start(f"chat-{secrets.token_hex(5)}", agent=agent)
    return OpenedSession(session.workflow_id, is_new=True)


async def newest_page(gateway: GatewayClient, session_id: str, *, turns: int = SHOWN_TURNS) -> FullConversation | None:
    """Return the newest turns; None after a temporary problem. Raises `GatewayProblemError` for an unknown session."""
    try:
        return await gateway.page(session_id, limit=turns)
    except GatewayProblemError as problem:
        if problem.is_temporary:
            return None
        raise
