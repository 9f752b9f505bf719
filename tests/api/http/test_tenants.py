"""A tenant sees its own sessions, and another's are as unknown as those that never were (API-4)."""

import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from httpx import AsyncClient, Response
from mcp.shared.exceptions import MCPError
from temporalio.client import Client, Interceptor, OutboundInterceptor

from tests.api.conftest import UNLIMITED, gateway, served
from tests.api.history.test_archive import deleted
from tests.features.access.auth.matrix import Column, client_of, key_of
from tests.features.copies.record import EXPORTS
from tests.features.mcp.client import mcp_client
from tests.features.tasks.api.delegating import awaited, create, mailing_sub_task
from tests.harness import LONG_PAUSE, TASK_SECONDS, DrivenSession, Environment, patient
from tests.waiting import until
from turnkeeper.api.app import create_app
from turnkeeper.api.callers import Caller
from turnkeeper.features.mcp.tools import TOOLS
from turnkeeper.models.ids import WorkflowId, tenant_of
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.transcript.conversation import ConversationState
from turnkeeper.models.transcript.model_call import ToolSpec
from turnkeeper.stores.temporal import search_attributes

TENANTS = ("", "acme", "globex")
ID = "<id>"
"""Stands for the session's id in a path, a query, a body, and an answer."""

TIMES = re.compile(r'\d{4}-\d\d-\d\dT[\d:.]+(Z|\+00:00)|"processingTimeMs":\d+')

MCP_HEADERS = {"mcp-protocol-version": "2025-11-25", "accept": "application/json, text/event-stream"}


def caller_in(tenant: str) -> Caller:
    return Caller(f"key:{tenant or 'default'}", tenant, "ada", "admin")


class TemporalCalls(Interceptor):
    """Records the gateways' calls to Temporal, with the workflow of each."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, WorkflowId]] = []

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        names = ("start_workflow", "signal_workflow", "query_workflow", "describe_workflow", "cancel_workflow")
        methods = {name: self._recording(name) for name in (*names, "terminate_workflow", "start_workflow_update")}
        recorder: type[OutboundInterceptor] = type("CallRecorder", (OutboundInterceptor,), methods)
        return recorder(next)

    def _recording(self, name: str) -> Any:
        async def call(interceptor: OutboundInterceptor, input: Any) -> Any:
            self.calls.append((name, input.id))
            return await getattr(interceptor.next, name)(input)

        return call


@pytest.fixture(scope="module")
def temporal_calls() -> TemporalCalls:
    return TemporalCalls()


@pytest.fixture(scope="module")
async def gateways(
    temporal: Client, shared_env: Environment, temporal_calls: TemporalCalls
) -> AsyncIterator[dict[str, AsyncClient]]:
    """Clients with a key of each tenant, of one gateway."""
    settings = Settings(
        task_queue=shared_env.task_queue,
        state_dir=shared_env.settings.state_dir,
        task_timeout=TASK_SECONDS,
        auth={"keys": True},
        **UNLIMITED,
    )
    client = Client(**{**temporal.config(), "interceptors": [temporal_calls]})
    app = create_app(settings, client=client, partials=shared_env.partials, timeouts=patient())
    async with app.router.lifespan_context(app), AsyncExitStack() as stack:
        yield {
            tenant: await stack.enter_async_context(
                client_of(app, await key_of(settings, Column("ada", "admin", tenant)))
            )
            for tenant in TENANTS
        }


# ---- a stranger


@dataclass(frozen=True)
class Request:
    """A request that a session's own tenant could send; `status` is what a stranger is answered.

    With `starts`, that is a session of the stranger's own.
    """

    status: int = 404
    starts: bool = False
    json: Any = None
    params: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)


RECORDED = json.loads((EXPORTS / "v1.json").read_text())
DECISION = {"args_digest": "0" * 64, "decision": "approve"}
USER_MESSAGE = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "hi"}]}

REQUESTS: dict[str, list[Request]] = {
    "configure_session": [Request(json={"title": "Mine"})],
    "cancel_turn": [Request(), Request(json={"message_id": "m1"})],
    "end_session": [Request(), Request(json={"discard_queue": True})],
    "export_session": [Request(), Request(params={"format": "markdown"})],
    "fork_session": [Request(), Request(json={"turn": 1}), Request(json={"id": ID})],
    "import_session": [Request(202, starts=True, json=RECORDED, params={"id": ID})],
    "send_prompt": [
        Request(json={"message": "hi", "id": "m1"}),
        Request(json={"message": "hi", "id": "m1"}, params={"wait": "1"}),
        Request(json={"message": "hi", "id": "m1", "attachments": [{"type": "code", "content": "x" * 9_000}]}),
        Request(202, starts=True, json={"message": "hi", "id": "m2"}, params={"start": "true"}),
    ],
    "retry_turn": [Request(), Request(json={"message_id": "m1"})],
    "get_conversation": [Request(), Request(params={"wait": "1"})],
    "get_full_conversation": [Request(), Request(params={"before": "m1"})],
    "resolve_approval": [Request(json=DECISION)],
    "get_context": [Request(), Request(params={"format": "replay"})],
    "upload_attachment": [Request(json={"an": "upload"})],
    "get_attachment": [Request(), Request(params={"name": "cat.png"})],
    "get_task": [Request(), Request(params={"wait_seconds": "1"})],
    "message_task": [Request(json={"text": "hi", "id": "m1"})],
    "ai_sdk_resume": [Request(204)],
    "ai_sdk_messages": [Request(), Request(params={"before": "m1"})],
    "start_session": [Request(201, starts=True, json={"id": ID})],
    "chat": [Request(202, starts=True, json={"message": "hi", "id": "m1", "workflow_id": ID})],
    "ai_sdk_chat": [
        Request(json={"id": ID, "messages": [], "trigger": "regenerate-message"}),
        Request(200, starts=True, json={"id": ID, "message": USER_MESSAGE}),
    ],
    "create_task": [
        Request(json={"description": "Paint it.", "parent": ID}),
        Request(json={"description": "Paint it.", "parent": ID, "idempotency_key": "tenants-k1"}),
    ],
    "preview_task": [Request(json={"description": "Paint it.", "parent": ID})],
    "list_tasks": [Request(200, params={"parent": ID})],
}
"""By operation; one that names a session in its path, and needs no body, has the plain request without an entry.

