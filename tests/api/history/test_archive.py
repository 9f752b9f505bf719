"""Session and archive as one transcript, large texts in full: SES-15, API-1, API-2."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from httpx import AsyncClient
from sqlalchemy import select
from temporalio.client import Client
from temporalio.common import RetryPolicy

from tests.api.conftest import gateway, served
from tests.api.http.test_bad_input import problem_of
from tests.api.live.test_events_faults import client_of
from tests.api.live.watching import Watcher
from tests.api.long_chats import LIMITS, SMALL, archived_chat, chat
from tests.api.waits import until_not
from tests.harness import (
    LONG_PAUSE,
    SLACK,
    DrivenSession,
    Environment,
    asks,
    broken,
    environment,
    heal,
    product,
    says,
)
from tests.waiting import BOUND, run_other_tasks, until
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.session.messages import SessionInput, deletion_id
from turnkeeper.models.settings.settings import AuthSettings, Settings
from turnkeeper.models.transcript.conversation import ConversationMessage, ToolResult
from turnkeeper.models.transcript.model_call import (
    CallPart,
    ModelResponse,
    ProviderState,
    RespondPart,
    ThinkPart,
    ToolInvocation,
)
from turnkeeper.models.transcript.partial_output import PartialOutput
from turnkeeper.stores.archive import Archive, ArchivedTurn
from turnkeeper.stores.blobs import Blobs, opaque_owner
from turnkeeper.stores.database.database import StoreUnavailableError
from turnkeeper.stores.database.tables import METADATA
from turnkeeper.stores.partials.factory import InProcessCarrier
from turnkeeper.stores.stores import Stores
from turnkeeper.worker import own_build_id
from turnkeeper.workflows import activity_options


async def chat_over(http: AsyncClient, session: DrivenSession, numbers: range) -> None:
    """Send prompts and wait for their turns through the gateway: direct queries and its own would delay each other."""
    for number in numbers:
        prompt = {"id": f"p{number}", "message": f"prompt {number} " + "x" * 2_000}
        answer = await http.post(f"/workflow/{session.handle.id}/prompt?wait=20", json=prompt)
        assert answer.json()["status"] == "completed"


def full(session: DrivenSession | str) -> str:
    return f"/workflow/{session if isinstance(session, str) else session.handle.id}/conversation/full"


async def walk(http: AsyncClient, path: str) -> list[dict[str, Any]]:
    """Follow the links to the oldest page; return all pages, newest first."""
    pages = []
    link: str | None = path
    while link:
        # On a busy machine the worker and the archive may be slow.
        answer = await until_not((503, 504), partial(http.get, link))
        assert answer.status_code == 200, answer.text
        pages.append(answer.json())
        link = pages[-1]["links"]["older"]
        assert pages[-1]["has_more"] == (link is not None)
    return pages


def numbers_of(page: dict[str, Any]) -> list[int]:
    """Return the turns' numbers, taken from their ids, and check that the page has the same ones."""
    numbers = [int(turn["id"].removeprefix("p")) for turn in page["messages"]]
    assert page["first_number"] == (numbers[0] if numbers else None)
    return numbers


def walked(pages: list[dict[str, Any]]) -> list[int]:
    return [number for page in reversed(pages) for number in numbers_of(page)]


def json_bytes(turn: dict[str, Any]) -> int:
    return len(ConversationMessage.model_validate(turn).model_dump_json().encode())


def file_of(env: Environment) -> Path:
    return env.settings.state_dir / "archive.db"


# ---- one transcript


async def test_ses_15_paging_back_returns_each_turn_once_while_turns_are_archived(
    http: AsyncClient, env: Environment
) -> None:
    session = await archived_chat(env, 6)
    before = (await session.state()).archived_count
    going_on = asyncio.create_task(chat_over(http, session, range(7, 11)))
    walks = 0
    while not going_on.done() or not walks:
        for limit in ("?limit=1", "?limit=4", "?limit=7", ""):
            numbers = walked(await walk(http, full(session) + limit))
            assert numbers == list(range(1, numbers[-1] + 1))
            walks += 1
    await going_on
    assert (await session.state()).archived_count > before
    assert walked(await walk(http, full(session))) == list(range(1, 11))


