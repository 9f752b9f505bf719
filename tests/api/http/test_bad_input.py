"""Bad input and broken surroundings: each its own clear answer (API-2)."""

import asyncio
import json
import socket
import time
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from fastapi import FastAPI, Request
from httpx import AsyncClient
from pydantic import BaseModel, ValidationError
from temporalio.client import Client

from tests.api.conftest import gateway
from tests.api.waits import until_status
from tests.harness import FAILING_TASK_SECONDS, SLACK, DrivenSession, Environment, fail_workflow_tasks
from tests.speed import cpu_seconds
from turnkeeper.api.bodies import StartSession
from turnkeeper.api.http.responses import install_problem_handlers
from turnkeeper.api.routes.page import page_files
from turnkeeper.models.session.messages import Configure


def problem_of(answer: Any) -> str:
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["status"] == answer.status_code
    assert problem["detail"]
    return problem["type"].removeprefix("urn:turnkeeper:problem:")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "message"),
        ({"message": ""}, "message"),
        ({"message": " \n"}, "message"),
        ({"message": "x" * 100_001}, "message"),
        ({"message": "\u4e2d" * 50_000}, "message"),
        ({"message": 5}, "message"),
        ({"message": None}, "message"),
        ({"message": "a\0b"}, "message"),
        ({"message": "x", "mode": "later"}, "mode"),
        ({"message": "x", "id": "a/b"}, "id"),
        ({"message": "x", "id": ""}, "id"),
        ({"message": "x", "attachments": [{"kind": "code"}]}, "attachments[0]"),
        ({"message": "x", "attachments": {}}, "attachments"),
        ({"message": " ", "attachments": []}, "message"),
        ({"message": "x", "colour": "red"}, "colour"),
        ([], "body"),
        ("text", "body"),
    ],
)
async def test_api_2_an_invalid_prompt_names_its_field(
    shared_http: AsyncClient, unchanged: DrivenSession, body: Any, field: str
) -> None:
    answer = await shared_http.post(f"/workflow/{unchanged.handle.id}/prompt", json=body)
    assert (answer.status_code, problem_of(answer)) == (422, "invalid")
    assert [error["field"] for error in answer.json()["errors"]] == [field]
    assert (await unchanged.state()).revision == 0


@pytest.mark.parametrize(
    "content",
    [
        b'{"message": "\\ud800"}',
        b'{"\\ud800": 1, "message": "x"}',
        b"{",
        b"",
        b"\xff\xfe",
        b"[" * 50_000,
        b'{"message": ' + b"9" * 6_000 + b"}",
        b'{"message": NaN}',
    ],
)
async def test_api_2_an_unreadable_body_is_a_422(
    shared_http: AsyncClient, unchanged: DrivenSession, content: bytes
) -> None:
    answer = await shared_http.post(
        f"/workflow/{unchanged.handle.id}/prompt", content=content, headers={"content-type": "application/json"}
    )
    assert (answer.status_code, problem_of(answer)) == (422, "invalid")


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/chat", b'{"message": "x", "id": "m1", "user_name": "\\ud800"}'),
        ("/tasks", b'{"description": "x", "idempotency_key": "\\ud800"}'),
    ],
)
async def test_api_2_a_lone_surrogate_in_a_key_is_a_422(shared_http: AsyncClient, path: str, content: bytes) -> None:
    answer = await shared_http.post(path, content=content, headers={"content-type": "application/json"})
    assert (answer.status_code, problem_of(answer)) == (422, "invalid")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"limits": {"max_steps": 0}}, "limits.max_steps"),
        ({"limits": {"max_stepz": 5}}, "limits.max_stepz"),
        ({"limits": {"max_steps": "5"}}, "limits.max_steps"),
        ({"limits": {"max_tool_calls": False}}, "limits.max_tool_calls"),
        ({"limits": {"max_state_bytes": 31_999}}, "limits.max_state_bytes"),
        ({"limits": []}, "limits"),
        ({"history": {"max_messages": -1}}, "history.max_messages"),
        ({"history": {"evict_block": False}}, "history.evict_block"),
        ({"history": {"summarize_on_trim": "no"}}, "history.summarize_on_trim"),
        ({"model": "nobody:x"}, "model"),
        ({"model": "x"}, "model"),
        ({"user": "a' OR AgentUser = 'b"}, "user"),
        ({"user": "a\\"}, "user"),
        ({"tool_policy": {"pay": "sometimes"}}, "tool_policy.pay"),
        ({"workspace": "../etc"}, "workspace"),
        ({"workspace": "/etc"}, "workspace"),
        ({"title": ""}, "title"),
        ({"id": "a b"}, "id"),
        ({"prompt": " "}, "prompt"),
        ({"attachments": [7]}, "attachments[0]"),
        ({"attachments": [{"type": "code", "content": "x"}], "prompt": "\0"}, "prompt"),
    ],
)
async def test_api_2_an_invalid_start_names_its_field(shared_http: AsyncClient, body: Any, field: str) -> None:
    answer = await shared_http.post("/workflow", json=body)
    assert (answer.status_code, problem_of(answer)) == (422, "invalid")
    assert answer.json()["errors"][0]["field"] == field


