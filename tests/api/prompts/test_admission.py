"""Sending prompts: a 202 is a promise (SES-6); answers and problems (API-1, API-2)."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from httpx import AsyncClient, Response
from temporalio.client import Client

from tests.api.conftest import SessionRequests, gateway
from tests.api.http.test_bad_input import problem_of
from tests.api.waits import until_not, until_status
from tests.harness import SLACK, Environment, environment, patient, product
from tests.waiting import until
from turnkeeper.api.http.prefer import prefers_async
from turnkeeper.api.temporal.commits import CommitChecker
from turnkeeper.models.as_of import AsOf
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.limits import Limits
from turnkeeper.models.session.messages import SessionInput


def fresh() -> str:
    return f"a-{uuid4()}"


TIMES = product()
"""Of the gateways of this file: those of production while no worker runs."""


@pytest.fixture
async def http_alone(temporal: Client, tmp_path: Path) -> AsyncIterator[AsyncClient]:
    """The gateway, with no worker but those of the test."""
    async with gateway(temporal, f"nobody-{tmp_path.name}", tmp_path, timeouts=TIMES) as client:
        yield client


@pytest.fixture
async def second_gateway(temporal: Client, tmp_path: Path) -> AsyncIterator[AsyncClient]:
    """Another gateway beside `http_alone`, which knows nothing of what that one has sent."""
    async with gateway(temporal, f"nobody-{tmp_path.name}", tmp_path, timeouts=TIMES) as client:
        yield client


@asynccontextmanager
async def worker_of(temporal: Client, folder: Path) -> AsyncIterator[Environment]:
    """A worker for the sessions of the gateways that have none. While it runs, they wait for it as long as it takes."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name, seconds in vars(patient()).items():
            monkeypatch.setattr(TIMES, name, seconds)
        async with environment(temporal, task_queue=f"nobody-{folder.name}", state_dir=folder) as env:
            yield env


async def send_prompts(
    http: AsyncClient, session: str, ids: Iterable[str], *, at_once: int = 64, query: str = "", **headers: str
) -> dict[str, Response]:
    """Send a prompt for each id, `at_once` at a time; return the answers."""
    gate, answers = asyncio.Semaphore(at_once), {}

    async def send(message_id: str) -> None:
        async with gate:
            path = f"/workflow/{session}/prompt{query}"
            body = {"message": f"say {message_id}", "id": message_id}
            # A server that has too much to do is away for the gateway, which says so; it is safe to send again.
            answers[message_id] = await until_not(503, partial(http.post, path, json=body, headers=headers))

    await asyncio.gather(*(send(message_id) for message_id in ids))
    return answers


def accepted(answers: dict[str, Response]) -> list[str]:
    assert {answer.status_code for answer in answers.values()} <= {202, 429}
    for answer in answers.values():
        if answer.status_code == 429:
            assert problem_of(answer) == "queue-full"
            assert int(answer.headers["retry-after"]) > 0
    return [message_id for message_id, answer in answers.items() if answer.status_code == 202]


async def until_turns(http: AsyncClient, session: str, count: int) -> dict[str, Any]:
    """Wait until the session has had `count` turns and is idle; return its description."""
    revision = 0
    async with asyncio.timeout(150):
        while True:
            described = (await http.get(f"/workflow/{session}")).json()
            if described.get("turn_count", 0) >= count and described["status"] == "idle":
                return described
            polled = await http.get(f"/workflow/{session}/conversation?limit=1&wait=1&since_revision={revision}")
            if polled.status_code == 200:
                revision = polled.json()["conversation_update"]["revision"]


async def fates(http: AsyncClient, session: str, ids: Iterable[str]) -> Counter[str]:
    counts = Counter[str]()
    for message_id in ids:
        answer = await http.get(f"/workflow/{session}/queue/{message_id}")
        counts[answer.json().get("fate") or problem_of(answer)] += 1
    return counts


QUEUE = 8
"""The queue limit of sessions that are sent more prompts than fit."""


