"""The chat page: a document, its styles, modules and icon, all served by the gateway (API-5).

The content security policy allows only these files and only requests to this gateway, forbids frames, and accepts HTML
only from the one function that inserts what the gateway has sanitised. So a mistake in the page is not exploitable.
"""

import html
import os
from pathlib import Path

from fastapi import FastAPI, Request, Response
from starlette.datastructures import Headers
from starlette.responses import FileResponse, HTMLResponse
from starlette.staticfiles import NotModifiedResponse, StaticFiles
from starlette.types import Scope

from turnkeeper.api.http.etags import content_etag, matches
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
