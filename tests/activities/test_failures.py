"""The one judgement of a model's failures: AGT-9."""

from datetime import timedelta

import pytest
from temporalio.exceptions import ActivityError, ApplicationError, RetryState, TimeoutType
from temporalio.exceptions import TimeoutError as TemporalTimeout

from turnkeeper.activities.failures import (
    MAX_FAILURES,
    MAX_SAME_FAILURES,
    MAX_WAIT,
    WORKER_DIED,
    describe_failure,
    judge,
    raise_if_retried_soon,
)
from turnkeeper.activities.providers.protocol import ModelError, VendorRefusal
from turnkeeper.models.errors import RETRYABLE
from turnkeeper.models.transcript.model_call import ModelCallOutcome
from turnkeeper.workflows.activity_options import MODEL_RETRIES


@pytest.mark.parametrize("error_type", sorted(RETRYABLE))
def test_agt_9_a_transient_failure_is_retried_with_growing_delays(error_type: str) -> None:
    error = ModelError(error_type, "later")
    waits = [judge(error, failures=failures) for failures in range(MAX_FAILURES)]
    seconds = [wait.wait_seconds or 0 for wait in waits]
    assert seconds[:3] == [0.5, 0.75, 1.125]
    assert seconds == sorted(seconds)
    assert 48 * 60 < sum(seconds) < 60 * 60, "patience for an outage of the usual kind"
    assert sum(seconds[:10]) < 60, "a recovery within the first minute is noticed soon"
    assert seconds[-1] == MAX_WAIT
    assert {(wait.wait_type, bool(wait.wait_reason)) for wait in waits} == {(error_type, True)}
    with pytest.raises(ApplicationError) as raised:
        judge(error, failures=MAX_FAILURES)
    assert (raised.value.non_retryable, raised.value.message) == (True, "later")


@pytest.mark.parametrize("error_type", ["auth", "not_found", "bad_request", "quota", "refusal", "too_large"])
def test_agt_9_a_lasting_failure_is_not_retried(error_type: str) -> None:
    with pytest.raises(ApplicationError) as raised:
        judge(ModelError(error_type, "never", retry_after=1), failures=0)
    assert raised.value.non_retryable


@pytest.mark.parametrize(("retry_after", "wait"), [(0, 0), (2, 2), (5.1, 5.1), (30, 30), (86_400, MAX_WAIT)])
def test_agt_9_the_workflow_waits_for_retry_after_up_to_a_limit(retry_after: float, wait: float) -> None:
    judged = judge(ModelError("rate_limited", "later", retry_after=retry_after), failures=0)
    reason = "The model's provider is limiting requests: later."
    assert judged == ModelCallOutcome(wait_seconds=wait, wait_reason=reason, wait_type="rate_limited")


@pytest.mark.parametrize("retry_after", [0, 3, 5, 30])
def test_agt_9_an_outage_is_retried_even_if_the_vendor_names_a_short_time(retry_after: float) -> None:
    error = ModelError("rate_limited", "later", retry_after=retry_after)
    waits = [judge(error, failures=failures).wait_seconds for failures in (3, 4, 9)]
    assert waits == [retry_after, max(2.53125, retry_after), pytest.approx(max(19.22, retry_after), abs=0.01)]


def test_agt_9_temporal_retries_a_model_call_as_long_as_the_turn_has_time() -> None:
    assert MODEL_RETRIES.maximum_attempts == 0  # a worker's death doesn't count as an attempt (OPS-10)


@pytest.mark.parametrize("error_type", ["auth", "quota"])
def test_agt_9_a_wrong_key_or_an_empty_account_is_never_retried(error_type: str) -> None:
    with pytest.raises(ApplicationError) as raised:
        judge(ModelError(error_type, "never", should_retry=True, retry_after=1), failures=0)
    assert raised.value.non_retryable


