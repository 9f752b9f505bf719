"""The tasks that a session has started, and how many more it may start (TSK-5).

The allowance is divided: a task starts with a share of its parent's `limits.max_tasks`, and returns the unused part
when it ends. So the limit holds for the whole tree, however many sessions start tasks at the same time.
"""

from collections.abc import Callable
from hashlib import sha256

from pydantic_core import to_json

from turnkeeper.models.limits import Limits
from turnkeeper.models.session.tasks.task_state import TaskChange
from turnkeeper.models.transcript.task_view import FINAL, SubTask, TaskStatus
from turnkeeper.models.wire import Compact, Items

MAX_ENDED = 50
"""How many ended tasks a session remembers; it forgets the oldest first."""

MAX_ID_CHARS = 128


class SubTasksState(Compact):
    """The carried state of the tasks that a session has started."""

    started: int = 0
    """Number of tasks started so far; the newest task has this number."""
    spent: int = 0
    """The spent part of `limits.max_tasks`, including the shares of working tasks."""
    is_closed: bool = False
    """Whether the rest of the allowance was returned to the parent."""
    tasks: Items[SubTask] = []
    """All running tasks and the newest of the others, oldest first."""


class SubTasks:
    """The tasks of one session."""

    def __init__(self, state: SubTasksState, *, session_id: str, on_change: Callable[[], object]) -> None:
        self.state = state
        """The state that the next run gets; replaced with every change."""
        self._session_id = session_id
        self._on_change = on_change

    @property
    def working(self) -> list[SubTask]:
        return [task for task in self.state.tasks if task.is_working]

    @property
    def running(self) -> list[SubTask]:
        """The tasks whose sessions are open, including tasks that have answered."""
        return [task for task in self.state.tasks if task.is_running]

    @property
    def has_approval_pending(self) -> bool:
        """Whether a tool call of any task waits for a person's decision."""
        return any(task.status == "input_required" for task in self.state.tasks)

    @property
    def has_blocking_approval(self) -> bool:
        """Whether a tool call of a foreground task, which the running turn waits for, needs a decision."""
        return any(task.blocks_its_parent for task in self.state.tasks)

    @property
    def carried_bytes(self) -> int:
        return len(to_json(self.state.tasks)) if self.state.tasks else 0

    def rejection(self, limits: Limits) -> str | None:
        """Return why no further task may be started now, as a sentence for the model; `None` if one may."""
        if limits.max_task_depth < 1:
            return "No task was started: tasks may not be nested deeper (limits.max_task_depth)."
        if self.state.is_closed or self.state.spent >= limits.max_tasks:
            return (
                f"No task was started: {limits.max_tasks} tasks, those of tasks included, are all that this session "
                "may start (limits.max_tasks)."
            )
        if len(self.working) >= limits.max_tasks_at_once:
            return (
                f"No task was started: {limits.max_tasks_at_once} tasks are running, and no more may at once "
                "(limits.max_tasks_at_once). Wait until one has ended."
            )
        return None

    def start(self, *, call_id: str, title: str, background: bool, limits: Limits) -> SubTask:
        """Record a task as started and return it. Call it only if `rejection` is `None`."""
        free = limits.max_tasks - self.state.spent - 1
        share = free // limits.max_tasks_at_once if limits.max_task_depth > 1 else 0
        number = self.state.started + 1
        task = SubTask(
            task_id=sub_task_id(self._session_id, number),
            call_id=call_id,
            title=title,
            background=background,
            share=share,
        )
        self._update(
            started=number, spent=self.state.spent + 1 + share, tasks=_without_oldest([*self.state.tasks, task])
        )
        return task

    def change(self, change: TaskChange) -> SubTask | None:
        """Record a change of a task. Return the earlier version; `None` if the task is unknown or nothing changed."""
        before = next((task for task in self.state.tasks if task.task_id == change.task_id), None)
        if before is None:
            return None
        after = before.model_copy(
            update={
                "status": change.status,
                "percent": change.percent,
                "message": change.message,
                "turn": max(before.turn, change.turn),
                "is_closed": before.is_closed or change.is_closed,
            }
        )
        returned = 0
        if change.status in FINAL and before.share:
            returned = max(0, before.share - change.tasks_started)
            after = after.model_copy(update={"share": 0})
        if after == before:
            return None
        tasks = [after if task is before else task for task in self.state.tasks]
        self._update(spent=self.state.spent - returned, tasks=_without_oldest(tasks))
        return before

    def end(self, task_id: str, status: TaskStatus, *, tasks_started: int = 0) -> None:
        """Record that the session of a task has ended, with the final status of the task."""
        earlier = next((task for task in self.state.tasks if task.task_id == task_id), None)
        if earlier is not None:
            self.change(
                TaskChange(
                    task_id=task_id,
                    status=status,
                    percent=earlier.percent,
                    message=earlier.message,
                    tasks_started=tasks_started,
                    is_closed=True,
                )
            )

    def close_task(self, task_id: str) -> None:
        """Record that the session of a background task has ended; a task that was still working was terminated."""
        task = next((task for task in self.running if task.task_id == task_id), None)
        if task is not None:
            self.end(task_id, "cancelled" if task.is_working else task.status)

    def end_foreground(self) -> None:
        """Record the foreground tasks as cancelled, because their turn has ended."""
        for task in self.working:
            if not task.background:
                self.end(task.task_id, "cancelled")

    def close(self) -> None:
        """Allow no further tasks: the parent gets the rest of the allowance."""
        if not self.state.is_closed:
            self._update(is_closed=True)

    def _update(self, **fields: object) -> None:
        self.state = self.state.model_copy(update=fields)
        self._on_change()


def sub_task_id(session_id: str, number: int | str) -> str:
    """Return the id of a session's task (TSK-5). A long one is cut and made unique by a digest.

    >>> sub_task_id("s1", 2)
    's1.task-2'
    >>> len(sub_task_id("s" * 128, 2))
    128
    """
    ending = f".task-{number}"
    if len(session_id) + len(ending) <= MAX_ID_CHARS:
        return session_id + ending
    digest = sha256(session_id.encode()).hexdigest()[:16]
    return f"{session_id[: MAX_ID_CHARS - len(ending) - len(digest) - 1]}~{digest}{ending}"


def _without_oldest(tasks: list[SubTask]) -> list[SubTask]:
    ended = [task for task in tasks if not task.is_running]
    forgotten = {task.task_id for task in ended[: max(0, len(ended) - MAX_ENDED)]}
    return [task for task in tasks if task.task_id not in forgotten]
