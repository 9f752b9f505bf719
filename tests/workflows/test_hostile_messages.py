"""No caller can block a session with messages that are refused (SES-10)."""

import json
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import (
    Client,
    WorkflowFailureError,
    WorkflowHistory,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
)
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.exceptions import ApplicationError

from tests.harness import BOUND, Environment, environment
from tests.models.builders import NOW, answer_turn, at, send, session
from tests.replay.record import HISTORIES
from tests.replay.test_replay import RECORDED
from turnkeeper.models.errors import RejectedError
from turnkeeper.models.limits import Limits
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
from turnkeeper.models.transcript.model_call import ModelRequestQuery

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
FLAT_FIELDS = ["turns", "view", "taken_ids", "fates", "waiting", "tools", "allowances", "context", "queue", "running"]
"""Of a state as earlier releases carried it."""
PARTS = ["transcript", "queue", "context", "tools", "archive", "moved_events", "running"]

READERS: dict[str, Callable[[Any], object]] = {
    "prompt": lambda raw: read_prompt(raw, extra_arguments=0, new_id="n", now=NOW, limits=Limits()),
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
}


def hostile_arguments(reader: str) -> list[Any]:
    arguments: list[Any] = [MANY, *VALUES, *({field: value} for field in FIELDS for value in VALUES)]
    if reader == "start":
        base = {"created_at": NOW, "revision": 1}
        arguments += [{"carried": {**base, field: value}} for field in FLAT_FIELDS for value in VALUES]
        arguments += [{"carried": {"state": value}} for value in VALUES]
        arguments += [{"carried": {"state": {**base, part: value}}} for part in PARTS for value in VALUES]
        arguments += [{"carried": {"state": {**base, "queue": {"row": {"parked": value}}}}} for value in VALUES]
        arguments += [{"carried": {**base, "context": {"cut": dict.fromkeys(MANY, "x")}}}]
        arguments += [{"carried": {**base, "view": [{"turn": "a", "messages": [0] * 500_000}]}}]
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


HOSTILE_STATES: dict[str, dict[str, Any]] = {
    "a running turn, and no turns": {"running": terms()},
    "a running turn that has ended": {"turns": [turn()], "turn_count": 1, "running": terms()},
    "a turn that has not ended and does not run": {"turns": [running_turn()], "turn_count": 1},
    "two running turns": {"turns": [running_turn(), running_turn(id="t2")], "turn_count": 2, "running": terms()},
    "fewer turns than counted": {"turns": [turn()], "turn_count": 7},
    "fewer than are archived": {"archived_count": 3, "turn_count": 1},
    "negative counts": {"archived_count": -1, "turn_count": -1},
    "a negative revision": {"revision": -5},
    "a huge revision": {"revision": 10**30},
    "a huge number of turns": {"archived_count": 2**70, "turn_count": 2**70},
    "the same turn twice": {"turns": [turn(), turn()], "turn_count": 2},
    "revisions that fall": {"turns": [turn(revision=5), turn(id="t2", revision=2)], "turn_count": 2, "revision": 9},
    "a turn newer than the session": {"turns": [turn(revision=50)], "turn_count": 1},
    "a view of turns that are not held": {"view": [{"turn": "nobody"}]},
    "a view of a step that is not there": {"turns": [turn()], "turn_count": 1, "view": [{"turn": "t1", "step": 3}]},
    "a view of a negative step": {"turns": [turn()], "turn_count": 1, "view": [{"turn": "t1", "step": -1}]},
    "a view of a call without a result": {
        "turns": [turn(reasoning_trajectory={"steps": [step(None)]})],
        "turn_count": 1,
        "view": [{"turn": "t1", "step": 0}],
    },
    "evicted entries that are not held": {"context": {"waiting": [{"turn": "nobody"}]}},
    "an unsettled turn without steps": {"turns": [running_turn()], "turn_count": 1, "running": terms(unsettled=True)},
    "a settled step without results": {
        "turns": [running_turn(reasoning_trajectory={"steps": [step(None)]})],
        "turn_count": 1,
        "running": terms(steps=1),
    },
    "a deadline in 9999": {
        "turns": [running_turn()],
        "turn_count": 1,
        "running": terms(deadline="9999-12-31T23:59:59Z", awaiting_since="0001-01-01T00:00:00Z"),
    },
    "an archive that is to be tried in 9999": {"archive_again_at": "9999-12-31T23:59:59Z"},
    "negative steps": {"turns": [running_turn()], "turn_count": 1, "running": terms(steps=-3)},
    "a waiting prompt that is a turn": {
        "turns": [turn()],
        "turn_count": 1,
        "waiting": [{"id": "t1", "text": "again", "received_at": "2026-01-01T00:00:00Z"}],
    },
    "a prompt that steers nothing": {"steering": [{"id": "p", "text": "x", "received_at": "2026-01-01T00:00:00Z"}]},
    "a summary of turns that never were": {"view": [{"turn": "", "summary": {"text": "x", "turns": [[5, 2]]}}]},
    "segment zero": {"segment": 0},
    "no window": {"context": {"halved": {"cap": 0, "model": "offline:", "config": {}}}},
    "a long reason": {"ending": "x" * 10_000},
    "too much to be carried on": {"allowances": ["x" * 1_900_000]},
}

