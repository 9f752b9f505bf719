"""The steps of a turn, with their tool calls and results (SES-1)."""

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from turnkeeper.models.transcript.attachments import Attachment
from turnkeeper.models.wire import Compact, Frozen, Items, UtcDatetime

ToolStatus = Literal["ok", "error", "denied", "cancelled", "outcome_unknown"]
"""How a tool call ended.

`outcome_unknown`: it started, may have had its effect, and is not repeated (AGT-7). `cancelled`: it had none, because
it never started or only reads.
"""

ApprovalDecision = Literal["approve", "allow_for_session", "reject"]
"""A person's decision on a call; `allow_for_session` also allows all further calls of the tool (AGT-8)."""

StopReason = Literal["end_turn", "tool_calls", "max_tokens"]
"""Why the model stopped. `max_tokens`: the vendor's limit cut its text off, and its calls were ignored."""


COST_DIGITS = 9
"""Decimal places of a cost in US dollars: enough for the price of one token, and sums have no rounding noise."""


class BlobRef(Compact):
    """Reference to a large text in the store: the SHA-256 of its UTF-8 in hex, and its size (SES-15)."""

    hash: str
    chars: int
    bytes: int


class ToolResult(Frozen):
    """The result of a tool call. `outcome` is one line for people; the model reads it with the `content` below it.

    With a `blob`, `content` is an excerpt, but the model gets the whole text. `cut`: the store was down, so the rest of
    `content` is lost. `tool_changed`: the tool was not called, since it is not the one that the session knows.
    """

    outcome: str
    content: str = ""
    status: ToolStatus = "ok"
    duration_ms: int | None = None
    blob: BlobRef | None = None
    cut: bool = False
    tool_changed: bool = False
    attachments: Items[Attachment] = Field([], exclude_if=lambda attachments: not attachments)
    """Images and files that the tool returned. Left out of the JSON if there are none."""


class FileChange(Compact):
    """The difference that a call would make to a file, as a worker saw it when approval was requested (AGT-8).

    `note` says what becomes of the file, or why there is no difference. `diff` is unified; `omitted_lines` more of it
    are left out. `sha256` is that of the file, in hex; empty: there was none; `None`: unknown, so that the call runs
    whatever the file is then.
    """

    note: str
    diff: str = ""
    omitted_lines: int = 0
    sha256: str | None = None


class Approval(Frozen):
    """A person's decision on a tool call, possible until `expires_at` (AGT-8).

    `args_digest` is that of the arguments it is about. `decision` is null until somebody decides, and stays null if the
    turn ends first; `expired`: nobody decided in time, which counts as a rejection. `decided_by` is the person of the
    key or token that decided. Without one it is left out of the JSON.
    `change` is what the call would change in a file; the call runs only while that file is the same.
    """

    args_digest: str
    asked_at: UtcDatetime
    expires_at: UtcDatetime
    change: FileChange | None = Field(None, exclude_if=lambda change: change is None)
    decision: ApprovalDecision | Literal["expired"] | None = None
    reason: str | None = None
    decided_at: UtcDatetime | None = None
    decided_by: str | None = Field(None, exclude_if=lambda person: person is None)

    @property
    def is_given(self) -> bool:
        """Whether the call may run."""
        return self.decision in ("approve", "allow_for_session")


class ToolCall(Frozen):
    """A tool call of the model.

    `id` is our own, `turn.step.index`, unique in the session; `provider_call_id` is the vendor's, which can repeat
    (SES-6). `args` is the model's JSON object, or its text verbatim if that was not a JSON object; with an `args_blob`
    it is empty, and the store has it as JSON. `legible_args` is what people read: only in what the gateway sends, and
    not with an `args_blob`.
    """

    id: str
    name: str
    args: dict[str, JsonValue] | str
    args_blob: BlobRef | None = None
    legible_args: str | None = Field(None, exclude_if=lambda text: text is None)
    provider_call_id: str | None = None
    approval: Approval | None = None
    result: ToolResult | None = None

    @property
    def awaits_approval(self) -> bool:
        """Whether a person still has to decide."""
        return self.approval is not None and self.approval.decision is None and self.result is None


