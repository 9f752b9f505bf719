"""One prompt and its answer, for scripts and pipes."""

from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import uuid4

from pydantic import computed_field

from turnkeeper.clients.python.conversation import Conversation
from turnkeeper.clients.python.errors import GatewayProblemError
from turnkeeper.clients.python.events import Event, QueueEvent
from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.clients.terminal import texts
from turnkeeper.clients.terminal.gateway_command import FAILED, NEEDS_DECISION
from turnkeeper.models.session.approvals import PendingApproval
from turnkeeper.models.transcript.attachments import Attachment
from turnkeeper.models.transcript.trajectory import ModelStep
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
