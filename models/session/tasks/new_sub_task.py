"""The input of a sub-task (TSK-5)."""

from dataclasses import dataclass
from datetime import datetime

from turnkeeper.models.session.messages import SessionInput, title_of
from turnkeeper.models.session.session import Session
from turnkeeper.models.session.task import prepare_task
from turnkeeper.models.session.tasks.task_arguments import RunTask
from turnkeeper.models.session.tasks.task_input import TaskInput
from turnkeeper.models.tasks.inheritance import Inheritance
from turnkeeper.models.transcript.task_view import SubTask

BACKGROUND_OPEN_SECONDS = 3_600.0
"""How long a background task stays open for further prompts after an answer."""


@dataclass(frozen=True)
class NewSubTask:
    """A recorded sub-task that is about to be started. `notes` says how its inherited history was changed."""

    task: SubTask
    start: SessionInput
    priority: int
    notes: list[str]


def record_sub_task(
    session: Session, request: RunTask, *, call_id: str, now: datetime, seconds_left: float
) -> NewSubTask:
    """Record a task of the running turn, and return its input. Call it only if `SubTasks.rejection` is `None`.

    The task has the turn's model, tools and limits, at most the turn's remaining time, and a share of the allowance.
    Raises `TaskValidationError`.
    """
    turn = session.turn_slot.running()
    inherited = None
    if request.inherits_history:
        inherited = Inheritance(request.history_policy).with_older(
            session.transcript.turns, has_older=session.transcript.archived > 0
        )
    prepared = prepare_task(request, now=now, inherited=inherited)
    title = request.title or title_of(request.description)
    task = session.sub_tasks.start(call_id=call_id, title=title, background=request.background, limits=turn.limits)
    timeout = request.timeout or turn.limits.turn_timeout
    limits = turn.limits.model_copy(
        update={
            "turn_timeout": timeout if request.background else max(1.0, min(timeout, seconds_left)),
            "max_task_depth": max(0, turn.limits.max_task_depth - 1),
            "max_tasks": task.share,
        }
    )
    start = session.config.model_copy(
        update={
            "title": title,
            "model": request.model or turn.model,
            "limits": limits,
            "tool_policy": turn.tool_policy,
            "chat_url": chat_url_of(session, task),
            "task": TaskInput(
                context=prepared.context,
                parent=session.id,
                reports=True,
                background=request.background,
                open_seconds=BACKGROUND_OPEN_SECONDS if request.background else 0,
            ),
        }
    )
    notes = [warning.message for warning in prepared.warnings]
    return NewSubTask(task=task, start=start, priority=request.priority_key, notes=notes)


def chat_url_of(session: Session, task: SubTask) -> str | None:
    """Return the URL of a task's page; `None` if the session has none."""
    url = session.config.chat_url
    return url and task.task_id.join(url.rsplit(session.id, 1))
