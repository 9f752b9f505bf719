"""No caller can block a session with messages that are refused (SES-10)."""

import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import (
    Client,
    WorkflowFailureError,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
)
from temporalio.exceptions import ApplicationError

from tests.harness import BOUND, Environment, environment
from tests.models.builders import NOW, answer_turn, at, send, session
from tests.replay.test_replay import RECORDED, history
from turnkeeper.models.errors import RejectedError
from turnkeeper.models.session.approvals import ResolveApproval
from turnkeeper.models.session.archive.archive_messages import ArchiveMoveQuery
from turnkeeper.models.session.messages import (
    CancelTurn,
    Configure,
    ContextRequest,
    EndSession,
    NoArgument,
    QueueRequest,
    SessionInput,
    StateRequest,
    WithdrawPrompt,
    configured,
    parse,
    parse_cursor,
    parse_replay_request,
    read_start,
)
from turnkeeper.models.session.outside_start import check_outside_start
from turnkeeper.models.session.queue.prompts import read_prompt
from turnkeeper.models.session.tasks.allowance import AllowanceAnswer, AllowanceRequest
from turnkeeper.models.session.tasks.task_state import TaskChange
from turnkeeper.models.transcript.model_call import ModelRequestQuery
from turnkeeper.workflows.hosting.payload_converter import DATA_CONVERTER

REFUSAL_BYTES = 2_048

MANY = {f"k{number}": 0 for number in range(170_000)}
"""About 1.9 MB of JSON: what just fits in Temporal."""


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


VALUES = [MANY, [0] * 500_000, "x" * 2_000_000, deep(150), 10**4_000, 1e308, [{}] * 300_000, {"k" * 1_900_000: 1}]
FIELDS = [
    *("id", "text", "mode", "sent_at", "title", "reason", "limits", "history", "tool_policy", "message_id", "model"),
    *("last_seen_message_id", "before", "limit", "max_history", "request", "call_id", "decision", "args_digest"),
    *("carried", "first_prompt", "system_prompt"),
]
PARTS = ["transcript", "queue", "context", "tools", "archive", "task", "tasks", "moved_events", "running", "usage"]
FIELDS_OF_PARTS = [
    *(("transcript", "turns"), ("queue", "taken_ids"), ("queue", "fates"), ("queue", "leaving"), ("queue", "waiting")),
    ("queue", "parked"),
    *(("context", "view"), ("context", "waiting"), ("tools", "specs"), ("tools", "allowances"), ("tasks", "tasks")),
]

READERS: dict[str, Callable[[Any], object]] = {
    "prompt": lambda raw: read_prompt(raw, extra_arguments=0, new_id="n", now=NOW),
    "start": lambda raw: check_outside_start(read_start(raw, extra_arguments=0), now=NOW),
    "configure": lambda raw: configured(SessionInput(), parse(Configure, raw)),
    "withdraw_prompt": lambda raw: parse(WithdrawPrompt, raw),
    "cancel_turn": lambda raw: parse(CancelTurn, raw),
    "end_session": lambda raw: parse(EndSession, raw),
    "resolve_approval": lambda raw: parse(ResolveApproval, raw),
    "get_conversation_state": lambda raw: parse(StateRequest, raw),
    "get_conversation_updates": parse_cursor,
    "get_queue": lambda raw: parse(QueueRequest, raw),
    "get_pending_approvals": lambda raw: parse(NoArgument, raw),
    "get_context_view": lambda raw: parse(ContextRequest, raw),
    "get_replay_context": parse_replay_request,
    "get_model_request": lambda raw: parse(ModelRequestQuery, raw),
    "internal_archive_move": lambda raw: parse(ArchiveMoveQuery, raw),
    "task_changed": lambda raw: parse(TaskChange, raw),
    "request_allowance": lambda raw: parse(AllowanceRequest, raw),
    "grant_allowance": lambda raw: parse(AllowanceAnswer, raw),
}


