"""What a model call that failed still tells of the answer that it was given (SES-9)."""

from collections.abc import Iterator
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.exceptions import TimeoutError as ActivityTimeout

with workflow.unsafe.imports_passed_through():
    from pydantic import ValidationError

    from models.model_call import ModelResponse
    from models.partial_output import PartialOutput
    from models.unfinished import unfinished_answer


def unfinished_of(error: ActivityError, *, model: str, max_bytes: int) -> ModelResponse | None:
    """Return what the last attempt of a model call had written; `None` where that is nothing, or not known.

    Where the worker judged the failure, the failure has it as its detail. Where Temporal ended the call (the turn's
    time was over, or the worker died), it is the last snapshot that was shown by heartbeats. The workflow can't put
    its texts into the store, so they are cut to `max_bytes` of JSON together.
    """
    cause = error.cause
    try:
        if isinstance(cause, ApplicationError) and cause.details:
            return ModelResponse.model_validate(cause.details[0])
        for snapshot in _snapshots(cause):
            parts = PartialOutput.model_validate(snapshot).parts
            return unfinished_answer(parts, model=model, max_bytes=max_bytes // 2)
    except ValidationError:
        return None  # details of something else, or of another release
    return None


def _snapshots(cause: BaseException | None) -> Iterator[Any]:
    """Yield what the last heartbeat carried, if a timeout says so."""
    while cause is not None:
        if isinstance(cause, ActivityTimeout):
            yield from cause.last_heartbeat_details
        cause = cause.__cause__
