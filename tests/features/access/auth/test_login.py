"""Logging in at the page, and what becomes of open requests when a key ends (API-4)."""

import asyncio
import contextlib
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp.shared.exceptions import MCPError
from temporalio.client import Client, Interceptor, OutboundInterceptor, StartWorkflowInput, WorkflowHandle

from tests.api.conftest import SessionRequests, gateway, served
from tests.features.access.auth.issuer import AUDIENCE, running_issuer
from tests.features.access.auth.matrix import Column, key_of
from tests.features.mcp.client import mcp_client
from tests.harness import TASK_SECONDS, Environment, Gate, asks, patient
from tests.waiting import BOUND, until
from turnkeeper.api.callers import LOCAL, Identity
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.clients.python.request_sender import GatewayProblemError
from turnkeeper.features.access import credentials
from turnkeeper.features.access.credentials import CredentialAuthenticator
from turnkeeper.features.access.tables import TOKEN_BYTES, ApiKeys, Logins
from turnkeeper.features.ai_sdk.gateway import DECISION_AWAITED_NOTICE
from turnkeeper.models.http_responses import Role
from turnkeeper.models.settings.settings import AuthSettings, OidcSettings, Settings
from turnkeeper.models.transcript.model_call import ToolSpec
from turnkeeper.stores.database.database import StoreUnavailableError
from turnkeeper.stores.stores import Stores

ADMIN = Column("Ann", "admin")
READER = Column("Rob", "reader")


class FailingKeys:
    """A store of keys in which one lookup hangs, one fails in a way that nobody expects, and any other finds none."""

    def __init__(self) -> None:
        self.is_well = asyncio.Event()

    async def find(self, key_id: str) -> None:
        if key_id == "hanging":
            await self.is_well.wait()
        if key_id == "failing":
            raise RuntimeError("nobody expects this")

    async def find_nothing(self, _: str) -> None:
        raise StoreUnavailableError("The store is down.")


def settings_with_keys(env: Environment) -> Settings:
    """Return the settings of a gateway that needs keys, in front of the environment's worker."""
    return Settings(
        task_queue=env.task_queue, state_dir=env.settings.state_dir, task_timeout=TASK_SECONDS, auth={"keys": True}
    )


@pytest.fixture(scope="module")
async def settings(shared_env: Environment) -> Settings:
    return settings_with_keys(shared_env)


@pytest.fixture(scope="module")
async def address(temporal: Client, shared_env: Environment, settings: Settings) -> AsyncIterator[str]:
    """A gateway that needs a key."""
    async with served(temporal, settings, partials=shared_env.partials) as url:
        yield url


@pytest.fixture
async def browser(address: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=address, headers={"Origin": address}, timeout=70) as http:
        yield http


QUICK_CHECKS = patient(recheck=0.05, lookup_cache=0.01)
"""Keys are looked up at once, and open requests checked often."""


async def test_api_4_the_page_logs_in_with_a_key_that_no_script_can_read_and_logs_out(
    browser: httpx.AsyncClient, settings: Settings
) -> None:
    assert (await browser.get("/me")).json() == {"authentication": True, "caller": None}
    assert (await browser.get("/")).status_code == 200
    assert (await browser.get("/workflow")).status_code == 401
    assert (await browser.post("/login", json={"key": "tk_wrong"})).status_code == 401
    answer = await browser.post("/login", json={"key": f" {await key_of(settings, READER)}\n"})
    reader = {"tenant": "", "user": "Rob", "role": "reader"}
    assert (answer.status_code, answer.json()) == (200, {"authentication": True, "caller": reader})
    (cookie,) = SimpleCookie(answer.headers["set-cookie"]).values()
    assert cookie["httponly"]
    assert not cookie["secure"]
    assert (cookie["samesite"].lower(), cookie["path"], cookie["domain"]) == ("strict", "/", "")
    assert (await browser.get("/me")).json()["caller"] == reader
    assert (await browser.get("/workflow")).status_code == 200
    assert (await browser.post("/workflow")).status_code == 403
    assert (await browser.post("/logout")).status_code == 204
    assert (await browser.get("/workflow")).status_code == 401


