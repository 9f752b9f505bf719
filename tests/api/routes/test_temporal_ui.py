"""Temporal's Web UI at the gateway: access and forwarded headers (OPS-2)."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from temporalio.client import Client

from tests.api.conftest import serving
from tests.features.access.auth.matrix import Column, client_of, key_of
from tests.harness import patient
from tests.waiting import BOUND, until
from turnkeeper.api.app import create_app
from turnkeeper.api.problems import KINDS
from turnkeeper.models.settings.settings import AuthSettings, Settings

PATH = "/temporal/api/v1/namespaces/default/workflows?query=a%2Fb"


LONG_POLL = "/temporal/api/v1/namespaces/default/workflows/s/history"


class Polls:
    """The long polls of the Web UI, which are never answered."""

    pending = 0


async def hang(receive: Receive) -> None:
    """Wait until the gateway gives the request up."""
    Polls.pending += 1
    try:
        assert (await receive())["type"] == "http.request"
        assert (await receive())["type"] == "http.disconnect"
    finally:
        Polls.pending -= 1


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the request; `/temporal` is a page with an inline script."""
    if scope["type"] != "http":
        return
    if scope["path"] == LONG_POLL:
        await hang(receive)
        return
    headers = [(b"content-type", b"application/json"), (b"set-cookie", b"_csrf=new; Path=/"), (b"x-own", b"1")]
    body = json.dumps(
        {
            "method": scope["method"],
            "path": f"{scope['raw_path'].decode()}?{scope['query_string'].decode()}",
            "headers": {name.decode(): value.decode() for name, value in scope["headers"]},
            "body": (await receive()).get("body", b"").decode(),
        }
    ).encode()
    if scope["path"] == "/temporal":
        headers[0], body = (b"content-type", b"text/html"), b"<script>run()</script>"
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class LoopbackServer(uvicorn.Server):
    def install_signal_handlers(self) -> None:
        """Signals stay pytest's."""


@asynccontextmanager
async def web_ui() -> AsyncIterator[str]:
    server = LoopbackServer(uvicorn.Config(echo, port=0, log_config=None, lifespan="off"))
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    await serving


@asynccontextmanager
async def gateway_with(settings: Settings, *columns: Column) -> AsyncIterator[list[httpx.AsyncClient]]:
    async with AsyncExitStack() as exits:
        app = create_app(settings)
        await exits.enter_async_context(app.router.lifespan_context(app))
        keys = [await key_of(settings, column) for column in columns]
        yield [await exits.enter_async_context(client_of(app, key)) for key in keys]


async def test_ops_2_the_web_ui_gets_neither_keys_nor_cookies_of_the_gateway(tmp_path: Path) -> None:
    async with web_ui() as origin:
        settings = Settings(state_dir=tmp_path, temporal_ui_proxy=origin, auth=AuthSettings(keys=True))
        async with gateway_with(settings, Column("ann", "admin")) as (http,):
            await http.get(PATH)  # whose answer has another caller's token
            http.cookies.clear()
            http.cookies.update({"_csrf": "c", "other": "secret"})
            answer = await http.post(
                PATH, json={"a": 1}, headers={"X-CSRF-Token": "c", "Origin": "http://127.0.0.1:8080"}
            )
    request = answer.json()
    assert (request["method"], request["path"], request["body"]) == ("POST", PATH, '{"a":1}')
    assert request["headers"]["cookie"] == "_csrf=c"
    assert request["headers"]["x-csrf-token"] == "c"
    assert not {"authorization", "origin"} & request["headers"].keys()
    assert answer.headers["cache-control"] == "no-store"
    assert "x-own" not in answer.headers
    assert "_csrf=new; Path=/temporal" in answer.headers["set-cookie"]


