"""The one judgement of a model's failures: AGT-9."""

from datetime import timedelta

import pytest
from temporalio.exceptions import ActivityError, ApplicationError, RetryState, TimeoutType
from temporalio.exceptions import TimeoutError as TemporalTimeout

from turnkeeper.activities.failures import MAX_WAIT, MAX_WAITS, describe_failure, judge
from turnkeeper.activities.providers.protocol import ModelError, VendorRefusal
from turnkeeper.activities.running_activity import WORKER_DIED
from turnkeeper.models.errors import RETRYABLE
from turnkeeper.models.transcript.model_call import ModelCallOutcome
from turnkeeper.workflows.activity_options import MODEL_RETRIES


@pytest.mark.parametrize("error_type", sorted(RETRYABLE))
def test_agt_9_a_passing_failure_is_retried_by_temporal_with_growing_delays(error_type: str) -> None:
    delays = []
    for attempt in range(1, 5):
        with pytest.raises(ApplicationError) as raised:
            judge(ModelError(error_type, "later"), attempt=attempt, vendor_waits=0)
        assert not raised.value.non_retryable
        assert raised.value.type == error_type
        delays.append(raised.value.next_retry_delay)
    assert delays == [timedelta(seconds=seconds) for seconds in (0.5, 1, 2, 4)]


@pytest.mark.parametrize("error_type", ["auth", "not_found", "bad_request", "quota", "refusal", "too_large"])
def test_agt_9_a_lasting_failure_is_not_retried(error_type: str) -> None:
    with pytest.raises(ApplicationError) as raised:
        judge(ModelError(error_type, "never", retry_after=1), attempt=1, vendor_waits=0)
    assert raised.value.non_retryable


def test_agt_9_a_storm_is_waited_out_by_the_workflow_longer_each_time() -> None:
    error = ModelError("overloaded", "busy")
    waits = [judge(error, attempt=5, vendor_waits=vendor_waits).wait_seconds or 0 for vendor_waits in range(MAX_WAITS)]
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (8, MAX_WAIT)
    with pytest.raises(ApplicationError) as raised:
        judge(error, attempt=5, vendor_waits=MAX_WAITS)
    assert raised.value.non_retryable


@pytest.mark.parametrize(("retry_after", "wait"), [(5.1, 5.1), (30, 30), (86_400, MAX_WAIT)])
def test_agt_9_a_long_retry_after_is_waited_out_by_the_workflow_capped(retry_after: float, wait: float) -> None:
    judged = judge(ModelError("rate_limited", "later", retry_after=retry_after), attempt=1, vendor_waits=0)
    reason = "The model's provider is limiting requests: later."
    assert judged == ModelCallOutcome(wait_seconds=wait, wait_reason=reason)


def test_agt_9_a_short_retry_after_is_temporals() -> None:
    with pytest.raises(ApplicationError) as raised:
        judge(ModelError("rate_limited", "later", retry_after=2), attempt=4, vendor_waits=0)
    assert raised.value.next_retry_delay == timedelta(seconds=2)


@pytest.mark.parametrize("retry_after", [0, 2, 5, 30])
def test_agt_9_a_storm_is_waited_out_by_the_workflow_whatever_short_time_the_vendor_names(retry_after: float) -> None:
    error = ModelError("rate_limited", "later", retry_after=retry_after)
    waits = [judge(error, attempt=5, vendor_waits=vendor_waits).wait_seconds for vendor_waits in range(3)]
    assert waits == [max(8, retry_after), max(16, retry_after), max(32, retry_after)]


def test_agt_9_temporals_attempts_last_until_the_workflow_takes_over() -> None:
    assert MODEL_RETRIES.maximum_attempts == 0  # a worker's death doesn't count as an attempt (OPS-10)


@pytest.mark.parametrize("error_type", ["auth", "quota"])
def test_agt_9_a_wrong_key_and_an_empty_account_are_not_retried_whatever_the_vendor_says(error_type: str) -> None:
    with pytest.raises(ApplicationError) as raised:
        judge(ModelError(error_type, "never", should_retry=True, retry_after=1), attempt=1, vendor_waits=0)
    assert raised.value.non_retryable