async def test_api_4_a_cookie_contains_no_key_and_is_invalid_after_the_logout(
    browser: httpx.AsyncClient, settings: Settings
) -> None:
    key = await key_of(settings, READER)
    answer = await browser.post("/login", json={"key": key})
    (cookie,) = SimpleCookie(answer.headers["set-cookie"]).values()
    assert cookie.key == f"turnkeeper_{browser.base_url.port}"
    assert not any(part in answer.headers["set-cookie"] for part in key.split("_", 2)[1:])
    assert cookie.value.encode() not in (settings.state_dir / "archive.db").read_bytes()
    stolen = {"Cookie": f"{cookie.key}={cookie.value}"}
    async with httpx.AsyncClient(base_url=browser.base_url) as thief:
        assert (await thief.get("/workflow", headers=stolen)).status_code == 200
        assert (await browser.post("/logout")).status_code == 204
        assert (await thief.get("/workflow", headers=stolen)).status_code == 401
        # Neither is a key a cookie, nor the cookie's token a key.
        assert (await thief.get("/workflow", headers={"Cookie": f"{cookie.key}={key}"})).status_code == 401
        assert (await thief.get("/workflow", headers={"Authorization": f"Bearer {cookie.value}"})).status_code == 401


async def test_api_4_a_logout_removes_the_cookie_while_the_store_is_down(
    browser: httpx.AsyncClient, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await browser.post("/login", json={"key": await key_of(settings, READER)})).status_code == 200

    async def fail(*_: object) -> None:
        raise StoreUnavailableError("The store is down.")

    with monkeypatch.context() as patch:
        patch.setattr(Logins, "delete", fail)
        answer = await browser.post("/logout")
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:turnkeeper:problem:archive-unavailable")
    assert "This browser is logged out" in answer.json()["detail"]
    assert not browser.cookies
    assert (await browser.get("/workflow")).status_code == 401


