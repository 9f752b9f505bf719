"""Making the signals of prompts, and the ids that make retries idempotent."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import NAMESPACE_URL, uuid4, uuid5

from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.session.queue.prompts import PromptSignal
from turnkeeper.models.transcript.attachments import Attachment
from turnkeeper.models.transcript.conversation import ConversationMessage


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
