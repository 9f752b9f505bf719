"""Sending prompts: one signal each, and a 202 is a promise (SES-6, API-1)."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from httpx import AsyncClient, Response
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client
from temporalio.service import _BridgeServiceClient

from tests.api.conftest import gateway
from tests.api.http.test_bad_input import problem_of
from tests.api.waits import until_not, until_status
from tests.harness import BOUND, SLACK, Environment, environment, patient, product, says
from turnkeeper.api.temporal.admission import MAX_BYTES, MAX_UNANSWERED_PROMPTS
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.models.session.prompts import Fate

TEXT_CHARS = 99_000
"""The length of a long prompt that a gateway accepts."""

FLOODED_TURNS = 5
"""Turns to wait for after a flood."""


TIMES = product()
"""The timeouts of the gateways of this file: as in production while no worker runs."""


def fresh() -> str:
    return f"a-{uuid4()}"


@pytest.fixture
def rpcs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of all calls of Temporal's service by clients, in order.

    Other than lists, which gateways of other tests read now and then to repair their index.
    """
    names: list[str] = []
    call = _BridgeServiceClient._rpc_call

    async def recorded(client: Any, rpc: str, *arguments: Any, **options: Any) -> Any:
        if rpc != "list_workflow_executions":
            names.append(rpc)
        return await call(client, rpc, *arguments, **options)

    monkeypatch.setattr(_BridgeServiceClient, "_rpc_call", recorded)
    return names


@pytest.fixture
async def http_alone(temporal: Client, tmp_path: Path) -> AsyncIterator[AsyncClient]:
    """The gateway; only the test starts workers."""
    async with gateway(temporal, f"nobody-{tmp_path.name}", tmp_path, timeouts=TIMES) as client:
        yield client


