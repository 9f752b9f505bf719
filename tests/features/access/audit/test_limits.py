"""Nobody asks for more than the limits allow, and a refusal says which limit and when to try again: API-4."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import pytest
from httpx import AsyncClient, Response
from starlette.types import Message, Receive, Scope, Send
from temporalio.client import (
    Client,
    DescribeWorkflowInput,
    Interceptor,
    OutboundInterceptor,
    WorkflowExecutionDescription,
)
from temporalio.service import RPCError, RPCStatusCode

from tests.features.access.audit.callers import ADA, BOB, client_of, gateway_of_callers
from tests.harness import TASK_SECONDS, Environment, patient
from tests.waiting import run_other_tasks, until
from turnkeeper.api.app import create_app
from turnkeeper.api.callers import LOCAL, Caller
from turnkeeper.api.history.visible_sessions import count_open_sessions
from turnkeeper.api.http.limits import DEFAULTS, RateLimitMiddleware, RequestRates, limit_of
from turnkeeper.api.problems import LimitName
from turnkeeper.api.roles import RouteFinder
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.models.settings.settings import Settings

MESSAGE = {"id": "m", "role": "user", "parts": [{"type": "text", "text": "two"}]}


def assert_over(answer: Response, limit: str) -> None:
    problem = answer.json()
    assert (answer.status_code, problem["type"].rpartition(":")[2], problem["limit"]) == (429, "rate-limited", limit)
    assert int(answer.headers["retry-after"]) >= 1
    assert limit in problem["detail"]


class Endless:
    """An application whose requests last until the test ends them."""

    def __init__(self) -> None:
        self.running = 0
        self.end = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.running += 1
        await self.end.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


@cache
def route_finder() -> RouteFinder:
    return RouteFinder(create_app(Settings()).routes, Settings())


async def answer_of(app: RateLimitMiddleware, path: str, caller: Caller = ADA, query: bytes = b"") -> int:
    messages: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        messages.append(message)

    method = "POST" if path in ("/api/chat", "/mcp") else "GET"
    scope = {"type": "http", "method": method, "path": path, "query_string": query, "headers": []}
    scope["state"] = {"caller": caller, "route": route_finder().find(scope)}
    await app(scope, receive, send)
    status: int = messages[0]["status"]
    return status


def test_api_4_without_authentication_a_limit_applies_only_if_it_is_set():
    names: tuple[LimitName, ...] = tuple(DEFAULTS)
    assert {name: limit_of(Settings(), name, LOCAL) for name in names} == dict.fromkeys(names, math.inf)
    assert {name: limit_of(Settings(), name, ADA) for name in names} == DEFAULTS
    for name in names:
        for caller in (LOCAL, ADA):
            assert limit_of(Settings(**{name: 3}), name, caller) == 3


async def test_api_4_each_caller_has_its_own_rate_limit():
    now = 0.0
    endless = Endless()
    endless.end.set()
    settings = Settings(rate_limit=2)
    app = RateLimitMiddleware(endless, observers=(), settings=settings, rates=RequestRates(settings, clock=lambda: now))
    assert [await answer_of(app, "/workflow/a") for _ in range(10)] == [200] * 8 + [429] * 2
    assert await answer_of(app, "/workflow/a", BOB) == 200
    assert await answer_of(app, "/healthz") == 200
    now = 1.0
    assert [await answer_of(app, "/workflow/a") for _ in range(3)] == [200, 200, 429]
    now = 100.0
    assert [await answer_of(app, "/workflow/a") for _ in range(9)] == [200] * 8 + [429]


async def test_api_4_streams_and_waiting_requests_are_limited_in_number():
    endless = Endless()
    settings = Settings(max_streams_per_key=3)
    app = RateLimitMiddleware(endless, observers=(), settings=settings, rates=RequestRates(settings))
    paths = (("/workflow/a/events", b""), ("/api/chat", b""), ("/tasks/a", b"wait_seconds=60"))
    streams = [asyncio.create_task(answer_of(app, path, query=query)) for path, query in paths]
    await run_other_tasks()
    assert endless.running == 3
    for path, query in (*paths, ("/mcp", b""), ("/workflow/a/conversation", b"wait=5")):
        assert await answer_of(app, path, query=query) == 429
    others = [asyncio.create_task(answer_of(app, path, caller)) for path, caller in (("/mcp", BOB), ("/workflow", ADA))]
    endless.end.set()
    assert await asyncio.gather(*streams, *others) == [200] * 5
    assert await answer_of(app, "/workflow/a/events") == 200


@asynccontextmanager
async def limited(temporal: Client, env: Environment, **limits: Any) -> AsyncIterator[dict[str, AsyncClient]]:
    """Yield clients of a gateway with these limits, by their callers' users."""
    settings = Settings(
        task_queue=env.task_queue, state_dir=env.settings.state_dir, task_timeout=TASK_SECONDS, **limits
    )
    async with (
        gateway_of_callers(temporal, settings, partials=env.partials) as app,
        client_of(app, BOB) as bob,
        client_of(app) as local,
    ):
        yield {"bob": bob, "local": local}