async def test_api_2_a_text_or_boolean_is_not_accepted_as_a_number(
    shared_http: AsyncClient, shared_env: Environment
) -> None:
    path = f"/workflow/{(await shared_env.start()).handle.id}"
    for body in ({"limits": {"max_steps": "5"}}, {"history": {"evict_block": False}}):
        assert (await shared_http.patch(path, json=body)).status_code == 422
    assert (await shared_http.patch(path, json={"limits": {"max_steps": 5, "turn_timeout": 60}})).status_code == 202


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/workflow/a%20b", "id"),
        ("/workflow/{}/conversation?since_revision=-1", "since_revision"),
        ("/workflow/{}/conversation?since_revision=x", "since_revision"),
        ("/workflow/{}/conversation?limit=0", "limit"),
        ("/workflow/{}/conversation?wait=61", "wait"),
        ("/workflow/{}/conversation?wait=nan", "wait"),
        ("/workflow/{}/conversation?colour=red", "colour"),
        ("/workflow/{}/conversation/full?before=a%20b", "before"),
        ("/workflow/{}/conversation/full?limit=0", "limit"),
        ("/workflow/{}/conversation/full?limit=x", "limit"),
        ("/workflow/{}/blobs/nope", "hash"),
        ("/workflow/{}/attachments/nope", "hash"),
        ("/workflow/{}/attachments/" + "a" * 64 + "?name=", "name"),
        ("/workflow/{}/blobs/" + "A" * 64, "hash"),
        ("/workflow/{}/blobs/" + "a" * 65, "hash"),
        ("/workflow/{}/blobs/" + "a" * 64 + "%0A", "hash"),
        ("/workflow/{}/blobs/" + "a" * 64 + "?as=html", "as"),
        ("/workflow?status=happy", "status"),
        ("/workflow?user=a%22", "user"),
        ("/workflow?user=a%3D", "user"),
        ("/workflow?cursor=!!", "cursor"),
        ("/workflow?q=", "q"),
        ("/workflow?q=%00", "q"),
    ],
)
async def test_api_2_an_invalid_parameter_is_named(
    shared_http: AsyncClient, unchanged: DrivenSession, path: str, field: str
) -> None:
    answer = await shared_http.get(path.format(unchanged.handle.id))
    assert (answer.status_code, problem_of(answer)) == (422, "invalid")
    assert [error["field"] for error in answer.json()["errors"]] == [field]


async def test_api_2_an_unknown_cursor_gets_a_reset_instead_of_an_error(
    shared_http: AsyncClient, shared_env: Environment
) -> None:
    session = await shared_env.start()
    await session.prompt("hi")
    await session.idle(turns=1)
    for params in ({"last_seen_message_id": "nonsense"}, {"since_revision": 10**9}, {"last_seen_message_id": "\ud83d"}):
        answer = await shared_http.get(
            f"/workflow/{session.handle.id}/conversation",
            params={
                key: value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
                for key, value in params.items()
            },
        )
        update = answer.json()["conversation_update"]
        assert update["reset"]
        assert len(update["new_messages"]) == 1


