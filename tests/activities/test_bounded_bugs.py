"""An unforeseen error ends a turn after a few attempts, whichever process died before (AGT-9, OPS-10)."""

import dataclasses
from typing import Any, cast

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from turnkeeper.activities.activity_context import STOPPING
from turnkeeper.activities.call_model import IndexNotes, ModelActivities
from turnkeeper.activities.failures import MAX_ATTEMPTS
from turnkeeper.activities.list_prices import ListPrices
from turnkeeper.activities.spending import Spending
from turnkeeper.models.transcript.model_call import ModelCall
from turnkeeper.stores.partials.factory import InProcessCarrier

CALL = ModelCall(turn=1, step=1, request=1, model="test", digest="d")


class Broken:
    """Stands in for the models; every call fails with `error`."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def spending(self, model: str, *, lasting_failures: dict[str, int]) -> Spending:
        return Spending(ListPrices(), model=model, lasting_failures=lasting_failures)

    async def load_request(self, number: int, *, digest: str) -> Any:
        raise self._error


async def failure_of(error: Exception, *, attempt: int) -> Exception:
    environment = ActivityEnvironment()
    environment.info = dataclasses.replace(environment.info, attempt=attempt)
    models = ModelActivities(
        cast("Any", Broken(error)),
        cast("Any", None),
        InProcessCarrier(),
        IndexNotes(cast("Any", None)),
        cast("Any", None),
    )
    with pytest.raises(Exception) as failed:  # noqa: PT011 - which one is what is tested
        await environment.run(models.call_model, CALL)
    return failed.value


async def test_agt_9_a_bug_is_retried_a_few_times_and_then_ends_the_turn() -> None:
    assert isinstance(await failure_of(ValueError("odd"), attempt=MAX_ATTEMPTS - 1), ValueError)
    last = await failure_of(ValueError("odd"), attempt=MAX_ATTEMPTS)
    assert isinstance(last, ApplicationError)
    assert (last.type, last.non_retryable) == ("ValueError", True)


async def test_ops_8_a_call_returned_by_a_stopping_worker_is_always_retried() -> None:
    given_back = await failure_of(ApplicationError("stops", type=STOPPING), attempt=500)
    assert isinstance(given_back, ApplicationError)
    assert not given_back.non_retryable
