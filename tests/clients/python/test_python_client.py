"""The typed Python client against a real gateway: API-8."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from temporalio.client import Client

from tests.api.conftest import served
from tests.clients.conftest import gateway_settings
from tests.harness import BOUND, FAILING_TASK_SECONDS, Environment, Gate, asks, fail_workflow_tasks, says
from tests.waiting import until
from turnkeeper.activities.providers.protocol import Delta, ModelError
from turnkeeper.clients.python.conversation import (
    ConnectionLostEvent,
    Conversation,
    Cursor,
    Event,
    PartialEvent,
    QueueEvent,
    UpdateEvent,
)
from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.clients.python.request_sender import (
    GatewayProblemError,
    GatewayUnreachableError,
    GatewayUnreadableError,
)
from turnkeeper.models.session.messages import Configure
from turnkeeper.models.transcript.model_call import ToolSpec

ROOT = Path(__file__).parents[3]


def fresh() -> str:
    return f"c-{uuid4()}"


def restart_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


@pytest.fixture
async def gateway(url: str) -> AsyncIterator[GatewayClient]:
    async with GatewayClient(url, patience=0.0) as client:
        yield client


async def caught_up(gateway: GatewayClient, session: str, *, turns: int = 1) -> Conversation:
    """Poll for updates until `turns` turns have ended; return the copy of the conversation."""
    copy = Conversation()
    async with asyncio.timeout(30):
        while len(copy.turns) < turns or copy.has_more or not all(turn.is_complete for turn in copy.turns):
            copy.apply(await gateway.updates(session, copy.cursor, wait=10))
    return copy


async def test_api_8_a_session_is_started_prompted_read_and_ended(gateway: GatewayClient, env: Environment) -> None:
    env.vendor.script = [asks(("look", {"at": "README.md"})), says("The heading is X")]
    session = fresh()
    assert (await gateway.start(session, title="Reading", user="alice")).workflow_id == session
    response = await gateway.prompt(session, "read README.md", message_id="p1")
    assert response.message_id == "p1"
    (turn,) = (await caught_up(gateway, session)).turns
    assert (turn.user_message, turn.agent_message, turn.tools_used) == ("read README.md", "The heading is X", ["look"])
    described = await gateway.describe(session)
    assert (described.title, described.user, described.turn_count) == ("Reading", "alice", 1)
    assert (await gateway.context(session)).turns[0].message_id == "p1"
    assert "read README.md" in await gateway.replay_text(session)
    await gateway.end(session, reason="done")
    copy = Conversation()
    async with asyncio.timeout(20):
        while not copy.is_over:
            copy.apply(await gateway.updates(session, copy.cursor, wait=10))
    assert [turn.id for turn in copy.turns] == ["p1"]


async def test_api_8_a_prompt_can_wait_for_its_answer(gateway: GatewayClient, env: Environment) -> None:
    session = fresh()
    await gateway.start(session)
    turn = await gateway.ask(session, "hello", wait=20, message_id="p1")
    assert turn is not None
    assert turn.agent_message == "echo: hello"
    fate = await gateway.fate(session, "p1")
    assert (fate.fate, fate.turn_id) == ("started", "p1")
    env.vendor.gate.close()
    assert await gateway.ask(session, "slow", wait=0.2) is None


async def test_api_8_a_prompt_sent_twice_with_the_same_id_is_one_turn(gateway: GatewayClient) -> None:
    session = fresh()
    for _ in range(2):
        await gateway.prompt(session, "once", message_id="p1", start=True)
    assert len((await caught_up(gateway, session)).turns) == 1
    assert [turn.id for page in [page async for page in gateway.transcript(session)] for turn in page.messages] == [
        "p1"
    ]


async def test_api_8_the_transcript_is_read_page_by_page(gateway: GatewayClient) -> None:
    session = (await gateway.chat("m0")).workflow_id
    for number in range(1, 4):
        await gateway.ask(session, f"m{number}", wait=20)
    newest = await gateway.page(session, limit=2)
    assert [turn.user_message for turn in newest.messages] == ["m2", "m3"]
    older = await gateway.page(session, before=newest.messages[0].id, limit=2)
    assert [turn.user_message for turn in older.messages] == ["m0", "m1"]
    assert not older.has_more


async def test_api_8_a_turn_is_stopped_and_a_waiting_prompt_withdrawn(gateway: GatewayClient, env: Environment) -> None:
    env.vendor.gate.close()
    session = fresh()
    await gateway.start(session, prompt="slow")
    await env.vendor.gate.until_arrived(1)
    await gateway.prompt(session, "two", message_id="p2")
    assert [prompt.id for prompt in (await gateway.queue(session)).waiting] == ["p2"]
    await gateway.withdraw(session, "p2")
    with pytest.raises(GatewayProblemError) as again:
        await gateway.withdraw(session, "p2")
    assert (again.value.problem.status, again.value.problem.name) == (409, "not-waiting")
    running = (await gateway.updates(session)).current_message_id
    assert (await gateway.cancel(session, message_id=running, reason="enough")).cancelling
    (turn,) = (await caught_up(gateway, session)).turns
    assert turn.error == "Cancelled: enough"


async def test_api_8_a_pending_call_is_decided_with_its_digest(gateway: GatewayClient, env: Environment) -> None:
    env.tools.specs = [ToolSpec(name="send_mail", description="Sends a mail.")]
    env.vendor.script = [asks(("send_mail", {"to": "bob"})), says("done")]
    session, copy = fresh(), Conversation()
    await gateway.start(session, prompt="write to bob")
    async with asyncio.timeout(20):
        while not copy.awaiting_calls:
            copy.apply(await gateway.updates(session, copy.cursor, wait=10))
    (call,) = copy.awaiting_calls
    assert [pending.call_id for pending in (await gateway.approvals(session)).approvals] == [call.id]
    assert call.approval is not None
    digest = call.approval.args_digest
    decided = await gateway.decide(session, call.id, args_digest=digest, decision="reject", reason="Not today.")
    assert decided.decision == "reject"
    (turn,) = (await caught_up(gateway, session)).turns
    assert turn.steps[0].tool_calls[0].result.content == "Reason: Not today."


async def test_api_8_a_session_is_configured_listed_and_deleted(gateway: GatewayClient) -> None:
    session, user = fresh(), f"u{uuid4().hex[:12]}"
    await gateway.start(session, user=user, title="Old")
    await gateway.configure(session, Configure(title="New"))
    assert (await gateway.describe(session)).title == "New"

    async def is_listed() -> bool:
        return [listed.workflow_id for listed in (await gateway.list_sessions(user=user)).sessions] == [session]

    await until(is_listed)
    assert (await gateway.delete(session)).workflow_id == session


async def test_api_8_a_large_result_is_read_in_full(gateway: GatewayClient, env: Environment) -> None:
    long = "x" * 20_000
    env.vendor.script = [asks(("look", {"text": long})), says("done")]
    session = fresh()
    await gateway.start(session, prompt="look")
    (turn,) = (await caught_up(gateway, session)).turns
    blob = turn.steps[0].tool_calls[0].args_blob
    assert blob is not None
    assert await gateway.blob(session, blob.hash) == f'{{"text":"{long}"}}'


async def test_api_8_a_problem_names_every_invalid_field(gateway: GatewayClient) -> None:
    with pytest.raises(GatewayProblemError, match="There is no session") as unknown:
        await gateway.describe("never-heard-of")
    assert (unknown.value.problem.status, unknown.value.problem.name) == (404, "unknown-session")
    with pytest.raises(GatewayProblemError) as invalid:
        await gateway.start("no such id!")
    assert [error.field for error in invalid.value.problem.errors or []] == ["id"]


async def test_api_8_no_server_and_a_server_that_is_no_gateway_raise_different_errors(tmp_path: Path) -> None:
    async with GatewayClient("http://127.0.0.1:1", patience=0.0) as client:
        with pytest.raises(GatewayUnreachableError, match="nothing listens there"):
            await client.health()
    page = httpx2.MockTransport(lambda request: httpx2.Response(200, text="<html>It works!</html>"))
    async with GatewayClient("http://elsewhere", transport=page) as client:
        with pytest.raises(GatewayUnreadableError):
            await client.describe("s")


async def test_api_8_a_prompt_without_a_response_is_sent_again_with_the_same_id(
    temporal: Client, env: Environment
) -> None:
    """A proxy forwards the first request to the gateway, and drops the connection instead of answering."""
    session = fresh()
    async with served(temporal, gateway_settings(env)) as url:
        losing = LosesAnswers(httpx2.AsyncHTTPTransport(), lost=2)
        async with GatewayClient(url, transport=losing) as client:
            accepted = await client.prompt(session, "hello", start=True)
            copy = await caught_up(client, session)
    assert losing.lost == 0
    assert [turn.id for turn in copy.turns] == [accepted.message_id]


async def test_api_8_a_non_idempotent_request_is_repeated_only_if_it_was_never_sent() -> None:
    losing = LosesAnswers(httpx2.MockTransport(lambda request: httpx2.Response(201, json={"workflow_id": "s"})), lost=1)
    async with GatewayClient("http://gateway", transport=losing) as client:
        with pytest.raises(GatewayUnreachableError, match="the connection was lost"):
            await client.start("s")
        refusing = LosesAnswers(losing.inner, lost=1, error=httpx2.ConnectError)
    async with GatewayClient("http://gateway", transport=refusing) as client:
        assert (await client.start("s")).workflow_id == "s"


class LosesAnswers(httpx2.AsyncBaseTransport):
    """Passes requests on, and loses the answers to the first ones."""

    def __init__(
        self, inner: httpx2.AsyncBaseTransport, *, lost: int, error: type[httpx2.TransportError] = httpx2.ReadError
    ) -> None:
        self.inner = inner
        self.lost = lost
        self.error = error

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if self.error is httpx2.ConnectError and self.lost:
            self.lost -= 1
            raise self.error("lost")
        response = await self.inner.handle_async_request(request)
        if self.lost:
            self.lost -= 1
            await response.aread()
            raise self.error("lost")
        return response


async def test_api_8_the_client_waits_for_a_gateway_that_restarts(temporal: Client, env: Environment) -> None:
    port = restart_port()
    async with GatewayClient(f"http://127.0.0.1:{port}", patience=20.0) as client:
        starting = asyncio.create_task(client.start())
        async with served(temporal, gateway_settings(env), port=port):
            assert (await starting).workflow_id


# ---- events


async def live_copy(
    gateway: GatewayClient, session: str, condition: Callable[[Conversation], bool], cursor: Cursor | None = None
) -> tuple[Conversation, list[Event]]:
    """Follow a session until its copy meets the condition; return the copy and every event on the way."""
    copy, seen = Conversation(), list[Event]()
    async with asyncio.timeout(30), aclosing(gateway.events(session, cursor)) as events:
        async for event in events:
            seen.append(event)
            match event:
                case UpdateEvent():
                    copy.apply(event.update)
                case QueueEvent():
                    copy.apply_queue(event.waiting)
                case PartialEvent():
                    copy.apply_partial(event.partial)
            if condition(copy):
                return copy, seen
    raise AssertionError("the stream ended before it was so")


async def test_api_8_a_session_is_followed_as_it_happens(gateway: GatewayClient, env: Environment) -> None:
    gate = Gate(is_open=False)
    env.vendor.script = [[Delta("respond", "Half"), gate, says("Half and whole.")]]
    session = fresh()
    await gateway.start(session, prompt="go")
    copy, _ = await live_copy(gateway, session, lambda copy: bool(copy.partial_parts))
    assert [part.text for part in copy.partial_parts] == ["Half"]
    await gateway.prompt(session, "waits", message_id="p2")
    copy, _ = await live_copy(gateway, session, lambda copy: bool(copy.waiting))
    assert [prompt.id for prompt in copy.waiting] == ["p2"]
    gate.open()
    copy, _ = await live_copy(gateway, session, lambda copy: len(copy.turns) == 2 and copy.status == "idle")
    assert [turn.agent_message for turn in copy.turns] == ["Half and whole.", "echo: waits"]
    assert copy.partial_parts == []


async def test_api_8_events_resume_after_a_lost_connection_without_gaps(temporal: Client, env: Environment) -> None:
    """The gateway is stopped after the update with the first turn, and another one starts at its address."""
    session, copy, turn_ids = fresh(), Conversation(), list[str]()
    port = restart_port()
    async with asyncio.timeout(60), GatewayClient(f"http://127.0.0.1:{port}", patience=20.0) as client:
        async with served(temporal, gateway_settings(env), port=port):
            await client.start(session, prompt="one")
            events = client.events(session)
            while not (copy.turns and copy.status == "idle"):
                take(await anext(events), copy, turn_ids)
        await env.client.get_workflow_handle(session).signal("prompt", "two")
        assert isinstance(await anext(events), ConnectionLostEvent)
        async with served(temporal, gateway_settings(env), port=port), aclosing(events):
            while not (len(copy.turns) == 2 and copy.status == "idle"):
                take(await anext(events), copy, turn_ids)
    assert [turn.agent_message for turn in copy.turns] == ["echo: one", "echo: two"]
    assert len(turn_ids) == 2


async def test_api_8_a_stuck_session_is_a_lost_connection_until_it_is_fixed(
    gateway: GatewayClient, env: Environment, product_bounds: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, copy = fresh(), Conversation()
    await env.start(id=session, task_seconds=FAILING_TASK_SECONDS)
    async with asyncio.timeout(60), aclosing(gateway.events(session)) as events:
        take(await anext(events), copy, [])
        with monkeypatch.context() as patched:
            fail_workflow_tasks(patched)
            await gateway.prompt(session, "hi")
            async for event in events:
                if isinstance(event, ConnectionLostEvent) and "is stuck" in event.reason:
                    break
        while not (copy.turns and copy.status == "idle"):
            take(await anext(events), copy, [])


def take(event: Event, copy: Conversation, turn_ids: list[str]) -> None:
    if isinstance(event, UpdateEvent):
        assert not event.update.reset
        copy.apply(event.update)
        turn_ids += [turn.id for turn in event.update.new_messages]


async def test_api_8_the_events_of_an_ended_session_end(gateway: GatewayClient) -> None:
    session = fresh()
    await gateway.start(session, prompt="hi")
    await gateway.end(session)
    copy = Conversation()
    async with asyncio.timeout(30):
        async for event in gateway.events(session):
            if isinstance(event, UpdateEvent):
                copy.apply(event.update)
        assert copy.is_over
        assert [event async for event in gateway.events(session, copy.cursor)] == []


async def test_api_8_events_fail_for_an_unknown_session_or_an_unreachable_gateway(
    gateway: GatewayClient,
) -> None:
    with pytest.raises(GatewayProblemError, match="There is no session"):
        await anext(gateway.events("never-heard-of"))
    async with asyncio.timeout(30), GatewayClient("http://127.0.0.1:1") as nowhere:
        events = nowhere.events("s", patience=0.3)
        assert isinstance(await anext(events), ConnectionLostEvent)
        with pytest.raises(GatewayUnreachableError):
            _ = [event async for event in events]


async def test_api_8_a_transcript_that_starts_with_the_newest_page_misses_nothing(gateway: GatewayClient) -> None:
    session = fresh()
    await gateway.start(session)
    for number in range(4):
        await gateway.ask(session, f"m{number}", wait=20)
    copy = Conversation()
    copy.open_at(await gateway.page(session, limit=2))
    await gateway.ask(session, "m4", wait=20)
    update = await gateway.updates(session, copy.cursor)
    assert not update.reset
    copy.apply(update)
    assert [turn.user_message for turn in copy.turns] == ["m2", "m3", "m4"]


async def test_api_8_a_failed_turn_is_retried_once_however_often_it_is_requested(
    gateway: GatewayClient, env: Environment
) -> None:
    env.vendor.script = [ModelError("bad_request", "no"), says("Now.")]
    session = fresh()
    await gateway.start(session)
    assert (await gateway.ask(session, "go", wait=20, message_id="p1")) is not None
    accepted = [await gateway.retry(session, message_id="p1") for _ in range(2)]
    assert accepted[0].message_id == accepted[1].message_id
    copy = await caught_up(gateway, session, turns=2)
    assert [turn.agent_message for turn in copy.turns] == [None, "Now."]


async def test_api_8_the_programs_of_the_clients_page_run_unchanged(
    gateway: GatewayClient, env: Environment, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "python-client.md").read_text()
    names: dict[str, Any] = {"__name__": "page"}
    for program in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(program, names)
    assert await names["ask"](gateway.url) == "echo: what time is it?"

    env.tools.specs = [ToolSpec(name="pay", description="Pays.")]
    paying = asks(("pay", {"amount": 12}))
    gate = Gate(is_open=False)
    env.vendor.script = [paying, [Delta("respond", "Pai"), gate, says("Paid.")], paying, says("Not paid.")]
    session = (await gateway.start(tool_policy={"pay": "ask"})).workflow_id
    questions = list[str]()

    def is_first(text: str) -> bool:
        questions.append(text)
        return len(questions) == 1

    async with asyncio.timeout(BOUND):
        paid = asyncio.create_task(names["converse"](gateway, session, "Pay", is_first))
        await until(lambda: "Pai" in capsys.readouterr().out)
        gate.open()
        assert await paid == "Paid."
        assert await names["converse"](gateway, session, "Pay again", is_first) == "Not paid."
    assert ["amount: 12" in text for text in questions] == [True, True]
    assert len(env.tools.calls) == 1


async def test_api_8_the_program_of_the_readme_runs_unchanged(
    url: str, env: Environment, capsys: pytest.CaptureFixture[str]
) -> None:
    programs = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (program,) = (one for one in programs if "asyncio.run(main())" in one)
    names: dict[str, Any] = {}
    exec(program.replace("asyncio.run(main())", "").replace("http://127.0.0.1:8080", url), names)
    await names["main"]()
    assert capsys.readouterr().out == "echo: what time is it?\n"
