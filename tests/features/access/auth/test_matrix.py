"""Every route for every caller: who gets through, and who is refused (API-4)."""

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute, iter_route_contexts
from starlette.staticfiles import StaticFiles

from tests.features.access.auth.matrix import COLUMNS, Column, client_of, key_of, outcome_of
from turnkeeper.api.app import create_app
from turnkeeper.api.dependencies import CallerDep, ChangesDep, get_changes
from turnkeeper.api.roles import GatewayRoute, access, gateway_routes
from turnkeeper.features.mcp.gateway import McpEndpoint
from turnkeeper.features.mcp.server import METHODS
from turnkeeper.features.mcp.tools import TOOLS
from turnkeeper.models.settings.settings import Settings

MCP_TOOLS = {
    "create_task": "writer",
    "get_task": "reader",
    "list_tasks": "reader",
    "message_task": "writer",
    "cancel_task": "writer",
    "get_conversation": "reader",
    "send_prompt": "writer",
}


UNCHANGING = {"preview_task", "render_markdown", "log_in", "log_out"}
"""Operations that need no entry in the audit although they are no GET. Logging in and out is written once a minute."""


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(state_dir=tmp_path_factory.mktemp("state"), auth={"keys": True})


@pytest.fixture(scope="module")
def app(settings: Settings) -> Iterator[FastAPI]:
    """A gateway that is never started: what gets through the check fails after it, but not with 401 or 403."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(McpEndpoint, "_started", None)  # it would wait for the start
        app = create_app(settings)
        app.state.services = SimpleNamespace(observers=[])
        yield app


def routes(app: FastAPI) -> list[GatewayRoute]:
    return gateway_routes(app.routes, Settings())


def path_of(route: GatewayRoute) -> str:
    """Return the path of a request for a route."""
    path = re.sub(r"{\w+(:path)?}", "1.1.0", route.path)
    return f"{path}/nothing" if route.path in ("/docs/files", "/docs/assets") else path


def test_api_4_every_route_of_the_gateway_says_who_may_use_it(app: FastAPI) -> None:
    assert [route.name for route in routes(app) if route.access is None] == []


async def test_api_4_a_route_without_a_role_is_refused_to_everybody(tmp_path: Path) -> None:
    app = create_app(Settings(state_dir=tmp_path))
    app.add_api_route("/new", lambda: "secret", methods=["GET"])
    app.mount("/files", StaticFiles(directory=tmp_path))
    async with client_of(app) as http:
        for path in ("/new", "/files/x"):
            answer = await http.get(path)
            assert (answer.status_code, outcome_of(answer)) == (403, "forbidden")
            assert "has no role, so nobody may use it" in answer.json()["detail"]


def test_api_4_every_route_that_changes_something_has_the_audit(app: FastAPI) -> None:
    routes = [context.original_route for context in iter_route_contexts(app.routes)]
    without = {
        route.operation_id
        for route in routes
        if isinstance(route, APIRoute)
        and not route.methods <= {"GET", "HEAD"}
        and get_changes not in {dependency.call for dependency in route.dependant.dependencies}
    }
    assert without == UNCHANGING


async def test_api_4_a_change_without_an_audit_entry_is_an_error(
    settings: Settings,
) -> None:
    app = create_app(settings)
    app.state.services = SimpleNamespace(observers=[])

    @access("writer")
    async def change(changes: ChangesDep, *, is_said: bool) -> None:
        if is_said:
            async with changes.begin("end", None):
                pass

    app.add_api_route("/new", change, methods=["POST"], operation_id="change")
    async with client_of(app, await key_of(settings, COLUMNS[-1])) as http:
        answers = [await http.post("/new", params={"is_said": is_said}) for is_said in (True, False)]
    assert [answer.status_code for answer in answers] == [200, 500]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.name)
async def test_api_4_every_route_is_open_only_to_the_roles_of_its_entry(app: FastAPI, settings: Settings, column):
    surprises = []
    async with client_of(app, await key_of(settings, column)) as http:
        for route in routes(app):
            method, path = route.method, path_of(route)
            for verb in (method, "HEAD") if method == "GET" else (method,):
                answer = await http.request(verb, path)
                expected = column.outcome(route.access)
                outcome = _outcome_of_head(answer.status_code) if verb == "HEAD" else outcome_of(answer)
                if outcome != expected:
                    surprises.append((verb, path, outcome, expected))
                if outcome == "forbidden" and verb != "HEAD":
                    assert f"the {route.access} role" in answer.json()["detail"], route.name
    assert surprises == []


@pytest.mark.parametrize("column", [COLUMNS[0], COLUMNS[-1]], ids=lambda column: column.name)
async def test_api_4_every_response_has_the_security_headers(app: FastAPI, settings: Settings, column: Column) -> None:
    async with client_of(app, await key_of(settings, column)) as http:
        for method, path in [*((one.method, path_of(one)) for one in routes(app)), ("GET", "/nowhere"), ("BREW", "/")]:
            headers = (await http.request(method, path)).headers
            assert headers.get_list("x-content-type-options") == ["nosniff"], path
            assert headers.get_list("referrer-policy") == ["no-referrer"], path
            assert "frame-ancestors 'none'" in headers["content-security-policy"], path
            assert headers["cache-control"] in ("no-store", "no-cache"), path


def _outcome_of_head(status: int) -> str:
    return {401: "unauthenticated", 403: "forbidden"}.get(status, "through")


async def test_api_4_a_route_without_an_entry_is_closed_to_everyone(settings: Settings) -> None:
    for auth in (settings.auth, {}):
        app = create_app(settings.model_copy(update={"auth": Settings(auth=auth).auth}))
        app.add_api_route("/new", lambda: "secret", methods=["GET"])
        key = await key_of(settings, COLUMNS[-1])
        async with client_of(app, key) as http:
            answer = await http.get("/new")
        assert (answer.status_code, outcome_of(answer)) == (403, "forbidden")
        assert "GET /new has no role" in answer.json()["detail"]


async def test_api_4_an_open_route_has_no_caller_and_so_no_admin(
    settings: Settings,
) -> None:
    app = create_app(settings)

    @access("open")
    async def who(caller: CallerDep) -> str:
        return caller.id

    app.add_api_route("/new", who, methods=["GET"])
    async with client_of(app) as http:
        assert (await http.get("/new")).status_code == 401


@pytest.mark.parametrize("path", ["/nowhere", "/workflow/", "/workflow/a/b/c", "/static/../workflow", "/%2Fworkflow"])
@pytest.mark.parametrize("method", ["GET", "PUT", "OPTIONS", "TRACE", "BREW"])
async def test_api_4_without_a_key_unknown_and_existing_paths_look_the_same(
    app: FastAPI, method: str, path: str
) -> None:
    async with client_of(app) as http:
        answer = await http.request(method, path)
        other = await http.request(method, "/somewhere-else")
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert answer.content == other.content


@pytest.mark.parametrize(
    "header",
    [
        "Bearer",
        "Bearer ",
        "Bearer tk_0123456789abcdef_" + 43 * "A",
        "Bearer tk_0123456789abcdef",
        "Bearer tk_",
        "Bearer ' OR 1=1 --",
        "Bearer eyJhbGciOiJub25lIn0.e30.",
        "Basic dXNlcjpwYXNz",
        "tk_0123456789abcdef_" + 43 * "A",
        "Bearer " + 20_000 * "x",
    ],
)
async def test_api_4_an_invalid_key_is_a_401_without_details(app: FastAPI, header: str) -> None:
    async with client_of(app) as http:
        answer = await http.get("/workflow", headers={"Authorization": header})
    assert (answer.status_code, outcome_of(answer)) == (401, "unauthenticated")
    assert answer.headers["Cache-Control"] == "no-store"
    assert header.split()[-1] not in answer.text or header in ("Bearer", "Bearer ")


async def test_api_4_a_request_with_two_credentials_is_rejected(app: FastAPI, settings: Settings) -> None:
    key = await key_of(settings, COLUMNS[-1])
    async with client_of(app) as http:
        headers = [("Authorization", f"Bearer {key}"), ("Authorization", f"Bearer {key}")]
        assert (await http.get("/workflow", headers=headers)).status_code == 401


def test_api_4_every_mcp_tool_has_the_role_of_its_route(app: FastAPI) -> None:
    assert {tool.name: tool.role for tool in TOOLS.values()} == MCP_TOOLS
    (decision,) = [route for route in routes(app) if route.name == "POST /workflow/{id}/approvals/{call_id}"]
    assert METHODS["tasks/update"] == decision.access == "approver"


BODIES = {"/workflow": {}, "/workflow/{id}": {}, "/tasks": {"description": "x"}}
STARTS_NOTHING = {"/tasks/preview", "/agents/{name}"}  # only admins may do the latter


@pytest.mark.parametrize("field", ["tool_policy", "unattended"])
async def test_api_4_deciding_in_advance_needs_an_approver_in_every_body(
    app: FastAPI, settings: Settings, field: str
) -> None:
    values = {"tool_policy": {"*": "allow"}, "unattended": True}
    writer, approver = (column for column in COLUMNS if column.name in ("writer", "approver"))
    document = app.openapi()
    operations = [
        (method.upper(), path)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if field in _body_fields(document, operation) and path not in STARTS_NOTHING
    ]
    assert operations
    for method, path in operations:
        body = {**BODIES[path], field: values[field]}
        async with client_of(app, await key_of(settings, writer)) as http:
            answer = await http.request(method, path.format(id="x"), json=body)
            assert (answer.status_code, outcome_of(answer)) == (403, "forbidden"), path
            assert [error["field"] for error in answer.json()["errors"]] == [field]
            assert outcome_of(await http.request(method, path.format(id="x"), json=BODIES[path])) == "through"
        async with client_of(app, await key_of(settings, approver)) as http:
            assert outcome_of(await http.request(method, path.format(id="x"), json=body)) == "through", path


def _body_fields(document: dict, operation: dict) -> set[str]:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    schemas = [content, *content.get("anyOf", [])]
    names = [schema["$ref"].rpartition("/")[2] for schema in schemas if "$ref" in schema]
    return {field for name in names for field in document["components"]["schemas"][name].get("properties", {})}


async def test_api_4_while_keys_cannot_be_read_requests_are_503_instead_of_401(tmp_path: Path) -> None:
    (tmp_path / "archive.db").mkdir()
    async with client_of(create_app(Settings(state_dir=tmp_path, auth={"keys": True}))) as http:
        key = "tk_0123456789abcdef_" + 43 * "A"
        answer = await http.get("/workflow", headers={"Authorization": f"Bearer {key}"})
        assert answer.status_code == 503
        assert answer.json()["type"].endswith("archive-unavailable")
        assert (await http.get("/workflow")).status_code == 401
        assert (await http.get("/healthz")).status_code == 200
