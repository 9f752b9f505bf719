"""Sessions are exported, imported and forked (SES-18)."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from hashlib import sha256
from typing import Any
from uuid import uuid4

import pytest
from httpx import AsyncClient
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

from tests.api.conftest import gateway
from tests.api.history.test_archive import deleted
from tests.api.history.test_forgotten_sessions import forget
from tests.features.copies.record import EXPORTS
from tests.features.copies.rich_sessions import (
    PICTURE,
    copied,
    exported,
    forked,
    imported,
    model_view,
    rich_session,
    transcript,
)
from tests.harness import DrivenSession, Environment, environment
from tests.waiting import BOUND, until
from turnkeeper.api.callers import Caller
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.clients.python.request_sender import GatewayProblemError
from turnkeeper.features.copies.activities import CopyActivities
from turnkeeper.features.copies.copying import MAX_IMPORTS, PART_BYTES, SessionCopier
from turnkeeper.features.copies.document.reading import BYTES_PER_VALUE
from turnkeeper.models.ids import WorkflowId
from turnkeeper.stores.archive import Archive
from turnkeeper.stores.blobs import Blobs, attachments_owner, document_owner
from turnkeeper.stores.database.database import StoreUnavailableError
from turnkeeper.stores.partials.factory import InProcessCarrier


@pytest.fixture(scope="module")
async def rich(shared_env: Environment) -> DrivenSession:
    """A session with everything; no test changes it."""
    return await rich_session(shared_env)


async def test_ses_18_an_export_is_imported_on_another_stack_and_continues_there(
    temporal: Client, shared_env: Environment, shared_http: AsyncClient, rich: DrivenSession
) -> None:
    document = await exported(shared_http, rich.handle.id)
    assert (document["session"]["turn_count"], len(document["attachments"]), document["missing"]) == (12, 1, [])
    assert document["context"]["state"]["view"]["entries"]

    async with (
        environment(temporal, partials=InProcessCarrier()) as other,
        gateway(temporal, other.task_queue, other.settings.state_dir, partials=other.partials) as http,
    ):
        new_id = await imported(http, document, f"copy-{uuid4()}")
        assert await transcript(http, new_id) == await transcript(shared_http, rich.handle.id)
        assert await model_view(http, new_id) == await model_view(shared_http, rich.handle.id)
        again = await exported(http, new_id)
        assert {name: again[name] for name in ("turns", "texts", "attachments")} == {
            name: document[name] for name in ("turns", "texts", "attachments")
        }

        session = other.adopt(temporal.get_workflow_handle(new_id))
        await session.prompt(id="next", text="go on")
        turns = await session.idle(turns=13)
        assert turns[-1].agent_message == "echo: go on"
        contents = [message.content for message in other.vendor.turn_requests[-1].messages]
        assert any("Ada wanted a story" in content for content in contents)
        assert contents[-1] == "go on"
        await session.prompt(id="p3", text="the id of an imported turn")
        assert await session.fate("p3") == "started"
        assert (await session.state()).session.turn_count == 13


async def is_idle(session: DrivenSession) -> bool:
    """Return whether nothing more follows in the history: the last turns have been copied to the archive."""
    events = [event.event_type for history in await session.histories() for event in history.events]
    ended = (EventType.EVENT_TYPE_TIMER_FIRED, EventType.EVENT_TYPE_TIMER_CANCELED)
    timers_run = events.count(EventType.EVENT_TYPE_TIMER_STARTED) > sum(map(events.count, ended))
    return events[-1] == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED and not timers_run


async def event_ids(session: DrivenSession) -> list[bytes]:
    """Return the session's whole history, byte for byte."""
    return [
        event.SerializeToString(deterministic=True) for history in await session.histories() for event in history.events
    ]


