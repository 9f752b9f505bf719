"""Responses of the gateway beyond the session's own models, and the roles of callers; the Python client reads them too.

A client ignores the fields of a newer gateway and has defaults for those of an older one.

The context view of a session says what the model still sees of each turn (CTX-8).
"""

from typing import Literal, get_args

from pydantic import Field, JsonValue

from turnkeeper.models.errors import ErrorType, RejectionReason
from turnkeeper.models.ids import PublicId
from turnkeeper.models.session.prompts import FateName
from turnkeeper.models.transcript.conversation import (
    FINAL,
    ApprovalDecision,
    ArchiveReport,
    CondensedTexts,
    ContextSize,
    ConversationState,
    ConversationUpdate,
    HandOffReport,
    SessionStatus,
    TaskStatus,
    TaskValidationWarning,
    Usage,
)
from turnkeeper.models.transcript.model_call import ServerText
from turnkeeper.models.wire import Frozen, Items, Stamp, UtcDatetime

Role = Literal["reader", "writer", "approver", "admin"]
"""Each role may do what those before it may."""

ROLES: tuple[Role, ...] = get_args(Role)


def parse_role(name: object) -> Role | None:
    """Return the role with this name; `None` if there is none.

    >>> parse_role("writer"), parse_role("root")
    ('writer', None)
    """
    return next((role for role in ROLES if role == name), None)


class ApprovalDecided(Frozen):
    """The recorded decision on a tool call."""

    workflow_id: PublicId
    call_id: str
    decision: ApprovalDecision


class SessionStarted(Frozen):
    """A session exists. `message_id` is the id of its first prompt, if it has one."""

    workflow_id: PublicId
    message_id: str | None = None


class CopyReceipt(Frozen):
    """The progress of a fork or an import. Until it is done, the session can't be read; if it fails, nothing is left.

    `turn_count`: turns that are copied. `forked_from` and `message_id`, of a fork: the original, and the last of them.
    """

    workflow_id: PublicId
    """The id of the new session."""
    status: Literal["running", "done", "failed"]
    reason: str | None = None
    """Why it failed, or why it makes no progress now."""
    turn_count: int
    forked_from: PublicId | None = None
    message_id: str | None = None


class SessionChanged(Frozen):
    """A session was configured, or is ending."""

    workflow_id: PublicId


class PromptAccepted(Frozen):
    """A prompt is safe, in a session that may be new. `Location` is where its fate can be read."""

    workflow_id: PublicId
    message_id: str


class PromptFate(Frozen):
    """The fate of a prompt, or that it is waiting. `turn_id` is the turn that it started or joined.

    `position` counts from 1; null: the prompt is not waiting.
    """

    workflow_id: PublicId
    message_id: str
    fate: Literal["waiting"] | FateName
    position: int | None = None
    turn_id: str | None = None
    reason: str | None = None
    """Why it was rejected or discarded."""
    refusal: RejectionReason | None = None
    """The kind of that reason, if it was rejected."""
    at: UtcDatetime | None = None
    """When that was decided, if known."""


class ConversationResponse(Frozen):
    """What is new in a session."""

    workflow_id: PublicId
    conversation_update: ConversationUpdate


class PageLinks(Frozen):
    """Links to the neighbouring pages; `older` is null on the oldest page."""

    older: str | None = None


class FullConversation(ConversationState):
    """A page of the transcript, oldest turn first, of about 1 MB; a longer turn is sent whole, on a page of its own.

    An ended turn has all its steps. With `steps_omitted`, the rest is in the archive, which can't be read now.
    """

    links: PageLinks = PageLinks()


class SessionLinks(Frozen):
    """Links to a session; `chat` is the chat page."""

    conversation: str
    chat: str | None = None
    temporal: str | None = None


class SessionDescription(Frozen):
    """A session and its status. Fewer fields are known while it is `stuck`."""

    workflow_id: PublicId
    title: str | None = None
    user: str | None = None
    model: str | None = None
    agent: str | None = None
    """The version that its next turn runs with, as in `weather@2`; null: it is no agent of a name."""
    status: SessionStatus
    waiting_until: UtcDatetime | None = None
    """With status `waiting_retry`: when the model is asked again."""
    waiting_reason: str | None = None
    """Why the model is not asked earlier, or is asked again now."""
    created_at: UtcDatetime | None = None
    turn_count: int | None = None
    queue_length: int | None = None
    usage: Usage | None = None
    tasks_usage: Usage | None = None
    """The share that its ended tasks have used."""
    archived_count: int | None = None
    """How many of the oldest turns are in the archive only."""
    archive: ArchiveReport | None = None
    """The archive's health for this session; null while the session is `stuck`."""
    conversation_metrics: ContextSize | None = None
    """The size of the model's current context; null while the session is `stuck`, or only the archive has it."""
    links: SessionLinks