async def test_api_4_a_logout_needs_no_store_without_authentication(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise StoreUnavailableError("The store is down.")

    monkeypatch.setattr(Logins, "delete", fail)
    cookie = {"Cookie": f"turnkeeper_8080={secrets.token_urlsafe(TOKEN_BYTES)}"}
    async with gateway(None, "none", tmp_path) as http:
        answer = await http.post("/logout", headers={**cookie, "Host": "127.0.0.1:8080"})
    assert answer.status_code == 204
    assert all("Max-Age=0" in one for one in answer.headers.get_list("set-cookie"))
    assert len(answer.headers.get_list("set-cookie")) == 2


async def test_api_4_a_login_ends_with_its_key_within_a_second(
    temporal: Client, shared_env: Environment, settings: Settings
) -> None:
    key = await key_of(settings, READER)
    async with (
        served(temporal, settings, partials=shared_env.partials, timeouts=QUICK_CHECKS) as url,
        httpx.AsyncClient(base_url=url, headers={"Origin": url}) as browser,
        Stores.of(settings) as stores,
    ):
        assert (await browser.post("/login", json={"key": key})).status_code == 200
        assert (await browser.get("/workflow")).status_code == 200
        await ApiKeys(stores.database).revoke(key.split("_")[1], now=datetime.now(UTC))

        async def is_refused() -> bool:
            return (await browser.get("/workflow")).status_code == 401

        assert await until(is_refused)


async def test_api_4_a_login_by_token_ends_with_the_token_which_is_in_no_cookie(
    temporal: Client, shared_env: Environment, settings: Settings
) -> None:
    with running_issuer() as issuer:
        auth = AuthSettings(oidc=OidcSettings(issuer=issuer.url, audience=AUDIENCE))
        by_token = settings.model_copy(update={"auth": auth})
        async with (
            served(temporal, by_token, partials=shared_env.partials, timeouts=patient(issuer_leeway=0)) as url,
            httpx.AsyncClient(base_url=url, headers={"Origin": url}) as browser,
        ):
            ends_at = int(time.time()) + 2
            token = issuer.token(exp=ends_at, role="writer")
            answer = await browser.post("/login", json={"key": token})
            assert answer.json()["caller"]["role"] == "writer"
            assert not any(part in answer.headers["set-cookie"] for part in token.split("."))

            async def is_refused() -> bool:
                return (await browser.get("/workflow")).status_code == 401

            assert await until(is_refused)
            assert time.time() >= ends_at


async def test_api_4_a_page_of_another_site_cannot_log_in_or_use_the_cookie(
    browser: httpx.AsyncClient, settings: Settings
) -> None:
    key = await key_of(settings, ADMIN)
    foreign = {"Origin": "http://evil.example"}
    assert (await browser.post("/login", json={"key": key}, headers=foreign)).status_code == 403
    assert (await browser.post("/login", json={"key": key})).status_code == 200
    assert (await browser.post("/workflow", headers=foreign)).status_code == 403


async def test_api_4_the_cookie_is_for_https_alone_where_the_browser_uses_it(
    temporal: Client, settings: Settings
) -> None:
    public = settings.model_copy(update={"public_url": "https://agents.example/chat"})
    key = await key_of(settings, ADMIN)
    async with served(temporal, public) as url, httpx.AsyncClient(base_url=url) as http:
        for headers, is_secure in (
            ({"Host": "agents.example"}, True),
            ({"Host": "127.0.0.1"}, False),
            ({"Host": "127.0.0.1", "Origin": "https://agents.example"}, True),  # a proxy that does not pass the host
            ({"Host": "127.0.0.1", "Origin": "http://127.0.0.1"}, False),
        ):
            answer = await http.post("/login", json={"key": key}, headers=headers)
            assert ("secure" in answer.headers["set-cookie"].lower()) is is_secure, headers


async def test_api_4_the_python_client_sends_the_key_from_its_argument_or_environment(
    address: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = await key_of(settings, ADMIN)
    async with GatewayClient(address) as gateway:
        with pytest.raises(GatewayProblemError, match="TURNKEEPER_API_KEY") as error:
            await gateway.list_sessions()
        assert error.value.problem.name == "unauthenticated"
    async with GatewayClient(address, api_key=key) as gateway:
        session = await gateway.start(title="With a key")
        assert (await gateway.describe(session.workflow_id)).title == "With a key"
        assert (await gateway.me()).caller.role == "admin"
    monkeypatch.setenv("TURNKEEPER_API_KEY", key)
    async with GatewayClient(address) as gateway:
        assert (await gateway.describe(session.workflow_id)).title == "With a key"
        events = gateway.events(session.workflow_id)
        assert (await anext(events)).event == "update"
        await events.aclose()


async def test_api_4_an_mcp_tool_needs_its_role(address: str, settings: Settings) -> None:
    key = await key_of(settings, Column("Rob", "reader", "without-tasks"))
    async with mcp_client(address, key=key) as client:
        assert (await client.answer("list_tasks"))["tasks"] == []
        refusal = await client.call("create_task", description="Count.")
        assert refusal.is_error
        assert "the writer role" in refusal.content[0].text
    async with mcp_client(address, key=key, tasks=True) as client:
        with pytest.raises(MCPError, match="the writer role"):
            await client.request("tasks/cancel", "no-such-task")
    admin = {"Authorization": f"Bearer {await key_of(settings, Column('Ann', 'admin', 'without-tasks'))}"}
    async with httpx.AsyncClient(base_url=address, headers=admin) as http:
        refused = (await http.get("/audit", params={"action": "request"})).json()["entries"]
    assert [(one["operation"], one["status"], one["user"]) for one in refused] == [
        ("mcp:tasks/cancel", 403, "Rob"),
        ("mcp:create_task", 403, "Rob"),
    ]
    async with mcp_client(address, key=await key_of(settings, Column("Will", "writer"))) as client:
        refusal = await client.call("create_task", description="Count.", tool_policy={"*": "allow"})
        assert refusal.is_error
        assert "tool_policy" in refusal.content[0].text


async def test_api_4_a_session_belongs_to_its_caller_unless_another_user_is_named(
    address: str, settings: Settings
) -> None:
    key = await key_of(settings, Column("Una", "writer", "of-una"))
    message = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "hello"}]}
    ways: list[tuple[str, dict[str, object]]] = [
        ("/workflow", {}),
        ("/chat", {"message": "hello"}),
        ("/workflow/by-prompt/prompt?start=true", {"message": "hello"}),
        ("/tasks", {"description": "Count."}),
        ("/workflow", {"id": "another", "user": "Zoe"}),
        ("/chat", {"message": "hello", "workflow_id": "another-chat", "user_name": "Zoe"}),
    ]
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=address, headers=headers, timeout=70) as http:
        started = {(await http.post(path, json=body)).json()["workflow_id"] for path, body in ways}
        chat = {"id": "by-sdk", "trigger": "submit-message", "messages": [message]}
        assert (await http.post("/api/chat", json=chat)).status_code == 200
        async with mcp_client(address, key=key) as client:
            started.add((await client.answer("create_task", description="Count."))["workflow_id"])
            await client.answer("send_prompt", workflow_id="by-mcp", message="hello", start=True)

        async def ids_of(user: str) -> set[str]:
            answer = await http.get("/workflow", params={"user": user})
            return {session["workflow_id"] for session in answer.json()["sessions"]}

        others = {"another", "another-chat"}
        own = (started | {"by-sdk", "by-mcp"}) - others
        assert len(own) == 7

        async def are_listed() -> bool:
            return (await ids_of("Una"), await ids_of("Zoe")) == (own, others)

        assert await until(are_listed)


