"""Payloads that can't be decoded, sent straight to Temporal: each gets a fate or an error (SES-5, SES-10)."""

import asyncio
import zlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowFailureError, WorkflowQueryFailedError, WorkflowUpdateFailedError
from temporalio.common import RawValue
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.exceptions import ApplicationError

from tests.harness import BOUND, DrivenSession, Environment, environment, replayer
from tests.waiting import until
from turnkeeper.models.session.messages import CarriedState, SessionInput
from turnkeeper.models.session.prompts import REMEMBERED_FATES
from turnkeeper.models.wire import UndecodablePayload
from turnkeeper.stores.temporal.payload_converter import DATA_CONVERTER

ENCODINGS = [
    *(b"json/plain", b"json/protobuf", b"binary/protobuf", b"binary/null", b"binary/plain", b"binary/encrypted"),
    *(b"json/gzip", b"json/zlib", b"", b"\xff\xfe", b"x" * 5_000),
]
CONTENTS = [b"", b"{", b"\xff\xff", b'"\\ud800', b"[" * 200_000, b"1" * 5_000, b"NaN", b'{"text": 1e999}', b"\x00" * 20]
COMPRESSED = [zlib.compress(content) for content in CONTENTS]
DAMAGED = [zlib.compress(b'"cut off"')[:-3], zlib.compress(b'"and more"') + b"!", zlib.compress(b" " * 10**8)]
PAYLOADS = [
    Payload(metadata={"encoding": encoding}, data=content) for encoding in ENCODINGS for content in CONTENTS
] + [
    *(Payload(metadata={"encoding": b"json/zlib"}, data=content) for content in COMPRESSED + DAMAGED),
    Payload(data=b'{"text": "without an encoding"}'),
    Payload(metadata={"encoding": b"binary/protobuf", "messageType": b"no.such.Message"}, data=b"\x08\x01"),
    Payload(metadata={"encoding": b"json/protobuf", "messageType": b"google.protobuf.Timestamp"}, data=b"{}"),
    Payload(metadata={"encoding": b"binary/protobuf", "messageType": b"google.protobuf.Timestamp"}, data=b"\xff"),
]
"""Payloads of any encoding, with and without matching data. Some decode to a value that is not a prompt."""

INVALID = [
    payload
    for payload in PAYLOADS
    if not isinstance(DATA_CONVERTER.payload_converter.from_payloads([payload])[0], dict | None)
]
"""Without those that decode to an object or to null, which are valid arguments."""

AT_ONCE = 25


@pytest.fixture(scope="module")
async def shared(temporal: Client) -> AsyncIterator[Environment]:
    async with environment(temporal) as env:
        yield env