async def test_api_1_pages_are_full_and_end_where_the_transcript_ends(
    shared_http: AsyncClient, long_chat: DrivenSession
) -> None:
    for limit in (1, 4, 7, 14, 15, 16):
        pages = [numbers_of(page) for page in await walk(shared_http, f"{full(long_chat)}?limit={limit}")]
        ends = range(15, 0, -limit)
        assert pages == [list(range(max(1, end - limit + 1), end + 1)) for end in ends]


async def test_api_1_a_page_can_start_before_any_turn(shared_http: AsyncClient, long_chat: DrivenSession) -> None:
    for number in range(1, 16):
        page = (await shared_http.get(f"{full(long_chat)}?before=p{number}&limit=3")).json()
        assert numbers_of(page) == list(range(max(1, number - 3), number))
        assert page["has_more"] == (number > 4)
        assert page["session"]["turn_count"] == 15


async def test_api_1_a_page_is_filled_up_to_its_size_limit(
    shared_http: AsyncClient, long_chat: DrivenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnkeeper.api.history.transcript_reader.PAGE_BYTES", 7_500)
    pages = await walk(shared_http, full(long_chat))
    assert walked(pages) == list(range(1, 16))
    sizes = [sum(map(json_bytes, page["messages"])) for page in pages]
    assert max(sizes) <= 7_500
    for (newer, size), older in pairwise([*zip(pages, sizes, strict=True), (None, 0)]):  # type: ignore[misc]
        if older[0] is not None:
            assert size + json_bytes(older[0]["messages"][-1]) > 7_500, numbers_of(newer)


async def test_ses_15_a_turn_in_both_session_and_archive_is_returned_once(http: AsyncClient, env: Environment) -> None:
    session = await archived_chat(env, 6)
    state = await session.state()
    archived = [
        ArchivedTurn(number=n, turn=turn) for n, turn in enumerate(state.messages, start=state.first_number or 0)
    ]
    await env.stores.archive.put_turns(session.handle.id, archived)
    for limit in ("", "?limit=4"):
        assert walked(await walk(http, full(session) + limit)) == list(range(1, 7))
    await session.update("end_session", {})
    await session.handle.result()
    pages = await walk(http, f"{full(session)}?limit=4")
    assert walked(pages) == list(range(1, 7))
    assert {page["status"] for page in pages} == {"ended"}


async def test_api_2_an_unknown_turn_is_a_404(
    shared_http: AsyncClient, unchanged: DrivenSession, long_chat: DrivenSession
) -> None:
    for path in (full(unchanged), full(long_chat)):
        answer = await shared_http.get(f"{path}?before=nope")
        assert (answer.status_code, problem_of(answer)) == (404, "unknown-turn")


async def test_api_2_turns_of_an_earlier_session_with_the_same_id_are_not_returned(
    http: AsyncClient, env: Environment
) -> None:
    other = await env.start()
    await other.prompt(id="older", text="hi")
    (turn,) = await other.idle(turns=1)
    session = await env.start()
    await env.stores.archive.put_turns(session.handle.id, [ArchivedTurn(number=1, turn=turn)])
    answer = await http.get(f"{full(session)}?before=older")
    assert (answer.status_code, problem_of(answer)) == (404, "unknown-turn")
    assert (await http.get(full(session))).json()["messages"] == []


async def test_api_1_a_resent_prompt_with_an_archived_turn_returns_that_turn(
    shared_http: AsyncClient, long_chat: DrivenSession
) -> None:
    answer = await shared_http.post(f"/workflow/{long_chat.handle.id}/prompt?wait=5", json={"message": "x", "id": "p1"})
    assert (answer.status_code, answer.json()["id"]) == (200, "p1")
    assert answer.json()["agent_message"].startswith("echo: prompt 1 ")


# ---- long turns and large answers


async def read(invocation: ToolInvocation) -> ToolResult:
    return ToolResult(outcome="Read", content=f"result of {invocation.call_id}: ".ljust(500, "x"))


async def test_ses_15_a_long_turn_omits_steps_while_it_runs_and_then_fills_its_own_page(
    http: AsyncClient, env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    env.tools.run = read
    steps = [asks(("look", {"n": n, "why": "y" * 450}), text="t" * 450) for n in range(20)]
    env.vendor.script = [says("one"), *steps, says("two"), says("three")]
    session = await env.start(SMALL)
    await session.prompt(id="p1", text="look around")
    await session.idle(turns=1)
    env.vendor.gate.close()
    await session.prompt(id="p2", text="look around")
    for arrived in range(2, 22):
        await env.vendor.gate.until_arrived(arrived)
        env.vendor.gate.open()  # for the one that waits
        env.vendor.gate.close()
    running = (await session.until(lambda state: state.messages[-1].steps_omitted > 0)).messages[-1]
    turn = (await http.get(full(session))).json()["messages"][-1]
    assert turn["status"] == "processing"
    assert turn["steps_omitted"] >= running.steps_omitted
    assert len(turn["reasoning_trajectory"]["steps"]) < 20

    env.vendor.gate.open()
    await session.prompt(id="p3", text="and now?")
    ended = (await session.idle(turns=3))[-2]
    assert ended.steps_omitted > 5
    monkeypatch.setattr("turnkeeper.api.history.transcript_reader.PAGE_BYTES", 8_000)
    pages = await walk(http, full(session))
    assert [numbers_of(page) for page in pages] == [[3], [2], [1]]
    (turn,) = pages[1]["messages"]
    assert turn["steps_omitted"] == 0
    assert [step["number"] for step in turn["reasoning_trajectory"]["steps"]] == list(range(1, 22))

    file = broken(env)
    (turn,) = (await http.get(f"{full(session)}?before=p3&limit=1")).json()["messages"]
    assert turn["steps_omitted"] == ended.steps_omitted
    heal(file)


LARGE = "w" * 20_000


async def test_ses_15_every_route_returns_a_large_answer_in_full(http: AsyncClient, env: Environment) -> None:
    env.vendor.script = [says(LARGE)]
    session = await env.start()
    path = f"/workflow/{session.handle.id}"
    finished = (await http.post(f"{path}/prompt?wait=20", json={"message": "write", "id": "p1"})).json()
    update = (await http.get(f"{path}/conversation")).json()["conversation_update"]
    again = (await http.get(f"{path}/conversation?last_seen_message_id=p1")).json()["conversation_update"]
    page = (await http.get(full(session))).json()
    answers = [finished, *update["new_messages"], *again["updated_messages"], *page["messages"]]
    assert len(answers) == 4
    for turn in answers:
        assert (turn["agent_message"], turn["agent_message_blob"]) == (LARGE, None)


@pytest.mark.usefixtures("product_bounds")
async def test_ses_15_an_answer_that_cannot_be_read_stays_an_excerpt(
    http: AsyncClient, env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    env.vendor.script = [says(LARGE)]
    session = await env.start()
    await session.prompt(id="p1", text="write")
    await session.idle(turns=1)

    hanging = asyncio.Event()

    async def hang(*_: object, **__: object) -> None:
        await hanging.wait()
        raise StoreUnavailableError("The store did not answer.")

    file = broken(env)
    for path, turns in ((full(session), "messages"), (f"/workflow/{session.handle.id}/conversation", "")):
        answer = (await http.get(path)).json()
        (turn,) = answer[turns] if turns else answer["conversation_update"]["new_messages"]
        assert "characters left out" in turn["agent_message"]
    monkeypatch.setattr(Blobs, "get", hang)
    began = time.monotonic()
    assert (await http.get(f"/workflow/{session.handle.id}/conversation")).status_code == 200
    assert (await http.get(full(session))).status_code == 200
    assert time.monotonic() - began < 6 + SLACK
    hanging.set()
    monkeypatch.undo()
    heal(file)
    (turn,) = (await http.get(full(session))).json()["messages"]
    assert turn["agent_message"] == LARGE


async def test_ses_15_concurrent_readers_of_a_large_answer_share_one_read(
    http: AsyncClient, env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    env.vendor.script = [says(LARGE)]
    session = await env.start()
    await session.prompt(id="p1", text="write")
    await session.idle(turns=1)
    reads, reading = [0], Blobs.get

    async def counted(*args: Any) -> dict[str, str]:
        reads[0] += 1
        return await reading(*args)

    monkeypatch.setattr(Blobs, "get", counted)
    answers = await asyncio.gather(*(http.get(f"/workflow/{session.handle.id}/conversation") for _ in range(30)))
    assert {answer.json()["conversation_update"]["new_messages"][0]["agent_message"] for answer in answers} == {LARGE}
    assert reads == [1]


async def test_api_3_a_poll_and_a_page_without_references_do_not_need_the_store(
    http: AsyncClient, env: Environment
) -> None:
    session = await env.start()
    path = f"/workflow/{session.handle.id}"
    await http.post(f"{path}/prompt?wait=20", json={"message": "hi", "id": "p1"})
    file = broken(env)
    for tail in ("/conversation", "/conversation?wait=0.1&since_revision=99", "/conversation/full?before=p1", ""):
        assert (await http.get(path + tail)).status_code == 200
    assert (await http.get(full(session))).json()["messages"][0]["agent_message"] == "echo: hi"
    heal(file)


# ---- the archive is down


async def test_api_2_without_the_archive_turns_in_the_session_are_returned_and_others_503(
    shared_http: AsyncClient, shared_env: Environment, long_chat: DrivenSession
) -> None:
    state = await long_chat.state()
    whole = (await shared_http.get(full(long_chat))).json()
    file = broken(shared_env)
    newest = (await shared_http.get(full(long_chat))).json()
    assert numbers_of(newest) == numbers_of(whole)[state.archived_count :]
    assert newest["has_more"]
    for before in (newest["messages"][0]["id"], "p3", "p1", "nope"):
        began = time.monotonic()
        older = await shared_http.get(f"{full(long_chat)}?before={before}")
        assert (older.status_code, problem_of(older)) == (503, "archive-unavailable")
        assert int(older.headers["retry-after"]) > 0
        assert str(shared_env.settings.state_dir) not in older.text
        assert time.monotonic() - began < 20
    assert newest["links"]["older"] == f"{full(long_chat)}?before={newest['messages'][0]['id']}"
    assert (await shared_http.get(f"/workflow/{long_chat.handle.id}/conversation")).status_code == 200
    heal(file)
    assert (await shared_http.get(full(long_chat))).json() == whole


@pytest.mark.usefixtures("product_bounds")
async def test_api_2_a_hanging_archive_delays_no_response(
    shared_http: AsyncClient, long_chat: DrivenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    for name in ("page", "number_of", "count"):
        monkeypatch.setattr(Archive, name, hang)
    for path, status in ((full(long_chat), 200), (f"{full(long_chat)}?before=p2", 503), ("/readyz", 200)):
        began = time.monotonic()
        assert (await shared_http.get(path)).status_code == status
        assert time.monotonic() - began < 20


async def test_api_2_a_replaced_archive_file_does_not_look_like_the_first_turn(
    shared_http: AsyncClient, shared_env: Environment, long_chat: DrivenSession
) -> None:
    file_of(shared_env).rename(file_of(shared_env).with_suffix(".away"))
    async with gateway(shared_env.client, shared_env.task_queue, shared_env.settings.state_dir) as fresh:
        oldest = (await long_chat.state()).messages[0].id
        for before in (oldest, "p1"):
            answer = await fresh.get(f"{full(long_chat)}?before={before}")
            assert (answer.status_code, problem_of(answer)) == (503, "archive-unavailable")
        newest = (await fresh.get(full(long_chat))).json()
        assert newest["has_more"]
        assert newest["messages"][0]["id"] == oldest
    file_of(shared_env).with_suffix(".away").replace(file_of(shared_env))
    assert walked(await walk(shared_http, full(long_chat))) == list(range(1, 16))


async def test_api_1_the_session_description_reports_the_state_of_the_archive(
    shared_http: AsyncClient, shared_env: Environment, long_chat: DrivenSession
) -> None:
    described = (await shared_http.get(f"/workflow/{long_chat.handle.id}")).json()
    assert described["archived_count"] == (await long_chat.state()).archived_count > 0
    assert described["archive"]["failing_since"] is None
    file = broken(shared_env)
    session = await shared_env.start(SessionInput.model_validate({"limits": {**LIMITS, "max_state_bytes": 80_000}}))
    await chat(session, range(1, 7))
    await session.until(lambda state: state.session.archive.failing_since is not None)
    described = (await shared_http.get(f"/workflow/{session.handle.id}")).json()
    report = described["archive"]
    assert described["archived_count"] == 0
    assert report["attempts_failed"] >= 1
    assert "can't be opened" in report["last_error"]
    heal(file)


async def test_api_2_readyz_reports_whether_the_archive_is_readable(http: AsyncClient, env: Environment) -> None:
    answer = await http.get("/readyz")
    assert (answer.status_code, answer.json()["archive"]) == (200, "ok")
    file = broken(env)
    answer = await http.get("/readyz")
    assert (answer.status_code, answer.json()["archive"]) == (200, "unavailable")
    heal(file)
    assert (await http.get("/readyz")).json()["archive"] == "ok"


async def test_api_2_a_gateway_with_keys_is_not_ready_without_the_archive(temporal: Client, env: Environment) -> None:
    """It can verify no key, and may change nothing that it can't record."""
    settings = env.settings.model_copy(update={"auth": AuthSettings(keys=True)})
    async with served(temporal, settings) as url, AsyncClient(base_url=url) as keyed:
        assert (await keyed.get("/readyz")).status_code == 200
        file = broken(env)
        answer = await keyed.get("/readyz")
        assert (answer.status_code, problem_of(answer)) == (503, "archive-unavailable")
        heal(file)


async def test_api_2_the_status_names_the_workers_and_their_builds(http: AsyncClient, env: Environment) -> None:
    async def workers() -> Any:
        return (await http.get("/statusz")).json()["workers"]

    (worker,) = await until(workers)  # Temporal may not have seen it poll yet
    assert (worker["identity"], worker["build"]) == (env.worker.config()["identity"], own_build_id())


# ---- large texts in full


async def test_api_1_every_large_text_except_opaque_state_is_served_in_full(
    http: AsyncClient, env: Environment
) -> None:
    async def html(invocation: ToolInvocation) -> ToolResult:
        return ToolResult(outcome="Read", content="<script>alert('é')</script>" * 1_000)

    env.tools.run = html
    state = ProviderState(api="test", model="test", items=[{"signature": "s" * 20_000}])
    parts: list[Any] = [
        ThinkPart(kind="think", text="t" * 10_000),
        RespondPart(kind="respond", text="r" * 10_000),
        CallPart(kind="call", id="c1", name="look", args={"text": "a" * 10_000}),
    ]
    env.vendor.script = [ModelResponse(parts=parts, stop="tool_calls", model="test", state=state), says("done")]
    session = await env.start()
    await session.prompt("one")
    (turn,) = (await session.idle(turns=1))[:1]
    step = turn.steps[0]
    call = step.tool_calls[0]
    texts = {
        step.thinking_blob.hash: "t" * 10_000,
        step.text_blob.hash: "r" * 10_000,
        call.args_blob.hash: '{"text":"' + "a" * 10_000 + '"}',
        call.result.blob.hash: "<script>alert('é')</script>" * 1_000,
    }
    for name, text in texts.items():
        answer = await http.get(f"/workflow/{session.handle.id}/blobs/{name}")
        assert (answer.status_code, answer.text) == (200, text)
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["etag"] == f'"{name}"'
    again = await http.get(f"/workflow/{session.handle.id}/blobs/{name}", headers={"If-None-Match": f'W/"{name}"'})
    assert (again.status_code, again.content) == (304, b"")
    (opaque,) = opaque_hashes(env, opaque_owner(session.handle.id))
    for path in (f"{session.handle.id}/blobs/{opaque}", f"{session.handle.id}%2Fopaque/blobs/{opaque}"):
        assert (await http.get(f"/workflow/{path}")).status_code == 404


def opaque_hashes(env: Environment, owner: str) -> list[str]:
    import sqlite3

    with sqlite3.connect(file_of(env)) as connection:
        return [name for (name,) in connection.execute("SELECT hash FROM blobs WHERE session_id = ?", (owner,))]


async def test_api_2_a_large_text_of_another_session_is_a_404(http: AsyncClient, env: Environment) -> None:
    env.vendor.script = [says(LARGE)]
    mine, other = await env.start(), await env.start()
    await mine.prompt("write")
    ref = (await mine.idle(turns=1))[0].agent_message_blob
    for session, name, problem in (
        (mine.handle.id, "0" * 64, "unknown-blob"),
        (other.handle.id, ref.hash, "unknown-blob"),
        ("never-was", ref.hash, "unknown-session"),
    ):
        answer = await http.get(f"/workflow/{session}/blobs/{name}")
        assert (answer.status_code, problem_of(answer)) == (404, problem)
    file = broken(env)
    answer = await http.get(f"/workflow/{mine.handle.id}/blobs/{ref.hash}")
    assert (answer.status_code, problem_of(answer)) == (503, "archive-unavailable")
    heal(file)


# ---- deletion


async def deleted(http: AsyncClient, session_id: str) -> dict[str, Any]:
    """Poll the receipt until everything is deleted."""

    async def receipt() -> dict[str, Any] | None:
        answer = await http.delete(f"/workflow/{session_id}")
        assert answer.status_code in (200, 202, 503)
        if answer.status_code == 202:
            assert answer.json()["status"] == "deleting"
        return answer.json() if answer.status_code == 200 else None

    return await until(receipt, within=120, max_pause=LONG_PAUSE)


async def cleared(env: Environment, *texts: bytes) -> None:
    """Wait until the file contains none of these."""

    def is_cleared() -> bool:
        content = file_of(env).read_bytes()
        return not any(text in content for text in texts)

    await until(is_cleared)


async def is_stored(env: Environment, session_id: str) -> bool:
    """Return whether any table but the audit's has a row of the session."""
    tables = [table for name, table in METADATA.tables.items() if "session_id" in table.c and "audit" not in name]
    queries = [select(table).where(table.c.session_id == session_id).limit(1) for table in tables]
    return await env.stores.database.read(
        lambda connection: any(connection.execute(query).first() is not None for query in queries)
    )


async def test_api_1_deletion_removes_all_texts_of_a_session_but_not_of_its_successor(
    http: AsyncClient, env: Environment
) -> None:
    other = await archived_chat(env, 4)
    env.vendor.script = [says("secret answer " + LARGE)]
    session, reused = await archived_chat(env, 4), await archived_chat(env, 4)
    file = file_of(env)
    assert b"secret answer" in file.read_bytes()
    count = await env.stores.archive.count(session.handle.id)
    assert (await http.delete(f"/workflow/{reused.handle.id}")).status_code == 202
    receipt, _ = await asyncio.gather(deleted(http, session.handle.id), start_again(http, env, reused.handle.id))
    assert receipt == {
        "workflow_id": session.handle.id,
        "status": "deleted",
        "runs": 1,
        "remaining": 0,
        "archived_turns": count,
    }
    assert count >= 3
    assert b"secret answer" not in file.read_bytes()
    assert not await is_stored(env, session.handle.id)
    assert (await http.get(full(session))).status_code == 404
    assert walked(await walk(http, full(other))) == list(range(1, 5))
    await env.client.get_workflow_handle(deletion_id(reused.handle.id)).result()
    (turn,) = (await http.get(full(reused))).json()["messages"]
    assert turn["agent_message"] == LARGE


async def start_again(http: AsyncClient, env: Environment, session_id: str) -> None:
    """Start a session as soon as its id is free, and wait for a large answer."""

    async def is_started() -> bool:
        return (await http.post("/workflow", json={"id": session_id})).status_code == 201

    await until(is_started, within=120, max_pause=LONG_PAUSE)
    env.vendor.script = [says(LARGE)]
    answer = await http.post(f"/workflow/{session_id}/prompt?wait=20", json={"message": "write", "id": "p1"})
    assert answer.status_code == 200


async def test_api_1_texts_written_during_a_deletion_are_deleted_too(
    http: AsyncClient, env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnkeeper.workflows.activity_options.DELETION_QUIET", timedelta(seconds=1))
    env.vendor.gate.close()
    session = await env.start()
    await session.prompt("write")
    await env.vendor.gate.until_arrived(1)
    await env.stores.blobs.put(session.handle.id, ["an early secret"])
    clear, is_cleared_once = Stores.delete, asyncio.Event()

    async def clear_and_write_late(stores: Stores, session_id: str) -> int:
        """Write like an activity that has not noticed the termination yet."""
        archived_turns = await clear(stores, session_id)
        if not is_cleared_once.is_set():
            await cleared(env, b"early secret")
            for owner in (session_id, opaque_owner(session_id)):
                await env.stores.blobs.put(owner, ["a late secret"])
            env.partials.publish(session_id, PartialOutput(message_id="p", turn=9, step=1, request=9, attempt=1))
            assert b"late secret" in file_of(env).read_bytes()
            is_cleared_once.set()
        return archived_turns

    monkeypatch.setattr(Stores, "delete", clear_and_write_late)
    assert (await http.delete(f"/workflow/{session.handle.id}")).status_code == 202
    await asyncio.wait_for(is_cleared_once.wait(), BOUND)
    assert (await session.handle.describe()).close_time is not None, "its id is held until the stores are cleared"
    await cleared(env, b"late secret")
    async with env.partials.following(session.handle.id) as live:
        await run_other_tasks()
        assert live.latest is None


async def test_api_2_without_the_archive_a_deletion_fails_and_deletes_nothing(
    http: AsyncClient, env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await archived_chat(env, 4)
    file = broken(env)
    answer = await http.delete(f"/workflow/{session.handle.id}")
    assert (answer.status_code, problem_of(answer)) == (503, "archive-unavailable")
    assert "Nothing was deleted" in answer.json()["detail"]
    assert (await http.get(f"/workflow/{session.handle.id}")).json()["status"] == "idle"
    heal(file)

    deleting, fails = Archive.delete, [True]

    async def delete(archive: Archive, session_id: str) -> int:
        if fails[0]:
            raise StoreUnavailableError("The store's file can't be written.")
        return await deleting(archive, session_id)

    monkeypatch.setattr(Archive, "delete", delete)
    soon = RetryPolicy(initial_interval=timedelta(seconds=0.2), maximum_interval=timedelta(seconds=0.2))
    monkeypatch.setitem(activity_options.STORE_WORK, "retry_policy", soon)
    answer = await until_not(202, partial(http.delete, f"/workflow/{session.handle.id}"))
    assert (answer.status_code, problem_of(answer)) == (503, "archive-unavailable")
    assert "not deleted yet" in answer.json()["detail"]
    assert (await http.post("/workflow", json={"id": session.handle.id})).status_code == 409
    fails[0] = False

    async def is_cleared() -> bool:
        return not await is_stored(env, session.handle.id)

    await until(is_cleared)
    answer = await until_not(503, partial(http.delete, f"/workflow/{session.handle.id}"))
    assert answer.json()["archived_turns"] >= 3


async def test_api_1_a_session_past_temporals_retention_is_deleted_from_the_archive(
    http: AsyncClient, env: Environment
) -> None:
    session = await env.start()
    await session.prompt(id="p1", text="hello")
    turns = await session.idle(turns=1)
    turn = turns[0].model_copy(update={"user_message": "a secret"})
    await env.stores.archive.put_turns("forgotten", [ArchivedTurn(number=1, turn=turn)])
    await env.stores.blobs.put("forgotten", ["a large secret"])
    await env.stores.blobs.put("without-turns", ["another large secret"])
    for _ in range(2):
        assert await deleted(http, "forgotten") == {
            "workflow_id": "forgotten",
            "status": "deleted",
            "runs": 0,
            "remaining": 0,
            "archived_turns": 1,
        }
    unknown = await http.delete("/workflow/without-turns")
    assert (unknown.status_code, problem_of(unknown)) == (404, "unknown-session")
    assert b"secret" not in file_of(env).read_bytes()


PAST = ConversationMessage(
    id="p1",
    timestamp=datetime(2026, 1, 1, tzinfo=UTC),
    user_message="hello",
    user_timestamp=datetime(2026, 1, 1, tzinfo=UTC),
    agent_message="hello",
    agent_timestamp=datetime(2026, 1, 1, tzinfo=UTC),
    revision=2,
    status="completed",
)


@pytest.mark.parametrize("way", ["start", "prompt", "chat"])
async def test_api_1_the_id_of_a_session_past_temporals_retention_cannot_be_reused(
    env: Environment, http: AsyncClient, way: str
) -> None:
    session_id = f"s-{uuid4()}"
    await env.stores.archive.put_turns(session_id, [ArchivedTurn(number=1, turn=PAST)])
    answer = await {
        "start": lambda: http.post("/workflow", json={"id": session_id}),
        "prompt": lambda: http.post(f"/workflow/{session_id}/prompt?start=true", json={"message": "hi"}),
        "chat": lambda: http.post("/chat", json={"message": "hi", "workflow_id": session_id}),
    }[way]()
    assert (answer.status_code, problem_of(answer)) == (409, "session-exists" if way == "start" else "session-ended")


# ---- without a worker


async def test_ses_15_without_a_worker_the_conversation_is_read_from_the_archive(
    temporal: Client, tmp_path: Path
) -> None:
    queue, partials = f"q-{uuid4()}", InProcessCarrier()
    settings = Settings(task_queue=queue, state_dir=tmp_path)
    session = f"s-{uuid4()}"
    async with served(temporal, settings, partials=partials, timeouts=product()) as url, client_of(url) as http:
        assert (await http.post("/workflow", json={"id": session})).status_code == 201
        async with environment(temporal, task_queue=queue, partials=partials, state_dir=tmp_path) as env:
            for number in (1, 2):
                body = {"id": f"p{number}", "message": f"prompt {number}"}
                await http.post(f"/workflow/{session}/prompt?wait=20", json=body)
            await until(lambda: has_turns(env, session, 2))
            live = (await http.get(full(session))).json()
        page = await http.get(full(session))
        assert (page.status_code, page.json()["messages"]) == (200, live["messages"])
        assert page.json()["archive_time"] == live["messages"][-1]["agent_timestamp"]
        assert "archive_time" not in live
        older = (await http.get(full(session), params={"before": "p2"})).json()
        assert [turn["id"] for turn in older["messages"]] == ["p1"]
        poll = await http.get(f"/workflow/{session}/conversation")
        update = poll.json()["conversation_update"]
        assert (update["new_messages"], update["archive_time"]) == (live["messages"], page.json()["archive_time"])
        assert "etag" not in poll.headers
        assert (await http.get(f"/workflow/{session}/conversation?since_revision=1")).status_code == 504
        assert (await http.get(f"/workflow/{session}/queue")).status_code == 504
        watcher = Watcher(http, session)
        async with watcher.stream() as events:
            await watcher.until_in(events, lambda so_far: so_far.trouble == "No worker")
            assert watcher.last is not None
            assert watcher.last.archive_time is not None
            assert [turn.id for turn in watcher.copy.turns] == ["p1", "p2"]
            async with environment(temporal, task_queue=queue, partials=partials, state_dir=tmp_path):
                await watcher.until_in(events, lambda so_far: so_far.last.archive_time is None)
        assert [turn.id for turn in watcher.copy.turns] == ["p1", "p2"]


async def test_ses_15_without_a_worker_a_session_that_is_not_archived_is_a_504(http_alone: AsyncClient) -> None:
    session = f"s-{uuid4()}"
    await http_alone.post("/workflow", json={"id": session, "prompt": "hi"})
    for path in (full(session), f"/workflow/{session}/conversation", f"/workflow/{session}/events"):
        answer = await http_alone.get(path)
        assert (answer.status_code, problem_of(answer)) == (504, "no-worker")


async def has_turns(env: Environment, session: str, count: int) -> bool:
    return await env.stores.archive.count(WorkflowId(session)) == count