async def test_api_4_a_decision_in_a_message_of_the_ai_sdk_needs_an_approver(address: str, settings: Settings) -> None:
    call = {
        "type": "tool-pay",
        "toolCallId": "1.1.0",
        "state": "approval-responded",
        "input": {},
        "approval": {"id": "1.1.0", "approved": True},
    }
    answer = {"id": "m1:answer", "role": "assistant", "parts": [call]}
    body = {"id": "chat-1", "trigger": "submit-message", "messages": [answer]}
    for role, status in (("writer", 403), ("approver", 404)):
        headers = {"Authorization": f"Bearer {await key_of(settings, Column('x', role))}"}
        async with httpx.AsyncClient(base_url=address, headers=headers) as http:
            assert (await http.post("/api/chat", json=body)).status_code in (status, 422 if status != 403 else 403)


async def test_agt_8_an_earlier_decision_of_a_writer_does_not_block_a_prompt(
    address: str, settings: Settings, env: Environment
) -> None:
    env.tools.specs = [ToolSpec(name="pay")]
    env.vendor.script = [asks(("pay", {}))]
    session = await env.start()
    await session.prompt(id="m1", text="pay")
    (pending,) = await session.awaited_approvals()
    call = {
        "type": "tool-pay",
        "toolCallId": pending.call_id,
        "state": "approval-responded",
        "input": {},
        "approval": {"id": f"{pending.call_id}:{pending.args_digest}", "approved": True},
    }
    answer = {"id": "m1:answer", "role": "assistant", "parts": [call]}
    prompt = {"id": "m2", "role": "user", "parts": [{"type": "text", "text": "and?"}]}
    body = {"id": session.handle.id, "trigger": "submit-message", "messages": [answer, prompt]}
    headers = {"Authorization": f"Bearer {await key_of(settings, Column('x', 'writer'))}"}
    async with (
        asyncio.timeout(BOUND),
        httpx.AsyncClient(base_url=address, headers=headers) as http,
        http.stream("POST", "/api/chat", json=body) as stream,
    ):
        assert stream.status_code == 200
        async for line in stream.aiter_lines():
            if line.startswith("data: "):
                break
    assert DECISION_AWAITED_NOTICE in line
    assert [waiting.call_id for waiting in await session.awaited_approvals()] == [pending.call_id]
    assert (await session.state()).queue_length == 1
    await session.decide(pending, "reject")
    await session.idle(turns=2)