async def test_api_2_an_ended_session_rejects_changes_and_stays_readable(
    shared_http: AsyncClient, shared_env: Environment
) -> None:
    session = await shared_env.start()
    await session.prompt("hi")
    await session.idle(turns=1)
    await session.handle.signal("end_chat")
    await session.handle.result()
    path = f"/workflow/{session.handle.id}"
    for method, tail, body in (
        ("POST", "/prompt", {"message": "more"}),
        ("PATCH", "", {"title": "x"}),
        ("POST", "/cancel", {"message_id": "p"}),
        ("POST", "/end", {}),
        ("DELETE", "/queue/p1", None),
    ):
        answer = await shared_http.request(method, path + tail, json=body)
        assert (answer.status_code, problem_of(answer)) == (409, "session-ended"), tail
    assert (await shared_http.get(path)).json()["status"] == "ended"
    assert (await shared_http.get(path + "/conversation")).json()["conversation_update"]["status"] == "ended"


async def test_api_2_a_terminated_session_has_the_status_terminated(http: AsyncClient, env: Environment) -> None:
    env.vendor.gate.close()
    session = await env.start()
    await session.prompt("hi")
    await env.vendor.gate.until_arrived(1)
    await session.handle.terminate()
    update = (await http.get(f"/workflow/{session.handle.id}/conversation")).json()["conversation_update"]
    assert (update["status"], update["is_processing"]) == ("terminated", False)


async def test_api_2_a_body_over_a_mebibyte_is_a_413_with_or_without_content_length(shared_http: AsyncClient) -> None:
    announced = await shared_http.post("/workflow/x/cancel", content=b"x" * 2_000_000)
    assert (announced.status_code, problem_of(announced)) == (413, "too-large")

    async def stream() -> Any:
        for _ in range(40):
            yield b"x" * 100_000

    streamed = await shared_http.post(
        "/workflow/x/cancel", content=stream(), headers={"content-type": "application/json"}
    )
    assert (streamed.status_code, problem_of(streamed)) == (413, "too-large")


async def test_api_2_a_client_that_sends_its_whole_body_first_can_still_read_the_413(url: str) -> None:
    address = urlsplit(url)
    for path, size in (("/markdown", 3_000_000), ("/chat", 12_000_000), ("/tasks/preview", 12_000_000)):
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\nConnection: close\r\n"
        )
        body = b"x" * size
        announced = f"{head}Content-Length: {size}\r\n\r\n".encode() + body
        chunked = f"{head}Transfer-Encoding: chunked\r\n\r\n{size:x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
        for request in (announced, chunked):
            answer = await asyncio.to_thread(sent_whole, address.hostname, address.port, request)
            assert answer.startswith(b"HTTP/1.1 413 ")
            assert b"application/problem+json" in answer
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["type"] == "urn:turnkeeper:problem:too-large"


def sent_whole(host: str, port: int, request: bytes) -> bytes:
    """Send all of a request, and only then read the answer to its end."""
    with socket.create_connection((host, port), timeout=60) as connection:
        connection.sendall(request)
        answer = b""
        while piece := connection.recv(65_536):
            answer += piece
    return answer


MALFORMED_REQUESTS = {
    "no method": b"HELLO\r\n\r\n",
    "version": b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
    "two lengths": b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "bad chunk": b"POST /chat HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
}


async def test_api_2_a_malformed_http_request_gets_a_problem_document(url: str) -> None:
    address = urlsplit(url)
    for what, request in MALFORMED_REQUESTS.items():
        answer = await asyncio.to_thread(sent_whole, address.hostname, address.port, request)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 "), what
        assert b"content-type: application/problem+json" in head, what
        assert json.loads(body)["type"] == "urn:turnkeeper:problem:malformed-request", what


async def test_api_2_a_client_that_disconnects_within_its_body_causes_no_server_error() -> None:
    app = FastAPI()
    install_problem_handlers(app)

    @app.post("/")
    async def read(request: Request) -> None:
        await request.body()

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    messages = list[Any]()

    async def send(message: Any) -> None:
        messages.append(message)

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [], "query_string": b""}
    await app(scope, receive, send)  # what is raised here is logged as an error
    assert [message.get("status") for message in messages] == [408, None]


