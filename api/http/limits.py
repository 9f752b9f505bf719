"""How much one caller may ask for: requests a second, and event streams at once (API-4).

A bucket has a token for each request; it fills up steadily and holds a burst. Buckets are in the memory of a gateway,
so several gateways together allow that many times as much. Without authentication everybody is the same caller, and a
limit applies only if it is set. Libraries such as `limits` count in windows: they have no burst, and no exact
`Retry-After`.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qs

import anyio
from cachetools import LRUCache
from fastapi import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnkeeper.api.callers import LOCAL, Caller, caller_of
from turnkeeper.api.changes import ChangeObserver, Refusal
from turnkeeper.api.http.origin_check import EXEMPT_PATHS
from turnkeeper.api.http.problem_responses import problem_response
from turnkeeper.api.problems import LimitName, ProblemError, problem
from turnkeeper.api.roles import MAX_BODY_BYTES, requested_route
from turnkeeper.models.settings.settings import Settings

DEFAULTS: dict[LimitName, float] = {
    "rate_limit": 50.0,
    "prompt_rate_limit": 120.0,
    "max_streams_per_key": 100,
    "max_open_sessions": 10_000,
}
"""With authentication, unless they are set."""

BURST_SECONDS = 4
"""A caller who was silent may send this many seconds' requests at once."""

MAX_BUCKETS = 10_000

STREAM_RETRY_SECONDS = 5
"""When to try again while there are too many streams: nobody knows when one of them ends."""

_STRANGER = Caller("", "", None, "reader")
"""Has the limits of callers with a credential."""

_WAITS = frozenset({"wait", "wait_seconds"})

Clock = Callable[[], float]


def limit_of(settings: Settings, name: LimitName, caller: Caller) -> float:
    """Return the limit that applies to `caller`; infinity: none."""
    configured: float | None = getattr(settings, name)
    if configured is not None:
        return configured
    return math.inf if caller.id == LOCAL.id else DEFAULTS[name]


@dataclass
class _Bucket:
    tokens: float
    filled_at: float


