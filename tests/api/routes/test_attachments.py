"""Attachments by HTTP, from the prompt to the deletion: CTX-16, API-1, API-4."""

import json
from base64 import b64decode, b64encode
from hashlib import sha256
from typing import Any

import pytest
from httpx import AsyncClient

from tests.api.history.test_archive import deleted
from tests.api.http.test_bad_input import problem_of
from tests.api.routes.test_conversation_routes import finished, fresh
from tests.harness import Environment
from turnkeeper.activities.providers.protocol import ModelError
from turnkeeper.api.problems import problem
from turnkeeper.api.temporal.session_commands import SessionCommands
from turnkeeper.api.temporal.session_reader import SessionReader
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.transcript.attachments import FileAttachment, ImageAttachment
from turnkeeper.stores.blobs import Blobs, attachments_owner
from turnkeeper.stores.database.database import StoreUnavailableError

PNG = b"\x89PNG\r\n\x1a\n" + b"pixels of a cat " * 1_000
PDF = b"%PDF-1.7\n" + b"a page of a report " * 1_000
CODE = {"type": "code", "name": "add.py", "language": "python", "content": "print(1 + 1)"}


def image(data: bytes = PNG, **changed: object) -> dict[str, Any]:
    base = {"type": "image", "name": "cat.png", "media_type": "image/png", "data": b64encode(data).decode()}
    return {**base, **changed}


async def stored(env: Environment, session: str, *contents: bytes) -> set[bytes]:
    """Return which of the attachments the store has for the session."""
    hashes = [sha256(content).hexdigest() for content in contents]
    return set((await env.stores.blobs.get_data(attachments_owner(WorkflowId(session)), hashes)).values())


async def test_ctx_16_attachments_reach_request_and_transcript_and_are_deleted_with_them(
    http: AsyncClient, env: Environment
) -> None:
    session = fresh()
    await http.post("/workflow", json={"id": session})
    uploaded = await http.post(
        f"/workflow/{session}/attachments",
        params={"name": "Größe.pdf"},
        content=PDF,
        headers={"Content-Type": "application/pdf"},
    )
    digest = sha256(PDF).hexdigest()
    assert (uploaded.status_code, uploaded.json()) == (
        201,
        {"type": "file", "name": "Größe.pdf", "media_type": "application/pdf", "hash": digest, "bytes": len(PDF)},
    )
    message = {"message": " ", "id": "p1", "attachments": [uploaded.json(), image(), CODE]}
    for _ in range(2):  # sent twice it is one turn
        assert (await http.post(f"/workflow/{session}/prompt", json=message)).status_code == 202
    (turn,) = await finished(http, session)

    reference = {"type": "image", "name": "cat.png", "media_type": "image/png"}
    reference |= {"hash": sha256(PNG).hexdigest(), "bytes": len(PNG)}
    assert turn["attachments"] == [uploaded.json(), reference, CODE]
    (request,) = env.vendor.turn_requests
    pdf, cat, code = request.messages[-1].attachments
    assert isinstance(pdf, FileAttachment)
    assert isinstance(cat, ImageAttachment)
    assert (b64decode(pdf.data), b64decode(cat.data), code.model_dump(mode="json")) == (PDF, PNG, CODE)

    full = (await http.get(f"/workflow/{session}/conversation/full")).json()
    assert full["messages"][0]["attachments"] == turn["attachments"]
    replay = (await http.get(f"/workflow/{session}/context", params={"format": "replay"})).text
    assert "[File: Größe.pdf, application/pdf, 19 KB]\n[Image: cat.png, image/png, 16 KB]\n[Code: add.py" in replay
    history = await env.client.get_workflow_handle(session).fetch_history()
    assert max(event.ByteSize() for event in history.events) < 12_000

    read = await http.get(f"/workflow/{session}{turn_path(turn, 1)}")
    assert (read.content, read.headers["content-type"]) == (PNG, "image/png")
    assert read.headers["content-disposition"] == "inline"
    file = await http.get(f"/workflow/{session}{turn_path(turn, 0)}", params={"name": "Größe.pdf"})
    assert (file.content, file.headers["content-type"]) == (PDF, "application/octet-stream")
    assert file.headers["content-disposition"] == "attachment; filename*=UTF-8''Gr%C3%B6%C3%9Fe.pdf"
    assert file.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in file.headers["content-security-policy"]
    unchanged = await http.get(
        f"/workflow/{session}{turn_path(turn, 0)}", headers={"If-None-Match": file.headers["etag"]}
    )
    assert unchanged.status_code == 304
    as_text = await http.get(f"/workflow/{session}/blobs/{digest}")
    assert as_text.status_code == 404, "a reader of texts can't read attachments"

    export = (await http.get(f"/workflow/{session}/export")).json()
    assert {b64decode(one) for one in export["attachments"].values()} == {PDF, PNG}
    assert export["turns"][0]["turn"]["attachments"] == turn["attachments"]

    assert await stored(env, session, PDF, PNG) == {PDF, PNG}
    await deleted(http, session)
    assert await stored(env, session, PDF, PNG) == set()


