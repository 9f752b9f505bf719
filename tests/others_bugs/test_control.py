"""Approvals, stops and changes leave no session that takes nothing more: AGT-8, SES-8, SES-9, SES-14."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from httpx import AsyncClient
from temporalio.client import Client

from tests.api.conftest import gateway
from tests.api.http.test_bad_input import problem_of
from tests.harness import DrivenSession, Environment, Gate, asks, environment
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.transcript.conversation import ToolResult
from turnkeeper.models.transcript.model_call import ToolInvocation, ToolSpec

MAIL = ToolSpec(name="send_mail")


@asynccontextmanager
async def served_environment(temporal: Client) -> AsyncIterator[tuple[Environment, AsyncClient]]:
    async with environment(temporal) as env:
        env.tools.specs = [*env.tools.specs, MAIL]
        async with gateway(temporal, env.task_queue, env.settings.state_dir) as http:
            yield env, http


async def decide(http: AsyncClient, session: DrivenSession, pending: dict[str, Any], decision: str) -> tuple[int, str]:
    """Decide over HTTP; return the status, and the problem if there is one."""
    body = {"args_digest": pending["args_digest"], "decision": decision}
    answer = await http.post(f"/workflow/{session.handle.id}/approvals/{pending['call_id']}", json=body)
    return answer.status_code, "" if answer.is_success else problem_of(answer)


async def pending_mail(env: Environment, http: AsyncClient, session: DrivenSession) -> dict[str, Any]:
    """Bring the session to a pending approval; return it."""
    env.vendor.script = [asks(("send_mail", {}))]
    await session.prompt("send a mail")
    await session.until(lambda state: state.status == "awaiting_approval", turns=1)
    (pending,) = (await http.get(f"/workflow/{session.handle.id}/approvals")).json()["approvals"]
    return dict(pending)


async def test_agt_8_a_stop_while_an_approval_is_open_frees_the_session(temporal: Client) -> None:
    """A run is cancelled while an approval is open, and the conversation rejects every message forever.

    Reported as letta#3176, lettabot#127, lettabot#478, lettabot#479.
    """
    too_late = (409, "not-awaiting-approval")
    async with served_environment(temporal) as (env, http):
        session = await env.start()
        path = f"/workflow/{session.handle.id}"

        cancelled = await pending_mail(env, http, session)
        assert (await http.post(f"{path}/cancel", json={})).status_code == 202
        await session.idle(turns=1)
        assert await decide(http, session, cancelled, "approve") == too_late

        interrupted = await pending_mail(env, http, session)
        assert (await http.post(f"{path}/prompt", json={"message": "no", "mode": "interrupt"})).status_code == 202
        await session.idle(turns=3)
        assert await decide(http, session, interrupted, "approve") == too_late

        approved = await pending_mail(env, http, session)
        assert (await http.post(f"{path}/prompt", json={"message": "queued"})).status_code == 202
        assert await decide(http, session, approved, "approve") == (200, "")
        turns = await session.idle(turns=5)
        assert [turn.status for turn in turns] == ["cancelled"] * 2 + ["completed"] * 3
        assert turns[-1].agent_message == "echo: queued"

        ended = await pending_mail(env, http, session)
        assert (await http.post(f"{path}/end")).is_success
        assert (await http.post(f"{path}/cancel", json={})).status_code == 202
        assert (await session.handle.result())["status"] == "ended"
        assert await decide(http, session, ended, "approve") == (409, "session-ended")
        assert (await http.get(f"{path}/approvals")).json()["approvals"] == []
        assert [call.call_id for call in env.tools.calls] == [approved["call_id"]]


async def test_ses_9_a_stop_keeps_the_result_of_a_finished_call(temporal: Client) -> None:
    """A stop while tools run tells the model that a call which had finished was not completed.

    Reported as EvoScientist#489.
    """
    finished = Gate(is_open=False)

    async def run(invocation: ToolInvocation) -> ToolResult:
        if invocation.args == {"n": 0}:
            return ToolResult(outcome="Paid.", content="receipt 4711")
        await finished.pass_through()
        return ToolResult(outcome="never read")

    async with environment(temporal) as env:
        env.tools.specs = [*env.tools.specs, MAIL]
        env.tools.run = run
        env.vendor.script = [asks(("pay", {"n": 0}), ("pay", {"n": 1}), ("send_mail", {}))]
        session = await env.start(SessionInput(tool_policy={"pay": "allow"}))
        await session.prompt(id="p1", text="pay twice and send a mail")
        await session.awaited_approvals()
        await finished.until_arrived(1)
        await session.until(lambda state: state.messages[-1].steps[0].tool_calls[0].result is not None)
        await session.update("cancel_turn", {"message_id": "p1"})
        await session.prompt("and?")
        await session.idle(turns=2)
        results = [message for message in env.vendor.requests[-1].messages if message.role == "tool"]
        assert [result.status for result in results] == ["ok", "outcome_unknown", "cancelled"]
        assert results[0].content == "Paid.\n\nreceipt 4711"
        finished.open()


async def test_ses_14_updates_survive_the_runs_they_arrive_in(temporal: Client) -> None:
    """Updates vanish, or fail, where the workflow continues as new.

    Reported as temporalio/features#467, temporalio/sdk-python#1708.
    """
    async with served_environment(temporal) as (env, http):
        session = await env.start(SessionInput.model_validate({"limits": {"max_history_events": 50}}))
        path = f"/workflow/{session.handle.id}"
        is_over = asyncio.Event()

        async def title() -> str:
            return str((await http.get(path)).json()["title"])

        async def rename() -> None:
            for number in count():
                changed = await http.patch(path, json={"title": f"title {number}"})
                assert changed.is_success, changed.text
                assert await title() == f"title {number}"
                if is_over.is_set():
                    return

        renaming = asyncio.create_task(rename())
        try:
            for turn in range(1, 9):
                pending = await pending_mail(env, http, session)
                assert await decide(http, session, pending, "approve") == (200, "")
                turns = await session.idle(turns=turn)
        finally:
            is_over.set()
        await renaming
        last_title, runs = await title(), len(await session.histories())
        for _ in range(6):
            await session.prompt("and on")
        turns = await session.idle(turns=14)
        assert len(await session.histories()) > runs >= 3
        assert await title() == last_title
        assert [turn.steps[0].tool_calls[0].approval.decision for turn in turns[:8]] == ["approve"] * 8
        assert len(env.tools.calls) == 8
