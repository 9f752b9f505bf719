"""Partial answer and usage of a failed model call (SES-9, AGT-9)."""

from collections.abc import Sequence
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.exceptions import TimeoutError as ActivityTimeout

with workflow.unsafe.imports_passed_through():
    from pydantic import ValidationError

    from turnkeeper.activities.failures import is_reported_death
    from turnkeeper.models.transcript.model_call import ModelResponse, Spent
    from turnkeeper.models.transcript.partial_output import PartialOutput, unfinished_answer
    from turnkeeper.models.transcript.trajectory import Usage


def unfinished_response(error: ActivityError, *, model: str, max_bytes: int) -> ModelResponse | None:
    """Return what the last attempt of a model call had written; `None` if nothing, or unknown.

    If the worker reported the failure, it is in the failure's details. If Temporal or the supervisor ended the call, it
    is the last snapshot from the heartbeats. A workflow can't write to the store, so its texts are cut to `max_bytes`
    of JSON together.
    """
    cause = error.cause
    try:
        if isinstance(cause, ApplicationError) and not is_reported_death(cause) and cause.details:
            return ModelResponse.model_validate(cause.details[0])
        if snapshot := _last_heartbeat(cause)[:1]:
            parts = PartialOutput.model_validate(snapshot[0]).parts
            return unfinished_answer(parts, model=model, max_bytes=max_bytes // 2)
    except ValidationError:
        return None  # details of something else, or of another version
    return None


def spent_usage(error: ActivityError) -> Usage | None:
    """Return the usage of a failed call's attempts; `None` if nothing, or unknown (AGT-9)."""
    cause = error.cause
    details = cause.details if isinstance(cause, ApplicationError) and not is_reported_death(cause) else ()
    try:
        reports = [*details[1:2], *_last_heartbeat(cause)[1:2]]
        return Spent.model_validate(reports[0]).usage if reports else None
    except ValidationError:
        return None


def _last_heartbeat(cause: BaseException | None) -> Sequence[Any]:
    """Return the details of the last heartbeat, if a timeout or the supervisor ended the call."""
    while cause is not None:
        if isinstance(cause, ActivityTimeout) and cause.last_heartbeat_details:
            return cause.last_heartbeat_details
        if is_reported_death(cause) and cause.details:
            return cause.details
        cause = cause.__cause__
    return ()
