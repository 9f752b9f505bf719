"""What is rejected before it reaches a route: foreign origins, too many requests, too large bodies (API-4).

**Origins.** Everyone who can reach the gateway may use it, and a browser on the same machine reaches it for every page
that it has open. But pages can't forge these headers. `Host` is the name in the page's own address, so a name that was
made to resolve to this machine (DNS rebinding) is still a foreign one. `Origin` and `Sec-Fetch-Site` say which page
sends the request: a browser needs no permission for a POST without a body. Programs send neither.

Without keys, a request that came through a proxy is rejected too: it may be anybody's, and looks like one from this
machine. A proxy that adds no header of its own can't be noticed.

**How much one caller may ask for:** requests a second, and event streams at once. A bucket has a token for each
request; it fills up steadily and holds a burst. Buckets are in the memory of a gateway, so several gateways together
allow that many times as much. Without authentication everybody is the same caller, and a limit applies only if it is
set. Libraries such as `limits` count in windows: they have no burst, and no exact `Retry-After`.
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
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnkeeper.api.callers import LOCAL, Caller, caller_of
from turnkeeper.api.changes import ChangeObserver, Refusal
from turnkeeper.api.http.responses import problem_response
from turnkeeper.api.problems import LimitName, ProblemError, problem
from turnkeeper.api.roles import MAX_BODY_BYTES, requested_route
from turnkeeper.models.errors import preview
from turnkeeper.models.settings.origins import Origin, is_ip_address, normal_host, origin_at, parse_origin
from turnkeeper.models.settings.settings import Settings, is_loopback

EXEMPT_PATHS = frozenset({"/healthz", "/readyz"})
"""Load balancers use a container's address as `Host`. These routes expose nothing of any session."""

POLICY_VIOLATION = 1008
"""The close code of a web socket. Before the socket is accepted, the server turns it into a 403."""

PROXY_HEADERS = (
    *("x-forwarded-for", "forwarded", "via", "x-real-ip", "x-forwarded-host", "x-forwarded-proto"),
    *("x-forwarded-server", "x-forwarded-port", "x-forwarded", "forwarded-for", "x-client-ip", "x-cluster-client-ip"),
    *("true-client-ip", "cf-connecting-ip", "fastly-client-ip", "x-envoy-external-address", "x-original-host"),
)
"""Headers that only proxies add, in lower case."""

_EVERY_ADDRESS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with, never bound to
_SAFE_METHODS = frozenset({"GET", "HEAD"})
_OWN_SITES = frozenset({"same-origin", "none"})
"""Values of `Sec-Fetch-Site` for the gateway's own page, and for addresses that a person enters."""

_HTTP_SCHEMES = {"ws": "http", "wss": "https"}
"""The scheme of the page that opens a web socket."""


class OriginCheckMiddleware:
    """Accepts requests that use one of the gateway's own names and don't come from a foreign page."""

    def __init__(self, app: ASGIApp, *, settings: Settings, accepts_proxies: bool) -> None:
        self._app = app
        public = parse_origin(settings.public_url) if settings.public_url else None
        listens_on = normal_host(settings.api_host)
        self._hosts = {listens_on, public.host if public else None, *settings.allowed_hosts} - {None}
        # A page at an IP address was served from there; only names can be made to resolve to another machine.
        self._accepts_addresses = listens_on in _EVERY_ADDRESS
        # Origins that may send requests besides the one that a request is addressed to.
        self._trusted_origins = frozenset({public}) - {None}
        self._accepts_proxies = accepts_proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or (error := self._problem_with(scope)) is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": ""})
        else:
            await problem_response(error)(scope, receive, send)

    def _problem_with(self, scope: Scope) -> ProblemError | None:
        if scope["path"] in EXEMPT_PATHS:
            return None
        headers = Headers(scope=scope)
        if not self._accepts_proxies and (header := next((name for name in PROXY_HEADERS if name in headers), None)):
            return problem("proxied", header=header)
        scheme: str = scope["scheme"]
        hosts = headers.getlist("host")
        if len(hosts) != 1:
            return problem("foreign-host", host="a request without exactly one Host header")
        address = origin_at(_HTTP_SCHEMES.get(scheme, scheme), hosts[0])
        if address is None or not self._is_own_host(address.host):
            return problem("foreign-host", host=f"the host {preview(hosts[0])}")
        if self._is_sent_by_a_foreign_page(scope, headers, address):
            origin = headers.get("origin")
            page = "A web page of another site" if origin is None else f"A web page of {preview(origin)}"
            return problem("foreign-origin", page=page)
        return None

    def _is_own_host(self, host: str) -> bool:
        return is_loopback(host) or host in self._hosts or (self._accepts_addresses and is_ip_address(host))

    def _is_sent_by_a_foreign_page(self, scope: Scope, headers: Headers, address: Origin) -> bool:
        origins, sites = headers.getlist("origin"), headers.getlist("sec-fetch-site")
        senders = {parse_origin(origin) for origin in origins}
        if senders and senders <= self._trusted_origins:
            return False
        is_foreign_site = not _OWN_SITES.issuperset(sites)
        if scope.get("method") in _SAFE_METHODS:
            # A foreign page can't read the response, but could detect whether a session exists, and hold streams open.
            # Links from other sites to the chat page are allowed.
            return is_foreign_site and headers.get("sec-fetch-dest", "document") != "document"
        return is_foreign_site or not senders <= {address}


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
