"""Commands that change a session: starts, signals and updates of its workflow.

A prompt is a signal, so it is safe as soon as Temporal has it, even if no worker runs (SES-6).
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import uuid4
from weakref import WeakValueDictionary

from pydantic import BaseModel
from temporalio.client import Client, WorkflowHandle
from temporalio.common import (
    Priority,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import WorkflowAlreadyStartedError

from turnkeeper.api.problems import ProblemError, problem
from turnkeeper.api.temporal.session_reader import SessionReader
from turnkeeper.api.temporal.temporal_calls import call_temporal, call_worker, retry_undone, used_id_error
from turnkeeper.api.timeouts import read_store, seconds_from_now
from turnkeeper.models.ids import SESSION_TYPE, WorkflowId, session_id_of, tenant_of
from turnkeeper.models.session.approvals import ApprovalReceipt, ResolveApproval
from turnkeeper.models.session.messages import (
    CancelReceipt,
    CancelTurn,
    Configure,
    EndSession,
    SessionInput,
    WithdrawPrompt,
)
from turnkeeper.models.session.prompts import PromptSignal
from turnkeeper.models.session.session import Session
from turnkeeper.models.session.views import make_index_entry
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.transcript.attachments import with_names
from turnkeeper.models.transcript.model_call import IndexEntry, make_preview
from turnkeeper.stores.database.database import StoreUnavailableError
from turnkeeper.stores.session_index import IndexedSession
from turnkeeper.stores.stores import Stores
from turnkeeper.stores.temporal.search_attributes import initial_attributes, initial_memo, initial_summary

MAX_CONCURRENT_UPDATES = 4
"""Updates of one session that run at once; others wait. Temporal allows ten, including those of other gateways, and
fails the rest."""

UpdateResult = TypeVar("UpdateResult", bound=BaseModel)


class SessionCommands:
    """Changes sessions by their ids. Every method raises `ProblemError`."""

    def __init__(self, client: Client, settings: Settings, reader: SessionReader, stores: Stores) -> None:
        self._client = client
        self._settings = settings
        self._reader = reader
        self._stores = stores
        self._watches = reader.watches
        self._timeouts = reader.timeouts
        self._update_slots: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    # ---- starting

    async def start(
        self,
        workflow_id: WorkflowId,
        start: SessionInput,
        *,
        priority_key: int | None = None,
        memo: Mapping[str, Any] | None = None,
    ) -> None:
        """Start a session. Raises 409 if its id was used before.

        `priority_key`: Temporal's, from 1, the most urgent, to 5. `memo` is added to what every session's memo has.
        """
        await self.start_as(SESSION_TYPE, start, workflow_id, start, priority_key=priority_key, memo=memo)
        self._list(workflow_id, start, start.first_prompt)

    async def start_as(
        self,
        workflow_type: str,
        argument: BaseModel,
        workflow_id: WorkflowId,
        start: SessionInput,
        *,
        memo: Mapping[str, Any] | None,
        priority_key: int | None = None,
        reuse: WorkflowIDReusePolicy = WorkflowIDReusePolicy.REJECT_DUPLICATE,
    ) -> None:
        """Start a workflow of another type, which later becomes the session `start`. Raises 409 if the id is not free.

        It is not listed before that.
        """
        options = self._start_options(workflow_id, start)
        options["memo"] |= memo or {}
        start_call = self._client.start_workflow(
            workflow_type,
            argument,
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
            priority=Priority(priority_key=priority_key),
            **options | {"id_reuse_policy": reuse},
        )
        try:
            await call_temporal(start_call, workflow_id, seconds=self._timeouts.call)
        except WorkflowAlreadyStartedError as error:
            raise await used_id_error(self._client, workflow_id, self._timeouts) from error

    async def start_or_prompt(self, workflow_id: WorkflowId, start: SessionInput, prompt: PromptSignal) -> None:
        """Signal the session, and start it in the same call if it doesn't exist. Raises 409 if it is closed."""
        start_call = self._client.start_workflow(
            SESSION_TYPE,
            start,
            start_signal="prompt",
            start_signal_args=[prompt],
            **self._start_options(workflow_id, start),
        )
        try:
            with self._watches.writing(workflow_id):
                await call_temporal(start_call, workflow_id, seconds=self._timeouts.call)
        except WorkflowAlreadyStartedError as error:
            raise problem("session-ended", workflow_id=workflow_id) from error
        self._list(workflow_id, start, prompt)

    def _list(self, workflow_id: WorkflowId, start: SessionInput, prompt: PromptSignal | str | None) -> None:
        """Add the session to the index, unless it is there; its first turn completes the row (API-1)."""
        attachments = prompt.attachments if isinstance(prompt, PromptSignal) else []
        text = (prompt.text if isinstance(prompt, PromptSignal) else prompt) or with_names("", attachments)
        now = datetime.now(UTC)
        row = IndexedSession.of_entry(workflow_id, _entry_of_start(workflow_id, start, now=now), now=now)
        self._stores.index_writer.add_missing(replace(row, preview=make_preview(text) if text else None))

    def _start_options(self, workflow_id: WorkflowId, start: SessionInput) -> dict[str, Any]:
        now = datetime.now(UTC)
        parent = _entry_of_start(workflow_id, start, now=now).parent
        return {
            "id": workflow_id,
            "task_queue": self._settings.task_queue,
            "id_reuse_policy": WorkflowIDReusePolicy.REJECT_DUPLICATE,
            "task_timeout": timedelta(seconds=self._settings.task_timeout),
            "static_summary": initial_summary(start),
            "memo": initial_memo(start, now=now),
            "search_attributes": initial_attributes(start, tenant=tenant_of(workflow_id), parent=parent),
            "rpc_timeout": self._timeouts.rpc,
        }

    # ---- prompts

    async def prompt(self, workflow_id: WorkflowId, prompt: PromptSignal) -> None:
        """Signal a prompt. From here it survives any crash. Raises 404 and 409 as Temporal responds."""
        await self.signal(workflow_id, "prompt", prompt)

    # ---- changing

    async def withdraw(self, workflow_id: WorkflowId, message_id: str) -> None:
        await self._update(workflow_id, "withdraw_prompt", WithdrawPrompt(id=message_id))

    async def cancel_turn(self, workflow_id: WorkflowId, request: CancelTurn, *, by: str | None) -> CancelReceipt:
        """Stop a running turn, as the person `by`; None: unknown. No effect once it has ended."""
        stop = request.model_copy(update={"stopped_by": by})
        receipt: CancelReceipt = await self._update(workflow_id, "cancel_turn", stop, result_type=CancelReceipt)
        return receipt

    async def resolve_approval(
        self, workflow_id: WorkflowId, request: ResolveApproval, *, by: str | None
    ) -> ApprovalReceipt:
        """Decide on a tool call, as the person `by`; None: unknown. Repeating the decision has no effect (AGT-8)."""
        decision = request.model_copy(update={"decided_by": by})
        receipt: ApprovalReceipt = await self._update(
            workflow_id, "resolve_approval", decision, result_type=ApprovalReceipt
        )
        return receipt

    async def configure(self, workflow_id: WorkflowId, change: Configure) -> None:
        """Change the session from its next turn on."""
        await self._update(workflow_id, "configure", change)
        with suppress(StoreUnavailableError):  # the next turn stores it too
            configuring = self._stores.index.configure(workflow_id, title=change.title, model=change.model)
            await read_store(configuring, until=seconds_from_now(self._timeouts.restore))

    async def end(self, workflow_id: WorkflowId, request: EndSession) -> None:
        """Signal the session to end. Like a prompt, this is safe even if no worker runs."""
        await self.signal(workflow_id, "end_chat", request)

    async def cancel(self, workflow_id: WorkflowId, *, reason: str | None = None) -> None:
        """Ask Temporal to cancel the session, which stops its turn and closes it; like a prompt it is safe.

        One that has ended stays as it is. Raises 404 where there is none.
        """
        cancelling = self._handle(workflow_id).cancel(reason=reason or "", rpc_timeout=self._timeouts.rpc)
        with self._watches.writing(workflow_id):
            try:
                async with self._ended_if_forgotten(workflow_id):
                    await call_temporal(cancelling, workflow_id, seconds=self._timeouts.call)
            except ProblemError as problem:
                if problem.problem.status != 409:
                    raise

    async def signal(self, workflow_id: WorkflowId, name: str, argument: BaseModel) -> None:
        signal_call = self._handle(workflow_id).signal(name, argument, rpc_timeout=self._timeouts.rpc)
        with self._watches.writing(workflow_id):
            async with self._ended_if_forgotten(workflow_id):
                await call_temporal(signal_call, workflow_id, seconds=self._timeouts.call)

    async def _update(
        self, workflow_id: WorkflowId, name: str, argument: BaseModel, *, result_type: type[UpdateResult] | None = None
    ) -> Any:
        handle, update_id = self._handle(workflow_id), str(uuid4())

        async def update() -> Any:
            return await handle.execute_update(
                name,
                argument.model_dump(mode="json", exclude_none=True),
                id=update_id,
                result_type=result_type,
                rpc_timeout=self._timeouts.rpc,
            )

        async with self._update_slots.setdefault(workflow_id, asyncio.Semaphore(MAX_CONCURRENT_UPDATES)):
            with self._watches.writing(workflow_id):
                async with self._ended_if_forgotten(workflow_id):
                    return await call_worker(
                        self._client, retry_undone(update), workflow_id, seconds=self._timeouts.call
                    )

    @asynccontextmanager
    async def _ended_if_forgotten(self, workflow_id: WorkflowId) -> AsyncIterator[None]:
        """Raise 409 in place of 404 for a session that Temporal no longer has: it can still be read."""
        try:
            yield
        except ProblemError as problem:
            if problem.problem.status == 404:
                await self._reader.raise_if_forgotten(workflow_id)
            raise

    def _handle(self, workflow_id: WorkflowId) -> WorkflowHandle[Any, Any]:
        return self._client.get_workflow_handle(workflow_id)


def _entry_of_start(workflow_id: WorkflowId, start: SessionInput, *, now: datetime) -> IndexEntry:
    """Return what lists show of a session that is about to start."""
    return make_index_entry(Session(session_id_of(workflow_id), start, now=now))
