"""What a model is asked and what it answers: the neutral form every provider encodes and folds (AGT-2, AGT-3)."""

import json
from hashlib import sha256
from typing import Annotated, Literal

from pydantic import Field, JsonValue, PlainSerializer

from turnkeeper.models.limits import ANSWER_BYTES, LARGE_RESULT_BYTES, LARGE_TEXT_BYTES
from turnkeeper.models.transcript.trajectory import BlobRef, StopReason, ToolStatus, Usage
from turnkeeper.models.wire import Compact, Frozen, Items


def _only_what_was_used(usage: Usage | None) -> dict[str, float] | None:
    return usage.model_dump(exclude_defaults=True) if usage else None


CompactUsage = Annotated[Usage | None, PlainSerializer(_only_what_was_used)]
"""Usage in workflow history: what is zero or not known takes no bytes."""

ToolEffect = Literal["read", "idempotent", "at_most_once"]
"""What a repeated call may do; from MCP's annotations (AGT-7). Only the first two are retried."""


class ToolSpec(Compact):
    """A tool as the model sees it (name, description, schema of its input), and how a call of it may be repeated.

    `server`: the foreign server it belongs to, empty for the built-in ones.
    """

    name: str
    description: str = ""
    input_schema: dict[str, JsonValue] = {}
    effect: ToolEffect = "at_most_once"
    built_in: bool = False
    server: str = ""

    @property
    def digest(self) -> str:
        """SHA-256 of all of it in hex: what a policy or a person decided about (AGT-8).

        >>> ToolSpec(name="pay").digest == ToolSpec(name="pay", effect="read").digest
        False
        """
        return sha256(json.dumps(json.loads(self.model_dump_json()), sort_keys=True).encode()).hexdigest()


class ProviderState(Compact):
    """A vendor's own blocks of one step, verbatim: never shown, never logged, never read by the workflow (AGT-3).

    With a `blob`, `items` are in the store as JSON.
    """

    api: str
    model: str
    items: list[JsonValue] = []
    blob: BlobRef | None = None


class ThinkPart(Compact):
    """Thinking the vendor shows; with a `blob`, an excerpt of it."""

    kind: Literal["think"]
    text: str
    blob: BlobRef | None = None


class RespondPart(Compact):
    """Text for the user; with a `blob`, an excerpt of it."""

    kind: Literal["respond"]
    text: str
    blob: BlobRef | None = None


class CallPart(Compact):
    """A tool call. `args` is a string only where the model's argument text was no JSON object.

    With a `blob`, `args` is empty, and the store has it as JSON.
    """

    kind: Literal["call"]
    id: str
    name: str
    args: dict[str, JsonValue] | str = {}
    blob: BlobRef | None = None


Part = Annotated[ThinkPart | RespondPart | CallPart, Field(discriminator="kind")]


class ModelResponse(Compact):
    """One whole answer of a model: its parts in the vendor's order."""

    parts: list[Part] = []
    stop: StopReason = "end_turn"
    usage: CompactUsage = None
    model: str
    request_id: str | None = None
    state: ProviderState | None = None

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, RespondPart))

    @property
    def thinking(self) -> str:
        return "\n\n".join(part.text for part in self.parts if isinstance(part, ThinkPart))

    @property
    def text_blob(self) -> BlobRef | None:
        """Where the whole text is, if `text` is an excerpt."""
        return next((part.blob for part in self.parts if isinstance(part, RespondPart)), None)

    @property
    def thinking_blob(self) -> BlobRef | None:
        """Where the whole thinking is, if `thinking` is an excerpt."""
        return next((part.blob for part in self.parts if isinstance(part, ThinkPart)), None)

    @property
    def calls(self) -> list[CallPart]:
        return [part for part in self.parts if isinstance(part, CallPart)]


class ModelMessage(Compact):
    """One message of the model view. `role: tool` answers the call `call_id` of the assistant message before it.

    `content` of a tool message is the result's outcome line, then its content below it. With a `blob`, what `content`
    has from `blob_start` on is an excerpt of the text that is meant.
    """

    role: Literal["user", "assistant", "tool"]
    content: str = ""
    tool_calls: Items[CallPart] = []
    call_id: str | None = None
    tool_name: str | None = None
    status: ToolStatus | None = None
    state: ProviderState | None = None
    blob: BlobRef | None = None
    blob_start: int = 0


class RequestHead(Compact):
    """What stays the same through a segment: system prompt and tools."""

    system: str = ""
    tools: list[ToolSpec] = []
    max_tokens: int | None = None
    """Most tokens of the answer; `None`: as many as the provider allows."""


class ModelRequest(Compact):
    """The whole context of one model call. Built once, never changed while the request is open (AGT-2)."""

    head: RequestHead
    messages: list[ModelMessage]


