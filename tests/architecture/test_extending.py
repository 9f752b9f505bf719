"""A provider or a route that was forgotten somewhere is noticed: the places of `docs/extending.md` (AGT-4, API-7)."""

import pkgutil
import re
import tomllib
from contextlib import aclosing
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.vendors.apis import WIRES
from tests.vendors.server import Answer
from turnkeeper.activities.providers.errors.vendor_errors import Vendor
from turnkeeper.activities.providers.protocol import CallInfo
from turnkeeper.activities.providers.redaction import OMISSION, redact
from turnkeeper.api import routes
from turnkeeper.api.app import create_app
from turnkeeper.api.http.openapi import errors
from turnkeeper.api.problems import KINDS, ProblemName
from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.clients.python.tasks import TaskCalls
from turnkeeper.models.ids import KNOWN_PROVIDERS
from turnkeeper.models.settings.settings import ENV_PREFIX, Settings
from turnkeeper.models.transcript.model_call import ModelMessage, ModelRequest, RequestHead
from turnkeeper.ops.checks import doctor
from turnkeeper.ops.local.processes import gateway_environment
from turnkeeper.worker import build_providers

ROOT = Path(__file__).parents[2]
VENDORS = sorted({*KNOWN_PROVIDERS} - {"offline"})


@pytest.fixture
def providers(tmp_path: Path) -> dict[str, Any]:
    """Every provider, as a worker builds it."""
    endpoint: Any = {"base_url": "http://127.0.0.1:9/v1"}
    registry = build_providers(Settings(state_dir=tmp_path, openai_chat=endpoint))
    return {name: registry.resolve(f"{name}:x")[0] for name in KNOWN_PROVIDERS}


def test_agt_4_a_worker_has_every_provider_that_a_session_can_name(providers: dict[str, Any]) -> None:
    assert len({id(provider) for provider in providers.values()}) == len(KNOWN_PROVIDERS)


def test_agt_11_every_vendor_has_a_test_server() -> None:
    """With it, the tests of `activities/providers` run for the vendor too, that of the meter among them."""
    assert sorted(WIRES) == VENDORS


@pytest.mark.parametrize("name", VENDORS)
def test_agt_4_the_key_and_the_package_of_every_vendor_are_listed(providers: dict[str, Any], name: str) -> None:
    vendor: Vendor = providers[name]._transport.vendor
    variable = vendor.key if vendor.key.isupper() else ENV_PREFIX + vendor.key.upper().replace(".", "__")
    assert gateway_environment({variable: "sk-1"}) == {}, "only workers get keys"
    assert doctor._SDK[name] == vendor.package
    assert vendor.package in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize("name", VENDORS)
async def test_agt_9_no_vendor_repeats_a_text_of_the_request(name: str) -> None:
    texts = ["I am the system prompt of Anna", "I ask about the letters of Berta", "I answer with the words of Clara"]
    system, question, answer = texts
    messages = [
        ModelMessage(role="user", content=question),
        ModelMessage(role="assistant", content=answer),
        ModelMessage(role="user", content="And now?"),
    ]
    context = CallInfo(session_id="s", request=1, attempt=1)
    async with WIRES[name]() as wire:
        wire.script(wire.reply(Answer(text="Well.")))
        request = ModelRequest(head=RequestHead(system=system), messages=messages)
        async with aclosing(wire.provider().stream("x", request, context)) as events:
            [_ async for _ in events]
        body = wire.requests[0].body
    for text in texts:
        assert redact(f"It says “{text}”.", request_body=body) == f"It says “{OMISSION}”."


def test_api_7_every_module_of_routes_is_part_of_the_gateway(tmp_path: Path) -> None:
    paths = {path for path, _ in operations(tmp_path)}
    modules = [import_module(f"{routes.__name__}.{module.name}") for module in pkgutil.iter_modules(routes.__path__)]
    declared = {route.path for module in modules if hasattr(module, "router") for route in module.router.routes}
    assert len(declared) > 15
    assert declared - paths == set()


