"""Accepted prompts become turns, however many wait and whatever a run can hand over: SES-6, SES-14, SES-15."""

import asyncio
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import select
from temporalio.api.enums.v1 import WorkflowTaskFailedCause
from temporalio.client import Client

from tests.harness import (
    BOUND,
    LONG_PAUSE,
    DrivenSession,
    Environment,
    Gate,
    broken,
    environment,
    heal,
    last_user_message,
    replayer,
    says,
)
from tests.waiting import until
from turnkeeper.models.limits import MIN_STATE_BYTES
from turnkeeper.models.session.archive import ArchiveHealth
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.session.prompt_queue import PromptQueue
from turnkeeper.models.session.prompts import Fate, Prompt
from turnkeeper.models.session.session import Session
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.transcript.model_call import ModelRequest, ModelResponse
from turnkeeper.stores.database.tables import FATES

PROMPTS = 24
"""Number of prompts; a small session carries 5 from run to run, and parks the others."""

LONG = 240.0
"""Seconds that hundreds of turns may take on a busy machine."""

AT_ONCE = 40
"""Signals that are sent at the same time where their order doesn't matter."""


async def unattended(temporal: Client, *, task_queue: str, **limits: int) -> DrivenSession:
    """Start a session that no worker serves yet."""
    start = SessionInput.model_validate({"limits": limits})
    handle = await temporal.start_workflow(
        "AgenticAIWorkflow",
        start,
        id=f"s-{uuid4()}",
        task_queue=task_queue,
        task_timeout=timedelta(seconds=BOUND),  # thousands of signals are one task
    )
    return DrivenSession(temporal, handle)


async def send(session: DrivenSession, count: int, *, first: int = 0) -> None:
    for number in range(first, first + count):
        await session.prompt(id=f"m{number}", text=f"prompt {number}")


async def burst(session: DrivenSession, count: int) -> None:
    """Send prompts as fast as the server takes them, in no order."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with slots:
            await session.prompt(id=f"m{number}", text=f"prompt {number}")

    await asyncio.gather(*(one(number) for number in range(count)))


async def small(env: Environment) -> DrivenSession:
    """Start a session that continues as new every few turns, and can carry 5 prompts."""
    limits = {"max_history_events": 50, "max_queued_prompts": 5}
    return await env.start(SessionInput.model_validate({"limits": limits}))


async def with_parked_prompts(env: Environment) -> DrivenSession:
    """Start a small session with `PROMPTS`, of which some are parked; its model doesn't answer for now."""

    def answer(request: ModelRequest) -> ModelResponse:
        if len(env.vendor.requests) == 3:
            env.vendor.gate.close()
        return says(f"echo: {last_user_message(request)}")

    env.vendor.answer = answer
    env.vendor.gate.close()
    session = await small(env)
    await send(session, PROMPTS)
    await session.until(lambda s: s.queue_length == PROMPTS - 1, turns=0)
    env.vendor.gate.open()

    async def has_parked() -> bool:
        return (await session.queue()).parked > 0

    await env.vendor.gate.until_arrived(4)
    await until(has_parked)
    return session


async def transcript(env: Environment, session: DrivenSession) -> list[ConversationMessage]:
    state = await session.state()
    page = await env.stores.archive.page(session.handle.id, before=None, limit=None, max_bytes=10**9)
    return [archived.turn for archived in page[: state.archived_count]] + state.messages


async def worked_off(session: DrivenSession, *, turns: int) -> None:
    def is_so(state: Any) -> bool:
        return state.session.turn_count >= turns and state.status == "idle" and not state.queue_length

    await session.until(is_so, turns=0, bound=LONG, max_pause=LONG_PAUSE)