async def test_api_2_unknown_routes_and_methods_are_problems_too(shared_http: AsyncClient) -> None:
    assert problem_of(await shared_http.get("/nowhere")) == "not-found"
    wrong = await shared_http.put("/workflow")
    assert (wrong.status_code, problem_of(wrong), wrong.json()["title"]) == (
        405,
        "method-not-allowed",
        "Method not allowed",
    )


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/workflow", "GET, HEAD, OPTIONS, POST"),
        ("/workflow/x", "DELETE, GET, HEAD, OPTIONS, PATCH"),
        ("/workflow/x/queue/p1", "DELETE, GET, HEAD, OPTIONS"),
        ("/workflow/x/prompt", "OPTIONS, POST"),
        ("/healthz", "GET, HEAD, OPTIONS"),
        ("/", "GET, HEAD, OPTIONS"),
        ("/docs", "GET, HEAD, OPTIONS"),
        (f"{page_files().path}/page.js", "GET, HEAD, OPTIONS"),
    ],
)
async def test_api_2_a_405_lists_all_methods_of_the_path(http_nowhere: AsyncClient, path: str, allowed: str) -> None:
    wrong = await http_nowhere.put(path)
    assert (wrong.status_code, problem_of(wrong), wrong.headers["allow"]) == (405, "method-not-allowed", allowed)
    answer = await http_nowhere.options(path)
    assert (answer.status_code, answer.content, answer.headers["allow"]) == (204, b"", allowed)
    assert (await http_nowhere.options("/nowhere")).status_code == 404


async def test_api_7_every_get_route_supports_head(
    shared_http: AsyncClient, shared_env: Environment, api_document: Any
) -> None:
    session = await shared_env.start()
    await session.prompt("hi")
    await session.idle(turns=1)
    for path, operations in api_document["paths"].items():
        concrete = path.replace("{id}", session.handle.id).replace("{message_id}", "p1").replace("{hash}", "a" * 64)
        head = await shared_http.head(concrete)
        assert head.content == b""
        if path in ("/tasks/preview", "/workflow/import"):
            assert head.status_code == 404  # where `GET` reads the task "preview", or the session "import"
        elif "get" not in operations:
            assert head.status_code == 405, path
        elif not path.endswith(("/events", "/stream")):
            got = await shared_http.get(concrete)
            assert (head.status_code, head.headers["content-type"]) == (got.status_code, got.headers["content-type"])
        else:
            assert head.status_code in (200, 204)
    for path in ("/", f"{page_files().path}/page.js", "/docs", "/redoc", "/openapi.json"):
        head = await shared_http.head(path)
        assert (head.status_code, head.content) == (200, b"")


async def test_api_2_head_on_a_path_without_get_is_a_405_that_names_head(http_nowhere: AsyncClient) -> None:
    by_head = await http_nowhere.head("/workflow/x/cancel")
    by_put = await http_nowhere.put("/workflow/x/cancel")
    assert by_put.json()["detail"] == "/workflow/x/cancel doesn't support PUT. Supported: OPTIONS, POST."
    # A response to HEAD shows only the length of its body.
    expected = by_put.text.replace("PUT", "HEAD")
    assert (by_head.status_code, by_head.headers["content-length"]) == (405, str(len(expected)))


async def test_api_2_without_a_worker_prompts_are_accepted_and_reads_are_504_within_3_s(
    http_alone: AsyncClient, temporal: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "turnkeeper.api.temporal.temporal_calls")
    session = f"w-{uuid4()}"
    assert (await http_alone.post("/workflow", json={"id": session})).status_code == 201
    began = time.monotonic()
    answer = await http_alone.post(f"/workflow/{session}/prompt", json={"message": "are you there?"})
    assert answer.status_code == 202
    assert time.monotonic() - began < 3 + SLACK
    requests = [
        ("GET", "/conversation", None),
        ("GET", "", None),
        ("GET", "/queue", None),
        ("PATCH", "", {"title": "x"}),
    ]
    began = time.monotonic()
    answers = await asyncio.gather(
        *(http_alone.request(method, f"/workflow/{session}{tail}", json=body) for method, tail, body in requests)
    )
    assert time.monotonic() - began < 3 + SLACK
    for answer in answers:
        assert (answer.status_code, problem_of(answer)) == (504, "no-worker")
        assert "safe" in answer.json()["detail"]
    assert f"of {session} was not answered" in caplog.text
    ready = await http_alone.get("/readyz")
    assert (ready.status_code, ready.json()["workers"]) == (200, 0)
    assert (await http_alone.get("/statusz")).json()["workers"] == []
    assert (await http_alone.post(f"/workflow/{session}/end")).status_code == 202
    events = (await temporal.get_workflow_handle(session).fetch_history()).events
    signals = [event.workflow_execution_signaled_event_attributes for event in events]
    assert b"are you there?" in b"".join(payload.data for signal in signals for payload in signal.input.payloads)