class Usage(Frozen):
    """Tokens as reported by the vendor, in one form for all vendors (AGT-10).

    `input_tokens` include those read from the vendor's cache (`cached_tokens`) and written to it
    (`cache_write_tokens`); `output_tokens` include reasoning. `cost` is in US dollars, for the calls whose price is
    known; null if there are none. `estimated_tokens` are those of attempts without a complete answer, which no vendor
    has counted (AGT-9).
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cache_write_tokens: int = 0
    estimated_tokens: int = 0
    cost: float | None = None

    @property
    def tokens(self) -> int:
        """Input and output together, cached or not."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: "Usage") -> "Usage":
        """Add field by field; costs are rounded to `COST_DIGITS`.

        >>> (Usage(input_tokens=1, cost=0.5) + Usage(input_tokens=2, output_tokens=3)).model_dump(exclude_defaults=True)
        {'input_tokens': 3, 'output_tokens': 3, 'cost': 0.5}
        >>> (Usage(cost=0.1) + Usage(cost=0.2)).cost, (Usage() + Usage()).cost
        (0.3, None)
        """
        costs = [usage.cost for usage in (self, other) if usage.cost is not None]
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            estimated_tokens=self.estimated_tokens + other.estimated_tokens,
            cost=round(sum(costs), COST_DIGITS) if costs else None,
        )

    def __sub__(self, earlier: "Usage") -> "Usage":
        """Subtract an earlier sum field by field.

        >>> (Usage(input_tokens=3, cost=0.5) - Usage(input_tokens=1, cost=0.1)).model_dump(exclude_defaults=True)
        {'input_tokens': 2, 'cost': 0.4}
        """
        names = Usage.model_fields.keys() - {"cost"}
        cost = None if self.cost is None else round(self.cost - (earlier.cost or 0.0), COST_DIGITS)
        return Usage(cost=cost, **{name: getattr(self, name) - getattr(earlier, name) for name in names})


def dollars(cost: float) -> str:
    """Format a cost, unrounded.

    >>> dollars(0.05), dollars(0.000123), dollars(12.5), dollars(0.0)
    ('$0.05', '$0.000123', '$12.50', '$0.00')
    """
    whole, _, fraction = f"{cost:,.{COST_DIGITS}f}".partition(".")
    return f"${whole}.{fraction.rstrip('0'):0<2}"


INTERRUPTED_NOTE = "[This answer was interrupted before it was complete.]\n\n"
"""Precedes an interrupted text in what a model reads. It comes first, since an excerpt may lack the end."""


class ModelStep(Frozen):
    """A model response and the results of its tool calls. With a blob, its text is an excerpt.

    `interrupted`: the answer was stopped or broke off, and this is what the model had written. Its thinking and calls
    are only shown to people; none of the calls ran (SES-9).
    """

    kind: Literal["model"]
    number: int
    thinking: str | None = None
    thinking_blob: BlobRef | None = None
    text: str | None = None
    text_blob: BlobRef | None = None
    tool_calls: Items[ToolCall] = []
    stop: StopReason = "end_turn"
    interrupted: bool = False
    usage: Usage | None = None
    model: str | None = None
    request_id: str | None = None
    left_out: str = Field("", exclude_if=lambda text: not text)
    """One line: which parts the model's vendor refused, so that they were left out of the request, and why (AGT-9)."""
    timestamp: UtcDatetime

    @property
    def is_answer(self) -> bool:
        """Whether it ends the turn: it has no tool calls."""
        return not self.tool_calls


class UserStep(Frozen):
    """A prompt that was steered into the running turn (SES-7)."""

    kind: Literal["user"]
    message_id: str
    content: str
    attachments: Items[Attachment] = Field([], exclude_if=lambda attachments: not attachments)
    timestamp: UtcDatetime


Step = Annotated[ModelStep | UserStep, Field(discriminator="kind")]


class ReasoningTrajectory(Frozen):
    """The steps of a turn, oldest first."""

    steps: Items[Step] = []

    @property
    def model_steps(self) -> list[ModelStep]:
        """The model's steps, without steering prompts."""
        return [step for step in self.steps if isinstance(step, ModelStep)]
