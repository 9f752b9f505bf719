"""The AI SDK adapter on the wire: API-1, API-2."""

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from httpx import AsyncClient, Response
from pydantic import ValidationError
from temporalio.client import Client

from tests.api.conftest import served
from tests.api.http.test_bad_input import problem_of
from tests.features.ai_sdk.ui_reader import Reader
from tests.harness import BOUND, TASK_SECONDS, DrivenSession, Environment, asks, environment, patient, product, says
from turnkeeper.activities.providers.protocol import ModelError
from turnkeeper.api.live.feed import Event, ProblemEvent, UpdateFeed
from turnkeeper.api.problems import problem
from turnkeeper.api.roles import MAX_BODY_BYTES, MAX_HISTORY_BYTES
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.features.ai_sdk.gateway import (
    DECISION_AWAITED_NOTICE,
    DECISION_UNUSED_NOTICE,
    SILENT_WORKER_NOTICE,
    TurnStream,
)
from turnkeeper.features.ai_sdk.messages import PostChat
from turnkeeper.features.ai_sdk.turn_chunks import TurnChunks
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.transcript.model_call import ToolSpec


def user(text: str = "hello", **more: Any) -> dict[str, Any]:
    return {"id": "m1", "role": "user", "parts": [{"type": "text", "text": text}], **more}


def posted(*messages: Any, **more: Any) -> dict[str, Any]:
    """What the AI SDK's transport posts."""
    return {"id": f"s-{uuid4()}", "messages": list(messages), "trigger": "submit-message", **more}


