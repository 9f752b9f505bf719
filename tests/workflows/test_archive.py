"""The oldest turns move to the archive, whatever becomes of it meanwhile: SES-15, AGT-2."""

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import Client, WorkflowFailureError

from tests.harness import BOUND, DrivenSession, Environment, Gate, asks, broken, environment, heal, says
from tests.waiting import until
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.limits import MIN_STATE_BYTES
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.workflows import activity_options

SMALL = SessionInput.model_validate({"limits": {"max_state_bytes": 40_000, "max_queued_bytes": 8_000}})
LARGER = SessionInput.model_validate({"limits": {"max_state_bytes": 80_000, "max_queued_bytes": 8_000}})
SMALLEST = SessionInput.model_validate({"limits": {"max_state_bytes": MIN_STATE_BYTES, "max_queued_bytes": 8_000}})
LARGEST = SessionInput.model_validate({"limits": {"max_state_bytes": 90_000, "max_queued_bytes": 8_000}})
"""The window holds all of 14 prompts' turns; the state doesn't."""


async def archived(env: Environment, session: DrivenSession) -> list[ConversationMessage]:
    page = await env.stores.archive.page(session.handle.id, before=None, limit=None, max_bytes=10**9)
    assert [turn.number for turn in page] == list(range(1, len(page) + 1))
    return [turn.turn for turn in page]


async def transcript(env: Environment, session: DrivenSession) -> list[ConversationMessage]:
    """Return the whole transcript: what the archive has and the session no longer, then what the session has."""
    state = await session.state()
    return (await archived(env, session))[: state.archived_count] + state.messages


async def chat(session: DrivenSession, numbers: range, *, chars: int = 2_000) -> None:
    """Send prompts of `chars` characters, a few at a time, and wait until they are answered."""
    for number in numbers:
        await session.prompt(id=f"p{number}", text=f"prompt {number} " + "x" * chars)
        if number % 3 == 2 or number == numbers[-1]:
            await session.idle(turns=number + 1)


async def test_ses_15_the_oldest_turns_move_to_the_archive_without_a_gap(env: Environment) -> None:
    session = await env.start(SMALL)
    await chat(session, range(14))
    state = await session.until(lambda state: state.archived_count >= 6)
    turns = await transcript(env, session)
    assert [turn.id for turn in turns] == [f"p{number}" for number in range(14)]
    assert all(turn.status == "completed" for turn in turns)
    assert state.first_number == state.archived_count + 1
    assert state.has_more
    assert len(state.messages) <= 8, "polls and pages cost the same whatever was archived"
    update = await session.updates("p0")
    assert update.reset
    assert [turn.id for turn in update.new_messages] == [turn.id for turn in state.messages]


async def test_ses_15_the_models_context_does_not_change_when_a_turn_is_archived(env: Environment) -> None:
    env.vendor.script = [asks(("look", {"n": n})) if n % 2 else says(f"said {n} " + "y" * 700) for n in range(40)]
    session = await env.start(LARGEST)
    await chat(session, range(14))
    assert (await session.state()).archived_count > 2
    for earlier, later in zip(env.vendor.requests, env.vendor.requests[1:], strict=False):
        assert later.messages[: len(earlier.messages)] == earlier.messages


async def test_ses_15_an_ended_session_leaves_its_whole_transcript_in_the_archive(env: Environment) -> None:
    session = await env.start(SMALL)
    await chat(session, range(9))
    await session.update("end_session", {})
    await session.handle.result()
    state = await session.state()
    turns = await archived(env, session)
    assert [turn.id for turn in turns] == [f"p{number}" for number in range(9)]
    assert turns[state.archived_count :] == state.messages


async def test_ses_15_a_cancelled_session_leaves_its_whole_transcript_in_the_archive(env: Environment) -> None:
    session = await env.start()
    env.vendor.gate.close()
    await session.prompt(id="p0", text="hello")
    await env.vendor.gate.until_arrived(1)
    await session.handle.cancel()
    await _closed(session)
    (turn,) = await archived(env, session)
    assert (turn.id, turn.status) == ("p0", "cancelled")


