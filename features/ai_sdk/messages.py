"""Requests of the AI SDK's transport, and past turns as its messages (API-1, API-2).

**Requests.** The AI SDK's client stores the conversation and sends all of it each time. Here the session stores it, so
only the last message is read: a prompt, or decisions on the tool calls of the last answer. Behind a prompt, decisions
of the newest answer that has some are read too: the AI SDK sends none by itself once a newer message follows. A client
may send that message alone (`message`). Fields that only a server without sessions could use must be empty.

**Past turns** become what a client has after the streams of all of them. Each turn becomes the chunks of its stream,
which are then assembled as the AI SDK's client does it.
"""

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    model_validator,
)
from pydantic.config import JsonDict
from typing_extensions import TypedDict

from turnkeeper.api.bodies import Id
from turnkeeper.api.problems import UNKNOWN_UPLOAD, ProblemError, invalid
from turnkeeper.api.prompts import MAX_BASE64_CHARS
from turnkeeper.features.ai_sdk.chunks import UIMessageChunk, read_approval_id
from turnkeeper.features.ai_sdk.turn_chunks import ClientState, TurnChunks, answer_id, turn_of_answer
from turnkeeper.models.ids import PublicId
from turnkeeper.models.session.approvals import ResolveApproval
from turnkeeper.models.transcript.attachments import (
    Attachment,
    CodeAttachment,
    FileAttachment,
    ImageAttachment,
    ImageMediaType,
    first_problem,
)
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.wire import Reason, Strict

Trigger = Literal["submit-message", "regenerate-message"]

MAX_MESSAGES = 100_000
MAX_PARTS = 10_000
"""A turn of 1,000 steps has fewer. Validating millions of items would block the event loop for everyone."""


class TextPart(BaseModel):
    """Text of a prompt."""

    type: Literal["text"]
    text: str


class FilePart(BaseModel):
    """A file of a prompt as a `data:` URL. An image may also be at an http(s) address."""

    type: Literal["file"]
    mediaType: str  # noqa: N815  # the AI SDK's spelling
    filename: str | None = None
    url: str = Field(max_length=MAX_BASE64_CHARS + 200)

    def attachment(self, *, field: str, session_id: PublicId) -> Attachment:
        """Return the file as an attachment. Raises `ProblemError`."""
        media_type = self.mediaType.partition(";")[0].strip().lower()
        fields: dict[str, Any] = {"name": self.filename, "media_type": media_type, **self._content(field, session_id)}
        if media_type in get_args(ImageMediaType):
            return ImageAttachment(type="image", **fields)
        if "url" in fields:
            raise invalid(f"{field}.url", ONLY_DATA_URLS)
        return FileAttachment(type="file", **{**fields, "name": self.filename or "file"})

    def _content(self, field: str, session_id: PublicId) -> dict[str, str]:
        if data := _DATA_URL.match(self.url):
            return {"data": self.url[data.end() :]}
        if stored := _STORED.fullmatch(self.url):
            if stored[1] != session_id:
                raise invalid(f"{field}.url", UNKNOWN_UPLOAD)
            return {"hash": stored[2]}
        if self.url.startswith(("http://", "https://")):
            return {"url": self.url}
        raise invalid(f"{field}.url", ONLY_DATA_URLS)


ONLY_DATA_URLS = "must be a data: URL in base64; only images may be at an http or https address"

_DATA_URL = re.compile(r"data:[^,]{0,200};base64,")

_STORED = re.compile(r"/workflow/([^/]+)/attachments/([0-9a-f]{64})(?:\?.*)?")
"""The address of a file in the messages of this server."""


