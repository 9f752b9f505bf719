"""What the attempts of one activity took that gave no whole answer of the model (AGT-9).

Theory of operation. Temporal makes the attempts, and tells each of them what the heartbeats of the one before carried.
So heartbeats carry the sum so far, behind the partial output, and an attempt begins with the sum of those before it. An
attempt that fails sends it with a last heartbeat; of one whose worker died, the newest heartbeat is what is known. The
workflow is told with the activity's outcome or its failure. How many answers were unclear travels the same way.

To measure a request and to price what it took is work for the event loop that all sessions share. So it is done for the
heartbeats of the timer and at an attempt's end; those that show what is written, several a second, repeat the last sum.
"""

from collections.abc import Sequence
from typing import Protocol

from pydantic import ValidationError
from temporalio import activity

from turnkeeper.activities.providers.meter import Meter
from turnkeeper.activities.providers.protocol import ModelError
from turnkeeper.models.context.request_size import request_tokens
from turnkeeper.models.transcript.model_call import ModelRequest, ModelResponse, Spent
from turnkeeper.models.transcript.trajectory import Usage


class PriceList(Protocol):
    """Knows what models cost; the worker's composition root injects one."""

    def priced(self, response: ModelResponse, *, model: str) -> ModelResponse:
        """Return the response of `model` with its cost in `usage`, where that is known (AGT-10)."""
        ...


class Spending:
    """What has been spent in vain by the attempts of the running activity, this one included."""

    def __init__(self, prices: PriceList, *, model: str, unclear_answers: int = 0) -> None:
        """Begin an attempt that asks `model`, with what those before it have spent.

        `unclear_answers` were so before this activity.
        """
        before = _of_heartbeat(activity.info().heartbeat_details)
        self._prices = prices
        self._model = model
        self._earlier = before.usage
        self._last_sum = before.usage
        self._request: ModelRequest | None = None
        self._input_tokens: int | None = None
        self._meter = Meter()
        self._whole = Meter()
        self.unclear_answers = max(unclear_answers, before.unclear_answers)
        """Answers to the same request that nobody could read, or of which nobody knew whether they were whole."""

    def begin(self, request: ModelRequest) -> Meter:
        """Return the meter of a request that is sent now; what was sent before it was spent in vain."""
        self._earlier, self._meter, self._whole = self.total, Meter(), Meter()
        self._request, self._input_tokens = request, None
        return self._meter

    def note_whole_answer(self) -> None:
        """Note that the answer is whole: it has a usage of its own."""
        self._whole, self._meter = self._meter, Meter()
        self._whole.has_begun = True

    def note_failure(self, error: ModelError) -> None:
        self.unclear_answers += error.max_attempts is not None

    def add(self, usage: Usage | None) -> None:
        """Count the whole answer, which can't be kept, as spent in vain; estimated where its `usage` is not known."""
        self._earlier = _add_usage(self._earlier, usage or self._measure(self._whole))

    @property
    def total(self) -> Usage | None:
        """What was spent in vain so far, with its cost where the price is known; `None`: nothing."""
        return _add_usage(self._earlier, self._measure(self._meter))

    def is_over(self, *, tokens_left: int | None, cost_left: float | None) -> bool:
        """Return whether more was spent in vain than what the turn may still take."""
        total = self.total or Usage()
        if tokens_left is not None and total.tokens > tokens_left:
            return True
        return cost_left is not None and (total.cost or 0) > cost_left

    def heartbeat_details(self, shown: Sequence[object]) -> Sequence[object]:
        """Return what a heartbeat carries: the partial output that is `shown`, if any, and what was spent."""
        self._last_sum = self.total
        report = self.last_report()
        return (*(shown or (None,)), *report) if report else shown

    def last_report(self) -> Sequence[Spent]:
        """Return what was spent as it was last summed up, for heartbeats that come too often to sum up anew."""
        spent = Spent(usage=self._last_sum, unclear_answers=self.unclear_answers)
        return () if spent == Spent() else (spent,)

    def _measure(self, meter: Meter) -> Usage | None:
        """Return what the request under way has taken by its `meter`."""
        if self._request is None or not (meter.has_begun or meter.usage_so_far):
            return None
        if self._input_tokens is None:
            self._input_tokens = request_tokens(self._request)
        usage = meter.usage(input_tokens=self._input_tokens)
        return self._prices.priced(ModelResponse(usage=usage, model=""), model=self._model).usage


def _add_usage(one: Usage | None, other: Usage | None) -> Usage | None:
    return one + other if one and other else one or other


def _of_heartbeat(details: Sequence[object]) -> Spent:
    """Return what the attempts before this one have spent, as the newest heartbeat of the last one says."""
    try:
        return Spent.model_validate(details[1]) if len(details) > 1 else Spent()
    except ValidationError:
        return Spent()  # of another release
