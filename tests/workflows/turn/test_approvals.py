"""People decide on tool calls: AGT-8, and the clock that stops meanwhile: AGT-1."""

from datetime import timedelta

import pytest
from temporalio.client import WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from tests.harness import DrivenSession, Environment, asks, says, tools_of
from turnkeeper.models.session import tools as session_tools
from turnkeeper.models.session.approvals import PendingApproval
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.transcript.model_call import ToolSpec
from turnkeeper.stores.temporal import search_attributes

MAIL = ToolSpec(name="send_mail", description="Sends a mail.")
SMALL = SessionInput.model_validate({"limits": {"max_history_events": 50}})
WINDOW = SessionInput.model_validate(
    {"history": {"max_messages": 6, "preserve_first_n": 1, "preserve_last_n": 2, "evict_block": 3}}
)
"""Segments begin every few turns."""

FRESH_TURNS = 4


@pytest.fixture
def fresh_for_few_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep tools fresh for fewer turns than in the product."""
    monkeypatch.setattr(session_tools, "FRESH_TURNS", FRESH_TURNS)


async def waiting_for(env: Environment, *calls: tuple[str, dict], start: SessionInput | None = None) -> DrivenSession:
    """A session whose turn p1 has asked for `calls`."""
    env.tools.specs = [*env.tools.specs, MAIL, ToolSpec(name="post", description="Posts a letter.")]
    env.vendor.script = [asks(*calls), says("done")]
    session = await env.start(start)
    await session.prompt(id="p1", text="write to them")
    return session


async def refusal(session: DrivenSession, pending: PendingApproval, decision: str, **more: str) -> tuple[str, str]:
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await session.decide(pending.model_copy(update=more), decision)
    assert isinstance(refused.value.cause, ApplicationError)
    return refused.value.cause.type or "", refused.value.cause.message


async def test_agt_8_a_call_waits_until_it_is_approved_and_runs_once(env: Environment) -> None:
    session = await waiting_for(env, ("send_mail", {"to": "bob"}))
    (pending,) = await session.awaited_approvals()
    assert (pending.call_id, pending.message_id, pending.tool) == ("1.1.0", "p1", "send_mail")
    assert (pending.args, pending.description, pending.effect) == ({"to": "bob"}, "Sends a mail.", "at_most_once")
    state = await session.state()
    (turn,) = state.messages
    assert (turn.status, turn.is_complete, state.is_processing) == ("awaiting_approval", False, True)
    (call,) = turn.steps[0].tool_calls
    assert (call.result, call.approval.decision, call.approval.args_digest) == (None, None, pending.args_digest)
    assert env.tools.calls == []
    receipt = await session.decide(pending, "approve")
    assert receipt == {"call_id": "1.1.0", "decision": "approve"}
    (turn,) = await session.idle(turns=1)
    (call,) = turn.steps[0].tool_calls
    assert (turn.agent_message, call.result.status, call.approval.decision) == ("done", "ok", "approve")
    assert [invocation.call_id for invocation in env.tools.calls] == ["1.1.0"]
    assert await session.approvals() == []


async def test_agt_8_a_rejection_gives_the_model_the_reason_and_the_tool_never_runs(env: Environment) -> None:
    session = await waiting_for(env, ("send_mail", {"to": "bob"}))
    (pending,) = await session.awaited_approvals()
    await session.decide(pending, "reject", reason="Bob is on holiday.")
    (turn,) = await session.idle(turns=1)
    (call,) = turn.steps[0].tool_calls
    assert (call.result.status, call.approval.reason) == ("denied", "Bob is on holiday.")
    assert env.tools.calls == []
    message = env.vendor.requests[-1].messages[-1]
    assert message.content == "send_mail was rejected by the user\n\nReason: Bob is on holiday."


async def test_agt_8_several_calls_wait_while_others_run_and_each_is_decided_separately(
    env: Environment,
) -> None:
    session = await waiting_for(env, ("send_mail", {"n": 0}), ("look", {}), ("post", {"n": 2}), ("send_mail", {"n": 3}))
    first, second, third = await session.awaited_approvals(3)
    await env.tools.gate.until_arrived(1)
    await session.decide(third, "approve")
    await env.tools.gate.until_arrived(2)
    await session.decide(first, "reject")
    assert [pending.call_id for pending in await session.approvals()] == [second.call_id]
    assert (await session.state()).status == "awaiting_approval"
    await session.decide(second, "approve")
    (turn,) = await session.idle(turns=1)
    assert [call.result.status for call in turn.steps[0].tool_calls] == ["denied", "ok", "ok", "ok"]
    assert sorted(invocation.call_id for invocation in env.tools.calls) == ["1.1.1", "1.1.2", "1.1.3"]


async def test_agt_8_a_session_wide_allowance_applies_to_all_calls_of_that_tool_only(env: Environment) -> None:
    session = await waiting_for(env, ("send_mail", {"n": 0}), ("send_mail", {"n": 1}), ("post", {}), start=SMALL)
    mail, _, post = await session.awaited_approvals(3)
    await session.decide(mail, "allow_for_session")
    await session.decide(post, "approve")
    await session.idle(turns=1)
    env.vendor.script = [asks(("send_mail", {})), says("sent")] * 4
    for _ in range(4):  # over runs, too
        await session.prompt("another mail")
    await session.idle(turns=5)
    assert len(await session.histories()) >= 2
    env.vendor.script = [asks(("post", {}))]
    await session.prompt("a letter")
    (pending,) = await session.awaited_approvals()
    assert pending.tool == "post"


async def test_agt_8_a_later_denial_overrides_an_allowance(env: Environment) -> None:
    session = await waiting_for(env, ("send_mail", {}))
    (pending,) = await session.awaited_approvals()
    await session.decide(pending, "allow_for_session")
    await session.idle(turns=1)
    await session.update("configure", {"tool_policy": {"send_*": "deny"}})
    env.vendor.script = [asks(("send_mail", {})), says("no")]
    await session.prompt("again")
    turns = await session.idle(turns=2)
    assert turns[-1].steps[0].tool_calls[0].result.status == "denied"


async def test_agt_8_a_new_policy_ends_session_wide_allowances(env: Environment) -> None:
    session = await waiting_for(env, ("send_mail", {}))
    (pending,) = await session.awaited_approvals()
    await session.decide(pending, "allow_for_session")
    await session.idle(turns=1)
    assert await session.allowances() == ["send_mail"]
    await session.update("configure", {"tool_policy": {"send_mail": "ask"}})
    assert await session.allowances() == []
    env.vendor.script = [asks(("send_mail", {}))]
    await session.prompt("again")
    await session.awaited_approvals()


async def test_agt_8_a_decision_is_bound_to_the_call_and_the_displayed_arguments(env: Environment) -> None:
    session = await waiting_for(env, ("send_mail", {"to": "bob"}), ("look", {}))
    (pending,) = await session.awaited_approvals()
    reason, message = await refusal(session, pending, "approve", args_digest="0" * 64)
    assert (reason, message) == (
        "other_arguments",
        "Refused: Call 1.1.0 has other arguments than the ones that were decided on.",
    )
    assert (await refusal(session, pending, "approve", call_id="1.1.7"))[0] == "unknown_call"
    assert (await refusal(session, pending, "approve", call_id="9.1.0"))[0] == "unknown_call"
    assert (await refusal(session, pending, "approve", call_id="1.1.1"))[0] == "not_awaiting"
    assert (await refusal(session, pending, "maybe"))[0] == "invalid"
    assert env.tools.calls[1:] == []
    before = (await session.histories())[-1]
    assert not [
        event for event in before.events if event.HasField("workflow_execution_update_accepted_event_attributes")
    ]
    await session.decide(pending, "reject")


async def test_agt_8_a_repeated_decision_is_accepted_and_a_different_one_is_too_late(env: Environment) -> None:
    session = await waiting_for(env, ("send_mail", {}))
    (pending,) = await session.awaited_approvals()
    env.tools.gate.close()
    await session.decide(pending, "approve")
    assert (await session.decide(pending, "approve"))["decision"] == "approve"
    assert await refusal(session, pending, "reject") == ("not_awaiting", "Refused: Call 1.1.0 was decided: approve.")
    env.tools.gate.open()
    await session.idle(turns=1)
    assert (await session.decide(pending, "approve"))["decision"] == "approve"
    assert len(env.tools.calls) == 1


async def test_agt_8_without_a_decision_in_time_a_call_is_rejected(env: Environment) -> None:
    start = SessionInput.model_validate({"limits": {"approval_timeout": 0.3}})
    session = await waiting_for(env, ("send_mail", {}), ("post", {}), start=start)
    (turn,) = await session.idle(turns=1)
    for call in turn.steps[0].tool_calls:
        assert (call.result.status, call.approval.decision) == ("denied", "expired")
        assert call.result.outcome == f"Nobody decided on {call.name} in time"
        assert "limits.approval_timeout (0.3 s)" in call.result.content
    assert (turn.status, env.tools.calls) == ("completed", [])
    (history,) = await session.histories()
    times = [one.timer_started_event_attributes.start_to_fire_timeout.ToTimedelta() for one in history.events]
    assert sum(timedelta() < time <= timedelta(seconds=0.3) for time in times) == 1


async def test_agt_8_waiting_continues_over_many_runs_with_the_same_deadline(env: Environment) -> None:
    session = await waiting_for(env, ("send_mail", {"to": "bob"}), ("look", {}), start=SMALL)
    (pending,) = await session.awaited_approvals()
    for number in range(16):
        await session.prompt(id=f"q{number}", text="and then?")
    await session.until(lambda state: state.queue_length == 16)
    assert len(await session.histories()) >= 2
    assert await session.awaited_approvals() == [pending]
    await session.decide(pending, "approve")
    turns = await session.idle(turns=17)
    assert [call.result.status for call in turns[0].steps[0].tool_calls] == ["ok", "ok"]
    assert sorted(invocation.call_id for invocation in env.tools.calls) == ["1.1.0", "1.1.1"]


async def test_agt_8_a_stopped_turn_no_longer_waits(env: Environment) -> None:
    session = await waiting_for(env, ("send_mail", {}))
    (pending,) = await session.awaited_approvals()
    await session.update("cancel_turn", {"message_id": "p1"})
    (turn,) = await session.idle(turns=1)
    (call,) = turn.steps[0].tool_calls
    assert (turn.status, call.result.status, call.approval.decision) == ("cancelled", "cancelled", None)
    assert await session.approvals() == []
    reason, message = await refusal(session, pending, "approve")
    assert (reason, message) == ("not_awaiting", "Refused: Call 1.1.0 ended before anyone decided.")


async def test_agt_8_an_ending_session_waits_for_the_decision_first(env: Environment) -> None:
    session = await waiting_for(env, ("send_mail", {}))
    (pending,) = await session.awaited_approvals()
    await session.handle.signal("end_chat")
    assert (await session.state()).status == "awaiting_approval"
    await session.decide(pending, "approve")
    assert (await session.handle.result())["turn_count"] == 1
    assert len(env.tools.calls) == 1


async def test_agt_8_an_unattended_session_requests_no_approval_unless_required(env: Environment) -> None:
    start = SessionInput(unattended=True, tool_policy={"post": "ask"})
    session = await waiting_for(env, ("send_mail", {}), ("post", {}), start=start)
    (pending,) = await session.awaited_approvals()
    assert pending.tool == "post"
    await session.decide(pending, "approve")
    (turn,) = await session.idle(turns=1)
    assert [call.result.status for call in turn.steps[0].tool_calls] == ["denied", "ok"]


WRITE = ToolSpec(name="file_write", effect="idempotent", built_in=True)


async def test_agt_8_a_new_session_requires_approval_for_built_in_writes_but_not_reads(
    env: Environment,
) -> None:
    env.tools.specs = [*env.tools.specs, WRITE]
    session = await waiting_for(env, ("look", {}), ("file_write", {"path": "a.txt"}))
    (pending,) = await session.awaited_approvals()
    assert pending.tool == "file_write"
    await session.decide(pending, "approve")
    (turn,) = await session.idle(turns=1)
    assert [call.result.status for call in turn.steps[0].tool_calls] == ["ok", "ok"]


async def test_agt_8_a_new_unattended_session_writes_nothing(env: Environment) -> None:
    env.tools.specs = [*env.tools.specs, WRITE]
    start = SessionInput(unattended=True)
    session = await waiting_for(env, ("look", {}), ("file_write", {"path": "a.txt"}), start=start)
    (turn,) = await session.idle(turns=1)
    assert [call.result.status for call in turn.steps[0].tool_calls] == ["ok", "denied"]
    assert [invocation.name for invocation in env.tools.calls] == ["look"]


async def test_agt_8_calls_that_can_never_run_need_no_approval(env: Environment) -> None:
    env.tools.specs = [MAIL]
    start = SessionInput(tool_policy={"*": "ask"})
    session = await waiting_for(env, ("nothing", {}), ("send_mail", "no JSON"), start=start)
    (turn,) = await session.idle(turns=1)
    assert [call.result.status for call in turn.steps[0].tool_calls] == ["error", "error"]
    assert [call.approval for call in turn.steps[0].tool_calls] == [None, None]


async def test_agt_8_an_interrupting_prompt_ends_the_waiting_and_a_steering_one_waits_too(env: Environment) -> None:
    session = await waiting_for(env, ("send_mail", {}))
    (pending,) = await session.awaited_approvals()
    await session.prompt(id="p2", text="in English", mode="steer")
    await session.decide(pending, "approve")
    (turn,) = await session.idle(turns=1)
    assert [step.kind for step in turn.steps] == ["model", "user", "model"]
    env.vendor.script = [asks(("send_mail", {})), says("never asked")]
    await session.prompt(id="p3", text="again")
    await session.awaited_approvals()
    await session.prompt(id="p4", text="stop that", mode="interrupt")
    turns = await session.idle(turns=3)
    assert [turn.status for turn in turns] == ["completed", "cancelled", "completed"]


async def test_agt_1_the_time_for_a_decision_does_not_count_towards_the_turn(env: Environment) -> None:
    # All but the wait takes a fraction of a second, and less than 4 s on a busy machine.
    start = SessionInput.model_validate({"limits": {"turn_timeout": 4, "approval_timeout": 5}})
    session = await waiting_for(env, ("send_mail", {}), ("look", {}), start=start)
    (turn,) = await session.idle(turns=1)
    assert (turn.status, turn.agent_message) == ("completed", "done")
    assert turn.processing_time_ms >= 5_000


async def test_ses_17_a_session_awaiting_approval_is_searchable_and_shows_the_call(env: Environment) -> None:
    session = await waiting_for(env, ("send_mail", {"to": "<bob>"}))
    (pending,) = await session.awaited_approvals()

    async def status() -> str | None:
        return (await session.handle.describe()).typed_search_attributes.get(search_attributes.SESSION_STATUS)

    assert await status() == "awaiting_approval"
    details = await session.handle.query("__temporal_workflow_metadata")
    assert "**Waits for approval**" in str(details)
    assert "Call 1.1.0, until" in str(details)
    await session.decide(pending, "approve")
    await session.idle(turns=1)
    assert await status() == "open"


@pytest.mark.usefixtures("fresh_for_few_turns")
async def test_agt_6_the_tools_are_fixed_for_a_segment_and_listed_again_for_the_next(env: Environment) -> None:
    session = await env.start(WINDOW)
    await session.prompt("one")
    await session.idle(turns=1)
    before = [tool.name for tool in env.tools.specs]
    env.tools.specs = [*env.tools.specs, MAIL]
    for number in range(2, 2 * FRESH_TURNS):
        await session.prompt(f"turn {number}")
    await session.idle(turns=2 * FRESH_TURNS - 1)
    offered = [tools_of(request) for request in env.vendor.requests]
    first_new = offered.index([*before, "send_mail"])
    assert first_new >= FRESH_TURNS
    assert offered[:first_new] == [before] * first_new
    assert offered[first_new:] == [[*before, "send_mail"]] * (len(offered) - first_new)
    earlier = env.vendor.requests[first_new - 1].messages
    assert env.vendor.requests[first_new].messages[: len(earlier)] != earlier  # the prefix changed there anyway


@pytest.mark.usefixtures("fresh_for_few_turns")
async def test_agt_8_an_allowance_is_for_that_tool_and_not_another_of_the_same_name(env: Environment) -> None:
    session = await waiting_for(env, ("send_mail", {}), start=WINDOW)
    (pending,) = await session.awaited_approvals()
    await session.decide(pending, "allow_for_session")
    await session.idle(turns=1)
    env.tools.specs = [MAIL.model_copy(update={"description": "Sends a mail to everybody."})]
    for number in range(2, 2 * FRESH_TURNS):
        await session.prompt(f"turn {number}")
    await session.idle(turns=2 * FRESH_TURNS - 1)
    env.vendor.script = [asks(("send_mail", {})), says("sent")]
    await session.prompt("again")
    (pending,) = await session.awaited_approvals()
    assert pending.description == "Sends a mail to everybody."


@pytest.mark.usefixtures("fresh_for_few_turns")
async def test_agt_6_unchanged_tools_are_not_written_to_history_again(env: Environment) -> None:
    session = await env.start(WINDOW)
    for number in range(1, 2 * FRESH_TURNS):
        await session.prompt(f"turn {number}")
    await session.idle(turns=2 * FRESH_TURNS - 1)
    (history,) = await session.histories()
    results = [
        event.activity_task_completed_event_attributes.result.payloads[0].data
        for event in history.events
        if event.HasField("activity_task_completed_event_attributes")
    ]
    lists = [result for result in results if b"look" in result or b"unchanged" in result]
    assert len(lists) == 2
    assert set(lists[1:]) == {b'{"unchanged":true}'}
