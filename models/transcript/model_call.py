"""What workflow and activities exchange about a model call, in one form for all providers (AGT-2, AGT-3).

That is requests and responses, the parts of a request that a vendor refused and that are left out from then on (AGT-9),
and the list entry of a session, from its own state (API-1).
"""

import json
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Annotated, Literal

from pydantic import Field, JsonValue, PlainSerializer

from turnkeeper.models.errors import ErrorType
from turnkeeper.models.legible import one_line
from turnkeeper.models.limits import ANSWER_BYTES, LARGE_RESULT_BYTES, LARGE_TEXT_BYTES
from turnkeeper.models.transcript.attachments import Attachment
from turnkeeper.models.transcript.conversation import (
    BlobRef,
    FileChange,
    HandOffReport,
    StopReason,
    TaskStatus,
    ToolResult,
    ToolStatus,
    Usage,
)
from turnkeeper.models.wire import Compact, Frozen, Items, UtcDatetime

# ---- refused parts

PartKind = Literal[
    "state", "parameter", "bound", "field", "required", "attachment", "images", "pdfs", "tool_schema", "tool"
]
"""Kinds of parts that can be left out of a request:

state         the vendors' own blocks of earlier steps
parameter     an optional parameter of the API, or a field that we add to blocks
bound         nothing is left out: a number is at most `limit`
field         an optional field of messages
required      nothing is left out: a field is added to messages
attachment    an image or a PDF, which is named in text
images, pdfs  all of this kind
tool_schema   a tool is offered with an open schema, and its own as text
tool          a tool
"""

MAX_NAME_CHARS = 200
MAX_TEXTS = 10
"""Parts that are named in one line."""


class RefusedPart(Compact):
    """A part that a model's vendor refused.

    `name` is that of the parameter, the field or the tool, or the id of the content; empty: all of the kind. `version`
    is the digest of the tool, or of the list of tools: a changed one is offered again.
    """

    kind: PartKind
    name: str = ""
    version: str = ""
    limit: int | None = None
    reason: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """The identity of the part, independent of limit and reason."""
        return (self.kind, self.name, self.version)

    @property
    def text(self) -> str:
        """The part and why it is left out, for people.

        >>> RefusedPart(kind="tool_schema", name="look", reason="it was refused").text
        'schema of the tool look (it was refused)'
        """
        words = _WORDS[self.kind if self.name else f"all {self.kind}"]
        what = words.format(self.name, f"{self.limit:,}" if self.limit else "")
        return f"{what} ({self.reason})" if self.reason else what


_WORDS = {
    "state": "reasoning of earlier steps",
    "all state": "reasoning of earlier steps",
    "parameter": "parameter {0}",
    "bound": "{0} over {1}",
    "field": "field {0} of messages",
    "required": "messages without {0}",
    "attachment": "attachment",
    "all attachment": "attachments",
    "all images": "images",
    "all pdfs": "PDFs",
    "tool_schema": "schema of the tool {0}",
    "all tool_schema": "schemas of the tools",
    "tool": "tool {0}",
    "all tool": "tools",
}


def left_out_text(parts: Iterable[RefusedPart]) -> str:
    """Return one line that says what was left out and why; empty without parts.

    >>> left_out_text([RefusedPart(kind="tool", name="look", reason="it was refused"), RefusedPart(kind="images")])
    'Left out for this model: tool look (it was refused); images'
    """
    texts = list(dict.fromkeys(part.text for part in parts))
    more = f"; and {len(texts) - MAX_TEXTS} more" if len(texts) > MAX_TEXTS else ""
    return f"Left out for this model: {'; '.join(texts[:MAX_TEXTS])}{more}" if texts else ""


# ---- the list entry

IndexStatus = Literal["open", "awaiting_approval", "ended", "cancelled", "terminated"]
"""Whether a session is open, also while it waits for a person's decision, and how it ended."""

PREVIEW_CHARS = 200


class IndexEntry(Compact):
    """A session as of one of its revisions. It travels beside the history: by a cache, or in a query's result."""

    created_at: UtcDatetime
    revision: int
    status: IndexStatus = "open"
    title: str | None = None
    user: str | None = None
    model: str | None = None
    turn_count: int = 0
    cost: float | None = None
    """In US dollars; `None`: no price is known."""
    preview: str | None = None
    """The beginning of the newest prompt, in one line."""
    parent: str | None = None
    """The session that it works for as a task, or `NO_PARENT`; `None`: it is no task."""
    task_status: TaskStatus | None = None
    percent: int | None = None
    message: str | None = None
    """The last line that the task's agent reported."""
    hand_off: HandOffReport | None = None
    """What the task received of the conversation; `None`: unknown."""


