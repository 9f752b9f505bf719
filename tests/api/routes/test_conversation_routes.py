"""The conversation over HTTP: API-1, API-2, API-3."""

import asyncio
import time
from datetime import timedelta
from functools import partial
from uuid import uuid4

import pytest
from httpx import AsyncClient, Response

from tests.api.waits import until_not
from tests.harness import LONG_PAUSE, Environment, asks, says
from tests.waiting import BOUND, until
from turnkeeper.workflows import activity_options


def fresh() -> str:
    return f"g-{uuid4()}"


async def finished(http: AsyncClient, session: str, turns: int = 1) -> list[dict]:
    """Poll as a client does until `turns` turns have ended; return the client's turns."""
    turns_by_id: dict[str, dict] = {}
    cursor: dict[str, object] = {}
    async with asyncio.timeout(30):
        while True:
            answer = await http.get(f"/workflow/{session}/conversation", params={**cursor, "wait": 5})
            update = answer.json()["conversation_update"]
            if update["reset"]:
                turns_by_id = {}
            for turn in update["updated_messages"] + update["new_messages"]:
                turns_by_id[turn["id"]] = turn
            cursor = {"since_revision": update["revision"]}
            if update["last_seen_message_id"]:
                cursor["last_seen_message_id"] = update["last_seen_message_id"]
            if len(turns_by_id) >= turns and all(turn["is_complete"] for turn in turns_by_id.values()):
                return list(turns_by_id.values())


async def test_api_1_a_session_is_started_prompted_and_polled(http: AsyncClient, env: Environment) -> None:
    env.vendor.script = [asks(("look", {"at": "README.md"})), says("The heading is X")]
    started = await http.post("/workflow", json={"title": "Reading", "user": "alice"})
    assert started.status_code == 201
    session = started.json()["workflow_id"]
    assert started.headers["location"] == f"/workflow/{session}"
    answer = await http.post(f"/workflow/{session}/prompt", json={"message": "read README.md", "id": "p1"})
    assert answer.status_code == 202
    assert answer.json() == {"workflow_id": session, "message_id": "p1"}
    assert answer.headers["location"] == f"/workflow/{session}/queue/p1"
    (turn,) = await finished(http, session)
    assert turn["agent_message"] == "The heading is X"
    (call,) = turn["reasoning_trajectory"]["steps"][0]["tool_calls"]
    assert call["result"]["status"] == "ok"
    description = (await http.get(f"/workflow/{session}")).json()
    assert (description["title"], description["user"], description["status"]) == ("Reading", "alice", "idle")
    assert description["turn_count"] == 1


async def test_api_1_a_poll_returns_a_turn_once_while_it_runs_and_once_when_complete(
    http: AsyncClient, env: Environment
) -> None:
    env.vendor.gate.close()
    session = fresh()
    await http.post("/workflow", json={"id": session, "prompt": "hello"})
    await env.vendor.gate.until_arrived(1)
    first = (await http.get(f"/workflow/{session}/conversation")).json()["conversation_update"]
    (turn,) = first["new_messages"]
    assert (turn["status"], turn["is_complete"]) == ("processing", False)
    cursor = {"last_seen_message_id": first["last_seen_message_id"], "since_revision": first["revision"]}
    nothing = (await http.get(f"/workflow/{session}/conversation", params=cursor)).json()["conversation_update"]
    assert nothing["new_messages"] == nothing["updated_messages"] == []
    env.vendor.gate.open()
    waited = await http.get(f"/workflow/{session}/conversation", params={**cursor, "wait": 10})
    then = waited.json()["conversation_update"]
    while not then["updated_messages"] or not then["updated_messages"][0]["is_complete"]:
        cursor["since_revision"] = then["revision"]
        waited = await http.get(f"/workflow/{session}/conversation", params={**cursor, "wait": 10})
        then = waited.json()["conversation_update"]
    assert then["new_messages"] == []
    assert then["updated_messages"][0]["agent_message"] == "echo: hello"


async def test_api_1_a_prompt_can_wait_for_its_turn(http: AsyncClient, env: Environment) -> None:
    session = fresh()
    await http.post("/workflow", json={"id": session})
    answered = await http.post(f"/workflow/{session}/prompt?wait=20", json={"message": "hello"})
    assert answered.status_code == 200
    assert answered.json()["agent_message"] == "echo: hello"
    env.vendor.gate.close()
    going = await http.post(f"/workflow/{session}/prompt?wait=0.2", json={"message": "slow"})
    assert going.status_code == 202


