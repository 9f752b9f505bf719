"""Servers behind HTTP: a real one that is killed, and one whose answers are anything but (AGT-6, AGT-7)."""

import asyncio
import json
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator

import pytest
from mcp_types import CONNECTION_CLOSED, PARSE_ERROR, REQUEST_TIMEOUT

from tests.servers import over_http
from tests.waiting import BOUND, until
from turnkeeper.activities.toolbox import server_connection
from turnkeeper.activities.toolbox.foreign_messages import MAX_MESSAGE_BYTES, NOT_SENT
from turnkeeper.activities.toolbox.tool_server import ToolServer
from turnkeeper.activities.toolbox.toolbox import Toolbox
from turnkeeper.activities.toolbox.transports import HttpServer, SseServer
from turnkeeper.models.transcript.conversation import ToolResult
from turnkeeper.models.transcript.model_call import ToolInvocation
from turnkeeper.ops.local.logs import set_levels


async def call(toolbox: Toolbox, name: str, **args: object) -> ToolResult:
    async with asyncio.timeout(BOUND):
        return await toolbox.call(ToolInvocation(session_id="s-1", call_id="1.2.0", name=name, args=args))


# A real server


class RealServer:
    """A server in its own process, which can be killed and started again at the same port."""

    def __init__(self, form: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self._form = form
        self._process: asyncio.subprocess.Process | None = None

    @property
    def target(self) -> HttpServer:
        address = f"http://127.0.0.1:{self.port}"
        return SseServer(f"{address}/sse") if self._form == "sse" else HttpServer(f"{address}/mcp")

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, over_http.__file__, str(self.port), self._form), stdout=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(BOUND):
            assert await self._process.stdout.readline()

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


@pytest.fixture(params=["json", "events", "sse"])
async def real(request: pytest.FixtureRequest) -> AsyncIterator[RealServer]:
    """Run a server that answers as JSON, as a stream of events, or by the older transport (`sse`)."""
    server = RealServer(request.param)
    await server.start()
    try:
        yield server
    finally:
        await server.kill()


def toolbox_of(server: RealServer, **more: object) -> Toolbox:
    return Toolbox([ToolServer("web", server.target, **more)])


async def test_agt_7_a_server_killed_in_the_middle_of_calls_ends_them_and_is_reconnected(real, tmp_path):
    async with toolbox_of(real) as toolbox:
        first = (await call(toolbox, "pid")).outcome
        hanging = [asyncio.create_task(call(toolbox, "hang", marker=str(tmp_path / str(n)))) for n in range(2)]
        await until(lambda: (tmp_path / "0").exists() and (tmp_path / "1").exists())
        await real.kill()
        async with asyncio.timeout(BOUND):
            results = await asyncio.gather(*hanging)
        assert [result.status for result in results] == ["outcome_unknown"] * 2
        assert "The tool server disconnected before answering" in results[0].content

        down = await call(toolbox, "pid")
        assert (down.status, down.outcome) == ("error", "pid was not called")
        assert down.content == "Its server can't be reached now."
        await real.start()
        assert (await call(toolbox, "pid")).outcome not in ("", first)


async def test_agt_6_calls_over_http_run_concurrently(real):
    async with toolbox_of(real) as toolbox:
        results = await asyncio.gather(*(call(toolbox, "meet", people=5) for _ in range(5)))
    assert [result.outcome for result in results] == ["met"] * 5


async def test_agt_7_a_call_to_a_hanging_server_ends_at_its_timeout(real):
    async with toolbox_of(real, timeout=0.5) as toolbox:
        await call(toolbox, "pid")
        real.pause()
        result = await call(toolbox, "echo", text="a")
    assert result.status == "outcome_unknown"
    assert result.content.startswith("No answer came within 0.5 s.")


# A server with scripted answers


ANSWER = {"content": [{"type": "text", "text": "done"}]}
HTML = b"<html>Please sign in</html>"


def http(status: str, body: bytes = b"", *headers: str, length: int | None = None) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def as_json(message: object, status: str = "200 OK") -> bytes:
    return http(status, json.dumps(message).encode(), "Content-Type: application/json")


def events(body: bytes, length: int = 1_000_000) -> bytes:
    return http("200 OK", body, "Content-Type: text/event-stream", length=length)


def result_of(request_id: object, result: object) -> bytes:
    return as_json({"jsonrpc": "2.0", "id": request_id, "result": result})


