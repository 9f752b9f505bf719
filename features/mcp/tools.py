"""The seven tools with their arguments and results (TSK-6).

Two of them start long work: a task or a prompt. They return `Work`, which the server turns into a handle or a task.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Generic, TypeVar

from mcp_types import Tool as McpTool
from mcp_types import ToolAnnotations
from pydantic import BaseModel, Field, StrictBool

from turnkeeper.api.bodies import Id, MaybeBlank, PromptText
from turnkeeper.api.changes import RequestChanges, Starts
from turnkeeper.api.prompts import AttachmentBodies, attachments_of, new_prompt
from turnkeeper.api.services import Services
from turnkeeper.features.tasks.session.task import CreateTask
from turnkeeper.features.tasks.task_reader import identity_of
from turnkeeper.features.tasks.tasks import TaskMessage, Tasks
from turnkeeper.models.http_responses import Role, Task, TaskPage
from turnkeeper.models.ids import ID_PATTERN, PublicId, WorkflowId, session_id_of
from turnkeeper.models.limits import Limits
from turnkeeper.models.session.prompts import PromptMode, check_text
from turnkeeper.models.transcript.attachments import with_names
from turnkeeper.models.transcript.conversation import ConversationMessage, SessionStatus, TaskStatus, TurnStatus
from turnkeeper.models.wire import Frozen, Reason, Strict, UtcDatetime
from turnkeeper.stores.session_index import IndexQuery

MAX_TURNS = 50
"""Maximum of turns in one result."""

Arguments = TypeVar("Arguments", bound=BaseModel)


@dataclass(frozen=True)
class Work:
    """Started work: a prompt of a session; if `message_id` is `None`, the first prompt of a task."""

    workflow_id: WorkflowId
    message_id: str | None
    accepted: Task
    """The task as known without a worker."""
    notes: Sequence[str] = ()
    """Further texts for the caller, such as warnings."""


@dataclass(frozen=True)
class Tool(Generic[Arguments]):
    """A tool. `output` is the model of its result, also of the task that `Work` becomes."""

    name: str
    role: Role
    """What a caller needs to call it."""
    title: str
    description: str
    arguments: type[Arguments]
    output: type[BaseModel]
    run: Callable[[Services, RequestChanges, Arguments], Awaitable[BaseModel | Work]]
    hints: ToolAnnotations

    def listed(self) -> McpTool:
        return McpTool(
            name=self.name,
            title=self.title,
            description=self.description,
            input_schema=self.arguments.model_json_schema(),
            output_schema=self.output.model_json_schema(mode="serialization"),
            annotations=self.hints,
        )


# ---- arguments

TaskId = Annotated[str, Field(pattern=ID_PATTERN, description="The task's id.")]
SessionId = Annotated[str, Field(pattern=ID_PATTERN, description="The session's id; a task is a session too.")]


class GetTaskArguments(Strict):
    """Which task, and how long to wait for its end, or for a question to a person."""

    task_id: TaskId
    wait_seconds: float = Field(0, ge=0, le=50, allow_inf_nan=False)


class ListTasksArguments(Strict):
    """Which tasks: all, or those with a status or of a parent."""

    status: TaskStatus | None = None
    parent: TaskId | None = None
    limit: int = Field(20, ge=1, le=100)
    cursor: str | None = Field(None, max_length=4_000, description="`next_cursor` of the page before.")


class MessageTaskArguments(Strict):
    """A message to the task's agent. The same `id` twice is one message."""

    task_id: TaskId
    text: PromptText
    id: Id | None = None
    mode: PromptMode = "enqueue"


class CancelTaskArguments(Strict):
    """Which task to stop, and why."""

    task_id: TaskId
    reason: Reason | None = None


class GetConversationArguments(Strict):
    """The newest turns of a session, or those before a turn."""

    workflow_id: SessionId
    before: Id | None = None
    limit: int = Field(10, ge=1, le=MAX_TURNS)


class SendPromptArguments(Strict):
    """A prompt to a session; with `start` the session is started if it does not exist. The same `id` twice is one.

    With attachments the message may be blank.
    """

    workflow_id: SessionId
    message: MaybeBlank
    attachments: AttachmentBodies = []
    id: Id | None = None
    mode: PromptMode = "enqueue"
    start: StrictBool = False


# ---- answers


class ConversationTurn(Frozen):
    """A prompt and the answer to it, without the steps in between."""

    id: str
    user_message: str
    user_timestamp: UtcDatetime
    status: TurnStatus
    agent_message: str | None = None
    agent_timestamp: UtcDatetime | None = None
    tools_used: list[str] = []
    error: str | None = None


class Conversation(Frozen):
    """Turns of a session, oldest first. `has_more`: there are older ones."""

    workflow_id: PublicId
    title: str | None = None
    status: SessionStatus
    turns: list[ConversationTurn]
    has_more: bool


# ---- what the tools do


async def create_task(services: Services, changes: RequestChanges, arguments: CreateTask) -> Work:
    receipt = await services.get(Tasks).create(arguments, changes)
    workflow_id = changes.caller.workflow_id(receipt.task_id)
    accepted = Task(
        **identity_of(services, workflow_id),
        title=arguments.title,
        description=arguments.description,
        status=receipt.status,
        parent=arguments.parent,
        created_at=datetime.now(UTC),
    )
    notes = [f"Warning: {warning.field}: {warning.message}" for warning in receipt.warnings]
    return Work(workflow_id, None, accepted, notes)


