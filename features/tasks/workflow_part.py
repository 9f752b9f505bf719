"""Tasks in the workflow of a session: what it does for its own task, and for those that it has started."""

from pydantic import JsonValue
from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from turnkeeper.features.tasks.session.allowance import AllowanceAnswer, AllowanceRequest
    from turnkeeper.features.tasks.session.task_state import TaskChange, result_prompt
    from turnkeeper.features.tasks.session_part import FEATURE, tasks_of
    from turnkeeper.features.tasks.workflow.sub_tasks import (
        CHANGED,
        GRANT,
        REQUEST,
        AllowanceMail,
        SubTaskRunner,
        TaskReporter,
        with_whole_answer,
    )
    from turnkeeper.features.tasks.workflow.task_tools import TaskTurn
    from turnkeeper.models.session.messages import FeatureMessage, parse
    from turnkeeper.models.session.session import Session
    from turnkeeper.workflows.turn.turn_scope import TurnPart, TurnScope
    from turnkeeper.workflows.workflow_part import Host, WorkflowPart


class TasksWorkflow(WorkflowPart):
    """Starts, reports and cancels tasks, and exchanges messages with other sessions of the tree (TSK-5)."""

    name = FEATURE

    def __init__(self, session: Session, host: Host) -> None:
        super().__init__(session, host)
        self._tasks = tasks_of(session)
        self._runner = SubTaskRunner(session)
        self._reporter = TaskReporter(session, self.send)
        self._mail = AllowanceMail(self._tasks, self.send)

    @property
    def is_sending(self) -> bool:
        return self._reporter.is_sending or self._mail.is_sending

    def begin(self) -> None:
        self._reporter.begin()
        self._mail.begin()

    def receive(self, message: FeatureMessage) -> None:
        if message.kind == CHANGED:
            self._change_sub_task(parse(TaskChange, message.body))
        elif message.kind == REQUEST:
            self._tasks.answer_request(parse(AllowanceRequest, message.body))
        elif message.kind == GRANT and self._tasks.allowance:
            self._tasks.allowance.receive(parse(AllowanceAnswer, message.body))

    def _change_sub_task(self, change: TaskChange) -> None:
        """Record a change of a task; the answer of a background task becomes a prompt."""
        before = self._tasks.change_sub_task(change, now=workflow.now())
        if before and before.background and change.turn > before.turn:
            number = before.task_id.rpartition(".")[2]
            self._host.receive({"id": f"{number}.answer-{change.turn}", "text": result_prompt(before, change)})
        self._host.refresh_ui()

    def turn(self, scope: TurnScope) -> TurnPart:
        return TaskTurn(scope, self._runner)

    async def close(self) -> None:
        await self._runner.cancel_all()
        await self._reporter.send()
        await self._mail.flush()

    async def result(self) -> dict[str, JsonValue]:
        """Return what came of the task that the session is, with its whole answer."""
        outcome = self._tasks.outcome
        return (await with_whole_answer(outcome)).model_dump(mode="json") if outcome else {}


WORKFLOW_PART = TasksWorkflow
