"""Headers of every response, also of those from middleware: what browsers must not do with it (API-4)."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnkeeper.api.http.event_stream import EVENT_STREAM

HEADERS = {
    "Cache-Control": "no-store",
    # No browser may guess that a text of a tool is a page or a script.
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}
"""A response may have its own of these, as the page and its files do."""

_RAW_HEADERS = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]


class ResponseHeadersMiddleware:
    """Adds `HEADERS` to responses that don't have their own."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": _complete(message["headers"])}
            await send(message)

        await self._app(scope, receive, send_with_headers if scope["type"] == "http" else send)


def _complete(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    own = {name.lower(): value for name, value in headers}
    if own.get(b"content-type", b"").startswith(EVENT_STREAM.encode()):
        # FastAPI's own header for event streams allows storing them.
        headers = [(name, value) for name, value in headers if name.lower() != b"cache-control"]
        own.pop(b"cache-control", None)
    return [*headers, *((name, value) for name, value in _RAW_HEADERS if name not in own)]
