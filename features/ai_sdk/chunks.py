"""The chunks of a UI message stream, version 1, that this adapter sends (API-1).

Names, spelling and order are those of Vercel's AI SDK, whose client validates each chunk (`uiMessageChunkSchema` of the
npm package `ai`, version 7). Version 6 lacks some of them; they are replaced for it.

**A tool call** is its input, its approval, its result. All tools are dynamic to the AI SDK: they are known when a
session runs, not when a page is written.
"""

import re
from collections.abc import Iterator
from typing import Any, Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict

from turnkeeper.models.ids import PublicId
from turnkeeper.models.session.approvals import PendingApproval
from turnkeeper.models.transcript.conversation import Approval, BlobRef, ToolCall, ToolResult

FinishReason = Literal["stop", "tool-calls", "error", "other"]
"""`tool-calls`: calls wait for approval; `other`: the turn was stopped. Version 6 doesn't have `interrupted`."""


class TokenUsage(TypedDict):
    """Tokens of a turn, with the AI SDK's names. `cost` is in US dollars, absent if the price is unknown."""

    inputTokens: int
    outputTokens: int
    totalTokens: int
    reasoningTokens: int
    cachedInputTokens: int
    cost: NotRequired[float]


class MessageMetadata(TypedDict, total=False):
    """Metadata of a message: its turn, and once it has ended, model, usage and time."""

    turnId: str
    createdAt: str
    model: str
    usage: TokenUsage
    processingTimeMs: int


class StartChunk(TypedDict):
    """A message begins, or continues with the same id."""

    type: Literal["start"]
    messageId: str
    messageMetadata: MessageMetadata


class StepChunk(TypedDict):
    """A model step begins, is discarded because another attempt replaces it, or ends.

    It ends once its tool calls have ended, or when they wait for approval.
    """

    type: Literal["start-step", "reset-step", "finish-step"]


class PartChunk(TypedDict):
    """Thinking, or text for the user, begins or ends."""

    type: Literal["reasoning-start", "reasoning-end", "text-start", "text-end"]
    id: str


class PartDeltaChunk(TypedDict):
    """More thinking, or more text for the user."""

    type: Literal["reasoning-delta", "text-delta"]
    id: str
    delta: str


class ToolInputStartChunk(TypedDict):
    """The model begins to write a tool call."""

    type: Literal["tool-input-start"]
    toolCallId: str
    toolName: str
    dynamic: Literal[True]


class InputNotes(TypedDict):
    """What differs in `input` from the call's arguments: the paths of integers that stand in it as strings."""

    integersAsText: list[str]


class ToolMetadata(TypedDict):
    """Becomes `callProviderMetadata` of the part."""

    turnkeeper: InputNotes


class ToolInputAvailableChunk(TypedDict):
    """A tool call is complete. `input` is a string if the model's arguments are not a JSON object.

    Integers that JavaScript would round are strings in it, and `providerMetadata` says which.
    """

    type: Literal["tool-input-available"]
    toolCallId: str
    toolName: str
    input: Any
    providerMetadata: NotRequired[ToolMetadata]
    dynamic: Literal[True]


class ApprovalDescriptor(TypedDict):
    """When the approval expires, and the text that people decide on, unless the call has been decided.

    `isWhole`: the text has the arguments. If not, they can't be read now.
    """

    expiresAt: str
    text: NotRequired[str]
    isWhole: NotRequired[bool]


class ToolApprovalRequestChunk(TypedDict):
    """A call waits for approval. `approvalId` identifies the call and the arguments that are shown."""

    type: Literal["tool-approval-request"]
    toolCallId: str
    approvalId: str
    approvalDescriptor: NotRequired[ApprovalDescriptor]
    isAutomatic: NotRequired[Literal[True]]


class ToolApprovalResponseChunk(TypedDict):
    """A decision: by a person, by expiry, or by the session's tool policy."""

    type: Literal["tool-approval-response"]
    approvalId: str
    approved: bool
    reason: NotRequired[str]


class LargeText(TypedDict):
    """Where the whole text of an excerpt is."""

    url: str
    chars: int


class ToolOutput(TypedDict):
    """A tool's result. With `blob`, `content` is an excerpt. With `cut`, the omitted text is lost."""

    outcome: str
    content: str
    durationMs: NotRequired[int]
    blob: NotRequired[LargeText]
    cut: NotRequired[Literal[True]]


