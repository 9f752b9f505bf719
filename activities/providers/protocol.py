"""The one small protocol behind every model (AGT-4).

A provider turns a `ModelRequest` into a stream of `Delta`s that ends with exactly one `ModelResponse`. It raises
`ModelError` for every failure and never retries by itself: `activities/failures.py` judges, Temporal retries. (What a
vendor refuses for a parameter may be sent at once without it; the same request is never sent twice.) A stream that ends
without a `ModelResponse` was cut off and is no answer (AGT-3).
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Literal, Protocol

from turnkeeper.activities.providers.meter import Meter
from turnkeeper.models.errors import ErrorType
from turnkeeper.models.transcript.model_call import ModelRequest, ModelResponse


@dataclass(frozen=True)
class Delta:
    """A piece of the answer as it is written: more text, more thinking, or the name of a call that begins."""

    kind: Literal["think", "respond", "call"]
    text: str


@dataclass(frozen=True)
class CallContext:
    """Where a request stands. `request` counts the session's model requests from 1.

    `attempt` counts the tries of this activity from 1, `round` how often the workflow has waited this request out; a
    long wait ends the activity, and after it a new one begins at attempt 1 (AGT-9). What the answer takes is noted in
    `meter` while it comes in.
    """

    session_id: str
    request: int
    attempt: int
    round: int = 0
    meter: Meter = field(default_factory=Meter, compare=False)


class ModelError(Exception):
    """A vendor's failure, already in our own terms. `message` is safe to show: no key, no prompt, no stack."""

    def __init__(
        self,
        error_type: ErrorType | Literal["stale_reasoning"],
        message: str,
        *,
        retry_after: float | None = None,
        should_retry: bool | None = None,
        parameter: str | None = None,
        vendor: str = "",
        max_attempts: int | None = None,
    ) -> None:
        """Keep the judgement; `retry_after` is in seconds, `should_retry` the vendor's own word where it gave one.

        `parameter` is what of the request the vendor blames, by its own name for it. `vendor` is who is asked, as
        sentences name it. `max_attempts` marks an unclear answer: one of which nobody knows whether it is whole, or
        that nobody can read. The failure is final once so many were unclear; `None`: as every other of its type.
        """
        super().__init__(message)
        self.error_type = error_type
        self.message = message
        self.retry_after = retry_after
        self.should_retry = should_retry
        self.parameter = parameter
        self.vendor = vendor
        self.max_attempts = max_attempts


class Provider(Protocol):
    """A source of models."""

    def stream(
        self, name: str, request: ModelRequest, context: CallContext
    ) -> AsyncGenerator[Delta | ModelResponse, None]:
        """Ask the model `name`; yield deltas, then the whole response. Raises `ModelError`."""
        ...
