"""`turnkeeper tasks`: creating, reading and cancelling tasks from a shell.

With `--json`, each command prints the gateway's response as one line of JSON.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnkeeper.clients.python.errors import (
    GatewayError,
    GatewayProblemError,
    GatewayUnreachableError,
    GatewayUnreadableError,
)
from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.clients.terminal import texts
from turnkeeper.clients.terminal.formatting import legible, well_formed
from turnkeeper.clients.terminal.one_shot import FAILED, INTERRUPTED, NEEDS_DECISION, UNREACHABLE
from turnkeeper.models.command_line import command_line
from turnkeeper.models.http_responses import Task, TaskReceipt
from turnkeeper.models.session.queue.prompts import PromptMode
from turnkeeper.models.transcript.task_view import TaskStatus
from turnkeeper.models.wire import Frozen

MAX_WAIT_SECONDS = 60.0
"""The longest time for which the gateway holds one request."""


@dataclass(frozen=True)
class TaskCommands:
    """The commands, for the gateway at `url`. Each returns its exit code.

    `url_option` is the `--url` that the user passed; printed commands repeat it.
    """

    url: str
    url_option: str | None = None
    as_json: bool = False

    def create(self, description: str, fields: dict[str, Any], *, is_awaited: bool) -> int:
        """Create a task; with `is_awaited`, wait until it ends or needs approval."""

        async def create(gateway: GatewayClient) -> int:
            receipt = await gateway.tasks.create(well_formed(description), **fields)
            self._explain(receipt)
            if not is_awaited:
                self._print(receipt, texts.TASK_CREATED.format(task_id=receipt.task_id, url=receipt.url))
                return 0
            if not self.as_json:
                _say(texts.TASK_CREATED.format(task_id=receipt.task_id, url=receipt.url))
            return self._ended(await _until_due(gateway, receipt.task_id))

        return self._run(create)

    def get(self, task_id: str, *, is_awaited: bool) -> int:
        async def get(gateway: GatewayClient) -> int:
            if is_awaited:
                return self._ended(await _until_due(gateway, task_id))
            task = await gateway.tasks.get(task_id)
            self._print(task, _described(task))
            return 0

        return self._run(get)

    def list(self, *, status: TaskStatus | None, parent: str | None, limit: int | None, cursor: str | None) -> int:
        async def list_tasks(gateway: GatewayClient) -> int:
            page = await gateway.tasks.list(status=status, parent=parent, limit=limit, cursor=cursor)
            lines = [_line(task) for task in page.tasks] or [texts.NO_TASKS]
            self._print(page, "\n".join(lines))
            if page.next_cursor and not self.as_json:
                _say(texts.MORE_TASKS.format(cursor=page.next_cursor))
            return 0

        return self._run(list_tasks)

    def message(self, task_id: str, text: str, *, mode: PromptMode) -> int:
        async def message(gateway: GatewayClient) -> int:
            accepted = await gateway.tasks.message(task_id, well_formed(text), mode=mode)
            again = command_line("tasks", "get", task_id, "--wait", *self._url_again)
            self._print(accepted, texts.TASK_MESSAGE_SENT.format(command=again))
            return 0

        return self._run(message)

    def cancel(self, task_id: str, *, reason: str | None) -> int:
        async def cancel(gateway: GatewayClient) -> int:
            task = await gateway.tasks.cancel(task_id, reason=reason)
            self._print(task, _described(task))
            return 0

        return self._run(cancel)

    # ----

    @property
    def _url_again(self) -> tuple[str, ...]:
        return ("--url", self.url_option) if self.url_option else ()

    def _run(self, verb: Callable[[GatewayClient], Awaitable[int]]) -> int:
        async def run() -> int:
            async with GatewayClient(self.url) as gateway:
                return await verb(gateway)

        try:
            return asyncio.run(run())
        except (KeyboardInterrupt, asyncio.CancelledError):
            return INTERRUPTED
        except GatewayUnreachableError as error:
            hint = "" if self.url_option else f" {texts.START_GATEWAY.format(command=command_line('up'))}"
            _say(f"{error}.{hint}")
            return UNREACHABLE
        except GatewayProblemError as error:
            self._report(error)
            return FAILED
        except GatewayError as error:
            _say(str(error))
            return UNREACHABLE if isinstance(error, GatewayUnreadableError) else FAILED

    def _report(self, error: GatewayProblemError) -> None:
        """Print a line for each field that is wrong."""
        fields = [one for one in error.problem.errors or [] if one.value is not None]
        if not fields:
            _say(legible(str(error)))
            return
        _say(texts.TASK_CREATE_FAILED)
        for one in fields:
            _say(legible(texts.TASK_FIELD_ERROR.format(field=one.field, reason=one.reason, value=one.value)))

    def _explain(self, receipt: TaskReceipt) -> None:
        for warning in receipt.warnings if not self.as_json else ():
            _say(legible(texts.TASK_WARNING.format(field=warning.field, message=warning.message)))

    def _ended(self, task: Task) -> int:
        """Print the result of a task; only its answer goes to stdout."""
        answer = task.result.answer if task.result else None
        if self.as_json:
            self._print(task, "")
        elif answer is not None:
            print(legible(answer) if sys.stdout.isatty() else answer, flush=True)
        else:
            _say(_described(task))
        if task.status == "input_required":
            return NEEDS_DECISION
        return 0 if task.status == "completed" else FAILED

    def _print(self, answer: Frozen, text: str) -> None:
        if self.as_json:
            print(json.dumps(answer.model_dump(mode="json"), separators=(",", ":")), flush=True)
        else:
            print(legible(text), flush=True)


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


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