async def test_ses_6_prompts_sent_while_no_worker_runs_become_turns_or_are_refused_at_the_door(
    http_alone: AsyncClient, temporal: Client, tmp_path: Path
) -> None:
    session = fresh()
    await http_alone.post("/workflow", json={"id": session, "limits": {"max_queued_prompts": QUEUE}})
    promised = accepted(await send_prompts(http_alone, session, (f"m{number}" for number in range(5 * QUEUE))))
    assert QUEUE - 2 <= len(promised) <= QUEUE
    async with worker_of(temporal, tmp_path):
        described = await until_turns(http_alone, session, len(promised))
        assert described["turn_count"] == len(promised)
        assert await fates(http_alone, session, promised) == {"started": len(promised)}


async def test_ses_6_what_two_gateways_admit_at_once_is_processed_too(
    http_alone: AsyncClient, second_gateway: AsyncClient, temporal: Client, tmp_path: Path
) -> None:
    session = fresh()
    await http_alone.post("/workflow", json={"id": session, "limits": {"max_queued_prompts": QUEUE}})
    one, two = await asyncio.gather(
        send_prompts(http_alone, session, (f"a{number}" for number in range(15))),
        send_prompts(second_gateway, session, (f"b{number}" for number in range(15))),
    )
    promised = accepted(one) + accepted(two)
    assert QUEUE <= len(promised) <= 2 * QUEUE
    async with worker_of(temporal, tmp_path):
        described = await until_turns(second_gateway, session, len(promised))
        assert described["turn_count"] == len(promised)
        assert await fates(second_gateway, session, promised) == {"started": len(promised)}


async def test_ses_6_a_gateway_that_was_restarted_counts_what_no_worker_has_taken(
    http_alone: AsyncClient, second_gateway: AsyncClient
) -> None:
    session = fresh()
    await http_alone.post("/workflow", json={"id": session, "limits": {"max_queued_prompts": 5}})
    assert len(accepted(await send_prompts(http_alone, session, (f"m{number}" for number in range(8))))) == 5
    (refused,) = (await send_prompts(second_gateway, session, ["x"])).values()
    assert (refused.status_code, problem_of(refused)) == (429, "queue-full")
    assert "max_queued_prompts allows 5" in refused.json()["detail"]


async def test_ses_6_a_session_that_was_asked_to_end_promises_nothing_more_while_no_worker_runs(
    http_alone: AsyncClient, second_gateway: AsyncClient
) -> None:
    session = fresh()
    await http_alone.post("/workflow", json={"id": session})
    await http_alone.post(f"/workflow/{session}/end")
    (refused,) = (await send_prompts(second_gateway, session, ["x"])).values()
    assert (refused.status_code, problem_of(refused)) == (409, "session-ended")


