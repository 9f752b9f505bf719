"""What a worker leaves to the SDK's sandbox: no module of ours, and no payload unless a codec asks for it (OPS-8)."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import (
    ActivitySerializationContext,
    PayloadCodec,
    SerializationContext,
    WithSerializationContext,
    WorkflowSerializationContext,
)
from temporalio.worker.workflow_sandbox import _runner

from tests.harness import environment
from turnkeeper.workflows.agentic_ai_workflow import AgenticAIWorkflow


class RecordingCodec(PayloadCodec, WithSerializationContext):
    """Changes nothing, and records for which activities and sessions it has encoded."""

    def __init__(self, names: set[str], name: str = "") -> None:
        self._names = names
        self._name = name

    def with_context(self, context: SerializationContext) -> "RecordingCodec":
        match context:
            case ActivitySerializationContext(activity_type=str(name)):
                return RecordingCodec(self._names, name)
            case WorkflowSerializationContext(workflow_id=name):
                return RecordingCodec(self._names, name)
        return self

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        self._names.add(self._name)
        return list(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return list(payloads)


async def test_ops_8_a_codec_is_still_told_which_activity_a_payload_is_for(temporal: Client) -> None:
    names: set[str] = set()
    converter = dataclasses.replace(pydantic_data_converter, payload_codec=RecordingCodec(names))
    async with environment(Client(**{**temporal.config(), "data_converter": converter})) as env:
        session = await env.start()
        await session.prompt("hi")
        await session.idle(turns=1)
    assert {"list_tools", "call_model", session.handle.id} <= names
    assert "" not in names


async def test_ops_8_without_a_codec_no_payload_enters_the_sandbox(
    temporal: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError

    for name in ("get_serialization_context", "get_external_store_context"):
        monkeypatch.setattr(_runner._Instance, name, refuse)
    async with environment(temporal) as env:
        session = await env.start()
        await session.prompt("hi")
        (turn,) = await session.idle(turns=1)
    assert turn.agent_message == "echo: hi"


async def test_ops_8_a_session_runs_the_module_that_the_worker_has_loaded_and_no_copy_of_it(
    temporal: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    created: list[object] = []
    init = AgenticAIWorkflow.__init__

    def counting(session: AgenticAIWorkflow, *args: Any) -> None:
        created.append(session)
        init(session, *args)

    monkeypatch.setattr(AgenticAIWorkflow, "__init__", counting)
    async with environment(temporal) as env:
        session = await env.start()
        await session.prompt("hi")
        await session.idle(turns=1)
    assert created
