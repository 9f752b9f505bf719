"""What happened inside a turn: its steps, the tool calls of a step, and their results (SES-1)."""

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from turnkeeper.models.wire import Compact, Frozen, Items, UtcDatetime

ToolStatus = Literal["ok", "error", "denied", "cancelled", "outcome_unknown"]
"""How a tool call ended. `outcome_unknown`: it was started, may have had its effect, and is not repeated (AGT-7)."""

ApprovalDecision = Literal["approve", "allow_for_session", "reject"]
"""What a person can say to a call; `allow_for_session` is about all further calls of the tool too (AGT-8)."""

StopReason = Literal["end_turn", "tool_calls", "max_tokens"]
"""Why the model stopped. `max_tokens`: its text was cut by the vendor's limit, its calls were not taken up."""


COST_DIGITS = 9
"""Digits after the point that a cost in US dollars has: sums stay free of binary fractions' noise, and of no token is
the price lost."""


class BlobRef(Compact):
    """A large text that is kept in the store: the SHA-256 of its UTF-8 in hex, and how large it is (SES-15)."""

    hash: str
    chars: int
    bytes: int


class ToolResult(Frozen):
    """What a tool call came to. `outcome` is one line for people; `content` is what the model reads below it.

    With a `blob`, `content` is an excerpt and the model reads the whole text. `cut`: the store was down when the result
    came, and what `content` leaves out is lost. `tool_changed`: it was not called: the session knows another.
    """

    outcome: str
    content: str = ""
    status: ToolStatus = "ok"
    duration_ms: int | None = None
    blob: BlobRef | None = None
    cut: bool = False
    tool_changed: bool = False


class Approval(Frozen):
    """A person's decision on a tool call, waited for until `expires_at` (AGT-8).

    `args_digest` names the arguments it is about. `decision` is null while nobody has decided, and stays so if the turn
    ends first; `expired`: nobody did in time, which counts as a rejection.
    """

    args_digest: str
    asked_at: UtcDatetime
    expires_at: UtcDatetime
    decision: ApprovalDecision | Literal["expired"] | None = None
    reason: str | None = None
    decided_at: UtcDatetime | None = None

    @property
    def is_given(self) -> bool:
        """The call may run."""
        return self.decision in ("approve", "allow_for_session")


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
    approval: Approval | None = None
    result: ToolResult | None = None

    @property
    def awaits_approval(self) -> bool:
        """A person is asked, and has not decided yet."""
        return self.approval is not None and self.approval.decision is None and self.result is None


class Usage(Frozen):
    """Tokens as the vendor reported them, normalised: one form for all vendors (AGT-10).

    `input_tokens` include those read from the vendor's cache (`cached_tokens`) and those written to it
    (`cache_write_tokens`); `output_tokens` include the reasoning. `cost` is in US dollars, of the calls whose price is
    known; null where none is. `estimated_tokens` are those of input and output that no vendor has counted, of attempts
    that gave no whole answer (AGT-9).
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
        """All that was read and written, cached or not."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: "Usage") -> "Usage":
        """Add field by field; costs to `COST_DIGITS`.

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


def dollars(cost: float) -> str:
    """Write a cost for people, in full.

    >>> dollars(0.05), dollars(0.000123), dollars(12.5), dollars(0.0)
    ('$0.05', '$0.000123', '$12.50', '$0.00')
    """
    whole, _, fraction = f"{cost:,.{COST_DIGITS}f}".partition(".")
    return f"${whole}.{fraction.rstrip('0'):0<2}"


INTERRUPTED_NOTE = "[This answer was interrupted before it was complete.]\n\n"
"""Begins an interrupted text where a model reads it: it stands first, since of a long text the end may be elsewhere."""


class ModelStep(Frozen):
    """One model response and the results of the tool calls it asked for. With a blob, its text is an excerpt.

    `interrupted`: the answer was stopped, or broke off, and this is what the model had written by then. Its thinking
    and its calls are shown to people only; none of its calls was run (SES-9).
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
    timestamp: UtcDatetime

    @property
    def is_answer(self) -> bool:
        """It asks for no tools: the turn ends with it."""
        return not self.tool_calls


class UserStep(Frozen):
    """A prompt that was steered into the running turn (SES-7)."""

    kind: Literal["user"]
    message_id: str
    content: str
    timestamp: UtcDatetime


Step = Annotated[ModelStep | UserStep, Field(discriminator="kind")]


class ReasoningTrajectory(Frozen):
    """The steps of a turn, oldest first."""

    steps: Items[Step] = []

    @property
    def model_steps(self) -> list[ModelStep]:
        """The model's own steps, without what was steered in."""
        return [step for step in self.steps if isinstance(step, ModelStep)]