The ids in a path beside the session's come from `OTHER_IDS`."""

WITHOUT_A_SESSION = {"define_agent", "list_sessions", "render_markdown", "log_in", "read_audit"}
"""Operations whose bodies and parameters name no session. One that has neither needs no entry."""

OTHER_IDS = {"message_id": "m1", "call_id": "1.1.0", "hash": "0" * 64}


def operations(document: Any) -> Iterator[tuple[str, str, str, list[Request]]]:
    """Every operation of the OpenAPI document: its id, method, path with `ID` in it, and what is sent to it."""
    for path, methods in document["paths"].items():
        filled = re.sub(r"{(\w+)}", lambda name: OTHER_IDS.get(name[1], ID), path)
        for method, operation in methods.items():
            name, body = operation["operationId"], operation.get("requestBody", {})
            is_plain = ID in filled and not body.get("required")
            has_input = ID in filled or body or operation.get("parameters")
            assert is_plain or name in REQUESTS or name in WITHOUT_A_SESSION or not has_input, name
            yield name, method.upper(), filled, REQUESTS.get(name, [Request()] if is_plain else [])


def with_id(value: Any, session_id: str) -> Any:
    """Return a request's part with `session_id` in place of `ID`."""
    if isinstance(value, dict):
        return {name: with_id(item, session_id) for name, item in value.items()}
    return value.replace(ID, session_id) if isinstance(value, str) else value


async def send(http: AsyncClient, method: str, path: str, request: Request, session_id: str) -> Response:
    return await http.request(
        method,
        with_id(path, session_id),
        json=with_id(request.json, session_id),
        params=with_id(request.params, session_id),
        headers=request.headers,
    )


def visible(answer: Response, session_id: str) -> tuple[int, list[tuple[str, str]], str]:
    """Return everything of an answer that its client sees, with `ID` for the id, and without times."""
    headers = sorted((name, value.replace(session_id, ID)) for name, value in answer.headers.multi_items())
    text = answer.text.replace(session_id, ID)
    return answer.status_code, headers, TIMES.sub("", text)


