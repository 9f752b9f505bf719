"""What happened inside a turn: its steps, the tool calls of a step, and their results (SES-1)."""

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from models.wire import Compact, Frozen, UtcDatetime

ToolStatus = Literal["ok", "error", "denied", "cancelled", "outcome_unknown"]
"""How a tool call ended. `outcome_unknown`: it was started, may have had its effect, and is not repeated (AGT-7)."""

StopReason = Literal["end_turn", "tool_calls", "max_tokens"]
"""Why the model stopped. `max_tokens`: its text was cut by the vendor's limit, its calls were not taken up."""


class BlobRef(Compact):
    """A large text that is kept in the store: the SHA-256 of its UTF-8 in hex, and how large it is (SES-15)."""

    hash: str
    chars: int
    bytes: int


class ToolResult(Frozen):
    """What a tool call came to. `outcome` is one line for people; `content` is what the model reads below it.

    With a `blob`, `content` is an excerpt and the model reads the whole text. `cut`: the store was down when the result
    came, and what `content` leaves out is lost.
    """

    outcome: str
    content: str = ""
    status: ToolStatus = "ok"
    duration_ms: int | None = None
    blob: BlobRef | None = None
    cut: bool = False


class ToolCall(Frozen):
    """A call the model asked for.

    `id` is our own, `turn.step.index`, unique in the session; `provider_call_id` is the vendor's, which can repeat
    (SES-6). `args` is the JSON object the model gave, or its text verbatim where that was no JSON object; with an
    `args_blob` it is empty, and the store has it as JSON.
    """

    id: str
    name: str
    args: dict[str, JsonValue] | str
    args_blob: BlobRef | None = None
    provider_call_id: str | None = None
    result: ToolResult | None = None


class Usage(Frozen):
    """Tokens as the vendor reported them. `input_tokens` include the cached ones, `output_tokens` the reasoning."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        """Add field by field.

        >>> (Usage(input_tokens=1) + Usage(input_tokens=2, output_tokens=3)).input_tokens
        3
        """
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
        )


class ModelStep(Frozen):
    """One model response and the results of the tool calls it asked for. With a blob, its text is an excerpt."""

    kind: Literal["model"]
    number: int
    thinking: str | None = None
    thinking_blob: BlobRef | None = None
    text: str | None = None
    text_blob: BlobRef | None = None
    tool_calls: list[ToolCall] = []
    stop: StopReason = "end_turn"
    usage: Usage | None = None
    model: str | None = None
    request_id: str | None = None
    timestamp: UtcDatetime


class UserStep(Frozen):
    """A prompt that was steered into the running turn (SES-7)."""

    kind: Literal["user"]
    message_id: str
    content: str
    timestamp: UtcDatetime


Step = Annotated[ModelStep | UserStep, Field(discriminator="kind")]


class ReasoningTrajectory(Frozen):
    """The steps of a turn, oldest first."""

    steps: list[Step] = []

    @property
    def model_steps(self) -> list[ModelStep]:
        """The model's own steps, without what was steered in."""
        return [step for step in self.steps if isinstance(step, ModelStep)]
