"""`POST /chat`, sent again (API-1, SES-6)."""

import asyncio
from uuid import uuid4

import pytest
from httpx import AsyncClient

from tests.api.routes.test_conversation_routes import finished


def key() -> str:
    return f"key-{uuid4()}"


@pytest.mark.parametrize("in_header", [True, False])
async def test_api_1_a_repeated_chat_request_starts_one_session_with_one_prompt(
    http: AsyncClient, in_header: bool
) -> None:
    its_key = key()
    headers = {"Idempotency-Key": its_key} if in_header else {}
    body = {"message": "pay 7", "user_name": "Miles O'Brien", **({} if in_header else {"id": its_key})}
    answers = [await http.post("/chat", json=body, headers=headers) for _ in range(2)]
    answers += await asyncio.gather(*(http.post("/chat", json=body, headers=headers) for _ in range(5)))
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["workflow_id"] for answer in answers}) == 1
    assert {answer.json()["message_id"] for answer in answers} == {its_key}
    session = answers[0].json()["workflow_id"]
    assert [turn["user_message"] for turn in await finished(http, session)] == ["pay 7"]
    assert (await http.get(f"/workflow/{session}")).json()["turn_count"] == 1


async def test_api_1_a_repeated_chat_request_to_a_session_is_one_prompt(http: AsyncClient) -> None:
    session, headers = f"c-{uuid4()}", {"Idempotency-Key": "same-key"}
    for _ in range(3):
        answer = await http.post("/chat", json={"message": "pay 7", "workflow_id": session}, headers=headers)
        assert (answer.status_code, answer.json()) == (202, {"workflow_id": session, "message_id": "same-key"})
    assert len(await finished(http, session)) == 1


async def test_api_1_two_users_with_the_same_key_do_not_share_a_session(http: AsyncClient) -> None:
    headers = {"Idempotency-Key": key()}
    sessions = [
        (await http.post("/chat", json={"message": "hi", "user_name": user}, headers=headers)).json()["workflow_id"]
        for user in ("alice", "bob")
    ]
    assert sessions[0] != sessions[1]


async def test_api_2_a_chat_id_that_differs_from_its_idempotency_key_is_a_422(http: AsyncClient) -> None:
    answer = await http.post("/chat", json={"message": "x", "id": "a"}, headers={"Idempotency-Key": "b"})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "id")
    answer = await http.post("/chat", json={"message": "x"}, headers={"Idempotency-Key": "a b"})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "idempotency-key")


async def test_api_1_a_repeated_chat_request_to_an_ended_session_starts_no_new_one(http: AsyncClient) -> None:
    headers = {"Idempotency-Key": key()}
    session = (await http.post("/chat", json={"message": "hi"}, headers=headers)).json()["workflow_id"]
    await finished(http, session)
    revision = (await http.get(f"/workflow/{session}/conversation")).json()["conversation_update"]["revision"]
    await http.post(f"/workflow/{session}/end")
    await http.get(f"/workflow/{session}/conversation", params={"wait": 30, "since_revision": revision})
    again = await http.post("/chat", json={"message": "hi"}, headers=headers)
    assert again.status_code in (202, 409)
    assert again.status_code == 202 or again.json()["type"].endswith("session-ended")
