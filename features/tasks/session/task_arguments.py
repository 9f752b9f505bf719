"""The arguments of `run_task` and `report_progress` (TSK-4, TSK-5)."""

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


def read_run_task(args: object) -> RunTask:
    """Validate the arguments of `run_task`. Raises `RejectedError`, which names the field."""
    try:
        return RunTask.model_validate(args)
    except ValidationError as error:
        raise rejection_for(error) from None


def read_progress(args: object) -> ProgressReport:
    """Validate the arguments of `report_progress`. Raises `RejectedError`, which names the field."""
    try:
        report = ProgressReport.model_validate(args)
    except ValidationError as error:
        raise rejection_for(error) from None
    if not report.model_fields_set:
        raise RejectedError("invalid", "Give at least one of message, percent and findings.")
    return report
