"""Temporal's Web UI at `/temporal`, behind the gateway's own checks (OPS-2).

The Web UI has no login, answers to every host name, and can read and change every session. So it listens where only
the gateway finds it, and people use it through here: with a name of the gateway, not from another site's page, and as
an admin of the default tenant, since it shows all tenants.

It may run only the scripts that it came with: what it shows was written by models and tools, and its pages have the
same origin as the chat page.
"""

import asyncio
import base64
import hashlib
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request, Response
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse

from turnkeeper.api.callers import caller_of
from turnkeeper.api.http.streams import Closing
from turnkeeper.api.problems import problem
from turnkeeper.api.roles import access
from turnkeeper.api.routes.page import page_headers
from turnkeeper.models.ids import DEFAULT_TENANT
from turnkeeper.models.settings.settings import Settings
from turnkeeper.stores.temporal.endpoint import WEB_UI_PATH, web_ui_origin

if TYPE_CHECKING:
    import httpx2

METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]

CONNECT_SECONDS = 3.0
READ_SECONDS = 90.0
"""Longer than Temporal's long polls."""

MAX_PAGE_BYTES = 1_000_000

CSRF_COOKIE = "_csrf"
"""The only cookie that it gets; its own scripts read it, too."""

_REQUEST_HEADERS = ("accept", "caller-type", "content-type", "if-modified-since", "if-none-match", "x-csrf-token")
"""Neither keys nor the origin, which is checked here."""

_RESPONSE_HEADERS = ("content-encoding", "content-length", "content-type", "etag", "last-modified", "location", "vary")

_RENDERED = f"{WEB_UI_PATH}/render"
"""Markdown for its frames. With a public path, the Web UI has this at another path than its own pages ask for."""

_FILES = f"{WEB_UI_PATH}/_app/immutable/"
"""Their names change with their content."""

_POLICY = {
    "default-src": "'none'",
    "style-src": "'self' 'unsafe-inline'",
    "img-src": "'self' data:",
    "font-src": "'self' data:",
    "connect-src": "'self'",
    "worker-src": "'self' blob:",
    # Its Markdown is rendered in a frame.
    "frame-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'self'",
}

NO_WEB_UI = "This gateway serves no Temporal Web UI."

_POLICY_HEADER = "Content-Security-Policy"

_INLINE_SCRIPT = re.compile(rb"<script>(.*?)</script>", re.DOTALL)


class WebUi:
    """Passes requests on to the Web UI."""

    def __init__(self, settings: Settings, closing: Closing) -> None:
        self._settings = settings
        self._closing = closing
        self._client: httpx2.AsyncClient | None = None

    def install(self, app: FastAPI) -> None:
        """Add its route."""

        @access("admin")  # it can do everything
        async def use_web_ui(request: Request) -> Response:
            caller, path = caller_of(request.scope), request.path_params["path"]
            is_below = path.startswith("/") or not path
            if caller is None or caller.tenant != DEFAULT_TENANT or not is_below:
                raise problem("not-found", NO_WEB_UI)
            return await self.response_to(request)

        # Not one of FastAPI's: those have query parameters of their own, and no others.
        app.add_route(f"{WEB_UI_PATH}{{path:path}}", use_web_ui, methods=METHODS, include_in_schema=False)

    async def close(self) -> None:
        """End its connections."""
        if self._client is not None:
            await self._client.aclose()

    async def response_to(self, request: Request) -> Response:
        """Return the Web UI's response. Raises `ProblemError`: 404 without a Web UI, 503 if it does not answer.

        A GET may be a long poll. It ends with 503 when the gateway closes, and with `ClientDisconnect` when its client
        leaves. Other requests may change something, so they are waited for.
        """
        # Slow to load, and few requests need it.
        import httpx2

        origin = web_ui_origin(self._settings)
        if origin is None:
            raise problem("not-found", NO_WEB_UI)
        content = await request.body()
        if self._client is None:
            timeout = httpx2.Timeout(READ_SECONDS, connect=CONNECT_SECONDS)
            # Callers share it, so it stores no cookies.
            cookies = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
            self._client = httpx2.AsyncClient(timeout=timeout, trust_env=False, cookies=cookies)
        path, query = request.scope["raw_path"], request.scope["query_string"]
        if request.url.path == _RENDERED:
            path = WEB_UI_PATH.encode() + path
        outgoing = self._client.build_request(
            request.method,
            httpx2.URL(origin).copy_with(raw_path=path + (b"?" + query if query else b"")),
            headers=_request_headers(request),
            content=content,
        )
        try:
            async with self._while_needed(request):
                answer = await self._client.send(outgoing, stream=True)
            if answer.headers.get("content-type", "").startswith("text/html"):
                return await _page(answer)
        except httpx2.HTTPError:
            raise problem("temporal-unreachable") from None
        response = StreamingResponse(_body(answer), status_code=answer.status_code)
        for name, value in _response_headers(answer.headers, path=request.url.path).items():
            response.headers[name] = value
        _pass_csrf_cookie(answer, response)
        return response

    @asynccontextmanager
    async def _while_needed(self, request: Request) -> AsyncIterator[None]:
        """Raise 503 or `ClientDisconnect` once nobody waits for a GET whose body has been read."""
        if request.method != "GET":
            yield
            return
        try:
            async with self._closing.time_limit(), _until_client_leaves(request):
                yield
        except TimeoutError:
            raise problem("stopping") from None