def hostile_arguments(reader: str) -> list[Any]:
    arguments: list[Any] = [MANY, *VALUES, *({field: value} for field in FIELDS for value in VALUES)]
    if reader == "start":
        base = {"created_at": NOW, "revision": 1}
        states = [
            *({part: value} for part in PARTS for value in VALUES),
            *({part: {field: value}} for part, field in FIELDS_OF_PARTS for value in VALUES),
            {"context": {"cut": dict.fromkeys(MANY, "x")}},
            {"context": {"view": {"entries": [{"turn": "a", "messages": [0] * 500_000}]}}},
        ]
        arguments += [{"carried": {**base, **state}} for state in states]
    return arguments


@pytest.mark.parametrize("reader", READERS)
def test_ses_10_whatever_fits_temporal_is_read_or_refused_within_half_a_second_and_a_kilobyte(reader: str) -> None:
    for number, argument in enumerate(hostile_arguments(reader)):
        started_at = time.process_time()
        refusal = refusal_by(READERS[reader], argument)
        assert time.process_time() - started_at < 0.5, number
        if refusal:
            assert len(refusal.message.encode()) <= 1_024
            assert "x" * 100 not in refusal.message
            assert refusal.__cause__ is None


def refusal_by(read: Callable[[Any], object], argument: Any) -> RejectedError | None:
    try:
        read(argument)
    except RejectedError as refusal:
        return refusal
    return None


HOSTILE_UPDATES: list[tuple[str, Any]] = [
    *((name, MANY) for name in ("withdraw_prompt", "cancel_turn", "resolve_approval", "configure")),
    *(("configure", {field: MANY}) for field in ("limits", "history", "tool_policy")),
    ("end_session", {"reason": "x" * 1_900_000}),
]


async def test_ses_10_a_refused_update_is_told_at_most_2_kb_and_wedges_nothing(env: Environment) -> None:
    driven = await env.start()
    for update, argument in HOSTILE_UPDATES:
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await driven.update(update, argument)
        cause = refused.value.cause
        assert isinstance(cause, ApplicationError)
        assert cause.failure is not None
        assert cause.failure.ByteSize() <= REFUSAL_BYTES
        assert not cause.failure.HasField("cause")
    await driven.prompt("hello")
    await driven.idle(turns=1)


async def test_ses_10_hostile_signals_and_queries_wedge_nothing(env: Environment) -> None:
    driven = await env.start()
    await driven.handle.signal("prompt", MANY)
    await driven.handle.signal("prompt", {"text": MANY})
    for query in [name for name in READERS if name.startswith("get_")]:
        with pytest.raises(WorkflowQueryFailedError) as refused:
            await driven.handle.query(query, MANY)
        assert len(str(refused.value)) <= REFUSAL_BYTES
    await driven.handle.signal("end_chat", MANY)
    assert (await driven.handle.result())["status"] == "ended"


# ---- hostile starts


def turn(**fields: Any) -> dict[str, Any]:
    moment = "2026-01-01T00:00:00Z"
    ended = {"agent_message": "Hello.", "status": "completed"}
    return {"id": "t1", "timestamp": moment, "user_message": "Hi", "user_timestamp": moment, "revision": 1} | (
        ended | fields
    )


def running_turn(**fields: Any) -> dict[str, Any]:
    return turn(agent_message=None, status="processing", **fields)


def step(*results: Any) -> dict[str, Any]:
    calls = [
        {"id": f"1.1.{number}", "name": "look", "args": {}, "result": result} for number, result in enumerate(results)
    ]
    return {"kind": "model", "number": 1, "timestamp": "2026-01-01T00:00:00Z", "tool_calls": calls}


def terms(**fields: Any) -> dict[str, Any]:
    deadline = datetime.now(UTC) + timedelta(hours=1)
    return {"deadline": deadline, "model": "offline:", "limits": {}, "history": {}, **fields}


def transcript(*turns: dict[str, Any], archived: int = 0) -> dict[str, Any]:
    return {"transcript": {"turns": list(turns), "archived": archived}}


