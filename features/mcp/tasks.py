"""One prompt as a task of MCP: its status and its result (TSK-4, TSK-6).

Our task is a session and continues with every message. An MCP client waits for one prompt of it, whose result is final
whatever the session does afterwards.

**The Tasks extension**, `io.modelcontextprotocol/tasks`, in its schema of 2026-07-28. A client that declares the
extension in its request gets a handle for long work, and polls it. The only methods are `tasks/get`, `tasks/update` and
`tasks/cancel`. The work is a workflow and the handle a row in the database, so both survive gateways and workers.

The result of a task is what the tool would have returned: a failed turn is a `completed` task with an error as its
result. The status `failed` is for JSON-RPC errors.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    RequestParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import Field, JsonValue, ValidationError

from turnkeeper.api.callers import Caller, caller_of
from turnkeeper.api.changes import RequestChanges
from turnkeeper.api.problems import ProblemError
from turnkeeper.api.services import Services
from turnkeeper.api.timeouts import read_store, seconds_from_now
from turnkeeper.features.mcp.results import (
    EXPECTED,
    ApprovalForm,
    AwaitingCall,
    arguments_error,
    awaiting_calls,
    is_temporary,
    read_decisions,
    rpc_error,
    sentence_of,
    task_result,
)
from turnkeeper.features.tasks.session.task_state import task_status
from turnkeeper.features.tasks.tables import TaskHandle, TaskHandles
from turnkeeper.features.tasks.task_reader import finished_result, identity_of
from turnkeeper.features.tasks.tasks import Tasks
from turnkeeper.models.http_responses import Action, PromptFate, Task
from turnkeeper.models.ids import WorkflowId, tenant_of
from turnkeeper.models.session.messages import CancelTurn, StateRequest
from turnkeeper.models.transcript.conversation import ConversationMessage, ConversationState, Usage

FIRST_TURN_BYTES = 1_000_000


async def read_prompt_task(services: Services, workflow_id: WorkflowId, message_id: str | None) -> Task:
    """Return the task of a prompt; with `message_id` `None`, of the first prompt of the task `workflow_id`.

    Raises `ProblemError`, and `StoreUnavailableError` if the turn is in an archive that can't be read.
    """
    if message_id is None:
        return await _task_of_first_prompt(services, workflow_id)
    fate = await services.fates.fate_of(workflow_id, message_id)
    turn = await services.fates.ended_turn(workflow_id, message_id) if fate.turn_id else None
    state = await services.reader.state(workflow_id, StateRequest(limit=1))
    task = _session_as_task(services, workflow_id, state)
    if fate.turn_id is None:
        return _not_started(task, fate)
    return _ended(services, task, workflow_id, turn) if turn else await _running(services, task, workflow_id, state)


async def _task_of_first_prompt(services: Services, workflow_id: WorkflowId) -> Task:
    task, turn = await services.get(Tasks).get(workflow_id), await _first_turn(services, workflow_id)
    is_newest = turn is None or (task.is_final and task.updated_at == turn.agent_timestamp)
    return task if turn is None or is_newest or not turn.is_complete else _ended(services, task, workflow_id, turn)


async def _first_turn(services: Services, workflow_id: WorkflowId) -> ConversationMessage | None:
    for request in (StateRequest(limit=1), StateRequest()):
        state = await services.reader.state(workflow_id, request)
        if not state.messages or state.first_number == 1:
            turns = state.messages[:1]
            break
    else:
        reading = services.stores.archive.page(workflow_id, before=2, limit=1, max_bytes=FIRST_TURN_BYTES)
        turns = [item.turn for item in await read_store(reading, until=seconds_from_now(services.timeouts.request))]
    until = seconds_from_now(services.timeouts.request)
    return next(iter(await services.texts.restore_answers(workflow_id, turns, until=until)), None)


def _session_as_task(services: Services, workflow_id: WorkflowId, state: ConversationState) -> Task:
    session = state.session
    identity = identity_of(services, workflow_id)
    return Task(**identity, title=session.title, status="working", created_at=session.created_at)


def _not_started(task: Task, fate: PromptFate) -> Task:
    if fate.fate == "waiting":
        place = f" at position {fate.position}" if fate.position else ""
        return _changed(task, status_message=f"The prompt waits in the queue{place}.")
    return _changed(task, status="cancelled", status_message=fate.reason or f"The prompt was {fate.fate}.")


async def _running(services: Services, task: Task, workflow_id: WorkflowId, state: ConversationState) -> Task:
    """Return the task of the running turn, which is the newest one."""
    waits = any(sub_task.status == "input_required" for sub_task in state.session.tasks)
    newest = state.messages[-1].status if state.messages else None
    status = task_status(newest, session=state.status, waits=waits, queue_length=0)
    if status != "input_required":
        return _changed(task, status="working", status_message=state.waiting_reason)
    pending = await services.approvals.pending(workflow_id)
    return _changed(task, status=status, approvals=len(pending.approvals) + pending.omitted)


def _ended(services: Services, task: Task, workflow_id: WorkflowId, turn: ConversationMessage) -> Task:
    """Return the task with the result of this turn."""
    text, usage = turn.agent_message or turn.error, turn.usage or Usage()
    result = finished_result(services, workflow_id, text, answer=turn.agent_message, usage=usage)
    return _changed(
        task,
        status=turn.status,
        updated_at=turn.agent_timestamp or turn.timestamp,
        result=result,
        error=turn.error,
        error_type=turn.error_type,
    )


def _changed(task: Task, **fields: object) -> Task:
    """Return the task with `fields`; its other status fields are reset."""
    none = dict.fromkeys(("status_message", "percent", "result", "error", "error_type"))
    return task.model_copy(update={**none, "approvals": 0, **fields})


EXTENSION = "io.modelcontextprotocol/tasks"

POLL_MILLIS = 1_000
"""How often a client should poll."""

MAX_HANDLE_CHARS = 200

Context = ServerRequestContext[Any, Any]
Answer = dict[str, Any]


class TaskParams(RequestParams):
    """Parameters of `tasks/get` and `tasks/cancel`."""

    task_id: str = Field(alias="taskId", max_length=MAX_HANDLE_CHARS)


class UpdateParams(TaskParams):
    """Parameters of `tasks/update`: answers to elicitations, by their keys."""

    input_responses: dict[str, JsonValue] = Field(alias="inputResponses")


def client_capabilities(context: Context) -> Mapping[str, Any]:
    """Return the capabilities that the client declares in this request; earlier requests don't count."""
    if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        return {}
    declared = (context.meta or {}).get(CLIENT_CAPABILITIES_META_KEY)
    return declared if isinstance(declared, Mapping) else {}


