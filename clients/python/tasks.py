"""Tasks from Python: `gateway.tasks`.

receipt = await gateway.tasks.create("Find the longest file.", conversation_history=[...])
task = await gateway.tasks.get(receipt.task_id, wait_seconds=60)
if task.result:
print(task.result.answer)
"""

from typing import Any
from urllib.parse import quote
from uuid import uuid4

from turnkeeper.clients.python.request_sender import RequestSender, without_none
from turnkeeper.models.http_responses import PromptAccepted, Task, TaskPage, TaskReceipt
from turnkeeper.models.session.queue.prompts import PromptMode
from turnkeeper.models.transcript.task_view import TaskStatus


class TaskCalls:
    """The verbs of tasks. Every method raises `GatewayError`s."""

    def __init__(self, sender: RequestSender) -> None:
        self._sender = sender

    async def create(self, description: str, *, idempotency_key: str | None = None, **fields: Any) -> TaskReceipt:
        """Start a task; `fields` are those of `POST /tasks`.

        It has an `idempotency_key` in any case: sent again because its answer got lost, it is the same task.
        """
        key = idempotency_key or str(uuid4())
        body = without_none({"description": description, "idempotency_key": key, **fields})
        return await self._sender.ask(TaskReceipt, "POST", "/tasks", body=body)

    async def get(self, task_id: str, *, wait_seconds: float | None = None) -> Task:
        """Return a task; with `wait_seconds`, 60 at most, once it has ended or a person has to decide."""
        params = {"wait_seconds": wait_seconds}
        return await self._sender.ask(Task, "GET", _path(task_id), params=params, wait=wait_seconds or 0.0)

    async def list(
        self,
        *,
        status: TaskStatus | None = None,
        parent: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> TaskPage:
        """Return a page of tasks, newest first; it may be short, or empty, and still have a `next_cursor`."""
        params = {"status": status, "parent": parent, "limit": limit, "cursor": cursor}
        # The gateway reads each of them.
        return await self._sender.ask(TaskPage, "GET", "/tasks", params=params, wait=LIST_SECONDS)

    async def message(
        self, task_id: str, text: str, *, message_id: str | None = None, mode: PromptMode = "enqueue"
    ) -> PromptAccepted:
        """Send a task a further prompt, under an id that is made up where none is given."""
        body = {"text": text, "id": message_id or str(uuid4()), "mode": mode}
        return await self._sender.ask(PromptAccepted, "POST", _path(task_id, "/messages"), body=body)

    async def cancel(self, task_id: str, *, reason: str | None = None) -> Task:
        """Cancel a task and all tasks below it; one that has ended stays as it is."""
        return await self._sender.ask(Task, "POST", _path(task_id, "/cancel"), body=without_none({"reason": reason}))


LIST_SECONDS = 30.0
"""Seconds that a list may take beyond other calls."""


def _path(task_id: str, part: str = "") -> str:
    return f"/tasks/{quote(task_id, safe='')}{part}"
