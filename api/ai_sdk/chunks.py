"""The chunks of a UI message stream, version 1, as far as this adapter sends them (API-1).

They are the words of Vercel's AI SDK, not ours: names, spelling and order are what its client checks each chunk against
(`uiMessageChunkSchema` of the npm package `ai`, version 7). Version 6 lacks some; `older_clients.py` has others for it.
"""

from typing import Any, Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict

FinishReason = Literal["stop", "tool-calls", "error", "other"]
"""`tool-calls`: people are asked about calls; `other`: the turn was stopped. Version 6 knows no `interrupted`."""


class TokenUsage(TypedDict):
    """Tokens of a turn, by the AI SDK's names; `cost` is in US dollars, left out where no price is known."""

    inputTokens: int
    outputTokens: int
    totalTokens: int
    reasoningTokens: int
    cachedInputTokens: int
    cost: NotRequired[float]


class MessageMetadata(TypedDict, total=False):
    """What a message has beside its parts: whose answer it is, and once it has ended, what it took."""

    turnId: str
    createdAt: str
    model: str
    usage: TokenUsage
    processingTimeMs: int


class StartChunk(TypedDict):
    """A message begins, or goes on under the id it has."""

    type: Literal["start"]
    messageId: str
    messageMetadata: MessageMetadata


class StepChunk(TypedDict):
    """A model step begins; all that was sent of it is void, as another attempt takes its place; or it has ended.

    It has ended once its tool calls have, or when they wait for people.
    """

    type: Literal["start-step", "reset-step", "finish-step"]


class PartChunk(TypedDict):
    """Thinking, or text for the user, begins or has ended."""

    type: Literal["reasoning-start", "reasoning-end", "text-start", "text-end"]
    id: str


class PartDeltaChunk(TypedDict):
    """Thinking, or text for the user, goes on."""

    type: Literal["reasoning-delta", "text-delta"]
    id: str
    delta: str


class ToolInputStartChunk(TypedDict):
    """A tool call is being written."""

    type: Literal["tool-input-start"]
    toolCallId: str
    toolName: str
    dynamic: Literal[True]


class ToolInputAvailableChunk(TypedDict):
    """A tool call is whole; `input` is a string where the model's arguments were no JSON object."""

    type: Literal["tool-input-available"]
    toolCallId: str
    toolName: str
    input: Any
    dynamic: Literal[True]


class ApprovalDescriptor(TypedDict):
    """Until when people can decide."""

    expiresAt: str


class ToolApprovalRequestChunk(TypedDict):
    """People are asked about a call; `approvalId` names the call and the arguments that were shown."""

    type: Literal["tool-approval-request"]
    toolCallId: str
    approvalId: str
    approvalDescriptor: NotRequired[ApprovalDescriptor]
    isAutomatic: NotRequired[Literal[True]]


class ToolApprovalResponseChunk(TypedDict):
    """It was decided, by a person, by the time being over, or by the session's tool policy."""

    type: Literal["tool-approval-response"]
    approvalId: str
    approved: bool
    reason: NotRequired[str]


class LargeText(TypedDict):
    """Where the whole of an excerpt is."""

    url: str
    chars: int


class ToolOutput(TypedDict):
    """A tool's result. With `blob`, `content` is an excerpt; `cut`: what it leaves out is lost."""

    outcome: str
    content: str
    durationMs: NotRequired[int]
    blob: NotRequired[LargeText]
    cut: NotRequired[Literal[True]]


class ToolOutputAvailableChunk(TypedDict):
    """A tool has answered."""

    type: Literal["tool-output-available"]
    toolCallId: str
    output: ToolOutput
    dynamic: Literal[True]


class ToolOutputErrorChunk(TypedDict):
    """A tool call has failed, was stopped, or nobody knows what became of it; the model sees the same text."""

    type: Literal["tool-output-error"]
    toolCallId: str
    errorText: str
    dynamic: Literal[True]


class ToolOutputDeniedChunk(TypedDict):
    """A tool call was rejected and never ran."""

    type: Literal["tool-output-denied"]
    toolCallId: str


class SteeringText(TypedDict):
    """The words of a message that joined a running turn."""

    type: Literal["text"]
    text: str


class SteeringMessageChunk(TypedDict):
    """A message that joined the running turn, before the step that takes it up."""

    type: Literal["steering-message"]
    id: str
    parts: list[SteeringText]


class Notice(TypedDict):
    """A sentence for people."""

    text: str


class NoticeChunk(TypedDict):
    """Why nothing is sent for now. It is part of no message: a page gets it by `onData`."""

    type: Literal["data-notice"]
    data: Notice
    transient: Literal[True]


class AbortChunk(TypedDict):
    """The turn was stopped."""

    type: Literal["abort"]
    reason: str


class ErrorChunk(TypedDict):
    """The turn has failed, or the prompt will never be one; in words for people."""

    type: Literal["error"]
    errorText: str


class FinishChunk(TypedDict):
    """Nothing more of this message comes in this stream."""

    type: Literal["finish"]
    finishReason: FinishReason
    messageMetadata: MessageMetadata


class SteeringDataChunk(TypedDict):
    """A message that joined the running turn, for version 6: a part of the answer."""

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
    | AbortChunk
    | ErrorChunk
    | FinishChunk
)
"""One event of the stream; `type` says which."""