@asynccontextmanager
async def worker_of(temporal: Client, folder: Path) -> AsyncIterator[Environment]:
    """A worker for the sessions of the gateways that have none. While it runs, they wait for it without a limit."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name, seconds in vars(patient()).items():
            monkeypatch.setattr(TIMES, name, seconds)
        async with environment(temporal, task_queue=f"nobody-{folder.name}", state_dir=folder) as env:
            yield env


async def send(http: AsyncClient, session: str, message_id: str, text: str = "hi", *, query: str = "") -> Response:
    body = {"message": text, "id": message_id}
    return await until_not(503, partial(http.post, f"/workflow/{session}/prompt{query}", json=body))


async def until_turns(http: AsyncClient, session: str, count: int, *, is_idle: bool = True) -> dict[str, Any]:
    """Wait until the session has had `count` turns, and is idle unless it may be busy; return its description."""
    revision = 0
    async with asyncio.timeout(300):
        while True:
            described = (await http.get(f"/workflow/{session}")).json()
            if described.get("turn_count", 0) >= count and (not is_idle or described["status"] == "idle"):
                return described
            polled = await http.get(f"/workflow/{session}/conversation?limit=1&wait=1&since_revision={revision}")
            if polled.status_code == 200:
                revision = polled.json()["conversation_update"]["revision"]


async def turn_ids(http: AsyncClient, session: str) -> list[str]:
    """Return the ids of all turns of a session, from all pages of its transcript."""
    ids, page = list[str](), f"/workflow/{session}/conversation/full"
    while page:
        answer = (await http.get(page)).json()
        ids = [*(turn["id"] for turn in answer["messages"]), *ids]
        page = answer["links"]["older"]
    return ids


# ---- one signal


async def test_api_1_a_prompt_is_exactly_one_signal(http: AsyncClient, rpcs: list[str]) -> None:
    session = fresh()
    await http.post("/workflow", json={"id": session})
    for path in (f"/workflow/{session}/prompt", f"/workflow/{session}/prompt?start=true"):
        rpcs.clear()
        answer = await http.post(path, json={"message": "hi"})
        # The index lists a new session a moment late; until then the signal may start it, which has no effect.
        assert (answer.status_code, rpcs) in (
            (202, ["signal_workflow_execution"]),
            (202, ["signal_with_start_workflow_execution"]),
        )
    rpcs.clear()
    answer = await http.post("/chat", json={"message": "hi"})
    assert (answer.status_code, rpcs) == (202, ["signal_with_start_workflow_execution"])


async def test_api_1_the_response_links_to_the_fate_of_the_prompt(http: AsyncClient) -> None:
    session = fresh()
    await http.post("/workflow", json={"id": session})
    chat = {"message": "hi", "id": "p2", "workflow_id": session}
    for answer, message_id in ((await send(http, session, "p1"), "p1"), (await http.post("/chat", json=chat), "p2")):
        assert answer.json() == {"workflow_id": session, "message_id": message_id}
        fate = await http.get(answer.headers["location"])
        assert (fate.status_code, fate.json()["message_id"]) == (200, message_id)


async def test_ses_6_the_same_id_sent_again_is_one_turn(http: AsyncClient) -> None:
    session = fresh()
    for query in ("?start=true", "", "?start=true&wait=50", "?wait=50"):
        answer = await send(http, session, "p1", query=query)
        assert answer.status_code == (200 if "wait" in query else 202)
    assert (await until_turns(http, session, 1))["turn_count"] == 1


@pytest.mark.parametrize(
    ("query", "prefer", "status"),
    [
        ("?wait=50", None, 200),
        ("", "wait=50", 200),
        ("", 'respond-async, WAIT="50"; x=1', 200),
        ("", "return=minimal", 202),
        ("", "wait=soon", 202),
        ("?wait=0", "wait=50", 202),
    ],
)
async def test_api_1_wait_can_be_a_parameter_or_a_header(
    http: AsyncClient, query: str, prefer: str | None, status: int
) -> None:
    session, headers = fresh(), {"Prefer": prefer} if prefer else {}
    await http.post("/workflow", json={"id": session})
    answer = await http.post(f"/workflow/{session}/prompt{query}", json={"message": "hi"}, headers=headers)
    assert answer.status_code == status
    assert answer.json().get("agent_message") == ("echo: hi" if status == 200 else None)


async def test_api_2_without_a_worker_a_prompt_is_accepted_at_once(http_alone: AsyncClient) -> None:
    session = fresh()
    await http_alone.post("/workflow", json={"id": session})
    for query, bound in (("", 1.0), ("?wait=2", 3.0)):
        began = time.monotonic()
        assert (await send(http_alone, session, f"m{query[-1:]}", query=query)).status_code == 202
        assert time.monotonic() - began < bound + SLACK


async def test_api_1_a_waiting_request_gets_its_turn_even_if_queries_failed_as_it_ended(
    http: AsyncClient, env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, fates, failures = fresh(), http._transport.app.state.services.fates, 3
    ended_turn = fates.ended_turn

    async def silent_at_first(*arguments: Any) -> Any:
        nonlocal failures
        turn = await ended_turn(*arguments)
        if turn is not None and failures:
            failures -= 1
            raise TimeoutError
        return turn

    monkeypatch.setattr(fates, "ended_turn", silent_at_first)
    await http.post("/workflow", json={"id": session})
    answer = await send(http, session, "p1", query="?wait=50")
    assert (answer.status_code, answer.json().get("agent_message"), failures) == (200, "echo: hi", 0)


# ---- a 202 is a promise


async def test_ses_6_500_prompts_without_a_worker_become_turns_in_order(
    http_alone: AsyncClient, temporal: Client, tmp_path: Path, rpcs: list[str]
) -> None:
    session, ids = fresh(), [f"m{number}" for number in range(MAX_UNANSWERED_PROMPTS + 20)]
    await http_alone.post("/workflow", json={"id": session})
    rpcs.clear()
    began = time.monotonic()
    for message_id in ids:
        assert (await send(http_alone, session, message_id)).status_code == 202
    counts = Counter(rpcs)
    assert counts["signal_workflow_execution"] == len(ids)
    # Beyond 500 prompts Temporal is asked for the size of the history, once a second.
    assert 1 <= counts["describe_workflow_execution"] <= 1 + time.monotonic() - began
    async with worker_of(temporal, tmp_path):
        assert (await until_turns(http_alone, session, len(ids)))["turn_count"] == len(ids)
        assert await turn_ids(http_alone, session) == ids


async def test_ses_6_too_many_prompts_without_a_worker_get_429_and_break_no_workflow_task(
    http_alone: AsyncClient, temporal: Client, tmp_path: Path
) -> None:
    session, promised = fresh(), list[str]()
    await http_alone.post("/workflow", json={"id": session})
    handle = temporal.get_workflow_handle(session)
    for number in range(MAX_BYTES // TEXT_CHARS + 20):
        answer = await send(http_alone, session, f"m{number}", "x" * TEXT_CHARS)
        if answer.status_code == 429:
            break
        promised.append(f"m{number}")
    assert (problem_of(answer), int(answer.headers["retry-after"]) > 0) == ("queue-full", True)
    size = (await handle.describe()).raw_description.workflow_execution_info.history_size_bytes
    assert MAX_BYTES - 2 * TEXT_CHARS < size < MAX_BYTES + 2 * TEXT_CHARS
    async with worker_of(temporal, tmp_path) as env:
        env.vendor.answer = lambda request: says("ok")
        first_run = temporal.get_workflow_handle(session, run_id=(await handle.describe()).run_id)
        await until_turns(http_alone, session, FLOODED_TURNS, is_idle=False)
        env.vendor.gate.close()
        kinds = {event.event_type for event in (await first_run.fetch_history()).events}
        assert not kinds & {EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED, EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT}
        assert (await turn_ids(http_alone, session))[:FLOODED_TURNS] == promised[:FLOODED_TURNS]
        last = await http_alone.get(f"/workflow/{session}/queue/{promised[-1]}")
        assert (last.json()["fate"], last.json()["position"] > 0) == ("waiting", True)
        env.vendor.gate.open()
        await http_alone.post(f"/workflow/{session}/end", json={"discard_queue": True})
        await until_status(http_alone, session, "ended")


async def test_ses_6_64_clients_of_64_sessions_all_get_answers(http_alone: AsyncClient) -> None:
    answers = await asyncio.gather(*(send(http_alone, fresh(), "p1", query="?start=true") for _ in range(64)))
    assert {(answer.status_code, answer.json()["message_id"]) for answer in answers} == {(202, "p1")}


# ---- rejections


async def test_ses_6_a_queue_that_was_just_read_as_full_gets_429(
    http: AsyncClient, env: Environment, timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "queue_read", BOUND)
    session = fresh()
    env.vendor.gate.close()
    await http.post("/workflow", json={"id": session, "limits": {"max_queued_prompts": 2}, "prompt": "slow"})
    await env.vendor.gate.until_arrived(1)
    for message_id in ("p1", "p2", "p3"):  # the queue was not read
        assert (await send(http, session, message_id)).status_code == 202
    queue = await http.get(f"/workflow/{session}/queue")
    assert [prompt["id"] for prompt in queue.json()["waiting"]] == ["p1", "p2", "p3"]
    refused, again = await asyncio.gather(send(http, session, "p4"), send(http, session, "p1"))
    assert (refused.status_code, problem_of(refused), again.status_code) == (429, "queue-full", 202)
    assert int(refused.headers["retry-after"]) > 0
    env.vendor.gate.open()
    await until_turns(http, session, 4)
    assert (await http.get(f"/workflow/{session}/queue")).json()["waiting"] == []
    assert (await send(http, session, "p4")).status_code == 202


async def test_ses_6_a_prompt_to_an_ended_session_is_a_409(
    http: AsyncClient, env: Environment, rpcs: list[str]
) -> None:
    ended, terminated = fresh(), fresh()
    for session in (ended, terminated):
        await http.post("/workflow", json={"id": session})
    await http.post(f"/workflow/{ended}/end")
    await env.client.get_workflow_handle(ended).result()
    await env.client.get_workflow_handle(terminated).terminate("by the operator")
    for session in (ended, terminated):
        for query in ("", "?start=true"):
            rpcs.clear()
            answer = await send(http, session, "p1", query=query)
            assert (answer.status_code, problem_of(answer)) == (409, "session-ended")
            assert "query_workflow" not in rpcs
    unknown = await send(http, fresh(), "p1")
    assert (unknown.status_code, problem_of(unknown)) == (404, "unknown-session")


async def test_ses_6_a_prompt_to_an_ending_session_gets_409_or_is_discarded(
    http: AsyncClient, env: Environment, timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "queue_read", BOUND)
    session = fresh()
    env.vendor.gate.close()
    await http.post("/workflow", json={"id": session, "prompt": "slow"})
    await env.vendor.gate.until_arrived(1)
    await http.post(f"/workflow/{session}/end")
    assert (await send(http, session, "late")).status_code == 202  # the session was not read since then
    fate = await http.get(f"/workflow/{session}/queue/late")
    assert (fate.status_code, fate.json()["fate"]) == (200, "discarded")
    refused = await send(http, session, "later")
    assert (refused.status_code, problem_of(refused)) == (409, "session-ended")
    env.vendor.gate.open()
    await until_status(http, session, "ended")


async def test_ses_5_a_text_over_the_sessions_own_limit_is_rejected_with_a_fate(http: AsyncClient) -> None:
    session = fresh()
    await http.post("/workflow", json={"id": session, "limits": {"max_prompt_chars": 5}})
    answer = await send(http, session, "p1", "much too long")
    assert answer.status_code == 202
    fate = (await http.get(answer.headers["location"])).json()
    assert (fate["fate"], fate["refusal"], "allows 5" in fate["reason"]) == ("rejected", "too_long", True)
    waited = await send(http, session, "p2", "much too long", query="?wait=30")
    assert (waited.status_code, problem_of(waited), "allows 5" in waited.text) == (422, "invalid", True)
    again = await send(http, session, "p1", "short", query="?wait=50")
    assert (again.status_code, again.json()["agent_message"]) == (200, "echo: short")


# ---- the fate of any prompt


async def test_ses_6_the_fate_of_any_prompt_can_be_read(http: AsyncClient, env: Environment) -> None:
    session = fresh()
    await http.post("/workflow", json={"id": session})

    async def fate(message_id: str) -> dict[str, Any]:
        answer = await http.get(f"/workflow/{session}/queue/{message_id}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    await send(http, session, "first", query="?wait=20")
    env.vendor.gate.close()
    for message_id in ("running", "second", "third"):
        await send(http, session, message_id)
    await env.vendor.gate.until_arrived(2)
    await http.delete(f"/workflow/{session}/queue/second")
    assert (await fate("first"))["fate"] == "started"
    assert (await fate("running"))["turn_id"] == "running"
    assert (await fate("second"))["fate"] == "withdrawn"
    assert ((await fate("third"))["fate"], (await fate("third"))["position"]) == ("waiting", 1)
    await env.client.get_workflow_handle(session).signal("prompt", {"id": "blank", "text": " "})
    assert ((await fate("blank"))["fate"], (await fate("blank"))["refusal"]) == ("rejected", "blank")
    unknown = await http.get(f"/workflow/{session}/queue/nope")
    assert (unknown.status_code, problem_of(unknown)) == (404, "unknown-prompt")
    nowhere = await http.get(f"/workflow/{fresh()}/queue/nope")
    assert (nowhere.status_code, problem_of(nowhere)) == (404, "unknown-session")
    await http.post(f"/workflow/{session}/end", json={"discard_queue": True})
    env.vendor.gate.open()
    await until_status(http, session, "ended")
    assert (await fate("third"))["fate"] == "discarded"
    assert (await fate("first"))["turn_id"] == "first"


async def test_ses_6_without_a_worker_the_fate_of_a_waiting_prompt_is_504(http_alone: AsyncClient) -> None:
    session = fresh()
    await http_alone.post("/workflow", json={"id": session})
    await send(http_alone, session, "m1")
    began = time.monotonic()
    answer = await http_alone.get(f"/workflow/{session}/queue/m1")
    assert (answer.status_code, problem_of(answer)) == (504, "no-worker")
    assert time.monotonic() - began < 3 + SLACK


async def test_ses_6_without_a_worker_the_archive_has_the_fate_of_a_prompt(temporal: Client, tmp_path: Path) -> None:
    session, queue = fresh(), f"nobody-{tmp_path.name}"
    async with gateway(temporal, queue, tmp_path, timeouts=TIMES) as http:
        async with worker_of(temporal, tmp_path):
            await http.post("/workflow", json={"id": session})
            await send(http, session, "p1", query="?wait=20")
            await http.post(f"/workflow/{session}/end")
            await until_status(http, session, "ended")
        answer = await http.get(f"/workflow/{session}/queue/p1")
        assert (answer.status_code, answer.json()["fate"], answer.json()["turn_id"]) == (200, "started", "p1")


async def test_ses_6_an_archived_rejection_is_returned_only_after_asking_the_session(
    temporal: Client, tmp_path: Path
) -> None:
    session, path = fresh(), "/workflow/{}/queue/{}"
    async with gateway(temporal, f"nobody-{tmp_path.name}", tmp_path, timeouts=TIMES) as http:
        await http.post("/workflow", json={"id": session})
        async with worker_of(temporal, tmp_path) as env:
            rejections = [Fate(id=one, fate="rejected", at=datetime.now(UTC)) for one in ("p1", "other")]
            await env.stores.prompts.put_fates(session, rejections)
            assert (await http.get(path.format(session, "other"))).json()["fate"] == "rejected"
            assert (await send(http, session, "p1", query="?wait=50")).status_code == 200
        for message_id in ("p1", "other"):
            answer = await http.get(path.format(session, message_id))
            assert (answer.status_code, problem_of(answer)) == (504, "no-worker")
        async with worker_of(temporal, tmp_path):
            assert (await http.get(path.format(session, "p1"))).json()["fate"] == "started"
