"""The end of a session's history: prompts that no workflow task has processed yet (SES-6).

It can be read while no worker runs. Signals that arrive during a workflow task are not in the history before that task
ends or times out.
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

from pydantic import ValidationError
from pydantic_core import to_json
from temporalio.api.common.v1 import Payloads, WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryRequest
from temporalio.client import Client

from turnkeeper.api.temporal.commits import CLOSING_EVENTS
from turnkeeper.api.temporal.queue_estimates import HistoryTail
from turnkeeper.api.temporal.temporal_calls import call_temporal
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.limits import Limits
from turnkeeper.models.session.queue.prompts import id_in
from turnkeeper.workflows.hosting.history_pages import newest_pages

FIRST_PAGE_EVENTS = 100
"""Enough for a queue that is full by the default limit."""


class HistoryTailReader:
    """Reads histories from their ends. Methods raise `ProblemError`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def read(
        self, workflow_id: WorkflowId, *, max_prompts: int, max_bytes: int, seconds: float, until_id: str | None = None
    ) -> HistoryTail:
        """Return the prompts that no workflow task has processed, up to the limits.

        With `until_id` it also stops at that prompt. Takes at most `seconds`.
        """
        tail_read = self._read(workflow_id, max_prompts, max_bytes, until_id)
        return await call_temporal(tail_read, workflow_id, seconds=seconds)

    async def first_limits(self, workflow_id: WorkflowId, *, seconds: float) -> Limits | None:
        """Return the limits that the session's current run began with; `None` if they can't be read."""
        return await call_temporal(self._first_limits(workflow_id), workflow_id, seconds=seconds)

    async def _read(
        self, workflow_id: WorkflowId, max_prompts: int, max_bytes: int, until_id: str | None
    ) -> HistoryTail:
        asked_at = asyncio.get_running_loop().time()
        sizes: dict[str, int] = {}
        without_id, bytes_, without_id_bytes, is_closed, is_ending, is_whole = 0, 0, 0, False, False, True
        async for event in self._unprocessed_events(workflow_id):
            if event.event_type in CLOSING_EVENTS:
                is_closed = True
            is_ending = is_ending or _is_signal(event, "end_chat")
            if not _is_signal(event, "prompt"):
                continue
            if len(sizes) + without_id >= max_prompts or bytes_ > max_bytes or until_id in sizes:
                is_whole = False
                break
            message_id, size = await self._prompt_in(event)
            bytes_ += size
            if message_id is None:
                without_id, without_id_bytes = without_id + 1, without_id_bytes + size
            else:
                sizes[message_id] = size
        return HistoryTail(
            asked_at, sizes, without_id, without_id_bytes, is_whole=is_whole, is_closed=is_closed, is_ending=is_ending
        )

    async def _unprocessed_events(self, workflow_id: WorkflowId) -> AsyncIterator[HistoryEvent]:
        """Yield the events after the last completed workflow task, the newest first. The caller bounds the time."""
        pages = newest_pages(self._client, workflow_id, first_page_events=FIRST_PAGE_EVENTS)
        async for page in pages:
            for event in page:
                if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
                    return
                yield event

    async def _prompt_in(self, event: HistoryEvent) -> tuple[str | None, int]:
        """Return a prompt's id, if it has one, and the JSON bytes of its text."""
        attributes = event.workflow_execution_signaled_event_attributes
        value = await self._decode(attributes.input)
        text = value.get("text") if isinstance(value, dict) else value
        is_plain = isinstance(text, str) and not (isinstance(value, dict) and value.get("attachments"))
        return id_in(value), len(to_json(text)) if is_plain else attributes.input.ByteSize()

    async def _decode(self, payloads: Payloads) -> Any:
        """Return the first value; `None` if it can't be decoded, since anyone can signal anything."""
        try:
            values = await self._client.data_converter.decode(payloads.payloads[:1])
        except (ValueError, RuntimeError, KeyError, TypeError):
            return None
        return values[0] if values else None

    async def _first_limits(self, workflow_id: WorkflowId) -> Limits | None:
        page = await self._client.workflow_service.get_workflow_execution_history(
            GetWorkflowExecutionHistoryRequest(
                namespace=self._client.namespace,
                execution=WorkflowExecution(workflow_id=workflow_id),
                maximum_page_size=1,
            ),
            timeout=timedelta(seconds=2),
        )
        if not page.history.events:
            return None
        value = await self._decode(page.history.events[0].workflow_execution_started_event_attributes.input)
        try:
            return Limits.model_validate(value.get("limits", {}) if isinstance(value, dict) else {})
        except ValidationError:
            return None


def _is_signal(event: HistoryEvent, name: str) -> bool:
    is_signal = event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
    return is_signal and event.workflow_execution_signaled_event_attributes.signal_name == name