class OddServer:
    """An HTTP server whose answers to calls of tools are the bytes in `says`; it hangs up after each."""

    def __init__(self) -> None:
        self.says: list[bytes] = []
        self.lists: list[bytes] = []
        """Replies sent in place of the list of tools, until there are none left."""
        self.sessions = 0
        self.calls = 0
        self.headers = b""
        self.port = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next((int(line[15:]) for line in head.lower().splitlines() if line.startswith(b"content-length:")), 0)
        body = await reader.readexactly(length)
        writer.write(self._answer(head, json.loads(body)) if head.startswith(b"POST") else http("405 Not Allowed"))
        await writer.drain()
        writer.close()

    def _answer(self, head: bytes, message: dict) -> bytes:
        match message.get("method"):
            case "initialize":
                self.sessions += 1
                self.headers = head
                server = {"name": "odd", "version": "1"}
                version = message["params"]["protocolVersion"]
                body = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server}
                return result_of(message["id"], body).replace(b"\r\n", b"\r\nMcp-Session-Id: abc\r\n", 1)
            case "tools/list" if self.lists:
                return self.lists.pop(0)
            case "tools/list":
                return result_of(message["id"], {"tools": [{"name": "act", "inputSchema": {"type": "object"}}]})
            case "tools/call":
                self.calls += 1
                return self.says.pop(0).replace(b"REQUEST_ID", str(message["id"]).encode())
            case "server/discover":
                return http("400 Bad Request")
        return http("202 Accepted")


@pytest.fixture
async def odd() -> AsyncIterator[OddServer]:
    server = OddServer()
    async with await asyncio.start_server(server.handle, "127.0.0.1", 0) as listening:
        server.port = listening.sockets[0].getsockname()[1]
        yield server


def toolbox_over(odd: OddServer, query: str = "", **headers: str) -> Toolbox:
    return Toolbox([ToolServer("odd", HttpServer(f"http://127.0.0.1:{odd.port}/mcp{query}", headers))])


LOST = {
    "a page for people": http("200 OK", HTML, "Content-Type: text/html"),
    "accepted": http("202 Accepted"),
    "no content": http("204 No Content"),
    "a server error": http("500 Internal Server Error", HTML, "Content-Type: text/html"),
    "an error of a proxy": http("502 Bad Gateway"),
    "broken JSON": http("200 OK", b'{"jsonrpc": "2.0", "id": REQ', "Content-Type: application/json"),
    "no UTF-8": http("200 OK", b"\xff\xfe", "Content-Type: application/json"),
    "an answer to another": result_of(4711, ANSWER),
    "an answer to nobody": result_of(None, ANSWER),
    "an error to another": as_json({"jsonrpc": "2.0", "id": "xxx", "error": {"code": -32603, "message": "no"}}),
    "an error that is no message": http(
        "500 Internal Server Error", b'{"detail": "no"}', "Content-Type: application/json"
    ),
    "half a body": http("200 OK", b'{"jsonrpc": ', "Content-Type: application/json", length=1_000),
    "nothing": b"",
    "no HTTP": b"SSH-2.0-OpenSSH\r\n",
    "a false encoding": http("200 OK", b"xx", "Content-Type: application/json", "Content-Encoding: gzip"),
    "too much": http("200 OK", b" " * (MAX_MESSAGE_BYTES + 1), "Content-Type: application/json"),
    "a stream that ends": events(b"", length=0),
    "a stream that is cut": events(b"event: message\r\ndata: {"),
    "a stream of no JSON": events(b"event: message\r\ndata: {\r\n\r\n"),
}


@pytest.mark.parametrize("kind", LOST)
async def test_agt_7_a_malformed_response_is_an_unknown_outcome(odd, kind):
    """An HTTP server answers a call with a response to no request, and the client waits forever.

    Reported as modelcontextprotocol/python-sdk#1144.
    """
    odd.says = [LOST[kind], good_answer()]
    async with toolbox_over(odd) as toolbox:
        result = await call(toolbox, "act")
        assert result.status == "outcome_unknown"
        assert odd.calls == 1
        assert (await call(toolbox, "act")).outcome == "done"


def good_answer() -> bytes:
    message = json.dumps({"jsonrpc": "2.0", "id": "REQUEST_ID", "result": ANSWER}).replace('"REQUEST_ID"', "REQUEST_ID")
    # Without a length the answer ends with the connection.
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n" + message.encode()