async def _closed(session: DrivenSession) -> None:
    await session.until(lambda state: state.status == "cancelled")
    with suppress(WorkflowFailureError):
        await asyncio.wait_for(session.handle.result(), BOUND)


async def test_ses_15_a_move_prepared_in_another_process_is_queried_from_the_workflow(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnkeeper.activities.archive.MOVES.get", lambda key: None)
    session = await env.start(SMALL)
    await chat(session, range(10))
    await session.until(lambda state: state.archived_count >= 3)
    assert [turn.id for turn in await transcript(env, session)] == [f"p{number}" for number in range(10)]


async def test_ses_15_older_steps_are_moved_to_make_room_for_the_results_of_a_step(env: Environment) -> None:
    step = asks(*[("look", {"at": "x" * 250})] * 3)
    env.vendor.script = [*[step] * 6, asks(*[("look", {"at": "x" * 50})] * 12), says("seen")]
    session = await env.start(SMALLEST)
    await session.prompt("look")
    (turn,) = await session.idle(turns=1)
    assert (turn.status, turn.error) == ("completed", None)
    assert 0 < turn.steps_omitted < 6


async def test_ses_15_a_turn_waits_until_ended_turns_have_been_moved(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, put_turns = Gate(is_open=False), env.stores.archive.put_turns

    async def put_turns_later(*arguments: Any) -> None:
        await gate.pass_through()
        await put_turns(*arguments)

    monkeypatch.setattr(env.stores.archive, "put_turns", put_turns_later)
    session = await env.start(SMALLEST)
    await chat(session, range(5), chars=1_700)
    await gate.until_arrived(1)
    env.vendor.script = [*env.vendor.script, asks(*[("look", {"at": "x" * 50})] * 24), says("seen")]
    await session.prompt("look")
    await session.until(lambda state: bool(state.messages[-1].steps))
    gate.open()
    turn = (await session.idle(turns=6))[-1]
    assert (turn.status, turn.error) == ("completed", None)
    assert turn.steps_omitted == 0


async def test_ses_15_while_the_archive_is_down_the_session_works_and_reports_it(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnkeeper.models.session.archive.FIRST_PAUSE", timedelta(seconds=0.2))
    session = await env.start(LARGER)
    await chat(session, range(16), chars=1_000)
    before = (await session.until(lambda state: state.archived_count > 0)).archived_count
    file = broken(env)
    await chat(session, range(16, 24), chars=1_000)
    state = await session.until(lambda state: state.session.archive.failing_since is not None)
    assert "can't be opened" in state.session.archive.last_error
    assert "archive" in (await details(session)).lower()
    await session.until(lambda state: state.session.archive.attempts_failed >= 2)
    heal(file)
    healed = await session.until(lambda state: state.session.archive.recovered_at is not None)
    assert healed.archived_count > before
    assert healed.session.archive.failing_since is None
    assert "can't be opened" in healed.session.archive.last_error
    assert [turn.id for turn in await transcript(env, session)] == [f"p{number}" for number in range(24)]


async def test_ses_15_a_full_session_accepts_prompts_while_the_archive_is_down(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnkeeper.models.session.archive.FIRST_PAUSE", timedelta(seconds=0.2))
    file = broken(env)
    session = await env.start(SMALL)
    await chat(session, range(30), chars=2_000)
    state = await session.until(lambda state: state.session.archive.failing_since is not None, turns=0)
    assert state.archived_count == 0
    heal(file)
    await session.until(lambda state: state.archived_count > 0, turns=0)
    await chat(session, range(30, 31))
    assert [turn.id for turn in await transcript(env, session)] == [f"p{number}" for number in range(31)]


async def test_ses_15_without_an_archive_only_prompts_beyond_temporals_limits_are_rejected(
    temporal: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnkeeper.models.session.archive.FIRST_PAUSE", timedelta(seconds=0.2))
    monkeypatch.setattr("turnkeeper.models.session.session.MAX_CARRIED_BYTES", 30_000)
    monkeypatch.setattr("turnkeeper.workflows.new_run.LAST_HISTORY_EVENTS", 200)
    # On an environment of its own: its histories would not replay once the patches are undone.
    async with environment(temporal) as env:
        file = broken(env)
        session = await env.start(SMALL)
        started = 0
        while True:
            await session.prompt(id=f"p{started}", text=f"prompt {started} " + "x" * 2_000)
            await session.until(lambda state: not state.queue_length)
            fate = (await session.queue({"message_id": f"p{started}"})).fates[0]
            if fate.fate == "rejected":
                break
            started += 1
            await session.idle(turns=started)
        assert (fate.refusal, "can't be opened" in (fate.reason or "")) == ("state_full", True)
        assert started > 10
        heal(file)
        await session.until(lambda state: state.archived_count > 0, turns=0)
        await session.prompt(id=f"p{started}", text="again")
        await session.until(lambda state: state.session.turn_count > started and state.status == "idle", turns=0)
        ids = [turn.id for turn in await transcript(env, session)]
    assert ids == [f"p{number}" for number in range(started + 1)]


async def details(session: DrivenSession) -> str:
    metadata: WorkflowMetadata = await session.handle.query(
        "__temporal_workflow_metadata", result_type=WorkflowMetadata
    )
    return metadata.current_details


async def test_ses_6_an_id_that_is_used_again_after_it_was_forgotten_is_another_turn(
    temporal: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnkeeper.models.session.prompts.REMEMBERED_IDS", 5)
    # On an environment of its own: its histories would not replay once the patch is undone.
    async with environment(temporal) as env:
        session = await env.start(SMALL)
        await chat(session, range(9))
        await session.until(lambda state: state.archived_count > 2)
        await session.prompt(id="p0", text="again")
        await session.idle(turns=10)
        await chat(session, range(10, 20))
        await session.until(lambda state: state.archived_count > 10)
        ids = [turn.id for turn in await transcript(env, session)]
    assert ids == [*(f"p{n}" for n in range(9)), "p0", *(f"p{n}" for n in range(10, 20))]


# ---- copies of turns that the session keeps


async def test_ses_15_an_idle_session_copies_its_turns_to_the_archive_and_keeps_them(env: Environment) -> None:
    session = await env.start()
    await chat(session, range(2))
    before = await session.state()
    turns = await until(lambda: archived_if(env, session, 2))
    assert turns == before.messages
    assert await session.state() == before.model_copy(update={"as_of": (await session.state()).as_of})
    await chat(session, range(2, 3))
    assert [turn.id for turn in await until(lambda: archived_if(env, session, 3))] == ["p0", "p1", "p2"]


async def test_ses_15_a_session_that_is_never_idle_copies_its_turns_in_blocks(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity_options, "IDLE_PAUSE", timedelta(days=1))
    monkeypatch.setattr(activity_options, "COPIED_AT_ONCE", 3)
    session = await env.start()
    await chat(session, range(3))
    assert await archived(env, session) == []
    await chat(session, range(3, 5))
    await until(lambda: archived_if(env, session, 4))
    assert (await session.state()).archived_count == 0


async def test_ses_15_an_archive_that_lost_its_copies_is_filled_again(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity_options, "IDLE_PAUSE", timedelta(seconds=0.1))
    monkeypatch.setattr("turnkeeper.models.session.archive.FIRST_PAUSE", timedelta(seconds=0.2))
    session = await env.start()
    await chat(session, range(1))
    await until(lambda: archived_if(env, session, 1))
    await env.stores.archive.delete(WorkflowId(session.handle.id))
    await chat(session, range(1, 2))
    await until(lambda: archived_if(env, session, 2))
    state = await session.until(lambda state: state.session.archive.recovered_at is not None)
    assert "earlier turns" in (state.session.archive.last_error or "")
    assert [turn.id for turn in state.messages] == ["p0", "p1"]


async def archived_if(env: Environment, session: DrivenSession, count: int) -> list[ConversationMessage] | None:
    turns = await archived(env, session)
    return turns if len(turns) >= count else None