@pytest.mark.parametrize("failures", [0, 2, 3, 9])
@pytest.mark.parametrize("same", [1, 2, 3, 4])
def test_agt_9_the_same_failure_three_times_is_final_despite_others_in_between(failures: int, same: int) -> None:
    error = ModelError("provider_error", "Acme says “odd”", lasting="odd")
    if same < MAX_SAME_FAILURES:
        assert judge(error, failures=failures, same=same).wait_type == "provider_error"
        return
    with pytest.raises(ApplicationError) as raised:
        judge(error, failures=failures, same=same)
    assert (raised.value.non_retryable, raised.value.message) == (True, f"Acme says “odd”, {same} times")


@pytest.mark.parametrize(("word", "error_type", "retried"), [(True, "bad_request", True), (False, "overloaded", False)])
def test_agt_9_the_vendors_should_retry_header_decides(word: bool, error_type: str, retried: bool) -> None:
    error = ModelError(error_type, "?", should_retry=word)
    if retried:
        assert judge(error, failures=0).wait_seconds == 0.5
        return
    with pytest.raises(ApplicationError) as raised:
        judge(error, failures=0)
    assert raised.value.non_retryable


def test_agt_9_a_context_overflow_is_returned_as_a_value() -> None:
    error = ModelError("context_too_long", "?")
    assert judge(error, failures=0) == ModelCallOutcome(repeat="context_too_long")


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
def test_agt_9_only_the_largest_request_is_retried_as_too_long(
    status: int, is_unexplained: bool, is_largest: bool, repeat: str | None
) -> None:
    error = ModelError("bad_request", "?", refusal=VendorRefusal(status, "?"))
    error.is_unexplained = is_unexplained
    if repeat:
        outcome = judge(error, failures=0, may_be_too_long=is_largest)
        assert outcome == ModelCallOutcome(repeat=repeat)
    else:
        with pytest.raises(ApplicationError):
            judge(error, failures=0, may_be_too_long=is_largest)


@pytest.mark.parametrize(
    ("error", "attempt", "same", "delay"),
    [
        (ModelError("overloaded", "busy"), 1, 0, 0.5),
        (ModelError("overloaded", "busy"), 2, 0, 0.75),
        (ModelError("overloaded", "busy", retry_after=60), 1, 0, None),
        (ModelError("provider_error", "odd", lasting="odd"), 2, 2, 0.75),
        (ModelError("provider_error", "odd", lasting="odd"), 3, 3, None),
        (ModelError("auth", "no key"), 1, 0, None),
        (ModelError("context_too_long", "?"), 1, 0, None),
    ],
)
def test_ctx_5_a_summary_is_retried_only_after_short_waits(
    error: ModelError, attempt: int, same: int, delay: float | None
) -> None:
    raised = None
    try:
        raise_if_retried_soon(error, attempt=attempt, same=same)
    except ApplicationError as failure:
        raised = failure.next_retry_delay
    assert raised == (None if delay is None else timedelta(seconds=delay))


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


def test_agt_9_a_failed_turn_has_a_one_sentence_explanation() -> None:
    error = failed(ApplicationError("the key was revoked", type="auth"))
    sentence = "The model's provider did not accept the credentials: the key was revoked."
    assert describe_failure(error) == ("auth", sentence)
    slow = failed(TemporalTimeout("t", type=TimeoutType.START_TO_CLOSE, last_heartbeat_details=[]))
    assert describe_failure(slow) == ("timeout", "The model did not answer in time.")


def test_ops_10_a_dead_worker_is_reported_the_same_however_it_was_noticed() -> None:
    by_supervisor = failed(ApplicationError("The worker died while it ran this.", type=WORKER_DIED))
    by_temporal = failed(TemporalTimeout("t", type=TimeoutType.HEARTBEAT, last_heartbeat_details=[]))
    assert describe_failure(by_supervisor) == describe_failure(by_temporal)
    assert describe_failure(by_supervisor)[1].startswith("The worker died while the model was answering")


def test_ses_1_a_bug_in_an_activity_shows_no_internals() -> None:
    error_type, sentence = describe_failure(failed(ApplicationError("KeyError: 'sk-secret'", type="KeyError")))
    assert error_type == "internal"
    assert "secret" not in sentence
