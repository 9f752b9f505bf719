"""Steering, stopping and ending a session: SES-5, SES-7, SES-8, SES-9."""

from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError, CancelledError

from tests.harness import UNASKED, DrivenSession, Environment, asks, says
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.transcript.model_call import ToolSpec


async def refusal(session: DrivenSession, update: str, argument: Any = None) -> ApplicationError:
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await session.update(update, argument)
    assert isinstance(refused.value.cause, ApplicationError)
    return refused.value.cause


async def test_ses_5_every_decodable_signal_has_a_fate_and_never_blocks_the_session(env: Environment) -> None:
    session = await env.start()
    for arguments in ([], [None], [17], ["a", "b"], [[1]], [{"text": " "}], [{"text": "x", "mode": "later"}], [{}]):
        await session.prompt(*arguments)
    await session.prompt("a plain string")
    (turn,) = await session.idle(turns=1)
    assert turn.user_message == "a plain string"
    fates = (await session.queue()).fates
    assert [fate.fate for fate in fates] == ["rejected"] * 8 + ["started"]
    assert all(fate.reason for fate in fates[:8])


async def test_ses_7_an_interrupt_cancels_the_turn_and_runs_next_before_the_queue(env: Environment) -> None:
    env.vendor.gate.close()
    session = await env.start()
    await session.prompt(id="slow", text="slow")
    await env.vendor.gate.until_arrived(1)
    await session.prompt(id="queued", text="queued")
    await session.prompt(id="now", text="now", mode="interrupt")
    await env.vendor.gate.until_arrived(2)
    env.vendor.gate.open()
    turns = await session.idle(turns=3)
    assert [(turn.id, turn.status) for turn in turns] == [
        ("slow", "cancelled"),
        ("now", "completed"),
        ("queued", "completed"),
    ]
    assert turns[0].error == "Cancelled: Interrupted by a new prompt."


async def test_ses_7_a_steer_is_added_to_the_running_turn_before_its_next_model_call(env: Environment) -> None:
    env.vendor.script = [asks(("look", {})), says("as you wish")]
    env.tools.gate.close()
    session = await env.start()
    await session.prompt(id="p1", text="look")
    await env.tools.gate.until_arrived(1)
    await session.prompt(id="st", text="only the red ones", mode="steer")
    await session.until(lambda s: s.queue_length == 1)
    env.tools.gate.open()
    (turn,) = await session.idle(turns=1)
    assert [step.kind for step in turn.steps] == ["model", "user", "model"]
    assert turn.steps[1].message_id == "st"
    assert env.vendor.requests[-1].messages[-1].content == "only the red ones"
    assert await session.fate("st") == "steered"


async def test_ses_7_a_steer_that_arrives_too_late_becomes_the_next_turn(env: Environment) -> None:
    env.vendor.gate.close()
    session = await env.start()
    await session.prompt(id="p1", text="one")
    await env.vendor.gate.until_arrived(1)
    await session.prompt(id="p2", text="two")
    await session.prompt(id="st", text="steer", mode="steer")
    await session.until(lambda s: s.queue_length == 2)
    env.vendor.gate.open()
    turns = await session.idle(turns=3)
    assert [turn.id for turn in turns] == ["p1", "st", "p2"]


async def test_ses_8_a_waiting_prompt_can_be_withdrawn_and_a_started_one_cannot(env: Environment) -> None:
    env.vendor.gate.close()
    session = await env.start()
    await session.prompt(id="p1", text="one")
    await env.vendor.gate.until_arrived(1)
    await session.prompt(id="p2", text="two")
    await session.update("withdraw_prompt", {"id": "p2"})
    assert await session.fate("p2") == "withdrawn"
    assert (await refusal(session, "withdraw_prompt", {"id": "p1"})).type == "not_waiting"
    assert (await refusal(session, "withdraw_prompt", {"id": "p9"})).type == "unknown_prompt"
    env.vendor.gate.open()
    assert [turn.id for turn in await session.idle(turns=1)] == ["p1"]


