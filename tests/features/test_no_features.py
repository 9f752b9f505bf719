"""The core alone: with `features` empty, worker and gateway do everything that is no feature (issue 40)."""

import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from temporalio.client import Client, WorkflowFailureError

from tests.api.conftest import served
from tests.api.live.watching import Watcher, idle_after
from tests.harness import BOUND, Environment, asks, environment, replayer, says
from turnkeeper.features import all_features, enable_in_workflows
from turnkeeper.models.errors import RejectedError
from turnkeeper.models.ids import PublicId
from turnkeeper.models.limits import Limits
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.session.session import Session
from turnkeeper.models.settings.settings import Settings
from turnkeeper.stores.partials.factory import InProcessCarrier


@pytest.fixture(autouse=True)
def all_features_again() -> AsyncIterator[None]:
    """Give the sessions of later tests all features again."""
    yield
    enable_in_workflows(all_features())


@pytest.fixture
async def bare(temporal: Client) -> AsyncIterator[Environment]:
    async with environment(temporal, partials=InProcessCarrier(), features=()) as env:
        yield env


@pytest.fixture
async def http(temporal: Client, bare: Environment) -> AsyncIterator[httpx.AsyncClient]:
    settings = Settings(task_queue=bare.task_queue, state_dir=bare.settings.state_dir, features=())
    async with (
        served(temporal, settings, partials=bare.partials) as url,
        httpx.AsyncClient(base_url=url, timeout=BOUND) as client,
    ):
        yield client


async def test_without_features_a_session_answers_asks_and_streams(http: httpx.AsyncClient, bare: Environment) -> None:
    bare.vendor.script = [asks(("pay", {"euros": 3})), says("It is paid.")]
    session = f"bare-{uuid4()}"
    assert (await http.post("/workflow", json={"id": session})).status_code == 201
    watcher = Watcher(http, session)
    async with watcher.stream() as events:
        answer = await http.post(f"/workflow/{session}/prompt", json={"message": "Pay it.", "id": "p1"})
        assert answer.status_code == 202
        await watcher.until_in(events, lambda so_far: so_far.last.status == "awaiting_approval")
        (pending,) = (await http.get(f"/workflow/{session}/approvals")).json()["approvals"]
        decision = {"args_digest": pending["args_digest"], "decision": "approve"}
        decided = await http.post(f"/workflow/{session}/approvals/{pending['call_id']}", json=decision)
        assert decided.status_code == 200
        await watcher.until_in(events, idle_after(1))
    assert watcher.answers == ["It is paid."]
    assert [call.args for call in bare.tools.calls] == [{"euros": 3}]
    polled = (await http.get(f"/workflow/{session}/conversation")).json()
    assert [turn["agent_message"] for turn in polled["conversation_update"]["new_messages"]] == ["It is paid."]
    assert [tool.name for tool in bare.vendor.requests[0].head.tools] == ["look", "pay"]
    assert (await http.get("/tasks")).status_code == 404


async def test_without_features_a_session_continues_as_new_and_replays(temporal: Client) -> None:
    async with environment(temporal, partials=InProcessCarrier(), features=()) as env:
        session = await env.start(SessionInput(limits=Limits(max_history_events=50)))
        for number in range(8):
            await session.prompt(f"prompt {number}")
        turns = await session.idle(turns=8)
        assert [turn.agent_message for turn in turns] == [f"echo: prompt {number}" for number in range(8)]
        histories = await session.histories()
        assert len(histories) > 1
        for history in histories:
            await replayer().replay_workflow(history)


def test_without_features_the_command_line_has_the_commands_of_the_core(tmp_path: Path) -> None:
    (tmp_path / "turnkeeper.toml").write_text("features = []\n")
    program = "import typer, turnkeeper.cli as cli; print(*typer.main.get_command(cli.commands).commands)"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    names = set(done.stdout.split())
    assert {"up", "worker", "api", "chat", "doctor"} <= names
    assert not names & {"tasks", "export", "import", "fork", "keys", "audit"}


async def test_a_session_that_used_no_feature_replays_whichever_are_enabled(temporal: Client) -> None:
    async with environment(temporal, partials=InProcessCarrier()) as env:
        session = await env.start()
        await session.prompt("hello")
        await session.idle(turns=1)
        histories = await session.histories()
    enable_in_workflows([])
    for history in histories:
        await replayer().replay_workflow(history)


async def test_what_a_worker_has_not_enabled_is_rejected_with_its_name(bare: Environment) -> None:
    start = {"features": {"tasks": {"task": {"context": {"description": "Look."}}}}}
    handle = await bare.client.start_workflow("AgenticAIWorkflow", start, id=f"s-{uuid4()}", task_queue=bare.task_queue)
    with pytest.raises(WorkflowFailureError) as failed:
        await handle.result()
    assert str(failed.value.cause) == "invalid: features: 'tasks' is not enabled here; enabled are none."


async def test_a_carried_feature_that_is_not_enabled_waits_for_it_and_loses_nothing(temporal: Client) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    enable_in_workflows(all_features())
    state = {"created_at": now, "revision": 1, "features": {"tasks": {"started": {"started": 1}}}}
    start = SessionInput.model_validate({"carried": state})
    carried = Session(PublicId("s1"), start, now=now).carry()
    enable_in_workflows([one for one in all_features() if one.name not in ("tasks", "mcp")])
    with pytest.raises(RejectedError, match="'tasks' is not enabled here"):
        Session(PublicId("s1"), carried, now=now)
    enable_in_workflows(all_features())
    assert Session(PublicId("s1"), carried, now=now).carry() == carried