async def session_with_a_turn(env: Environment, session_id: str) -> DrivenSession:
    session = await env.start(SessionInput(title="A secret", user="ada"), id=session_id)
    await session.prompt(id="m1", text="secret")
    await session.idle(turns=1)
    return session


async def unchanged_since(session: DrivenSession, before: ConversationState) -> bool:
    now = await session.state()
    return (now.revision, now.status, now.messages) == (before.revision, before.status, before.messages)


@pytest.mark.parametrize(("owner", "stranger"), [("acme", ""), ("", "acme"), ("acme", "globex")])
async def test_api_4_another_tenants_session_looks_like_an_unknown_id(
    gateways: dict[str, AsyncClient],
    temporal_calls: TemporalCalls,
    shared_env: Environment,
    api_document: Any,
    owner: str,
    stranger: str,
) -> None:
    routes = list(operations(api_document))
    assert {*REQUESTS, *WITHOUT_A_SESSION} <= {operation for operation, *_ in routes}
    prefix, name = f"{owner}:" if owner else "", f"of-{owner or 'x'}-{stranger or 'x'}"
    session, http = await session_with_a_turn(shared_env, f"{prefix}{name}"), gateways[stranger]
    state = await session.state()
    for operation, method, path, requests in routes:
        for request in requests:
            foreign_id = f"{name}-{operation}" if request.starts else name
            unknown_id = foreign_id.replace("of", "no", 1)
            if request.starts:
                await shared_env.start(id=f"{prefix}{foreign_id}")
            for verb in (method, "HEAD") if method == "GET" else (method,):
                answers, calls = [], []
                for session_id in (foreign_id, unknown_id):
                    temporal_calls.calls.clear()
                    answer = await send(http, verb, path, request, session_id)
                    answers.append(visible(answer, session_id))
                    calls.append(sorted(name for name, _ in temporal_calls.calls))
                    assert {tenant_of(workflow) for _, workflow in temporal_calls.calls} <= {stranger}, operation
                assert answers[0] == answers[1], (operation, verb, request)
                # The same work takes the same time.
                assert request.starts or calls[0] == calls[1], (operation, verb, calls)
                assert answers[0][0] == request.status, (operation, verb, answers[0])
    assert await unchanged_since(session, state)


MCP_ARGUMENTS: dict[str, Any] = {
    "create_task": {"description": "Paint it.", "parent": ID},
    "get_task": {"task_id": ID},
    "list_tasks": {"parent": ID},
    "message_task": {"task_id": ID, "text": "hi"},
    "cancel_task": {"task_id": ID},
    "get_conversation": {"workflow_id": ID},
    "send_prompt": {"workflow_id": ID, "message": "hi", "id": "m1"},
}


@pytest.mark.parametrize(("owner", "stranger"), [("acme", ""), ("", "acme")])
async def test_api_4_another_tenants_session_looks_like_an_unknown_id_to_every_mcp_tool(
    gateways: dict[str, AsyncClient], shared_env: Environment, owner: str, stranger: str
) -> None:
    assert MCP_ARGUMENTS.keys() == TOOLS.keys()
    foreign_id = f"mcp-{owner}-{stranger}"
    session = await session_with_a_turn(shared_env, f"{owner}:{foreign_id}" if owner else foreign_id)
    state = await session.state()
    for name, arguments in MCP_ARGUMENTS.items():
        answers = []
        for session_id in (foreign_id, "u" * len(foreign_id)):
            call = {"name": name, "arguments": with_id(arguments, session_id)}
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
            answer = await gateways[stranger].post("/mcp", json=body, headers=MCP_HEADERS)
            assert answer.json()["result"]["isError"] is (name != "list_tasks"), (name, answer.text)
            answers.append(visible(answer, session_id))
        assert answers[0] == answers[1], name
    assert await unchanged_since(session, state)


