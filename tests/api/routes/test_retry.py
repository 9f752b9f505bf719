"""Sending a failed turn's prompt again: API-1."""

import asyncio

import pytest
from httpx import AsyncClient
from temporalio.client import Client

from tests.api.routes.test_conversation_routes import finished, fresh
from tests.features.access.audit.callers import BOB, client_of, gateway_of_callers
from tests.harness import Environment, says
from turnkeeper.activities.providers.protocol import ModelError


async def failed_session(http: AsyncClient, env: Environment, *, limits: dict[str, int] | None = None) -> str:
    env.vendor.script = [ModelError("auth", "no key"), *env.vendor.script]
    session = fresh()
    await http.post("/workflow", json={"id": session, "limits": limits})
    await http.post(f"/workflow/{session}/prompt?wait=10", json={"message": "hello", "id": "p1"})
    return session


async def retried(http: AsyncClient, session: str, **body: object) -> tuple[int, dict]:
    answer = await http.post(f"/workflow/{session}/retry", json=body or None)
    return answer.status_code, answer.json()


async def test_api_1_a_failed_turn_is_retried_once_however_often_it_is_requested(
    http: AsyncClient, env: Environment
) -> None:
    session = await failed_session(http, env)
    env.vendor.gate.close()
    status, first = await retried(http, session)
    assert (status, first["workflow_id"]) == (202, session)
    assert await retried(http, session, message_id="p1") == (202, first)
    env.vendor.gate.open()
    turns = await finished(http, session, 2)
    assert [(turn["user_message"], turn["agent_message"]) for turn in turns] == [
        ("hello", None),
        ("hello", "echo: hello"),
    ]
    assert turns[1]["id"] == first["message_id"]
    assert (await retried(http, session))[1]["message_id"] == first["message_id"]
    assert len(await finished(http, session, 2)) == 2


async def test_ctx_17_after_a_retry_over_http_the_model_sees_the_prompt_once(
    http: AsyncClient, env: Environment
) -> None:
    session = await failed_session(http, env)
    await retried(http, session)
    first, second = await finished(http, session, 2)
    assert [message.content for message in env.vendor.requests[-1].messages] == ["hello"]
    assert (second["retries"], "retries" in first) == ("p1", False)


async def test_ctx_17_a_stop_over_http_names_the_owner_of_the_key(temporal: Client, env: Environment) -> None:
    async with gateway_of_callers(temporal, env.settings, partials=env.partials) as app, client_of(app, BOB) as bob:
        env.vendor.gate.close()
        session = await env.start()
        await session.prompt(id="p1", text="hello")
        await env.vendor.gate.until_arrived(1)
        path = f"/workflow/{session.handle.id}/cancel"
        forged = await bob.post(path, json={"message_id": "p1", "stopped_by": "Ada"})
        assert forged.status_code == 422
        assert (await bob.post(path, json={"message_id": "p1", "reason": "Not now."})).status_code == 202
        (turn,) = await session.idle(turns=1)
        env.vendor.gate.open()
        assert (turn.stop.by, turn.stop.reason) == ("Bob", "Not now.")
        await session.prompt("go on")
        await session.idle(turns=2)
    assert [message.content for message in env.vendor.requests[-1].messages] == [
        "hello",
        '[Stopped by Bob: "Not now.". Nothing was done.]',
        "go on",
    ]


async def test_api_1_without_an_id_the_newest_failed_or_stopped_turn_is_retried(
    http: AsyncClient, env: Environment
) -> None:
    session = await failed_session(http, env)
    env.vendor.gate.close()
    await http.post(f"/workflow/{session}/prompt", json={"message": "stopped", "id": "p2"})
    await env.vendor.gate.until_arrived(2)
    await http.post(f"/workflow/{session}/cancel", json={"message_id": "p2"})
    await finished(http, session, 2)
    env.vendor.answer = lambda _: says("now it works")
    env.vendor.gate.open()
    assert (await retried(http, session))[0] == 202
    turns = await finished(http, session, 3)
    assert (turns[2]["user_message"], turns[2]["agent_message"]) == ("stopped", "now it works")


async def test_api_1_a_retry_that_fails_can_be_retried(http: AsyncClient, env: Environment) -> None:
    session = await failed_session(http, env)
    env.vendor.script = [ModelError("auth", "still no key")]
    _, second = await retried(http, session)
    await finished(http, session, 2)
    _, third = await retried(http, session)
    assert third["message_id"] != second["message_id"]
    assert (await finished(http, session, 3))[2]["agent_message"] == "echo: hello"


async def test_api_1_only_failed_turns_can_be_retried(http: AsyncClient, env: Environment) -> None:
    env.vendor.gate.close()
    session = fresh()
    await http.post("/workflow", json={"id": session})
    await http.post(f"/workflow/{session}/prompt", json={"message": "hello", "id": "p1"})
    await env.vendor.gate.until_arrived(1)

    async def refused(**body: object) -> tuple[int, str]:
        status, problem = await retried(http, session, **body)
        return status, problem["type"].rpartition(":")[2]

    assert await refused() == await refused(message_id="p1") == (409, "not-failed")
    env.vendor.gate.open()
    await finished(http, session)
    assert await refused() == await refused(message_id="p1") == (409, "not-failed")
    assert await refused(message_id="nope") == (404, "unknown-turn")
    assert await refused(message_id="no such id") == (422, "invalid")
    assert await refused(id="p1") == (422, "invalid")
    unknown = await http.post(f"/workflow/{fresh()}/retry")
    assert (unknown.status_code, unknown.json()["title"]) == (404, "Session not found")


async def test_api_1_an_ended_session_cannot_retry_a_turn(http: AsyncClient, env: Environment) -> None:
    session = await failed_session(http, env)
    await http.post(f"/workflow/{session}/end")
    await env.adopt(env.client.get_workflow_handle(session)).handle.result()
    status, problem = await retried(http, session)
    assert (status, problem["title"]) == (409, "Session ended")


@pytest.mark.timeout(120)
async def test_api_1_an_archived_turn_is_retried_by_its_id(http: AsyncClient, env: Environment) -> None:
    session = await failed_session(http, env, limits={"max_state_bytes": 40_000})
    driven = env.adopt(env.client.get_workflow_handle(session))
    env.vendor.answer = lambda _: says("x" * 6_000)
    async with asyncio.timeout(100):
        while not (await driven.state()).archived_count:
            await http.post(f"/workflow/{session}/prompt?wait=10", json={"message": "more " + "m" * 4_000})
    assert (await retried(http, session))[0] == 409
    assert (await retried(http, session, message_id="p1"))[0] == 202
    state = await driven.until(lambda s: s.messages[-1].user_message == "hello" and s.messages[-1].is_complete)
    assert state.messages[-1].agent_message.startswith("xxx")
