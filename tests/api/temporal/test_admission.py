"""The gateway's own count of unanswered prompts (SES-6)."""

from types import SimpleNamespace
from typing import Any, cast

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from turnkeeper.api.temporal.admission import Admission
from turnkeeper.api.temporal.watch import Watch
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.session.prompts import PromptSignal

SESSION = WorkflowId("s1")
COMPLETED = HistoryEvent(event_type=EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED)
SIGNALED = HistoryEvent(event_type=EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED)


async def test_ses_6_old_workflow_tasks_do_not_count_as_answers_to_later_prompts() -> None:
    watch = Watch(cast(Any, None))
    watches = {}
    admission = Admission(cast(Any, None), cast(Any, SimpleNamespace(get=watches.get)), Timeouts())

    async def unanswered() -> int:
        await admission.admit(SESSION, PromptSignal(text="hi"))
        return admission._unanswered[SESSION].prompts

    assert [await unanswered() for _ in range(10)][-1] == 10
    watches[SESSION] = watch
    watch.note_events([COMPLETED, *[SIGNALED] * 10])
    watch.advance()
    assert await unanswered() == 11
    watch.note_events([COMPLETED])
    watch.advance()
    assert await unanswered() == 1
