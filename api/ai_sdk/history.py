"""Past turns as messages of the AI SDK: what a client has after the streams of all of them (API-1).

Each turn becomes the chunks of its stream, which are then assembled as the AI SDK's client does it.
"""

from base64 import b64encode
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from pydantic import JsonValue
from typing_extensions import TypedDict

from turnkeeper.api.ai_sdk.chunks import UIMessageChunk
from turnkeeper.api.ai_sdk.turn_chunks import TurnChunks, answer_id
from turnkeeper.models.ids import PublicId
from turnkeeper.models.transcript.attachments import Attachment, CodeAttachment, ImageAttachment
from turnkeeper.models.transcript.conversation import ConversationMessage


class UIMessage(TypedDict):
    """A message of the AI SDK: a prompt, or the answer to it."""

    id: str
    role: Literal["user", "assistant"]
    metadata: dict[str, JsonValue]
    parts: list[dict[str, JsonValue]]


def messages_of(turns: Iterable[ConversationMessage], *, session_id: PublicId) -> Iterator[UIMessage]:
    """Yield the messages of turns. A running turn yields only its prompt, since its stream has the rest."""
    for turn in turns:
        yield UIMessage(
            id=turn.id,
            role="user",
            metadata={"createdAt": turn.user_timestamp.isoformat()},
            parts=_prompt_parts(turn, session_id),
        )
        if turn.is_complete:
            yield _answer(turn, session_id)


def _prompt_parts(turn: ConversationMessage, session_id: PublicId) -> list[dict[str, JsonValue]]:
    text: list[dict[str, JsonValue]] = [{"type": "text", "text": turn.user_message}]
    files = [_file_part(attachment, session_id) for attachment in turn.attachments]
    return [*text, *files] if turn.user_message or not files else files


def _file_part(attachment: Attachment, session_id: PublicId) -> dict[str, JsonValue]:
    """Return the AI SDK's part of an attachment. Stored contents have the address of this server's route."""
    if isinstance(attachment, CodeAttachment):
        media_type, data = "text/plain", b64encode(attachment.content.encode()).decode()
    else:
        media_type, data = attachment.media_type or "image/*", attachment.data
    url = f"data:{media_type};base64,{data}"
    if isinstance(attachment, ImageAttachment) and attachment.url:
        url = attachment.url
    elif attachment.hash:
        url = f"/workflow/{session_id}/attachments/{attachment.hash}"
    part: dict[str, JsonValue] = {"type": "file", "mediaType": media_type, "url": url}
    return {**part, "filename": attachment.name} if attachment.name else part


def _answer(turn: ConversationMessage, session_id: PublicId) -> UIMessage:
    metadata: dict[str, Any] = {}
    parts: list[dict[str, Any]] = []
    for chunk in TurnChunks(session_id, turn.id).on_turn(turn):
        if chunk["type"] in ("start", "finish"):
            metadata |= chunk["messageMetadata"]
        else:
            _add(parts, chunk)
    return UIMessage(id=answer_id(turn.id), role="assistant", metadata=metadata, parts=parts)


def _add(parts: list[dict[str, Any]], chunk: UIMessageChunk) -> None:
    """Apply a chunk to the parts of a message. Chunks that are not part of a message have no effect."""
    match chunk["type"]:
        case "start-step":
            parts.append({"type": "step-start"})
        case "reasoning-start":
            parts.append({"type": "reasoning", "id": chunk["id"], "text": "", "state": "streaming"})
        case "text-start":
            parts.append({"type": "text", "text": "", "state": "streaming"})
        case "reasoning-delta" | "text-delta":
            parts[-1]["text"] += chunk["delta"]
        case "reasoning-end" | "text-end":
            parts[-1]["state"] = "done"
        case "steering-message":
            parts.append({"type": "steering-message", "id": chunk["id"], "parts": chunk["parts"]})
        case "tool-input-available":
            name, call_id = chunk["toolName"], chunk["toolCallId"]
            part: dict[str, Any] = {
                "type": "dynamic-tool",
                "toolName": name,
                "toolCallId": call_id,
                "state": "input-available",
            }
            part |= {"input": chunk["input"]}
            if "providerMetadata" in chunk:
                part["callProviderMetadata"] = chunk["providerMetadata"]
            parts.append(part)
        case "tool-approval-request":
            approval: dict[str, Any] = {"id": chunk["approvalId"]}
            if "approvalDescriptor" in chunk:
                approval["descriptor"] = chunk["approvalDescriptor"]
            if "isAutomatic" in chunk:
                approval["isAutomatic"] = True
            _call(parts, chunk["toolCallId"]).update(state="approval-requested", approval=approval)
        case "tool-approval-response":
            call = _call(parts, chunk["approvalId"].partition(":")[0])
            call["state"] = "approval-responded"
            call["approval"]["approved"] = chunk["approved"]
            if "reason" in chunk:
                call["approval"]["reason"] = chunk["reason"]
        case "tool-output-available":
            _call(parts, chunk["toolCallId"]).update(state="output-available", output=chunk["output"])
        case "tool-output-error":
            _call(parts, chunk["toolCallId"]).update(state="output-error", errorText=chunk["errorText"])
        case "tool-output-denied":
            _call(parts, chunk["toolCallId"]).update(state="output-denied")


def _call(parts: list[dict[str, Any]], call_id: str) -> dict[str, Any]:
    return next(part for part in reversed(parts) if part.get("toolCallId") == call_id)
