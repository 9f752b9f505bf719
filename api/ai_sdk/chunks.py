"""The chunks of a UI message stream, version 1, that this adapter sends (API-1).

Names, spelling and order are those of Vercel's AI SDK, whose client validates each chunk (`uiMessageChunkSchema` of the
npm package `ai`, version 7). Version 6 lacks some of them; `older_clients.py` replaces those.
"""

from typing import Any, Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict

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
    """How far a running call is, in words."""

    toolCallId: str
    text: str


class ProgressChunk(TypedDict):
    """The progress of a call; the next one of the same call replaces it. It is not part of a message."""

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