@asynccontextmanager
async def _until_client_leaves(request: Request) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(None) as limit:
            watching = asyncio.create_task(_watch(request, limit))
            try:
                yield
            finally:
                # Not awaited: a response that is there must not be lost, as it holds its connection.
                watching.cancel()
    except TimeoutError:
        raise ClientDisconnect from None


async def _watch(request: Request, limit: asyncio.Timeout) -> None:
    """End `limit` when the client disconnects. The request's body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    limit.reschedule(asyncio.get_running_loop().time())


def _request_headers(request: Request) -> dict[str, str]:
    headers = {name: value for name in _REQUEST_HEADERS if (value := request.headers.get(name)) is not None}
    # Pages are read here, so they may not be compressed.
    headers["accept-encoding"] = (
        request.headers.get("accept-encoding", "") if _is_file(request.url.path) else "identity"
    )
    if token := request.cookies.get(CSRF_COOKIE):
        headers["cookie"] = f"{CSRF_COOKIE}={token}"
    return headers


def _response_headers(headers: Mapping[str, str], *, path: str) -> dict[str, str]:
    passed = {name: value for name in _RESPONSE_HEADERS if (value := headers.get(name)) is not None}
    if _is_file(path):
        passed["cache-control"] = "private, max-age=31536000, immutable"
    return passed


def _is_file(path: str) -> bool:
    return path.startswith(_FILES)


def _pass_csrf_cookie(answer: "httpx2.Response", response: Response) -> None:
    if token := answer.cookies.get(CSRF_COOKIE):
        response.set_cookie(CSRF_COOKIE, token, path=WEB_UI_PATH, samesite="strict")


async def _page(answer: "httpx2.Response") -> Response:
    """Return a page, which may run its own inline scripts and files of the gateway, and nothing else."""
    try:
        content = b""
        async for part in answer.aiter_bytes():
            content += part
            if len(content) > MAX_PAGE_BYTES:
                raise problem("temporal-unreachable")
    finally:
        await answer.aclose()
    hashes = [base64.b64encode(hashlib.sha256(script).digest()).decode() for script in _INLINE_SCRIPT.findall(content)]
    scripts = " ".join(["'self'", *(f"'sha256-{digest}'" for digest in hashes)])
    headers = page_headers({**_POLICY, "script-src": scripts})
    if policy := answer.headers.get(_POLICY_HEADER):  # its frames' own, which allows less
        headers[_POLICY_HEADER] = policy
    response = Response(content, status_code=answer.status_code, media_type="text/html", headers=headers)
    _pass_csrf_cookie(answer, response)
    return response


async def _body(answer: "httpx2.Response") -> AsyncIterator[bytes]:
    try:
        async for part in answer.aiter_raw():
            yield part
    finally:
        await answer.aclose()
