"""A poll with `wait` ends when there is something its client has not seen, and only then (SES-12, API-1)."""

import asyncio
import math
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from httpx import AsyncClient, Response
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryResponse

from tests.api.conftest import gateway
from tests.api.waits import until_not
from tests.harness import BOUND, Environment
from tests.waiting import run_other_tasks, until
from turnkeeper.api.live.feed import UNCLEAR_SECONDS, UpdateEvent, _hold_seconds, _without_old_repeats
from turnkeeper.api.temporal.watch import WatchRegistry
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.models.session.messages import UpdatesRequest
from turnkeeper.models.transcript.conversation import (
    ConversationMessage,
    ConversationUpdate,
    SessionStatus,
    TurnStatus,
)

SHORT = 0.4
"""Seconds that a waiting poll takes at least."""


def fresh() -> str:
    return f"g-{uuid4()}"


async def answered(http: AsyncClient, *texts: str) -> str:
    """A session with these prompts answered."""
    session = fresh()
    await http.post("/workflow", json={"id": session})
    for number, text in enumerate(texts):
        answer = await http.post(f"/workflow/{session}/prompt?wait=60", json={"message": text, "id": f"p{number}"})
        assert answer.status_code == 200
    return session


async def poll(
    http: AsyncClient, session: str, *, etag: str | None = None, **params: Any
) -> tuple[httpx.Response, float]:
    """The answer, and the seconds that it took."""
    began = time.monotonic()
    headers = {"If-None-Match": etag} if etag else {}
    answer = await http.get(f"/workflow/{session}/conversation", params=params, headers=headers)
    return answer, time.monotonic() - began


def update_of(answer: httpx.Response) -> Any:
    assert answer.status_code == 200
    return answer.json()["conversation_update"]


async def test_ses_12_the_etag_of_a_page_does_not_hide_the_next_one(http: AsyncClient) -> None:
    session = await answered(http, "one", "two", "three")
    messages: list[str] = []
    params: dict[str, Any] = {"limit": 1}
    etag = None
    for _ in range(3):
        answer, _took = await poll(http, session, etag=etag, **params)
        update = update_of(answer)
        messages += [turn["user_message"] for turn in update["new_messages"]]
        etag = answer.headers["etag"]
        params |= {"last_seen_message_id": update["last_seen_message_id"], "since_revision": update["revision"]}
    assert messages == ["one", "two", "three"]
    assert not update["has_more"]


async def test_ses_12_an_etag_names_the_cursor_and_the_limit_too(http: AsyncClient) -> None:
    session = await answered(http, "one", "two")
    revision = update_of((await poll(http, session))[0])["revision"]
    questions: list[dict[str, Any]] = [
        {},
        {"limit": 1},
        {"last_seen_message_id": "p0"},
        {"last_seen_message_id": "p0", "limit": 1},
        {"last_seen_message_id": "p0", "since_revision": revision},
        {"last_seen_message_id": "p1", "since_revision": revision},
    ]
    etags = [(await poll(http, session, **question))[0].headers["etag"] for question in questions]
    assert len(set(etags)) == len(questions)
    for question, etag in zip(questions, etags, strict=True):
        for other in etags:
            answer, _ = await poll(http, session, etag=other, **question)
            assert answer.status_code == (304 if other == etag else 200)


