"""A worker without the SDK's sandbox: codecs, modules that are loaded once, and foreign log handlers (OPS-8)."""

import dataclasses
import logging
import sys
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.logging import RichHandler
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client
from temporalio.converter import (
    ActivitySerializationContext,
    PayloadCodec,
    SerializationContext,
    WithSerializationContext,
    WorkflowSerializationContext,
)

from tests.harness import environment
from turnkeeper.stores.temporal.payload_converter import DATA_CONVERTER
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


async def test_ops_8_a_codec_still_receives_the_activity_that_a_payload_is_for(temporal: Client) -> None:
    names: set[str] = set()
    converter = dataclasses.replace(DATA_CONVERTER, payload_codec=RecordingCodec(names))
    async with environment(Client(**{**temporal.config(), "data_converter": converter})) as env:
        session = await env.start()
        await session.prompt("hi")
        await session.idle(turns=1)
    assert {"list_tools", "call_model", session.handle.id} <= names
    assert "" not in names


class LateImports(logging.Handler):
    """A handler as applications have them: it imports a package when it first has something to write.

    The package is loaded in a circle and marks itself as it is loaded, like `rich` and many others.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.lines: list[str] = []
        (folder / "late_lines").mkdir()
        (folder / "late_lines" / "__init__.py").write_text(
            "import datetime, pathlib\nfrom late_lines.lines import line"
        )
        (folder / "late_lines" / "lines.py").write_text(
            "import json, random, time, late_lines\n"
            "loaded_at = time.time(), random.random(), late_lines.datetime.datetime.now(), open(__file__).read()\n"
            "def line(record):\n    return json.dumps({'at': time.time(), 'message': record.getMessage()})\n"
        )

    def emit(self, record: logging.LogRecord) -> None:
        from late_lines import line

        self.lines.append(line(record))


@pytest.mark.parametrize("handler", ["rich", "late imports"])
async def test_ops_8_a_session_works_with_any_log_handler_of_the_application(
    temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handler: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    late, lines = LateImports(tmp_path), StringIO()
    chosen = RichHandler(console=Console(file=lines, width=200)) if handler == "rich" else late
    by_workflows = logging.getLogger("temporalio.workflow")  # so that the first line is written in a workflow's thread
    by_workflows.addHandler(chosen)
    try:
        async with environment(temporal) as env:
            session = await env.start()
            await session.prompt("hi")
            (turn,) = await session.idle(turns=1)
            (history,) = await session.histories()
    finally:
        by_workflows.removeHandler(chosen)
        for name in ("late_lines", "late_lines.lines"):
            sys.modules.pop(name, None)
    assert turn.agent_message == "echo: hi"
    assert EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED not in [event.event_type for event in history.events]
    assert "Conversation: 2 messages" in (lines.getvalue() if handler == "rich" else "".join(late.lines))


async def test_ops_8_a_session_runs_the_workers_own_module_and_not_a_copy(
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