def chunks_in(text: str) -> list[dict[str, Any]]:
    """The chunks of a complete stream; its last line says that it is complete."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def types(response: Response) -> list[str]:
    return [chunk["type"] for chunk in chunks_in(response.text)]


async def test_api_1_a_message_is_answered_by_a_ui_message_stream(http: AsyncClient, env: Environment) -> None:
    answer = await http.post("/api/chat", json=posted(user()))
    assert answer.status_code == 200
    assert answer.headers["x-vercel-ai-ui-message-stream"] == "v1"
    assert answer.headers["content-type"].partition(";")[0] == "text/event-stream"
    start, *rest = chunks_in(answer.text)
    assert (start["type"], start["messageId"], start["messageMetadata"]["turnId"]) == ("start", "m1:answer", "m1")
    assert datetime.fromisoformat(start["messageMetadata"]["createdAt"]).tzinfo is not None
    assert [chunk["type"] for chunk in rest] == [
        *("start-step", "text-start", "text-delta", "text-end", "finish-step", "finish"),
    ]
    assert rest[2]["delta"] == "echo: hello"


async def test_api_1_all_text_of_a_message_is_its_prompt_and_the_past_is_not_read(
    http: AsyncClient, env: Environment
) -> None:
    parts = [{"type": "text", "text": "one", "state": "done"}, {"type": "text", "text": "two"}]
    past = [{"role": "assistant", "anything": "goes"}, 7, None]
    body = posted(*past, user(parts=parts, metadata={"from": "page"}))
    assert chunks_in((await http.post("/api/chat", json=body)).text)[3]["delta"] == "echo: one\n\ntwo"


async def test_api_1_empty_fields_that_clients_send_are_accepted(http: AsyncClient, env: Environment) -> None:
    empty = {"system": None, "tools": {}, "config": {}, "callSettings": None, "metadata": None, "messageId": None}
    assert (await http.post("/api/chat", json=posted(user(), **empty))).status_code == 200


async def test_api_4_a_long_history_is_accepted_and_one_over_the_limit_rejected(
    http: AsyncClient, env: Environment
) -> None:
    body = posted(user("x" * MAX_BODY_BYTES), user())
    assert (await http.post("/api/chat", json=body)).status_code == 200
    large = await http.post("/api/chat", json=posted(user("x" * MAX_HISTORY_BYTES), user()))
    assert (large.status_code, problem_of(large)) == (413, "too-large")


async def test_api_1_a_waiting_stream_sends_signs_of_life(
    url: str, env: Environment, timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "ping", 0.01)
    env.vendor.gate.close()
    async with (
        asyncio.timeout(BOUND),
        AsyncClient(base_url=url) as client,
        client.stream("POST", "/api/chat", json=posted(user())) as stream,
    ):
        async for line in stream.aiter_lines():
            if line == ": ping":
                break
        else:
            raise AssertionError("the stream ended")


async def test_api_7_both_routes_are_described_with_all_their_chunks_and_an_example(
    http: AsyncClient, api_document: Any
) -> None:
    for operation in (
        api_document["paths"]["/api/chat"]["post"],
        api_document["paths"]["/api/chat/{id}/stream"]["get"],
    ):
        stream = operation["responses"]["200"]["content"]["text/event-stream"]
        schemas = stream["x-itemSchema"]["properties"]["data"]["contentSchema"]["anyOf"]
        names = [schema["$ref"].rpartition("/")[2] for schema in schemas]
        types = [api_document["components"]["schemas"][name]["properties"]["type"] for name in names]
        described_types = [value for one in types for value in one.get("enum", [one.get("const")])]
        assert len(described_types) == len(set(described_types)) == 24
        reader = Reader().read(chunks_in(stream["example"]))
        assert (reader.finish_reason, reader.parts[-1]["text"]) == ("stop", "It is noon.")
    example = api_document["components"]["schemas"]["PostChat"]["examples"][0]
    assert (await http.post("/api/chat", json={**example, "id": f"s-{uuid4()}"})).status_code == 200


def test_api_7_every_route_that_the_documentation_names_exists(api_document: Any) -> None:
    page = (Path(__file__).parents[3] / "docs" / "ai-sdk.md").read_text()
    named = set(re.findall(r"`(GET|POST) (/[^`]*)`", page))
    routes = {(method.upper(), path) for path, methods in api_document["paths"].items() for method in methods}
    assert len(named) >= 4
    assert named <= routes


# ---- what can't be taken


def answered(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "m1:answer", "role": "assistant", "parts": list(parts), **more}


def decided(**approval: Any) -> dict[str, Any]:
    decision = {"id": f"1.1.0:{'0' * 64}", "approved": True, **approval}
    return {"type": "dynamic-tool", "toolCallId": "1.1.0", "state": "approval-responded", "approval": decision}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"id": "never-was"}, "body"),
        (posted(), "body"),
        (posted(user(), message=user()), "body"),
        (posted(user(), None), "body"),
        ({"messages": [user()]}, "id"),
        (posted(user(), id="no such id"), "id"),
        (posted(user(), trigger="resume-stream"), "trigger"),
        (posted(user(), sessionId="s1"), "sessionId"),
        (posted(user(), tools={"weather": {}}), "tools"),
        (posted(user(), system="Be brief."), "system"),
        (posted(user(), callSettings={"temperature": 0}), "callSettings"),
        (posted(user(), config={"modelName": "x"}), "config"),
        (posted(user(), metadata={"a": 1}), "metadata"),
        (posted(user(), messageId="m1"), "messageId"),
        (posted(user(role="system")), "messages[0]"),
        (posted(None, user(id="no such id")), "messages[1].user.id"),
        (posted(user(parts=[])), "messages[0].user.parts"),
        (posted(user(parts=[{"type": "file", "mediaType": "image/png", "url": "data:"}])), "messages[0].parts[0].url"),
        (
            posted(user(parts=[{"type": "file", "url": "data:text/plain;base64,aGk="}])),
            "messages[0].user.parts[0].file.mediaType",
        ),
        (posted(user(parts=[{"type": "data-x", "data": 1}])), "messages[0].user.parts[0]"),
        (posted(user(parts=[{"type": ["file"]}])), "messages[0].user.parts[0]"),
        (posted(user("  ")), "messages[0].parts"),
        ({"id": "never-was", "message": user("a\0b")}, "message.parts"),
        (posted(user("x" * 100_001)), "messages[0].parts"),
        (posted(answered()), "messages[0].parts"),
        (posted(answered({"type": "text"})), "messages[0].parts"),
        (posted(answered(decided(isAutomatic=True))), "messages[0].parts"),
        (posted(answered(decided(id="1.1.0"))), "messages[0].parts[0].approval.id"),
        (posted(answered(decided(id=f"1.1.1:{'0' * 64}"))), "messages[0].parts[0].approval.id"),
        (posted(answered(decided(approved=None))), "messages[0].parts[0].approval.approved"),
        (posted(answered(decided(reason="x" * 501))), "messages[0].assistant.parts[0].approval.reason"),
        (posted(answered(decided(), id="m1")), "messages[0].id"),
        (posted(answered(decided()), trigger="regenerate-message"), "messages[0].role"),
    ],
)
async def test_api_2_an_invalid_request_names_the_field_and_starts_nothing(
    http: AsyncClient, body: dict[str, Any], field: str
) -> None:
    answer = await http.post("/api/chat", json=body)
    assert (answer.status_code, problem_of(answer)) == (422, "invalid"), answer.text
    assert [error["field"] for error in answer.json()["errors"]] == [field]
    session = body.get("id", "never-was")
    assert (await http.get(f"/workflow/{session.replace(' ', '-')}")).status_code == 404


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"messages": [0] * 1_000_000}, "messages"),
        ({"message": user(parts=[0] * 1_000_000)}, "message.user.parts"),
        ({"message": answered(*[0] * 1_000_000)}, "message.assistant.parts"),  # type: ignore[list-item]
    ],
)
def test_api_4_an_oversized_message_is_rejected_with_one_error(body: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as refused:
        PostChat.model_validate({"id": "s1", **body})
    # One error, not one for each item: those take minutes to be told.
    assert refused.value.error_count() == 1
    assert ".".join(map(str, refused.value.errors(include_input=False)[0]["loc"])) == field


async def test_api_2_no_decision_reaches_a_call_that_was_not_shown(http: AsyncClient, env: Environment) -> None:
    env.tools.specs = [ToolSpec(name="send_mail")]
    env.vendor.script = [asks(("send_mail", {"to": "bob"})), says("done")]
    session = await env.start()
    await session.prompt(id="m1", text="write to bob")
    await session.awaited_approvals()
    for part, status, name in (
        (decided(), 409, "other-arguments"),
        ({**decided(id=f"1.1.7:{'0' * 64}"), "toolCallId": "1.1.7"}, 404, "unknown-call"),
    ):
        body = posted(answered(part), id=session.handle.id)
        answer = await http.post("/api/chat", json=body)
        assert (answer.status_code, problem_of(answer)) == (status, name)
    unknown = await http.post("/api/chat", json=posted(answered(decided())))
    assert (unknown.status_code, problem_of(unknown)) == (404, "unknown-session")
    assert env.tools.calls == []


async def waiting_mail(env: Environment) -> tuple[DrivenSession, dict[str, Any]]:
    """A session whose turn m1 waits for a decision, and the answer in which it was approved on a page."""
    env.tools.specs = [ToolSpec(name="send_mail")]
    env.vendor.script = [asks(("send_mail", {"to": "bob"})), says("Sent."), says("Second.")]
    session = await env.start()
    await session.prompt(id="m1", text="write to bob")
    (pending,) = await session.awaited_approvals()
    return session, answered(decided(id=f"{pending.call_id}:{pending.args_digest}"))


async def test_agt_8_a_decision_behind_a_newer_message_counts(http: AsyncClient, env: Environment) -> None:
    session, approved = await waiting_mail(env)
    body = posted(user(), approved, user("and then?", id="m2"), id=session.handle.id)
    answer = await http.post("/api/chat", json=body)
    assert answer.status_code == 200
    turns = await session.idle(turns=2)
    assert [turn.agent_message for turn in turns] == ["Sent.", "Second."]
    assert [call.args for call in env.tools.calls] == [{"to": "bob"}]
    assert turns[0].steps[0].tool_calls[0].approval.decision == "approve"
    # It stays in the page's messages, and is in nobody's way.
    again = posted(user(), approved, user("more", id="m3"), id=session.handle.id)
    assert (await http.post("/api/chat", json=again)).status_code == 200


async def first_chunk(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the first chunk of a stream, which is then left."""
    async with (
        asyncio.timeout(BOUND),
        AsyncClient(base_url=url) as client,
        client.stream("POST", "/api/chat", json=body) as stream,
    ):
        assert stream.status_code == 200
        async for line in stream.aiter_lines():
            if line.startswith("data: "):
                break
    return dict(json.loads(line.removeprefix("data: ")))