def turn_path(turn: dict[str, Any], index: int) -> str:
    return f"/attachments/{turn['attachments'][index]['hash']}"


async def test_ctx_16_attachments_of_a_gateway_that_died_before_the_signal_are_deleted(
    http: AsyncClient, env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, other = fresh(), fresh()
    signalled = SessionCommands.prompt
    for name in (session, other):
        await http.post("/workflow", json={"id": name})

    async def die(*_: object) -> None:
        raise RuntimeError("this process ends here")

    monkeypatch.setattr(SessionCommands, "prompt", die)
    message = {"message": "look", "id": "p1", "attachments": [image()]}
    for name in (session, other):
        assert (await http.post(f"/workflow/{name}/prompt", json=message)).status_code == 500
        assert await stored(env, name, PNG) == {PNG}
    monkeypatch.setattr(SessionCommands, "prompt", signalled)
    assert (await http.post(f"/workflow/{session}/prompt", json=message)).status_code == 202
    assert len(await finished(http, session)) == 1
    await deleted(http, other)
    assert await stored(env, other, PNG) == set()


async def test_ctx_16_attachments_of_a_failed_start_stay_only_for_its_retry(
    http: AsyncClient, env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed, doomed, described = fresh(), fresh(), list[WorkflowId]()
    describe = SessionReader.describe_if_retained
    await http.post("/workflow", json={"id": doomed})

    async def describe_after_deletion(reader: SessionReader, workflow_id: WorkflowId) -> Any:
        described.append(workflow_id)
        if len(described) == 2:
            await deleted(http, doomed)
            await env.stores.blobs.put_data(attachments_owner(workflow_id), [PNG])  # the write is late
        return await describe(reader, workflow_id)

    async def fail(*_: object) -> None:
        raise problem("temporal-unreachable")

    with monkeypatch.context() as late:
        late.setattr(SessionReader, "describe_if_retained", describe_after_deletion)
        upload = await http.post(f"/workflow/{doomed}/attachments", content=PNG)
    assert (upload.status_code, problem_of(upload)) == (404, "unknown-session")
    start = {"id": failed, "attachments": [image()]}
    with monkeypatch.context() as broken:
        broken.setattr(SessionCommands, "start", fail)
        assert (await http.post("/workflow", json=start)).status_code == 503
    assert await stored(env, doomed, PNG) == set()
    assert (await http.get(f"/workflow/{failed}/attachments/{sha256(PNG).hexdigest()}")).status_code == 404
    assert (await http.post("/workflow", json=start)).status_code == 201
    await finished(http, failed)
    assert await stored(env, failed, PNG) == {PNG}


async def test_ctx_16_without_the_store_prompts_fail_and_a_running_turn_waits_for_it(
    http: AsyncClient, env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = fresh()
    await http.post("/workflow", json={"id": session})
    monkeypatch.setattr("turnkeeper.activities.call_model.STORE_WAIT_SECONDS", 0.2)
    read = Blobs.get_data

    async def fail(*_: object) -> Any:
        raise StoreUnavailableError("The disk is lost.")

    message = {"message": "look", "id": "p1", "attachments": [image()]}
    with monkeypatch.context() as broken:
        broken.setattr(Blobs, "put_data", fail)
        refused = await http.post(f"/workflow/{session}/prompt", json=message)
        assert (refused.status_code, problem_of(refused)) == (503, "archive-unavailable")
        assert "nothing was sent" in refused.json()["detail"]
    assert (await http.get(f"/workflow/{session}/queue/p1")).status_code == 404
    failures = 0

    async def fail_twice(self: Blobs, *arguments: Any) -> Any:
        nonlocal failures
        failures += 1
        return await (read(self, *arguments) if failures > 2 else fail())

    monkeypatch.setattr(Blobs, "get_data", fail_twice)
    await http.post(f"/workflow/{session}/prompt", json=message)
    (turn,) = await finished(http, session)
    assert (turn["status"], failures) == ("completed", 3)
    assert [len(one.attachments) for one in env.vendor.turn_requests[0].messages] == [1]


async def test_ctx_16_an_attachment_lost_by_the_store_is_replaced_by_its_name(
    http: AsyncClient, env: Environment
) -> None:
    session = fresh()
    await http.post("/workflow", json={"id": session})
    lost = {"type": "image", "name": "cat.png", "media_type": "image/png", "hash": "0" * 64, "bytes": 16_000}
    unknown = await http.post(f"/workflow/{session}/prompt", json={"message": "look", "attachments": [lost]})
    assert (unknown.status_code, unknown.json()["errors"][0]["field"]) == (422, "attachments[0].hash")
    signal = {"id": "p1", "text": "look", "attachments": [lost]}
    await env.client.get_workflow_handle(session).signal("prompt", signal)
    await finished(http, session)
    message = env.vendor.turn_requests[0].messages[-1]
    assert message.content == "look\n\n[Image: cat.png, image/png, 16 KB] (no longer stored)"
    assert message.attachments == []


async def test_ctx_16_a_retry_has_the_attachments_of_the_failed_turn(http: AsyncClient, env: Environment) -> None:
    env.vendor.script = [ModelError("auth", "no key")]
    session = fresh()
    started = await http.post("/workflow", json={"id": session, "attachments": [image(), CODE]})
    await http.get(f"/workflow/{session}/conversation", params={"wait": 5})
    await finished(http, session)
    await http.post(f"/workflow/{session}/retry", json={"message_id": started.json()["message_id"]})
    turns = await finished(http, session, 2)
    assert turns[0]["attachments"] == turns[1]["attachments"]
    assert [one.type for one in env.vendor.turn_requests[-1].messages[-1].attachments] == ["image", "code"]


async def test_ctx_16_files_of_the_ai_sdk_and_of_mcp_are_attachments(http: AsyncClient, env: Environment) -> None:
    session = fresh()
    url = f"data:image/png;base64,{b64encode(PNG).decode()}"
    parts = [
        {"type": "text", "text": "look"},
        {"type": "file", "mediaType": "image/png", "filename": "cat.png", "url": url},
        {"type": "file", "mediaType": "text/plain", "url": "data:text/plain;base64,aGk="},
    ]
    chat = {"id": session, "messages": [{"id": "m1", "role": "user", "parts": parts}]}
    assert (await http.post("/api/chat", json=chat)).status_code == 200
    (turn,) = await finished(http, session)
    assert [(one["type"], one["name"]) for one in turn["attachments"]] == [("image", "cat.png"), ("file", "file")]
    past = (await http.get(f"/api/chat/{session}/messages")).json()
    stored_url = f"/workflow/{session}/attachments/{sha256(PNG).hexdigest()}"
    assert past[0]["parts"][1] == {**parts[1], "url": stored_url}
    assert past[0]["parts"][2] == {**parts[2], "filename": "file"}
    again = {**chat, "messages": [{"id": "m2", "role": "user", "parts": past[0]["parts"]}]}
    assert (await http.post("/api/chat", json=again)).status_code == 200
    assert (await finished(http, session, 2))[1]["attachments"] == turn["attachments"]
    wrong = [{"type": "file", "mediaType": "application/pdf", "url": "https://example.org/a.pdf"}]
    refused = await http.post("/api/chat", json={**chat, "messages": [{"id": "m3", "role": "user", "parts": wrong}]})
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "messages[0].parts[0].url")


@pytest.mark.parametrize(
    ("attachments", "field"),
    [
        ([CODE, image(data=b"GIF89a")], "attachments[1].data"),
        ([image(data=b"")], "attachments[0].data"),
        ([{**CODE, "colour": "red"}], "attachments[0].colour"),
        ([{"type": "video"}], "attachments[0]"),
        ([{"type": "image", "url": "ftp://example.org"}], "attachments[0].url"),
        ([CODE] * 21, "attachments"),
        ([{**CODE, "name": "ü" * 200}] * 20, "attachments"),
    ],
)
async def test_ctx_16_an_invalid_attachment_is_named_and_no_prompt_is_sent(
    http_alone: AsyncClient, attachments: list[object], field: str
) -> None:
    for path in ("/chat", f"/workflow/{fresh()}/prompt"):
        answer = await http_alone.post(path, json={"message": "look", "attachments": attachments})
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, field)


@pytest.mark.parametrize("header", [None, "application/octet-stream", "application/x-www-form-urlencoded"])
@pytest.mark.parametrize(
    ("content", "kind", "media_type"),
    [
        (PNG, "image", "image/png"),
        (PDF, "file", "application/pdf"),
        (b"a text on %PDF-1.7", "file", "application/octet-stream"),
    ],
)
async def test_ctx_16_the_type_of_an_upload_is_detected_from_its_first_bytes(
    http_alone: AsyncClient, header: str | None, content: bytes, kind: str, media_type: str
) -> None:
    session = fresh()
    await http_alone.post("/workflow", json={"id": session})
    headers = {"Content-Type": header} if header else {}
    uploaded = await http_alone.post(f"/workflow/{session}/attachments", content=content, headers=headers)
    assert uploaded.status_code == 201, uploaded.text
    assert (uploaded.json()["type"], uploaded.json()["media_type"]) == (kind, media_type)


async def test_api_4_bodies_with_attachments_may_be_10_mib_and_an_upload_7_mb(http_alone: AsyncClient) -> None:
    session = fresh()
    await http_alone.post("/workflow", json={"id": session})
    path = f"/workflow/{session}"
    large = image(PNG + b"\0" * 6_900_000)
    assert (await http_alone.post(f"{path}/prompt", json={"message": "", "attachments": [large]})).status_code == 202
    headers = {"Content-Type": "application/json"}
    too_large = json.dumps({"message": "x" * 11_000_000})
    assert (await http_alone.post(f"{path}/prompt", content=too_large, headers=headers)).status_code == 413
    for content, media_type, status in (
        (b"x" * 7_000_001, "text/plain", 413),
        (b"", "text/plain", 422),
        (b"GIF89a", "image/png", 422),
        (b"x", "nonsense", 422),
        (b"x", "text/plain; charset=utf-8", 201),
    ):
        answer = await http_alone.post(f"{path}/attachments", content=content, headers={"Content-Type": media_type})
        assert answer.status_code == status, answer.text
    for wrong, field in (({"params": {"name": "a\nb"}}, "name"), ({"headers": {"Content-Type": "?"}}, "Content-Type")):
        answer = await http_alone.post(f"{path}/attachments", content=b"x", **wrong)
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, field)
    uploaded = await http_alone.post(f"{path}/attachments", content=b"x")
    for media_type, says in (("application/pdf", "is not a PDF"), ("image/png", "is not a PNG image")):
        misnamed = {**uploaded.json(), "media_type": media_type}
        answer = await http_alone.post(f"{path}/prompt", json={"message": "look", "attachments": [misnamed]})
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "attachments[0].media_type")
        assert says in answer.json()["detail"]
    form = await http_alone.post(f"{path}/attachments", files={"file": ("cat.png", PNG)})
    assert (form.status_code, form.json()["errors"][0]["field"]) == (422, "Content-Type")
    unknown = await http_alone.post("/workflow/nobody/attachments", content=b"x")
    assert (unknown.status_code, problem_of(unknown)) == (404, "unknown-session")
    foreign = await http_alone.post(f"{path}/attachments", content=b"x", headers={"Origin": "https://evil.example"})
    assert (foreign.status_code, problem_of(foreign)) == (403, "foreign-origin")