def caller_of_call(context: Context) -> Caller:
    """Return who sends this call. Raises `MCPError` if it came by no HTTP request, and so from nobody."""
    caller = caller_of(context.request.scope) if context.request else None
    if caller is None:
        raise MCPError(INTERNAL_ERROR, "The call has no caller.")
    return caller


def changes_of_call(services: Services, context: Context, *, operation: str) -> RequestChanges:
    """Return what says what this call changes. Raises `MCPError` if it came by no HTTP request, and so from nobody."""
    scope = context.request.scope if context.request else {}
    return RequestChanges(services.observers, caller_of_call(context), operation=operation, scope=scope)


def is_declared(context: Context) -> bool:
    """Return whether the client supports handles."""
    extensions = client_capabilities(context).get("extensions")
    return isinstance(extensions, Mapping) and isinstance(extensions.get(EXTENSION), Mapping)


class TasksExtension:
    """The methods of the extension."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._handles = TaskHandles(services.stores.database)

    def install(self, server: Server[Any]) -> None:
        server.extensions[EXTENSION] = {}
        server.add_request_handler("tasks/get", TaskParams, self._get)
        server.add_request_handler("tasks/update", UpdateParams, self._update)
        server.add_request_handler("tasks/cancel", TaskParams, self._cancel)

    async def create(
        self, caller: Caller, workflow_id: WorkflowId, message_id: str | None, *, status_message: str
    ) -> Answer:
        """Return a new handle of the caller, as the result of the call that started the work.

        Raises `StoreUnavailableError`; the work continues anyway.
        """
        handle = await self._handles.create(workflow_id, message_id, owner=caller.id, now=datetime.now(UTC))
        task = _task(handle, "working", status_message=status_message, updated_at=handle.created_at)
        return {"resultType": "task", **task}

    async def _get(self, context: Context, params: TaskParams) -> Answer:
        handle = await self._handle(context, params)
        try:
            task = await self._detailed(context, handle)
        except EXPECTED as error:
            if not is_temporary(error):
                raise rpc_error(error) from error
            # An error would end the client's wait, while the work goes on.
            task = _task(handle, "working", status_message=sentence_of(error))
        return {"resultType": "complete", **task}

    async def _detailed(self, context: Context, handle: TaskHandle) -> Answer:
        task = await read_prompt_task(self._services, handle.session_id, handle.message_id)
        if task.status in ("completed", "failed"):
            result = task_result(task).model_dump(by_alias=True, mode="json", exclude_none=True)
            return _task(handle, "completed", task=task, result=result)
        if task.status != "input_required":
            return _task(handle, task.status, task=task)
        if "elicitation" not in client_capabilities(context):
            # This client can't ask people. The task continues once a person has decided on the page.
            waits = f"A tool call waits for a decision: {task.url}"
            return _task(handle, "working", task=task, status_message=waits)
        calls = await awaiting_calls(self._services, handle.session_id)
        if not calls:  # decided meanwhile
            return _task(handle, "working", task=task)
        requests = {call.key: call.elicitation(url=task.url) for call in calls}
        return _task(handle, "input_required", task=task, inputRequests=requests)

    async def _update(self, context: Context, params: UpdateParams) -> Answer:
        handle = await self._handle(context, params)
        try:
            task = await read_prompt_task(self._services, handle.session_id, handle.message_id)
            if task.status == "input_required":
                calls = await awaiting_calls(self._services, handle.session_id)
                await self._decide(context, read_decisions(calls, params.input_responses))
        except ValidationError as error:
            raise rpc_error(arguments_error(error)) from error
        except EXPECTED as error:
            raise rpc_error(error) from error
        return {"resultType": "complete"}

    async def _decide(self, context: Context, decisions: list[tuple[AwaitingCall, ApprovalForm]]) -> None:
        changes = changes_of_call(self._services, context, operation="mcp:tasks/update")
        for call, form in decisions:
            request = call.decision(form)
            try:
                async with changes.begin(form.decision, call.workflow_id, call_id=request.call_id):
                    await self._services.sessions.resolve_approval(call.workflow_id, request, by=changes.caller.user)
            except ProblemError as problem:
                if problem.problem.status not in (404, 409):  # the call no longer waits: somebody else has decided
                    raise

    async def _cancel(self, context: Context, params: TaskParams) -> Answer:
        handle = await self._handle(context, params)
        try:
            action: Action = "cancel_task" if handle.message_id is None else "cancel"
            changes = changes_of_call(self._services, context, operation="mcp:tasks/cancel")
            async with changes.begin(action, handle.session_id, message_id=handle.message_id):
                await self._stop(handle, by=changes.caller.user)
        except EXPECTED as error:
            if not (isinstance(error, ProblemError) and error.problem.status == 409):  # it has ended
                raise rpc_error(error) from error
        return {"resultType": "complete"}

    async def _stop(self, handle: TaskHandle, *, by: str | None) -> None:
        services, workflow_id = self._services, handle.session_id
        try:
            task = await read_prompt_task(services, workflow_id, handle.message_id)
            if task.is_final:
                return
        except EXPECTED as error:
            if not is_temporary(error):
                raise
        if handle.message_id is None:
            await services.get(Tasks).cancel(workflow_id)
            return
        fate = await services.fates.fate_of(workflow_id, handle.message_id)
        if fate.turn_id is None:
            await services.sessions.withdraw(workflow_id, handle.message_id)
        else:
            await services.sessions.cancel_turn(workflow_id, CancelTurn(message_id=fate.turn_id), by=by)

    async def _handle(self, context: Context, params: TaskParams) -> TaskHandle:
        if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            raise MCPError(METHOD_NOT_FOUND, "Method not found", context.method)
        if not is_declared(context):
            data: dict[str, Any] = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
            raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, f"The client must declare {EXTENSION}.", data)
        if context.request and decode_header_value(context.request.headers.get(MCP_NAME_HEADER)) != params.task_id:
            raise MCPError(HEADER_MISMATCH, "The header Mcp-Name must be the taskId.")
        caller = caller_of_call(context)
        try:
            handle = await self._handles.find(params.task_id, owner=caller.id, now=datetime.now(UTC))
        except EXPECTED as error:
            raise rpc_error(error) from error
        # A person of a single sign-on may have moved to another tenant since.
        if handle is None or tenant_of(handle.session_id) != caller.tenant:
            raise MCPError(INVALID_PARAMS, "There is no such task, or it has expired.")
        return handle


def _task(
    handle: TaskHandle,
    status: str,
    *,
    task: Task | None = None,
    status_message: str | None = None,
    updated_at: datetime | None = None,
    **details: Any,
) -> Answer:
    """Return a task in its wire form; `details` are the fields of its status."""
    message = status_message or (task and (task.status_message or task.error))
    updated = updated_at or (task and task.updated_at) or handle.created_at
    return {
        "taskId": handle.id,
        "status": status,
        **({"statusMessage": message} if message else {}),
        "createdAt": handle.created_at.isoformat(),
        "lastUpdatedAt": max(updated, handle.created_at).isoformat(),
        "ttlMs": round((handle.expires_at - handle.created_at).total_seconds() * 1000),
        "pollIntervalMs": POLL_MILLIS,
        **details,
    }
