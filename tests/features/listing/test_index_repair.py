"""Lists of sessions: cursors, names and titles (API-1, API-2, API-4, SES-17)."""

import base64
import json
from typing import Any
from uuid import uuid4

import pytest
from httpx import AsyncClient
from temporalio.client import Client

from tests.harness import Environment
from tests.waiting import until
from turnkeeper.features.listing.lists import _checksum
from turnkeeper.models.session.messages import SessionInput


def junk_cursors() -> list[str]:
    old_token = base64.urlsafe_b64encode(json.dumps({"CloseTime": "2025-01-01T00:00:00Z", "RunID": "x"}).encode())
    texts = ["nope", "abcd", "AAAA", "Zm9v", "null", "True", "!!!", "A" * 600, "0" * 600, old_token.decode(), "", "%00"]
    return [*texts, "é", " ", "A" * 3_999]


def sealed(token: bytes) -> str:
    """A cursor with this token and the right checksum."""
    return base64.urlsafe_b64encode(_checksum(token) + token).decode()


@pytest.mark.parametrize("cursor", junk_cursors(), ids=lambda cursor: cursor[:12] or "empty")
async def test_api_2_an_invented_cursor_is_rejected(http_nowhere: AsyncClient, cursor: str) -> None:
    answer = await http_nowhere.get("/workflow", params={"cursor": cursor})
    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["errors"]] == ["cursor"]


@pytest.mark.parametrize("path", ["/workflow", "/tasks"])
@pytest.mark.parametrize(
    "token",
    [
        b"[1]",
        b"7",
        b"nope",
        b"\xff",
        b'["x", "y"]',
        b'["7", "y"]',
        b'[7.5, "y"]',
        b"[7, 8]",
        b'[7, "a", 9]',
        b'[7, "a\\u0000"]',
        b'[7, "\\ud800"]',
        b'[100000000000000000000000000, "a"]',
        b"[" * 2_000,
    ],
    ids=lambda token: repr(token[:12]),
)
async def test_api_2_a_cursor_with_a_valid_checksum_and_invalid_content_is_rejected(
    http_nowhere: AsyncClient, path: str, token: bytes
) -> None:
    answer = await http_nowhere.get(path, params={"cursor": sealed(token)})
    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["errors"]] == ["cursor"]


async def test_api_1_a_list_continues_from_its_own_cursor(http: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnkeeper.features.listing.lists.PAGE", 2)
    user = f"u-{uuid4().hex[:12]}"
    started = [(await http.post("/workflow", json={"user": user})).json()["workflow_id"] for _ in range(5)]

    async def all_five() -> list[str] | None:
        ids = await all_of(http, user=user)
        return ids if len(ids) == 5 else None

    assert await until(all_five) == started[::-1]


async def all_of(http: AsyncClient, **params: Any) -> list[str]:
    """Return the ids of all pages of a list."""
    ids: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = (await http.get("/workflow", params={**params, **cursor})).json()
        ids += [session["workflow_id"] for session in page["sessions"]]
        if page["next_cursor"] is None:
            return ids
        cursor = {"cursor": page["next_cursor"]}


async def until_listed(http: AsyncClient, **params: str) -> list[dict[str, Any]]:
    """Return the sessions that are found as soon as there is one: Temporal's list follows in a moment."""

    async def sessions() -> list[dict[str, Any]]:
        return (await http.get("/workflow", params=params)).json()["sessions"]

    return await until(sessions)


async def test_ses_17_a_new_title_is_listed_at_once(http: AsyncClient, temporal: Client) -> None:
    session, old, new = f"ttl-{uuid4()}", f"Old {uuid4().hex[:8]}", f"New {uuid4().hex[:8]}"
    await http.post("/workflow", json={"id": session, "title": old})
    assert (await http.patch(f"/workflow/{session}", json={"title": new, "model": "offline:x"})).status_code == 202
    # The workflow has written it when the call is answered; Temporal's list follows in a moment.
    memo = await (await temporal.get_workflow_handle(session).describe()).memo()
    assert memo["title"] == new
    rows = await until_listed(http, q=new)
    assert [(row["workflow_id"], row["title"], row["model"]) for row in rows] == [(session, new, "offline:x")]
    assert (await http.get("/workflow", params={"q": old})).json()["sessions"] == []


HOSTILE = [
    "x' OR AgentUser ~ 'y",
    "' OR WorkflowType ~ '",
    "'' OR ''",
    "'",
    "''",
    "a' OR 'b",
    "\u2019 OR \u2019",
]


async def test_api_4_filtering_by_a_user_with_an_apostrophe_returns_only_that_user(
    http: AsyncClient, env: Environment
) -> None:
    mark = uuid4().hex[:8]
    names = [f"Miles O'Brien {mark}", f"Miles O\u2019Brien {mark}", f"Miles O {mark}", f"Brien {mark}", f"O'' {mark}"]
    ids = {}
    for name in names:
        started = await http.post("/workflow", json={"user": name, "prompt": "hi"})
        assert started.status_code == 201
        ids[name] = started.json()["workflow_id"]
    for name in names:
        rows = await until_listed(http, user=name)
        assert [(row["workflow_id"], row["user"]) for row in rows] == [(ids[name], name)]
        description = (await http.get(f"/workflow/{ids[name]}")).json()
        assert description["user"] == name
    for name in HOSTILE:
        answer = await http.get("/workflow", params={"user": name})
        assert answer.status_code == (422 if "=" in name else 200)
        assert answer.json()["sessions"] == []


async def test_api_4_a_session_started_by_hand_has_its_user_encoded_too(http: AsyncClient, env: Environment) -> None:
    name = f"Miles O'Brien {uuid4().hex[:8]}"
    session = await env.start(SessionInput(user=name))
    await session.prompt("hi")
    await session.idle(turns=1)
    rows = await until_listed(http, user=name)
    assert [(row["workflow_id"], row["user"]) for row in rows] == [(session.handle.id, name)]