@pytest.mark.parametrize("session_id", ["acme:chat-1", ":chat-1", "acme%3Achat-1"])
async def test_api_4_no_id_can_name_a_session_of_another_tenant(
    gateways: dict[str, AsyncClient], shared_env: Environment, api_document: Any, session_id: str
) -> None:
    in_body = session_id.replace("%3A", ":")
    for operation, method, path, requests in operations(api_document):
        for request in requests:
            in_path = with_id(path, session_id)
            answer = await gateways[""].request(
                method, in_path, json=with_id(request.json, in_body), params=with_id(request.params, in_body)
            )
            assert answer.status_code == 422, (operation, answer.text)


# ---- tenants beside each other


async def listed(http: AsyncClient, **params: str) -> list[str]:
    answer = await http.get("/workflow", params=params)
    assert answer.status_code == 200, answer.text
    return [session["workflow_id"] for session in answer.json()["sessions"]]


async def test_api_4_two_tenants_may_have_sessions_with_the_same_id(
    gateways: dict[str, AsyncClient], shared_env: Environment
) -> None:
    for tenant, http in gateways.items():
        started = await http.post("/workflow", json={"id": "same", "title": f"Of {tenant!r}"})
        assert (started.status_code, started.headers["location"]) == (201, "/workflow/same")
        assert started.json()["workflow_id"] == "same"
        again = await http.post("/workflow", json={"id": "same"})
        assert (again.status_code, "'same'" in again.json()["detail"]) == (409, True)
        prompt = {"message": f"I am {tenant!r}", "id": "m1"}
        turn = await http.post("/workflow/same/prompt", params={"wait": "30"}, json=prompt)
        assert turn.json()["agent_message"] == f"echo: I am {tenant!r}"
    for tenant, http in gateways.items():
        state = (await http.get("/workflow/same/conversation/full")).json()
        assert [turn["user_message"] for turn in state["messages"]] == [f"I am {tenant!r}"]
        assert (state["session"]["id"], state["session"]["title"]) == ("same", f"Of {tenant!r}")
        described = (await http.get("/workflow/same")).json()
        links = described["links"]
        assert (links["conversation"], links["chat"]) == ("/workflow/same/conversation", "/?session=same")
        assert (await http.get("/workflow/same/queue/m1")).json()["workflow_id"] == "same"
        assert (await http.get("/workflow/same/conversation")).json()["workflow_id"] == "same"
        handle = shared_env.client.get_workflow_handle(f"{tenant}:same" if tenant else "same")
        attributes = (await handle.describe()).typed_search_attributes
        assert attributes.get(search_attributes.TENANT) == (tenant or None)


async def test_api_4_a_list_contains_only_sessions_of_the_tenant(
    gateways: dict[str, AsyncClient], shared_env: Environment
) -> None:
    for tenant, http in gateways.items():
        for number in (1, 2):
            session = {"id": f"listed-{number}-{tenant or 'x'}", "title": "Listed here", "user": "ada"}
            assert (await http.post("/workflow", json=session)).status_code == 201
    for tenant, http in gateways.items():
        expected = {f"listed-{number}-{tenant or 'x'}" for number in (1, 2)}

        async def are_all_listed(http: AsyncClient = http, expected: set[str] = expected) -> bool:
            return set(await listed(http, q="Listed here")) == expected

        await until(are_all_listed, max_pause=LONG_PAUSE)
        assert set(await listed(http, q="Listed here", user="ada", status="open")) == expected


async def test_api_4_the_links_of_a_tenants_session_lead_to_its_workflow_and_page(
    temporal: Client, shared_env: Environment
) -> None:
    settings = Settings(
        task_queue=shared_env.task_queue,
        state_dir=shared_env.settings.state_dir,
        temporal_ui_url="http://ui.example",
        public_url="https://agents.example",
    )
    async with served(temporal, settings, caller=caller_in("acme")) as url, AsyncClient(base_url=url) as http:
        task = await create(http)
        task_id = task["task_id"]
        assert task["temporal_url"] == f"http://ui.example/namespaces/default/workflows/acme:{task_id}"
        assert task["url"] == f"https://agents.example/?session={task_id}"
        links = (await http.get(f"/workflow/{task_id}")).json()["links"]
        assert links["temporal"] == task["temporal_url"]
        done = await awaited(http, task_id)
        assert done["result"]["transcript_url"] == f"https://agents.example/workflow/{task_id}/conversation/full"