async def test_api_4_logins_and_failed_logins_are_audited(browser: httpx.AsyncClient, settings: Settings) -> None:
    roles: tuple[Role, ...] = ("reader", "admin", "writer")
    reader, admin, ended = [await key_of(settings, Column(role, role, "audited")) for role in roles]
    async with Stores.of(settings) as stores:
        await ApiKeys(stores.database).revoke(ended.split("_")[1], now=datetime.now(UTC))
    assert (await browser.post("/login", json={"key": ended})).status_code == 401
    for _ in range(3):
        assert (await browser.post("/login", json={"key": reader})).status_code == 200
        assert (await browser.delete("/workflow/secret-1")).status_code == 403
    assert (await browser.get("/workflow", headers={"Authorization": f"Bearer {ended}"})).status_code == 401
    assert (await browser.get("/workflow", headers={"Authorization": "Bearer tk_x_y"})).status_code == 401
    assert (await browser.post("/logout")).status_code == 204
    answer = await browser.get("/audit", headers={"Authorization": f"Bearer {admin}"})
    recorded = [
        (one["user"], one["action"], one["operation"], one["workflow_id"], one["status"])
        for one in answer.json()["entries"][::-1]
    ]
    assert recorded == [
        ("writer", "request", "log_in", None, 401),
        ("reader", "log_in", "log_in", None, 200),
        ("reader", "request", "DELETE /workflow/{id}", "secret-1", 403),
        ("writer", "request", "GET /workflow", None, 401),
        ("reader", "log_out", "log_out", None, 204),
    ]
    assert not any(key in answer.text for key in (reader, admin, ended))


async def test_api_4_logins_and_rejections_count_toward_the_rate_limit(temporal: Client, settings: Settings) -> None:
    key = await key_of(settings, READER)
    limited = settings.model_copy(update={"rate_limit": 0.5})  # two requests at once
    async with served(temporal, limited) as url, httpx.AsyncClient(base_url=url) as http:
        wrong = f"tk_{key.split('_')[1]}_{'A' * 43}"
        statuses = [(await http.post("/login", json={"key": wrong})).status_code for _ in range(3)]
        assert statuses == [401, 401, 429]
        assert (await http.get("/me")).status_code == 429
        http.headers["Authorization"] = f"Bearer {key}"
        requests = (
            ("POST", "/login"),
            ("GET", "/me"),
            ("POST", "/login"),
            ("POST", "/logout"),
            ("DELETE", "/workflow/a"),
        )
        statuses = [(await http.request(method, path, json={"key": key})).status_code for method, path in requests]
        assert statuses == [200, 200, 429, 429, 429]
        async with httpx.AsyncClient(base_url=url) as other:
            other.headers["Authorization"] = f"Bearer {await key_of(limited, ADMIN)}"
            refused = (await other.get("/audit", params={"action": "request", "user": "Rob"})).json()["entries"]
        assert ("DELETE /workflow/{id}", 429) in [(one["operation"], one["status"]) for one in refused]


async def test_api_4_a_prompt_that_waits_when_its_key_is_revoked_is_answered_as_accepted(
    temporal: Client, env: Environment
) -> None:
    settings = settings_with_keys(env)
    async with served(temporal, settings, partials=env.partials, timeouts=QUICK_CHECKS) as url:
        key, admin = await key_of(settings, Column("Will", "writer")), await key_of(settings, ADMIN)
        headers = {"Authorization": f"Bearer {key}"}
        env.vendor.gate.close()
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=70) as http, asyncio.timeout(BOUND):
            session = (await http.post("/workflow")).json()["workflow_id"]
            prompt = {"message": "Hello.", "id": "m1"}
            waiting = asyncio.create_task(http.post(f"/workflow/{session}/prompt?wait=60", json=prompt))
            await env.vendor.gate.until_arrived(1)
            async with Stores.of(settings) as stores:
                assert await ApiKeys(stores.database).revoke(key.split("_")[1], now=datetime.now(UTC))
            answer = await waiting
            assert (answer.status_code, answer.json()["message_id"]) == (202, "m1")
            assert (await http.get("/workflow")).status_code == 401
            as_admin = {"Authorization": f"Bearer {admin}"}
            audit = (await http.get("/audit", params={"session": session}, headers=as_admin)).json()
        assert [(one["action"], one["outcome"]) for one in audit["entries"]] == [
            ("prompt", "accepted"),
            ("start", "accepted"),
        ]