@pytest.mark.parametrize("turn", [2, "p7", 11, None])
async def test_ses_18_a_fork_has_the_turns_up_to_one_and_the_original_is_not_touched(
    shared_env: Environment, shared_http: AsyncClient, rich: DrivenSession, turn: int | str | None
) -> None:
    await until(lambda: is_idle(rich))
    before, turns = await event_ids(rich), await transcript(shared_http, rich.handle.id)
    fork = await forked(shared_http, rich.handle.id, **({} if turn is None else {"turn": turn}))
    number = {"p7": 7, None: 12}.get(turn, turn)
    assert (fork["turn_count"], fork["message_id"], fork["forked_from"]) == (number, f"p{number}", rich.handle.id)

    assert await transcript(shared_http, fork["workflow_id"]) == turns[:number]
    view, original = await model_view(shared_http, fork["workflow_id"]), await model_view(shared_http, rich.handle.id)
    if turn is None:
        assert view == original
    assert view["turns"][-1] == {**original["turns"][number - 1], **view["turns"][-1]}
    assert view["turns"][-1]["seen"] == "verbatim"
    assert view["message_count"] <= 12 + 1  # the last answer
    described = (await shared_http.get(f"/workflow/{fork['workflow_id']}")).json()
    assert (described["title"], described["user"], described["turn_count"]) == ("A long story (fork)", "Ada", number)

    session = shared_env.adopt(shared_env.client.get_workflow_handle(fork["workflow_id"]))
    await session.prompt(id="next", text="go on")
    await session.idle(turns=number + 1)
    hashes = (await exported(shared_http, session.handle.id))["attachments"]
    owner = attachments_owner(WorkflowId(session.handle.id))
    assert list((await shared_env.stores.blobs.get_data(owner, hashes)).values()) == [PICTURE]
    assert await event_ids(rich) == before


async def test_ses_18_a_session_of_2000_turns_is_imported_exported_and_forked_at_turn_12(
    env: Environment, http: AsyncClient
) -> None:
    document = json.loads((EXPORTS / "v1.json").read_text())
    plain, turns = document["turns"][4]["turn"], document["turns"]
    first_revision = turns[-1]["turn"]["revision"]
    for number in range(len(turns) + 1, 2_001):
        turn = {**plain, "id": f"more-{number}", "revision": first_revision + number}
        turns.append({"number": number, "turn": turn})
    document["session"]["turn_count"], document["context"] = len(turns), None
    original = await imported(http, document)
    assert (await exported(http, original))["turns"] == turns
    session = env.adopt(env.client.get_workflow_handle(original))
    before = await event_ids(session)
    fork = await forked(http, original, turn=12)
    ids = [turn["id"] for turn in await transcript(http, fork["workflow_id"])]
    assert ids == [one["turn"]["id"] for one in turns[:12]]
    assert await event_ids(session) == before


async def test_ses_18_a_session_past_temporals_retention_is_exported_and_forked(
    shared_env: Environment, shared_http: AsyncClient
) -> None:
    session = await rich_session(shared_env, turns=6)
    before = await exported(shared_http, session.handle.id)
    await session.handle.signal("end_chat", "done")
    await session.handle.result()
    assert (await exported(shared_http, session.handle.id))["turns"] == before["turns"]
    await forget(shared_env, session)

    document = await exported(shared_http, session.handle.id)
    assert (document["turns"], document["context"], document["missing"]) == (before["turns"], None, [])
    assert document["texts"].items() <= before["texts"].items()
    fork = await forked(shared_http, session.handle.id)
    copy = await imported(shared_http, document)
    for new_id in (fork["workflow_id"], copy):
        turns = await transcript(shared_http, new_id)
        assert [turn["id"] for turn in turns] == [f"p{number}" for number in range(1, 7)]
        driven = shared_env.adopt(shared_env.client.get_workflow_handle(new_id))
        await driven.prompt(id="next", text="go on")
        assert (await driven.idle(turns=7))[-1].agent_message == "echo: go on"


