"""No web page of another site gets through to any route, by whatever name its browser asks (API-4)."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.types import Message

from tests.api.conftest import served
from tests.harness import BOUND, DrivenSession
from turnkeeper.api.app import create_app
from turnkeeper.api.routes.page import page_files
from turnkeeper.models.settings.settings import AuthSettings, Settings

NOT_IN_THE_SCHEMA = [
    "/",
    f"{page_files().path}/page.js",
    "/static/nothing.js",
    "/docs",
    "/redoc",
    "/openapi.json",
    "/nowhere",
]
EXEMPT = ["/healthz", "/readyz"]
HERE = "http://127.0.0.1:8080"


def app_of(tmp_path: Path, **settings: Any) -> FastAPI:
    """A gateway that is never started: what passes the check fails on its way, and what does not is a 403."""
    return create_app(Settings(state_dir=tmp_path, **settings))


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    """A gateway with default settings, shared by all tests, which change nothing in it."""
    return app_of(tmp_path_factory.mktemp("state"))


def client_of(app: FastAPI, *, at: str = HERE) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app, raise_app_exceptions=False), base_url=at)


def operations(app: FastAPI) -> Iterator[tuple[str, str]]:
    """Every method and path, undocumented ones included."""
    for path, methods in app.openapi()["paths"].items():
        for method in methods:
            yield method.upper(), re.sub(r"{\w+}", "x", path)
    for path in NOT_IN_THE_SCHEMA:
        for method in ("GET", "HEAD", "POST", "OPTIONS"):
            yield method, path


def problem_of(answer: httpx.Response) -> str:
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["cache-control"] == "no-store"
    problem = answer.json()
    assert problem["status"] == answer.status_code
    return str(problem["type"]).removeprefix("urn:turnkeeper:problem:")


FOREIGN_HOSTS = ["rebind.example:8080", "rebind.example", "127.0.0.1.nip.example", "localhost.evil.example", "10.0.0.7"]
FOREIGN_PAGES: list[dict[str, str]] = [
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "https://127.0.0.1:8080"},
    {"Origin": "http://127.0.0.1:8081"},
    {"Origin": "http://127.0.0.1:8080.evil.example"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Origin": HERE, "Sec-Fetch-Site": "cross-site"},
    {"Origin": "http://evil.example", "Sec-Fetch-Site": "same-origin"},
]


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
async def test_api_4_a_foreign_host_is_rejected_on_every_route(app: FastAPI, host: str) -> None:
    async with client_of(app) as http:
        for method, path in operations(app):
            answer = await http.request(method, path, headers={"Host": host})
            if path in EXEMPT:
                assert answer.status_code != 403, (method, path)
            else:
                assert answer.status_code == 403, (method, path)
                assert method == "HEAD" or problem_of(answer) == "foreign-host"


@pytest.mark.parametrize("headers", FOREIGN_PAGES, ids=str)
async def test_api_4_a_foreign_page_changes_nothing_on_any_route(app: FastAPI, headers: dict[str, str]) -> None:
    async with client_of(app) as http:
        for method, path in operations(app):
            answer = await http.request(method, path, headers=headers)
            if method in ("GET", "HEAD") or path in EXEMPT:
                assert answer.status_code != 403, (method, path)
            else:
                assert (answer.status_code, problem_of(answer)) == (403, "foreign-origin"), (method, path)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": HERE},
        {"Origin": HERE, "Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none"},
        {"Host": "LOCALHOST:8080", "Origin": "http://localhost:8080"},
        {"Host": "localhost.:99"},
        {"Host": "127.8.9.10"},
        {"Host": "[::1]:8080", "Origin": "http://[::1]:8080"},
        {"Host": "localhost:80", "Origin": "http://localhost"},
    ],
    ids=str,
)
async def test_api_4_programs_and_the_chat_page_are_allowed_on_every_route(
    app: FastAPI, headers: dict[str, str]
) -> None:
    async with client_of(app) as http:
        for method, path in operations(app):
            answer = await http.request(method, path, headers=headers)
            assert answer.status_code != 403, (method, path)


@pytest.mark.parametrize("header", ["X-Forwarded-For", "forwarded", "Via", "X-Real-IP", "X-Forwarded-Host"])
async def test_api_4_without_keys_a_proxied_request_is_rejected_with_the_fix(app: FastAPI, header: str) -> None:
    async with client_of(app) as http:
        for method, path in operations(app):
            answer = await http.request(method, path, headers={header: "203.0.113.7"})
            if path in EXEMPT:
                assert answer.status_code != 403, (method, path)
            else:
                assert answer.status_code == 403, (method, path)
                assert method == "HEAD" or problem_of(answer) == "proxied"
        detail = (await http.get("/workflow", headers={header: "203.0.113.7"})).json()["detail"]
    assert header.lower() in detail
    assert "auth.keys=true" in detail


async def test_api_4_with_keys_a_proxied_request_is_answered(tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path, auth=AuthSettings(keys=True))
    async with client_of(create_app(settings)) as http:
        answer = await http.get("/", headers={"X-Forwarded-For": "203.0.113.7", "Via": "1.1 proxy"})
    assert answer.status_code == 200


async def test_api_4_a_foreign_page_embeds_nothing_and_may_link_to_the_page(app: FastAPI) -> None:
    async with client_of(app) as http:
        for kind in ("empty", "image", "script", "style", "iframe", "object"):
            headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": kind}
            answer = await http.get("/openapi.json", headers=headers)
            assert (answer.status_code, problem_of(answer)) == (403, "foreign-origin"), kind
        headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
        assert (await http.get("/", headers=headers)).status_code == 200


async def test_api_4_a_rejection_is_short_and_names_the_setting_to_change(app: FastAPI) -> None:
    async with client_of(app) as http:
        host = (await http.get("/", headers={"Host": "<script>" + "x" * 5_000})).json()["detail"]
        origin = (await http.post("/workflow", headers={"Origin": "http://" + "x" * 5_000})).json()["detail"]
    assert "allowed_hosts" in host
    assert "public_url" in origin
    assert max(len(host), len(origin)) < 400


@pytest.mark.parametrize(
    ("settings", "hosts", "foreign"),
    [
        ({"public_url": "https://Agents.example:8443/chat"}, ["agents.example", "agents.example:1"], ["example"]),
        ({"allowed_hosts": ["gateway", "::2"]}, ["gateway:8080", "Gateway.", "[::2]:8080"], ["a.gateway", "[::3]"]),
        ({"api_host": "10.0.0.7", "auth": {"keys": True}}, ["10.0.0.7:80", "localhost"], ["10.0.0.8"]),
        # Any address may be the machine's own, and no page of another name is reached by one.
        ({"api_host": "0.0.0.0", "auth": {"keys": True}}, ["10.0.0.8:80", "[fe80::7]"], ["host.example"]),
        ({"api_host": "::", "auth": {"keys": True}}, ["10.0.0.8:80", "[fe80::7]"], ["host.example"]),
    ],
)
async def test_api_4_the_gateway_accepts_the_host_names_in_its_settings(
    tmp_path: Path, settings: dict[str, Any], hosts: list[str], foreign: list[str]
) -> None:
    async with client_of(app_of(tmp_path, **settings)) as http:
        for host in hosts:
            assert (await http.get("/", headers={"Host": host})).status_code == 200, host
        for host in foreign:
            assert (await http.get("/", headers={"Host": host})).status_code == 403, host


async def test_api_4_the_page_at_the_public_url_may_send_through_a_proxy(tmp_path: Path) -> None:
    app = app_of(tmp_path, public_url="https://agents.example/chat", allowed_hosts=["other.example"])
    send = {"url": "/workflow/s1/cancel", "json": {}}
    async with client_of(app) as http:
        for host in ("agents.example", "127.0.0.1:8080"):  # as the proxy passes it on
            answer = await http.post(**send, headers={"Host": host, "Origin": "https://agents.example"})
            assert answer.status_code != 403
        for origin in ("https://agents.example:444", "https://other.example"):
            answer = await http.post(**send, headers={"Host": "agents.example", "Origin": origin})
            assert answer.status_code == 403, origin


async def test_api_4_a_web_socket_from_a_foreign_page_is_rejected(app: FastAPI) -> None:
    for host, origin in (("rebind.example", "http://rebind.example"), ("127.0.0.1:8080", "http://evil.example")):
        messages: list[Message] = []

        async def receive() -> Message:
            return {"type": "websocket.connect"}

        async def send(message: Message, messages: list[Message] = messages) -> None:
            messages.append(message)

        headers = [(b"host", host.encode()), (b"origin", origin.encode())]
        scope = {"type": "websocket", "scheme": "ws", "path": "/", "raw_path": b"/", "query_string": b""}
        await app({**scope, "headers": headers, "subprotocols": []}, receive, send)
        assert messages == [{"type": "websocket.close", "code": 1008, "reason": ""}]


WIRE_REQUESTS = [
    ("GET / HTTP/1.1\r\nHost: localhost\r\n", 200),
    ("GET / HTTP/1.0\r\n", 403),
    ("GET / HTTP/1.1\r\nHost: localhost\r\nHost: rebind.example\r\n", 403),
    ("GET / HTTP/1.1\r\nHost: rebind.example\r\nHost: localhost\r\n", 403),
    ("GET / HTTP/1.1\r\nHost:\r\n", 403),
    ("GET / HTTP/1.1\r\nHost: user@localhost\r\n", 403),
    ("GET / HTTP/1.1\r\nHost: localhost, rebind.example\r\n", 403),
    ("GET / HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-Host: rebind.example\r\n", 403),
    ("GET / HTTP/1.1\r\nHost: rebind.example\r\nX-Forwarded-Host: localhost\r\n", 403),
    ("GET http://localhost/ HTTP/1.1\r\nHost: rebind.example\r\n", 403),
    (
        "POST /workflow HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\nOrigin: http://evil.example\r\n",
        403,
    ),
    ("GET //rebind.example/healthz HTTP/1.1\r\nHost: rebind.example\r\n", 403),
    ("GET /healthz/../workflow HTTP/1.1\r\nHost: rebind.example\r\n", 403),
    ("GET /healthz HTTP/1.1\r\nHost: 10.1.2.3:8080\r\n", 200),
]


async def test_api_4_malformed_host_and_origin_headers_are_rejected(tmp_path: Path) -> None:
    async with served(None, Settings(state_dir=tmp_path)) as url, asyncio.timeout(BOUND):
        for request_text, status in WIRE_REQUESTS:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
            writer.write(f"{request_text}Connection: close\r\n\r\n".encode())
            answer = await reader.read()
            writer.close()
            assert int(answer.split(b" ")[1]) == status, request_text


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", None])
async def test_api_4_an_optional_body_is_rejected_if_its_content_type_is_not_json(
    shared_http: httpx.AsyncClient, unchanged: DrivenSession, content_type: str | None
) -> None:
    path = f"/workflow/{unchanged.handle.id}"
    headers = {"content-type": content_type} if content_type else {}
    for route in ("/workflow", f"{path}/cancel", f"{path}/end", f"{path}/retry"):
        answer = await shared_http.post(route, content=b"{}", headers=headers)
        assert (answer.status_code, problem_of(answer)) == (422, "invalid"), route
    state = await unchanged.state()
    assert (state.status, state.revision) == ("idle", 0)