async def get_task(services: Services, changes: RequestChanges, arguments: GetTaskArguments) -> Task:
    workflow_id = changes.caller.workflow_id(arguments.task_id)
    return await services.get(Tasks).get(workflow_id, wait_seconds=arguments.wait_seconds)


async def list_tasks(services: Services, changes: RequestChanges, arguments: ListTasksArguments) -> TaskPage:
    query = IndexQuery(tenant=changes.caller.tenant, task_status=arguments.status, parent=arguments.parent)
    return await services.get(Tasks).list(query, limit=arguments.limit, cursor=arguments.cursor)


async def message_task(services: Services, changes: RequestChanges, arguments: MessageTaskArguments) -> Task:
    workflow_id = changes.caller.workflow_id(arguments.task_id)
    await services.get(Tasks).message(workflow_id, TaskMessage(**arguments.model_dump(exclude={"task_id"})), changes)
    return await services.get(Tasks).get(workflow_id)


async def cancel_task(services: Services, changes: RequestChanges, arguments: CancelTaskArguments) -> Task:
    workflow_id = changes.caller.workflow_id(arguments.task_id)
    async with changes.begin("cancel_task", workflow_id):
        return await services.get(Tasks).cancel(workflow_id, reason=arguments.reason)


async def get_conversation(
    services: Services, changes: RequestChanges, arguments: GetConversationArguments
) -> Conversation:
    workflow_id = changes.caller.workflow_id(arguments.workflow_id)
    page = await services.transcripts.page(workflow_id, before=arguments.before, limit=arguments.limit)
    return Conversation(
        workflow_id=session_id_of(workflow_id),
        title=page.session.title,
        status=page.status,
        turns=[_conversation_turn(turn) for turn in page.messages],
        has_more=page.has_more,
    )


def _conversation_turn(turn: ConversationMessage) -> ConversationTurn:
    return ConversationTurn(
        id=turn.id,
        user_message=with_names(turn.user_message, turn.attachments),
        user_timestamp=turn.user_timestamp,
        status=turn.status,
        agent_message=turn.agent_message,
        agent_timestamp=turn.agent_timestamp,
        tools_used=turn.tools_used or [],
        error=turn.error,
    )


async def send_prompt(services: Services, changes: RequestChanges, arguments: SendPromptArguments) -> Work:
    workflow_id = changes.caller.workflow_id(arguments.workflow_id)
    starts: Starts = "unless it exists" if arguments.start else "nothing"
    async with changes.begin("prompt", workflow_id, message_id=arguments.id, starts=starts) as entry:
        check_text(arguments.message, limits=Limits(), field="message", may_be_blank=bool(arguments.attachments))
        prepared = await services.attachments.prepare(workflow_id, attachments_of(arguments.attachments))
        prompt = new_prompt(
            arguments.message, message_id=arguments.id, mode=arguments.mode, attachments=prepared.attachments
        )
        new = partial(services.new_sessions.default_input, workflow_id, user=changes.caller.user)
        entry.message_id = message_id = await services.sender.send(
            workflow_id, prompt, start=new if arguments.start else None, contents=prepared.contents
        )
    accepted = Task(**identity_of(services, workflow_id), status="working", created_at=datetime.now(UTC))
    return Work(workflow_id, message_id, accepted)


# ---- the list

_READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_STARTS = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=True)
"""An agent uses tools that the session's tool policy allows, so these hints assume any effect."""
_STOPS = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)

_ALL: list[Tool[Any]] = [
    Tool(
        "create_task",
        "writer",
        "Create a task",
        "Give a task to an agent, which works on it by itself, for minutes or for days. Pass on what led to the task: "
        "the agent sees nothing else of your conversation. Returns at once; ask for the result with get_task.",
        CreateTask,
        Task,
        create_task,
        _STARTS,
    ),
    Tool(
        "get_task",
        "reader",
        "Get a task",
        "Get a task's status and, once it is completed, its result. With wait_seconds it answers as soon as the task "
        "has ended or a person has to decide on something.",
        GetTaskArguments,
        Task,
        get_task,
        _READS,
    ),
    Tool(
        "list_tasks",
        "reader",
        "List tasks",
        "List tasks, the latest activity first: all of them, or those with a status or of a parent task. get_task has "
        "what came of each.",
        ListTasksArguments,
        TaskPage,
        list_tasks,
        _READS,
    ),
    Tool(
        "message_task",
        "writer",
        "Send a message to a task",
        "Send a message to a task's agent, while it works or after it has answered. Mode enqueue waits for the running "
        "turn, steer joins it, interrupt stops it.",
        MessageTaskArguments,
        Task,
        message_task,
        _STARTS,
    ),
    Tool(
        "cancel_task",
        "writer",
        "Cancel a task",
        "Stop a task and the tasks that it has started.",
        CancelTaskArguments,
        Task,
        cancel_task,
        _STOPS,
    ),
    Tool(
        "get_conversation",
        "reader",
        "Get a conversation",
        "Read the newest turns of a session or a task: what was asked and what was answered.",
        GetConversationArguments,
        Conversation,
        get_conversation,
        _READS,
    ),
    Tool(
        "send_prompt",
        "writer",
        "Send a prompt",
        "Send a prompt to a session; with start, the session is started if it does not exist. Returns at once; read "
        "the answer with get_conversation.",
        SendPromptArguments,
        Task,
        send_prompt,
        _STARTS,
    ),
]

TOOLS = {tool.name: tool for tool in _ALL}

ALIASES = {"create_real_task": "create_task"}
"""Names that work but are not listed."""