def make_preview(text: str) -> str:
    r"""Return the beginning of a prompt in one line.

    >>> make_preview("  list\nthe files ")
    'list the files'
    """
    return one_line(text, PREVIEW_CHARS)


# ---- tools, requests and responses


def _without_zeros(usage: Usage | None) -> dict[str, float] | None:
    return usage.model_dump(exclude_defaults=True) if usage else None


CompactUsage = Annotated[Usage | None, PlainSerializer(_without_zeros)]
"""Usage in workflow history: its JSON leaves out zeros and unknown numbers."""

ToolEffect = Literal["read", "idempotent", "at_most_once"]
"""The effect of a repeated call, from MCP's annotations (AGT-7). Only the first two are retried."""


QUICK_READS = frozenset({"file_list", "file_read", "now"})
"""Built-in tools that read and end within milliseconds (OPS-8)."""

FILE_WRITERS = frozenset({"file_write"})
"""Built-in tools whose difference to the file is shown before they are approved (AGT-8)."""


MAX_DESCRIPTION_CHARS = 4_000
"""Maximum length of a tool's description."""

MAX_TOOLS = 128
"""OpenAI's maximum number of tools in one request: with more, it rejects every request."""


class ToolSpec(Compact):
    """A tool as the model sees it, and the effect of a repeated call.

    `server` is the foreign server it belongs to; empty for built-in tools.
    """

    name: str
    description: str = ""
    input_schema: dict[str, JsonValue] = {}
    effect: ToolEffect = "at_most_once"
    built_in: bool = False
    server: str = ""
    own_name: str = ""
    """Its name at its server, by which policies name it; empty: `name`."""
    local: bool = False
    """Whether it is of a server on the worker's machine that answers without a network: that of an agent's file."""

    @property
    def is_quick_read(self) -> bool:
        """Whether the model call's activity may run it: it only reads, and most likely ends within milliseconds."""
        return self.effect == "read" and (self.local or (self.built_in and self.name in QUICK_READS))

    @property
    def writes_a_file(self) -> bool:
        return self.built_in and self.name in FILE_WRITERS

    @property
    def digest(self) -> str:
        """The SHA-256 of the spec in hex: decisions of policies and people are about exactly this tool (AGT-8).

        >>> ToolSpec(name="pay").digest == ToolSpec(name="pay", effect="read").digest
        False
        """
        return sha256(json.dumps(json.loads(self.model_dump_json()), sort_keys=True).encode()).hexdigest()


def supported_tools(tools: Sequence[ToolSpec]) -> list[ToolSpec]:
    """Return the tools that OpenAI's APIs are offered, in their order: the built-in ones and the first others.

    >>> taken = supported_tools([*(ToolSpec(name=f"t{n}") for n in range(200)), ToolSpec(name="now", built_in=True)])
    >>> len(taken), [tool.name for tool in (taken[0], *taken[-2:])]
    (128, ['t0', 't126', 'now'])
    """
    ranked = sorted(range(len(tools)), key=lambda index: (not tools[index].built_in, index))
    return [tools[index] for index in sorted(ranked[:MAX_TOOLS])]


def offered_tools(tools: Sequence[ToolSpec], *, model: str) -> Sequence[ToolSpec]:
    """Return those of a session's tools that `model`, written as `provider:name`, is offered."""
    return supported_tools(tools) if model.partition(":")[0] in ("openai", "openai-chat") else tools


class ProviderState(Compact):
    """A vendor's own blocks of one step, verbatim: never shown, never logged, never read by the workflow (AGT-3).

    With a `blob`, `items` are in the store as JSON.
    """

    api: str
    model: str
    items: list[JsonValue] = []
    blob: BlobRef | None = None


class ThinkPart(Compact):
    """Thinking that the vendor returns; with a `blob`, an excerpt of it."""

    kind: Literal["think"]
    text: str
    blob: BlobRef | None = None


class RespondPart(Compact):
    """Text for the user; with a `blob`, an excerpt of it."""

    kind: Literal["respond"]
    text: str
    blob: BlobRef | None = None


class CallPart(Compact):
    """A tool call. `args` is a string only if the model's argument text was not a JSON object.

    With a `blob`, `args` is empty and the store has it as JSON.
    """

    kind: Literal["call"]
    id: str
    name: str
    args: dict[str, JsonValue] | str = {}
    blob: BlobRef | None = None


Part = Annotated[ThinkPart | RespondPart | CallPart, Field(discriminator="kind")]


