"""The chat page: a document, its styles, modules and icon, all served by the gateway (API-5).

The content security policy allows only these files and only requests to this gateway, forbids frames, and accepts HTML
only from the one function that inserts what the gateway has sanitised. So a mistake in the page is not exploitable.
"""

import html
import json
import os
from pathlib import Path

from fastapi import FastAPI, Request, Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import FileResponse, HTMLResponse
from starlette.staticfiles import NotModifiedResponse, StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnkeeper.api.http.etags import content_etag, matches
from turnkeeper.api.http.problem_responses import MEDIA_TYPE
from turnkeeper.models.settings.settings import Settings

STATIC = Path(__file__).parents[2] / "clients" / "page"

_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' data:",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",
    "trusted-types": "sanitised-markdown",
}

FILE_HEADERS = {
    # Cached but revalidated each time, so that a page never mixes the files of two releases.
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def page_headers(policy: dict[str, str]) -> dict[str, str]:
    """Return the headers of a page with the content security policy `policy`, a source list for each directive."""
    return {
        **FILE_HEADERS,
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "Cross-Origin-Opener-Policy": "same-origin",
    }


_PAGE_HEADERS = page_headers(_POLICY)


def install(app: FastAPI, settings: Settings) -> None:
    """Add the page at `/` and its files below `/static/`. A query parameter that the page doesn't know is ignored."""
    # The model of new sessions, which the page shows before there is a session.
    first_model = html.escape(settings.first_model)
    template = (STATIC / "index.html").read_text()
    document = template.replace("{modules}", _preloads()).replace("{first_model}", first_model)
    headers = {**_PAGE_HEADERS, "ETag": content_etag(document)}

    @app.get("/", include_in_schema=False)
    async def show_page(request: Request) -> Response:
        if matches(headers["ETag"], request.headers.get("if-none-match", "")):
            return Response(status_code=304, headers=headers)
        return HTMLResponse(document, headers=headers)

    app.mount("/static", PageFiles(directory=STATIC))


def _preloads() -> str:
    """Return the links by which a browser fetches all modules at once, and not one after the other.

    `wire.js` is not among them: it has types only, and no other module loads it.
    """
    modules = sorted(path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*.js") if path.name != "wire.js")
    return "\n    ".join(f'<link rel="modulepreload" href="/static/{module}" />' for module in modules)


class PageFiles(StaticFiles):
    """Static files with an ETag and the headers of the page."""

    def file_response(
        self, full_path: str | os.PathLike[str], stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        response = FileResponse(full_path, status_code=status_code, stat_result=stat_result, headers=FILE_HEADERS)
        if self.is_not_modified(response.headers, Headers(scope=scope)):
            return NotModifiedResponse(response.headers)
        return response


_PROBLEM_POLICY = {
    "default-src": "'none'",
    "style-src": "'self'",
    "img-src": "'self'",
    "base-uri": "'none'",
    "frame-ancestors": "'none'",
}

_PROBLEM_HEADERS = {
    **page_headers(_PROBLEM_POLICY),
    "Cache-Control": "no-store",
    "Content-Type": "text/html; charset=utf-8",
}


class ProblemPageMiddleware:
    """Responds to `GET` with a page in words instead of a problem if the client accepts `text/html` by name.

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
    headers.update({**_PROBLEM_HEADERS, "Content-Length": str(len(page))})
    return {**start, "headers": headers.raw}
