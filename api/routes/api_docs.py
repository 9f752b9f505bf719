"""`/docs` and `/redoc`, with scripts and styles served by the gateway itself (API-1, API-5).

FastAPI's own pages load theirs from a content delivery network: offline they stay blank, and online the network learns
of each visit. Swagger UI and Redoc are the files of the package `fastapi-offline`; its code is not used.
"""

from functools import cache
from importlib.util import find_spec
from pathlib import Path

from fastapi import FastAPI, Request, Response

from turnkeeper.api.http.etags import content_etag, matches
from turnkeeper.api.routes.page import FILE_HEADERS, PageFiles, page_headers

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


def install(app: FastAPI) -> None:
    """Add both pages, and their files below `/docs/`."""
    for path, name in (("/docs", "swagger.html"), ("/redoc", "redoc.html")):
        _add(app, path, (OWN_FILES / name).read_text(), "text/html", _PAGE_HEADERS)
    _add(app, "/docs/redoc.js", redoc_script(), "text/javascript", FILE_HEADERS)
    app.mount("/docs/files", PageFiles(directory=OWN_FILES))
    app.mount("/docs/assets", PageFiles(directory=bundled_files()))


def bundled_files() -> Path:
    """Return the folder with the files of Swagger UI and Redoc, without importing the package."""
    package = find_spec("fastapi_offline")
    assert package is not None  # noqa: S101  # a dependency
    assert package.origin is not None  # noqa: S101
    return Path(package.origin).parent / "static"


@cache
def redoc_script() -> str:
    """Return Redoc without the logo that it would load from its vendor."""
    script = (bundled_files() / "redoc.standalone.js").read_text()
    return script.replace("https://cdn.redoc.ly/redoc/logo-mini.svg", "data:,")


def _add(app: FastAPI, path: str, content: str, media_type: str, headers: dict[str, str]) -> None:
    headers = {**headers, "ETag": content_etag(content)}

    @app.get(path, include_in_schema=False)
    async def show(request: Request) -> Response:
        if matches(headers["ETag"], request.headers.get("if-none-match", "")):
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=media_type, headers=headers)