async def test_agt_8_a_decision_behind_a_newer_message_may_conflict(url: str, env: Environment) -> None:
    env.tools.gate.close()
    session, approved = await waiting_mail(env)
    (pending,) = await session.awaited_approvals()
    await session.decide(pending, "approve")
    await env.tools.gate.until_arrived(1)
    rejected = json.loads(json.dumps(approved))
    rejected["parts"][0]["approval"]["approved"] = False
    for number in (2, 3):  # the decision stays in the page's messages
        body = posted(user(), rejected, user("and then?", id=f"m{number}"), id=session.handle.id)
        chunk = await first_chunk(url, body)
        assert (chunk["type"], chunk["data"]["text"]) == ("data-notice", DECISION_UNUSED_NOTICE)
    assert (await session.state()).queue_length == 2
    env.tools.gate.open()
    turns = await session.idle(turns=3)
    assert [turn.id for turn in turns] == ["m1", "m2", "m3"]


@pytest.mark.parametrize(
    "old", [None, 7, {"role": "assistant", "parts": [{"state": "approval-responded"}]}, answered(decided(id="policy"))]
)
def test_api_1_invalid_old_messages_are_ignored(old: Any) -> None:
    body = PostChat.model_validate(posted(old, user()))
    assert list(body.decided_before.known_decisions() if body.decided_before else ()) == []


