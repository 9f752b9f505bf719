"""The verbs that change a session, spoken to Temporal: the gateway translates and never decides.

A prompt is a signal, so it is safe from the moment Temporal has it, whether or not a worker runs. What the session
makes of it is read afterwards (`session_reader.py`), with a bound: the receipt says where it stands as soon as a worker
can say (SES-6). Whether there is room for it is decided before, in `prompt_sender.py`.
"""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import uuid4
from weakref import WeakValueDictionary

from pydantic import BaseModel
from temporalio.client import Client, WorkflowHandle
from temporalio.common import (
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import WorkflowAlreadyStartedError

from turnkeeper.api import problems
from turnkeeper.api.session_ids import workflow_id
from turnkeeper.api.temporal.queue_estimates import initial_queue_read
from turnkeeper.api.temporal.session_reader import SessionReader
from turnkeeper.api.temporal.temporal_calls import call_temporal, call_worker, retry_undone, rpc_timeout
from turnkeeper.models.bounds import head_within
from turnkeeper.models.session.approvals import ApprovalReceipt, ResolveApproval
from turnkeeper.models.session.queue.prompts import PromptSignal
from turnkeeper.models.session.session import (
    CancelReceipt,
    CancelTurn,
    Configure,
    EndSession,
    SessionInput,
    WithdrawPrompt,
)
from turnkeeper.models.settings.settings import Settings
from turnkeeper.workflows import search_attributes
from turnkeeper.workflows.agentic_ai_workflow import AgenticAIWorkflow

MAX_CONCURRENT_UPDATES = 4
"""Of one session; the others wait their turn. Temporal takes ten that are under way, those of other gateways too, and
undoes what is beyond."""

MAX_SUMMARY_BYTES = 200
"""What Temporal takes as a workflow's summary."""

UpdateResult = TypeVar("UpdateResult", bound=BaseModel)


class SessionCommands:
    """All sessions, by their ids. Every method raises `ProblemError` for what can go wrong."""

    def __init__(self, client: Client, settings: Settings, reader: SessionReader) -> None:
        self._client = client
        self._settings = settings
        self._watches = reader.watches
        self._ledgers = reader.ledgers
        self._update_slots: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    # ---- starting

    async def start(self, session_id: str, start: SessionInput) -> None:
        """Start a session under an id that was never used. Raises 409 if it was."""
        start_call = self._client.start_workflow(
            AgenticAIWorkflow.run,
            start,
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
            **self._start_options(session_id, start),
        )
        asked_at = asyncio.get_running_loop().time()
        try:
            await call_temporal(start_call, session_id)
            self._ledgers.of(session_id).note_read(initial_queue_read(start, asked_at=asked_at))
        except WorkflowAlreadyStartedError as error:
            raise problems.id_was_used(session_id) from error

    async def start_or_prompt(self, session_id: str, start: SessionInput, prompt: PromptSignal) -> None:
        """Signal the session, starting it in the same breath if it doesn't exist; a closed one stays closed."""
        start_call = self._client.start_workflow(
            AgenticAIWorkflow.run,
            start,
            start_signal="prompt",
            start_signal_args=[prompt],
            **self._start_options(session_id, start),
        )
        try:
            with self._watches.writing(workflow_id(session_id)):
                await call_temporal(start_call, session_id)
        except WorkflowAlreadyStartedError as error:
            raise problems.session_ended(session_id) from error

    def _start_options(self, session_id: str, start: SessionInput) -> dict[str, Any]:
        attributes: list[SearchAttributePair[Any]] = [
            SearchAttributePair(search_attributes.SESSION_STATUS, "open"),
            SearchAttributePair(search_attributes.MODEL, start.model),
            SearchAttributePair(search_attributes.TURNS, 0),
        ]
        if start.user:
            user = search_attributes.encoded_user(start.user)
            attributes.append(SearchAttributePair(search_attributes.USER, user))
        return {
            "id": workflow_id(session_id),
            "task_queue": self._settings.task_queue,
            "id_reuse_policy": WorkflowIDReusePolicy.REJECT_DUPLICATE,
            "task_timeout": timedelta(seconds=self._settings.task_timeout),
            "static_summary": start.title and head_within(start.title, MAX_SUMMARY_BYTES),
            "memo": {"title": start.title, "user": start.user, "created_at": datetime.now(UTC).isoformat()},
            "search_attributes": TypedSearchAttributes(attributes),
            "rpc_timeout": rpc_timeout(),
        }

    # ---- prompts

    async def prompt(self, session_id: str, prompt: PromptSignal) -> None:
        """Hand a prompt to Temporal; from here it survives any crash. Raises 404 and 409 by what Temporal says."""
        await self._signal(session_id, "prompt", prompt)

    # ---- changing

    async def withdraw(self, session_id: str, message_id: str) -> None:
        await self._update(session_id, "withdraw_prompt", WithdrawPrompt(id=message_id))

    async def cancel_turn(self, session_id: str, request: CancelTurn) -> CancelReceipt:
        """Stop a running turn; no effect once it has ended."""
        receipt: CancelReceipt = await self._update(session_id, "cancel_turn", request, result_type=CancelReceipt)
        return receipt

    async def resolve_approval(self, session_id: str, request: ResolveApproval) -> ApprovalReceipt:
        """Decide on a tool call; the same decision twice is one (AGT-8)."""
        receipt: ApprovalReceipt = await self._update(
            session_id, "resolve_approval", request, result_type=ApprovalReceipt
        )
        return receipt

    async def configure(self, session_id: str, change: Configure) -> None:
        """Change the session from its next turn on."""
        await self._update(session_id, "configure", change)

    async def end(self, session_id: str, request: EndSession) -> None:
        """Ask the session to end; like a prompt it is safe while no worker runs."""
        await self._signal(session_id, "end_chat", request)

    async def _signal(self, session_id: str, name: str, argument: BaseModel) -> None:
        signal_call = self._handle(session_id).signal(name, argument, rpc_timeout=rpc_timeout())
        with self._watches.writing(workflow_id(session_id)):
            await call_temporal(signal_call, session_id)

    async def _update(
        self, session_id: str, name: str, argument: BaseModel, *, result_type: type[UpdateResult] | None = None
    ) -> Any:
        handle, update_id = self._handle(session_id), str(uuid4())

        async def update() -> Any:
            return await handle.execute_update(
                name,
                argument.model_dump(mode="json", exclude_none=True),
                id=update_id,
                result_type=result_type,
                rpc_timeout=rpc_timeout(),
            )

        async with self._update_slots.setdefault(session_id, asyncio.Semaphore(MAX_CONCURRENT_UPDATES)):
            with self._watches.writing(workflow_id(session_id)):
                return await call_worker(self._client, retry_undone(update), session_id, workflow_id(session_id))

    def _handle(self, session_id: str) -> WorkflowHandle[Any, Any]:
        return self._client.get_workflow_handle(workflow_id(session_id))