@pytest.mark.parametrize("tenant", ["", "acme"])
async def test_ops_2_only_links_of_the_default_tenant_lead_to_the_gateways_web_ui(
    temporal: Client, shared_env: Environment, tenant: str
) -> None:
    settings = Settings(
        task_queue=shared_env.task_queue,
        state_dir=shared_env.settings.state_dir,
        temporal_ui_proxy="http://127.0.0.1:1",
        public_url="https://agents.example",
    )
    async with (
        served(temporal, settings, caller=caller_in(tenant)) as url,
        AsyncClient(base_url=url, timeout=70) as http,
    ):
        task = await create(http)
        task_id = task["task_id"]
        links = (await http.get(f"/workflow/{task_id}")).json()["links"]
        link = f"https://agents.example/temporal/namespaces/default/workflows/{task_id}"
        assert [task.get("temporal_url"), links["temporal"]] == [None if tenant else link] * 2


async def test_api_4_a_deletion_does_not_touch_another_tenants_session_with_the_same_id(
    gateways: dict[str, AsyncClient], shared_env: Environment
) -> None:
    for http in (gateways[""], gateways["acme"]):
        await http.post("/workflow", json={"id": "twice"})
        answer = await http.post("/workflow/twice/prompt", params={"wait": "30"}, json={"message": "hi"})
        assert answer.status_code == 200
    assert (await deleted(gateways["acme"], "twice"))["workflow_id"] == "twice"
    assert (await gateways["acme"].get("/workflow/twice/conversation")).status_code == 404
    left = (await gateways[""].get("/workflow/twice/conversation/full")).json()
    assert [turn["agent_message"] for turn in left["messages"]] == ["echo: hi"]


async def test_api_4_a_session_stays_in_its_tenant_after_continue_as_new(
    gateways: dict[str, AsyncClient], shared_env: Environment
) -> None:
    await gateways["acme"].post("/workflow", json={"id": "long", "limits": {"max_history_events": 50}})
    session = shared_env.client.get_workflow_handle("acme:long")
    first_run = (await session.describe()).run_id
    for number in range(10):
        prompt = {"message": f"prompt {number}"}
        answer = await gateways["acme"].post("/workflow/long/prompt", params={"wait": "30"}, json=prompt)
        assert answer.status_code == 200
    newest = await session.describe()
    assert newest.run_id != first_run
    assert newest.typed_search_attributes.get(search_attributes.TENANT) == "acme"
    assert (await gateways[""].get("/workflow/long")).status_code == 404


# ---- tasks


async def test_api_4_the_tasks_of_a_tenants_session_stay_in_the_tenant(
    temporal: Client, env: Environment, http: AsyncClient
) -> None:
    env.tools.specs = [ToolSpec(name="send_mail")]
    env.vendor.answer = mailing_sub_task
    of_acme = gateway(temporal, env.task_queue, env.settings.state_dir, partials=env.partials, caller=caller_in("acme"))
    async with of_acme as acme:
        task_id = (await create(acme, "Tell bob."))["task_id"]
        child = f"{task_id}.task-1"
        assert (await awaited(acme, task_id, "input_required"))["approvals"] == 1
        (pending,) = (await acme.get(f"/workflow/{task_id}/approvals")).json()["approvals"]
        assert pending["workflow_id"] == child
        below = (await acme.get(f"/tasks/{child}")).json()
        assert (below["task_id"], below["parent"], below["status"]) == (child, task_id, "input_required")
        state = (await acme.get(f"/workflow/{task_id}/conversation/full")).json()
        assert [task["task_id"] for task in state["session"]["tasks"]] == [child]
        workflow = await env.client.get_workflow_handle(f"acme:{child}").describe()
        assert workflow.typed_search_attributes.get(search_attributes.TENANT) == "acme"
        assert workflow.typed_search_attributes.get(search_attributes.TASK_PARENT) == task_id

        async def is_listed() -> bool:
            tasks = (await acme.get("/tasks", params={"parent": task_id})).json()["tasks"]
            return [task["task_id"] for task in tasks] == [child]

        await until(is_listed, max_pause=LONG_PAUSE)
        assert (await http.get("/tasks", params={"parent": task_id})).json()["tasks"] == []
        of_the_default_tenant = (await http.get("/tasks", params={"limit": "100"})).json()["tasks"]
        assert not {task_id, child} & {task["task_id"] for task in of_the_default_tenant}
        assert (await http.get(f"/tasks/{child}")).status_code == 404
        decision = {"args_digest": pending["args_digest"], "decision": "approve"}
        decided = await acme.post(f"/workflow/{child}/approvals/{pending['call_id']}", json=decision)
        assert (decided.status_code, decided.json()["workflow_id"]) == (200, child)
        done = await awaited(acme, task_id)
        assert (done["status"], done["result"]["answer"]) == ("completed", "All is done.")
        assert not [text for text in (state, below, done) if "acme" in str({**text, "temporal_url": None})]