async def test_api_2_without_a_worker_concurrent_reads_all_fail_within_3_seconds(http_alone: AsyncClient) -> None:
    session = f"w-{uuid4()}"
    await http_alone.post("/workflow", json={"id": session})
    began = time.monotonic()
    answers = await asyncio.gather(
        *(http_alone.get(f"/workflow/{session}/conversation?since_revision={n}") for n in range(20))
    )
    assert {answer.status_code for answer in answers} == {504}
    assert time.monotonic() - began < 3 + SLACK


async def test_api_2_an_unknown_namespace_is_reported_as_temporal_unreachable(temporal: Client, tmp_path: Path) -> None:
    async with gateway(Client(temporal.service_client, namespace="nope"), "q", tmp_path) as http:
        for path in ("/workflow/s1", "/readyz"):
            answer = await http.get(path)
            assert (answer.status_code, problem_of(answer)) == (503, "temporal-unreachable")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/workflow"),
        ("POST", "/chat"),
        ("POST", "/workflow/s1/prompt"),
        ("GET", "/workflow/s1"),
        ("GET", "/workflow/s1/conversation"),
        ("GET", "/workflow/s1/conversation/full"),
        ("GET", "/workflow/s1/blobs/" + "a" * 64),
        ("GET", "/workflow/s1/attachments/" + "a" * 64),
        ("POST", "/workflow/s1/attachments"),
        ("PATCH", "/workflow/s1"),
        ("DELETE", "/workflow/s1"),
        ("GET", "/readyz"),
        ("GET", "/statusz"),
    ],
)
async def test_api_2_without_temporal_every_route_is_a_503_within_3_seconds(
    http_nowhere: AsyncClient, method: str, path: str
) -> None:
    body = {"message": "x"} if path.endswith(("prompt", "chat")) else {}
    began = time.monotonic()
    answer = await http_nowhere.request(method, path, json=None if method == "GET" else body)
    assert (answer.status_code, problem_of(answer)) == (503, "temporal-unreachable")
    assert time.monotonic() - began < 3 + SLACK
    assert (await http_nowhere.get("/healthz")).status_code == 200


