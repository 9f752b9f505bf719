"""What the attempts of one activity took that gave no whole answer of the model (AGT-9).

Theory of operation. Temporal makes the attempts, and tells each of them what the heartbeats of the one before carried.
So heartbeats carry the sum so far, behind the partial output, and an attempt begins with the sum of those before it. An
attempt that fails sends it with a last heartbeat; of one whose worker died, the newest heartbeat is what is known. The
workflow is told with the activity's outcome or its failure.
"""

from collections.abc import Sequence
from typing import Protocol

from pydantic import ValidationError
from temporalio import activity

from turnkeeper.activities.providers.meter import Meter
from turnkeeper.models.context.request_size import request_tokens
from turnkeeper.models.transcript.model_call import ModelRequest, ModelResponse, Spent
from turnkeeper.models.transcript.trajectory import Usage


class PriceList(Protocol):
    """Knows what models cost; the worker's composition root injects one."""

    def priced(self, response: ModelResponse, *, asked: str) -> ModelResponse:
        """Return the response of the model `asked` with its cost in `usage`, where that is known (AGT-10)."""
        ...


class Spending:
    """What has been spent in vain by the attempts of the running activity, this one included."""

    def __init__(self, prices: PriceList, *, model: str) -> None:
        """Begin an attempt that asks `model`, with what those before it have spent."""
        self._prices = prices
        self._model = model
        self._earlier = _of_heartbeat(activity.info().heartbeat_details)
        self._request: ModelRequest | None = None
        self._input_tokens: int | None = None
        self._meter = Meter()

    def begin(self, request: ModelRequest) -> Meter:
        """Return the meter of a request that is sent now; what was sent before it was spent in vain."""
        self._earlier, self._meter = self.total, Meter()
        self._request, self._input_tokens = request, None
        return self._meter

    def answered(self) -> None:
        """Note that the answer is whole: it has a usage of its own."""
        self._meter = Meter()

    def add(self, usage: Usage | None) -> None:
        """Count a whole answer that can't be kept as spent in vain."""
        self._earlier = _sum(self._earlier, usage)

    @property
    def total(self) -> Usage | None:
        """What was spent in vain so far, with its cost where the price is known; `None`: nothing."""
        return _sum(self._earlier, self._present())

    def is_over(self, *, tokens_left: int | None, cost_left: float | None) -> bool:
        """Return whether more was spent in vain than what the turn may still take."""
        total = self.total or Usage()
        if tokens_left is not None and total.tokens > tokens_left:
            return True
        return cost_left is not None and (total.cost or 0) > cost_left

    def behind(self, shown: Sequence[object]) -> Sequence[object]:
        """Return what a heartbeat carries: the partial output that is `shown`, if any, and what was spent."""
        total = self.total
        if total is None:
            return shown
        return (*(shown or (None,)), Spent(usage=total))

    def _present(self) -> Usage | None:
        """Return what the request under way has taken so far."""
        if self._request is None or not (self._meter.has_begun or self._meter.counted):
            return None
        if self._input_tokens is None:  # measured once, and for hardly any request
            self._input_tokens = request_tokens(self._request)
        usage = self._meter.usage(input_tokens=self._input_tokens)
        return self._prices.priced(ModelResponse(usage=usage, model=""), asked=self._model).usage


def _sum(one: Usage | None, other: Usage | None) -> Usage | None:
    return one + other if one and other else one or other


def _of_heartbeat(details: Sequence[object]) -> Usage | None:
    """Return what the attempts before this one have spent, as the newest heartbeat of the last one says."""
    try:
        return Spent.model_validate(details[1]).usage if len(details) > 1 else None
    except ValidationError:
        return None  # of another release