class ToolOutputAvailableChunk(TypedDict):
    """A tool call succeeded."""

    type: Literal["tool-output-available"]
    toolCallId: str
    output: ToolOutput
    dynamic: Literal[True]


class ToolOutputErrorChunk(TypedDict):
    """A tool call failed, was stopped, or its outcome is unknown. The model sees the same text."""

    type: Literal["tool-output-error"]
    toolCallId: str
    errorText: str
    dynamic: Literal[True]


class ToolOutputDeniedChunk(TypedDict):
    """A tool call was rejected and did not run."""

    type: Literal["tool-output-denied"]
    toolCallId: str


class SteeringText(TypedDict):
    """The text of a message that joined a running turn."""

    type: Literal["text"]
    text: str


class SteeringMessageChunk(TypedDict):
    """A message that joined the running turn, before the step that responds to it."""

    type: Literal["steering-message"]
    id: str
    parts: list[SteeringText]


class Notice(TypedDict):
    """A sentence for people."""

    text: str


class NoticeChunk(TypedDict):
    """Why nothing is sent for now. It is not part of a message; pages get it through `onData`."""

    type: Literal["data-notice"]
    data: Notice
    transient: Literal[True]


class Progress(TypedDict):
    """How far a call is, in words."""

    toolCallId: str
    text: str


class ProgressChunk(TypedDict):
    """The next one of the same call replaces it. It is not part of a message."""

    type: Literal["data-progress"]
    data: Progress
    transient: Literal[True]


class AbortChunk(TypedDict):
    """The turn was stopped."""

    type: Literal["abort"]
    reason: str


class ErrorChunk(TypedDict):
    """Why the turn failed, or why the prompt will not become a turn; a sentence for people."""

    type: Literal["error"]
    errorText: str


class FinishChunk(TypedDict):
    """The end of the message in this stream."""

    type: Literal["finish"]
    finishReason: FinishReason
    messageMetadata: MessageMetadata


class SteeringDataChunk(TypedDict):
    """A message that joined the running turn, for version 6, as a part of the answer."""

    type: Literal["data-steering-message"]
    id: str
    data: Notice


UIMessageChunk: TypeAlias = (
    SteeringDataChunk
    | StartChunk
    | StepChunk
    | PartChunk
    | PartDeltaChunk
    | ToolInputStartChunk
    | ToolInputAvailableChunk
    | ToolApprovalRequestChunk
    | ToolApprovalResponseChunk
    | ToolOutputAvailableChunk
    | ToolOutputErrorChunk
    | ToolOutputDeniedChunk
    | SteeringMessageChunk
    | NoticeChunk
    | ProgressChunk
    | AbortChunk
    | ErrorChunk
    | FinishChunk
)
"""One event of the stream; `type` says which."""


ANSWER_RESTARTED = ErrorChunk(
    type="error", errorText="The answer is being written again. The turn continues: resume the stream to see it."
)


def chunk_for_version_6(chunk: UIMessageChunk) -> UIMessageChunk | None:
    """Return the chunk that replaces `chunk` for version 6; `None` if there is none.

    Version 6 can't discard what it has of a step. Where that is needed the stream ends, and the client gets the step
    anew when it resumes.
    """
    match chunk["type"]:
        case "reset-step":
            return ANSWER_RESTARTED
        case "tool-approval-response":
            return None
        case "steering-message":
            text = "".join(part["text"] for part in chunk["parts"])
            return SteeringDataChunk(type="data-steering-message", id=chunk["id"], data=Notice(text=text))
        case _:
            return chunk


MAX_SAFE_INTEGER = 2**53 - 1
"""JavaScript rounds integers beyond it."""

_APPROVAL_ID = re.compile(r"([0-9]{1,9}\.[0-9]{1,9}\.[0-9]{1,9}):([0-9a-f]{64})")


def read_approval_id(text: str) -> tuple[str, str] | None:
    """Return the call of an approval id and the digest of the shown arguments; `None` if we did not issue it.

    >>> read_approval_id("1.2.0:" + "0" * 64)[0], read_approval_id("1.2.0"), read_approval_id("policy")
    ('1.2.0', None, None)
    """
    match = _APPROVAL_ID.fullmatch(text)
    return (match[1], match[2]) if match else None