@pytest.mark.parametrize(
    ("reply", "expected_content"),
    [
        (http("401 Unauthorized", HTML), "The server answered HTTP 401."),
        (http("429 Too Many Requests", b"{}", "Content-Type: application/json"), "The server answered HTTP 429."),
        (
            as_json({"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "not so"}}, "400 Bad Request"),
            "not so",
        ),
        (as_json({"jsonrpc": "2.0", "id": None, "error": {"code": -32602, "message": "not so"}}), "not so"),
    ],
)
async def test_agt_7_a_call_rejected_with_an_http_error_was_not_run(odd, reply, expected_content):
    odd.says = [reply]
    async with toolbox_over(odd) as toolbox:
        result = await call(toolbox, "act")
    assert (result.status, result.outcome, result.content) == ("error", "act failed", expected_content)


def as_stream(message: object, line_end: str) -> bytes:
    """Return a stream of one event, which ends with the connection."""
    body = line_end.join(["event: message", f"data: {json.dumps(message)}", "", ""])
    return f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n{body}".encode()


@pytest.mark.parametrize("code", [CONNECTION_CLOSED, REQUEST_TIMEOUT, PARSE_ERROR, NOT_SENT])
@pytest.mark.parametrize("line_end", [None, "\n", "\r\n", "\r"], ids=["json", "LF", "CR LF", "CR"])
async def test_agt_7_an_error_reported_by_the_server_is_an_error_under_any_code(odd, line_end, code):
    message = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": "the quota is used up"}}
    odd.says = [as_json(message) if line_end is None else as_stream(message, line_end)]
    async with toolbox_over(odd) as toolbox:
        result = await call(toolbox, "act")
    assert (result.status, result.outcome, result.content) == ("error", "act failed", "the quota is used up")
    assert odd.calls == 1


@pytest.mark.parametrize("form", ["json", "events"])
async def test_agt_7_overly_nested_values_are_removed_from_an_answer(odd, form):
    deep: object = 1
    for _ in range(300):
        deep = [deep]
    answer = {"jsonrpc": "2.0", "id": 0, "result": {**ANSWER, "structuredContent": {"deep": deep}}}
    text = json.dumps(answer).replace('"id": 0', '"id": REQUEST_ID').encode()
    closing = b"Connection: close\r\n\r\n"
    odd.says = [
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" + closing + text
        if form == "json"
        else b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n" + closing + b"data: " + text + b"\n\n"
    ]
    async with toolbox_over(odd) as toolbox:
        assert (await call(toolbox, "act")).outcome == "done"


async def test_agt_7_an_event_with_several_data_lines_is_read(odd):
    lines = json.dumps({"jsonrpc": "2.0", "id": 0, "result": ANSWER}, indent=1).splitlines()
    body = "".join(f"data: {line}\n" for line in lines).replace('"id": 0', '"id": REQUEST_ID')
    odd.says = [f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n{body}\n".encode()]
    async with toolbox_over(odd) as toolbox:
        assert (await call(toolbox, "act")).outcome == "done"


async def test_agt_7_a_redirect_to_another_server_is_not_followed(odd):
    odd.says = [http("307 Temporary Redirect", b"", "Location: http://127.0.0.1:1/elsewhere")]
    async with toolbox_over(odd, Authorization="Bearer hunter2") as toolbox:
        result = await call(toolbox, "act")
    assert result.status == "error"
    assert "not followed" in result.content
    assert b"Bearer hunter2" in odd.headers


@pytest.mark.parametrize("lost_in", ["a list", "a call"])
async def test_agt_7_a_lost_http_session_is_reopened(odd, lost_in, monkeypatch):
    """An HTTP server restarts and doesn't know the session: every call fails until the client is restarted.

    Reported as modelcontextprotocol/python-sdk#1676, modelcontextprotocol/python-sdk#3556, claude-code#62008,
    modelcontextprotocol/conformance#76.
    """
    monkeypatch.setattr(server_connection, "LIST_COUNTS_SECONDS", 0.0 if lost_in == "a list" else BOUND)
    not_found = http("404 Not Found")
    async with toolbox_over(odd) as toolbox:
        odd.says = [good_answer()]
        await call(toolbox, "act")
        odd.lists = [not_found] if lost_in == "a list" else []
        odd.says = [*([not_found] if lost_in == "a call" else []), good_answer()]
        before = odd.sessions
        assert (await call(toolbox, "act")).outcome == "done"
    assert (odd.sessions - before, odd.lists, odd.says) == (1, [], [])


async def test_agt_7_a_server_that_loses_every_session_is_called_only_twice(odd):
    odd.says = [http("404 Not Found")] * 3
    async with toolbox_over(odd) as toolbox:
        result = await call(toolbox, "act")
    assert (result.status, result.outcome) == ("error", "act was not called")
    assert odd.calls == 2


async def test_ops_6_addresses_and_credentials_of_servers_are_not_logged(odd, caplog):
    caplog.set_level("DEBUG")
    set_levels(logging.DEBUG)
    odd.says = [LOST["nothing"]]
    async with toolbox_over(odd, "?key=hunter2", Authorization="Bearer hunter2") as toolbox:
        await call(toolbox, "act")
    assert b"Bearer hunter2" in odd.headers
    assert b"key=hunter2" in odd.headers
    assert "the call of 'act' failed" in caplog.text
    assert "hunter2" not in "".join(record.getMessage() for record in caplog.records)
