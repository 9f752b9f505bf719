"""A session that goes on in a new run between turns, nothing lost: SES-12, SES-14."""

from models.session import SessionInput
from tests.harness import Stage, asks, says

SMALL = SessionInput.model_validate({"limits": {"max_history_events": 50}})


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
    assert len(await session.histories()) >= 4


async def test_ses_14_what_the_model_sees_is_the_same_before_and_after(on: Stage) -> None:
    on.vendor.script = [asks(("look", {"n": number})) if number % 2 else says(f"said {number}") for number in range(40)]
    session = await on.start(SMALL)
    for number in range(12):
        await session.prompt(f"prompt {number}")
        await session.idle(turns=number + 1)
    assert len(await session.histories()) >= 3
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
    assert len(await session.histories()) >= 2
