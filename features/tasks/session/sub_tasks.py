"""The tasks that a session has started, and the tools of tasks, which need no activity (TSK-4, TSK-5).

How many tasks a tree may start is counted at its root: `allowance.py`.
"""

from collections.abc import Callable, Sequence
from hashlib import sha256

from pydantic import JsonValue
from pydantic_core import to_json

from turnkeeper.features.tasks.session.task_state import FINDINGS_BYTES, MESSAGE_CHARS, TaskChange
from turnkeeper.models.ids import PublicId
from turnkeeper.models.limits import Limits
from turnkeeper.models.session.budgets import MAX_AMOUNT
from turnkeeper.models.transcript.conversation import SubTask, TaskStatus, Usage
from turnkeeper.models.transcript.model_call import ToolSpec
from turnkeeper.models.wire import Compact, Items

MAX_ENDED = 50
"""How many ended tasks a session remembers; it forgets the oldest first."""

MAX_ID_CHARS = 128


class SubTasksState(Compact):
    """The carried state of the tasks that a session has started."""

    started: int = 0
    """Number of tasks started so far; the newest task has this number."""
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

    def rejection(self, limits: Limits, *, depth: int) -> str | None:
        """Return why this session may start no further task now, as a sentence for the model; `None` if it may.

        `depth`: how deep below the root of its tree it is.
        """
        if limits.max_task_depth < 1:
            return (
                f"No task was started: tasks may be nested {depth + limits.max_task_depth} deep, and this session is "
                f"at depth {depth} (limits.max_task_depth)."
            )
        if len(self.working) >= limits.max_tasks_at_once:
            return (
                f"No task was started: {len(self.working)} tasks of this session are running, of at most "
                f"{limits.max_tasks_at_once} at once (limits.max_tasks_at_once). Wait until one has ended."
            )
        return None

    def start(self, *, call_id: str, title: str, background: bool) -> SubTask:
        """Record a task as started and return it. Call it only if `rejection` is `None`."""
        number = self.state.started + 1
        task_id = sub_task_id(self._session_id, number)
        task = SubTask(task_id=task_id, call_id=call_id, title=title, background=background)
        self._update(started=number, tasks=_without_oldest([*self.state.tasks, task]))
        return task

    def drop(self, task_id: str) -> None:
        """Forget a task that may not be started after all."""
        self._update(tasks=[task for task in self.state.tasks if task.task_id != task_id])

    def change(self, change: TaskChange) -> SubTask | None:
        """Record a change of a task. Return the earlier version; `None` if the task is unknown or nothing changed."""
        before = self.find(change.task_id)
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
        if after == before:
            return None
        self._replace(after)
        return before

    def add_usage(self, task_id: str, usage: Usage | None) -> Usage | None:
        """Note what a task has used in all; return what is new of it. A repeated or earlier sum adds nothing."""
        task = self.find(task_id)
        if task is None or usage is None or any(not 0 <= (number or 0) < MAX_AMOUNT for _, number in usage):
            return None
        earlier = task.usage or Usage()
        if usage.tokens <= earlier.tokens and (usage.cost or 0) <= (earlier.cost or 0):
            return None
        self._replace(task.model_copy(update={"usage": usage}))
        return usage - earlier

    def find(self, task_id: str) -> SubTask | None:
        return next((task for task in self.state.tasks if task.task_id == task_id), None)

    def end(self, task_id: str, status: TaskStatus) -> None:
        """Record that the session of a task has ended, with the final status of the task."""
        earlier = self.find(task_id)
        if earlier is not None:
            self.change(
                TaskChange(
                    task_id=task_id,
                    status=status,
                    percent=earlier.percent,
                    message=earlier.message,
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

    def _replace(self, task: SubTask) -> None:
        self._update(tasks=_without_oldest([task if one.task_id == task.task_id else one for one in self.state.tasks]))

    def _update(self, **fields: object) -> None:
        self.state = self.state.model_copy(update=fields)
        self._on_change()


def sub_task_id(session_id: str, number: int | str) -> PublicId:
    """Return the id of a session's task (TSK-5). A long one is cut and made unique by a digest.

    >>> sub_task_id("s1", 2)
    's1.task-2'
    >>> len(sub_task_id("s" * 128, 2))
    128
    """
    ending = f".task-{number}"
    if len(session_id) + len(ending) <= MAX_ID_CHARS:
        return PublicId(session_id + ending)
    digest = sha256(session_id.encode()).hexdigest()[:16]
    return PublicId(f"{session_id[: MAX_ID_CHARS - len(ending) - len(digest) - 1]}~{digest}{ending}")


def _without_oldest(tasks: list[SubTask]) -> list[SubTask]:
    ended = [task for task in tasks if not task.is_running]
    forgotten = {task.task_id for task in ended[: max(0, len(ended) - MAX_ENDED)]}
    return [task for task in tasks if task.task_id not in forgotten]


RUN_TASK = "run_task"
REPORT_PROGRESS = "report_progress"

_TEXT: JsonValue = {"type": "string"}
_TEXTS: JsonValue = {"type": "array", "items": _TEXT}

_RUN_TASK_ARGUMENTS: dict[str, JsonValue] = {
    "description": {"type": "string", "description": "What is to be done, complete in itself."},
    "background_context": {"type": "string", "description": "What the agent should know, and why it is asked."},
    "expected_deliverables": _TEXTS,
    "success_criteria": _TEXTS,
    "constraints": _TEXTS,
    "relevant_files": _TEXTS,
    "related_documentation": _TEXTS,
    "client_cwd": {"type": "string", "description": "The working directory of the person or program."},
    "history": {
        "enum": ["latest", "relevant", "none"],
        "description": (
            "What to pass on of this conversation: its latest messages, shortened; those that matter to the "
            "description, from all of it; or none, the default."
        ),
    },
    "priority": {
        "enum": ["P0", "P1", "P2", "P3", "P4"],
        "description": "P0 is the most urgent, P2 the default.",
    },
    "model": {"type": "string", "description": "provider:name; by default that of this turn."},
    "title": {"type": "string", "maxLength": 120},
    "background": {"type": "boolean", "description": "Do not wait for the answer."},
    "timeout": {"type": "number", "minimum": 1, "description": "Seconds that the task may take."},
}

RUN_TASK_SPEC = ToolSpec(
    name=RUN_TASK,
    description=(
        "Give a task to another agent, which has the same tools and workspace and sees nothing of this conversation "
        "but what you pass on. Returns its final answer; with background: true it returns at once, and the answer "
        "comes later as a message."
    ),
    input_schema={
        "type": "object",
        "properties": _RUN_TASK_ARGUMENTS,
        "required": ["description"],
        "additionalProperties": False,
    },
    effect="read",  # it changes nothing itself; the calls of the task ask for approval
    built_in=True,
)

REPORT_PROGRESS_SPEC = ToolSpec(
    name=REPORT_PROGRESS,
    description=(
        "Report how far this task is to those who gave it: one line, a percentage, or structured findings. "
        "Your final answer is passed on by itself."
    ),
    input_schema={
        "type": "object",
        "properties": {
            "message": {"type": "string", "maxLength": MESSAGE_CHARS},
            "percent": {"type": "integer", "minimum": 0, "maximum": 100},
            "findings": {"type": "object", "description": f"At most {FINDINGS_BYTES:,} bytes of JSON."},
        },
        "additionalProperties": False,
    },
    effect="read",
    built_in=True,
)

TASK_TOOLS = (RUN_TASK, REPORT_PROGRESS)


def run_task_spec(handoffs: Sequence[str]) -> ToolSpec:
    """Return `run_task` for a session that may hand over to these agents; with none, to one like itself."""
    if not handoffs:
        return RUN_TASK_SPEC
    agent: JsonValue = {"enum": [*handoffs], "description": "The agent that does it."}
    schema = {
        **RUN_TASK_SPEC.input_schema,
        "properties": {"agent": agent, **_RUN_TASK_ARGUMENTS},
        "required": ["agent", "description"],
    }
    description = RUN_TASK_SPEC.description.replace("which has the same tools and workspace and", "which")
    return RUN_TASK_SPEC.model_copy(update={"description": description, "input_schema": schema})