async def test_agt_8_the_stream_of_a_queued_message_names_the_decision(url: str, env: Environment) -> None:
    session, _ = await waiting_mail(env)
    chunk = await first_chunk(url, posted(user(id="m2"), id=session.handle.id))
    assert (chunk["type"], chunk["data"]["text"]) == ("data-notice", DECISION_AWAITED_NOTICE)


async def test_ses_6_a_queue_read_as_full_gets_429_before_the_stream_begins(
    http: AsyncClient, env: Environment, timeouts: Timeouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "queue_read", BOUND)
    env.vendor.gate.close()
    body = posted(user())
    await http.post("/workflow", json={"id": body["id"], "limits": {"max_queued_prompts": 1}})
    await http.post(f"/workflow/{body['id']}/prompt", json={"message": "running"})
    await env.vendor.gate.until_arrived(1)
    await http.post(f"/workflow/{body['id']}/prompt", json={"message": "waiting"})
    assert (await http.get(f"/workflow/{body['id']}/queue")).json()["length"] == 1
    full = await http.post("/api/chat", json=body)
    assert (full.status_code, problem_of(full)) == (429, "queue-full")


async def test_api_2_only_the_newest_message_is_answered_again(http: AsyncClient, env: Environment) -> None:
    env.vendor.script = [ModelError("auth", "no key")]
    body = posted(user())
    await http.post("/api/chat", json=body)
    await http.post("/api/chat", json={**body, "messages": [user(id="m2")]})
    for message in (user(), user(id="m2"), user(id="m3")):
        again = {**body, "messages": [message], "trigger": "regenerate-message"}
        answer = await http.post("/api/chat", json=again)
        assert (answer.status_code, problem_of(answer)) == (409, "not-failed")
    nowhere = await http.post("/api/chat", json=posted(user(), trigger="regenerate-message"))
    assert (nowhere.status_code, problem_of(nowhere)) == (404, "unknown-session")


async def test_api_1_regenerating_twice_starts_one_turn(url: str, env: Environment) -> None:
    env.vendor.script = [ModelError("auth", "no key")]
    body = posted(user())
    async with AsyncClient(base_url=url, timeout=BOUND) as client:
        await client.post("/api/chat", json=body)
        env.vendor.gate.close()
        again = {**body, "trigger": "regenerate-message"}
        async with client.stream("POST", "/api/chat", json=again) as one:
            await env.vendor.gate.until_arrived(2)
            async with client.stream("POST", "/api/chat", json=again) as two:
                env.vendor.gate.open()
                streams = [await one.aread(), await two.aread()]
    assert [chunks_in(stream.decode())[3]["delta"] for stream in streams] == ["echo: hello"] * 2
    assert len(env.vendor.requests) == 2


async def test_api_2_only_an_id_can_be_resumed(http: AsyncClient) -> None:
    answer = await http.get("/api/chat/no%20such%20id/stream")
    assert (answer.status_code, problem_of(answer)) == (422, "invalid")
    unknown = await http.get("/api/chat/s1/stream?from=3")
    assert (unknown.status_code, problem_of(unknown)) == (422, "invalid")


# ---- what is away


async def test_api_2_without_temporal_nothing_is_accepted(http_nowhere: AsyncClient) -> None:
    for answer in (
        await http_nowhere.post("/api/chat", json=posted(user())),
        await http_nowhere.get("/api/chat/s1/stream"),
    ):
        assert (answer.status_code, problem_of(answer)) == (503, "temporal-unreachable")