def tool_chunks(
    call: ToolCall, *, session_id: PublicId, pending: PendingApproval | None = None
) -> Iterator[UIMessageChunk]:
    """Yield the chunks of a complete call in its current state, in order; `pending`: what people decide on."""
    yield _input_chunk(call, session_id)
    if call.approval:
        yield from _approval_chunks(call, call.approval, pending)
    elif call.result and call.result.status == "denied":
        yield from _policy_chunks(call, call.result)
    if call.result:
        yield _result_chunk(call, call.result, session_id)


def _input_chunk(call: ToolCall, session_id: PublicId) -> ToolInputAvailableChunk:
    paths = list[str]()
    # Arguments that are stored by reference and could not be read are replaced with a link.
    args = call.args if call.args_blob is None else {"blob": _large_text(call.args_blob, session_id)}
    chunk = ToolInputAvailableChunk(
        type="tool-input-available",
        toolCallId=call.id,
        toolName=call.name,
        input=_without_unsafe_integers(args, "", paths),
        dynamic=True,
    )
    if paths:
        chunk["providerMetadata"] = ToolMetadata(turnkeeper=InputNotes(integersAsText=paths))
    return chunk


def _without_unsafe_integers(value: object, path: str, paths: list[str]) -> object:
    """Return the value with integers that JavaScript can't represent as strings; add their paths to `paths`.

    >>> paths = []
    >>> _without_unsafe_integers({"to": [2**53, 12]}, "", paths), paths
    ({'to': ['9007199254740992', 12]}, ['to[0]'])
    """
    if isinstance(value, dict):
        dot = "." if path else ""
        return {key: _without_unsafe_integers(inner, f"{path}{dot}{key}", paths) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_unsafe_integers(inner, f"{path}[{index}]", paths) for index, inner in enumerate(value)]
    if isinstance(value, int) and abs(value) > MAX_SAFE_INTEGER:
        paths.append(path)
        return str(value)
    return value


def _approval_chunks(call: ToolCall, approval: Approval, pending: PendingApproval | None) -> Iterator[UIMessageChunk]:
    approval_id = f"{call.id}:{approval.args_digest}"
    descriptor = ApprovalDescriptor(expiresAt=approval.expires_at.isoformat())
    if pending:
        descriptor["text"], descriptor["isWhole"] = pending.text, pending.is_whole
    yield ToolApprovalRequestChunk(
        type="tool-approval-request",
        toolCallId=call.id,
        approvalId=approval_id,
        approvalDescriptor=descriptor,
    )
    if approval.decision:
        expiry_text = call.result.content if call.result and approval.decision == "expired" else None
        yield _response_chunk(approval_id, approved=approval.is_given, reason=expiry_text or approval.reason)


def _policy_chunks(call: ToolCall, result: ToolResult) -> Iterator[UIMessageChunk]:
    approval_id = f"{call.id}:policy"
    yield ToolApprovalRequestChunk(
        type="tool-approval-request", toolCallId=call.id, approvalId=approval_id, isAutomatic=True
    )
    yield _response_chunk(approval_id, approved=False, reason=_model_text(result))


def _response_chunk(approval_id: str, *, approved: bool, reason: str | None) -> ToolApprovalResponseChunk:
    response = ToolApprovalResponseChunk(type="tool-approval-response", approvalId=approval_id, approved=approved)
    if reason:
        response["reason"] = reason
    return response


def _result_chunk(call: ToolCall, result: ToolResult, session_id: PublicId) -> UIMessageChunk:
    if result.status == "denied":
        return ToolOutputDeniedChunk(type="tool-output-denied", toolCallId=call.id)
    if result.status != "ok":
        text = _model_text(result)
        return ToolOutputErrorChunk(type="tool-output-error", toolCallId=call.id, errorText=text, dynamic=True)
    output = ToolOutput(outcome=result.outcome, content=result.content)
    if result.duration_ms is not None:
        output["durationMs"] = result.duration_ms
    if result.blob:
        output["blob"] = _large_text(result.blob, session_id)
    if result.cut:
        output["cut"] = True
    return ToolOutputAvailableChunk(type="tool-output-available", toolCallId=call.id, output=output, dynamic=True)


def _model_text(result: ToolResult) -> str:
    return f"{result.outcome}\n{result.content}" if result.content else result.outcome


def _large_text(ref: BlobRef, session_id: PublicId) -> LargeText:
    return LargeText(url=f"/workflow/{session_id}/blobs/{ref.hash}", chars=ref.chars)