async def test_api_2_a_session_is_stuck_if_its_workflow_task_keeps_failing(
    http: AsyncClient, env: Environment, product_bounds: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = (await env.start(task_seconds=FAILING_TASK_SECONDS)).handle.id
    fail_workflow_tasks(monkeypatch)
    await http.post(f"/workflow/{session}/prompt", json={"message": "hi"})
    await until_status(http, session, "stuck")
    answer = await http.get(f"/workflow/{session}/conversation")
    assert (answer.status_code, problem_of(answer)) == (504, "session-stuck")
    await env.client.get_workflow_handle(session).terminate()


def test_api_2_every_error_of_every_route_is_described_as_a_problem(api_document: Any) -> None:
    assert api_document["paths"]["/workflow/{id}/blobs/{hash}"]["get"]["responses"]["200"]["content"].keys() == {
        "text/plain"
    }
    for path, operations in api_document["paths"].items():
        for operation in operations.values():
            errors = {status: answer for status, answer in operation["responses"].items() if status >= "400"}
            assert "422" in errors, path
            for answer in errors.values():
                assert answer["content"] == {
                    "application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}
                }


def test_api_7_an_operation_lists_exactly_the_errors_it_can_return(api_document: Any) -> None:
    paths = api_document["paths"]

    def errors(method: str, path: str) -> str:
        return " ".join(status for status in sorted(paths[path][method]["responses"]) if status >= "400")

    assert errors("get", "/healthz") == "422"
    assert errors("get", "/workflow") == "401 403 422 429 503"
    assert errors("post", "/workflow") == "401 403 409 413 422 429 503"
    assert errors("get", "/workflow/{id}") == "401 403 404 410 422 429 503 504"
    assert errors("post", "/workflow/{id}/prompt") == "401 403 404 409 410 413 422 429 503"
    assert errors("post", "/markdown") == "401 403 413 422 429 503"
    assert errors("get", "/workflow/{id}/blobs/{hash}") == "401 403 404 410 422 429 503"
    assert errors("post", "/workflow/{id}/attachments") == "401 403 404 410 413 422 429 503"
    deleted = paths["/workflow/{id}"]["delete"]["responses"]
    assert {status: answer for status, answer in deleted.items() if status < "300"}.keys() == {"200", "202"}


def test_api_7_every_tag_has_a_description_and_common_bodies_have_examples(api_document: Any) -> None:
    tags = {tag for path in api_document["paths"].values() for operation in path.values() for tag in operation["tags"]}
    assert tags == {tag["name"] for tag in api_document["tags"] if tag["description"]}
    schemas = api_document["components"]["schemas"]
    for name in ("StartSession", "SendPrompt", "Chat", "Decision", "PostChat", "Problem"):
        assert schemas[name]["examples"], name


@pytest.mark.parametrize(
    ("method", "path", "body", "field"),
    [
        ("POST", "/workflow", {"unattended": 0}, "unattended"),
        ("POST", "/workflow", {"unattended": "yes"}, "unattended"),
        ("POST", "/workflow/{}/end", {"discard_queue": 0}, "discard_queue"),
        ("POST", "/workflow/{}/end", {"discard_queue": "true"}, "discard_queue"),
    ],
)
async def test_api_2_only_true_and_false_are_accepted_as_booleans(
    shared_http: AsyncClient, unchanged: DrivenSession, method: str, path: str, body: Any, field: str
) -> None:
    answer = await shared_http.request(method, path.format(unchanged.handle.id), json=body)
    assert (answer.status_code, problem_of(answer)) == (422, "invalid")
    assert [error["field"] for error in answer.json()["errors"]] == [field]


async def test_api_1_a_session_that_is_being_deleted_is_a_404(http: AsyncClient, env: Environment) -> None:
    session = f"d-{uuid4()}"
    await http.post("/workflow", json={"id": session})
    assert (await http.post(f"/workflow/{session}/prompt?wait=60", json={"message": "hi"})).status_code == 200
    assert (await http.delete(f"/workflow/{session}")).status_code == 202
    for tail in ("", "/approvals", "/conversation", "/conversation/full", "/queue", "/context", "/events"):
        answer = await http.get(f"/workflow/{session}{tail}")
        assert (answer.status_code, problem_of(answer)) == (404, "unknown-session"), tail
    assert (await http.delete(f"/workflow/{session}")).status_code in (200, 202)


@pytest.mark.parametrize("field", ["limits", "history", "tool_policy"])
@pytest.mark.parametrize("model", [StartSession, Configure])
def test_ses_10_the_largest_accepted_body_is_validated_within_half_a_second(model: type[BaseModel], field: str) -> None:
    values: list[Any] = [{f"k{number}": 1 for number in range(80_000)}, [0] * 500_000, [{}] * 300_000, "x" * 1_000_000]
    for body in ({field: values[0], "unknown": values[1]}, values[0], *({field: value} for value in values)):
        assert cpu_seconds(partial(reject, model, body)) < 0.5


def reject(model: type[BaseModel], body: Any) -> None:
    with pytest.raises(ValidationError):
        model.model_validate(body)


async def test_ses_10_api_2_80_000_keys_are_rejected_at_once_and_block_no_session(
    shared_http: AsyncClient, shared_env: Environment
) -> None:
    session = await shared_env.start()
    keys = {f"k{number}": 1 for number in range(80_000)}
    for method, path in (("POST", "/workflow"), ("PATCH", f"/workflow/{session.handle.id}")):
        for field in ("limits", "history", "tool_policy"):
            answer = await shared_http.request(method, path, json={field: keys})
            assert (answer.status_code, problem_of(answer)) == (422, "invalid")
            (error,) = answer.json()["errors"]
            assert (error["field"], error["reason"]) == (field, "has 80,000 keys; 200 are allowed")
    await session.prompt("hello")
    await session.idle(turns=1)


async def test_ses_10_the_error_for_an_unknown_limit_lists_the_valid_ones(shared_http: AsyncClient) -> None:
    answer = await shared_http.post("/workflow", json={"limits": {"max_stepz": 5}, "history": {"size": 5}})
    reasons = {error["field"]: error["reason"] for error in answer.json()["errors"]}
    assert reasons.keys() == {"limits.max_stepz", "history.size"}
    assert "max_steps" in reasons["limits.max_stepz"]
    assert "max_messages" in reasons["history.size"]
