"""The arguments of `run_task` and `report_progress` (TSK-4, TSK-5)."""

from collections.abc import Sequence
from typing import Literal, Self

from pydantic import ValidationError, model_validator

from turnkeeper.features.tasks.session.task import TaskRequest
from turnkeeper.features.tasks.session.task_state import ProgressReport
from turnkeeper.models.errors import RejectedError
from turnkeeper.models.session.queue.prompts import rejection_for
from turnkeeper.models.settings.history_policy import HandOffPresets, HistoryPolicy


class RunTask(TaskRequest):
    """Arguments of `run_task`. With `background`, the caller does not wait for the answer."""

    history: Literal["latest", "relevant", "none"] | None = None
    """What the task reads of the caller's conversation: the latest messages, those that matter to it, or nothing."""
    background: bool = False
    agent: str | None = None
    """The agent that does it, one of those that the session may hand over to; `None`: one like this session's."""

    @model_validator(mode="after")
    def _check_history(self) -> Self:
        if self.history is not None and self.conversation_history is not None:
            raise ValueError("give history or conversation_history, not both")
        return self

    @property
    def inherits_history(self) -> bool:
        return self.history in ("latest", "relevant") or super().inherits_history

    def policy(self, presets: HandOffPresets) -> HistoryPolicy:
        policy = super().policy(presets)
        return policy.model_copy(update={"relevant_to": True}) if self.history == "relevant" else policy


def read_run_task(args: object, *, handoffs: Sequence[str] | None = None) -> RunTask:
    """Validate the arguments of `run_task` in a session that may hand over to these agents; `None`: to any.

    Raises `RejectedError`, which names the field.
    """
    try:
        request = RunTask.model_validate(args)
    except ValidationError as error:
        raise rejection_for(error) from None
    if handoffs is not None and request.agent not in (handoffs or (None,)):
        allowed = f"must be {' or '.join(handoffs)}" if handoffs else "this session has none to hand over to"
        raise RejectedError("invalid", f"agent: {allowed}.", field="agent")
    return request


def read_progress(args: object) -> ProgressReport:
    """Validate the arguments of `report_progress`. Raises `RejectedError`, which names the field."""
    try:
        report = ProgressReport.model_validate(args)
    except ValidationError as error:
        raise rejection_for(error) from None
    if not report.model_fields_set:
        raise RejectedError("invalid", "Give at least one of message, percent and findings.")
    return report
