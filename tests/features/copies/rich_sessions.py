"""A session with everything that a copy must have: archived turns, tools, large texts, a summary, an attachment."""

import json
from hashlib import sha256
from typing import Any
from uuid import uuid4

from httpx import AsyncClient, Response

from tests.api.long_chats import LIMITS, at_rest
from tests.harness import DrivenSession, Environment, asks, says
from tests.waiting import until
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.transcript.conversation import ToolResult
from turnkeeper.models.transcript.model_call import ModelRequest, ModelResponse, ToolInvocation
from turnkeeper.stores.blobs import attachments_owner

PICTURE = b"\x89PNG\r\n\x1a\n" + b"\0" * 9_000
LARGE_RESULT = "line of a file\n" * 200

START = SessionInput.model_validate(
    {
        "title": "A long story",
        "user": "Ada",
        "system_prompt": "Tell a story.",
        "limits": LIMITS,
        "history": {"max_messages": 12, "preserve_last_n": 4, "evict_block": 4, "summarize_on_trim": True},
        "tool_policy": {"*": "allow"},
    }
)


def summarised(request: ModelRequest) -> ModelResponse:
    return says("Ada wanted a story, and a file was read.")


async def large_result(invocation: ToolInvocation) -> ToolResult:
    return ToolResult(outcome="read it", content=LARGE_RESULT)


async def rich_session(env: Environment, *, turns: int = 12) -> DrivenSession:
    """Start a session of `turns` turns, `p1` to `p<turns>`; the first turns are in the archive."""
    env.vendor.summarise = summarised
    env.tools.run = large_result
    name = f"rich-{uuid4()}"
    (picture,) = await _stored(env, WorkflowId(name))
    session = await env.start(START, id=name)
    for number in range(1, turns + 1):
        has_tools = number in (1, turns - 1)
        if has_tools:
            env.vendor.script += [asks(("look", {"path": "a.txt"}), text="I look."), says(f"answer {number}")]
        await session.prompt(
            id=f"p{number}",
            text=f"prompt {number} " + "x" * 1_500,
            attachments=[picture] if has_tools else [],
        )
        await session.idle(turns=number)
    await session.until(lambda state: state.archived_count >= turns // 2)
    await at_rest(session)
    return session


async def _stored(env: Environment, session_id: WorkflowId) -> list[dict[str, Any]]:
    await env.stores.blobs.put_data(attachments_owner(session_id), [PICTURE])
    name = sha256(PICTURE).hexdigest()
    return [{"type": "image", "name": "dot.png", "media_type": "image/png", "hash": name, "bytes": len(PICTURE)}]


async def exported(http: AsyncClient, session_id: str) -> dict[str, Any]:
    answer = await http.get(f"/workflow/{session_id}/export")
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = json.loads(answer.content)
    return document


async def imported(http: AsyncClient, document: Any, session_id: str | None = None) -> str:
    """Import a document, wait until its session is there, and return its id."""
    answer = await http.post("/workflow/import", params={"id": session_id} if session_id else {}, json=document)
    return str((await copied(http, answer))["workflow_id"])


async def forked(http: AsyncClient, session_id: str, **body: Any) -> dict[str, Any]:
    """Fork a session, wait until the fork is there, and return the receipt."""
    return await copied(http, await http.post(f"/workflow/{session_id}/fork", json=body))


async def copied(http: AsyncClient, answer: Response, *, status: str = "done") -> dict[str, Any]:
    """Return the receipt of a copy once it is done, or has failed."""
    assert answer.status_code == 202, answer.text
    assert answer.headers["location"] == f"/workflow/{answer.json()['workflow_id']}/copy"

    async def receipt() -> dict[str, Any] | None:
        read: dict[str, Any] = (await http.get(answer.headers["location"])).json()
        return read if read["status"] != "running" else None

    final: dict[str, Any] = await until(receipt)
    assert final["status"] == status, final
    return final


async def transcript(http: AsyncClient, session_id: str) -> list[dict[str, Any]]:
    """Return all turns, oldest first."""
    turns: list[dict[str, Any]] = []
    while True:
        params = {"before": turns[0]["id"]} if turns else {}
        answer = await http.get(f"/workflow/{session_id}/conversation/full", params=params)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        turns = [*page["messages"], *turns]
        if not page["has_more"]:
            return turns


async def model_view(http: AsyncClient, session_id: str) -> dict[str, Any]:
    """Return what the model sees, without what every copy has of its own: its segment, its tools and counted tokens."""
    answer = await http.get(f"/workflow/{session_id}/context")
    assert answer.status_code == 200, answer.text
    own = ("segment", "fixed", "estimated_tokens", "reported_tokens")
    return {name: value for name, value in answer.json().items() if name not in own}
