"""NUL and half characters in all texts of a session whose archive is PostgreSQL, which stores none of them: SES-15."""

from pathlib import Path

from httpx import AsyncClient
from temporalio.client import Client

from tests.api.conftest import served
from tests.harness import UNASKED
from tests.vendors.chat_wire import ChatWire
from tests.vendors.environment import vendor_environment
from tests.workflows.turn.test_foreign_tools import program, toolbox_of
from turnkeeper.testing.vendor_server import Answer, Call

NUL_CALLS = [("text", {"kind": "NUL"}), ("echo", {"text": "e\0e"}), ("text", {"kind": "surrogate"})]
"""Calls of the odd server that answer with NUL, or with half a character."""


async def test_ses_15_nul_in_any_text_is_archived_and_exported(
    temporal: Client, postgresql_url: str, tmp_path: Path
) -> None:
    """NUL in a prompt or a tool's output: PostgreSQL refuses the row, and the turn is lost.

    Reported as HugAgentOS#93, agynio#1257, MaxKB#6722, ClawAI#174.
    """
    calls = [Call(f"c{n}", name, args) for n, (name, args) in enumerate(NUL_CALLS)]
    async with ChatWire() as wire, toolbox_of(tmp_path, odd=program(tmp_path)) as toolbox:
        options = {"archive_url": postgresql_url, "toolbox": toolbox}
        async with vendor_environment(temporal, wire, **options) as env, served(temporal, env.settings) as url:
            wire.script(Answer(think="t\0t", text="w\0w", calls=calls), Answer(text="a\0a"), Answer(text="next"))
            session = await env.start(UNASKED.model_copy(update={"model": wire.model}))
            async with AsyncClient(base_url=url) as http:
                path = f"/workflow/{session.handle.id}"
                prompted = await http.post(f"{path}/prompt", json={"message": "p\0p"})
                titled = await http.patch(path, json={"title": "t\0t"})
                for turn in range(1, 3):
                    await session.prompt("read")
                    live = await session.idle(turns=turn)
                await session.update("end_session")
                await session.handle.result()
                exported = await http.get(f"{path}/export")
            archived_turns = await env.stores.archive.page(
                session.handle.id, before=None, limit=None, max_bytes=1_000_000
            )
    assert [turn.status for turn in live] == ["completed", "completed"]
    results = [call.result.outcome for call in live[0].steps[0].tool_calls]
    assert results == ["a\ufffdb", "e\ufffde", "a\ufffdb"]
    assert [answer.status_code for answer in (prompted, titled)] == [422, 422]
    assert [one.turn.agent_message for one in archived_turns] == ["a\ufffda", "next"]
    document = exported.json()
    assert [one["turn"]["agent_message"] for one in document["turns"]] == ["a\ufffda", "next"]
    step = document["turns"][0]["turn"]["reasoning_trajectory"]["steps"][0]
    assert step["tool_calls"][1]["args"] == {"text": "e\0e"}, "arguments are exact"
