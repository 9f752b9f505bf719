"""What a task waits for is seen and decided from its parent: AGT-8, TSK-4."""

from httpx import AsyncClient

from tests.api.tasks.delegating import awaited, create, mailing_sub_task
from tests.harness import Environment
from turnkeeper.models.transcript.model_call import ToolSpec


async def test_agt_8_the_approval_of_a_task_is_listed_at_its_parent_and_decided_at_the_task(
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


async def test_tsk_4_a_task_whose_own_task_waits_for_a_person_waits_too_and_counts_its_approvals(
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
