"""The result of a tool call whose activity failed, by cause (AGT-7)."""

import pytest
from temporalio.exceptions import ActivityError, ApplicationError, RetryState, TimeoutType
from temporalio.exceptions import TimeoutError as ActivityTimeout

from turnkeeper.activities.failures import WORKER_DIED
from turnkeeper.workflows.turn.tool_calls import _result_of_failure


def failed(cause: Exception, *, has_started: bool = True) -> ActivityError:
    error = ActivityError(
        "the activity failed",
        scheduled_event_id=5,
        started_event_id=6 if has_started else 0,
        identity="w",
        activity_type="call_tool",
        activity_id="1",
        retry_state=RetryState.TIMEOUT,
    )
    error.__cause__ = cause
    return error


def timeout(kind: TimeoutType) -> ActivityTimeout:
    return ActivityTimeout("too late", type=kind, last_heartbeat_details=[])


DEATHS = [timeout(TimeoutType.HEARTBEAT), ApplicationError("died", type=WORKER_DIED)]


@pytest.mark.parametrize(
    ("error", "why"),
    [
        *((failed(death), "its worker died while it ran") for death in DEATHS),
        (failed(timeout(TimeoutType.START_TO_CLOSE)), "it did not finish in time"),
        (failed(timeout(TimeoutType.SCHEDULE_TO_CLOSE)), "it did not finish in time"),
        (failed(ApplicationError("a bug", type="KeyError")), "the worker failed while it ran"),
    ],
)
def test_agt_7_a_lost_call_explains_why_and_whether_it_may_have_taken_effect(error: ActivityError, why: str) -> None:
    repeatable = _result_of_failure("pay", error, repeatable=True)
    assert (repeatable.status, repeatable.outcome) == ("error", f"pay failed: {why}")
    at_most_once = _result_of_failure("pay", error, repeatable=False)
    assert at_most_once.status == "outcome_unknown"
    assert at_most_once.outcome == f"Outcome unknown: pay was started, but {why}"


@pytest.mark.parametrize("kind", [TimeoutType.SCHEDULE_TO_START, TimeoutType.SCHEDULE_TO_CLOSE])
def test_agt_7_a_call_that_no_worker_started_certainly_had_no_effect(kind: TimeoutType) -> None:
    result = _result_of_failure("pay", failed(timeout(kind), has_started=False), repeatable=False)
    assert (result.status, result.outcome) == ("error", "pay was not started: no worker was free in time")
