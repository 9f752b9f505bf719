"""A check on every route that rejects requests which another site's page makes a browser send (API-4).

Everyone who can reach the gateway may use it, and a browser on the same machine reaches it for every page that it has
open. But pages can't forge these headers. `Host` is the name in the page's own address, so a name that was made to
resolve to this machine (DNS rebinding) is still a foreign one. `Origin` and `Sec-Fetch-Site` say which page sends the
request: a browser needs no permission for a POST without a body. Programs send neither.

Without keys, a request that came through a proxy is rejected too: it may be anybody's, and looks like one from this
machine. A proxy that adds no header of its own can't be noticed.
"""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from turnkeeper.api.http.problem_responses import problem_response
from turnkeeper.api.problems import ProblemError, problem
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
