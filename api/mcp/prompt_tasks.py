"""One prompt as a task of MCP: its status and its result (TSK-4, TSK-6).

Our task is a session and continues with every message. An MCP client waits for one prompt of it, whose result is final
whatever the session does afterwards.
"""

from typing import Any

from turnkeeper.api.services import Services
from turnkeeper.api.session_links import chat_url, session_links
from turnkeeper.api.store_calls import read_store, seconds_from_now
from turnkeeper.models.http_responses import PromptFate, Task, TaskResult
from turnkeeper.models.ids import WorkflowId, session_id_of
from turnkeeper.models.session.messages import StateRequest
from turnkeeper.models.session.tasks.outcome import summary_of_answer
from turnkeeper.models.session.tasks.task_state import task_status
from turnkeeper.models.transcript.conversation import ConversationMessage, ConversationState
from turnkeeper.models.transcript.trajectory import Usage

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
    return _ended(services, task, turn) if turn else await _running(services, task, workflow_id, state)


async def _task_of_first_prompt(services: Services, workflow_id: WorkflowId) -> Task:
    task, turn = await services.tasks.get(workflow_id), await _first_turn(services, workflow_id)
    is_newest = turn is None or (task.is_final and task.updated_at == turn.agent_timestamp)
    return task if turn is None or is_newest or not turn.is_complete else _ended(services, task, turn)


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
    session, session_id = state.session, session_id_of(workflow_id)
    return Task(
        task_id=session_id,
        workflow_id=session_id,
        title=session.title,
        status="working",
        created_at=session.created_at,
        **links_of(services, workflow_id),
    )


def links_of(services: Services, workflow_id: WorkflowId) -> dict[str, Any]:
    """Return the links of a session as fields of a task."""
    links = session_links(services.settings, workflow_id, namespace=services.client.namespace)
    return {"url": chat_url(services.settings, workflow_id), "temporal_url": links.temporal}


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


def _ended(services: Services, task: Task, turn: ConversationMessage) -> Task:
    """Return the task with the result of this turn."""
    result = TaskResult(
        summary=summary_of_answer(turn.agent_message or turn.error or "") or None,
        answer=turn.agent_message,
        usage=turn.usage or Usage(),
        transcript_url=f"{services.settings.gateway_url}/workflow/{task.task_id}/conversation/full",
    )
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