class TokenBuckets:
    """Buckets by key. An idle key's bucket is full, so the oldest are dropped first."""

    def __init__(self, *, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._buckets = LRUCache[str, _Bucket](maxsize=MAX_BUCKETS)

    def seconds_to_wait(self, key: str, *, rate: float, burst: float) -> float:
        """Take a token and return 0, or return the seconds until there is one. `rate`: tokens a second.

        >>> now = 0.0
        >>> buckets = TokenBuckets(clock=lambda: now)
        >>> [buckets.seconds_to_wait("key:a", rate=2, burst=2) for _ in range(3)]
        [0.0, 0.0, 0.5]
        >>> now = 0.5
        >>> buckets.seconds_to_wait("key:a", rate=2, burst=2), buckets.seconds_to_wait("key:b", rate=2, burst=2)
        (0.0, 0.0)
        """
        now = self._clock()
        bucket = self._buckets.get(key) or _Bucket(burst, now)
        self._buckets[key] = bucket
        bucket.tokens = min(burst, bucket.tokens + (now - bucket.filled_at) * rate)
        bucket.filled_at = now
        if bucket.tokens >= 1:
            bucket.tokens -= 1
            return 0.0
        return (1 - bucket.tokens) / rate


class RequestRates:
    """How many requests each caller has sent lately, and on open routes each address without a valid credential."""

    def __init__(self, settings: Settings, *, clock: Clock = time.monotonic) -> None:
        self._settings = settings
        self._buckets = TokenBuckets(clock=clock)

    def check(self, caller: Caller | None, *, address: str = "") -> None:
        """Count a request of `caller`; `None`: of somebody at `address`. Raises `ProblemError` 429 beyond the rate."""
        rate = limit_of(self._settings, "rate_limit", caller or _STRANGER)
        if rate == math.inf:
            return
        key = caller.id if caller else f"address:{address}"
        seconds = self._buckets.seconds_to_wait(key, rate=rate, burst=max(1, BURST_SECONDS * rate))
        if seconds:
            detail = f"The limit rate_limit is {rate:,g} requests a second. Try again in {math.ceil(seconds)} s."
            raise problem("rate-limited", detail, limit="rate_limit", retry_after=math.ceil(seconds), caller=caller)


class RateLimitMiddleware:
    """Rejects requests beyond the caller's rate, and streams beyond the caller's number (429)."""

    def __init__(
        self, app: ASGIApp, *, observers: Sequence[ChangeObserver], settings: Settings, rates: RequestRates
    ) -> None:
        self._app = app
        self._observers = observers
        self._settings = settings
        self._rates = rates
        self._streams = Counter[str]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in EXEMPT_PATHS:
            await self._app(scope, receive, send)
            return
        caller, is_stream = caller_of(scope), holds_connection(scope)
        if caller is None:  # an open route; those that ask for a credential count by themselves
            await self._app(scope, receive, send)
            return
        try:
            self._check(caller, is_stream=is_stream)
        except ProblemError as error:
            route = requested_route(scope)
            Refusal(caller, route.name, 429, route.session_id).show(self._observers)
            await problem_response(error)(scope, receive, send)
            return
        self._streams[caller.id] += is_stream
        try:
            await self._app(scope, receive, send)
        finally:
            self._streams[caller.id] -= is_stream
            if not self._streams[caller.id]:
                del self._streams[caller.id]

    def _check(self, caller: Caller, *, is_stream: bool) -> None:
        """Count the request. Raises `ProblemError` 429."""
        self._rates.check(caller)
        streams = limit_of(self._settings, "max_streams_per_key", caller)
        if is_stream and self._streams[caller.id] >= streams:
            again = f"Close one, or try again in {STREAM_RETRY_SECONDS} s."
            detail = f"The limit max_streams_per_key is {streams:,g} streams and waiting requests at once. {again}"
            raise problem("rate-limited", detail, limit="max_streams_per_key", retry_after=STREAM_RETRY_SECONDS)


def holds_connection(scope: Scope) -> bool:
    """Return whether the request may be answered for as long as its client likes: a stream, or one that waits.

    >>> request = {"query_string": b"", "headers": []}
    >>> holds_connection(request), holds_connection({**request, "query_string": b"wait=60"})
    (False, True)
    >>> holds_connection({**request, "headers": [(b"prefer", b"wait=60")]})
    True
    """
    route = requested_route(scope).route
    is_stream = route is not None and route.is_stream
    is_wait = not _WAITS.isdisjoint(parse_qs(scope["query_string"].decode("latin-1")))
    return (
        is_stream or is_wait or any(name == b"prefer" and b"wait" in value.lower() for name, value in scope["headers"])
    )


MAX_DRAINED_BYTES = 32 * 1024 * 1024
DRAIN_SECONDS = 5.0
"""How much of a rejected body is read and discarded, and for how long."""


class BodyLimitMiddleware:
    """Rejects bodies over the limit without reading all of them.

    FastAPI's own limit has the same value, but responds in plain text.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        route = requested_route(scope).route
        max_bytes = route.max_body_bytes if route else MAX_BODY_BYTES
        if _announced_bytes(scope) > max_bytes:
            await _drain(scope, receive)
            await problem_response(problem("too-large", mib=max_bytes // 1024**2))(scope, receive, send)
        else:
            await self._app(scope, _limit_received(scope, receive, max_bytes), send)


def _announced_bytes(scope: Scope) -> int:
    length = dict(scope["headers"]).get(b"content-length", b"0")
    return int(length) if length.isdigit() else 0


async def _drain(scope: Scope, receive: Receive) -> None:
    """Read and discard the rest of a body, up to a bound.

    A client that sends everything before it reads would otherwise see a connection reset instead of the response.
    """
    if any(name == b"expect" for name, _ in scope["headers"]):
        return  # the client waits for the response before it sends
    remaining = MAX_DRAINED_BYTES
    with anyio.move_on_after(DRAIN_SECONDS):
        while remaining > 0:
            message = await receive()
            remaining -= len(message.get("body", b""))
            if not message.get("more_body"):
                return


def _limit_received(scope: Scope, receive: Receive, max_bytes: int) -> Receive:
    received = 0

    async def receive_limited() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > max_bytes:
            if message.get("more_body"):
                await _drain(scope, receive)
            raise HTTPException(413, problem("too-large", mib=max_bytes // 1024**2).problem.detail)
        return message

    return receive_limited