def view(*entries: dict[str, Any], segment: int = 1) -> dict[str, Any]:
    return {"context": {"view": {"entries": list(entries), "segment": segment}}}


def queue(**prompts: Any) -> dict[str, Any]:
    return {"queue": prompts}


def waiting(message_id: str) -> dict[str, Any]:
    return {"id": message_id, "text": "again", "received_at": "2026-01-01T00:00:00Z"}


A_TASK = {"task_id": "s.task-1", "call_id": "1.1.0", "title": "x"}
RUNNING_STEP = running_turn(reasoning_trajectory={"steps": [step(None)]})

HOSTILE_STATES: dict[str, dict[str, Any]] = {
    "a running turn, and no turns": {"running": terms()},
    "a running turn that has ended": {**transcript(turn()), "running": terms()},
    "a turn that has not ended and does not run": transcript(running_turn()),
    "two running turns": {**transcript(running_turn(), running_turn(id="t2")), "running": terms()},
    "a turn with an invalid id": transcript(turn(id="a/b")),
    "a turn with fewer than no omitted steps": transcript(turn(steps_omitted=-1)),
    "a negative count": transcript(archived=-1),
    "a negative revision": {"revision": -5},
    "a huge revision": {"revision": 10**30},
    "a huge number of turns": transcript(archived=2**70),
    "the same turn twice": transcript(turn(), turn()),
    "revisions that fall": {**transcript(turn(revision=5), turn(id="t2", revision=2)), "revision": 9},
    "a turn newer than the session": transcript(turn(revision=50)),
    "a view of turns that do not exist": view({"turn": "nobody"}),
    "a view of a step that does not exist": {**transcript(turn()), **view({"turn": "t1", "step": 3})},
    "a view of a negative step": {**transcript(turn()), **view({"turn": "t1", "step": -1})},
    "a view of a call without a result": {
        **transcript(turn(reasoning_trajectory={"steps": [step(None)]})),
        **view({"turn": "t1", "step": 0}),
    },
    "evicted entries that do not exist": {"context": {"waiting": [{"turn": "nobody"}]}},
    "an unsettled turn without steps": {**transcript(running_turn()), "running": terms(unsettled=True)},
    "a settled step without results": {**transcript(RUNNING_STEP), "running": terms(steps=1)},
    "a deadline in 9999": {
        **transcript(running_turn()),
        "running": terms(deadline="9999-12-31T23:59:59Z", awaiting_since="0001-01-01T00:00:00Z"),
    },
    "an archive that is to be tried in 9999": {"archive": {"again_at": "9999-12-31T23:59:59Z"}},
    "negative steps": {**transcript(running_turn()), "running": terms(steps=-3)},
    "a waiting prompt that is a turn": {**transcript(turn()), **queue(waiting=[waiting("t1")])},
    "a prompt that steers nothing": queue(waiting=[{**waiting("p"), "mode": "steer"}]),
    "a summary of turns that do not exist": view({"turn": "", "summary": {"text": "x", "turns": [[5, 2]]}}),
    "segment zero": view(segment=0),
    "a learned limit of no tokens": {"context": {"limit": {"model": "offline:", "tokens": -1, "config": {}}}},
    "a long reason": {"ending": "x" * 10_000},
    "too much to be carried on": {"tools": {"allowances": ["x" * 1_900_000]}},
    "two waiting prompts with one id": queue(waiting=[waiting("p"), waiting("p")]),
    "parked prompts behind more than there are": queue(waiting=[waiting("p")], before_parked=2),
    "fewer than no tasks": {"tasks": {"started": -1}},
    "more tasks than there can be": {"tasks": {"tasks": [A_TASK] * 400}},
}

NEW_STATE = {"created_at": "2026-01-01T00:00:00Z", "revision": 1}