class ModelCall(Compact):
    """Input of `call_model`: coordinates only, never the context (AGT-2).

    Session and run are the activity's own workflow id and run id. `request` counts the session's model requests
    from 1; `digest` names the exact context the call must see. `turn` and `step` count from 1. Texts of the answer of
    more than `inline_bytes` as JSON go by reference; what then remains may have `max_bytes` (SES-15, SES-16).
    """

    turn: int
    step: int
    request: int
    model: str
    digest: str
    message_id: str = ""
    """The turn's id: what partial output is tagged with (AGT-5). Calls from before have none, and show none."""
    silences: int = 0
    """How many of the waits that `round` counts were for the session itself: the vendor was not asked."""
    round: int = 0
    """How often the workflow has already waited out this request (AGT-9)."""
    repeats_empty: bool = False
    """An answer without text and calls is a `repeat`; otherwise it is a response like any other (AGT-9)."""
    inline_bytes: int = LARGE_TEXT_BYTES
    max_bytes: int = ANSWER_BYTES
    tokens_left: int | None = None
    """What the turn may still take; attempts that took more in vain end the call (AGT-9). `None`: no limit."""
    cost_left: float | None = None
    unclear_answers: int = 0
    """How many answers to this request were unclear before the waits that `round` counts (AGT-9)."""


class ModelCallOutcome(Compact):
    """Output of `call_model`: what is no response is for the workflow to act upon (AGT-9).

    One of `response`, `wait_seconds` and `repeat` is set; none of them where the call was cancelled. `unfinished` is
    what the model had written of an answer that did not become whole (SES-9).
    """

    response: ModelResponse | None = None
    unfinished: ModelResponse | None = None
    wait_seconds: float | None = None
    """How long the vendor is not to be asked again; a length, since clocks of two processes differ."""
    wait_reason: str = ""
    """Why, as a sentence for people that names the vendor; outcomes from before say nothing."""
    repeat: Literal["context_too_long", "stale_reasoning", "digest_mismatch", "empty_answer"] | None = None
    """The same request cannot succeed, and a changed one may; an `empty_answer` is asked for again as it was."""
    spent: CompactUsage = None
    """What attempts took that gave no whole answer (AGT-9)."""
    unclear_answers: int = 0
    """How many answers to the request were unclear so far: the next call is told (AGT-9)."""


class Spent(Compact):
    """What attempts took that gave no whole answer: the second detail of heartbeats and failures (AGT-9)."""

    usage: CompactUsage = None
    unclear_answers: int = 0
    """Answers that nobody could read, or of which nobody knew whether they were whole."""


class SummaryCall(Compact):
    """Input of `summarise`: coordinates of the messages, as in `ModelCall`; their tools come with them (CTX-5).

    `has_earlier`: the first message is the summary so far.
    """

    turn: int
    request: int
    model: str
    digest: str
    has_earlier: bool = False


class SummaryOutcome(Compact):
    """Output of `summarise`: the text and which files were written, or the `trouble` with it (CTX-5).

    `files_omitted` counts those that were written before the ones of `files`, which are too many to be named.
    """

    text: str = ""
    files: list[str] = []
    files_omitted: int = 0
    trouble: str | None = None
    usage: CompactUsage = None
    spent: CompactUsage = None
    """What attempts took that gave no whole answer (AGT-9)."""


class ToolListCall(Compact):
    """Input of `list_tools`: the digest of the tools that the session knows; empty: it knows none."""

    known: str = ""


class ToolList(Compact):
    """Output of `list_tools`: the tools, in a stable order. `unread`: the servers that could not be asked now.

    `unchanged`: they are those that the session knows, which it need not be told again.
    """

    tools: list[ToolSpec] = []
    unread: list[str] = []
    unchanged: bool = False


class ToolInvocation(Compact):
    """Input of `call_tool`. `call_id` is our own `turn.step.index`, the idempotency key within its session (AGT-7).

    `session_id` does not travel: the activity fills in its own workflow id. `max_chars` and `max_bytes` (as JSON) bound
    the result's content (CTX-14, SES-16); over `inline_bytes` it goes by reference (SES-15). With an `args_blob`,
    `args` is empty and the store has it as JSON. The tool `name` is meant as the session knows it: `server`'s, with a
    `tool_digest` of its spec; or one of our own, if `built_in`. Sessions of earlier releases say neither, and mean
    whoever's it is.
    """

    session_id: str = ""
    call_id: str
    name: str
    server: str = ""
    built_in: bool = False
    tool_digest: str = ""
    args: dict[str, JsonValue]
    args_blob: BlobRef | None = None
    workspace: str = ""
    max_chars: int = 30_000
    max_bytes: int = LARGE_RESULT_BYTES
    inline_bytes: int = LARGE_TEXT_BYTES


class ModelRequestQuery(Frozen):
    """Argument of the query `get_model_request`: which request, and from which message on."""

    request: int
    offset: int = 0


class ModelRequestPage(Compact):
    """A part of an open request, about 1 MB. `head` comes with the first page; `next_offset` is null at the end."""

    head: RequestHead | None = None
    messages: list[ModelMessage] = []
    next_offset: int | None = None
    digest: str
