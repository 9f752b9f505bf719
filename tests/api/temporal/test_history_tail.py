"""What a gateway learns from the end of a history, and when it reads it: SES-6."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest
from httpx import AsyncClient
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import (
    GetWorkflowExecutionHistoryReverseRequest,
    GetWorkflowExecutionHistoryReverseResponse,
)
from temporalio.client import Client
from temporalio.converter import DataConverter

from tests.api.conftest import SessionRequests
from tests.harness import BOUND, Environment
from tests.waiting import until
from turnkeeper.api.prompts.fate_reader import TAIL_BYTES, TAIL_PROMPTS
from turnkeeper.api.temporal import queue_estimates
from turnkeeper.api.temporal.history_tail import HistoryTailReader
from turnkeeper.models.session.messages import SessionInput

DEEP = 9_000
"""Signals after the first prompt: below what Temporal takes for one run."""


class History:
    """Temporal's history service for one run, as the gateway reads it: newest events first, in pages."""

    def __init__(self, events: Sequence[HistoryEvent]) -> None:
        self._newest_first = list(reversed(events))

    async def get_workflow_execution_history_reverse(
        self, request: GetWorkflowExecutionHistoryReverseRequest, **options: Any
    ) -> GetWorkflowExecutionHistoryReverseResponse:
        start = int(request.next_page_token or b"0")
        stop = start + request.maximum_page_size
        page = GetWorkflowExecutionHistoryReverseResponse(
            next_page_token=str(stop).encode() if stop < len(self._newest_first) else b""
        )
        page.history.events.extend(self._newest_first[start:stop])
        return page


def tails_of(events: Sequence[HistoryEvent]) -> HistoryTailReader:
    client = SimpleNamespace(
        workflow_service=History(events), namespace="default", data_converter=DataConverter.default
    )
    return HistoryTailReader(cast(Client, client))


async def signal(name: str, argument: Any) -> HistoryEvent:
    event = HistoryEvent(event_type=EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED)
    attributes = event.workflow_execution_signaled_event_attributes
    attributes.signal_name = name
    attributes.input.payloads.extend(await DataConverter.default.encode([argument]))
    return event


async def test_ses_6_a_prompt_is_found_behind_thousands_of_signals_that_no_workflow_task_has_taken() -> None:
    prompt, other = await signal("prompt", {"id": "deep", "text": "hi"}), await signal("end_chat", None)
    tail = await tails_of([prompt] + [other] * DEEP).read(
        "s", max_prompts=TAIL_PROMPTS, max_bytes=TAIL_BYTES, seconds=BOUND, until_id="deep"
    )
    assert (set(tail.sizes), tail.is_whole) == ({"deep"}, True)


async def test_ses_6_a_tail_says_so_when_prompts_were_left_out() -> None:
    prompts = [await signal("prompt", {"id": f"m{number}", "text": "hi"}) for number in range(300)]
    tails = tails_of(prompts)
    for max_prompts, is_whole in ((299, False), (300, True)):
        tail = await tails.read("s", max_prompts=max_prompts, max_bytes=TAIL_BYTES, seconds=BOUND)
        assert (tail.count, tail.is_whole) == (max_prompts, is_whole)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sessions whose histories the gateway reads for a prompt."""
    sessions: list[str] = []
    for name in ("read", "first_limits"):
        method = getattr(HistoryTailReader, name)

        async def reading(self: HistoryTailReader, session_id: str, method: Any = method, **options: Any) -> Any:
            sessions.append(session_id)
            return await method(self, session_id, **options)

        monkeypatch.setattr(HistoryTailReader, name, reading)
    return sessions


async def test_ses_6_while_a_worker_answers_no_history_is_read_before_a_prompt(
    url: str, env: Environment, session_requests: SessionRequests, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_estimates, "FRESH_SECONDS", BOUND)  # as on a machine that is not busy
    recent = f"a-{uuid4()}"
    unknown = await env.start(SessionInput())
    async with AsyncClient(base_url=url, timeout=BOUND) as http:
        await http.post("/workflow", json={"id": recent})

        async def has_position() -> bool:
            answer = await http.post(f"/workflow/{recent}/prompt", json={"message": "hi"})
            return answer.json()["position"] is not None

        await until(has_position)
        reads.clear()
        for session, status in ((unknown.handle.id, 202), (f"a-{uuid4()}", 404)):
            answer = await http.post(f"/workflow/{session}/prompt", json={"message": "hi"})
            assert answer.status_code == status
        started = await http.post(f"/workflow/a-{uuid4()}/prompt?start=true", json={"message": "hi"})
        assert started.status_code == 202
        assert reads == []
        await unknown.idle(turns=1)
