"""Tasks in a session: the one that it is, those that it has started, and its place in their tree (TSK-4, TSK-5).

The root of a tree decides what may be used, and a task asks the root: the rules are in `allowance.py`.
"""

from dataclasses import replace
from datetime import datetime

from pydantic import JsonValue

from turnkeeper.features.tasks.rules.enrichment import first_prompt
from turnkeeper.features.tasks.session.allowance import (
    Accounts,
    Allowance,
    AllowanceAnswer,
    AllowanceRequest,
    AllowanceState,
    TurnAccount,
)
from turnkeeper.features.tasks.session.sub_tasks import (
    REPORT_PROGRESS_SPEC,
    SubTasks,
    SubTasksState,
    run_task_spec,
)
from turnkeeper.features.tasks.session.task_state import (
    OwnTask,
    TaskChange,
    TaskInput,
    TaskOutcome,
    TasksInput,
    TaskState,
    bound_answer,
    task_prompt,
    task_status,
)
from turnkeeper.models.errors import RejectedError
from turnkeeper.models.ids import PublicId
from turnkeeper.models.session.budgets import Amount, Budgets, Caps
from turnkeeper.models.session.messages import SessionInput, parse
from turnkeeper.models.session.prompts import PromptSignal, check_text
from turnkeeper.models.session.session import PartData, Session, SessionPart
from turnkeeper.models.transcript.conversation import FINAL, SubTask, TaskStatus, TaskView, Usage
from turnkeeper.models.transcript.model_call import ToolSpec
from turnkeeper.models.wire import Compact, Items

FEATURE = "tasks"


class TasksState(Compact):
    """The carried state of a session's tasks."""

    own: TaskState = TaskState()
    """Of the task that the session is."""
    started: SubTasksState = SubTasksState()
    accounts: Items[TurnAccount] = []
    """Of a root: what its turns and the tasks of its tree may use."""
    allowance: AllowanceState | None = None
    """Of a task in a tree: what it may use."""