def operations(folder: Path) -> dict[tuple[str, str], str]:
    """Return the ids of the OpenAPI document's operations, by path and method."""
    paths = create_app(Settings(state_dir=folder)).openapi()["paths"]
    return {
        (path, method): operation["operationId"]
        for path, methods in paths.items()
        for method, operation in methods.items()
    }


CLIENT_METHODS = {
    "start_session": GatewayClient.start,
    "list_sessions": GatewayClient.list_sessions,
    "describe_session": GatewayClient.describe,
    "configure_session": GatewayClient.configure,
    "end_session": GatewayClient.end,
    "delete_session": GatewayClient.delete,
    "export_session": GatewayClient.export,
    "import_session": GatewayClient.import_session,
    "fork_session": GatewayClient.fork,
    "get_copy": GatewayClient.copy_receipt,
    "send_prompt": GatewayClient.prompt,
    "chat": GatewayClient.chat,
    "get_queue": GatewayClient.queue,
    "get_prompt_fate": GatewayClient.fate,
    "withdraw_prompt": GatewayClient.withdraw,
    "cancel_turn": GatewayClient.cancel,
    "retry_turn": GatewayClient.retry,
    "get_pending_approvals": GatewayClient.approvals,
    "resolve_approval": GatewayClient.decide,
    "get_conversation": GatewayClient.updates,
    "watch_session": GatewayClient.events,
    "get_full_conversation": GatewayClient.page,
    "get_blob": GatewayClient.blob,
    "upload_attachment": GatewayClient.upload,
    "get_attachment": GatewayClient.attachment,
    "get_context": GatewayClient.context,
    "read_audit": GatewayClient.audit,
    "health": GatewayClient.health,
    "get_me": GatewayClient.me,
    "create_task": TaskCalls.create,
    "list_tasks": TaskCalls.list,
    "get_task": TaskCalls.get,
    "message_task": TaskCalls.message,
    "cancel_task": TaskCalls.cancel,
}
"""The method of the Python client for each operation."""

NOT_IN_THE_CLIENT = {
    "ai_sdk_chat": "for useChat",
    "ai_sdk_resume": "for useChat",
    "ai_sdk_messages": "for useChat",
    "render_markdown": "for the page",
    "log_in": "for the page",
    "log_out": "for the page",
    "readiness": "for load balancers",
    "service_status": "for operators",
    "preview_task": "for people who try out a history policy",
}


def test_api_7_every_operation_is_a_client_method_or_listed_with_a_reason(tmp_path: Path) -> None:
    assert {*operations(tmp_path).values()} == {*CLIENT_METHODS, *NOT_IN_THE_CLIENT}


_ROW = re.compile(r"^\| `([\w./]+)` \| (.*?) \|", re.MULTILINE)


def test_the_places_to_extend_exist() -> None:
    rows = _ROW.findall((ROOT / "docs" / "extending.md").read_text())
    assert len(rows) > 30
    for path, text in rows:
        other_files = re.findall(r"`([\w/]+/\w+\.\w+)`", text)
        content = "".join((ROOT / file).read_text() for file in (path, *other_files, "models/session/session.py"))
        states = "".join(file.read_text() for name in ("models", "features") for file in (ROOT / name).rglob("*.py"))
        names = re.findall(r"`(_?\w+)`", text)
        assert [name for name in names if name not in content and f"class {name}(" not in states] == [], path


def test_the_tests_that_the_checklists_name_exist() -> None:
    page = (ROOT / "docs" / "extending.md").read_text()
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name in re.findall(r"`(test_\w+)`", page) if f"def {name}(" not in tests] == []
    assert [path for path in re.findall(r"`(tests/[\w/]+\.\w+)`", page) if not (ROOT / path).exists()] == []


def test_api_7_every_error_of_the_document_has_a_meaning() -> None:
    assert list(KINDS) == list(get_args(ProblemName))
    with pytest.raises(KeyError):
        errors("internal")
