"""`turnkeeper tasks`: creating, reading and cancelling tasks from a shell.

With `--json`, each command prints the gateway's response as one line of JSON.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnkeeper.clients.python.errors import GatewayProblemError
from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.clients.terminal import texts
from turnkeeper.clients.terminal.formatting import legible, well_formed
from turnkeeper.clients.terminal.gateway_command import GatewayCommand, say
from turnkeeper.clients.terminal.one_shot import FAILED, NEEDS_DECISION
from turnkeeper.models.command_line import command_line
from turnkeeper.models.http_responses import Task, TaskReceipt
from turnkeeper.models.session.queue.prompts import PromptMode
from turnkeeper.models.transcript.task_view import TaskStatus

MAX_WAIT_SECONDS = 60.0
"""The longest time for which the gateway holds one request."""


@dataclass(frozen=True)
class TaskCommands(GatewayCommand):
    """The commands. Each returns its exit code."""

    def create(self, description: str, fields: dict[str, Any], *, is_awaited: bool) -> int:
        """Create a task; with `is_awaited`, wait until it ends or needs approval."""

        async def create(gateway: GatewayClient) -> int:
            receipt = await gateway.tasks.create(well_formed(description), **fields)
            self._explain(receipt)
            if not is_awaited:
                self.print_answer(receipt, texts.TASK_CREATED.format(task_id=receipt.task_id, url=receipt.url))
                return 0
            if not self.as_json:
                say(texts.TASK_CREATED.format(task_id=receipt.task_id, url=receipt.url))
            return self._ended(await _until_due(gateway, receipt.task_id))

        return self.run(create)

    def get(self, task_id: str, *, is_awaited: bool) -> int:
        async def get(gateway: GatewayClient) -> int:
            if is_awaited:
                return self._ended(await _until_due(gateway, task_id))
            task = await gateway.tasks.get(task_id)
            self.print_answer(task, _described(task))
            return 0

        return self.run(get)

    def list(self, *, status: TaskStatus | None, parent: str | None, limit: int | None, cursor: str | None) -> int:
        async def list_tasks(gateway: GatewayClient) -> int:
            page = await gateway.tasks.list(status=status, parent=parent, limit=limit, cursor=cursor)
            lines = [_line(task) for task in page.tasks] or [texts.NO_TASKS]
            self.print_answer(page, "\n".join(lines))
            if page.next_cursor and not self.as_json:
                say(texts.MORE_TASKS.format(cursor=page.next_cursor))
            return 0

        return self.run(list_tasks)

    def message(self, task_id: str, text: str, *, mode: PromptMode) -> int:
        async def message(gateway: GatewayClient) -> int:
            accepted = await gateway.tasks.message(task_id, well_formed(text), mode=mode)
            again = command_line("tasks", "get", task_id, "--wait", *self._url_again)
            self.print_answer(accepted, texts.TASK_MESSAGE_SENT.format(command=again))
            return 0

        return self.run(message)

    def cancel(self, task_id: str, *, reason: str | None) -> int:
        async def cancel(gateway: GatewayClient) -> int:
            task = await gateway.tasks.cancel(task_id, reason=reason)
            self.print_answer(task, _described(task))
            return 0

        return self.run(cancel)

    # ----

    @property
    def _url_again(self) -> tuple[str, ...]:
        return ("--url", self.url_option) if self.url_option else ()

    def report(self, error: GatewayProblemError) -> None:
        """Print a line for each field that is wrong."""
        fields = [one for one in error.problem.errors or [] if one.value is not None]
        if not fields:
            super().report(error)
            return
        say(texts.TASK_CREATE_FAILED)
        for one in fields:
            say(legible(texts.TASK_FIELD_ERROR.format(field=one.field, reason=one.reason, value=one.value)))

    def _explain(self, receipt: TaskReceipt) -> None:
        for warning in receipt.warnings if not self.as_json else ():
            say(legible(texts.TASK_WARNING.format(field=warning.field, message=warning.message)))

    def _ended(self, task: Task) -> int:
        """Print the result of a task; only its answer goes to stdout."""
        answer = task.result.answer if task.result else None
        if self.as_json:
            self.print_answer(task, "")
        elif answer is not None:
            print(legible(answer) if sys.stdout.isatty() else answer, flush=True)
        else:
            say(_described(task))
        if task.status == "input_required":
            return NEEDS_DECISION
        return 0 if task.status == "completed" else FAILED


class OptionError(ValueError):
    """Options of a command exclude each other, or name a file that can't be read."""


def task_fields(options: Mapping[str, Any], *, context: Path | None, inherit: bool) -> dict[str, Any]:
    """Return the fields of a new task: those of the file `context`, overridden by `options` that are not None.

    Raises `OptionError`.
    """
    fields = _read_object(context) if context else {}
    fields |= {name: value for name, value in options.items() if value is not None}
    if inherit and fields.get("conversation_history"):
        raise OptionError(texts.INHERIT_AND_HISTORY)
    if inherit and not fields.get("parent"):
        raise OptionError(texts.INHERIT_NEEDS_PARENT)
    if inherit:
        fields["conversation_history"] = "inherit"
    return fields


def _read_object(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(texts.CONTEXT_UNREADABLE.format(path=path, reason=error.strerror)) from error
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict) or "description" in fields:
        raise OptionError(texts.CONTEXT_UNREADABLE.format(path=path, reason=texts.CONTEXT_NO_OBJECT))
    return fields


async def _until_due(gateway: GatewayClient, task_id: str) -> Task:
    """Return the task once it ends or needs approval."""
    while True:
        task = await gateway.tasks.get(task_id, wait_seconds=MAX_WAIT_SECONDS)
        if task.status != "working":
            return task


def _line(task: Task) -> str:
    percent = f" {task.percent} %" if task.percent is not None else ""
    return f"{task.task_id}  {texts.TASK_STATUS[task.status]}{percent}  {task.title or ''}".rstrip()


def _described(task: Task) -> str:
    lines = [_line(task)]
    if task.status_message:
        lines.append(f"  {task.status_message}")
    if task.status == "input_required":
        lines.append(f"  {texts.TASK_DECIDE.format(url=task.url)}")
    if task.error:
        lines.append(f"  {task.error}")
    if task.result and task.result.answer is not None:
        lines += ["", task.result.answer]
    return "\n".join(lines)