NEW_STATE = {"created_at": "2026-01-01T00:00:00Z", "revision": 1}
A_TASK = {"task_id": "s.task-1", "call_id": "1.1.0", "title": "x"}

HOSTILE_STARTS: dict[str, Any] = {
    **{
        name: {"carried": {"created_at": "2026-01-01T00:00:00Z", "revision": 1, **state}}
        for name, state in HOSTILE_STATES.items()
    },
    "a user no search attribute takes": {
        "user": "x" * 5_000,
        "carried": {"created_at": "2026-01-01T00:00:00Z", "revision": 1},
    },
    "a system prompt that can't be carried": {"system_prompt": "x" * 1_900_000},
    "limits of 170,000 keys": {"limits": MANY},
    "a first prompt of 170,000 keys": {"first_prompt": MANY},
    "a task without a first prompt": {"task": {}},
    "a task whose parent has no id": {"task": {"context": {"description": "x"}, "parent": "a/b"}},
    "a task that stays open for less than no time": {"task": {"context": {"description": "x"}, "open_seconds": -1}},
    "fewer than no tasks": {"carried": {"state": {**NEW_STATE, "tasks": {"started": -1}}}},
    "more tasks than there can be": {"carried": {"state": {**NEW_STATE, "tasks": {"tasks": [A_TASK] * 400}}}},
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
    for path in [path for path in RECORDED if path.name.count(".") == 2]:
        first = json.loads(path.read_text())["events"][0]
        started = WorkflowHistory.from_json("recorded", {"events": [first]}).events[0]
        attributes = started.workflow_execution_started_event_attributes
        (carried,) = await pydantic_data_converter.decode(attributes.input.payloads, [SessionInput])
        assert carried.carried is not None, path
        check_outside_start(carried, now=started.event_time.ToDatetime(tzinfo=UTC))


def test_ses_10_the_histories_with_carried_states_are_there() -> None:
    assert len(list(HISTORIES.glob("*.2.json"))) >= 5


def test_ses_10_a_carried_running_turn_is_accepted() -> None:
    before = session()
    send(before, "hello", id="p1")
    before.begin_turn(now=at(1))
    running = terms(deadline=at(3_600))
    check_outside_start(
        read_start(before.carry().model_dump(mode="json") | {"carried": _carried(before, running)}, extra_arguments=0),
        now=at(2),
    )


def _carried(before: Any, running: dict[str, Any]) -> dict[str, Any]:
    return {"state": {**before.carry().carried.model_dump(mode="json"), "running": running}}
