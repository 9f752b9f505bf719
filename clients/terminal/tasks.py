"""`turnkeeper tasks`: creating, reading and cancelling tasks from a shell.

With `--json`, each command prints the gateway's response as one line of JSON.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.clients.python.request_sender import GatewayProblemError
from turnkeeper.clients.terminal import texts
from turnkeeper.clients.terminal.formatting import well_formed
from turnkeeper.clients.terminal.gateway_command import (
    FAILED,
    NEEDS_DECISION,
    GatewayCommand,
    print_answer,
    say,
    with_gateway,
)
from turnkeeper.models.http_responses import Task
from turnkeeper.models.session.prompts import PromptMode

MAX_WAIT_SECONDS = 60.0
"""The longest time for which the gateway holds one request."""


class TaskCommands(GatewayCommand):
    """The commands. Each returns its exit code."""

    @with_gateway
    async def create(
        self, gateway: GatewayClient, description: str, fields: dict[str, Any], *, is_awaited: bool
    ) -> int:
        """Create a task; with `is_awaited`, wait until it ends or needs approval."""
        try:
            receipt = await gateway.tasks.create(well_formed(description), **fields)
        except GatewayProblemError as error:
            if not _print_wrong_fields(error):
                raise
            return FAILED
        for warning in receipt.warnings if not self.as_json else ():
            say(texts.TASK_WARNING.format(field=warning.field, message=warning.message))
        created = texts.TASK_CREATED.format(task_id=receipt.task_id, url=receipt.url)
        if not is_awaited:
            self.print_result(receipt, created)
            return 0
        if not self.as_json:
            say(created)
        return await self._wait(gateway, receipt.task_id)

    @with_gateway
    async def get(self, gateway: GatewayClient, task_id: str, *, is_awaited: bool) -> int:
        if is_awaited:
            return await self._wait(gateway, task_id)
        task = await gateway.tasks.get(task_id)
        self.print_result(task, _described(task))
        return 0

    @with_gateway
    async def list(self, gateway: GatewayClient, /, **query: Any) -> int:
        """Print a page of tasks; `query` is that of `GatewayClient.tasks.list`."""
        page = await gateway.tasks.list(**query)
        self.print_result(page, "\n".join(map(_line, page.tasks)) or texts.NO_TASKS)
        if page.next_cursor and not self.as_json:
            say(texts.MORE_TASKS.format(cursor=page.next_cursor))
        return 0

    @with_gateway
    async def message(self, gateway: GatewayClient, task_id: str, text: str, *, mode: PromptMode) -> int:
        accepted = await gateway.tasks.message(task_id, well_formed(text), mode=mode)
        command = self.command_line("tasks", "get", task_id, "--wait")
        self.print_result(accepted, texts.TASK_MESSAGE_SENT.format(command=command))
        return 0

    @with_gateway
    async def cancel(self, gateway: GatewayClient, task_id: str, *, reason: str | None) -> int:
        task = await gateway.tasks.cancel(task_id, reason=reason)
        self.print_result(task, _described(task))
        return 0

    async def _wait(self, gateway: GatewayClient, task_id: str) -> int:
        """Wait until the task ends or needs approval; only its answer goes to stdout."""
        task = await gateway.tasks.get(task_id, wait_seconds=MAX_WAIT_SECONDS)
        while task.status == "working":
            task = await gateway.tasks.get(task_id, wait_seconds=MAX_WAIT_SECONDS)
        if self.as_json:
            self.print_result(task, "")
        elif task.result and task.result.answer is not None:
            print_answer(task.result.answer)
        else:
            say(_described(task))
        return {"completed": 0, "input_required": NEEDS_DECISION}.get(task.status, FAILED)


def _print_wrong_fields(error: GatewayProblemError) -> bool:
    """Print a line for each field of a new task that is wrong; return whether there are any."""
    fields = [field for field in error.problem.errors or [] if field.value is not None]
    if fields:
        say(texts.TASK_CREATE_FAILED)
    for field in fields:
        say(texts.TASK_FIELD_ERROR.format(field=field.field, reason=field.reason, value=field.value))
    return bool(fields)


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
