"""The usage of an activity's attempts that gave no whole answer (AGT-9).

Temporal makes the attempts, and gives each the last heartbeat details of the one before. So heartbeats carry the sum so
far, after the partial output, and an attempt begins with the sum of those before it. A failing attempt sends the sum
with a last heartbeat; if the worker died, the newest heartbeat counts. The workflow gets the sum with the activity's
outcome or failure. The counts of lasting failures travel the same way.

Measuring a request and computing its price would load the event loop that all sessions share. So it is done for the
periodic heartbeats and at the end of an attempt; heartbeats with partial output, several a second, repeat the last sum.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Protocol

from pydantic import ValidationError
from temporalio import activity

from turnkeeper.activities.providers.protocol import Meter, ModelError
from turnkeeper.models.context.model_view import request_tokens
from turnkeeper.models.transcript.conversation import Usage
from turnkeeper.models.transcript.model_call import ModelRequest, ModelResponse, Spent


class PriceList(Protocol):
    """Knows what models cost. The worker's composition root injects one."""

    def priced(self, response: ModelResponse, *, model: str) -> ModelResponse:
        """Return the response of `model` with its cost in `usage`, if that is known (AGT-10)."""
        ...


class Spending:
    """The usage of the running activity's failed attempts, including this one."""

    def __init__(self, prices: PriceList, *, model: str, lasting_failures: Mapping[str, int] | None = None) -> None:
        """Begin an attempt with the sum of the attempts before it. `lasting_failures`: counts of earlier activities."""
        before = _of_heartbeat(activity.info().heartbeat_details)
        self._prices = prices
        self._model = model
        self._earlier = before.usage
        self._last_sum = before.usage
        self._request: ModelRequest | None = None
        self._input_tokens: int | None = None
        self._meter = Meter()
        self._whole = Meter()
        self.lasting_failures = {**(lasting_failures or {}), **before.lasting_failures}
        """How often each lasting failure of the request occurred, by its digest."""

    def begin(self, request: ModelRequest) -> Meter:
        """Return the meter of a request that is sent now. The usage of an earlier request counts as failed."""
        self._earlier, self._meter, self._whole = self.total, Meter(), Meter()
        self._request, self._input_tokens = request, None
        return self._meter

    def note_complete_answer(self) -> None:
        """Note that the answer is complete: its own usage counts."""
        self._whole, self._meter = self._meter, Meter()
        self._whole.has_begun = True

    def note_failure(self, error: ModelError) -> None:
        """Count a failure that may be the same each time."""
        if error.lasting:
            self.lasting_failures[_digest(error)] = self.times_failed(error) + 1

    def times_failed(self, error: ModelError) -> int:
        """Return how often the request has failed in the same way, if that may last; otherwise 0."""
        return self.lasting_failures.get(_digest(error), 0) if error.lasting else 0

    def add(self, usage: Usage | None) -> None:
        """Count a whole answer that can't be stored as failed; estimated if its `usage` is unknown."""
        self._earlier = _add_usage(self._earlier, usage or self._measure(self._whole))

    @property
    def total(self) -> Usage | None:
        """The sum so far, with its cost if the price is known; `None` if there is none."""
        return _add_usage(self._earlier, self._measure(self._meter))

    def is_over(self, *, tokens_left: int | None, cost_left: float | None, besides: Usage | None = None) -> bool:
        """Return whether the sum, with the usage of complete answers `besides`, exceeds what the turn may still use."""
        total = _add_usage(self.total, besides) or Usage()
        if tokens_left is not None and total.tokens > tokens_left:
            return True
        return cost_left is not None and (total.cost or 0) > cost_left

    def heartbeat_details(self, partial: Sequence[object]) -> Sequence[object]:
        """Return the details of a heartbeat: the partial output `partial`, if any, then the new sum."""
        self._last_sum = self.total
        report = self.last_report()
        return (*(partial or (None,)), *report) if report else partial

    def last_report(self) -> Sequence[Spent]:
        """Return the last sum, for heartbeats that are too frequent to compute it again."""
        spent = Spent(usage=self._last_sum, lasting_failures=dict(self.lasting_failures))
        return () if spent == Spent() else (spent,)

    def _measure(self, meter: Meter) -> Usage | None:
        """Return the usage of the current request, by its `meter`."""
        if self._request is None or not (meter.has_begun or meter.usage_so_far):
            return None
        if self._input_tokens is None:
            self._input_tokens = request_tokens(self._request)
        usage = meter.usage(input_tokens=self._input_tokens)
        return self._prices.priced(ModelResponse(usage=usage, model=""), model=self._model).usage


def _digest(error: ModelError) -> str:
    """Return what counts a failure without its words, which a history must not keep for each attempt."""
    return sha256(f"{error.error_type} {error.lasting}".encode()).hexdigest()[:12]


def _add_usage(one: Usage | None, other: Usage | None) -> Usage | None:
    return one + other if one and other else one or other


def _of_heartbeat(details: Sequence[object]) -> Spent:
    """Return the sum from the last heartbeat of the previous attempt."""
    try:
        return Spent.model_validate(details[1]) if len(details) > 1 else Spent()
    except ValidationError:
        return Spent()  # those of a test
