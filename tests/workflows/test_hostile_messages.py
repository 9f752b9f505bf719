"""No caller can block a session with messages that are refused (SES-10)."""

import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
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
from tests.models.builders import NOW, answer_turn, send, session
from turnkeeper.features.tasks.session.allowance import AllowanceAnswer, AllowanceRequest
from turnkeeper.features.tasks.session.task_state import TaskChange
from turnkeeper.models.errors import RejectedError
from turnkeeper.models.session.approvals import ResolveApproval
from turnkeeper.models.session.archive import ArchiveMoveQuery
from turnkeeper.models.session.messages import (
    CancelTurn,
    Configure,
    ContextRequest,
    EndSession,
    FeatureMessage,
    NoArgument,
    QueueRequest,
    SessionInput,
    StateRequest,
    WithdrawPrompt,
    configured,
    parse,
    parse_cursor,
    parse_replay_request,
)
from turnkeeper.models.session.prompts import read_prompt
from turnkeeper.models.session.start import check_outside_start, read_start
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
    *("carried", "first_prompt", "system_prompt", "features", "body"),
]
PARTS = ["transcript", "queue", "context", "tools", "archive", "features", "moved_events", "running", "usage"]

READERS: dict[str, Callable[[Any], object]] = {
    "prompt": lambda raw: read_prompt(raw, extra_arguments=0, new_id="n", now=NOW),
    "start": lambda raw: check_outside_start(read_start(raw, extra_arguments=0)),
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
    "feature_message": lambda raw: parse(FeatureMessage, raw),
    "task_changed": lambda raw: parse(TaskChange, raw),
    "request_allowance": lambda raw: parse(AllowanceRequest, raw),
    "grant_allowance": lambda raw: parse(AllowanceAnswer, raw),
}


def of_task(task: object) -> dict[str, object]:
    """Return the start of a session that is to be the task."""
    return {"features": {"tasks": {"task": task}}}


def hostile_arguments(reader: str) -> list[Any]:
    arguments: list[Any] = [MANY, *VALUES, *({field: value} for field in FIELDS for value in VALUES)]
    if reader == "start":
        arguments += [value for raw in VALUES for value in (of_task(raw), {"features": {"tasks": raw}})]
        arguments += [{"carried": {**NEW_STATE, part: value}} for part in PARTS for value in VALUES]
    return arguments


@pytest.mark.parametrize("reader", READERS)
def test_ses_10_any_input_is_read_or_rejected_within_half_a_second_and_a_kilobyte(reader: str) -> None:
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


async def test_ses_10_a_rejected_update_has_at_most_2_kb_and_blocks_nothing(env: Environment) -> None:
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


async def test_ses_10_hostile_signals_and_queries_block_nothing(env: Environment) -> None:
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


NEW_STATE = {"created_at": "2026-01-01T00:00:00Z", "revision": 1}

HOSTILE_STARTS: dict[str, Any] = {
    "a carried state": {"carried": NEW_STATE},
    "a carried state that is none": {"carried": {**NEW_STATE, "revision": 10**30, "transcript": {"turns": [{}]}}},
    "a user no search attribute takes": {"user": "x" * 5_000},
    "a system prompt that can't be carried": {"system_prompt": "x" * 1_900_000},
    "limits of 170,000 keys": {"limits": MANY},
    "a first prompt of 170,000 keys": {"first_prompt": MANY},
    "a task without a first prompt": of_task({}),
    "a task whose parent has no id": of_task({"context": {"description": "x"}, "parent": "a/b"}),
    "a task that stays open for less than no time": of_task({"context": {"description": "x"}, "open_seconds": -1}),
    "a feature that is not enabled": {"features": {"telepathy": {}}},
    "a feature that is no object": {"features": {"tasks": 7}},
    "too many features": {"features": {str(number): {} for number in range(100_000)}},
    "a number": 7,
    "a list": [0] * 900_000,
}


@pytest.fixture(scope="module")
async def shared(temporal: Client) -> AsyncIterator[Environment]:
    """An environment for sessions that never ask a model."""
    async with environment(temporal) as env:
        yield env


@pytest.mark.parametrize("start", HOSTILE_STARTS.values(), ids=HOSTILE_STARTS)
async def test_ses_10_a_hostile_start_is_rejected_and_never_stuck(shared: Environment, start: Any) -> None:
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
async def test_ses_10_a_task_is_rejected_for_the_same_reasons_as_its_first_prompt(
    shared: Environment, description: str, reason: str
) -> None:
    start = of_task({"context": {"description": description}})
    handle = await shared.client.start_workflow(
        "AgenticAIWorkflow", start, id=f"hostile-{uuid4()}", task_queue=shared.task_queue
    )
    with pytest.raises(WorkflowFailureError) as failed:
        await handle.result(rpc_timeout=timedelta(seconds=BOUND))
    assert isinstance(failed.value.cause, ApplicationError)
    assert failed.value.cause.type == reason


async def test_ses_10_a_carried_state_from_outside_is_rejected(env: Environment) -> None:
    before = session()
    send(before, "hello", id="p1")
    answer_turn(before)
    driven = await env.start(before.carry())
    with pytest.raises(WorkflowFailureError) as failed:
        await driven.handle.result(rpc_timeout=timedelta(seconds=BOUND))
    assert "carried: only the run before brings it" in str(failed.value.cause)


HOSTILE_ORDERS: dict[str, Any] = {
    "nothing": None,
    "a list": [0] * 900_000,
    "a carried state": {"start": {"carried": NEW_STATE}, "document": "0" * 64},
    "nothing to copy": {"start": {}},
    "two things to copy": {"start": {}, "document": "0" * 64, "fork": {"session": "s", "first_run_id": "", "turn": 1}},
    "a number of no turn": {"start": {}, "fork": {"session": "s", "first_run_id": "", "turn": 0}},
    "an original that does not exist": {"start": {}, "fork": {"session": "s", "first_run_id": "r", "turn": 1}},
}


@pytest.mark.parametrize("order", HOSTILE_ORDERS.values(), ids=HOSTILE_ORDERS)
async def test_ses_18_a_hostile_copy_request_fails_and_is_never_stuck(shared: Environment, order: Any) -> None:
    handle = await shared.client.start_workflow(
        "CopySession", order, id=f"hostile-{uuid4()}", task_queue=shared.task_queue
    )
    with pytest.raises(WorkflowFailureError) as failed:
        await handle.result(rpc_timeout=timedelta(seconds=BOUND))
    cause = failed.value.cause
    assert isinstance(cause, ApplicationError)
    assert cause.failure is not None
    assert cause.failure.ByteSize() <= REFUSAL_BYTES
