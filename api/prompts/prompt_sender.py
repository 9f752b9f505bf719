"""Sending prompts: one signal each, which Temporal keeps (SES-6).

Nothing is asked before it or after it. What became of a prompt is read on the stream, or by its id (`fate_reader.py`).
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any
from uuid import NAMESPACE_URL, uuid4, uuid5

from turnkeeper.api.problems import ProblemError
from turnkeeper.api.prompts.attachments import AttachmentKeeper
from turnkeeper.api.store_calls import read_store, seconds_from_now
from turnkeeper.api.temporal.deletions import used_id_error
from turnkeeper.api.temporal.session_commands import SessionCommands
from turnkeeper.api.temporal.session_reader import SessionReader
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.session.queue.prompts import PromptSignal
from turnkeeper.models.transcript.attachments import Attachment
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.stores.database.database import StoreUnavailableError
from turnkeeper.stores.stores import Stores

NO_CONTENTS: Mapping[str, bytes] = MappingProxyType({})


NewSession = Callable[[], Awaitable[SessionInput]]
"""Returns what a session is started with, if it is not there yet."""


class PromptSender:
    """Sends prompts to sessions. Methods raise `ProblemError`."""

    def __init__(
        self, sessions: SessionCommands, reader: SessionReader, attachments: AttachmentKeeper, stores: Stores
    ) -> None:
        self._sessions = sessions
        self._reader = reader
        self._attachments = attachments
        self._stores = stores

    async def send(
        self,
        workflow_id: WorkflowId,
        prompt: PromptSignal,
        *,
        start: NewSession | None = None,
        contents: Mapping[str, bytes] = NO_CONTENTS,
    ) -> str:
        """Store the `contents` of its attachments, by hash, and signal the prompt; return its id.

        If the id was never used, the session is started as `start` says. Sending a prompt again makes no second one:
        the session knows its id. Raises 404, 409 if the session has ended, 429 and 503.
        """
        await self._reader.admission.admit(workflow_id, prompt)
        new_session, unavailable = None, None
        if start is not None and not await self._was_used(workflow_id):
            try:
                new_session = await start()
            except StoreUnavailableError as error:
                unavailable = error  # of the session's agent; but Temporal may have the session
        try:
            await self._attachments.store(workflow_id, contents, is_started_next=new_session is not None)
            if new_session is not None:
                await self._sessions.start_or_prompt(workflow_id, new_session, prompt)
            else:
                await self._sessions.prompt(workflow_id, prompt)
        except ProblemError as error:
            if unavailable and error.problem.status == 404:
                raise unavailable from error
            if start is not None and error.problem.status == 404:
                raise await used_id_error(self._reader.client, workflow_id, self._reader.timeouts) from error
            raise
        return prompt.id or ""

    async def _was_used(self, workflow_id: WorkflowId) -> bool:
        """Return whether archive or index have a session with the id, which Temporal may no longer have."""
        try:
            until = seconds_from_now(self._reader.timeouts.restore)
            return await read_store(self._stores.has(workflow_id), until=until)
        except StoreUnavailableError:
            return False  # if Temporal still has the session, it rejects the id itself


def new_prompt(text: str, *, message_id: str | None, mode: Any, attachments: Sequence[Attachment] = ()) -> PromptSignal:
    return PromptSignal(
        id=message_id or str(uuid4()),
        text=text,
        attachments=list(attachments),
        mode=mode,
        sent_at=datetime.now(UTC),
    )


def retry_prompt(workflow_id: WorkflowId, turn: ConversationMessage) -> PromptSignal:
    """Return the signal that sends a turn's prompt again. It always has the same id, so repeating it has no effect.

    Its attachments are those of the turn: what is stored of them is there.
    """
    message_id = retry_prompt_id(workflow_id, turn.id)
    prompt = new_prompt(turn.user_message, message_id=message_id, mode="enqueue", attachments=turn.attachments)
    return prompt.model_copy(update={"retries": turn.id})


def retry_prompt_id(workflow_id: WorkflowId, turn_id: str) -> str:
    """Return the id of the prompt that retries a turn."""
    return str(uuid5(NAMESPACE_URL, f"urn:turnkeeper:retry:{workflow_id}:{turn_id}"))


def chat_session_id(message_id: str, *, user: str | None) -> str:
    """Return the id of the session that a prompt starts; the same prompt always gets the same session.

    It depends on the user too: two users may choose the same id, but must not share a session.
    """
    return str(uuid5(NAMESPACE_URL, f"urn:turnkeeper:chat:{message_id}:{user or ''}"))