@pytest.fixture
def ended_long_ago(timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all turns that have ended count as ended long ago."""
    monkeypatch.setattr(timeouts, "repeat", -60.0)


@pytest.mark.usefixtures("ended_long_ago")
async def test_ses_12_a_client_with_only_the_message_id_waits_until_something_is_new(http: AsyncClient) -> None:
    session = await answered(http, "one")
    first = update_of((await poll(http, session))[0])
    cursor = {"last_seen_message_id": first["last_seen_message_id"]}
    for wait in ({}, {"wait": SHORT}):
        answer, took = await poll(http, session, **wait, **cursor)
        assert took >= wait.get("wait", 0)
        assert (update_of(answer)["new_messages"], update_of(answer)["updated_messages"]) == ([], [])
    waiting = asyncio.create_task(poll(http, session, wait=50, **cursor))
    await http.post(f"/workflow/{session}/prompt?wait=60", json={"message": "two"})
    async with asyncio.timeout(BOUND / 2):
        answer, _ = await waiting
    update = update_of(answer)
    assert [turn["user_message"] for turn in update["new_messages"]] == ["two"]
    assert [turn["id"] for turn in update["updated_messages"]] == ["p0"]  # for a client that was away


NOW = datetime(2026, 1, 1, tzinfo=UTC)


def turn_of(status: TurnStatus, *, ended_ago: float = 0) -> ConversationMessage:
    return ConversationMessage(
        id="p1",
        timestamp=NOW,
        user_message="hi",
        user_timestamp=NOW,
        agent_message=None if status == "processing" else "Hello.",
        agent_timestamp=None if status == "processing" else NOW - timedelta(seconds=ended_ago),
        status=status,
        revision=7,
    )


def event_of(
    turn: ConversationMessage | None, *, status: SessionStatus = "idle", new: Sequence[ConversationMessage] = ()
) -> UpdateEvent:
    return UpdateEvent(
        ConversationUpdate(
            new_messages=list(new),
            updated_messages=[turn] if turn else [],
            is_processing=False,
            current_message_id=None,
            last_seen_message_id="p1",
            revision=9,
            reset=False,
            has_more=False,
            status=status,
            queue_length=0,
        )
    )


RUNNING, ENDED, OLD = turn_of("processing"), turn_of("completed", ended_ago=4), turn_of("completed", ended_ago=6)


@pytest.mark.parametrize(
    ("turn", "fields", "is_repeated"),
    [
        (RUNNING, {}, True),
        (ENDED, {}, True),
        (OLD, {}, False),
        (OLD, {"new": [turn_of("processing")]}, True),
        (OLD, {"since_revision": 3}, True),
    ],
    ids=["running", "ended just now", "ended long ago", "with something new", "with a revision"],
)
def test_ses_12_only_turns_that_ended_recently_are_repeated(
    turn: ConversationMessage, fields: dict[str, Any], is_repeated: bool
) -> None:
    cursor = UpdatesRequest(last_seen_message_id="p1", since_revision=fields.pop("since_revision", None))
    event = _without_old_repeats(event_of(turn, **fields), cursor, before=NOW - timedelta(seconds=Timeouts().repeat))
    assert event.update.updated_messages == ([turn] if is_repeated else [])


@pytest.mark.parametrize(
    ("event", "first_revision", "seconds"),
    [
        (event_of(RUNNING), 9, UNCLEAR_SECONDS),
        (event_of(ENDED), 8, 0),
        (event_of(ENDED), 9, UNCLEAR_SECONDS),
        (event_of(None), 9, math.inf),
        (event_of(None, status="ended"), 8, 0),
        (event_of(None, status="ended"), 9, UNCLEAR_SECONDS),
        (event_of(None, new=[RUNNING]), 9, 0),
    ],
)
def test_ses_12_a_client_without_a_revision_waits_a_second_for_a_repeated_turn(
    event: UpdateEvent, first_revision: int, seconds: float
) -> None:
    assert _hold_seconds(event, UpdatesRequest(last_seen_message_id="p1"), first_revision) == seconds


async def test_ses_12_the_etag_of_a_deleted_session_does_not_match_its_successor(
    http: AsyncClient, env: Environment, tmp_path: Path
) -> None:
    async with gateway(env.client, env.task_queue, tmp_path) as other:
        session = await answered(http, "one")
        first, _ = await poll(http, session)
        first_etag = first.headers["etag"]
        # Another gateway deletes the session and starts one with the same id, which comes to the same revision.
        assert (await other.delete(f"/workflow/{session}")).status_code in (202, 204)

        async def start_again() -> Response:
            return await other.post("/workflow", json={"id": session})

        await until_not(409, start_again)
        await other.post(f"/workflow/{session}/prompt?wait=60", json={"message": "one", "id": "p0"})
        answer, _ = await poll(http, session, etag=first_etag)
        assert update_of(answer)["revision"] == update_of(first)["revision"]
        assert answer.headers["etag"] != first_etag


async def test_ses_12_a_client_with_only_the_message_id_gets_the_finished_turn_at_once(
    http: AsyncClient, env: Environment
) -> None:
    env.vendor.gate.close()
    session = fresh()
    await http.post("/workflow", json={"id": session, "prompt": "slow"})
    await env.vendor.gate.until_arrived(1)
    (running,) = update_of((await poll(http, session))[0])["new_messages"]
    assert not running["is_complete"]
    env.vendor.gate.open()

    async def has_ended() -> bool:
        return update_of((await poll(http, session, since_revision=0))[0])["new_messages"][0]["is_complete"]

    await until(has_ended)
    async with asyncio.timeout(BOUND / 2):
        # It ended before this client came back, whose copy of the turn is out of date.
        answer, _ = await poll(http, session, wait=60, last_seen_message_id=running["id"])
    (ended,) = update_of(answer)["updated_messages"]
    assert ended["is_complete"]
    _, took = await poll(http, session, wait=SHORT, last_seen_message_id=running["id"])
    assert took >= SHORT


async def test_ses_12_two_clients_with_only_the_message_id_both_get_the_finished_turn(
    http: AsyncClient, env: Environment
) -> None:
    env.vendor.gate.close()
    session = fresh()
    await http.post("/workflow", json={"id": session, "prompt": "slow"})
    await env.vendor.gate.until_arrived(1)
    for _ in range(2):
        (running,) = update_of((await poll(http, session))[0])["new_messages"]
    cursor = {"last_seen_message_id": running["id"], "wait": 50}
    env.vendor.gate.open()
    for _ in range(2):
        async with asyncio.timeout(BOUND / 2):
            turns: list[Any] = []
            while not (turns and turns[0]["is_complete"]):
                turns = update_of((await poll(http, session, **cursor))[0])["updated_messages"]


async def test_ses_12_a_poll_with_only_an_etag_waits_until_something_is_new(http: AsyncClient) -> None:
    session = await answered(http, "one")
    etag = (await poll(http, session))[0].headers["etag"]
    answer, took = await poll(http, session, etag=etag, wait=SHORT)
    assert (answer.status_code, answer.content) == (304, b"")
    assert took >= SHORT
    waiting = asyncio.create_task(poll(http, session, etag=etag, wait=50))
    await http.post(f"/workflow/{session}/prompt?wait=60", json={"message": "two"})
    async with asyncio.timeout(BOUND / 2):
        answer, _ = await waiting
    assert len(update_of(answer)["new_messages"]) == 2
    assert answer.headers["etag"] != etag


@pytest.mark.parametrize("sends_etag", [False, True])
async def test_ses_12_a_poll_with_revision_and_etag_waits_until_something_is_new(
    http: AsyncClient, sends_etag: bool
) -> None:
    session = await answered(http, "one")
    first, _ = await poll(http, session)
    update = update_of(first)
    cursor = {"last_seen_message_id": update["last_seen_message_id"], "since_revision": update["revision"]}
    etag = first.headers["etag"]
    for expected in (200, 304 if sends_etag else 200):
        answer, took = await poll(http, session, etag=etag if sends_etag else None, wait=SHORT, **cursor)
        assert took >= SHORT
        assert answer.status_code == expected
        etag = answer.headers["etag"]


async def test_ses_12_a_poll_without_a_cursor_is_answered_at_once(http: AsyncClient) -> None:
    session = await answered(http, "one")
    async with asyncio.timeout(BOUND / 2):
        answer, _ = await poll(http, session, wait=50)
    assert len(update_of(answer)["new_messages"]) == 1


async def test_ses_12_the_end_of_a_session_is_reported_once_and_later_polls_wait(http: AsyncClient) -> None:
    session = await answered(http, "one")
    first = update_of((await poll(http, session))[0])
    by_message = {"last_seen_message_id": first["last_seen_message_id"]}
    waiting = [
        asyncio.create_task(poll(http, session, wait=50, **by_message)),
        asyncio.create_task(poll(http, session, wait=50, **by_message, since_revision=first["revision"])),
    ]
    await http.post(f"/workflow/{session}/end")
    async with asyncio.timeout(BOUND / 2):
        updates = [update_of((await task)[0]) for task in waiting]
        while any(update["status"] != "ended" for update in updates):
            updates = [
                update_of((await poll(http, session, wait=50, since_revision=update["revision"], **by_message))[0])
                for update in updates
            ]
    answer, took = await poll(http, session, wait=SHORT, **by_message, since_revision=updates[1]["revision"])
    assert (update_of(answer)["status"], took >= SHORT) == ("ended", True)


async def test_api_3_a_caller_that_arrives_as_a_watch_ends_gets_a_new_one() -> None:
    """P12: a caller that arrived at that moment waited for changes that were not noted."""
    polls = asyncio.Semaphore(0)

    class Service:
        async def get_workflow_execution_history(
            self, *args: object, **kwargs: object
        ) -> GetWorkflowExecutionHistoryResponse:
            await polls.acquire()
            return GetWorkflowExecutionHistoryResponse(next_page_token=b"more")

        async def get_system_info(self, *args: object, **kwargs: object) -> None:
            pass

    class Silent:
        namespace = "n"
        workflow_service = Service()

    watches = WatchRegistry(Silent(), Timeouts(watch_linger=0))  # type: ignore[arg-type]
    async with watches.watching("s") as first:
        polls.release()
        await run_other_tasks(times=5)
        assert not first.is_over
    async with watches.watching("s") as again:  # while its last poll waits
        assert again is first
    polls.release()
    await until(lambda: first.is_over)
    async with watches.watching("s") as second:
        await run_other_tasks(times=5)
        assert watches.get("s") is second is not first
        assert not second.is_over
    await watches.close()