async def test_api_4_a_running_task_of_a_tenant_is_cancelled_with_its_parent(
    temporal: Client, env: Environment
) -> None:
    env.tools.specs = [ToolSpec(name="send_mail")]
    env.vendor.answer = mailing_sub_task
    of_acme = gateway(temporal, env.task_queue, env.settings.state_dir, partials=env.partials, caller=caller_in("acme"))
    async with of_acme as acme:
        task_id = (await create(acme, "Tell bob."))["task_id"]
        await awaited(acme, task_id, "input_required")
        assert (await acme.post(f"/tasks/{task_id}/cancel")).status_code == 202
        assert (await awaited(acme, f"{task_id}.task-1"))["status"] == "cancelled"


async def test_api_4_an_idempotency_key_of_a_task_is_scoped_to_its_tenant(
    gateways: dict[str, AsyncClient],
) -> None:
    tasks = [await create(http, idempotency_key="tenants-k1", description="Of the key.") for http in gateways.values()]
    assert len({task["task_id"] for task in tasks}) == 1, "the id follows from the key"
    assert [len(task["warnings"]) for task in tasks] == [0, 0, 0]
    different = await gateways["acme"].post("/tasks", json={"description": "Another.", "idempotency_key": "tenants-k1"})
    assert different.status_code == 409


# ---- MCP


async def test_tsk_6_a_task_handle_is_unknown_to_the_same_user_in_another_tenant(
    temporal: Client, shared_env: Environment
) -> None:
    settings = Settings(task_queue=shared_env.task_queue, state_dir=shared_env.settings.state_dir)
    acme, moved = (Caller("oidc:ada", tenant, "ada", "admin") for tenant in ("acme", "globex"))
    partials = shared_env.partials
    async with (
        served(temporal, settings, partials=partials, caller=acme) as url,
        mcp_client(url, tasks=True) as client,
    ):
        created = await client.create("create_task", description="Count.")
        done = await client.until(created.task_id, "completed")
        task = done["result"]["structuredContent"]
        assert (task["result"]["answer"], "acme" in str({**task, "temporal_url": None})) == ("echo: Count.", False)
        async with mcp_client(url, mode="legacy") as earlier_client:
            assert (await earlier_client.answer("get_task", task_id=task["task_id"]))["status"] == "completed"
    async with (
        served(temporal, settings, partials=partials, caller=moved) as url,
        mcp_client(url, tasks=True) as client,
    ):
        with pytest.raises(MCPError, match="no such task"):
            await client.task(created.task_id)


# ---- ids


@pytest.mark.parametrize("tenant", ["Acme", "a:b", "a'b", "a b", "-a", "a" * 33, "a\n", "ä"])
def test_api_4_an_invalid_tenant_name_is_rejected(tenant: str) -> None:
    with pytest.raises(ValueError, match="not a valid tenant"):
        Caller("oidc:x", tenant, None, "reader").workflow_id("chat-1")


def test_api_4_an_id_that_contains_a_tenant_is_rejected() -> None:
    with pytest.raises(ValueError, match="not a valid id"):
        Caller("local", "", None, "admin").workflow_id(WorkflowId("acme:chat-1"))
