"""What a task waits for is seen and decided from its parent: AGT-8, TSK-4."""

import asyncio
from collections.abc import Collection
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from httpx import AsyncClient

from tests.features.tasks.api.delegating import awaited, create, mailing_sub_task
from tests.harness import BOUND, Environment
from turnkeeper.api.history.approval_reader import ApprovalReader
from turnkeeper.api.history.transcript_reader import TextRestorer
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.models.ids import PublicId, WorkflowId
from turnkeeper.models.session.approvals import PendingApproval, PendingApprovals
from turnkeeper.models.session.messages import StateRequest
from turnkeeper.models.transcript.conversation import BlobRef, SubTask
from turnkeeper.models.transcript.model_call import ToolSpec


async def test_agt_8_an_approval_of_a_task_is_listed_at_its_parent_and_decided_at_it(
    http: AsyncClient, env: Environment
) -> None:
    env.tools.specs = [ToolSpec(name="send_mail")]
    env.vendor.answer = mailing_sub_task
    session = await env.start()
    await session.prompt("Tell bob.")
    await session.until(lambda state: any(task.status == "input_required" for task in state.session.tasks))
    parent, child = session.handle.id, f"{session.handle.id}.task-1"
    listed = (await http.get(f"/workflow/{parent}/approvals")).json()
    (pending,) = listed["approvals"]
    assert (pending["workflow_id"], pending["tool"], pending["args"]) == (child, "send_mail", {"to": "bob"})
    assert (await http.get(f"/workflow/{child}/approvals")).json()["approvals"] == [pending]
    decision = {"args_digest": pending["args_digest"], "decision": "approve"}
    path = f"/workflow/{pending['workflow_id']}/approvals/{pending['call_id']}"
    assert (await http.post(path, json=decision)).status_code == 200
    (turn,) = await session.idle(turns=1)
    assert turn.agent_message == "All is done."
    assert (await http.get(f"/workflow/{parent}/approvals")).json()["approvals"] == []
    assert [call.args for call in env.tools.calls] == [{"to": "bob"}]


async def test_tsk_4_a_task_waits_with_its_sub_task_for_approval_and_counts_it(
    http: AsyncClient, env: Environment
) -> None:
    env.tools.specs = [ToolSpec(name="send_mail")]
    env.vendor.answer = mailing_sub_task
    task_id = (await create(http, "Tell bob."))["task_id"]
    task = await awaited(http, task_id, "input_required")
    assert task["approvals"] == 1
    (pending,) = (await http.get(f"/workflow/{task_id}/approvals")).json()["approvals"]
    assert pending["workflow_id"] == f"{task_id}.task-1"
    below = (await http.get(f"/tasks/{task_id}.task-1")).json()
    assert (below["status"], below["parent"], below["approvals"]) == ("input_required", task_id, 1)
    cancelled = await http.post(f"/tasks/{task_id}/cancel")
    assert cancelled.status_code == 202
    assert (await awaited(http, task_id))["status"] == "cancelled"
    assert (await awaited(http, f"{task_id}.task-1"))["status"] == "cancelled"
    assert env.tools.calls == []


class HangingStore:
    """A store of large texts whose disk does not answer; it counts the reads."""

    def __init__(self) -> None:
        self.reads = 0

    async def get(self, owner: WorkflowId, hashes: Collection[str]) -> dict[str, str]:
        self.reads += 1
        await asyncio.Event().wait()
        raise AssertionError


class WaitingTree:
    """Reads a session with `calls` waiting calls with large arguments, and as many tasks with as many calls."""

    timeouts = Timeouts()

    def __init__(self, calls: int, tasks: int) -> None:
        self._calls, self._tasks = calls, tasks

    async def pending_approvals(self, workflow_id: WorkflowId) -> PendingApprovals:
        moment = datetime(2026, 1, 1, tzinfo=UTC)
        approvals = [
            PendingApproval(
                call_id=f"1.1.{number}",
                message_id="m1",
                tool="send_mail",
                args_blob=BlobRef(hash=f"{number:064x}", chars=5_000, bytes=5_000),
                args_digest="0" * 64,
                asked_at=moment,
                expires_at=moment,
            )
            for number in range(self._calls)
        ]
        return PendingApprovals(approvals=approvals)

    async def state(self, workflow_id: WorkflowId, request: StateRequest) -> SimpleNamespace:
        waiting = {"call_id": "1.1.1", "title": "t", "background": True, "status": "input_required"}
        count = 0 if ".task-" in workflow_id else self._tasks
        tasks = [SubTask(task_id=PublicId(f"s1.task-{number}"), **waiting) for number in range(count)]
        return SimpleNamespace(status="awaiting_approval", session=SimpleNamespace(tasks=tasks))


async def test_api_2_approvals_are_listed_in_time_while_the_store_hangs() -> None:
    store: Any = HangingStore()
    tree: Any = WaitingTree(calls=4, tasks=40)
    async with asyncio.timeout(Timeouts().request + BOUND):
        pending = await ApprovalReader(tree, TextRestorer(store)).pending(WorkflowId("s1"))
    assert (len(pending.approvals), pending.omitted) == (4 * 41, 0)
    assert not any(approval.is_whole for approval in pending.approvals)
    assert 1 <= store.reads <= 41