class ModelResponse(Compact):
    """A complete response of a model: its parts in the vendor's order."""

    parts: list[Part] = []
    stop: StopReason = "end_turn"
    usage: CompactUsage = None
    model: str
    request_id: str | None = None
    state: ProviderState | None = None
    left_out: list[RefusedPart] = []
    """Parts that the vendor refused, left out for the first time in this session (AGT-9)."""

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, RespondPart))

    @property
    def thinking(self) -> str:
        return "\n\n".join(part.text for part in self.parts if isinstance(part, ThinkPart))

    @property
    def text_blob(self) -> BlobRef | None:
        """Reference to the whole text, if `text` is an excerpt."""
        return next((part.blob for part in self.parts if isinstance(part, RespondPart)), None)

    @property
    def thinking_blob(self) -> BlobRef | None:
        """Reference to the whole thinking, if `thinking` is an excerpt."""
        return next((part.blob for part in self.parts if isinstance(part, ThinkPart)), None)

    @property
    def calls(self) -> list[CallPart]:
        return [part for part in self.parts if isinstance(part, CallPart)]


class ModelMessage(Compact):
    """One message of the model view. `role: tool` answers the call `call_id` of the assistant message before it.

    The `content` of a tool message is the result's outcome line, a blank line and the result's content. With a `blob`,
    `content` from `blob_start` on is an excerpt of the stored text.
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
    attachments: Items[Attachment] = []
    """Attachments of a user's prompt or of a tool's result."""


class RequestHead(Compact):
    """The part of a request that stays the same through a segment: system prompt and tools."""

    system: str = ""
    tools: list[ToolSpec] = []
    max_tokens: int | None = None
    """Maximum tokens of the response; `None`: the provider's maximum."""


class ModelRequest(Compact):
    """The whole context of one model call. It never changes while the request is open (AGT-2)."""

    head: RequestHead
    messages: list[ModelMessage]


class LocalRead(Compact):
    """A quick read of a local server: the fields of its `ToolInvocation`."""

    server: str
    tool_digest: str


class QuickReads(Compact):
    """Reads that `call_model` may run itself, after an answer that requests nothing else (OPS-8).

    `tools` are those that need no approval; the fields below are those of `ToolInvocation`. `room` is how many bytes of
    JSON answer and results together may add to the turn inline.
    """

    tools: list[str]
    local: dict[str, LocalRead] = {}
    """Those of them that are not built in."""
    user: str | None = None
    agent: str | None = None
    room: int
    workspace: str = ""
    max_chars: int = 30_000


class ModelCall(Compact):
    """Input of `call_model`: it identifies the context but does not contain it (AGT-2).

    Session and run are the activity's own workflow id and run id. `request` counts the session's model requests from 1;
    `digest` is that of the exact context. `turn` and `step` count from 1. Texts of the answer over `inline_bytes` as
    JSON go by reference; the rest may have `max_bytes` (SES-15, SES-16).
    """

    turn: int
    step: int
    request: int
    model: str
    digest: str
    message_id: str = ""
    """The turn's id, with which partial output is tagged (AGT-5); without one, none is published."""
    silences: int = 0
    """How many of the waits counted by `round` were for the session itself: the vendor was not asked."""
    round: int = 0
    """How often the workflow has already waited for the vendor in this request (AGT-9)."""
    repeats_empty: bool = False
    """Whether an answer without text and calls becomes a `repeat` rather than a response (AGT-9)."""
    inline_bytes: int = LARGE_TEXT_BYTES
    max_bytes: int = ANSWER_BYTES
    tokens_left: int | None = None
    """Tokens that the turn may still use; failed attempts that used more end the call (AGT-9). `None`: no limit."""
    cost_left: float | None = None
    lasting_failures: dict[str, int] = {}
    """How often each lasting failure of this request occurred in earlier calls, by its digest (AGT-9)."""
    quick_reads: QuickReads | None = None
    """`None`: no tool runs in the call's activity."""
    left_out: list[RefusedPart] = []
    """Parts that the model's vendor has refused in this session (AGT-9)."""
    may_be_too_long: bool = False
    """Whether the model has answered shorter requests with the same tools, but none of this length (AGT-9)."""