async def test_ops_2_a_csrf_token_is_only_sent_with_its_callers_requests(tmp_path: Path) -> None:
    async with (
        web_ui() as origin,
        client_of(create_app(Settings(state_dir=tmp_path, temporal_ui_proxy=origin))) as http,
    ):

        async def body() -> AsyncIterator[bytes]:
            yield b"{"
            # Meanwhile, the answer to another caller sets that one's token.
            assert "_csrf=new" in (await http.get(PATH)).headers["set-cookie"]
            http.cookies.clear()
            yield b"}"

        answer = await http.post(PATH, content=body(), headers={"Content-Type": "application/json"})
    assert answer.json()["body"] == "{}"
    assert "cookie" not in answer.json()["headers"]


@pytest.mark.parametrize(
    ("column", "status"),
    [
        (Column("no key", None), 401),
        (Column("approver", "approver"), 403),
        (Column("admin of a tenant", "admin", "acme"), 404),
        (Column("admin", "admin"), 200),
    ],
    ids=lambda value: value.name if isinstance(value, Column) else str(value),
)
async def test_ops_2_the_web_ui_is_for_admins_of_the_default_tenant(
    tmp_path: Path, column: Column, status: int
) -> None:
    async with web_ui() as origin:
        settings = Settings(state_dir=tmp_path, temporal_ui_proxy=origin, auth=AuthSettings(keys=True))
        async with gateway_with(settings, column) as (http,):
            for method in ("GET", "POST", "PUT", "DELETE"):
                assert (await http.request(method, PATH)).status_code == status


async def test_ops_2_foreign_pages_do_not_reach_the_web_ui(tmp_path: Path) -> None:
    async with web_ui() as origin:
        app = create_app(Settings(state_dir=tmp_path, temporal_ui_proxy=origin))
        async with client_of(app) as http:
            assert (await http.get(PATH, headers={"Host": "rebind.example"})).status_code == 403
            assert (await http.post(PATH, headers={"Origin": "http://127.0.0.1:9"})).status_code == 403
            page = await http.get("/temporal")
    assert "script-src 'self' 'sha256-" in page.headers["content-security-policy"]
    assert "'unsafe-inline'" not in page.headers["content-security-policy"].split("script-src")[1].split(";")[0]


async def test_ops_2_without_a_web_ui_its_path_is_a_404(tmp_path: Path) -> None:
    async with client_of(create_app(Settings(state_dir=tmp_path))) as http:
        answer = await http.get("/temporal")
        assert (answer.status_code, answer.json()["detail"]) == (404, "This gateway serves no Temporal Web UI.")
        assert (await http.get("/temporalia")).status_code == 404
    closed = Settings(state_dir=tmp_path, temporal_ui_proxy="http://127.0.0.1:1")
    async with client_of(create_app(closed)) as http:
        assert (await http.get("/temporal")).status_code == 503


async def test_api_2_a_long_poll_of_the_web_ui_is_answered_when_the_gateway_stops(
    temporal: Client, tmp_path: Path
) -> None:
    timeouts = patient(stop=BOUND)  # then other requests are answered, with another detail
    async with web_ui() as origin:
        settings = Settings(state_dir=tmp_path, temporal_ui_proxy=origin)
        app = create_app(settings, client=temporal, timeouts=timeouts)
        async with serving(app) as gateway, httpx.AsyncClient(base_url=gateway.url, timeout=BOUND) as http:
            poll = asyncio.create_task(http.get(LONG_POLL))
            assert await until(lambda: Polls.pending == 1)
            gateway.stop()
            answer = await poll
        assert (answer.status_code, answer.json()["detail"]) == (503, KINDS["stopping"].text)
        assert await until(lambda: Polls.pending == 0)


async def test_ops_2_a_long_poll_of_the_web_ui_ends_when_its_client_disconnects(
    temporal: Client, tmp_path: Path
) -> None:
    async with web_ui() as origin:
        app = create_app(Settings(state_dir=tmp_path, temporal_ui_proxy=origin), client=temporal, timeouts=patient())
        async with serving(app) as gateway, httpx.AsyncClient(base_url=gateway.url, timeout=BOUND) as http:
            poll = asyncio.create_task(http.get(LONG_POLL))
            assert await until(lambda: Polls.pending == 1)
            poll.cancel()
            assert await until(lambda: Polls.pending == 0)