HOSTILE_STARTS: dict[str, Any] = {
    **{name: {"carried": {**NEW_STATE, **state}} for name, state in HOSTILE_STATES.items()},
    "a user no search attribute takes": {"user": "x" * 5_000, "carried": NEW_STATE},
    "a system prompt that can't be carried": {"system_prompt": "x" * 1_900_000},
    "limits of 170,000 keys": {"limits": MANY},
    "a first prompt of 170,000 keys": {"first_prompt": MANY},
    "a task without a first prompt": {"task": {}},
    "a task whose parent has no id": {"task": {"context": {"description": "x"}, "parent": "a/b"}},
    "a task that stays open for less than no time": {"task": {"context": {"description": "x"}, "open_seconds": -1}},
    "a number": 7,
    "a list": [0] * 900_000,
}


@pytest.fixture(scope="module")
async def shared(temporal: Client) -> AsyncIterator[Environment]:
    """An environment for sessions that never ask a model."""
    async with environment(temporal) as env:
        yield env


@pytest.mark.parametrize("start", HOSTILE_STARTS.values(), ids=HOSTILE_STARTS)
async def test_ses_10_a_hostile_start_is_refused_and_never_stuck(shared: Environment, start: Any) -> None:
    handle = await shared.client.start_workflow(
        "AgenticAIWorkflow", start, id=f"hostile-{uuid4()}", task_queue=shared.task_queue
    )
    with pytest.raises(WorkflowFailureError) as failed:
        await handle.result(rpc_timeout=timedelta(seconds=BOUND))
    cause = failed.value.cause
    assert isinstance(cause, ApplicationError)
    assert cause.type == "invalid"
    assert cause.failure is not None
    assert cause.failure.ByteSize() <= REFUSAL_BYTES


@pytest.mark.parametrize(("description", "reason"), [(" ", "blank"), ("x" * 150_000, "too_long")])
async def test_ses_10_a_task_is_refused_where_its_first_prompt_would_be(
    shared: Environment, description: str, reason: str
) -> None:
    start = {"task": {"context": {"description": description}}}
    handle = await shared.client.start_workflow(
        "AgenticAIWorkflow", start, id=f"hostile-{uuid4()}", task_queue=shared.task_queue
    )
    with pytest.raises(WorkflowFailureError) as failed:
        await handle.result(rpc_timeout=timedelta(seconds=BOUND))
    assert isinstance(failed.value.cause, ApplicationError)
    assert failed.value.cause.type == reason


async def test_ses_10_a_carried_state_without_contradictions_is_taken_up(env: Environment) -> None:
    before = session()
    send(before, "hello", id="p1")
    answer_turn(before)
    driven = await env.start(before.carry())
    await driven.prompt("and now?")
    assert [turn.user_message for turn in await driven.idle(turns=2)] == ["hello", "and now?"]


async def test_ses_10_every_state_that_a_run_has_carried_is_accepted() -> None:
    later_runs = [path for path in RECORDED if path.name.removesuffix(".json.gz").count(".") == 1]
    assert len(later_runs) >= 5
    for path in later_runs:
        started = history(path).events[0]
        attributes = started.workflow_execution_started_event_attributes
        (carried,) = await DATA_CONVERTER.decode(attributes.input.payloads, [SessionInput])
        assert carried.carried is not None, path
        check_outside_start(carried, now=started.event_time.ToDatetime(tzinfo=UTC))


def test_ses_10_a_carried_running_turn_is_accepted() -> None:
    before = session()
    send(before, "hello", id="p1")
    before.begin_turn(now=at(1))
    start = before.carry().model_dump(mode="json")
    start["carried"]["running"] = terms(deadline=at(3_600))
    check_outside_start(read_start(start, extra_arguments=0), now=at(2))


@pytest.mark.parametrize("state", HOSTILE_STATES.values(), ids=HOSTILE_STATES)
def test_ses_10_a_hostile_state_is_rejected_and_its_field_is_named(state: dict[str, Any]) -> None:
    with pytest.raises(RejectedError) as refusal:
        check_outside_start(read_start({"carried": {**NEW_STATE, **state}}, extra_arguments=0), now=datetime.now(UTC))
    assert "unknown field" not in refusal.value.message
    assert not refusal.value.field or refusal.value.field.startswith("carried.")