class ListedSession(Frozen):
    """A session in a list: a moment behind, with a coarser status."""

    workflow_id: PublicId
    title: str | None = None
    user: str | None = None
    model: str | None = None
    status: Literal["open", "awaiting_approval", "ended", "cancelled", "terminated"]
    turn_count: int
    cost: float | None = None
    """In US dollars, of the calls whose price is known; null if there are none."""
    preview: str | None = None
    """The beginning of the newest prompt, in one line."""
    parent: str | None = None
    """The session that it was started for, as a task."""
    started_at: UtcDatetime
    last_activity_at: UtcDatetime | None = None
    """When its newest model call began or ended, or when it ended."""
    closed_at: UtcDatetime | None = None


class SessionList(Frozen):
    """A page of sessions, the latest activity first. `next_cursor` is null on the last page."""

    sessions: list[ListedSession]
    next_cursor: str | None = None


class Cancelling(Frozen):
    """Whether there was a turn to cancel."""

    workflow_id: PublicId
    cancelling: bool


class DeletionReceipt(Frozen):
    """The progress of a deletion. `runs` counts the session's workflow executions, `remaining` those still there.

    `archived_turns` counts its turns in the archive. All three are null while no worker answers. `deleted`: nothing of
    the session is left in Temporal, the archive or the store of large texts.
    """

    workflow_id: PublicId
    status: Literal["deleting", "deleted"]
    runs: int | None = None
    remaining: int | None = None
    archived_turns: int | None = None


class Agent(Frozen):
    """A version of an agent. Its `instructions` are a session's system prompt; null: as the settings say."""

    name: str
    version: int
    label: str
    """What a session is started with: `weather@2`."""
    created_at: UtcDatetime
    instructions: str
    model: str | None = None
    tools: list[str] = []
    """Exactly the tools that it has."""
    tool_policy: dict[str, str] = {}
    limits: dict[str, JsonValue] | None = None
    history: dict[str, JsonValue] | None = None
    handoffs: list[str] = []
    """The agents that it may start as tasks."""


class AgentList(Frozen):
    """The newest version of every agent. `default`: that of sessions that name none; null: what the settings say."""

    agents: Items[Agent]
    default: str | None = None
    tool_problems: dict[str, str] = {}
    """Why tool servers have no tools now, by server: for admins, and of a worker on the gateway's machine."""


class AgentVersionList(Frozen):
    """Versions of one agent, the newest first."""

    versions: Items[Agent]


class Health(Frozen):
    """The process is up."""

    status: Literal["ok"] = "ok"


class TaskReceipt(Frozen):
    """A task exists. `context` and `warnings` say what became of the history that it was given.

    `url` is the page on which people can watch it, `temporal_url` its workflow in Temporal's Web UI.
    """

    task_id: PublicId
    workflow_id: PublicId
    """The session that the task is: it takes every call of `/workflow/{id}`."""
    status: TaskStatus = "working"
    url: str
    temporal_url: str | None = None
    context: HandOffReport
    warnings: Items[TaskValidationWarning] = []


class TaskResult(Frozen):
    """The outcome of a task. `answer` is whole; in a list of tasks, and where there is none, it is null."""

    summary: str | None = None
    """The first paragraph of the answer, or why there is none, in one line."""
    answer: str | None = None
    findings: dict[str, JsonValue] | None = None
    """The structured data that the agent has reported, if any."""
    usage: Usage = Usage()
    transcript_url: str


class Task(Frozen):
    """A task, as it is now. It has a `result` while its status is final: a further message makes it work again."""

    task_id: PublicId
    workflow_id: PublicId
    title: str | None = None
    description: str | None = None
    """The beginning of what the task was asked to do."""
    status: TaskStatus
    status_message: str | None = None
    """One line: what the agent has reported last, or what is waited for."""
    percent: int | None = Field(None, ge=0, le=100)
    parent: str | None = None
    """The session that it was started for."""
    created_at: UtcDatetime
    updated_at: UtcDatetime | None = None
    """When its newest turn began or ended."""
    url: str
    temporal_url: str | None = None
    context: HandOffReport | None = None
    """The part of the parent conversation that was handed over; null if that is unknown."""
    approvals: int = 0
    """How many tool calls await approval, including those of tasks below it."""
    condensed: CondensedTexts | None = None
    """The outcome of condensing the long texts of its history; null if there were none."""
    result: TaskResult | None = None
    error: str | None = None
    error_type: ErrorType | None = None

    @property
    def is_final(self) -> bool:
        """Whether it has come to an end; a further message makes it work again."""
        return self.status in FINAL


