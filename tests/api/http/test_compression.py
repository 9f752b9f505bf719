"""Which answers are compressed, and for whom (API-3, OPS-11)."""

import gzip
import json
from uuid import uuid4

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from tests.api.live.watching import Watcher, idle_after
from tests.harness import BOUND, Environment
from turnkeeper.api.http.compression import MAX_INLINE_BYTES, MIN_BYTES, CompressionMiddleware

JSON = "application/json"
LONG = json.dumps(["a word"] * MIN_BYTES).encode()

ANSWERS = {
    "long": (True, LONG, JSON, 200, {}),
    "very long": (True, LONG * (MAX_INLINE_BYTES // len(LONG) + 1), JSON, 200, {"ETag": 'W/"1"'}),
    "short": (False, b"[]", JSON, 200, {}),
    "an error": (False, LONG, "application/problem+json", 404, {}),
    "with a cookie": (False, LONG, JSON, 200, {"Set-Cookie": "login=secret"}),
    "an upload": (False, LONG, JSON, 200, {"ETag": '"hash"'}),
    "a text": (False, LONG, "text/plain", 200, {}),
    "an image": (False, LONG, "image/png", 200, {}),
    "compressed already": (False, gzip.compress(LONG), JSON, 200, {"Content-Encoding": "gzip"}),
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_ops_11_json_is_compressed_unless_it_is_short_or_sets_a_cookie(name: str) -> None:
    is_compressed, body, media_type, status, headers = ANSWERS[name]
    app = Starlette(
        routes=[Route("/", lambda _: Response(body, status_code=status, media_type=media_type, headers=headers))]
    )
    app.add_middleware(CompressionMiddleware)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as http:
        answer = await http.get("/")
        plain = await http.get("/", headers={"Accept-Encoding": "gzip;q=0, identity"})
    assert answer.headers.get("content-encoding") == ("gzip" if is_compressed else headers.get("Content-Encoding"))
    assert answer.headers.get("vary") == plain.headers.get("vary") == ("Accept-Encoding" if is_compressed else None)
    assert (int(answer.headers["content-length"]) < len(body)) is is_compressed
    assert int(plain.headers["content-length"]) == len(body)
    assert answer.content == plain.content
    assert answer.headers.get("etag") == headers.get("ETag")


async def test_ops_11_streamed_json_is_not_compressed() -> None:
    async def parts(request: Request) -> Response:
        async def body():
            yield LONG
            yield b" "

        return StreamingResponse(body(), media_type=JSON)

    app = Starlette(routes=[Route("/", parts)])
    app.add_middleware(CompressionMiddleware)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as http:
        answer = await http.get("/")
    assert (answer.content, answer.headers.get("content-encoding")) == (LONG + b" ", None)


async def test_ops_11_a_poll_is_compressed_under_one_etag_and_a_stream_is_not(url: str, env: Environment) -> None:
    session = f"s-{uuid4()}"
    path = f"/workflow/{session}/conversation"
    async with httpx.AsyncClient(base_url=url, timeout=BOUND) as http:
        await http.post("/workflow", json={"id": session, "prompt": "words " * MIN_BYTES})
        watcher = Watcher(http, session)
        async with watcher.stream() as events:
            await watcher.until_in(events, idle_after(1))
        async with http.stream("GET", f"/workflow/{session}/events", headers={"Accept-Encoding": "gzip"}) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            assert "content-encoding" not in stream.headers
            assert (await anext(stream.aiter_raw())).startswith(b"event: update")
        packed = await http.get(path)
        plain = await http.get(path, headers={"Accept-Encoding": "identity"})
        head = await http.head(path)
        unchanged = [
            await http.get(path, headers={"If-None-Match": packed.headers["etag"], **more})
            for more in ({}, {"Accept-Encoding": "identity"})
        ]
    assert packed.json() == plain.json()
    assert (packed.headers["content-encoding"], plain.headers.get("content-encoding")) == ("gzip", None)
    assert packed.headers["etag"] == plain.headers["etag"]
    assert packed.headers["etag"].startswith("W/")
    for name in ("content-encoding", "content-length", "etag", "vary"):
        assert head.headers[name] == packed.headers[name]
    for answer in unchanged:
        assert (answer.status_code, answer.content) == (304, b"")
        assert (answer.headers["etag"], answer.headers["vary"]) == (packed.headers["etag"], "Accept-Encoding")