@pytest.mark.parametrize("attempt", [1, 3, 4])
@pytest.mark.parametrize("unclear", [1, 2, 3, 4])
def test_agt_9_an_unclear_answer_is_final_after_so_many_of_its_kind_whatever_else_has_failed(
    attempt: int, unclear: int
) -> None:
    with pytest.raises(ApplicationError) as raised:
        judge(ModelError("provider_error", "odd", max_attempts=3), attempt=attempt, vendor_waits=0, unclear=unclear)
    assert raised.value.non_retryable is (unclear >= 3)


@pytest.mark.parametrize(("word", "error_type", "retried"), [(True, "bad_request", True), (False, "overloaded", False)])
def test_agt_9_the_vendors_own_word_on_retrying_counts(word: bool, error_type: str, retried: bool) -> None:
    with pytest.raises(ApplicationError) as raised:
        judge(ModelError(error_type, "?", should_retry=word), attempt=1, vendor_waits=0)
    assert raised.value.non_retryable is not retried


def test_agt_9_a_request_that_is_too_long_is_returned_as_a_value() -> None:
    error = ModelError("context_too_long", "?")
    assert judge(error, attempt=1, vendor_waits=0) == ModelCallOutcome(repeat="context_too_long")


@pytest.mark.parametrize(
    ("status", "is_unexplained", "is_largest", "repeat"),
    [
        (400, True, True, "maybe_too_long"),
        (422, True, True, "maybe_too_long"),
        (415, True, True, None),
        (400, False, True, None),  # a part of it is blamed
        (400, True, False, None),  # a request of this length was accepted
    ],
)
def test_agt_9_only_the_largest_request_is_tried_as_too_long(
    status: int, is_unexplained: bool, is_largest: bool, repeat: str | None
) -> None:
    error = ModelError("bad_request", "?", refusal=VendorRefusal(status, "?"))
    error.is_unexplained = is_unexplained
    if repeat:
        outcome = judge(error, attempt=1, vendor_waits=0, may_be_too_long=is_largest)
        assert outcome == ModelCallOutcome(repeat=repeat)
    else:
        with pytest.raises(ApplicationError):
            judge(error, attempt=1, vendor_waits=0, may_be_too_long=is_largest)


def failed(cause: BaseException) -> ActivityError:
    error = ActivityError(
        "failed",
        scheduled_event_id=1,
        started_event_id=2,
        identity="w",
        activity_type="call_model",
        activity_id="1",
        retry_state=RetryState.MAXIMUM_ATTEMPTS_REACHED,
    )
    error.__cause__ = cause
    return error


def test_agt_9_a_failed_turn_says_what_happened_in_a_sentence() -> None:
    error = failed(ApplicationError("the key was revoked", type="auth"))
    sentence = "The model's provider did not accept the credentials: the key was revoked."
    assert describe_failure(error) == ("auth", sentence)
    slow = failed(TemporalTimeout("t", type=TimeoutType.START_TO_CLOSE, last_heartbeat_details=[]))
    assert describe_failure(slow) == ("timeout", "The model did not answer in time.")


def test_ops_10_a_worker_that_died_is_one_failure_however_it_was_noticed() -> None:
    by_supervisor = failed(ApplicationError("The worker died while it ran this.", type=WORKER_DIED))
    by_temporal = failed(TemporalTimeout("t", type=TimeoutType.HEARTBEAT, last_heartbeat_details=[]))
    assert describe_failure(by_supervisor) == describe_failure(by_temporal)
    assert describe_failure(by_supervisor)[1].startswith("The worker died while the model was answering")


def test_ses_1_a_bug_in_an_activity_shows_no_internals() -> None:
    error_type, sentence = describe_failure(failed(ApplicationError("KeyError: 'sk-secret'", type="KeyError")))
    assert error_type == "internal"
    assert "secret" not in sentence


def test_ops_10_workers_that_died_make_a_vendor_s_failure_no_longer_wait() -> None:
    error = ModelError("overloaded", "busy")
    assert judge(error, attempt=500, vendor_waits=0) == judge(error, attempt=8, vendor_waits=0)