async def test_ses_18_a_running_turn_is_left_out(env: Environment, http: AsyncClient) -> None:
    session = await env.start()
    await session.prompt(id="p1", text="one")
    await session.idle(turns=1)
    env.vendor.gate.close()
    await session.prompt(id="p2", text="two")
    await session.prompt(id="p3", text="three")
    await env.vendor.gate.until_arrived(2)
    document = await exported(http, session.handle.id)
    assert [one["turn"]["id"] for one in document["turns"]] == ["p1"]
    assert (document["session"]["running_turn"], document["session"]["waiting_prompts"]) == ("p2", 1)
    for turn in ("p2", 2):
        refused = await http.post(f"/workflow/{session.handle.id}/fork", json={"turn": turn})
        assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "turn")
    for turn in ("p9", 9):
        assert (await http.post(f"/workflow/{session.handle.id}/fork", json={"turn": turn})).status_code == 404
    fork = await forked(http, session.handle.id, id=f"f-{uuid4()}")
    env.vendor.gate.open()
    await session.idle(turns=3)
    again = await http.post(f"/workflow/{session.handle.id}/fork", json={"id": fork["workflow_id"], "turn": 1})
    assert (again.status_code, again.json()) == (202, fork)
    other = await http.post(f"/workflow/{session.handle.id}/fork", json={"id": fork["workflow_id"], "turn": 2})
    assert (other.status_code, other.json()["type"]) == (409, "urn:turnkeeper:problem:session-exists")
    assert [turn["id"] for turn in await transcript(http, fork["workflow_id"])] == ["p1"]


@asynccontextmanager
async def writes_fail(patch: pytest.MonkeyPatch, *, times: int = 10_000) -> AsyncIterator[asyncio.Event]:
    """Let the archive take no turns, so that copies are retried; the event is set once one has failed."""
    put, failures, has_failed = Archive.put_turns, 0, asyncio.Event()

    async def fail(archive: Archive, *arguments: Any) -> None:
        nonlocal failures
        failures += 1
        has_failed.set()
        if failures <= times:
            raise StoreUnavailableError("The disk is full.")
        await put(archive, *arguments)

    with patch.context() as failing:
        failing.setattr(Archive, "put_turns", fail)
        yield has_failed


