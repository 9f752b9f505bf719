"""The arguments of `run_task` and `report_progress` (TSK-4, TSK-5)."""

from pydantic import ValidationError

from turnkeeper.models.errors import RejectedError
from turnkeeper.models.session.queue.prompts import rejection_for
from turnkeeper.models.session.task import TaskRequest
from turnkeeper.models.session.tasks.task_state import ProgressReport


class RunTask(TaskRequest):
    """Arguments of `run_task`. With `background`, the caller does not wait for the answer."""

    background: bool = False


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
