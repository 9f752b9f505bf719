"""The index of sessions: who may replace which row, pages, searches, and a writer that no turn waits for (API-1)."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.stores.builders import NOW
from tests.waiting import until
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.transcript.model_call import IndexEntry
from turnkeeper.stores import session_index
from turnkeeper.stores.database.database import Database, StoreUnavailableError
from turnkeeper.stores.session_index import (
    IndexedSession,
    IndexPosition,
    IndexQuery,
    IndexWriter,
    SessionIndex,
    microseconds,
)

LATER = NOW + timedelta(hours=1)
ALL = IndexQuery(tenant="")


@pytest.fixture
def index(database: Database) -> SessionIndex:
    return SessionIndex(database)


@pytest.fixture
async def writer(index: SessionIndex) -> AsyncIterator[IndexWriter]:
    writer = IndexWriter(index)
    yield writer
    await writer.close()


def row(session_id: str = "s1", *, revision: int = 5, **fields: object) -> IndexedSession:
    base = IndexedSession(session_id, started_at=NOW, last_activity_at=NOW, revision=revision)
    return replace(base, **fields)  # type: ignore[arg-type]


async def ids(index: SessionIndex, query: IndexQuery = ALL) -> list[str]:
    return [session.session_id for session in await index.page(query, limit=100)]


async def test_api_1_a_row_is_read_back_unchanged(index: SessionIndex) -> None:
    entry = IndexEntry(
        created_at=NOW, revision=9, title="T", user="Ann", model="m", turn_count=3, cost=0.5, preview="p", parent="s0"
    )
    session = IndexedSession.of_entry("acme:s1", entry, now=LATER).with_cost(0.25)
    await index.put([session])
    assert await index.find("acme:s1") == session
    assert (session.cost, session.last_activity_at, session.closed_at) == (0.75, LATER, None)
    assert await index.find("s1") is None


@pytest.mark.parametrize(
    ("second", "is_stored"),
    [
        (row(revision=6, title="new"), True),
        (row(revision=4, title="new"), False),
        (row(revision=1, title="new", started_at=LATER), True),
        (row(revision=99, title="new", started_at=NOW - timedelta(days=1)), False),
    ],
    ids=["later revision", "earlier revision", "later session", "earlier session"],
)
async def test_api_1_a_late_writer_overwrites_nothing(
    index: SessionIndex, second: IndexedSession, is_stored: bool
) -> None:
    await index.put([row(title="old")])
    await index.put([second])
    stored = await index.find("s1")
    assert stored is not None
    assert (stored.title == "new") == is_stored


async def test_api_1_a_second_row_of_a_revision_adds_its_cost_and_keeps_a_changed_title(
    index: SessionIndex,
) -> None:
    await index.put([row(title="old", model="m")])
    await index.configure("s1", title="new", model=None)
    await index.put([row(title="old", model="m", cost=0.5, last_activity_at=LATER)])
    assert await index.find("s1") == row(title="new", model="m", cost=0.5, last_activity_at=LATER)


async def test_api_1_rows_from_elsewhere_only_add_missing_sessions(index: SessionIndex) -> None:
    await index.add_missing([row(revision=0, title="from the gateway", started_at=LATER)])
    await index.add_missing([row(revision=0, title="from the list")])
    assert (await index.find("s1")).title == "from the gateway"  # type: ignore[union-attr]
    await index.put([row(revision=1, title="from the session")])
    await index.add_missing([row(revision=0, title="late")])
    assert await index.find("s1") == row(revision=1, title="from the session")


async def test_api_1_an_end_is_added_once_and_not_to_a_later_session(index: SessionIndex) -> None:
    await index.put([row("old", turn_count=4), row("new", started_at=LATER)])
    end = NOW + timedelta(minutes=1)
    ends = [row(name, status="terminated", closed_at=end, turn_count=3) for name in ("new", "old", "unknown")]
    await index.close(ends)
    await index.close([row("old", status="ended", closed_at=LATER)])
    closed = row("old", turn_count=4, status="terminated", closed_at=end, last_activity_at=end)
    assert [await index.find("old"), await index.find("new")] == [closed, row("new", started_at=LATER)]
    assert await index.find("unknown") is None


async def test_tsk_4_a_task_that_ends_without_a_result_is_listed_as_cancelled(index: SessionIndex) -> None:
    statuses = {"working": "cancelled", "input_required": "cancelled", "completed": "completed", "failed": "failed"}
    tasks = [row(status, parent="none", task_status=status) for status in statuses]
    await index.put(tasks)
    await index.close([replace(task, status="terminated", closed_at=LATER) for task in tasks])
    listed = await index.page(replace(ALL, is_task=True), limit=9)
    assert {task.session_id: task.task_status for task in listed} == statuses


async def test_api_1_pages_continue_after_the_last_row_even_at_the_same_moment(index: SessionIndex) -> None:
    sessions = [row(f"s{number}", last_activity_at=NOW + timedelta(seconds=number // 3)) for number in range(8)]
    await index.put(sessions)
    pages, after = list[str](), None
    while page := await index.page(ALL, limit=3, after=after):
        pages += [session.session_id for session in page]
        after = IndexPosition(microseconds(page[-1].last_activity_at), page[-1].session_id)
    assert pages == ["s7", "s6", "s5", "s4", "s3", "s2", "s1", "s0"]


@pytest.mark.parametrize(
    ("query", "listed_ids"),
    [
        (ALL, ["s3", "s2", "s1"]),
        (IndexQuery(tenant="acme"), ["acme:s1"]),
        (IndexQuery(tenant="", text="größe"), ["s2"]),
        (IndexQuery(tenant="", text="gro\u0308\u00dfE"), ["s2"]),
        (IndexQuery(tenant="", text="100%"), ["s3"]),
        (IndexQuery(tenant="", text="s_"), []),
        (IndexQuery(tenant="", text="S1"), ["s1"]),
        (IndexQuery(tenant="acme", text="acme"), []),
        (IndexQuery(tenant="", user="Miles O'Brien"), ["s1"]),
        (IndexQuery(tenant="", user="Miles O'Brien' OR '1'='1"), []),
        (IndexQuery(tenant="", statuses=["ended", "cancelled"]), ["s2"]),
        (IndexQuery(tenant="", parent="s1"), ["s3"]),
        (IndexQuery(tenant="", is_task=True), ["s3"]),
        (IndexQuery(tenant="", task_status="working"), ["s3"]),
        (IndexQuery(tenant="", task_status="completed"), []),
    ],
)
async def test_api_1_a_list_has_the_matching_sessions_of_one_tenant(
    index: SessionIndex, query: IndexQuery, listed_ids: list[str]
) -> None:
    await index.put(
        [
            row("s1", user="Miles O'Brien"),
            row("s2", title="Die GRÖSSE der Größe", status="ended", closed_at=NOW),
            row("s3", preview="is it 100% sure?", parent="s1", task_status="working"),
            row("acme:s1", title="theirs"),
        ]
    )
    assert await ids(index, query) == listed_ids


async def test_api_1_a_new_title_is_listed_and_searched(index: SessionIndex) -> None:
    await index.put([row(title="Old", preview="first words", model="m1")])
    await index.configure("s1", title="New", model=None)
    await index.configure("unknown", title="New", model="m2")
    stored = await index.find("s1")
    assert stored == row(title="New", preview="first words", model="m1")
    assert await ids(index, replace(ALL, text="new")) == await ids(index, replace(ALL, text="first")) == ["s1"]
    assert await ids(index, replace(ALL, text="old")) == []


async def test_api_1_sessions_listed_as_open_are_read_in_batches(index: SessionIndex) -> None:
    await index.put([row("a"), row("b"), row("c", status="ended", closed_at=NOW), row("d", last_activity_at=LATER)])
    for after, limit, expected in (("", 1, ["a"]), ("a", 9, ["b"])):
        rows = await index.open_rows(after=WorkflowId(after), limit=limit, idle_since=LATER)
        assert [one.session_id for one in rows] == expected


async def test_api_1_the_position_of_the_index_comparison_only_grows(index: SessionIndex) -> None:
    assert await index.compared_until("default") is None
    for moment in (NOW, LATER, NOW):
        await index.note_compared("default", moment)
    assert await index.compared_until("default") == LATER
    assert await index.compared_until("other") is None


async def test_api_1_the_writer_stores_the_newest_row_of_each_session(
    writer: IndexWriter, index: SessionIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_index, "PAUSE_SECONDS", 0.01)
    transactions, put = list[int](), SessionIndex.put

    async def count(index: SessionIndex, sessions: list[IndexedSession]) -> None:
        transactions.append(len(sessions))
        await put(index, sessions)

    monkeypatch.setattr(SessionIndex, "put", count)
    for revision in (1, 3, 2):
        for number in range(10):
            writer.put(row(f"s{number}", revision=revision))
    writer.add_missing(row("s0", revision=0))
    writer.add_missing(row("t0", revision=0))
    await writer.close()
    assert {session.revision for session in await index.page(ALL, limit=100)} == {0, 3}
    assert len(await ids(index)) == 11
    assert transactions == [10]


async def test_api_1_a_store_that_is_down_is_retried_for_a_limited_time(
    writer: IndexWriter, index: SessionIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_index, "PAUSE_SECONDS", 0.01)
    attempts, put = list[int](), SessionIndex.put

    async def fail_twice(index: SessionIndex, sessions: list[IndexedSession]) -> None:
        attempts.append(len(sessions))
        if len(attempts) < 3:
            raise StoreUnavailableError("The store fails.")
        await put(index, sessions)

    monkeypatch.setattr(SessionIndex, "put", fail_twice)
    writer.put(row())

    async def is_stored() -> bool:
        return await index.find("s1") is not None

    await until(is_stored)
    monkeypatch.setattr(session_index, "MAX_WAIT_SECONDS", 0.0)
    attempts.clear()
    writer.put(row("dropped"))
    await until(lambda: attempts == [1])
    await asyncio.wait_for(writer.close(), 5)
    assert await ids(index) == ["s1"]


async def test_api_1_pending_rows_of_a_deleted_session_are_not_written(
    writer: IndexWriter, index: SessionIndex
) -> None:
    writer.put(row("s1"))
    writer.add_missing(row("s1"))
    writer.put(row("s2"))
    writer.forget("s1")
    await writer.close()
    assert await ids(index) == ["s2"]