async def test_api_2_without_a_worker_a_message_is_accepted_and_answered_later(
    temporal: Client, tmp_path: Path
) -> None:
    queue = f"q-{uuid4()}"
    settings = Settings(task_queue=queue, state_dir=tmp_path, task_timeout=TASK_SECONDS)
    async with (
        asyncio.timeout(2 * BOUND),
        served(temporal, settings, timeouts=product()) as url,
        AsyncClient(base_url=url, timeout=BOUND) as client,
    ):
        began = time.monotonic()
        async with client.stream("POST", "/api/chat", json=posted(user())) as stream:
            assert stream.status_code == 200
            lines = (line async for line in stream.aiter_lines() if line.startswith("data: "))
            first = json.loads((await anext(lines)).removeprefix("data: "))
            assert first == {"type": "data-notice", "data": {"text": SILENT_WORKER_NOTICE}, "transient": True}
            assert time.monotonic() - began < 12  # 2 s where the machine does nothing else
            async with environment(temporal, task_queue=queue):
                chunks = chunks_in("\n\n".join([line async for line in lines]))
    assert [chunk["type"] for chunk in chunks].count("data-notice") == 0
    assert chunks[3]["delta"] == "echo: hello"


async def test_api_2_an_unknown_version_is_rejected_before_anything_is_sent(
    http: AsyncClient, env: Environment
) -> None:
    body = posted(user())
    answer = await http.post("/api/chat", json=body, headers={"x-ai-sdk-version": "5"})
    assert (answer.status_code, problem_of(answer)) == (422, "invalid")
    assert (await http.get(f"/workflow/{body['id']}")).status_code == 404


async def test_api_2_a_session_that_becomes_unreadable_is_an_error_in_the_stream() -> None:
    stream = TurnStream(None, "s", TurnChunks("s", "m1"))  # type: ignore[arg-type]
    away = ProblemEvent(problem("no-worker", session_id="s").problem)
    (notice,) = await stream._on_event(away)
    assert notice == {"type": "data-notice", "data": {"text": away.problem.detail}, "transient": True}
    assert await stream._on_event(away) == []  # once, until there is news of the turn


async def test_api_2_a_stopping_gateway_says_that_the_turn_continues(temporal: Client, env: Environment) -> None:
    env.vendor.gate.close()
    settings = Settings(task_queue=env.task_queue, state_dir=env.settings.state_dir, task_timeout=TASK_SECONDS)
    body = posted(user())
    async with AsyncClient(timeout=BOUND) as client:
        async with served(temporal, settings, timeouts=patient(stop=60)) as url:  # the machine may be busy
            streaming = asyncio.create_task(client.post(f"{url}/api/chat", json=body))
            await env.vendor.gate.until_arrived(1)
            session = env.adopt(temporal.get_workflow_handle(body["id"]))
            await session.until(lambda state: state.is_processing)
        answer = await streaming
    assert [chunk["type"] for chunk in chunks_in(answer.text)][-1] == "error"
    assert "resume the stream" in chunks_in(answer.text)[-1]["errorText"]
    env.vendor.gate.open()
    (turn,) = await session.idle(turns=1)
    assert turn.agent_message == "echo: hello"


async def test_api_2_a_stream_that_begins_as_the_gateway_stops_says_so_too(
    http: AsyncClient, env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = UpdateFeed.events

    def stop_and_begin(feed: UpdateFeed, *args: Any) -> AsyncGenerator[Event, None]:
        feed._closing.begin()
        return begin(feed, *args)

    monkeypatch.setattr(UpdateFeed, "events", stop_and_begin)
    env.vendor.gate.close()
    chunks = chunks_in((await http.post("/api/chat", json=posted(user()))).text)
    assert "resume the stream" in chunks[-1]["errorText"]
    env.vendor.gate.open()


async def test_api_1_sending_the_message_of_an_archived_turn_again_streams_all_of_it(
    http: AsyncClient, env: Environment
) -> None:
    body = posted(user())
    await http.post("/workflow", json={"id": body["id"], "limits": {"max_state_bytes": 40_000}})
    await http.post("/api/chat", json=body)
    session = env.adopt(env.client.get_workflow_handle(body["id"]))
    await _until_archived(http, env, session)
    assert chunks_in((await http.post("/api/chat", json=body)).text)[3]["delta"] == "echo: hello"


async def _until_archived(http: AsyncClient, env: Environment, session: DrivenSession) -> None:
    env.vendor.answer = lambda _: says("x" * 6_000)
    async with asyncio.timeout(2 * BOUND):
        while not (await session.state()).archived_count:
            await http.post(f"/workflow/{session.handle.id}/prompt?wait=10", json={"message": "more " + "m" * 4_000})