class TaskPage(Frozen):
    """A page of tasks, the latest activity first. `next_cursor` is null on the last page.

    The tasks have no description, approvals, result or error here: `GET /tasks/{id}` has them.
    """

    tasks: list[Task]
    next_cursor: str | None = None


class CallerDescription(Frozen):
    """Who a caller is. `tenant` is empty for the default tenant; `user` is null if the key or token names nobody."""

    tenant: str
    user: str | None
    role: Role


class Me(Frozen):
    """Who sends the request; `caller` is null without a valid key or token.

    `authentication` is false where everyone on the gateway's machine is an admin.
    """

    authentication: bool
    caller: CallerDescription | None


Action = Literal[
    "start",
    "configure",
    "prompt",
    "retry",
    "upload",
    "withdraw",
    "cancel",
    "approve",
    "allow_for_session",
    "reject",
    "end",
    "delete",
    "import",
    "fork",
    "define_agent",
    "create_task",
    "message_task",
    "cancel_task",
    "log_in",
    "log_out",
    "create_key",
    "revoke_key",
    "export",
    "request",
]
"""The action of a request. `cancel` stops a turn; `allow_for_session` approves all further calls of a tool too;
`upload` stores a content for a prompt; `export` reads the audit as JSON lines, or a whole session; `request` was
refused before it changed anything, such as for its key (401), its role (403), a wrong field (422) or a limit (429)."""


class AuditEntry(Frozen):
    """A change that somebody asked for, with its outcome. A message of the AI SDK may have several.

    `outcome`: `accepted` (2xx), `refused` (4xx: nothing was changed), `failed` (5xx: it may have been changed), or
    `unknown`: the gateway stopped before it knew. `fields`: the names of what was set, never the values. A request that
    was sent again has an entry of its own, with the same ids.
    """

    id: str
    at: UtcDatetime
    caller: str
    user: str | None = None
    role: str
    action: Action
    operation: str
    workflow_id: PublicId | None = None
    message_id: str | None = None
    call_id: str | None = None
    key_id: str | None = None
    fields: list[str] = []
    outcome: Literal["accepted", "refused", "failed", "unknown"]
    status: int | None = None


class AuditPage(Frozen):
    """Changes, newest first."""

    entries: list[AuditEntry]
    next_cursor: str | None = None


# ---- the context view

Seen = Literal["verbatim", "truncated", "summarised", "refused", "retried", "not_at_all"]
"""How the model sees a turn.

`truncated`: some of its messages, or parts of them; `summarised`: in the summary only; `refused`: replaced by a note,
since the model's vendor refused it (CTX-7); `retried`: replaced by its retry (CTX-17).
"""


class TurnInContext(Frozen):
    """One turn of the transcript, `number` from 1. The id is null if the turn is in the archive and not in the view."""

    number: int
    message_id: str | None = None
    seen: Seen
    estimated_tokens: int = 0
    """Total for the messages that the model sees."""
    characters_cut: int = 0
    """Characters of a truncated, refused or retried turn that the model no longer sees.

    Those of some scripts count several times, as in the estimate of tokens.
    """


class FixedPart(Frozen):
    """The part of every request before the messages."""

    system_prompt_tokens: int
    tools: list[str]
    tools_not_offered: list[str] = []
    """The `tools` that the model is not offered, since its API has a limit."""
    tools_tokens: int
    estimated_tokens: int


class SummaryInContext(Frozen):
    """The summary of evicted messages. `turns` are inclusive ranges of turn numbers."""

    text: str
    turns: list[tuple[int, int]]
    files_written: list[str]
    estimated_tokens: int


class ContextView(Frozen):
    """The model's current view. Tokens are estimates, within about 20 % (CTX-6).

    `turns` are oldest first; with `has_more` there are older ones: ask again with `before` set to the first number.
    """

    segment: int
    message_count: int
    max_messages: int
    """The present cap of the window; 0: none."""
    max_tokens: int | None = None
    """The maximum that is sent, with the fixed part, learned from an overflow; null: no limit.

    It is for this model and this configuration of the window (CTX-7).
    """
    estimated_tokens: int
    """Total for the whole request, with the fixed part."""
    reported_tokens: int | None = None
    """The same by the vendor's count at the last call of this segment, plus an estimate of later messages."""
    fixed: FixedPart
    summary: SummaryInContext | None = None
    messages_awaiting_summary: int = 0
    summaries_failed: int = 0
    messages_given_up: int = 0
    """Evicted messages that will be in no summary, since too many were waiting for one."""
    absent_tool_servers: list[ServerText] = []
    """Servers whose tools the model does not have, or only as they were, and why."""
    turns: list[TurnInContext]
    has_more: bool
    as_of: Stamp = None