async def test_ses_18_an_unfinished_copy_is_a_404_and_its_id_is_reserved(
    shared_env: Environment, shared_http: AsyncClient, rich: DrivenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    document, new_id, http = await exported(shared_http, rich.handle.id), f"copy-{uuid4()}", shared_http
    async with writes_fail(monkeypatch) as has_failed:
        answer = await http.post("/workflow/import", params={"id": new_id}, json=document)
        await asyncio.wait_for(has_failed.wait(), BOUND)

        async def reason() -> str | None:
            return str((await http.get(f"/workflow/{new_id}/copy")).json()["reason"])

        assert await until(lambda: says_so(reason, "The disk is full."))
        for path in ("", "/conversation", "/conversation/full", "/export", "/context", "/queue"):
            assert (await http.get(f"/workflow/{new_id}{path}")).status_code == 404, path
        assert (await http.patch(f"/workflow/{new_id}", json={"title": "Mine"})).status_code == 404
        others = [
            await http.post("/workflow", json={"id": new_id}),
            await http.post(f"/workflow/{rich.handle.id}/fork", json={"id": new_id}),
            await http.post("/workflow/import", params={"id": new_id}, json={**document, "turnkeeper": "other"}),
        ]
        assert [other.status_code for other in others] == [409] * 3
        early = {"id": "early", "text": "sent meanwhile"}
        await shared_env.client.get_workflow_handle(new_id).signal("prompt", early)
        repeated = await http.post("/workflow/import", params={"id": new_id}, json=document)
    for one in (answer, repeated):
        assert (await copied(http, one))["turn_count"] == 12
    session = shared_env.adopt(shared_env.client.get_workflow_handle(new_id))
    await session.idle(turns=13)
    turns = await transcript(http, new_id)
    assert turns[:12] == await transcript(http, rich.handle.id)
    assert (turns[12]["id"], turns[12]["agent_message"]) == ("early", "echo: sent meanwhile")
    assert await imported(http, document, new_id) == new_id


async def test_ses_6_prompts_to_a_copy_beyond_what_temporal_carries_are_processed(
    env: Environment, http: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    document, new_id = json.loads((EXPORTS / "v1.json").read_text()), f"copy-{uuid4()}"
    prompts = [f"early{number}" for number in range(21)]
    async with writes_fail(monkeypatch) as has_failed:
        answer = await http.post("/workflow/import", params={"id": new_id}, json=document)
        await asyncio.wait_for(has_failed.wait(), BOUND)
        for name in prompts:
            body = {"id": name, "message": f"{name} " * 12_000}
            assert (await http.post(f"/workflow/{new_id}/prompt", json=body)).status_code == 202
    await copied(http, answer)
    session = env.adopt(env.client.get_workflow_handle(new_id))
    await session.until(lambda state: state.session.turn_count == 12 + len(prompts) and state.status == "idle", turns=0)
    assert [turn["id"] for turn in await transcript(http, new_id)][12:] == prompts


async def test_ses_6_prompts_to_a_copy_that_fails_are_discarded_with_the_reason(
    env: Environment, http: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    document, new_id = json.loads((EXPORTS / "v1.json").read_text()), f"copy-{uuid4()}"
    async with writes_fail(monkeypatch) as has_failed:
        answer = await http.post("/workflow/import", params={"id": new_id}, json=document)
        await asyncio.wait_for(has_failed.wait(), BOUND)
        accepted = await http.post(f"/workflow/{new_id}/prompt", json={"id": "early", "message": "hello"})
        assert accepted.status_code == 202
        await env.client.get_workflow_handle(new_id).cancel()
        await copied(http, answer, status="failed")
    fate = (await http.get(accepted.headers["location"])).json()
    assert (fate["fate"], fate["reason"]) == ("discarded", "The copy was cancelled.")


async def test_api_1_waiting_for_a_prompt_to_a_copy_ends_with_202(
    env: Environment, http: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    document, new_id = json.loads((EXPORTS / "v1.json").read_text()), f"copy-{uuid4()}"
    async with writes_fail(monkeypatch) as has_failed:
        answer = await http.post("/workflow/import", params={"id": new_id}, json=document)
        await asyncio.wait_for(has_failed.wait(), BOUND)
        body = {"id": "early", "message": "hello"}
        assert (await http.post(f"/workflow/{new_id}/prompt", params={"wait": 1}, json=body)).status_code == 202
    await copied(http, answer)
    waiting = await http.post(f"/workflow/{new_id}/prompt", params={"wait": BOUND}, json=body)
    assert (waiting.status_code, waiting.json()["agent_message"]) == (200, "echo: hello")


async def test_api_2_a_bug_in_a_copy_reveals_no_internals(
    env: Environment, http: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    document, has_failed = json.loads((EXPORTS / "v1.json").read_text()), asyncio.Event()

    async def fails(*_: object) -> None:
        has_failed.set()
        raise RuntimeError("a password")

    with monkeypatch.context() as patch:
        patch.setattr(Archive, "put_turns", fails)
        answer = await http.post("/workflow/import", json=document)
        await asyncio.wait_for(has_failed.wait(), BOUND)
        handle = env.client.get_workflow_handle(answer.json()["workflow_id"])

        async def is_known() -> bool:
            activities = (await handle.describe()).raw_description.pending_activities
            return any("a password" in pending.last_failure.message for pending in activities)

        await until(is_known)
        receipt = (await http.get(answer.headers["location"])).json()
        assert (receipt["status"], receipt["reason"]) == ("running", None)
    await copied(http, answer)


async def says_so(read: Callable[[], Awaitable[str | None]], words: str) -> bool:
    return words in (await read() or "")


@pytest.mark.parametrize("is_deleted", [True, False])
async def test_ses_18_a_copy_that_is_deleted_or_cancelled_leaves_nothing(
    shared_env: Environment,
    shared_http: AsyncClient,
    rich: DrivenSession,
    monkeypatch: pytest.MonkeyPatch,
    is_deleted: bool,
) -> None:
    document, http, stores = await exported(shared_http, rich.handle.id), shared_http, shared_env.stores
    monkeypatch.setattr("turnkeeper.workflows.activity_options.DELETION_QUIET", timedelta(seconds=1))
    owner = WorkflowId(f"copy-{uuid4()}")
    async with writes_fail(monkeypatch) as has_failed:
        answer = await http.post("/workflow/import", params={"id": owner}, json=document)
        await asyncio.wait_for(has_failed.wait(), BOUND)
        if is_deleted:
            assert (await deleted(http, owner))["status"] == "deleted"
        else:
            await shared_env.client.get_workflow_handle(owner).cancel()
            assert "stopped" in (await copied(http, answer, status="failed"))["reason"]
    assert await nothing_of(shared_env, owner, document)
    assert not await stores.has(owner)


async def nothing_of(env: Environment, owner: WorkflowId, document: dict[str, Any]) -> bool:
    """Return whether the stores have nothing of a copy of `document`."""
    hashes = [*document["texts"], *document["attachments"]]
    owners = (owner, attachments_owner(owner), document_owner(owner))
    is_stored = [await env.stores.blobs.get_data(one, hashes) for one in owners]
    return await env.stores.archive.count(owner) == 0 and not any(is_stored)


async def test_ses_18_an_import_with_a_broken_upload_ends_and_can_be_sent_again(
    env: Environment, http: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    document, new_id = json.loads((EXPORTS / "v1.json").read_text()), WorkflowId(f"copy-{uuid4()}")

    async def dies(*_: object) -> None:
        raise RuntimeError("the gateway dies here")

    with monkeypatch.context() as patch:
        patch.setattr("turnkeeper.workflows.activity_options.UPLOAD_PATIENCE", timedelta(seconds=1))
        patch.setattr("turnkeeper.api.temporal.session_commands.SessionCommands.signal", dies)
        assert (await http.post("/workflow/import", params={"id": new_id}, json=document)).status_code == 500

        async def is_ended() -> bool:
            return (await http.get(f"/workflow/{new_id}/copy")).json()["status"] == "failed"

        await until(is_ended)
    receipt = (await http.get(f"/workflow/{new_id}/copy")).json()
    assert receipt["reason"] == "The document was not uploaded in time. Send it again."
    body = json.dumps(document).encode()
    assert await env.stores.blobs.get_data(document_owner(new_id), [sha256(body).hexdigest()]) == {}
    assert await imported(http, document, new_id) == new_id
    assert len(await transcript(http, new_id)) == 12


async def test_ses_18_a_gateway_that_uploads_the_document_later_leaves_no_parts(
    env: Environment, http: AsyncClient
) -> None:
    body = (EXPORTS / "v1.json").read_bytes()
    target = WorkflowId(await imported(http, json.loads(body)))
    await http._transport.app.state.services.get(SessionCopier)._upload(target, body)
    parts = [sha256(body[first : first + PART_BYTES]).hexdigest() for first in range(0, len(body), PART_BYTES)]
    assert await env.stores.blobs.get_data(document_owner(target), parts) == {}


async def test_ses_18_a_document_that_was_changed_in_the_store_is_not_imported(
    env: Environment, http: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    document, new_id = json.loads((EXPORTS / "v1.json").read_text()), WorkflowId(f"copy-{uuid4()}")
    put = env.stores.blobs.put_data

    async def lose(blobs: Blobs, owner: WorkflowId, data: Iterable[bytes]) -> None:
        await put(owner, [] if owner == document_owner(new_id) else data)

    monkeypatch.setattr(Blobs, "put_data", lose)
    answer = await http.post("/workflow/import", params={"id": new_id}, json=document)
    assert "not stored whole" in (await copied(http, answer, status="failed"))["reason"]
    assert await nothing_of(env, new_id, document)


async def test_ses_18_copies_with_one_id_at_once_make_one_session(
    shared_http: AsyncClient, rich: DrivenSession
) -> None:
    document, new_id = await exported(shared_http, rich.handle.id), f"copy-{uuid4()}"
    imports = [shared_http.post("/workflow/import", params={"id": new_id}, json=document) for _ in range(3)]
    answers = await asyncio.gather(*imports)
    for answer in answers:
        await copied(shared_http, answer)
    assert await transcript(shared_http, new_id) == await transcript(shared_http, rich.handle.id)

    path, other_id = f"/workflow/{rich.handle.id}/fork", f"fork-{uuid4()}"
    forks = [shared_http.post(path, json={"id": other_id, "turn": turn}) for turn in (3, 4)]
    both = sorted(await asyncio.gather(*forks), key=lambda answer: answer.status_code)
    assert [answer.status_code for answer in both] == [202, 409]
    receipt = await copied(shared_http, both[0])
    assert len(await transcript(shared_http, other_id)) == receipt["turn_count"]


async def test_api_4_an_import_may_not_have_more_values_than_memory_allows(
    http: AsyncClient,
) -> None:
    body = b"[" + b",".join([b"[]"] * (64 * 1024 * 1024 // BYTES_PER_VALUE)) + b"]"
    answer = await http.post("/workflow/import", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["detail"]) == (422, "body: may have 1,048,576 JSON values.")


async def test_ses_18_imports_do_not_wait_for_uploads_or_long_for_each_other(
    http: AsyncClient, timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = json.loads((EXPORTS / "v1.json").read_text())
    waiting, write = asyncio.Barrier(MAX_IMPORTS + 1), SessionCopier._upload
    upload_goes_on, write_goes_on = asyncio.Event(), asyncio.Event()

    async def slow_upload() -> AsyncIterator[bytes]:
        await waiting.wait()
        await upload_goes_on.wait()
        yield json.dumps(document).encode()

    async def slow_write(*args: Any) -> None:
        await waiting.wait()
        await write_goes_on.wait()
        await write(*args)

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        headers = {"content-type": "application/json"}
        posts = [http.post("/workflow/import", content=slow_upload(), headers=headers) for _ in range(MAX_IMPORTS)]
        uploads = [group.create_task(post) for post in posts]
        await waiting.wait()
        await imported(http, document)
        with monkeypatch.context() as patch:
            patch.setattr(SessionCopier, "_upload", slow_write)
            patch.setattr(timeouts, "import_queue", 0)
            upload_goes_on.set()
            await waiting.wait()
            refused = await http.post("/workflow/import", json=document)
            assert (refused.status_code, "retry-after" in refused.headers) == (429, True)
            write_goes_on.set()
            assert [(await upload).status_code for upload in uploads] == [202] * MAX_IMPORTS


async def test_ses_18_a_fork_of_a_deleted_original_fails_and_leaves_nothing(
    env: Environment, http: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = await env.start()
    await original.prompt(id="p1", text="one")
    await original.idle(turns=1)
    path, new_id = f"/workflow/{original.handle.id}/fork", WorkflowId(f"fork-{uuid4()}")

    async def original_is_deleted(*_: object, **__: object) -> None:
        await env.stores.blobs.put(new_id, ["of the original"])
        await http.delete(f"/workflow/{original.handle.id}")

    monkeypatch.setattr(CopyActivities, "_write_turns", original_is_deleted)
    receipt = await copied(http, await http.post(path, json={"id": new_id}), status="failed")
    assert receipt["reason"] == "The original was deleted while it was copied."
    assert (await http.get(f"/workflow/{new_id}")).status_code == 404
    assert await env.stores.blobs.get(new_id, [sha256(b"of the original").hexdigest()]) == {}


async def test_ses_18_an_export_as_markdown_keeps_structure_in_texts_harmless(
    env: Environment, http: AsyncClient
) -> None:
    session = await env.start()
    await session.prompt(id="p1", text="# Turn 7\n\n<script>alert(1)</script>\n```\n# not closed")
    await session.idle(turns=1)
    answer = await http.get(f"/workflow/{session.handle.id}/export", params={"format": "markdown"})
    assert answer.headers["content-type"].startswith("text/markdown")
    assert answer.headers["content-disposition"] == f'attachment; filename="{session.handle.id}.md"'
    lines = answer.text.splitlines()
    assert [line for line in lines if line.startswith("## ")] == ["## Turn 1"]
    assert "> # Turn 7" in lines
    assert "> &lt;script>alert(1)&lt;/script>" in lines
    assert not any(line.startswith(("#", "<", "```")) for line in lines if line not in ("## Turn 1", lines[0]))


async def test_ses_18_an_export_of_an_earlier_release_is_imported(http: AsyncClient, env: Environment) -> None:
    for file in sorted(EXPORTS.glob("v*.json")):
        document = json.loads(file.read_text())
        new_id = await imported(http, document)
        turns = await transcript(http, new_id)
        assert [turn["id"] for turn in turns] == [one["turn"]["id"] for one in document["turns"]]
        assert [turn["user_message"] for turn in turns] == [one["turn"]["user_message"] for one in document["turns"]]
        view = await model_view(http, new_id)
        assert view["summary"]["text"] == "Ada wanted a story, and a file was read."
        session = env.adopt(env.client.get_workflow_handle(new_id))
        await session.prompt(id="next", text="go on")
        assert (await session.idle(turns=len(turns) + 1))[-1].agent_message == "echo: go on"


async def test_ses_18_a_damaged_document_imports_nothing_and_names_the_error(
    http: AsyncClient, env: Environment
) -> None:
    session = await env.start()
    await session.prompt(id="p1", text="one")
    await session.idle(turns=1)
    document, new_id = await exported(http, session.handle.id), f"copy-{uuid4()}"
    path = "/workflow/import"
    whole = json.dumps(document)
    answers = [
        await http.post(path, params={"id": new_id}, content=whole[:-40], headers={"content-type": "application/json"}),
        await http.post(path, params={"id": new_id}, json={**document, "version": 2}),
        await http.post(path, params={"id": new_id}, content=whole, headers={"content-type": "text/plain"}),
    ]
    document["session"]["configuration"]["model"] = "nobody:model"
    answers.append(await http.post(path, params={"id": new_id}, json=document))
    assert [answer.status_code for answer in answers] == [422] * 4
    fields = [answer.json()["errors"][0]["field"] for answer in answers]
    assert fields == ["body", "version", "body", "session.configuration.model"]
    assert "Content-Type application/json" in answers[2].json()["detail"]
    for path in ("", "/copy"):
        assert (await http.get(f"/workflow/{new_id}{path}")).status_code == 404


async def test_ses_18_a_session_with_a_practically_unlimited_window_is_imported_and_forked(http: AsyncClient) -> None:
    document = json.loads((EXPORTS / "v1.json").read_text())
    document["session"]["configuration"]["history"]["max_messages"] = 10**20
    new_id = await imported(http, document)
    fork = await forked(http, new_id, turn=5)
    assert fork["turn_count"] == 5
    assert (await model_view(http, fork["workflow_id"]))["turns"][-1]["seen"] == "verbatim"


@pytest.mark.parametrize("turn", [0, 2**31 + 1, True, 1.5, "a b", [1]])
async def test_ses_18_a_wrong_turn_of_a_fork_is_one_error_with_what_is_allowed(
    http_alone: AsyncClient, turn: object
) -> None:
    answer = await http_alone.post("/workflow/any/fork", json={"turn": turn})
    reason = "must be a turn's number, 1 to 2,147,483,648, or its id"
    error = {"field": "turn", "reason": reason, "error_type": "invalid_value"}
    assert (answer.status_code, answer.json()["errors"]) == (422, [error])


async def test_ses_18_an_import_may_set_what_its_caller_may_and_all_three_are_audited(
    temporal: Client, shared_env: Environment, shared_http: AsyncClient, rich: DrivenSession
) -> None:
    document = await exported(shared_http, rich.handle.id)
    folder, queue = shared_env.settings.state_dir, shared_env.task_queue
    writer = Caller("key:writer", "", "Bob", "writer")
    async with gateway(temporal, queue, folder, partials=shared_env.partials, caller=writer) as http:
        refused = await http.post("/workflow/import?id=refused-import", json=document)
        assert (refused.status_code, refused.json()["errors"][0]["field"]) == (403, "session.configuration.tool_policy")
        document["session"]["configuration"]["tool_policy"] = {}
        document["session"]["id"] = "somebody:elses"
        new_id = await imported(http, document, "audited-import")
        fork = await forked(http, new_id, id="audited-fork", turn="p3", title="Other")
        assert fork["turn_count"] == 3
        assert (await http.get(f"/workflow/{new_id}/export?format=markdown")).status_code == 200
        described = (await http.get("/workflow/audited-fork")).json()
        assert (described["title"], described["user"]) == ("Other", "Bob")
        refused = await http.post(f"/workflow/{rich.handle.id}/fork", json={"id": "refused-fork"})
        assert (refused.status_code, refused.json()["errors"][0]["field"]) == (403, "tool_policy")
    admin = Caller("key:admin", "", "Ada", "admin")
    async with gateway(temporal, queue, folder, partials=shared_env.partials, caller=admin) as http:

        async def outcomes() -> list[tuple[str, str, str]] | None:
            entries = (await http.get("/audit", params={"user": "Bob"})).json()["entries"]
            rows = sorted((entry["action"], entry["workflow_id"], entry["outcome"]) for entry in entries)
            return rows if all(entry["outcome"] != "unknown" for entry in entries) else None

        assert await until(outcomes) == [
            ("export", "audited-import", "accepted"),
            ("fork", "audited-import", "accepted"),
            ("fork", rich.handle.id, "refused"),
            ("import", "audited-import", "accepted"),
            ("import", "refused-import", "refused"),
            ("start", "audited-fork", "accepted"),
            ("start", "refused-fork", "refused"),
        ]


async def test_ses_18_the_python_client_exports_imports_and_forks(url: str, env: Environment) -> None:
    async with GatewayClient(url) as client:
        session = await env.start()
        await session.prompt(id="p1", text="one")
        await session.idle(turns=1)
        document = b"".join([part async for part in client.export(session.handle.id)])
        text = b"".join([part async for part in client.export(session.handle.id, markdown=True)])
        assert (json.loads(document)["session"]["turn_count"], b"## Turn 1" in text) == (1, True)
        copy = await client.import_session(document, "by-client")
        assert (copy.workflow_id, copy.turn_count) == ("by-client", 1)
        fork = await client.fork("by-client", turn=1, new_id="fork-by-client", title="Again")
        assert (fork.turn_count, fork.message_id, fork.forked_from) == (1, "p1", "by-client")
        empty = await env.start()
        document = b"".join([part async for part in client.export(empty.handle.id)])
        assert (await client.import_session(document)).turn_count == 0
        with pytest.raises(GatewayProblemError) as no_turn:
            await client.fork(empty.handle.id)
        assert no_turn.value.problem.name == "invalid"
        with pytest.raises(GatewayProblemError) as error:
            await client.fork("by-client", new_id="fork-by-client", title="Other")
        assert error.value.problem.name == "session-exists"