class SessionTasks(SessionPart):
    """The tasks of one session."""

    name = FEATURE

    def __init__(self, session: Session, input_data: PartData, carried: PartData) -> None:
        self._session = session
        self.input = TasksInput.model_validate(input_data)
        state = self._rest = TasksState.model_validate(carried)
        self.own = OwnTask(state.own, self.input.task, session.turn_slot, on_change=session.on_change)
        self.started = SubTasks(state.started, session_id=session.id, on_change=session.on_change)
        self.accounts = Accounts(state.accounts, session_id=session.id)
        in_tree = self.input.task and self.input.task.allowance
        self.allowance = Allowance(in_tree, state.allowance, task_id=session.id) if in_tree else None
        """`None`: the session is the root of a tree."""

    @classmethod
    def check_start(cls, start: SessionInput) -> None:
        field = f"features.{cls.name}"
        try:
            task = parse(TasksInput, start.features.get(cls.name)).task
        except RejectedError as rejection:
            raise RejectedError(
                rejection.reason, f"{field}.{rejection.message}", field=f"{field}.{rejection.field}"
            ) from None
        if task and start.first_prompt is None:
            field = f"{field}.task.context"
            if task.context is None:
                raise RejectedError("invalid", f"{field}: give it, or a first_prompt.", field=field)
            check_text(first_prompt(task.context), limits=start.limits, field=field)

    def first_prompt(self, new_id: str) -> PromptSignal | None:
        task = self.input.task
        if task is None or task.context is None:
            return None
        if task.to_condense:
            self.own.note_first_prompt(new_id)
        return task_prompt(task, task.context, new_id=new_id, limits=self._session.config.limits)

    @property
    def tools(self) -> list[ToolSpec]:
        tasks = self.unoffered_tools if self._session.config.limits.max_task_depth else []
        return [*tasks, REPORT_PROGRESS_SPEC] if self.input.task else tasks

    @property
    def unoffered_tools(self) -> list[ToolSpec]:
        """`run_task`, where tasks may be nested no deeper: its result says so."""
        return [run_task_spec(self._session.config.handoffs)]

    def budgets(self, budgets: Budgets) -> Budgets:
        """Return them with what the turn's tasks have drawn, and what a task has been granted."""
        message, allowance = self._session.turn_slot.running().message, self.allowance
        drawn = Amount.of(message.tasks_usage) if allowance else self.accounts.drawn(message.id)
        return replace(budgets, drawn=drawn, share=allowance.share(self.used) if allowance else None)

    def end_turn(self) -> None:
        self.started.end_foreground()
        self._note_used()
        if self.allowance:
            self.allowance.return_rest(self.used)

    # ---- what people see

    @property
    def task(self) -> TaskView | None:
        start, state = self.input.task, self.own.state
        if start is None:
            return None
        return TaskView(
            parent=start.parent,
            background=start.background,
            percent=state.percent,
            message=state.message,
            findings=state.findings,
            context=start.report,
            condensed=state.condensed,
        )

    @property
    def task_status(self) -> TaskStatus | None:
        """Its status as a task (TSK-4); `None`: it is none."""
        session, newest = self._session, self._session.transcript.newest
        if self.input.task is None:
            return None
        return task_status(
            newest.status if newest else None,
            session=session.status,
            waits=self.started.has_approval_pending,
            queue_length=len(session.queue),
        )

    @property
    def sub_tasks(self) -> list[SubTask]:
        return self.started.state.tasks

    @property
    def open_seconds(self) -> float | None:
        """Those of a task, unless it waits for one of its own."""
        return self.input.task.open_seconds if self.input.task and not self.started.working else None

    # ---- the next run

    @property
    def kept_input(self) -> dict[str, JsonValue]:
        """The input without the task's context, which is not needed once the first prompt is made."""
        task = self.input.task and self.input.task.model_copy(update={"context": None, "attachments": []})
        return self.input.model_copy(update={"task": task}).model_dump(mode="json")

    @property
    def state(self) -> dict[str, JsonValue]:
        update = {
            "own": self.own.state,
            "started": self.started.state,
            "accounts": self.accounts.state,
            "allowance": self.allowance and self.allowance.state,
        }
        return self._rest.model_copy(update=update).model_dump(mode="json")

    @property
    def carried_bytes(self) -> int:
        return self.own.state.carried_bytes + self.started.carried_bytes + self.accounts.carried_bytes

    # ---- its own task

    @property
    def outcome(self) -> TaskOutcome | None:
        """What came of the task that the session is; `None`: it is none."""
        newest, status = self._session.transcript.newest, self.task_status
        if status is None:
            return None
        return TaskOutcome(
            status=status,
            answer=newest and newest.agent_message,
            answer_blob=newest and newest.agent_message_blob,
            error=newest and newest.error,
            error_type=newest and newest.error_type,
            usage=self._session.facts.usage,
            findings=self.own.state.findings,
        )

    @property
    def due_change(self) -> TaskChange | None:
        """What the session's parent does not know yet; `None`: nothing.

        A parent that waits for the result of the task's workflow learns its end from that, unless it was cancelled.
        """
        session, start, status, state = self._session, self.input.task, self.task_status, self.own.state
        if start is None or status is None or not start.reports:
            return None
        if status in FINAL and not start.background and session.closed != "cancelled":
            return None
        change = TaskChange(
            task_id=session.id,
            status=status,
            percent=state.percent,
            message=state.message,
            turn=session.transcript.count if status in FINAL else 0,
            is_closed=session.closed is not None,
        )
        if change == (state.reported or TaskChange(task_id=session.id)):
            return None
        newest = session.transcript.newest
        if status not in FINAL or newest is None:
            return change
        answer, error = bound_answer(newest.agent_message), newest.error
        return change.model_copy(update={"answer": answer, "error": error, "usage": session.facts.usage})

    # ---- the tasks that it has started

    def change_sub_task(self, change: TaskChange, *, now: datetime) -> SubTask | None:
        """Record the progress of one of the session's tasks; while a person decides for it, the turn's clock is paused.

        Returns the task as it was before; `None`: nothing has changed.
        """
        before = self.started.change(change)
        self._count(change.task_id, change.usage, now=now)
        return before

    def end_sub_task(self, task_id: str, outcome: TaskOutcome, *, now: datetime) -> None:
        """Record what came of a task that the running turn has waited for."""
        self.started.end(task_id, outcome.status)
        self._count(task_id, outcome.usage, now=now)

    def _count(self, task_id: str, usage: Usage | None, *, now: datetime) -> None:
        usage = self.started.add_usage(task_id, usage)
        self._session.count_tasks(usage, is_blocked=self.started.has_blocking_approval, now=now)

    # ---- its tree

    @property
    def used(self) -> Amount:
        """What the session has used itself, without its tasks."""
        return Amount.of(self._session.facts.usage - self._session.facts.tasks_usage)

    def _note_used(self) -> None:
        """Note in its account what the running turn has used itself."""
        if turn := self._session.turn:
            self.accounts.note_used(turn.message.id, Amount.of(turn.own_usage))

    def register_task(self, task_id: PublicId) -> AllowanceAnswer:
        """Return the first portion of a task that this session, a root, starts, or why it may not be started."""
        turn = self._session.turn_slot.running()
        used, max_tasks = Amount.of(turn.own_usage), turn.limits.max_tasks
        return self.accounts.start(
            task_id, turn=turn.message.id, caps=Caps.of(turn.limits), used=used, max_tasks=max_tasks
        )

    def discard_task(self, task_id: PublicId, status: TaskStatus) -> None:
        """Record that a task was not started, also at the root of the tree."""
        if self.allowance:
            self.allowance.void_start(task_id)
        else:
            self.accounts.void(task_id)
        self.started.end(task_id, status)

    def answer_request(self, request: AllowanceRequest) -> None:
        """Apply a request of a task of this root's tree; the answer, if there is one, is sent later."""
        self._note_used()
        session = self._session
        limits = session.turn.limits if session.turn else session.config.limits
        answer = self.accounts.answer(request, max_tasks=limits.max_tasks)
        if answer:
            self.accounts.outbox.append((request.task_id, answer))


def tasks_of(session: Session) -> SessionTasks:
    return session.part(SessionTasks)


def with_task(start: SessionInput, task: TaskInput) -> SessionInput:
    """Return the input of a session that is to be the task."""
    tasks = parse(TasksInput, start.features.get(FEATURE)).model_copy(update={"task": task})
    return start.model_copy(update={"features": {**start.features, FEATURE: tasks.model_dump(mode="json")}})


SESSION_PART = SessionTasks