NONSENSE: list[tuple[str, Any, str]] = [
    ("withdraw_prompt", None, "id"),
    ("withdraw_prompt", "p1", "value"),
    ("cancel_turn", {}, "message_id"),
    ("cancel_turn", {"message_id": "p1", "force": True}, "force"),
    ("configure", {"limits": {"max_steps": 0}}, "limits.max_steps"),
    ("configure", {"limits": {"max_stepz": 9}}, "limits.max_stepz"),
    ("configure", {"history": {"max_messages": -1}}, "history.max_messages"),
    ("configure", {"model": "nobody:knows"}, "model"),
    ("configure", {"tool_policy": {"x": "perhaps"}}, "tool_policy.x"),
    ("configure", {"colour": "red"}, "colour"),
    ("end_session", {"reason": 5}, "reason"),
]
"""Updates, and the field that their refusal names."""


async def test_ses_8_invalid_updates_are_rejected_by_field_and_leave_no_event_in_history(env: Environment) -> None:
    session = await env.start()
    await session.prompt("hello")
    await session.idle(turns=1)
    before = await changes(session)
    for update, argument, field in NONSENSE:
        refused = await refusal(session, update, argument)
        assert (refused.type, refused.details[0]) == ("invalid", field)
    assert await changes(session) == before


async def changes(session: DrivenSession) -> list[HistoryEvent]:
    """Return a history's events without workflow task events, since tasks may time out on a busy machine."""
    events = (await session.handle.fetch_history()).events
    return [event for event in events if "WORKFLOW_TASK" not in EventType.Name(event.event_type)]


async def test_ses_8_a_late_stop_has_no_effect_on_the_next_turn(env: Environment) -> None:
    session = await env.start()
    await session.prompt(id="p1", text="one")
    await session.idle(turns=1)
    env.vendor.gate.close()
    await session.prompt(id="p2", text="two")
    await env.vendor.gate.until_arrived(2)
    assert await session.update("cancel_turn", {"message_id": "p1"}) == {"cancelling": False}
    env.vendor.gate.open()
    turns = await session.idle(turns=2)
    assert [turn.status for turn in turns] == ["completed", "completed"]


async def test_ses_8_a_new_configuration_takes_effect_at_the_next_turn(env: Environment) -> None:
    env.vendor.script = [asks(("look", {})), asks(("look", {})), says("done"), asks(("look", {}))]
    env.tools.gate.close()
    session = await env.start()
    await session.prompt("one")
    await env.tools.gate.until_arrived(1)
    await session.update("configure", {"limits": {"max_steps": 1}, "title": "A better title"})
    env.tools.gate.open()
    await session.prompt("two")
    first, second = await session.idle(turns=2)
    assert first.status == "completed"
    assert second.error_type == "max_steps"
    assert (await session.state()).session.title == "A better title"


async def test_ses_9_a_cancelled_turn_keeps_its_steps_and_the_next_context_is_valid(env: Environment) -> None:
    env.vendor.script = [asks(("look", {})), asks(("look", {}), ("pay", {}), text="Paying.")]
    session = await env.start(UNASKED)
    await session.prompt(id="p1", text="pay")
    await env.tools.gate.until_arrived(1)
    env.tools.gate.close()
    await env.tools.gate.until_arrived(3)
    assert await session.update("cancel_turn", {"message_id": "p1", "reason": "wrong account"}) == {"cancelling": True}
    (turn,) = await session.idle(turns=1)
    assert (turn.status, turn.error_type, turn.error) == ("cancelled", "cancelled", "Cancelled: wrong account")
    assert turn.is_complete
    look, pay = turn.steps[1].tool_calls
    assert turn.steps[0].tool_calls[0].result.status == "ok"
    assert (look.result.status, pay.result.status) == ("cancelled", "outcome_unknown")
    await session.prompt("and now?")
    await session.idle(turns=2)
    messages = env.vendor.requests[-1].messages
    steps = ["assistant", "tool", "assistant", "tool", "tool"]
    assert [message.role for message in messages] == ["user", *steps, "assistant", "user"]
    assert messages[-2].content == '[Stopped by the user: "wrong account". Tools were called before: look, pay.]'