async def gather(*calls: Any) -> list[Any]:
    """Make the calls, a few at a time; return their results and exceptions."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(call: Any) -> Any:
        async with slots:
            return await call

    return await asyncio.gather(*map(one, calls), return_exceptions=True)


def raw(payload: Payload) -> RawValue:
    return RawValue(payload)


async def failed_tasks(driven: DrivenSession) -> list[str]:
    """Return why workflow tasks of the session failed."""
    return [
        event.workflow_task_failed_event_attributes.failure.message
        for event in (await driven.handle.fetch_history()).events
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
    ]


async def test_ses_5_a_signal_with_any_payload_is_rejected_with_a_reason(shared: Environment) -> None:
    driven = await shared.start()
    results = await gather(*(driven.handle.signal("prompt", raw(payload)) for payload in PAYLOADS))
    assert set(results) == {None}
    fates = await until(lambda: recorded_fates(driven, len(PAYLOADS)))
    assert {(fate.fate, fate.refusal) for fate in fates} <= {("rejected", "invalid"), ("rejected", "blank")}
    assert any("can't be decoded as 'binary/encrypted'" in (fate.reason or "") for fate in fates)
    assert all(len((fate.reason or "").encode()) <= 500 for fate in fates)
    await driven.prompt("hello")
    assert [turn.user_message for turn in await driven.idle(turns=1)] == ["hello"]
    assert await failed_tasks(driven) == []
    for history in await driven.histories():
        await replayer().replay_workflow(history)


async def recorded_fates(driven: DrivenSession, count: int) -> Any:
    fates = (await driven.queue()).fates
    return fates if len(fates) >= min(count, REMEMBERED_FATES) else None


@pytest.mark.parametrize("signal", ["end_chat", "feature_message"])
async def test_ses_5_other_signals_with_any_payload_block_nothing(shared: Environment, signal: str) -> None:
    driven = await shared.start()
    await driven.prompt("hello")
    await driven.idle(turns=1)
    await driven.handle.signal(signal, raw(PAYLOADS[1]))
    if signal == "feature_message":
        await driven.handle.signal("end_chat")
    assert (await driven.handle.result())["status"] == "ended"
    assert await failed_tasks(driven) == []


@pytest.mark.parametrize("update", ["withdraw_prompt", "cancel_turn", "resolve_approval", "configure", "end_session"])
async def test_ses_5_an_update_with_any_payload_is_rejected_by_its_validator(shared: Environment, update: str) -> None:
    driven = await shared.start()
    payloads = INVALID[::4]
    for error in await gather(*(driven.update(update, raw(payload)) for payload in payloads)):
        assert isinstance(error, WorkflowUpdateFailedError)
        assert isinstance(error.cause, ApplicationError)
        assert error.cause.type == "invalid"
        assert error.cause.failure
        assert error.cause.failure.ByteSize() <= 2_048
    await driven.prompt("hello")
    await driven.idle(turns=1)
    assert await failed_tasks(driven) == []


@pytest.mark.parametrize("query", ["get_conversation_state", "get_conversation_updates", "get_queue"])
async def test_ses_5_a_query_with_any_payload_fails_with_a_reason(shared: Environment, query: str) -> None:
    driven = await shared.start()
    payloads = INVALID[::4]
    answers = await gather(*(driven.handle.query(query, raw(payload)) for payload in payloads))
    refused = [answer for answer in answers if isinstance(answer, WorkflowQueryFailedError)]
    # A string is a message id to `get_conversation_updates`.
    assert len(refused) >= len(payloads) - 2
    assert {str(error)[:9] for error in refused} == {"Refused: "}


@pytest.mark.parametrize("workflow", ["AgenticAIWorkflow", "CopySession", "DeleteSession"])
async def test_ses_5_a_start_with_any_payload_fails_as_invalid(shared: Environment, workflow: str) -> None:
    async def start(payload: Payload) -> str:
        handle = await shared.client.start_workflow(
            workflow, raw(payload), id=f"raw-{uuid4()}", task_queue=shared.task_queue
        )
        with pytest.raises(WorkflowFailureError) as failed:
            await handle.result(rpc_timeout=timedelta(seconds=BOUND))
        assert isinstance(failed.value.cause, ApplicationError)
        return failed.value.cause.type or ""

    assert set(await gather(*map(start, INVALID))) == {"invalid"}


async def test_ses_5_a_start_with_two_undecodable_arguments_fails_as_invalid(shared: Environment) -> None:
    handle = await shared.client.start_workflow(
        "AgenticAIWorkflow", args=[raw(PAYLOADS[1]), raw(PAYLOADS[-1])], id=f"r-{uuid4()}", task_queue=shared.task_queue
    )
    with pytest.raises(WorkflowFailureError) as failed:
        await handle.result(rpc_timeout=timedelta(seconds=BOUND))
    assert isinstance(failed.value.cause, ApplicationError)
    assert failed.value.cause.type == "invalid"


@pytest.mark.parametrize("payload", PAYLOADS)
def test_ses_5_the_converter_returns_a_value_for_any_payload(payload: Payload) -> None:
    (value,) = DATA_CONVERTER.payload_converter.from_payloads([payload])
    plain = payload
    if payload.data in COMPRESSED and payload.metadata["encoding"] == b"json/zlib":
        plain = Payload(metadata={"encoding": b"json/plain"}, data=zlib.decompress(payload.data))
    try:
        (expected,) = pydantic_data_converter.payload_converter.from_payloads([plain])
    except Exception:  # noqa: BLE001
        assert isinstance(value, UndecodablePayload)
        assert value.size == len(payload.data)
        assert len(str(value)) < 200
    else:
        assert str(value) == str(expected)


@pytest.mark.parametrize("data", DAMAGED, ids=["cut off", "longer", "of 100 MB"])
def test_ses_5_compressed_data_that_is_damaged_or_too_large_is_not_decoded(data: bytes) -> None:
    payload = Payload(metadata={"encoding": b"json/zlib"}, data=data)
    (value,) = DATA_CONVERTER.payload_converter.from_payloads([payload])
    assert isinstance(value, UndecodablePayload)
    with pytest.raises(ValueError, match="is damaged or too large"):
        DATA_CONVERTER.payload_converter.from_payloads([payload], [dict])


def test_ops_8_a_long_carried_state_is_compressed_and_nothing_else_is() -> None:
    to_payloads, from_payloads = (
        DATA_CONVERTER.payload_converter.to_payloads,
        DATA_CONVERTER.payload_converter.from_payloads,
    )
    state = CarriedState(created_at=datetime(2026, 1, 1, tzinfo=UTC), revision=7)
    short, long = SessionInput(carried=state), SessionInput(system_prompt="Be kind. " * 1_000, carried=state)
    (payload,) = to_payloads([long])
    assert payload.metadata["encoding"] == b"json/zlib"
    assert len(payload.data) < 1_000
    assert from_payloads([payload], [SessionInput]) == [long]
    assert from_payloads([payload]) == [long.model_dump(mode="json")]
    others = to_payloads([short, long.model_copy(update={"carried": None}), long.model_dump(mode="json"), "x" * 9_000])
    assert {other.metadata["encoding"] for other in others} == {b"json/plain"}


def test_ses_5_a_typed_value_still_has_to_decode() -> None:
    with pytest.raises(ValueError, match="1 validation error"):
        DATA_CONVERTER.payload_converter.from_payloads(
            [Payload(metadata={"encoding": b"json/plain"}, data=b"{")], [int]
        )
    stamp = Timestamp(seconds=7)
    payloads = DATA_CONVERTER.payload_converter.to_payloads([stamp, {"a": 1}])
    assert DATA_CONVERTER.payload_converter.from_payloads(payloads, [Timestamp, dict]) == [stamp, {"a": 1}]