async def test_api_1_withdrawing_a_queued_prompt_ends_the_wait_of_its_sender(
    http: AsyncClient, env: Environment
) -> None:
    env.vendor.gate.close()
    session = fresh()
    await http.post("/workflow", json={"id": session, "prompt": "slow"})
    await env.vendor.gate.until_arrived(1)
    sending = asyncio.create_task(
        http.post(f"/workflow/{session}/prompt?wait=30", json={"message": "second", "id": "p2"})
    )

    async def is_waiting() -> bool:
        return len((await http.get(f"/workflow/{session}/queue")).json()["waiting"]) > 0

    await until(is_waiting)
    async with asyncio.timeout(20):
        assert (await http.delete(f"/workflow/{session}/queue/p2")).status_code == 204
        answer = await sending
        assert answer.status_code == 409
        assert "was withdrawn" in answer.json()["detail"]
        again = await http.post(f"/workflow/{session}/prompt?wait=30", json={"message": "second", "id": "p2"})
        assert again.status_code == 409


async def test_api_1_the_idempotency_key_is_the_prompts_id(http: AsyncClient) -> None:
    session = fresh()
    await http.post("/workflow", json={"id": session})
    for _ in range(3):
        answer = await http.post(
            f"/workflow/{session}/prompt", json={"message": "once"}, headers={"Idempotency-Key": "key-1"}
        )
        assert answer.json()["message_id"] == "key-1"
    assert len(await finished(http, session)) == 1
    other = await http.post(
        f"/workflow/{session}/prompt", json={"message": "x", "id": "a"}, headers={"Idempotency-Key": "b"}
    )
    assert other.status_code == 422


async def test_api_1_one_chat_request_starts_or_continues_a_session(http: AsyncClient) -> None:
    first = await http.post("/chat", json={"message": "one", "user_name": "bob"})
    assert first.status_code == 202
    session = first.json()["workflow_id"]
    await http.post("/chat", json={"message": "two", "workflow_id": session})
    turns = await finished(http, session, 2)
    assert [turn["user_message"] for turn in turns] == ["one", "two"]
    assert (await http.get(f"/workflow/{session}")).json()["user"] == "bob"


async def test_api_1_a_session_id_cannot_be_reused_after_the_session_has_ended(
    http: AsyncClient, env: Environment
) -> None:
    session = fresh()
    assert (await http.post("/workflow", json={"id": session})).status_code == 201
    assert (await http.post("/workflow", json={"id": session})).status_code == 409
    await http.post(f"/workflow/{session}/end")
    await env.client.get_workflow_handle(session).result()
    again = await http.post("/workflow", json={"id": session})
    assert (again.status_code, again.json()["type"]) == (409, "urn:turnkeeper:problem:session-exists")
    started = await http.post(f"/workflow/{session}/prompt?start=true", json={"message": "hi"})
    assert (started.status_code, started.json()["type"]) == (409, "urn:turnkeeper:problem:session-ended")


async def test_api_1_start_true_starts_a_session_that_does_not_exist(http: AsyncClient) -> None:
    session = fresh()
    unknown = await http.post(f"/workflow/{session}/prompt", json={"message": "hi"})
    assert unknown.status_code == 404
    assert (await http.post(f"/workflow/{session}/prompt?start=true", json={"message": "hi"})).status_code == 202
    assert [turn["agent_message"] for turn in await finished(http, session)] == ["echo: hi"]


async def test_api_1_the_etag_shows_that_nothing_has_changed(http: AsyncClient) -> None:
    session = fresh()
    await http.post("/workflow", json={"id": session, "prompt": "hi"})
    await finished(http, session)
    first = await http.get(f"/workflow/{session}/conversation")
    etag = first.headers["etag"]
    again = await http.get(f"/workflow/{session}/conversation", headers={"If-None-Match": etag})
    assert (again.status_code, again.content) == (304, b"")
    await http.post(f"/workflow/{session}/prompt?wait=10", json={"message": "more"})
    changed = await http.get(f"/workflow/{session}/conversation", headers={"If-None-Match": etag})
    assert changed.status_code == 200
    assert changed.headers["etag"] != etag