class UserMessage(BaseModel):
    """A prompt. Its `id` is the prompt's id: sending it again makes no second prompt."""

    id: Id
    role: Literal["user"]
    parts: list[Annotated[TextPart | FilePart, Field(discriminator="type")]] = Field(min_length=1, max_length=MAX_PARTS)

    @property
    def text(self) -> str:
        """All text parts, as paragraphs."""
        return "\n\n".join(part.text for part in self.parts if isinstance(part, TextPart))

    def attachments(self, *, field: str, session_id: PublicId) -> list[Attachment]:
        """Return all file parts. Raises `ProblemError` naming the wrong one."""
        attachments = list[Attachment]()
        for index, part in enumerate(self.parts):
            if isinstance(part, FilePart):
                place = f"{field}.parts[{index}]"
                attachment = part.attachment(field=place, session_id=session_id)
                if problem := first_problem(attachment):
                    raise invalid(f"{place}.{_PART_FIELDS.get(problem[0], 'url')}", problem[1])
                attachments.append(attachment)
        return attachments


_PART_FIELDS = {"name": "filename", "media_type": "mediaType"}


class AnswerApproval(BaseModel):
    """A decision on a tool call. `id` is that of the `tool-approval-request`."""

    id: str
    approved: bool | None = None
    reason: Reason | None = None
    isAutomatic: bool = False  # noqa: N815  # the AI SDK's spelling


class AnswerPart(BaseModel):
    """A part of an answer as the client has it. Only tool calls and steering messages are read."""

    type: str
    id: str | None = None
    toolCallId: str | None = None  # noqa: N815  # the AI SDK's spelling
    state: str | None = None
    approval: AnswerApproval | None = None


class AnswerMessage(BaseModel):
    """The answer with the decided tool calls, as the client has it."""

    id: str
    role: Literal["assistant"]
    parts: list[AnswerPart] = Field(max_length=MAX_PARTS)

    @property
    def turn_id(self) -> str | None:
        """The id of the turn; `None` if the answer did not come from this server."""
        return turn_of_answer(self.id)

    @property
    def client_state(self) -> ClientState:
        """What the client already has of the turn."""
        calls = {
            part.toolCallId: _CHUNK_TYPES.get(part.state or "", frozenset()) for part in self.parts if part.toolCallId
        }
        steps = [int(match[1]) for call_id in calls if (match := _CALL_ID.fullmatch(call_id))]
        steering = [part.id for part in self.parts if part.type == "steering-message" and part.id]
        return ClientState(step=max(steps, default=0), chunk_types=calls, steering=frozenset(steering))

    def known_decisions(self) -> Iterator[ResolveApproval]:
        """Yield the valid decisions that may not have been carried out yet."""
        for _, call_id, approval in self._answered_parts():
            with suppress(ProblemError):
                yield _decision(call_id, approval, field="")

    def decisions(self, *, field: str) -> Iterator[ResolveApproval]:
        """Yield the decisions that may not have been carried out yet. Raises `ProblemError` for invalid ones."""
        for index, call_id, approval in self._answered_parts():
            yield _decision(call_id, approval, field=f"{field}.parts[{index}].approval")

    def _answered_parts(self) -> Iterator[tuple[int, str | None, AnswerApproval]]:
        for index, part in enumerate(self.parts):
            if part.state == "approval-responded" and part.approval and not part.approval.isAutomatic:
                yield index, part.toolCallId, part.approval


def _decision(call_id: str | None, approval: AnswerApproval, *, field: str) -> ResolveApproval:
    call_id_shown, digest = read_approval_id(approval.id) or (None, "")
    if call_id_shown is None or call_id_shown != call_id:
        raise invalid(f"{field}.id", "is not the id of the call's approval request")
    if approval.approved is None:
        raise invalid(f"{field}.approved", "must be true or false")
    decision: Literal["approve", "reject"] = "approve" if approval.approved else "reject"
    return ResolveApproval(call_id=call_id_shown, args_digest=digest, decision=decision, reason=approval.reason)


_CALL_CHUNKS = frozenset({"tool-input-available"})
_REQUEST_CHUNKS = _CALL_CHUNKS | {"tool-approval-request"}
_DECISION_CHUNKS = _REQUEST_CHUNKS | {"tool-approval-response"}
_CHUNK_TYPES = {
    "input-available": _CALL_CHUNKS,
    "approval-requested": _REQUEST_CHUNKS,
    "approval-responded": _DECISION_CHUNKS,
    "output-available": _DECISION_CHUNKS | {"tool-output-available"},
    "output-error": _DECISION_CHUNKS | {"tool-output-error"},
    "output-denied": _DECISION_CHUNKS | {"tool-output-denied"},
}
"""The chunks that a client was sent of a call, by the call's state in the client."""