async def test_ses_6_the_bytes_of_what_waits_are_bounded_while_no_worker_runs(http_alone: AsyncClient) -> None:
    session, text = fresh(), "x" * 60_000
    await http_alone.post("/workflow", json={"id": session})
    prompts = [
        http_alone.post(f"/workflow/{session}/prompt", json={"message": text, "id": f"m{number}"})
        for number in range(8)
    ]
    statuses = Counter(answer.status_code for answer in await asyncio.gather(*prompts))
    assert statuses == {202: Limits().queued_bytes // len(text), 429: 8 - Limits().queued_bytes // len(text)}


async def test_ses_6_a_prompt_that_was_accepted_is_never_refused_when_it_is_sent_again(
    http_alone: AsyncClient, second_gateway: AsyncClient, temporal: Client, tmp_path: Path
) -> None:
    session, ids = fresh(), [f"m{number}" for number in range(5)]
    await http_alone.post("/workflow", json={"id": session, "limits": {"max_queued_prompts": 5}})
    assert accepted(await send_prompts(http_alone, session, ids, at_once=1)) == ids
    for http in (http_alone, second_gateway):
        assert accepted(await send_prompts(http, session, [*ids, "other"])) == ids
    async with worker_of(temporal, tmp_path) as env:
        env.vendor.gate.close()
        await env.vendor.gate.until_arrived(1)
        # The first has started, so one more has room, once the gateway looks again.

        async def sixth_answer() -> Response:
            return (await send_prompts(http_alone, session, ["m5"]))["m5"]

        sixth = await until_not(429, sixth_answer)
        assert (sixth.status_code, sixth.json()["position"]) == (202, 5)
        again = await send_prompts(http_alone, session, [*ids, "other"])
        assert set(accepted(again)) == set(ids)
        assert [again[message_id].json()["position"] for message_id in ids] == [0, 1, 2, 3, 4]
        env.vendor.gate.open()
        assert (await until_turns(http_alone, session, 6))["turn_count"] == 6


async def test_ses_6_sixty_four_clients_at_once_on_sixty_four_sessions_are_each_answered(
    http_alone: AsyncClient,
) -> None:
    sessions = [fresh() for _ in range(64)]
    answers = [
        answer
        for sending in await asyncio.gather(
            *(send_prompts(http_alone, one, ["p1"], query="?start=true") for one in sessions)
        )
        for answer in sending.values()
    ]
    assert {(answer.status_code, answer.json()["message_id"]) for answer in answers} == {(202, "p1")}


async def test_ses_6_many_clients_of_one_session_do_not_pass_the_limit_together(
    http: AsyncClient, env: Environment
) -> None:
    env.vendor.gate.close()
    session = fresh()
    await http.post("/workflow", json={"id": session, "limits": {"max_queued_prompts": 5}, "prompt": "slow"})
    await env.vendor.gate.until_arrived(1)
    answers = await send_prompts(http, session, (f"m{number}" for number in range(16)))
    count = len(accepted(answers))
    assert 3 <= count <= 5  # the one that runs counts as waiting until the session has said that it does not
    env.vendor.gate.open()
    assert (await until_turns(http, session, count + 1))["turn_count"] == count + 1
    assert set((await fates(http, session, answers)).keys()) == {"started", "unknown-prompt"}


async def test_ses_6_prompts_that_are_worked_off_make_room_though_nobody_reads(
    http: AsyncClient, env: Environment
) -> None:
    session, prefer = fresh(), {"Prefer": "respond-async"}
    await http.post("/workflow", json={"id": session, "limits": {"max_queued_prompts": 3}})
    for number in range(6):
        answer = await http.post(f"/workflow/{session}/prompt", json={"message": f"m{number}"}, headers=prefer)
        assert answer.status_code == 202
        await until_turns(http, session, number + 1)


async def test_api_1_a_prompt_costs_one_signal_and_one_question_shared_by_all(
    url: str, env: Environment, session_requests: SessionRequests
) -> None:
    session = fresh()
    async with AsyncClient(base_url=url, timeout=60) as http:
        await http.post("/workflow", json={"id": session})
        env.vendor.gate.close()
        await http.post(f"/workflow/{session}/prompt", json={"message": "slow"})
        assert session_requests.queries == ["get_queue"]
        await env.vendor.gate.until_arrived(1)
        session_requests.clear()
        answers = await send_prompts(http, session, (f"m{number}" for number in range(16)))
        # On a busy machine the worker does not answer all in time.
        positions = [answer.json()["position"] for answer in answers.values() if answer.json()["position"]]
        assert len(set(positions)) == len(positions)
        assert set(positions) <= set(range(1, 33))
        assert set(session_requests.queries) == {"get_queue"}
        assert len(session_requests.queries) < 20


async def test_api_1_the_receipt_of_an_accepted_prompt_waits_for_no_history(
    http: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[str] = []
    check = CommitChecker.is_committed

    async def is_committed(checker: CommitChecker, workflow_id: WorkflowId, as_of: AsOf) -> bool:
        checked.append(workflow_id)
        return await check(checker, workflow_id, as_of)

    monkeypatch.setattr(CommitChecker, "is_committed", is_committed)
    session = fresh()
    await http.post("/workflow", json={"id": session})
    answer = await http.post(f"/workflow/{session}/prompt", json={"message": "hi", "id": "p1"})
    assert (answer.status_code, answer.json()["position"], checked) == (202, 0, [])
    assert (await http.get(f"/workflow/{session}/queue")).status_code == 200
    assert checked == [session]


@pytest.mark.parametrize("first", ["signal", "query"])
async def test_api_1_a_prompt_and_the_query_for_its_position_do_not_wait_for_each_other(
    http: AsyncClient, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    services, is_first_done, queries = http._transport.app.state.services, asyncio.Event(), 0
    prompt, ask = services.sessions.prompt, services.reader._queries.ask

    async def signal_in_order(*arguments: Any) -> None:
        if first == "query":
            await is_first_done.wait()
        await prompt(*arguments)
        is_first_done.set()

    async def ask_in_order(*arguments: Any, **options: Any) -> Any:
        nonlocal queries
        queries += 1
        if first == "signal":
            await is_first_done.wait()
        result = await ask(*arguments, **options)
        is_first_done.set()
        return result

    monkeypatch.setattr(services.sessions, "prompt", signal_in_order)
    monkeypatch.setattr(services.reader._queries, "ask", ask_in_order)
    session = fresh()
    await http.post("/workflow", json={"id": session})
    answer = await http.post(f"/workflow/{session}/prompt", json={"message": "hi", "id": "p1"})
    assert (answer.status_code, answer.json()["position"], queries) == (202, 0, 1)


async def test_api_1_the_query_for_the_position_is_sent_before_the_signal_without_waiting_for_its_answer(
    http: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    services, requests, may_answer = http._transport.app.state.services, list[str](), asyncio.Event()
    prompt, query = services.sessions.prompt, services.reader._queries._query_with_retries

    async def noted_signal(*arguments: Any) -> None:
        requests.append("signal")
        await prompt(*arguments)
        may_answer.set()

    async def noted_query(*arguments: Any) -> Any:
        requests.append("query")
        await may_answer.wait()
        return await query(*arguments)

    monkeypatch.setattr(services.sessions, "prompt", noted_signal)
    monkeypatch.setattr(services.reader._queries, "_query_with_retries", noted_query)
    session = fresh()
    await http.post("/workflow", json={"id": session})
    answer = await http.post(f"/workflow/{session}/prompt", json={"message": "hi"})
    assert (answer.status_code, answer.json()["position"], requests) == (202, 0, ["query", "signal"])


async def test_api_1_a_prompt_that_others_overtake_is_queried_again(
    http: AsyncClient, env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    services, was_asked, may_go = http._transport.app.state.services, asyncio.Event(), asyncio.Event()
    prompt, ask = services.sessions.prompt, services.reader._queries.ask

    async def signal_late(workflow_id: WorkflowId, signal: Any) -> None:
        if signal.id == "slow":
            await may_go.wait()
        await prompt(workflow_id, signal)

    async def ask_and_note(*arguments: Any, **options: Any) -> Any:
        result = await ask(*arguments, **options)
        was_asked.set()
        return result

    session = fresh()
    env.vendor.gate.close()
    await http.post("/workflow", json={"id": session, "prompt": "first"})
    await env.vendor.gate.until_arrived(1)
    monkeypatch.setattr(services.sessions, "prompt", signal_late)
    monkeypatch.setattr(services.reader._queries, "ask", ask_and_note)
    path = f"/workflow/{session}/prompt"
    slow = asyncio.create_task(http.post(path, json={"message": "hi", "id": "slow"}))
    await was_asked.wait()
    quick = await http.post(path, json={"message": "hi", "id": "quick"})
    may_go.set()
    assert (quick.json()["position"], (await slow).json()["position"]) == (1, 2)
    env.vendor.gate.open()
    await until_turns(http, session, 3)


async def test_api_1_what_only_the_session_rejects_is_rejected_in_the_answer_and_may_be_sent_again(
    http: AsyncClient,
) -> None:
    session = fresh()
    await http.post("/workflow", json={"id": session, "limits": {"max_prompt_chars": 5}})
    path = f"/workflow/{session}/prompt"
    refused = await http.post(path, json={"message": "much too long", "id": "p1"})
    assert (refused.status_code, problem_of(refused)) == (422, "invalid")
    assert "max_prompt_chars allows 5" in refused.text
    again = await http.post(path, json={"message": "short", "id": "p1"})
    assert (again.status_code, again.json()["position"]) == (202, 0)
    repeated = await http.post(path, json={"message": "short", "id": "p1"})
    assert (repeated.status_code, repeated.json()["position"]) == (202, 0)


async def test_api_1_while_workers_answer_nobody_one_prompt_at_a_time_waits_for_its_position(
    http_alone: AsyncClient,
) -> None:
    limit = http_alone._transport.app.state.services.reader.receipt_limit
    one, other = fresh(), fresh()
    for session in (one, other):
        await http_alone.post("/workflow", json={"id": session})
    for _ in range(10):
        limit.note(is_answered=False)
    waiting = asyncio.create_task(http_alone.post(f"/workflow/{one}/prompt", json={"message": "hi"}))

    async def one_waits() -> bool:
        return not limit.has_room

    await until(one_waits)
    answer = await http_alone.post(f"/workflow/{other}/prompt", json={"message": "hi"})
    assert (answer.status_code, answer.json()["position"], waiting.done()) == (202, None, False)
    assert (await waiting).status_code == 202


async def test_api_1_respond_async_asks_nobody(url: str, env: Environment, session_requests: SessionRequests) -> None:
    session = fresh()
    async with AsyncClient(base_url=url, timeout=60) as http:
        await http.post("/workflow", json={"id": session})
        path, headers = f"/workflow/{session}/prompt", {"Prefer": "handling=lenient, Respond-Async"}
        answer = await http.post(path, json={"message": "hi", "id": "p1"}, headers=headers)
        assert (answer.status_code, answer.json()["position"]) == (202, None)
        assert answer.headers["preference-applied"] == "respond-async"
        assert session_requests.queries == []
        assert (await until_turns(http, session, 1))["turn_count"] == 1
        plain = await http.post(path, json={"message": "hi"}, headers={"Prefer": "return=minimal"})
        assert "preference-applied" not in plain.headers
        unknown = await http.post(f"/workflow/{fresh()}/prompt", json={"message": "hi"}, headers=headers)
        assert (unknown.status_code, problem_of(unknown)) == (404, "unknown-session")
        chat = await http.post("/chat", json={"message": "hi"}, headers=headers)
        assert (chat.status_code, chat.headers["preference-applied"]) == (202, "respond-async")


@pytest.mark.parametrize(
    ("headers", "is_preferred"),
    [
        (["respond-async"], True),
        (["wait=10", "RESPOND-ASYNC"], True),
        (['respond-async=""; x=1'], True),
        (["respond-async; wait=5"], True),
        (["foo, , respond-async ,"], True),
        (["respond-async=true"], False),
        (["x; respond-async"], False),
        (['x="\\", respond-async'], False),
        (['x="' + '\\"' * 20_000], False),
        ([""], False),
    ],
)
def test_api_1_the_header_prefer_is_read_as_the_rfc_has_it(headers: list[str], is_preferred: bool) -> None:
    assert prefers_async(headers) is is_preferred


async def test_api_2_without_a_worker_a_prompt_takes_no_longer_than_its_receipt_is_waited_for(
    http_alone: AsyncClient,
) -> None:
    session = fresh()
    await http_alone.post("/workflow", json={"id": session})
    for query, bound in (("", 1.4), ("?wait=2", 3.0), ("?wait=0.1", 1.4)):
        began = time.monotonic()
        (answer,) = (await send_prompts(http_alone, session, [f"m{query[-1:]}"], query=query)).values()
        assert (answer.status_code, answer.json()["position"]) == (202, None)
        assert time.monotonic() - began < bound + SLACK


async def test_api_1_who_waits_for_a_turn_is_told_though_nobody_could_answer_when_it_ended(
    http: AsyncClient, env: Environment
) -> None:
    session = fresh()
    await http.post("/workflow", json={"id": session})
    queries = http._transport.app.state.services.reader._queries
    query, handle = queries._answer, env.client.get_workflow_handle(session)

    async def has_ended_and_is_counted() -> bool:
        """Return whether the turn is over, and the gateway's watch has counted the last change."""
        described = (await handle.describe()).raw_description
        if not env.vendor.requests or described.pending_activities or described.HasField("pending_workflow_task"):
            return False
        watch = http._transport.app.state.services.reader.watches.get(session)
        events = (await handle.fetch_history()).events
        completed = [event.event_id for event in events if event.HasField("workflow_task_completed_event_attributes")]
        return watch is not None and watch.tasks._completed_ids[-1:] == completed[-1:]

    async def silent_until_then(session_id: str, question: Any) -> Any:
        await until(has_ended_and_is_counted)
        return await query(session_id, question)

    queries._answer = silent_until_then
    began = time.monotonic()
    answer = await http.post(f"/workflow/{session}/prompt?wait=50", json={"message": "hi"})
    assert (answer.status_code, answer.json().get("agent_message")) == (200, "echo: hi")
    assert time.monotonic() - began < 30


# ---- the fate of any prompt


async def test_ses_6_the_fate_of_any_prompt_can_be_asked_for(http: AsyncClient, env: Environment) -> None:
    session = fresh()
    await http.post("/workflow", json={"id": session})

    async def fate(message_id: str) -> dict[str, Any]:
        answer = await http.get(f"/workflow/{session}/queue/{message_id}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    await http.post(f"/workflow/{session}/prompt?wait=20", json={"message": "hi", "id": "first"})
    env.vendor.gate.close()
    for message_id in ("running", "second", "third"):
        await http.post(f"/workflow/{session}/prompt", json={"message": "hi", "id": message_id})
    await env.vendor.gate.until_arrived(2)
    await http.delete(f"/workflow/{session}/queue/second")
    assert (await fate("first"))["fate"] == "started"
    assert (await fate("running"))["turn_id"] == "running"
    assert (await fate("second"))["fate"] == "withdrawn"
    assert ((await fate("third"))["fate"], (await fate("third"))["position"]) == ("waiting", 1)
    unknown = await http.get(f"/workflow/{session}/queue/nope")
    assert (unknown.status_code, problem_of(unknown)) == (404, "unknown-prompt")
    nowhere = await http.get(f"/workflow/{fresh()}/queue/nope")
    assert (nowhere.status_code, problem_of(nowhere)) == (404, "unknown-session")
    await http.post(f"/workflow/{session}/end", json={"discard_queue": True})
    env.vendor.gate.open()
    await until_status(http, session, "ended")
    assert (await fate("third"))["fate"] == "discarded"
    assert (await fate("first"))["turn_id"] == "first"


async def test_ses_6_without_a_worker_a_prompt_that_temporal_has_waits(
    http_alone: AsyncClient, second_gateway: AsyncClient, temporal: Client
) -> None:
    session = fresh()
    await http_alone.post("/workflow", json={"id": session})
    assert len(accepted(await send_prompts(http_alone, session, ["m1", "m2"]))) == 2
    for message_id in ("m1", "m2"):
        began = time.monotonic()
        answer = await second_gateway.get(f"/workflow/{session}/queue/{message_id}")
        assert (answer.status_code, answer.json()["fate"], answer.json()["position"]) == (200, "waiting", None)
        assert time.monotonic() - began < 3 + SLACK
    nobody = await second_gateway.get(f"/workflow/{session}/queue/m3")
    assert (nobody.status_code, problem_of(nobody)) == (504, "no-worker")
    await temporal.get_workflow_handle(session).terminate("by the operator")
    closed = await second_gateway.get(f"/workflow/{session}/queue/m1")
    assert (closed.status_code, closed.json()["fate"]) == (200, "discarded")


async def test_ses_6_a_turn_in_the_archive_tells_what_became_of_its_prompt_also_without_a_worker(
    temporal: Client, tmp_path: Path
) -> None:
    session, queue = fresh(), f"nobody-{tmp_path.name}"
    async with gateway(temporal, queue, tmp_path, timeouts=TIMES) as http:
        async with worker_of(temporal, tmp_path):
            await http.post("/workflow", json={"id": session})
            await http.post(f"/workflow/{session}/prompt?wait=20", json={"message": "hi", "id": "p1"})
            await http.post(f"/workflow/{session}/end")
            await until_status(http, session, "ended")
        answer = await http.get(f"/workflow/{session}/queue/p1")
        assert (answer.status_code, answer.json()["fate"], answer.json()["turn_id"]) == (200, "started", "p1")


async def test_ses_6_a_session_of_which_a_gateway_has_read_nothing_is_taken_by_what_it_was_started_with(
    http_alone: AsyncClient, temporal: Client, tmp_path: Path
) -> None:
    session = fresh()
    start = SessionInput(limits=Limits(max_queued_prompts=3))
    await temporal.start_workflow("AgenticAIWorkflow", start, id=session, task_queue=f"nobody-{tmp_path.name}")
    await temporal.get_workflow_handle(session).signal("prompt", "a bare string")
    assert len(accepted(await send_prompts(http_alone, session, [f"m{number}" for number in range(6)]))) == 2