async def test_api_1_the_whole_transcript_is_paged_oldest_first(http: AsyncClient) -> None:
    session = fresh()
    await http.post("/workflow", json={"id": session})
    for number in range(5):
        await http.post(f"/workflow/{session}/prompt?wait=10", json={"message": f"m{number}"})
    seen: list[str] = []
    url: str | None = f"/workflow/{session}/conversation/full?limit=2"
    while url:
        page = (await http.get(url)).json()
        seen = [turn["user_message"] for turn in page["messages"]] + seen
        url = page["links"]["older"]
    assert seen == [f"m{number}" for number in range(5)]
    assert page["session"]["turn_count"] == 5


async def test_api_3_waiting_clients_share_one_watch_and_one_query(http: AsyncClient, env: Environment) -> None:
    env.vendor.gate.close()
    session = fresh()
    await http.post("/workflow", json={"id": session, "prompt": "slow"})
    await env.vendor.gate.until_arrived(1)
    revision = (await http.get(f"/workflow/{session}/conversation")).json()["conversation_update"]["revision"]
    reader = http._transport.app.state.services.reader
    questions: list[object] = []
    query = reader._queries._answer

    async def counted(session_id: str, *question: object) -> object:
        questions.append(question)
        return await query(session_id, *question)

    reader._queries._answer = counted
    waiting = [
        asyncio.create_task(
            http.get(f"/workflow/{session}/conversation", params={"since_revision": revision, "wait": 20})
        )
        for _ in range(100)
    ]
    await until(lambda: (watch := reader.watches.get(session)) and watch.watchers == 100)
    env.vendor.gate.open()
    answers = await asyncio.gather(*waiting)
    assert {answer.status_code for answer in answers} == {200}
    assert len(questions) <= 12
    assert len(reader.watches._followers) == 1


async def test_api_3_an_idle_watcher_makes_no_queries(
    http: AsyncClient, env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity_options, "IDLE_PAUSE", timedelta(days=1))  # a copy to the archive is a change too
    session = fresh()
    await http.post("/workflow", json={"id": session, "prompt": "hi"})
    await finished(http, session)
    update = (await http.get(f"/workflow/{session}/conversation")).json()["conversation_update"]
    before = (await env.client.get_workflow_handle(session).describe()).history_length
    reader = http._transport.app.state.services.reader
    questions: list[object] = []
    query = reader._queries._answer

    async def counted(session_id: str, *question: object) -> object:
        questions.append(question)
        return await query(session_id, *question)

    reader._queries._answer = counted
    params = {"since_revision": update["revision"], "last_seen_message_id": update["last_seen_message_id"], "wait": 3}
    began = time.monotonic()
    await http.get(f"/workflow/{session}/conversation", params=params)
    assert time.monotonic() - began >= 3
    assert len(questions) <= 2
    assert (await env.client.get_workflow_handle(session).describe()).history_length == before


async def test_api_1_sessions_are_controlled_over_http(http: AsyncClient, env: Environment) -> None:
    env.vendor.gate.close()
    session = fresh()
    await http.post("/workflow", json={"id": session, "prompt": "slow"})
    await env.vendor.gate.until_arrived(1)
    await http.post(f"/workflow/{session}/prompt", json={"message": "two", "id": "p2"})
    queue = (await http.get(f"/workflow/{session}/queue")).json()
    assert [(prompt["id"], prompt["position"]) for prompt in queue["waiting"]] == [("p2", 1)]
    assert (await http.delete(f"/workflow/{session}/queue/p2")).status_code == 204
    assert (await http.delete(f"/workflow/{session}/queue/p2")).status_code == 409
    assert (await http.delete(f"/workflow/{session}/queue/nope")).status_code == 404
    changed = await http.patch(f"/workflow/{session}", json={"title": "New", "limits": {"max_steps": 7}})
    assert changed.status_code == 202
    cancelled = await http.post(f"/workflow/{session}/cancel", json={"reason": "enough"})
    assert (cancelled.status_code, cancelled.json()["cancelling"]) == (202, True)
    (turn,) = await finished(http, session)
    assert (turn["status"], turn["error"]) == ("cancelled", "Cancelled: enough")
    assert (await http.post(f"/workflow/{session}/cancel")).status_code == 409
    assert (await http.get(f"/workflow/{session}")).json()["title"] == "New"
    assert (await http.post(f"/workflow/{session}/end", json={"reason": "done"})).status_code == 202
    ended = await http.get(f"/workflow/{session}/conversation", params={"wait": 10, "since_revision": 10_000})
    assert ended.status_code == 200