_CALL_ID = re.compile(r"[0-9]{1,9}\.([0-9]{1,9})\.[0-9]{1,9}")


LastMessage = Annotated[UserMessage | AnswerMessage, Field(discriminator="role")]


def _only_messages_to_read(messages: Any) -> Any:
    """Replace all messages with `None`, so that they are not validated, but the last one and the newest decided one."""
    if not isinstance(messages, list) or len(messages) > MAX_MESSAGES:
        return messages
    *earlier, last = messages or [None]
    read: list[Any] = [None] * len(earlier)
    decided = next((index for index in reversed(range(len(earlier))) if _is_decided(earlier[index])), None)
    if decided is not None:
        # What is wrong with an old message is no reason to reject a new one.
        with suppress(ValidationError):
            read[decided] = AnswerMessage.model_validate(earlier[decided])
    return [*read, last] if messages else messages


def _is_decided(message: Any) -> bool:
    """Return whether a message looks like an answer of this server with decisions on its calls."""
    if not isinstance(message, Mapping) or message.get("role") != "assistant":
        return False
    parts = message.get("parts")
    return any(
        isinstance(part, Mapping) and part.get("state") == "approval-responded"
        for part in (parts if isinstance(parts, list) else ())
    )


def _reject_value(value: Any) -> None:
    if value not in (None, "", {}, []):
        raise ValueError("must be empty: model, system prompt and tools are configured in the session")


MustBeEmpty = Annotated[Any, AfterValidator(_reject_value)]


_EXAMPLE: JsonDict = {
    "id": "support-42",
    "messages": [{"id": "m1", "role": "user", "parts": [{"type": "text", "text": "what time is it?"}]}],
    "trigger": "submit-message",
}


class PostChat(Strict):
    """Send the last message of a chat. `id` is the session's id; the session starts if it does not exist.

    `messageId` is the answer that decisions are about, or that is to be generated again.
    """

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    id: Id
    message: LastMessage | None = None
    messages: Annotated[list[LastMessage | None] | None, BeforeValidator(_only_messages_to_read)] = Field(
        None,
        max_length=MAX_MESSAGES,
        description="All messages of the chat; read are the last one, and decisions before it.",
    )
    trigger: Trigger = "submit-message"
    messageId: str | None = Field(None, max_length=200)  # noqa: N815  # the AI SDK's spelling
    system: MustBeEmpty = None
    tools: MustBeEmpty = None
    config: MustBeEmpty = None
    callSettings: MustBeEmpty = None  # noqa: N815  # assistant-ui's spelling
    metadata: MustBeEmpty = None

    @model_validator(mode="after")
    def _has_one_last_message(self) -> "PostChat":
        in_list = self.messages[-1] if self.messages else None
        if self.message is not None and in_list is not None:
            raise ValueError("send `messages`, or the last of them as `message`")
        # A reloaded page may have the answer alone, and drops it before it requests another one.
        if self.last is None and self.trigger != "regenerate-message":
            raise ValueError("send `messages`, or the last of them as `message`")
        return self

    @property
    def last(self) -> UserMessage | AnswerMessage | None:
        """The newest message; `None` if a client without messages requests another answer."""
        return self.message or (self.messages[-1] if self.messages else None)

    @property
    def decided_before(self) -> AnswerMessage | None:
        """The newest answer with decisions before the newest message; `None` if there is none of this server."""
        earlier = (message for message in (self.messages or [])[:-1] if isinstance(message, AnswerMessage))
        answer = next(earlier, None)
        return answer if answer and answer.turn_id else None

    @property
    def last_field(self) -> str:
        """The path of the newest message in the request, for error messages."""
        return "message" if self.message else f"messages[{len(self.messages or []) - 1}]"


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