async def test_api_4_a_revoked_key_is_rejected_and_its_open_requests_end(
    temporal: Client, shared_env: Environment, settings: Settings
) -> None:
    async with served(temporal, settings, partials=shared_env.partials, timeouts=QUICK_CHECKS) as url:
        key = await key_of(settings, ADMIN)
        other = await key_of(settings, READER)
        async with GatewayClient(url, api_key=key) as gateway, asyncio.timeout(BOUND):
            session = (await gateway.start()).workflow_id
        headers = {"Authorization": f"Bearer {key}"}
        async with (
            httpx.AsyncClient(base_url=url, headers=headers, timeout=70) as http,
            http.stream("GET", f"/workflow/{session}/events") as stream,
            http.stream(
                "GET", f"/workflow/{session}/events", headers={"Authorization": f"Bearer {other}"}
            ) as other_stream,
        ):
            lines = stream.aiter_lines()
            await anext(lines)
            poll = asyncio.create_task(http.get(f"/workflow/{session}/conversation?wait=60&since_revision=99"))
            async with Stores.of(settings) as stores:
                assert await ApiKeys(stores.database).revoke(key.split("_")[1], now=datetime.now(UTC))

            async def is_refused() -> bool:
                return (await http.get("/workflow")).status_code == 401

            assert await until(is_refused)
            assert [line async for line in lines if line.startswith("event")] == []
            assert (await poll).status_code in (200, 401)
            others = other_stream.aiter_lines()
            assert await anext(others)


async def test_api_4_ai_sdk_streams_and_mcp_waits_end_within_5_s_after_their_key(
    temporal: Client, env: Environment, session_requests: SessionRequests
) -> None:
    settings = settings_with_keys(env)
    key = await key_of(settings, ADMIN)
    headers = {"Authorization": f"Bearer {key}"}
    env.vendor.gate.close()  # no turn ends
    client = Client(**{**temporal.config(), "interceptors": [session_requests]})
    message = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "hi"}]}
    async with (
        served(client, settings, partials=env.partials, timeouts=QUICK_CHECKS) as url,
        httpx.AsyncClient(base_url=url, headers=headers, timeout=70) as http,
        http.stream("POST", "/api/chat", json={"id": "open-chat", "message": message}) as chat,
    ):
        lines = chat.aiter_lines()
        assert await anext(lines)
        task_id = (await http.post("/tasks", json={"description": "Count."})).json()["task_id"]
        await env.vendor.gate.until_arrived(2)
        session_requests.clear()
        wait = asyncio.create_task(waiting_mcp_call(url, key, task_id))
        await until(lambda: session_requests.queries or wait.done())
        assert not wait.done()
        async with asyncio.timeout(5):
            async with Stores.of(settings) as stores:
                await ApiKeys(stores.database).revoke(key.split("_")[1], now=datetime.now(UTC))
            assert "[DONE]" not in "".join([line async for line in lines])
            assert await wait == 401


async def waiting_mcp_call(url: str, key: str, task_id: str) -> int:
    """Return the status of a tool call that waits for a task."""
    headers = {
        "Authorization": f"Bearer {key}",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2025-06-18",
    }
    call = {"name": "get_task", "arguments": {"task_id": task_id, "wait_seconds": 50}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=70) as http:
        return (await http.post("/mcp", json=body)).status_code


class HeldStarts(Interceptor):
    """Holds back every workflow that a client starts, until the test opens the gate."""

    def __init__(self) -> None:
        self.gate = Gate(is_open=False)

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        return _HeldClient(next, self.gate)


class _HeldClient(OutboundInterceptor):
    def __init__(self, next: OutboundInterceptor, gate: Gate) -> None:
        super().__init__(next)
        self._gate = gate

    async def start_workflow(self, input: StartWorkflowInput) -> WorkflowHandle[Any, Any]:
        await self._gate.pass_through()
        return await super().start_workflow(input)