async def test_api_1_sessions_are_listed_by_user_status_and_text(http: AsyncClient) -> None:
    user = f"u{uuid4().hex[:12]}"
    ids = [fresh() for _ in range(3)]
    for number, session in enumerate(ids):
        await http.post("/workflow", json={"id": session, "user": user, "title": f"Talk {number}"})
    await http.post(f"/workflow/{ids[0]}/end")

    async def listed(**params: str) -> list[str]:
        return [row["workflow_id"] for row in (await http.get("/workflow", params=params)).json()["sessions"]]

    async def are_listed() -> bool:
        return len(await listed(user=user, status="ended")) == 1 and len(await listed(user=user)) == 3

    await until(are_listed)
    assert await listed(user=user, status="open") == [ids[2], ids[1]]
    assert await listed(user=user, q="talk 1") == [ids[1]]
    assert await listed(q=ids[2]) == [ids[2]]


@pytest.mark.timeout(150)
async def test_api_1_deleting_removes_every_run_and_returns_a_receipt(http: AsyncClient, env: Environment) -> None:
    session = fresh()
    limits = {"max_history_events": 50}
    await http.post("/workflow", json={"id": session, "limits": limits})
    for number in range(6):
        await http.post(f"/workflow/{session}/prompt?wait=10", json={"message": f"m{number}"})

    async def counted() -> Response | None:
        """On a busy machine the worker may need more than the bound to count."""
        answer = await http.delete(f"/workflow/{session}")
        return None if answer.json()["runs"] is None else answer

    deleting = await until(counted, within=120, max_pause=LONG_PAUSE)
    assert deleting.status_code == 202
    assert deleting.json()["runs"] >= 2
    receipt = await until_not(202, partial(http.delete, f"/workflow/{session}"))
    assert receipt.json()["status"] == "deleted"
    assert receipt.json()["remaining"] == 0
    assert (await http.get(f"/workflow/{session}")).status_code == 404


async def test_api_1_a_client_with_more_pages_to_fetch_does_not_wait(http: AsyncClient) -> None:
    session = fresh()
    await http.post("/workflow", json={"id": session})
    for number in range(3):
        await http.post(f"/workflow/{session}/prompt?wait=10", json={"message": f"m{number}"})
    first = (await http.get(f"/workflow/{session}/conversation?limit=1")).json()["conversation_update"]
    assert first["has_more"]
    cursor = {"last_seen_message_id": first["last_seen_message_id"], "since_revision": first["revision"]}
    async with asyncio.timeout(BOUND / 2):
        rest = await http.get(f"/workflow/{session}/conversation", params={**cursor, "wait": 60})
    assert [turn["user_message"] for turn in rest.json()["conversation_update"]["new_messages"]] == ["m1", "m2"]


async def test_api_3_a_session_that_starts_after_a_404_is_watched(http: AsyncClient, env: Environment) -> None:
    session = fresh()
    unknown = await http.get(f"/workflow/{session}/conversation?wait=10")
    assert unknown.status_code == 404
    await http.post("/workflow", json={"id": session, "prompt": "hi"})
    assert [turn["agent_message"] for turn in await finished(http, session)] == ["echo: hi"]


async def test_api_1_a_session_with_the_id_of_a_deleted_one_can_be_deleted_too(http: AsyncClient) -> None:
    session = fresh()

    async def is_started() -> bool:
        return (await http.post("/workflow", json={"id": session})).status_code == 201

    for _ in range(2):
        await until(is_started, within=120, max_pause=LONG_PAUSE)
        assert (await http.delete(f"/workflow/{session}")).status_code == 202
    receipt = await until_not(202, partial(http.delete, f"/workflow/{session}"))
    assert receipt.json() == {
        "workflow_id": session,
        "status": "deleted",
        "runs": 1,
        "remaining": 0,
        "archived_turns": 0,
    }