async def test_api_4_the_prompts_of_a_session_are_limited_per_minute_for_all_callers(
    temporal: Client, shared_env: Environment
):
    async with limited(temporal, shared_env, prompt_rate_limit=0.01) as clients:
        bob, local = clients["bob"], clients["local"]
        for session in ("limited-1", "limited-2"):
            await bob.post("/workflow", json={"id": session})
            answer = await local.post("/chat", json={"message": "one", "workflow_id": session})
            assert answer.status_code == 202
        for path, body in (
            ("/workflow/limited-1/prompt", {"message": "two"}),
            ("/chat", {"message": "two", "workflow_id": "limited-1"}),
            ("/workflow/limited-1/retry", {}),
            ("/tasks/limited-1/messages", {"text": "two"}),
            ("/api/chat", {"id": "limited-1", "message": MESSAGE}),
        ):
            assert_over(await bob.post(path, json=body), "prompt_rate_limit")
        audited = (await local.get("/audit", params={"session": "limited-1"})).json()["entries"]
        assert [entry["action"] for entry in audited if entry["outcome"] == "accepted"] == ["prompt", "start"]
        refused = {(entry["operation"], entry["status"]) for entry in audited if entry["outcome"] == "refused"}
        operations = ("send_prompt", "chat", "retry_turn", "message_task", "ai_sdk_chat")
        assert refused == {(operation, 429) for operation in operations}


async def test_api_4_a_tenant_at_its_session_limit_can_only_use_its_open_sessions(
    temporal: Client, shared_env: Environment, monkeypatch: pytest.MonkeyPatch
):
    counts: dict[str, int] = {"": 7}

    async def count(_: Client, timeouts: Timeouts, tenant: str) -> int:
        return counts[tenant]

    monkeypatch.setattr("turnkeeper.features.access.session_limits.count_open_sessions", count)
    async with limited(temporal, shared_env, max_open_sessions=9) as clients:
        bob = clients["bob"]
        for session in ("open-1", "open-2"):
            assert (await bob.post("/workflow", json={"id": session})).status_code == 201
        for path, body in (
            ("/workflow", {"id": "open-3"}),
            ("/workflow/open-3/prompt?start=true", {"message": "hi"}),
            ("/chat", {"message": "hi"}),
            ("/tasks", {"description": "Count."}),
            ("/api/chat", {"id": "open-3", "message": MESSAGE}),
        ):
            assert_over(await bob.post(path, json=body), "max_open_sessions")
        assert (await bob.get("/workflow/open-3")).status_code == 404
        assert (await bob.post("/workflow/open-1/prompt?start=true", json={"message": "hi"})).status_code == 202


async def test_api_4_concurrent_starts_stay_within_the_session_limit(
    temporal: Client, shared_env: Environment, monkeypatch: pytest.MonkeyPatch
):
    async def count(_: Client, timeouts: Timeouts, tenant: str) -> int:
        await run_other_tasks(50)
        return 5

    monkeypatch.setattr("turnkeeper.features.access.session_limits.count_open_sessions", count)
    async with limited(temporal, shared_env, max_open_sessions=10) as clients:
        answers = await asyncio.gather(*[clients["bob"].post("/workflow") for _ in range(20)])
    assert sorted(answer.status_code for answer in answers) == [201] * 5 + [429] * 15


async def test_api_4_a_request_that_starts_no_session_is_not_counted_as_a_start(
    temporal: Client, shared_env: Environment, monkeypatch: pytest.MonkeyPatch
):
    async def count(_: Client, timeouts: Timeouts, tenant: str) -> int:
        return 7

    monkeypatch.setattr("turnkeeper.features.access.session_limits.count_open_sessions", count)
    async with limited(temporal, shared_env, max_open_sessions=9) as clients:
        bob = clients["bob"]
        assert (await bob.post("/workflow", json={"id": "counted-1"})).status_code == 201
        message = {"id": "m", "role": "user", "parts": [{"type": "text", "text": "hi"}]}
        for path, body, status in (
            ("/workflow", {"id": "counted-1"}, 409),
            ("/workflow/counted-1/prompt?start=true", {"message": "hi"}, 202),
            ("/chat", {"message": "hi", "workflow_id": "counted-1"}, 202),
            ("/api/chat", {"id": "counted-1", "message": message}, 200),
        ):
            answer = await bob.post(path, json=body)
            assert answer.status_code == status, (path, answer.text)
        assert (await bob.post("/workflow", json={"id": "counted-2"})).status_code == 201
        assert_over(await bob.post("/workflow", json={"id": "counted-3"}), "max_open_sessions")


class Unreachable(Interceptor):
    """Temporal describes no workflow."""

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        return _Unreachable(next)


class _Unreachable(OutboundInterceptor):
    async def describe_workflow(self, input: DescribeWorkflowInput) -> WorkflowExecutionDescription:
        raise RPCError("connection refused", RPCStatusCode.UNAVAILABLE, b"")


async def test_api_4_while_temporal_is_unreachable_a_start_counts_no_sessions(
    temporal: Client, shared_env: Environment, monkeypatch: pytest.MonkeyPatch
):
    counted: list[str] = []

    async def count(_: Client, timeouts: Timeouts, tenant: str) -> int:
        counted.append(tenant)
        return 0

    monkeypatch.setattr("turnkeeper.features.access.session_limits.count_open_sessions", count)
    client = Client(**{**temporal.config(), "interceptors": [Unreachable()]})
    async with limited(client, shared_env, max_open_sessions=9) as clients:
        assert (await clients["bob"].post("/workflow", json={"id": "unreachable-1"})).status_code == 201
    assert counted == []


async def test_api_4_open_sessions_are_counted_by_temporal(temporal: Client, shared_env: Environment):
    session = await shared_env.start()

    async def is_counted() -> bool:
        return await count_open_sessions(temporal, patient(), "") > 0

    await until(is_counted)
    await session.handle.terminate()
