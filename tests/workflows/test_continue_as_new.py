"""A session continues as new, between turns and in the middle of one, and loses nothing: SES-12, SES-14."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from uuid import uuid4

import pytest
from temporalio.client import Client, WithStartWorkflowOperation
from temporalio.common import WorkflowIDConflictPolicy

from tests.harness import Environment, asks, environment, says
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.session.session import Session

SMALL = SessionInput.model_validate({"limits": {"max_history_events": 50}})


async def test_ses_14_a_burst_over_many_runs_is_answered_in_order_once_each(env: Environment) -> None:
    session = await env.start(SMALL)
    for number in range(14):
        await session.prompt(id=f"p{number}", text=f"prompt {number}")
        await session.prompt(id=f"p{number}", text="the same again")
    turns = await session.idle(turns=14)
    await session.prompt(id="p0", text="again, much later")
    await session.prompt(id="last", text="last")
    turns = await session.idle(turns=15)
    assert [turn.id for turn in turns] == [*(f"p{number}" for number in range(14)), "last"]
    revisions = [turn.revision for turn in turns]
    assert revisions == sorted(set(revisions))
    assert len(await session.histories()) >= 3


async def test_ses_14_the_models_context_is_the_same_before_and_after(env: Environment) -> None:
    env.vendor.script = [
        asks(("look", {"n": number})) if number % 2 else says(f"said {number}") for number in range(40)
    ]
    session = await env.start(SMALL)
    for number in range(12):
        await session.prompt(f"prompt {number}")
    await session.idle(turns=12)
    assert len(await session.histories()) >= 3
    for earlier, later in zip(env.vendor.requests, env.vendor.requests[1:], strict=False):
        assert later.messages[: len(earlier.messages)] == earlier.messages
        assert later.head == earlier.head


async def test_ses_12_a_client_that_polls_across_runs_has_the_whole_transcript(env: Environment) -> None:
    session = await env.start(SMALL)
    transcript: dict[str, object] = {}
    last_seen, revision = None, None
    for number in range(10):
        await session.prompt(f"prompt {number}")
        update = await session.updates({"last_seen_message_id": last_seen, "since_revision": revision})
        assert not update.reset
        transcript |= {turn.id: turn for turn in [*update.updated_messages, *update.new_messages]}
        last_seen, revision = update.last_seen_message_id, update.revision
    turns = await session.idle(turns=10)
    update = await session.updates({"last_seen_message_id": last_seen, "since_revision": revision})
    transcript |= {turn.id: turn for turn in [*update.updated_messages, *update.new_messages]}
    assert list(transcript.values()) == turns


async def test_ses_14_a_session_stays_ending_or_configured_in_the_next_run(env: Environment) -> None:
    session = await env.start(SMALL)
    await session.update("configure", {"title": "Kept", "tool_policy": {"pay": "deny"}})
    for number in range(10):
        await session.prompt(f"prompt {number}")
    env.vendor.gate.close()
    await session.update("end_session", {"reason": "enough"})
    env.vendor.gate.open()
    ended = await session.handle.result()
    assert ended == {"status": "ended", "turn_count": 10, "reason": "enough"}
    state = await session.state()
    assert (state.session.title, state.status) == ("Kept", "ended")
    assert len(await session.histories()) >= 2


MANY_STEPS = SessionInput.model_validate(
    {"limits": {"max_history_events": 50, "max_steps": 200}, "tool_policy": {"pay": "allow"}}
)


async def test_ses_14_a_long_turn_continues_over_many_runs_and_every_call_runs_once(env: Environment) -> None:
    env.vendor.script = [asks(("look", {"n": number}), ("pay", {"n": number})) for number in range(15)]
    session = await env.start(MANY_STEPS)
    await session.prompt(id="p1", text="look and pay, again and again")
    (turn,) = await session.idle(turns=1)
    assert turn.status == "completed"
    assert [step.number for step in turn.steps] == list(range(1, 17))
    ran = [invocation.call_id for invocation in env.tools.calls]
    assert sorted(ran) == sorted({call.id for step in turn.steps for call in step.tool_calls})
    assert len(await session.histories()) >= 3
    for earlier, later in zip(env.vendor.requests, env.vendor.requests[1:], strict=False):
        assert later.messages[: len(earlier.messages)] == earlier.messages


async def test_ses_14_one_step_with_many_calls_continues_over_many_runs(env: Environment) -> None:
    env.vendor.script = [asks(*[("pay", {"n": number}) for number in range(60)])]
    session = await env.start(MANY_STEPS)
    await session.prompt(id="p1", text="pay everybody")
    (turn,) = await session.idle(turns=1)
    (step, _) = turn.steps
    assert [call.result.content for call in step.tool_calls] == [str({"n": number}) for number in range(60)]
    assert len(env.tools.calls) == 60
    assert len(await session.histories()) >= 2
    assert len(env.vendor.requests) == 2


async def test_ses_14_a_turn_keeps_its_initial_configuration_in_its_next_runs(env: Environment) -> None:
    env.vendor.script = [asks(("look", {"n": number})) for number in range(15)]
    env.tools.gate.close()
    session = await env.start(MANY_STEPS)
    await session.prompt(id="p1", text="look")
    await env.tools.gate.until_arrived(1)
    await session.update("configure", {"limits": {"max_steps": 1}, "tool_policy": {"look": "deny"}})
    env.tools.gate.open()
    (turn,) = await session.idle(turns=1)
    assert (turn.status, len(turn.steps)) == ("completed", 16)
    assert len(await session.histories()) >= 2


async def test_ses_14_steering_and_queue_wait_through_the_runs_of_a_turn(env: Environment) -> None:
    env.vendor.script = [asks(*[("look", {"n": number}) for number in range(40)]), says("as you wish")]
    env.tools.gate.close()
    session = await env.start(MANY_STEPS)
    await session.prompt(id="p1", text="look")
    await env.tools.gate.until_arrived(8)
    await session.prompt(id="s1", text="only the red ones", mode="steer")
    await session.prompt(id="p2", text="next")
    env.tools.gate.open()
    first, second = await session.idle(turns=2)
    assert [step.kind for step in first.steps] == ["model", "user", "model"]
    assert (first.agent_message, second.agent_message) == ("as you wish", "echo: next")
    assert await session.fate("s1") == "steered"
    assert len(await session.histories()) >= 2


async def test_ses_9_a_turn_that_continued_in_another_run_can_be_stopped_and_interrupted(env: Environment) -> None:
    env.vendor.script = [asks(("look", {"n": number})) for number in range(200)]
    session = await env.start(MANY_STEPS)
    await session.prompt(id="p1", text="look")
    await session.until(lambda state: bool(state.messages) and len(state.messages[0].steps) >= 10)
    await session.update("cancel_turn", {"message_id": "p1"})
    env.vendor.script = [asks(("look", {"n": number})) for number in range(200)]
    await session.prompt(id="p2", text="look")
    await session.until(lambda state: len(state.messages) == 2 and len(state.messages[1].steps) >= 10)
    env.vendor.script = []
    await session.prompt(id="p3", text="now", mode="interrupt")
    turns = await session.idle(turns=3)
    assert turns[0].status == "cancelled"
    assert turns[2].agent_message == "echo: now"
    assert len(await session.histories()) >= 3


def handed_over(message_id: str) -> SessionInput:
    """Return the input of a run that continues in the middle of a turn."""
    before = Session("s1", SessionInput(), now=datetime.now(UTC))
    before.receive({"text": "long", "id": message_id}, extra_arguments=0, new_id="", now=datetime.now(UTC))
    before.begin_turn(now=datetime.now(UTC))
    before.tools.offer([], turn=1)
    before.turn_slot.change(before.turn_slot.running().with_more(steps=1))
    return before.carry()


@pytest.fixture
async def lenient(temporal: Client, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Environment]:
    """An environment where a start from outside may bring the state of a run before: a signal can come with it."""
    monkeypatch.setattr("turnkeeper.workflows.agentic_ai_workflow.check_outside_start", lambda start: None)
    # Of its own: its histories would not replay once the patch is undone.
    async with environment(temporal) as env:
        yield env


async def test_ses_14_an_interrupt_that_arrives_before_a_run_starts_stops_the_carried_turn(
    lenient: Environment,
) -> None:
    handle = await lenient.client.start_workflow(
        "AgenticAIWorkflow",
        handed_over("p1"),
        id=f"s-{uuid4()}",
        task_queue=lenient.task_queue,
        start_signal="prompt",
        start_signal_args=[{"text": "now", "mode": "interrupt"}],
    )
    first, second = await lenient.adopt(handle).idle(turns=2)
    assert (first.id, first.status, second.agent_message) == ("p1", "cancelled", "echo: now")


async def test_ses_14_a_stop_that_arrives_before_a_run_starts_stops_the_carried_turn(
    lenient: Environment,
) -> None:
    starting = WithStartWorkflowOperation(
        "AgenticAIWorkflow",
        handed_over("p1"),
        id=f"s-{uuid4()}",
        task_queue=lenient.task_queue,
        id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
    )
    receipt = await lenient.client.execute_update_with_start_workflow(
        "cancel_turn", {"message_id": "p1"}, start_workflow_operation=starting
    )
    (turn,) = await lenient.adopt(await starting.workflow_handle()).idle(turns=1)
    assert (receipt, turn.status) == ({"cancelling": True}, "cancelled")
