"""A session that goes on in a new run between turns, nothing lost: SES-12, SES-14."""

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer

from models.session import SessionInput
from tests.harness import DrivenSession, Stage, asks, says
from workflows.agentic_ai_workflow import AgenticAIWorkflow

SMALL = SessionInput.model_validate({"limits": {"max_history_events": 50}})


async def runs(client: Client, session: DrivenSession) -> list[str]:
    """Return the ids of the session's runs, oldest first."""
    found = [(await session.handle.describe()).raw_description.workflow_execution_info.first_run_id]
    while True:
        handle = client.get_workflow_handle(session.handle.id, run_id=found[-1])
        last = (await handle.fetch_history()).events[-1]
        if last.event_type != EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW:
            return found
        found.append(last.workflow_execution_continued_as_new_event_attributes.new_execution_run_id)


async def test_ses_14_a_burst_over_many_runs_is_answered_in_order_each_once(on: Stage) -> None:
    session = await on.start(SMALL)
    for number in range(40):
        await session.prompt(id=f"p{number}", text=f"prompt {number}")
        await session.prompt(id=f"p{number}", text="the same again")
    turns = await session.idle(turns=40)
    await session.prompt(id="p0", text="again, much later")
    await session.prompt(id="last", text="last")
    turns = await session.idle(turns=41)
    assert [turn.id for turn in turns] == [*(f"p{number}" for number in range(40)), "last"]
    revisions = [turn.revision for turn in turns]
    assert revisions == sorted(set(revisions))
    found = await runs(on.client, session)
    assert len(found) >= 4
    replayer = Replayer(workflows=[AgenticAIWorkflow], data_converter=pydantic_data_converter)
    for run_id in found:
        handle = on.client.get_workflow_handle(session.handle.id, run_id=run_id)
        await replayer.replay_workflow(await handle.fetch_history())


async def test_ses_14_what_the_model_sees_is_the_same_before_and_after(on: Stage) -> None:
    on.vendor.script = [asks(("look", {"n": number})) if number % 2 else says(f"said {number}") for number in range(40)]
    session = await on.start(SMALL)
    for number in range(12):
        await session.prompt(f"prompt {number}")
        await session.idle(turns=number + 1)
    assert len(await runs(on.client, session)) >= 3
    for earlier, later in zip(on.vendor.requests, on.vendor.requests[1:], strict=False):
        assert later.messages[: len(earlier.messages)] == earlier.messages
        assert later.head == earlier.head


async def test_ses_12_a_client_that_polls_through_it_all_holds_the_whole_transcript(on: Stage) -> None:
    session = await on.start(SMALL)
    held: dict[str, object] = {}
    last_seen, revision = None, None
    for number in range(25):
        await session.prompt(f"prompt {number}")
        update = await session.updates({"last_seen_message_id": last_seen, "since_revision": revision})
        assert not update.reset
        held |= {turn.id: turn for turn in [*update.updated_messages, *update.new_messages]}
        last_seen, revision = update.last_seen_message_id, update.revision
    turns = await session.idle(turns=25)
    update = await session.updates({"last_seen_message_id": last_seen, "since_revision": revision})
    held |= {turn.id: turn for turn in [*update.updated_messages, *update.new_messages]}
    assert list(held.values()) == turns


async def test_ses_14_a_session_that_is_ending_or_configured_stays_so(on: Stage) -> None:
    session = await on.start(SMALL)
    await session.update("configure", {"title": "Kept", "tool_policy": {"pay": "deny"}})
    for number in range(10):
        await session.prompt(f"prompt {number}")
    on.vendor.gate.close()
    await session.update("end_session", {"reason": "enough"})
    on.vendor.gate.open()
    ended = await session.handle.result()
    assert ended == {"status": "ended", "turn_count": 10, "reason": "enough"}
    state = await session.state()
    assert (state.session.title, state.status) == ("Kept", "ended")
    assert len(await runs(on.client, session)) >= 2