@pytest.mark.parametrize("is_mcp", [False, True], ids=["http", "mcp"])
async def test_api_4_a_change_that_runs_when_its_key_is_revoked_is_answered(
    temporal: Client, shared_env: Environment, settings: Settings, is_mcp: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts, checks = HeldStarts(), Counter[str]()
    client = Client(**{**temporal.config(), "interceptors": [starts]})
    is_valid = credentials.KeyVerifier.is_valid

    async def counted(verifier: credentials.KeyVerifier, key_id: str) -> bool:
        answer = await is_valid(verifier, key_id)
        checks[key_id] += not answer
        return answer

    monkeypatch.setattr(credentials.KeyVerifier, "is_valid", counted)
    async with served(client, settings, partials=shared_env.partials, timeouts=QUICK_CHECKS) as url:
        key = await key_of(settings, Column("Will", "writer"))
        key_id, headers = key.split("_")[1], {"Authorization": f"Bearer {key}"}

        async def change() -> str:
            if is_mcp:
                async with mcp_client(url, key=key) as mcp:
                    await mcp.answer("list_tasks")  # it reads the tools' schemas before the key ends
                    return (await mcp.answer("create_task", description="Count."))["task_id"]
            async with httpx.AsyncClient(base_url=url, headers=headers, timeout=70) as http:
                return (await http.post("/workflow")).json()["workflow_id"]

        async with asyncio.timeout(BOUND):
            changing = asyncio.create_task(change())
            await starts.gate.until_arrived(1)
            async with Stores.of(settings) as stores:
                assert await ApiKeys(stores.database).revoke(key_id, now=datetime.now(UTC))
            assert await until(lambda: checks[key_id] > 1)
            starts.gate.open()
            assert await changing


async def test_api_4_open_requests_are_checked_while_the_store_fails_for_other_keys(
    tmp_path: Path,
) -> None:
    settings = Settings(state_dir=tmp_path, auth={"keys": True})
    store = FailingKeys()
    authenticator = CredentialAuthenticator(settings.auth, store, store, Timeouts(recheck=0.01))
    async with authenticator.running(), asyncio.timeout(BOUND):
        identities = [Identity(LOCAL, key_id=key_id) for key_id in ("hanging", "failing", "revoked")]
        with contextlib.ExitStack() as stack:
            hanging, failing, revoked = [stack.enter_context(authenticator.until_it_ends(one)) for one in identities]
            assert await until(lambda: revoked.cancel_called)
            assert not hanging.cancel_called
            assert not failing.cancel_called
            store.is_well.set()


async def test_api_4_a_stream_ends_with_its_key_also_while_keys_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = Settings(state_dir=tmp_path, auth={"keys": True})
    async with Stores.of(settings) as stores:
        ends_at = datetime.now(UTC) + timedelta(seconds=0.5)
        store = ApiKeys(stores.database)
        _, key = await store.create(tenant="", user=None, role="reader", now=datetime.now(UTC), expires_at=ends_at)
        authenticator = CredentialAuthenticator(settings.auth, store, Logins(stores.database), Timeouts(recheck=0.01))
        identity = await authenticator.verify(key)
        monkeypatch.setattr(store, "find", FailingKeys().find_nothing)
        async with authenticator.running():
            with authenticator.until_it_ends(identity) as scope:
                assert await until(lambda: scope.cancel_called)
            assert datetime.now(UTC) >= ends_at


async def test_api_4_a_stream_and_a_poll_end_within_five_seconds_after_their_token(
    temporal: Client, shared_env: Environment, settings: Settings
) -> None:
    with running_issuer() as issuer:
        auth = AuthSettings(oidc=OidcSettings(issuer=issuer.url, audience=AUDIENCE))
        by_token = settings.model_copy(update={"auth": auth})
        async with served(temporal, by_token, partials=shared_env.partials, timeouts=patient(issuer_leeway=0)) as url:
            headers = {"Authorization": f"Bearer {issuer.token(role='writer')}"}
            async with httpx.AsyncClient(base_url=url, headers=headers) as http:
                session = (await http.post("/workflow")).json()["workflow_id"]
            ends_at = int(time.time()) + 2
            headers = {"Authorization": f"Bearer {issuer.token(exp=ends_at)}"}
            async with (
                httpx.AsyncClient(base_url=url, headers=headers, timeout=70) as http,
                http.stream("GET", f"/workflow/{session}/events") as stream,
                asyncio.timeout(BOUND),
            ):
                update = (await http.get(f"/workflow/{session}/conversation")).json()["conversation_update"]
                poll_path = f"/workflow/{session}/conversation?wait=60&since_revision={update['revision']}"
                poll = asyncio.create_task(http.get(poll_path))
                assert [line async for line in stream.aiter_lines()]
                assert (await poll).status_code == 401
            assert ends_at <= time.time() < ends_at + 5