class ModelCallOutcome(Compact):
    """Output of `call_model`: a response, or what the workflow is to do instead (AGT-9).

    One of `response`, `wait_seconds` and `repeat` is set; none if the call was cancelled. `unfinished` is the part of
    an incomplete answer that the model had written (SES-9).
    """

    response: ModelResponse | None = None
    reads: dict[int, ToolResult] = {}
    """Results of the response's calls, by position, that `quick_reads` allowed and that were ready in time (OPS-8)."""
    unfinished: ModelResponse | None = None
    wait_seconds: float | None = None
    """How long to wait before the vendor is asked again. A duration, since the clocks of two processes differ."""
    wait_reason: str = ""
    """Why: a sentence for people that names the vendor."""
    wait_type: ErrorType | None = None
    """The vendor's failure that the wait is for; `None`: the vendor was not asked."""
    repeat: Literal["context_too_long", "maybe_too_long", "digest_mismatch", "empty_answer"] | None = None
    """Why the request is repeated in a changed form; for `empty_answer` it is repeated unchanged.

    `maybe_too_long`: the vendor refused the largest request so far without blaming a part of it."""
    spent: CompactUsage = None
    """Usage of attempts without a complete answer (AGT-9)."""
    lasting_failures: dict[str, int] = {}
    """How often each lasting failure of the request occurred so far: input of the next call (AGT-9)."""


class Spent(Compact):
    """Usage of attempts without a complete answer: the second detail of heartbeats and failures (AGT-9)."""

    usage: CompactUsage = None
    lasting_failures: dict[str, int] = {}
    """How often each lasting failure of the request occurred, by its digest."""


class SummaryCall(Compact):
    """Input of `summarise`: it identifies the messages, as in `ModelCall` (CTX-5).

    `has_earlier`: the first message is the earlier summary.
    """

    turn: int
    request: int
    model: str
    digest: str
    has_earlier: bool = False


class SummaryOutcome(Compact):
    """Output of `summarise`: the summary and the files that were written, or what went wrong, `trouble` (CTX-5).

    `files_omitted` counts further files, written before those of `files`.
    """

    text: str = ""
    files: list[str] = []
    files_omitted: int = 0
    trouble: str | None = None
    usage: CompactUsage = None
    spent: CompactUsage = None
    """Usage of attempts without a complete answer (AGT-9)."""


class ToolListCall(Compact):
    """Input of `list_tools`: the digest of the session's present tools; empty: it has none."""

    known: str = ""


class ServerText(Compact):
    """A text of a tool server, or about it."""

    server: str
    text: str


class ToolList(Compact):
    """Output of `list_tools`: the tools, in a stable order. `unread`: servers that could not be reached.

    `unchanged`: they are the session's present tools, so `tools` is empty.
    """

    tools: list[ToolSpec] = []
    unread: list[str] = []
    unchanged: bool = False
    instructions: list[ServerText] = []
    """The servers' instructions for models, in a stable order."""
    absent: list[ServerText] = []
    """Servers without tools, or with their earlier ones only, and why."""


class ToolInvocation(Compact):
    """Input of `call_tool`. `call_id` is our own `turn.step.index`, the idempotency key within its session (AGT-7).

    `session_id` does not travel: the activity fills in its own workflow id. `max_chars` and `max_bytes` (as JSON) bound
    the result's content (CTX-14, SES-16); over `inline_bytes` it goes by reference (SES-15). With an `args_blob`,
    `args` is empty and the store has it as JSON. The tool must be the one that the session knows: a `built_in` one, or
    the `server`'s with this `tool_digest`.
    `file_sha256` is that of the file whose change was approved, empty if there was none: a call that finds another file
    writes nothing. `None`: no change was shown, so none is checked (AGT-8).
    """

    session_id: str = ""
    call_id: str
    name: str
    server: str = ""
    built_in: bool = False
    tool_digest: str = ""
    args: dict[str, JsonValue]
    args_blob: BlobRef | None = None
    file_sha256: str | None = None
    user: str | None = None
    agent: str | None = None
    """For whom it runs, and which version of which agent asked for it; only for tools of a server (AGN-3)."""
    patience: float | None = None
    """Seconds to wait for a foreign server's answer, counted from its last report of progress; `None`: no limit."""
    workspace: str = ""
    max_chars: int = 30_000
    max_bytes: int = LARGE_RESULT_BYTES
    inline_bytes: int = LARGE_TEXT_BYTES


class PreviewCall(Compact):
    """Input of `preview_changes`: the calls that write files; `max_bytes` of JSON for each difference (AGT-8)."""

    calls: list[ToolInvocation]
    max_bytes: int


class ChangePreviews(Compact):
    """Output of `preview_changes`: the change of each call's file, by call id."""

    changes: dict[str, FileChange] = {}


class ModelRequestQuery(Frozen):
    """Argument of the query `get_model_request`: the request's number, and the index of the first message."""

    request: int
    offset: int = 0


class ModelRequestPage(Compact):
    """A page of an open request, about 1 MB. The first page has the `head`; on the last, `next_offset` is null."""

    head: RequestHead | None = None
    messages: list[ModelMessage] = []
    next_offset: int | None = None
    digest: str
    entry: IndexEntry | None = None
    """The session's list entry; on the first page."""
