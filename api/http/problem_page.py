"""A problem as a page in words, for a person whose browser went to an address that has none (API-2, API-5)."""

import html
import json

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnkeeper.api.problems import MEDIA_TYPE
from turnkeeper.api.routes.page import STATIC, page_headers

_POLICY = {
    "default-src": "'none'",
    "style-src": "'self'",
    "img-src": "'self'",
    "base-uri": "'none'",
    "frame-ancestors": "'none'",
}

_HEADERS = {**page_headers(_POLICY), "Cache-Control": "no-store", "Content-Type": "text/html; charset=utf-8"}


class ProblemPageMiddleware:
    """Responds to `GET` with a page instead of a problem if the client accepts `text/html` by name.

    Browsers do so when a person opens an address, and at no other request; API clients get the problem.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._template = (STATIC / "problem.html").read_text()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET" or not _accepts_pages(scope):
            await self._app(scope, receive, send)
            return
        start: Message | None = None
        body = b""

        async def send_page(message: Message) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start" and _is_problem(message):
                start = message
            elif start is None:
                await send(message)
            else:
                body += message.get("body", b"")
                if not message.get("more_body"):
                    page = self._page(body)
                    await send(_with_headers(start, page))
                    await send({"type": "http.response.body", "body": page})

        await self._app(scope, receive, send_page)

    def _page(self, problem: bytes) -> bytes:
        fields = json.loads(problem)
        page = self._template
        for name in ("title", "detail"):
            page = page.replace(f"{{{name}}}", html.escape(fields[name]))
        return page.encode()


def _accepts_pages(scope: Scope) -> bool:
    return "text/html" in Headers(scope=scope).get("accept", "")


def _is_problem(message: Message) -> bool:
    return Headers(raw=message["headers"]).get("content-type", "").startswith(MEDIA_TYPE)


def _with_headers(start: Message, page: bytes) -> Message:
    headers = MutableHeaders(raw=list(start["headers"]))
    headers.update({**_HEADERS, "Content-Length": str(len(page))})
    return {**start, "headers": headers.raw}
