"""Tasks from Python: API-8, TSK-2, TSK-4."""

from collections.abc import AsyncIterator

import pytest

from tests.waiting import until
from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.clients.python.request_sender import GatewayProblemError
from turnkeeper.models.http_responses import Task


@pytest.fixture
async def gateway(url: str) -> AsyncIterator[GatewayClient]:
    async with GatewayClient(url, patience=0.0) as client:
        yield client


async def test_api_8_a_task_is_created_awaited_listed_steered_and_cancelled(gateway: GatewayClient) -> None:
    parent = (await gateway.start()).workflow_id
    history = [{"role": "user", "content": "The colour is teal."}]
    receipt = await gateway.tasks.create("Paint it.", conversation_history=history, parent=parent, priority="P1")
    assert (receipt.status, receipt.context.kept) == ("working", 1)
    assert [warning.code for warning in receipt.warnings] == ["missing_timestamp"]
    task = await gateway.tasks.get(receipt.task_id, wait_seconds=30)
    assert (task.status, task.is_final, task.parent) == ("completed", True, parent)
    assert task.result is not None
    assert task.result.answer is not None
    assert "The colour is teal." in task.result.answer

    async def listed() -> list[Task]:
        return (await gateway.tasks.list(parent=parent, status="completed")).tasks

    assert [task.task_id for task in await until(listed)] == [receipt.task_id]
    accepted = await gateway.tasks.message(receipt.task_id, "and now?")
    assert accepted.workflow_id == receipt.task_id
    again = await gateway.tasks.get(receipt.task_id, wait_seconds=30)
    assert again.result is not None
    assert again.result.answer == "echo: and now?"
    assert (await gateway.tasks.cancel(receipt.task_id, reason="Done.")).status == "completed"


async def test_tsk_2_the_same_key_is_the_same_task_and_an_error_names_its_field(gateway: GatewayClient) -> None:
    first = await gateway.tasks.create("Paint it.")
    assert (await gateway.tasks.create("Paint it.")).task_id != first.task_id
    key = first.task_id
    twice = [await gateway.tasks.create("Paint it.", idempotency_key=key) for _ in range(2)]
    assert twice[0].task_id == twice[1].task_id
    with pytest.raises(GatewayProblemError) as other:
        await gateway.tasks.create("Paint that.", idempotency_key=key)
    assert other.value.problem.name == "idempotency-key-reused"
    with pytest.raises(GatewayProblemError) as invalid:
        await gateway.tasks.create("Paint it.", priority="P9")
    (error,) = invalid.value.problem.errors or []
    assert (error.field, error.value) == ("priority", "'P9'")
