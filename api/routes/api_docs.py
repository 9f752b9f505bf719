"""`/docs` and `/redoc`, with scripts and styles served by the gateway itself (API-1, API-5).

FastAPI's own pages load theirs from a content delivery network: offline they stay blank, and online the network learns
of each visit. Swagger UI and Redoc are the files of the package `fastapi-offline`; its code is not used.
"""

import os
from importlib.util import find_spec
from pathlib import Path

from fastapi import FastAPI, Request, Response
from starlette.datastructures import Headers
from starlette.responses import FileResponse
from starlette.staticfiles import NotModifiedResponse, StaticFiles
from starlette.types import Scope

from turnkeeper.api.http.compression import StaticContent
from turnkeeper.api.roles import Access, access
from turnkeeper.api.routes.page import FILE_HEADERS, page_headers

OWN_FILES = Path(__file__).parents[1] / "api_docs"

_POLICY = {
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

_PAGE_HEADERS = page_headers(_POLICY)

_LOGO = b"https://cdn.redoc.ly/redoc/logo-mini.svg"
"""Redoc would load it from its vendor."""


def install(app: FastAPI) -> None:
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
    page = StaticContent((OWN_FILES / name).read_bytes(), "text/html", _PAGE_HEADERS)

    @app.get(path, include_in_schema=False)
    @access("reader")
    async def show(request: Request) -> Response:
        return page.response_to(request)
