"""The chat page and the pages of the API's documentation, all served by the gateway (API-1, API-5).

The chat page is a document, its styles, modules and icon. Its content security policy allows only these files and only
requests to this gateway, forbids frames, and accepts HTML only from the one function that inserts what the gateway has
sanitised. So a mistake in the page is not exploitable.

FastAPI's own `/docs` and `/redoc` load scripts and styles from a content delivery network: offline they stay blank, and
online the network learns of each visit. Swagger UI and Redoc are the files of the package `fastapi-offline`; its code
is not used.
"""

import html
import json
import os
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

from fastapi import FastAPI, Request, Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse
from starlette.staticfiles import NotModifiedResponse, StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnkeeper.api.http.compression import StaticContent
from turnkeeper.api.http.responses import MEDIA_TYPE
from turnkeeper.api.roles import Access, access
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
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}

_IMMUTABLE_HEADERS = {**FILE_HEADERS, "Cache-Control": "public, max-age=31536000, immutable"}

_MEDIA_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


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
    files = page_files()
    # The model of new sessions, which the page shows before there is a session.
    first_model = html.escape(settings.first_model)
    template = files.document("index.html").replace("{modules}", files.preloads())
    document = StaticContent(template.replace("{first_model}", first_model).encode(), "text/html", _PAGE_HEADERS)

    @app.get("/", include_in_schema=False)
    @access("open")
    async def show_page(request: Request) -> Response:
        return document.response_to(request)

    @app.get("/static/{path:path}", include_in_schema=False)
    @access("open")
    async def show_file(request: Request, path: str) -> Response:
        return files.response_to(request, f"/static/{path}")


class PageFiles:
    """The page's styles, modules and icon, in memory as they are at the start.

    They are below a path that names their content, so that browsers keep them forever, and no page mixes the files of
    two releases. Modules load each other by relative paths, and so from below the same one.
    """

    def __init__(self, folder: Path) -> None:
        paths = sorted(path for path in folder.rglob("*") if path.suffix in _MEDIA_TYPES)
        contents = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
        digest = sha256()
        for name, content in contents.items():
            digest.update(f"{name} {len(content)} ".encode() + content)
        self._folder = folder
        self.path = f"/static/{digest.hexdigest()[:16]}"
        self._files = {
            f"{self.path}/{name}": StaticContent(content, _MEDIA_TYPES[Path(name).suffix], _IMMUTABLE_HEADERS)
            for name, content in contents.items()
        }

    def document(self, name: str) -> str:
        """Return an HTML document with the files' paths."""
        return (self._folder / name).read_text().replace('"/static/', f'"{self.path}/')

    def preloads(self) -> str:
        """Return the links by which a browser fetches all modules at once, and not one after the other.

        `wire.js` is not among them: it has types only, and no other module loads it.
        """
        modules = (path for path in self._files if path.endswith(".js") and not path.endswith("/wire.js"))
        return "\n    ".join(f'<link rel="modulepreload" href="{module}" />' for module in modules)

    def response_to(self, request: Request, path: str) -> Response:
        """Return a file. Raises `HTTPException`: 404 also for a file of another release."""
        if path not in self._files:
            raise HTTPException(404)
        return self._files[path].response_to(request)


@cache
def page_files() -> PageFiles:
    """Return the files of the page, read once for a process."""
    return PageFiles(STATIC)


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
        self._template = page_files().document("problem.html")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_get = scope["type"] == "http" and scope["method"] == "GET"
        if not is_get or "text/html" not in Headers(scope=scope).get("accept", ""):
            await self._app(scope, receive, send)
            return
        start: Message | None = None
        body = b""

        async def send_page(message: Message) -> None:
            nonlocal start, body
            is_start = message["type"] == "http.response.start"
            if is_start and Headers(raw=message["headers"]).get("content-type", "").startswith(MEDIA_TYPE):
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


def _with_headers(start: Message, page: bytes) -> Message:
    headers = MutableHeaders(raw=list(start["headers"]))
    headers.update({**_PROBLEM_HEADERS, "Content-Length": str(len(page))})
    return {**start, "headers": headers.raw}


OWN_FILES = Path(__file__).parents[1] / "api_docs"

_DOCS_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    # Both insert inline styles.
    "style-src": "'self' 'unsafe-inline'",
    "img-src": "'self' data:",
    "font-src": "'self' data:",
    "connect-src": "'self'",
    # Redoc's search runs in a worker that it creates from a blob.
    "worker-src": "blob:",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}

_DOCS_HEADERS = page_headers(_DOCS_POLICY)

_LOGO = b"https://cdn.redoc.ly/redoc/logo-mini.svg"
"""Redoc would load it from its vendor."""


def install_docs(app: FastAPI) -> None:
    """Add both pages, and their files below `/docs/`. They are seldom read, so files are not kept in memory."""
    _add_page(app, "/docs", "swagger.html")
    _add_page(app, "/redoc", "redoc.html")
    bundled = bundled_files()

    @app.get("/docs/redoc.js", include_in_schema=False)
    @access("reader")
    def show_redoc(request: Request) -> Response:
        script = (bundled / "redoc.standalone.js").read_bytes().replace(_LOGO, b"data:,")
        return StaticContent(script, "text/javascript", FILE_HEADERS).response_to(request)

    app.mount("/docs/files", DocsFiles(directory=OWN_FILES))
    app.mount("/docs/assets", DocsFiles(directory=bundled))


def bundled_files() -> Path:
    """Return the folder with the files of Swagger UI and Redoc, without importing the package."""
    package = find_spec("fastapi_offline")
    assert package is not None  # noqa: S101  # a dependency
    assert package.origin is not None  # noqa: S101
    return Path(package.origin).parent / "static"


class DocsFiles(StaticFiles):
    """Static files with an ETag and the headers of the page."""

    access: Access = "reader"

    def file_response(
        self, full_path: str | os.PathLike[str], stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        response = FileResponse(full_path, status_code=status_code, stat_result=stat_result, headers=FILE_HEADERS)
        if self.is_not_modified(response.headers, Headers(scope=scope)):
            return NotModifiedResponse(response.headers)
        return response


def _add_page(app: FastAPI, path: str, name: str) -> None:
    page = StaticContent((OWN_FILES / name).read_bytes(), "text/html", _DOCS_HEADERS)

    @app.get(path, include_in_schema=False)
    @access("reader")
    async def show(request: Request) -> Response:
        return page.response_to(request)
