"""A gateway of this release before workers of an earlier one, which answer `get_queue` for one id or for all: API-1."""

import asyncio
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from httpx import AsyncClient

from tests.api.conftest import SessionRequests
from tests.harness import BOUND, Environment
from turnkeeper.api.temporal.queue_estimates import queue_read_of
from turnkeeper.models.limits import Limits
from turnkeeper.models.session import messages
from turnkeeper.models.session.messages import MessageId
from turnkeeper.models.session.queue.prompt_queue import PromptQueue
from turnkeeper.models.session.queue.prompts import QueuedPrompt, QueueView
from turnkeeper.models.wire import Strict


class EarlierQueueRequest(Strict):
    """The argument of `get_queue` before a session could be asked for several prompts."""

    message_id: MessageId | None = None

    @property
    def ids(self) -> list[str] | None:
        return self.message_id and [self.message_id]


EARLIER_FIELDS = {"waiting", "fates", "revision", "refusing", "refusing_because"}


@pytest.fixture(autouse=True)
def earlier_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    view = PromptQueue.view

    def earlier_view(self: PromptQueue, **options: Any) -> QueueView:
        return QueueView.model_validate(view(self, **options).model_dump(include=EARLIER_FIELDS))

    monkeypatch.setattr(messages, "QueueRequest", EarlierQueueRequest)
    monkeypatch.setattr(PromptQueue, "view", earlier_view)


async def test_api_1_workers_of_an_earlier_release_say_where_prompts_stand(
    url: str, env: Environment, session_requests: SessionRequests
) -> None:
    session, ids = f"a-{uuid4()}", [f"m{number}" for number in range(8)]
    path = f"/workflow/{session}/prompt"
    async with AsyncClient(base_url=url, timeout=BOUND) as http:
        await http.post("/workflow", json={"id": session, "limits": {"max_queued_prompts": 8}})
        env.vendor.gate.close()
        first = await http.post(path, json={"message": "slow", "id": "running"})
        assert first.json()["position"] in (0, 1)
        await env.vendor.gate.until_arrived(1)
        assert (await http.get(f"/workflow/{session}/queue")).json()["waiting"] == []
        session_requests.clear()
        answers = await asyncio.gather(*(http.post(path, json={"message": "hi", "id": one}) for one in ids))
        assert sorted(answer.json()["position"] for answer in answers) == list(range(1, 9))
        assert set(session_requests.queries) == {"get_queue"}
        positions = {one: answer.json()["position"] for one, answer in zip(ids, answers, strict=True)}
        for one in ids:
            fate = await http.get(f"/workflow/{session}/queue/{one}")
            assert (fate.status_code, fate.json()["fate"], fate.json()["position"]) == (200, "waiting", positions[one])
        assert (await http.get(f"/workflow/{session}/queue/running")).json()["fate"] == "started"
        assert len((await http.get(f"/workflow/{session}/queue")).json()["waiting"]) == 8
        env.vendor.gate.open()
        await env.adopt(env.client.get_workflow_handle(session)).idle(turns=9)


def test_ses_6_the_queue_of_an_earlier_worker_is_as_long_as_the_places_that_it_names() -> None:
    at = datetime.now(UTC)
    last = QueuedPrompt(id="m5", text="hi", position=5, mode="enqueue", received_at=at)
    for waiting, length in (([last], 5), ([], 0)):
        read = queue_read_of(QueueView(waiting=waiting, fates=[], revision=1), asked_at=0.0)
        assert (read.length, read.max_prompts) == (length, Limits().max_queued_prompts)