@pytest.mark.parametrize("is_retried", [False, True])
async def test_ctx_17_the_model_reads_that_a_stopped_write_may_have_taken_effect(
    env: Environment, is_retried: bool
) -> None:
    env.tools.specs = [*env.tools.specs, ToolSpec(name="file_write", effect="idempotent", built_in=True)]
    env.vendor.script = [asks(("look", {}), ("file_write", {"path": "a.txt", "content": "x"}))]
    env.tools.gate.close()
    session = await env.start(SessionInput(tool_policy={"file_write": "allow"}))
    await session.prompt(id="p1", text="write")
    await env.tools.gate.until_arrived(2)
    await session.update("cancel_turn", {"message_id": "p1"})
    (turn,) = await session.idle(turns=1)
    results = [call.result for call in turn.steps[0].tool_calls]
    assert [result and result.status for result in results] == ["cancelled", "outcome_unknown"]
    if is_retried:
        await session.prompt(id="p2", text="write", retries="p1")
    else:
        await session.prompt("and now?")
    await session.idle(turns=2)
    before = "[An earlier try at the next request. " if is_retried else "["
    note = f"{before}Stopped by the user. Tools were called before: file_write.]"
    assert note in "\n".join(message.content for message in env.vendor.requests[-1].messages)


async def test_ses_9_stopping_and_interrupting_in_a_burst_ends_every_turn(env: Environment) -> None:
    session = await env.start()
    for number in range(20):
        await session.prompt(id=f"p{number}", text="hi", mode="interrupt" if number % 2 else "enqueue")
        await session.update("cancel_turn", {"message_id": f"p{number}"})
    turns = await session.idle(turns=20)
    assert {turn.id for turn in turns} == {f"p{number}" for number in range(20)}
    assert all(turn.is_complete for turn in turns)


async def test_ses_9_a_workflow_cancel_ends_the_session_cleanly(env: Environment) -> None:
    env.vendor.gate.close()
    session = await env.start()
    await session.prompt(id="p1", text="one")
    await env.vendor.gate.until_arrived(1)
    await session.prompt(id="p2", text="two")
    await session.handle.cancel()
    with pytest.raises(WorkflowFailureError) as failure:
        await session.handle.result()
    assert isinstance(failure.value.cause, CancelledError)
    state = await session.state()
    assert state.status == "cancelled"
    assert [turn.status for turn in state.messages] == ["cancelled"]
    assert await session.fate("p2") == "discarded"


async def test_ses_9_an_idle_session_can_be_cancelled(env: Environment) -> None:
    session = await env.start()
    await session.prompt("one")
    await session.idle(turns=1)
    await session.handle.cancel()
    with pytest.raises(WorkflowFailureError):
        await session.handle.result()
    assert (await session.state()).status == "cancelled"


async def test_ses_8_ending_processes_the_queue_first(env: Environment) -> None:
    env.vendor.gate.close()
    session = await env.start()
    await session.prompt(id="p1", text="one")
    await session.prompt(id="p2", text="two")
    await env.vendor.gate.until_arrived(1)
    await session.update("end_session", {"reason": "all done"})
    await session.prompt(id="late", text="late")
    assert (await session.state()).status == "ending"
    env.vendor.gate.open()
    assert await session.handle.result() == {"status": "ended", "turn_count": 2, "reason": "all done"}
    assert [turn.status for turn in (await session.state()).messages] == ["completed", "completed"]
    assert (await session.state()).status == "ended"
    late = (await session.queue({"message_id": "late"})).fates[0]
    assert (late.fate, late.refusal) == ("discarded", "ending")
    assert late.reason == "The session is ending and takes no more prompts (all done)."


async def test_ses_8_ending_can_discard_the_queue(env: Environment) -> None:
    env.vendor.gate.close()
    session = await env.start()
    await session.prompt(id="p1", text="one")
    await env.vendor.gate.until_arrived(1)
    await session.prompt(id="p2", text="two")
    await session.update("end_session", {"discard_queue": True})
    env.vendor.gate.open()
    await session.handle.result()
    assert await session.fate("p2") == "discarded"
    assert [turn.id for turn in (await session.state()).messages] == ["p1"]


async def test_ses_8_the_signal_end_chat_is_accepted_with_any_arguments(env: Environment) -> None:
    for arguments in ([], ["enough"], [{"reason": "enough"}], [{"nonsense": 1}], [1, 2]):
        session = await env.start()
        await session.handle.signal("end_chat", args=arguments)
        ended = await session.handle.result()
        assert ended["status"] == "ended"


async def test_ses_4_an_invalid_session_input_fails_the_workflow_naming_the_field(env: Environment) -> None:
    session = await env.start({"limits": {"max_steps": 0}})
    with pytest.raises(WorkflowFailureError) as failure:
        await session.handle.result()
    assert isinstance(failure.value.cause, ApplicationError)
    assert "limits.max_steps" in failure.value.cause.message
    assert (await session.handle.describe()).status == WorkflowExecutionStatus.FAILED
