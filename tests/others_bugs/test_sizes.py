"""Data too large for Temporal is cut and marked, and never blocks a session: SES-15, SES-16, CTX-16, AGT-2."""

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

from tests.api.conftest import gateway
from tests.harness import UNASKED, DrivenSession, asks, environment, says
from turnkeeper.models.transcript.conversation import ToolResult
from turnkeeper.models.transcript.model_call import ModelResponse, ToolInvocation

HUGE = "x" * 3_000_000

ANSWERS: list[tuple[ModelResponse, str | None]] = [
    (asks(("look", {"text": HUGE})), "too_large"),
    (says(HUGE), "too_large"),
    (asks(*[("look", {"text": HUGE[:300_000]})] * 20), "too_large"),
    (asks(*[("look", {"text": HUGE[:300_000]})] * 3), None),
]
"""A model's answer, and the error of the turn."""


async def check_histories(session: DrivenSession, *, max_bytes: int) -> None:
    """Check that no workflow task has failed, and that all runs together have at most `max_bytes` of history."""
    events = [event for history in await session.histories() for event in history.events]
    assert EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED not in {event.event_type for event in events}
    assert sum(len(event.SerializeToString()) for event in events) < max_bytes


async def test_ses_16_oversized_arguments_and_answers_do_not_end_a_session(temporal: Client) -> None:
    """Arguments of an activity beyond Temporal's limit fail the workflow task forever.

    Reported as pydantic-ai#7164, temporalio/sdk-java#2860.
    """
    async with environment(temporal) as env:
        session = await env.start(UNASKED)
        for number, (answer, error_type) in enumerate(ANSWERS):
            env.vendor.script = [answer]
            await session.prompt("write")
            await session.prompt("hello")
            wrote, after = (await session.idle(turns=2 * number + 2))[-2:]
            assert wrote.error_type == error_type
            assert error_type is None or "1,000,000 are allowed" in (wrote.error or "")
            assert after.agent_message == "echo: hello"
        assert [call.args for call in env.tools.calls] == [{"text": HUGE[:300_000]}] * 3
        await check_histories(session, max_bytes=100_000)


async def test_ctx_16_three_attachments_of_seven_megabytes_are_bounded(temporal: Client) -> None:
    """Large attachments are arguments of an activity, which never starts.

    Reported as pydantic-ai#7164.
    """
    async with environment(temporal) as env:
        session = await env.start()
        path = f"/workflow/{session.handle.id}"
        async with gateway(temporal, env.task_queue, env.settings.state_dir) as http:
            uploaded = []
            for letter in "abc":
                answer = await http.post(
                    f"{path}/attachments", content=letter * 7_000_000, headers={"Content-Type": "text/plain"}
                )
                assert answer.status_code == 201
                uploaded.append(answer.json())
            together = await http.post(f"{path}/prompt", json={"message": "look", "attachments": uploaded})
            assert (together.status_code, together.json()["errors"][0]["field"]) == (422, "attachments")
            for attachment in uploaded:
                one = await http.post(f"{path}/prompt", json={"message": "look", "attachments": [attachment]})
                assert one.status_code == 202
        turns = await session.idle(turns=3)
        assert [turn.status for turn in turns] == ["completed"] * 3
        await check_histories(session, max_bytes=100_000)


PAST_TURNS, CALLS = 15, 25


async def test_agt_2_a_long_turn_after_a_long_past_leaves_a_small_history(temporal: Client) -> None:
    """The history has the whole conversation once for each model call, and Temporal ends the workflow at 50 MB.

    Reported as temporalio/sdk-python#1890.
    """

    async def large_result(invocation: ToolInvocation) -> ToolResult:
        return ToolResult(outcome="Read.", content="y" * 5_000)

    async with environment(temporal) as env:
        env.tools.run = large_result
        session = await env.start(UNASKED)
        for number in range(PAST_TURNS):
            await session.prompt(f"{number}: {'x' * 12_000}")
        await session.idle(turns=PAST_TURNS)
        env.vendor.script = [asks(("look", {"n": number})) for number in range(CALLS)]
        await session.prompt("look around")
        turn = (await session.idle(turns=PAST_TURNS + 1))[-1]
        assert (turn.status, len(turn.steps)) == ("completed", CALLS + 1)
        sent_bytes = sum(len(message.content) for request in env.vendor.requests for message in request.messages)
        contents_bytes = PAST_TURNS * 2 * 12_000 + CALLS * 5_000
        assert sent_bytes > 10 * contents_bytes
        await check_histories(session, max_bytes=2 * contents_bytes)