async def fates(env: Environment, session: DrivenSession, ids: list[str]) -> dict[str, str | None]:
    """Look for every fate as the gateway does: in the session, the transcript, the archive; `None`: there is none."""
    by_id: dict[str, str | None] = {}
    for start in range(0, len(ids), 1_000):
        some = ids[start : start + 1_000]
        view = await session.queue({"message_ids": some})
        by_id.update((fate.id, fate.fate) for fate in view.fates)
    by_id |= {turn.id: "started" for turn in await transcript(env, session)}
    mine = select(FATES.c.fate).where(FATES.c.session_id == session.handle.id)
    rows = await env.stores.database.read(lambda connection: connection.scalars(mine).all())
    archived = {fate.id: fate.fate for fate in map(Fate.model_validate_json, rows)}
    for message_id in list(archived)[:: max(1, len(archived) // 10)]:  # the way for one of them leads there too
        fate = await env.stores.prompts.fate_of(session.handle.id, message_id)
        assert fate is not None
        assert fate.fate == archived[message_id]
    return {message_id: by_id.get(message_id, archived.get(message_id)) for message_id in ids}


async def replays(session: DrivenSession) -> int:
    """Replay every run; return how many there were."""
    histories = await session.histories()
    for history in histories:
        await replayer().replay_workflow(history)
    return len(histories)


async def test_ses_6_many_prompts_sent_while_no_worker_runs_become_turns_in_order(temporal: Client) -> None:
    task_queue = f"q-{uuid4()}"
    session = await unattended(temporal, task_queue=task_queue, max_history_events=50)
    await send(session, PROMPTS)
    async with environment(temporal, task_queue=task_queue) as env:
        env.sessions.append(session)
        await worked_off(session, turns=PROMPTS)
        assert [turn.id for turn in await transcript(env, session)] == [f"m{number}" for number in range(PROMPTS)]
    assert await replays(session) > 1


async def test_ses_6_waiting_prompts_are_parked_over_many_runs_and_start_in_order(env: Environment) -> None:
    session = await small(env)
    env.vendor.gate.close()
    await send(session, PROMPTS - 6)
    state = await session.state()
    assert state.queue_length == PROMPTS - 7
    env.vendor.gate.open()
    await session.until(lambda s: s.session.turn_count > 6, turns=0)
    await send(session, 6, first=PROMPTS - 6)
    await worked_off(session, turns=PROMPTS)
    assert [turn.id for turn in await transcript(env, session)] == [f"m{number}" for number in range(PROMPTS)]
    histories = await session.histories()
    assert len(histories) > 2
    scheduled = [
        event.activity_task_scheduled_event_attributes.activity_type.name
        for history in histories
        for event in history.events
        if event.HasField("activity_task_scheduled_event_attributes")
    ]
    assert "unpark" in scheduled
    await session.until(lambda s: s.status == "idle")
    view = await session.queue()
    assert (view.length, view.parked, view.bytes) == (0, 0, 0)


async def test_ses_8_a_parked_prompt_can_be_withdrawn_and_the_rest_discarded(env: Environment) -> None:
    session = await with_parked_prompts(env)
    view = await session.queue({"message_ids": ["m20"]})
    assert view.parked > 0
    assert view.positions["m20"] == view.length - 3
    await session.update("withdraw_prompt", {"id": "m20"})
    await session.update("end_session", {"reason": "enough", "discard_queue": True})
    env.vendor.gate.open()
    await session.handle.result()
    ids = [f"m{number}" for number in range(PROMPTS)]
    fate_of = await fates(env, session, ids)
    assert fate_of["m20"] == "withdrawn"
    turns = [turn.id for turn in await transcript(env, session)]
    assert turns == ids[: len(turns)]
    assert {fate_of[message_id] for message_id in ids[len(turns) :]} == {"discarded", "withdrawn"}
    for message_id in ids[len(turns) :]:
        fate = await env.stores.prompts.fate_of(session.handle.id, message_id)
        assert fate is not None
        assert fate.fate == fate_of[message_id]
    parked = await env.stores.prompts.parked(session.handle.id, first=1, max_prompts=90, max_bytes=10**6)
    assert "m20" not in [prompt.id for prompt in parked]


async def test_ses_8_withdrawing_prompts_while_they_are_fetched_is_not_an_archive_failure(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, read, failures, fetched = Gate(is_open=False), env.stores.prompts.parked, list[str](), list[str]()

    async def read_slowly(*args: Any, **bounds: Any) -> list[Prompt]:
        prompts = await read(*args, **bounds)
        if not gate.arrived:
            fetched.extend(prompt.id for prompt in prompts)
        await gate.pass_through()
        return prompts

    session = await with_parked_prompts(env)
    monkeypatch.setattr(env.stores.prompts, "parked", read_slowly)
    monkeypatch.setattr(ArchiveHealth, "record_failure", lambda _, problem, *, now: failures.append(problem))
    env.vendor.gate.open()
    await gate.until_arrived(1)
    for message_id in fetched:
        await session.update("withdraw_prompt", {"id": message_id})
    gate.open()
    await worked_off(session, turns=PROMPTS - len(fetched))
    assert failures == []
    assert await session.fate(fetched[0]) == "withdrawn"


async def test_ses_8_an_ending_session_processes_parked_prompts_first(env: Environment) -> None:
    session = await small(env)
    env.vendor.gate.close()
    await send(session, 20)
    await session.update("end_session", {"reason": "enough"})
    env.vendor.gate.open()
    ended = await session.handle.result()
    assert ended == {"status": "ended", "turn_count": 20, "reason": "enough"}
    assert [turn.id for turn in await transcript(env, session)] == [f"m{number}" for number in range(20)]


async def test_ses_9_the_fates_of_parked_prompts_are_available_after_a_cancel(env: Environment) -> None:
    session = await with_parked_prompts(env)
    await session.handle.cancel()
    await session.until(lambda s: s.status == "cancelled")
    fate_of = await fates(env, session, [f"m{number}" for number in range(PROMPTS)])
    assert set(fate_of.values()) == {"started", "discarded"}


async def test_ses_15_while_the_archive_is_down_the_queue_is_processed_in_the_run(env: Environment) -> None:
    file = broken(env)
    session = await small(env)
    env.vendor.gate.close()
    await send(session, 20)
    env.vendor.gate.open()
    await session.until(lambda s: s.session.archive.failing_since, turns=0)
    heal(file)
    await worked_off(session, turns=20)
    assert [turn.id for turn in await transcript(env, session)] == [f"m{number}" for number in range(20)]


async def test_ses_15_while_the_archive_is_down_parked_prompts_wait_for_it(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnkeeper.models.session.archive.FIRST_PAUSE", timedelta(seconds=0.2))
    session = await with_parked_prompts(env)
    file = broken(env)
    env.vendor.gate.open()
    await session.until(lambda s: s.session.archive.failing_since, turns=0)
    assert (await session.state()).queue_length > 0
    heal(file)
    await worked_off(session, turns=PROMPTS)
    assert [turn.id for turn in await transcript(env, session)] == [f"m{number}" for number in range(PROMPTS)]


async def test_ses_6_prompts_beyond_every_limit_of_a_session_become_turns_in_order(env: Environment) -> None:
    limits = {"max_history_events": 50, "max_state_bytes": MIN_STATE_BYTES, "max_queued_prompts": 20}
    session = await env.start(SessionInput.model_validate({"limits": limits}))
    env.vendor.gate.close()
    ids = [f"{number:0128}" for number in range(60)]
    for number, message_id in enumerate(ids):
        text = f"{number} " + "x" * (90_000 if number == 30 else 1_000)
        await session.prompt(id=message_id, text=text)
        if number == 40:
            lower = {"max_queued_prompts": 1, "max_queued_bytes": 1_024}
            await session.update("configure", {"limits": lower})
    env.vendor.gate.open()
    await worked_off(session, turns=len(ids))
    turns = await transcript(env, session)
    assert [turn.id for turn in turns] == ids
    assert {turn.status for turn in turns} == {"completed"}
    assert len(await session.histories()) > 2


async def test_ses_6_each_of_a_thousand_prompts_in_one_activation_has_a_fate(temporal: Client) -> None:
    task_queue = f"q-{uuid4()}"
    session = await unattended(temporal, task_queue=task_queue, max_queued_prompts=2)
    await burst(session, 1_020)
    async with environment(temporal, task_queue=task_queue) as env:
        env.sessions.append(session)
        await session.until(lambda state: state.session.turn_count >= 20, turns=0, bound=LONG)
        await session.handle.signal("end_chat", {"discard_queue": True})
        await session.handle.result()
        fate_of = await fates(env, session, [f"m{number}" for number in range(1_020)])
        turns = (await session.state({"limit": 0})).session.turn_count
    counts = {fate: list(fate_of.values()).count(fate) for fate in set(fate_of.values())}
    assert counts == {"started": turns, "discarded": 1_020 - turns}


@pytest.mark.parametrize("step", ["remove_moved", "restore_parked"])
async def test_ses_10_a_bug_in_parking_fails_the_workflow_task_until_it_is_fixed(
    env: Environment, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    await goes_on_after_bug(env, monkeypatch, PromptQueue, step, prompts=20)


async def test_ses_10_a_bug_in_moving_turns_fails_the_workflow_task_until_it_is_fixed(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    await goes_on_after_bug(env, monkeypatch, Session, "remove_moved", prompts=30, max_state_bytes=MIN_STATE_BYTES)


async def goes_on_after_bug(
    env: Environment,
    monkeypatch: pytest.MonkeyPatch,
    part: type[Session | PromptQueue],
    step: str,
    *,
    prompts: int,
    **limits: int,
) -> None:
    """Check that the session stands still, visibly, while this step of it fails, and then does all of its work."""

    def buggy(*_: object, **__: object) -> None:
        raise KeyError("a bug")

    limits = {"max_history_events": 60, "max_queued_prompts": 5, **limits}
    with monkeypatch.context() as patched:
        patched.setattr(part, step, buggy)
        session = await env.start(SessionInput.model_validate({"limits": limits}))
        await send(session, prompts)
        assert "beside the session's main loop" in await until(partial(failure_of_task, session))
    await worked_off(session, turns=prompts)
    assert [turn.id for turn in await transcript(env, session)] == [f"m{number}" for number in range(prompts)]


async def failure_of_task(session: DrivenSession) -> str:
    """Return how the newest run's first failed workflow task failed; empty while none did.

    One that meets a new signal as it continues as new has not failed: Temporal gives it to the worker again.
    """
    for event in (await session.handle.fetch_history()).events:
        failed = event.workflow_task_failed_event_attributes
        is_failure = event.HasField("workflow_task_failed_event_attributes")
        if is_failure and failed.cause != WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND:
            return failed.failure.message
    return ""
