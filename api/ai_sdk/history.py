"""Past turns as the AI SDK's messages: what a client holds after the streams of all of them (API-1).

Each turn is told as its stream would tell it, and the chunks are put together as the AI SDK's client does that.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Literal

from pydantic import JsonValue
from typing_extensions import TypedDict

from turnkeeper.api.ai_sdk.turn_chunks import TurnChunks, answer_id
from turnkeeper.api.ai_sdk.ui_chunks import UIMessageChunk
from turnkeeper.models.transcript.conversation import ConversationMessage


class UIMessage(TypedDict):
    """A message of the AI SDK: what the user said, or the answer to it."""

    id: str
    role: Literal["user", "assistant"]
    metadata: dict[str, JsonValue]
    parts: list[dict[str, JsonValue]]


def messages_of(turns: Iterable[ConversationMessage], *, session_id: str) -> Iterator[UIMessage]:
    """Yield the messages of turns; of one that still runs, only what the user said, since its stream tells the rest."""
    for turn in turns:
        yield UIMessage(
            id=turn.id,
            role="user",
            metadata={"createdAt": turn.user_timestamp.isoformat()},
            parts=[{"type": "text", "text": turn.user_message}],
        )
        if turn.is_complete:
            yield _answer(turn, session_id)


def _answer(turn: ConversationMessage, session_id: str) -> UIMessage:
    metadata: dict[str, Any] = {}
    parts: list[dict[str, Any]] = []
    for chunk in TurnChunks(session_id, turn.id).on_turn(turn):
        if chunk["type"] in ("start", "finish"):
            metadata |= chunk["messageMetadata"]
        else:
            _take(parts, chunk)
    return UIMessage(id=answer_id(turn.id), role="assistant", metadata=metadata, parts=parts)


def _take(parts: list[dict[str, Any]], chunk: UIMessageChunk) -> None:
    """Change the parts of a message as a chunk says."""
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
            part = {"type": "dynamic-tool", "toolName": name, "toolCallId": call_id, "state": "input-available"}
            parts.append({**part, "input": chunk["input"]})
        case _:
            _take_of_call(parts, dict(chunk))


def _take_of_call(parts: list[dict[str, Any]], chunk: dict[str, Any]) -> None:
    """Change the part of a tool call; what is about none is no part of a message."""
    approval_id = chunk.get("approvalId")
    for part in parts:
        if part["type"] != "dynamic-tool":
            continue
        if chunk["type"] == "tool-approval-response" and part.get("approval", {}).get("id") == approval_id:
            decision = {name: chunk[name] for name in ("approved", "reason") if name in chunk}
            part |= {"state": "approval-responded", "approval": {**part["approval"], **decision}}
        elif part["toolCallId"] == chunk.get("toolCallId"):
            part |= _of_call(chunk)


def _of_call(chunk: dict[str, Any]) -> dict[str, Any]:
    match chunk["type"]:
        case "tool-approval-request":
            approval = {"id": chunk["approvalId"]}
            names = {"approvalDescriptor": "descriptor", "isAutomatic": "isAutomatic"}
            approval |= {name: chunk[given] for given, name in names.items() if given in chunk}
            return {"state": "approval-requested", "approval": approval}
        case "tool-output-available":
            return {"state": "output-available", "output": chunk["output"]}
        case "tool-output-error":
            return {"state": "output-error", "errorText": chunk["errorText"]}
        case "tool-output-denied":
            return {"state": "output-denied"}
        case _:
            return {}
