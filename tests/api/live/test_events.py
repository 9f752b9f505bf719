"""Watching a session live over a real connection: API-1, API-3."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from copy import deepcopy
from itertools import pairwise
from typing import Any
from uuid import uuid4

import httpx
import pytest
from temporalio.client import Client

from tests.api.live.watching import Watcher, full_state, idle_after
from tests.harness import BOUND, Environment, Gate, asks, patient, says
from tests.waiting import until
from turnkeeper.activities.providers.protocol import Delta, ModelError
from turnkeeper.api.app import create_app
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.stores.partials.carrier import LiveSnapshot


@pytest.fixture
async def http(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=url, timeout=BOUND, limits=httpx.Limits(max_connections=400)) as client:
        yield client


async def started(http: httpx.AsyncClient, prompt: str | None = None, **more: object) -> str:
    session = f"e-{uuid4()}"
    answer = await http.post("/workflow", json={"id": session, "prompt": prompt, **more})
    assert answer.status_code == 201
    return session


async def test_api_1_a_watcher_sees_a_turn_from_its_beginning_to_its_end(
    http: httpx.AsyncClient, env: Environment
) -> None:
    env.vendor.gate.close()
    session = await started(http)
    watcher = Watcher(http, session)
    async with watcher.stream() as events:
        first = await anext(events)
        assert (first.event, first.data["new_messages"], first.data["status"]) == ("update", [], "idle")
        await http.post(f"/workflow/{session}/prompt", json={"message": "hello", "id": "p1"})
        await watcher.until_in(events, lambda so_far: so_far.last.current_message_id == "p1")
        assert watcher.answers == [None]
        env.vendor.gate.open()
        await watcher.until_in(events, idle_after(1))
    assert watcher.answers == ["echo: hello"]


async def test_agt_9_a_watcher_sees_why_the_model_call_is_delayed(http: httpx.AsyncClient, env: Environment) -> None:
    env.vendor.script = [ModelError("overloaded", "HTTP 529", retry_after=300, vendor="Anthropic")]
    session = await started(http)
    watcher = Watcher(http, session)
    reason = "Anthropic is overloaded: HTTP 529."
    async with watcher.stream() as events:
        await http.post(f"/workflow/{session}/prompt", json={"message": "hello", "id": "p1"})
        await watcher.until_in(events, lambda so_far: so_far.last.status == "waiting_retry")
        assert watcher.last is not None
        assert watcher.last.waiting_reason == reason
        described = (await http.get(f"/workflow/{session}")).json()
        assert (described["status"], described["waiting_reason"]) == (
            "waiting_retry",
            reason,
        )
        await http.post(f"/workflow/{session}/cancel", json={"message_id": "p1"})
        await watcher.until_in(events, idle_after(1))
        assert watcher.last.waiting_reason is None


async def test_api_1_every_change_of_the_queue_is_an_event(http: httpx.AsyncClient, env: Environment) -> None:
    env.vendor.gate.close()
    session = await started(http, "slow")
    await env.vendor.gate.until_arrived(1)
    watcher = Watcher(http, session)
    async with watcher.stream() as events:
        for number in (1, 2):
            await http.post(f"/workflow/{session}/prompt", json={"message": "more", "id": f"p{number}"})
        await watcher.until_in(events, lambda so_far: len(so_far.waiting) == 2)
        assert [(prompt["id"], prompt["position"]) for prompt in watcher.waiting] == [("p1", 1), ("p2", 2)]
        await http.delete(f"/workflow/{session}/queue/p1")
        await watcher.until_in(events, lambda so_far: [prompt["id"] for prompt in so_far.waiting] == ["p2"])
        env.vendor.gate.open()
        await watcher.until_in(events, lambda so_far: so_far.waiting == [])
    queue_events = [event for event in watcher.events if event.event == "queue"]
    assert all(before != after for before, after in pairwise(queue_events))


async def test_api_1_a_new_watcher_gets_the_queue_after_the_first_update(
    http: httpx.AsyncClient, env: Environment
) -> None:
    env.vendor.gate.close()
    session = await started(http, "slow")
    await http.post(f"/workflow/{session}/prompt", json={"message": "more", "id": "p1"})
    await env.vendor.gate.until_arrived(1)
    async with Watcher(http, session).stream() as events, asyncio.timeout(BOUND):
        assert [(await anext(events)).event, (await anext(events)).event] == ["update", "queue"]


async def test_agt_5_partial_text_is_streamed_and_never_after_its_step(
    http: httpx.AsyncClient, env: Environment
) -> None:
    """A page that is reloaded in mid-answer lacks the text from before the reload.

    Reported as open-webui#29596, dify#35307, epam/ai-dial-chat#8684.
    """
    rest = Gate(is_open=False)
    env.vendor.script = [[Delta("respond", "Hel"), Delta("respond", "lo"), rest, says("Hello")]]
    session = await started(http, "hi")
    early, late = Watcher(http, session), Watcher(http, session)
    async with early.stream() as events:
        await early.until_in(events, lambda so_far: so_far.partial_texts == ["Hello"])
        await late.until(lambda so_far: so_far.partial_texts == ["Hello"])
        assert late.partial[0].fresh
        rest.open()
        await early.until_in(events, idle_after(1))
    assert early.answers == ["Hello"]
    assert early.events[-1].event == "update"
    assert early.partial_texts == []


async def test_agt_5_a_returning_client_gets_no_text_that_its_transcript_has(
    http: httpx.AsyncClient, env: Environment
) -> None:
    rest, wants_to_pay = Gate(is_open=False), asks(("pay", {"amount": 5}), text="Paying.")
    env.vendor.script = [[Delta("respond", "Paying."), rest, wants_to_pay], says("paid")]
    session = await started(http, tool_policy={"pay": "ask"})
    staying, back = Watcher(http, session), Watcher(http, session)
    async with staying.stream() as events:
        await http.post(f"/workflow/{session}/prompt", json={"message": "pay", "id": "p1"})
        await staying.until_in(events, lambda so_far: so_far.partial_texts == ["Paying."])
        rest.open()
        await staying.until_in(events, lambda so_far: so_far.last.status == "awaiting_approval")
        back.last_event_id, back.copy = staying.last_event_id, deepcopy(staying.copy)
        async with back.stream() as late:
            assert (await anext(late)).data["updated_messages"] == []
            (call,) = staying.copy.turns[0].reasoning_trajectory.model_steps[0].tool_calls
            await http.post(
                f"/workflow/{session}/approvals/{call.id}",
                json={"args_digest": call.approval.args_digest, "decision": "approve"},
            )
            await back.until_in(late, lambda so_far: so_far.is_idle)
    assert back.answers == ["paid"]


async def test_agt_5_no_partial_output_is_read_while_an_approval_is_pending(
    http: httpx.AsyncClient, env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    followers, following = set[str](), env.partials.following

    @asynccontextmanager
    async def recorded_following(workflow_id: str) -> AsyncIterator[LiveSnapshot]:
        followers.add(workflow_id)
        try:
            async with following(workflow_id) as live:
                yield live
        finally:
            followers.discard(workflow_id)

    monkeypatch.setattr(env.partials, "following", recorded_following)
    rest = Gate(is_open=False)
    env.vendor.script = [asks(("pay", {})), [Delta("respond", "Pai"), rest, says("Paid")]]
    watcher = Watcher(http, await started(http))
    session = env.adopt(env.client.get_workflow_handle(watcher.session))
    async with watcher.stream() as events:
        await http.post(f"/workflow/{watcher.session}/prompt", json={"message": "pay", "id": "p1"})
        await watcher.until_in(events, lambda so_far: so_far.last.status == "awaiting_approval")
        await until(lambda: not followers)
        (pending,) = await session.awaited_approvals()
        await session.decide(pending, "approve")
        await watcher.until_in(events, lambda so_far: so_far.partial_texts == ["Pai"])
        rest.open()
        await watcher.until_in(events, idle_after(1))


# ---- the law, with cuts


async def busy(http: httpx.AsyncClient, env: Environment, session: str, turns: int) -> None:
    """Run `turns` turns in the session, each with a tool call."""
    env.vendor.answer = lambda request: (
        asks(("look", {})) if request.messages[-1].role == "user" else says(f"looked {'x' * 6_000}")
    )
    for number in range(turns):
        await http.post(f"/workflow/{session}/prompt", json={"message": f"m{number}", "id": f"p{number}"})


@pytest.mark.parametrize(
    ("limits", "turns"),
    [
        pytest.param({}, 3, id="in one run"),
        pytest.param({"max_history_events": 50}, 5, id="through continue-as-new"),
        pytest.param({"max_state_bytes": 40_000}, 5, id="through moves to the archive"),
    ],
)
async def test_api_1_a_client_cut_off_after_any_event_ends_up_with_the_same_transcript(
    http: httpx.AsyncClient, env: Environment, limits: dict[str, int], turns: int
) -> None:
    session = await started(http, limits=limits)
    staying, every_one, every_third = (Watcher(http, session) for _ in range(3))

    def done(so_far: Watcher) -> bool:
        return so_far.is_idle and so_far.copy.turns[-1:] != [] and so_far.copy.turns[-1].id == f"p{turns - 1}"

    watching = [
        asyncio.create_task(coroutine)
        for coroutine in (staying.until(done), every_one.cut_after(1, done), every_third.cut_after(3, done))
    ]
    await busy(http, env, session, turns)
    await asyncio.gather(*watching)
    transcript = [ConversationMessage.model_validate(turn) for turn in await full_state(http, session)]
    assert [turn.id for turn in transcript] == [f"p{number}" for number in range(turns)]
    for watcher in (staying, every_one, every_third):
        turns_held = watcher.copy.turns
        assert turns_held == transcript[-len(turns_held) :]
        assert len(turns_held) == turns or limits.get("max_state_bytes")
    ids = [event.id for event in staying.events if event.id]
    assert len(ids) == len(set(ids))


async def test_api_1_the_cursor_can_be_parameters_and_the_header_overrides_them(
    http: httpx.AsyncClient, env: Environment
) -> None:
    session = await started(http, "hi")
    watcher = await Watcher(http, session).until(idle_after(1))
    cursor = {"last_seen_message_id": watcher.last.last_seen_message_id, "since_revision": watcher.last.revision}
    late = Watcher(http, session)
    async with late.stream(**cursor) as events:
        assert (await anext(events)).data["new_messages"] == []
    fresh = Watcher(http, session)
    fresh.last_event_id = "0."
    async with fresh.stream(**cursor) as events:
        assert len((await anext(events)).data["new_messages"]) == 1


async def test_api_1_an_unknown_cursor_gets_a_reset_with_everything(http: httpx.AsyncClient, env: Environment) -> None:
    session = await started(http, "hi")
    await Watcher(http, session).until(idle_after(1))
    for cursor in ("3.never-was", "9999."):
        watcher = Watcher(http, session)
        watcher.last_event_id = cursor
        async with watcher.stream() as events:
            first = await anext(events)
        assert (first.data["reset"], len(first.data["new_messages"])) == (True, 1)


# ---- what a session does


async def test_api_1_a_stream_shows_waiting_for_an_approval_or_a_vendor(
    http: httpx.AsyncClient, env: Environment
) -> None:
    env.vendor.script = [
        ModelError("overloaded", "busy", retry_after=3),
        asks(("pay", {"amount": 5})),
        says("paid"),
    ]
    session = await started(http, tool_policy={"pay": "ask"})
    watcher = Watcher(http, session)
    async with watcher.stream() as events:
        await http.post(f"/workflow/{session}/prompt", json={"message": "pay", "id": "p1"})
        await watcher.until_in(events, lambda so_far: so_far.last.status == "awaiting_approval")
        (call,) = watcher.copy.turns[0].reasoning_trajectory.model_steps[0].tool_calls
        assert call.awaits_approval
        await http.post(
            f"/workflow/{session}/approvals/{call.id}",
            json={"args_digest": call.approval.args_digest, "decision": "approve"},
        )
        await watcher.until_in(events, idle_after(1))
    assert watcher.answers == ["paid"]


async def test_api_1_a_stream_ends_with_its_session_and_then_answers_204(
    http: httpx.AsyncClient, env: Environment
) -> None:
    session = await started(http, "hi")
    watcher = await Watcher(http, session).until(idle_after(1))
    ending = asyncio.create_task(watcher.to_the_end())
    await http.post(f"/workflow/{session}/end")
    await ending
    assert watcher.last.status == "ended"
    # The session may still have been copying its turns away.
    await env.adopt(env.client.get_workflow_handle(session)).handle.result()
    async with asyncio.timeout(BOUND):
        while (again := await reconnected(http, watcher)).status_code == 200:
            await watcher.to_the_end()
    assert (again.status_code, again.content) == (204, b"")
    assert (await Watcher(http, session).to_the_end()).answers == ["echo: hi"]


async def reconnected(http: httpx.AsyncClient, watcher: Watcher) -> httpx.Response:
    return await http.get(f"/workflow/{watcher.session}/events", headers={"Last-Event-ID": watcher.last_event_id})


async def test_api_1_each_watcher_sees_the_termination_of_a_session_once(
    http: httpx.AsyncClient, env: Environment
) -> None:
    env.vendor.gate.close()
    session = await started(http, "hi")
    await env.vendor.gate.until_arrived(1)
    there, away = Watcher(http, session), Watcher(http, session)
    running = lambda so_far: so_far.last.is_processing  # noqa: E731
    await away.until(running)
    async with there.stream() as events:
        await there.until_in(events, running)
        await env.client.get_workflow_handle(session).terminate()
        async with asyncio.timeout(BOUND):
            assert [event.data["status"] async for event in events][-1] == "terminated"
    assert (await away.to_the_end()).last.status == "terminated"
    assert (there.last.is_processing, there.last.current_message_id) == (False, None)
    for watcher in (there, away):
        assert (await reconnected(http, watcher)).status_code == 204
    cursor = {"since_revision": there.last.revision, "last_seen_message_id": there.last.last_seen_message_id}
    polled = await http.get(f"/workflow/{session}/conversation", params=cursor)
    update = polled.json()["conversation_update"]
    assert (update["status"], update["reset"]) == ("terminated", False)
    again = {"if-none-match": polled.headers["etag"]}
    assert (await http.get(f"/workflow/{session}/conversation", params=cursor, headers=again)).status_code == 304


async def test_api_1_a_stream_of_a_session_that_is_deleted_ends(http: httpx.AsyncClient, env: Environment) -> None:
    session = await started(http, "hi")
    watcher = Watcher(http, session)
    async with watcher.stream() as events:
        await watcher.until_in(events, idle_after(1))
        await http.delete(f"/workflow/{session}")
        async with asyncio.timeout(BOUND):
            async for _ in events:
                pass


# ---- what can't be watched


async def test_api_1_invalid_requests_get_a_problem_instead_of_a_stream(
    http: httpx.AsyncClient, env: Environment
) -> None:
    session = await started(http)
    path = f"/workflow/{session}/events"
    for cursor in ("nonsense", "1", ".p1", "1e3.p1", "-1.p1", "9999999999999999.p1"):
        malformed = await http.get(path, headers={"Last-Event-ID": cursor})
        assert malformed.status_code == 422
        assert malformed.json()["errors"][0]["field"] == "Last-Event-ID"
    unknown_parameter = await http.get(path, params={"wait": 3})
    assert unknown_parameter.json()["errors"][0]["field"] == "wait"
    assert (await http.get(path, params={"since_revision": -1})).status_code == 422
    unknown = await http.get(f"/workflow/{uuid4()}/events")
    assert (unknown.status_code, unknown.headers["content-type"]) == (404, "application/problem+json")


async def test_api_2_a_missing_worker_or_temporal_is_a_problem_instead_of_a_stream(
    http_alone: httpx.AsyncClient, http_nowhere: httpx.AsyncClient
) -> None:
    session = await started(http_alone)
    no_worker = await http_alone.get(f"/workflow/{session}/events")
    assert (no_worker.status_code, no_worker.json()["title"]) == (504, "No worker")
    nowhere = await http_nowhere.get(f"/workflow/{session}/events")
    assert (nowhere.status_code, nowhere.json()["title"]) == (503, "Temporal unreachable")


async def test_api_1_a_stopping_gateway_answers_503_so_that_clients_reconnect(
    temporal: Client, env: Environment
) -> None:
    app = create_app(env.settings, client=temporal, partials=env.partials, timeouts=patient())
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http,
    ):
        session = await started(http)
        app.state.closing.begin()
        refused = await http.get(f"/workflow/{session}/events")
    assert (refused.status_code, refused.json()["title"]) == (503, "Gateway stopping")


async def test_api_1_an_idle_stream_sends_comments_until_the_next_event(
    http: httpx.AsyncClient, timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "ping", 0.05)
    session = await started(http)
    async with asyncio.timeout(BOUND), http.stream("GET", f"/workflow/{session}/events") as stream:
        lines = stream.aiter_lines()
        assert await anext(lines) == "event: update"
        comments = 0
        async for line in lines:
            comments += line == ": ping"
            if comments == 2:
                break
        await http.post(f"/workflow/{session}/prompt", json={"message": "hello"})
        async for line in lines:
            if '"agent_message":"echo: hello"' in line:
                break


def test_api_7_the_openapi_document_describes_the_stream(api_document: Any) -> None:
    described = api_document["paths"]["/workflow/{id}/events"]["get"]
    event = described["responses"]["200"]["content"]["text/event-stream"]["x-itemSchema"]
    bodies = event["properties"]["data"]["contentSchema"]["anyOf"]
    assert [body["$ref"].rpartition("/")[2] for body in bodies] == [
        "ConversationUpdate",
        "WaitingPrompts",
        "PartialGrowth",
        "CallProgress",
        "Problem",
    ]
    assert {parameter["name"] for parameter in described["parameters"]} == {
        "id",
        "last_seen_message_id",
        "since_revision",
        "last-event-id",
    }


async def test_api_4_a_stream_is_sent_with_no_store(http: httpx.AsyncClient, env: Environment) -> None:
    session = await started(http)
    async with http.stream("GET", f"/workflow/{session}/events") as answer:
        assert answer.headers.get_list("cache-control") == ["no-store"]
