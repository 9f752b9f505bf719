"""Lists of tasks: TSK-4, API-2."""

import asyncio
from typing import Any

import pytest
from httpx import AsyncClient

from tests.api.http.test_bad_input import problem_of
from tests.features.tasks.api.delegating import awaited, create, mailing_sub_task
from tests.harness import UNASKED, Environment, asks, says
from tests.waiting import until
from turnkeeper.activities.providers.protocol import ModelError
from turnkeeper.models.transcript.model_call import ToolSpec


async def listed(http: AsyncClient, **params: Any) -> dict[str, Any]:
    answer = await http.get("/tasks", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def with_tasks(http: AsyncClient, count: int, **params: Any) -> list[dict[str, Any]]:
    """Return the tasks of a list once there are `count`."""

    async def complete() -> list[dict[str, Any]]:
        tasks = (await listed(http, **params))["tasks"]
        return tasks if len(tasks) >= count else []

    return await until(complete)


async def test_tsk_4_tasks_are_listed_by_parent_with_the_status_of_each(http: AsyncClient, env: Environment) -> None:
    env.tools.specs = [ToolSpec(name="send_mail")]
    parent = (await env.start()).handle.id
    env.vendor.script = [
        says("One.\n\nTwo."),
        ModelError("bad_request", "no"),
        asks(("send_mail", {})),
    ]
    ids = []
    for status in ("completed", "failed", "input_required"):
        receipt = await create(http, f"Be {status}.", parent=parent)
        await awaited(http, receipt["task_id"], status)
        ids.append(receipt["task_id"])
    env.vendor.gate.close()
    ids.append((await create(http, "Be working.", parent=parent))["task_id"])
    await env.vendor.gate.until_arrived(4)

    tasks = await with_tasks(http, 4, parent=parent)
    assert [task["task_id"] for task in tasks] == ids[::-1]
    assert [task["status"] for task in tasks] == ["working", "input_required", "failed", "completed"]
    assert [task["title"] for task in tasks][:2] == ["Be working.", "Be input_required."]
    for status, task_id in zip(("completed", "failed", "input_required", "working"), ids, strict=True):
        assert [task["task_id"] for task in await with_tasks(http, 1, parent=parent, status=status)] == [task_id]
    assert (await listed(http, parent=parent, status="cancelled"))["tasks"] == []

    env.vendor.gate.open()
    await http.post(f"/tasks/{ids[3]}/cancel")
    assert (await awaited(http, ids[3]))["status"] in ("cancelled", "completed")
    await http.post(f"/tasks/{ids[2]}/cancel")
    assert (await awaited(http, ids[2]))["status"] == "cancelled"
    cancelled = await with_tasks(http, 1, parent=parent, status="cancelled")
    assert ids[2] in [task["task_id"] for task in cancelled]


async def test_tsk_4_a_list_of_tasks_continues_from_its_cursor_and_has_sub_tasks(
    http: AsyncClient, env: Environment
) -> None:
    env.vendor.answer = mailing_sub_task
    session = await env.start(UNASKED)
    await session.prompt("Tell bob.")
    await session.idle(turns=1)
    parent = session.handle.id
    own = [receipt["task_id"] for receipt in await asyncio.gather(*[create(http, parent=parent) for _ in range(4)])]
    await with_tasks(http, 5, parent=parent)
    ids, cursor, pages = [], None, 0
    while cursor or not pages:
        page = await listed(http, parent=parent, limit=2, **({"cursor": cursor} if cursor else {}))
        assert len(page["tasks"]) <= 2
        ids += [task["task_id"] for task in page["tasks"]]
        cursor, pages = page["next_cursor"], pages + 1
    assert sorted(ids) == sorted([*own, f"{parent}.task-1"])
    filtered = await listed(http, parent=parent, limit=2, status="failed")
    assert (filtered["tasks"], filtered["next_cursor"]) == ([], None)


async def test_tsk_4_tasks_of_no_session_are_listed_as_those_of_none(http: AsyncClient) -> None:
    task_id = (await create(http))["task_id"]

    async def is_listed() -> bool:
        (newest,) = (await listed(http, parent="none", limit=1))["tasks"]
        assert newest["parent"] is None
        return bool(newest["task_id"] == task_id)

    await until(is_listed)


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"status": "done"}, "status"),
        ({"parent": "a' OR 1=1"}, "parent"),
        ({"limit": 0}, "limit"),
        ({"limit": 101}, "limit"),
        ({"cursor": "made-up"}, "cursor"),
        ({"colour": "teal"}, "colour"),
    ],
    ids=str,
)
async def test_api_2_a_list_that_can_not_be_made_names_its_parameter(
    http_nowhere: AsyncClient, params: dict[str, Any], field: str
) -> None:
    answer = await http_nowhere.get("/tasks", params=params)
    assert (answer.status_code, problem_of(answer)) == (422, "invalid")
    assert [error["field"] for error in answer.json()["errors"]] == [field]


async def test_api_2_without_temporal_tasks_are_out_of_reach(http_nowhere: AsyncClient) -> None:
    for answer in (
        await http_nowhere.post("/tasks", json={"description": "x"}),
        await http_nowhere.get("/tasks/x"),
        await http_nowhere.post("/tasks/x/cancel"),
    ):
        assert (answer.status_code, problem_of(answer)) == (503, "temporal-unreachable")


async def test_tsk_4_a_list_has_its_statuses_while_neither_worker_nor_temporal_answers(
    http: AsyncClient, http_nowhere: AsyncClient, env: Environment
) -> None:
    parent = (await env.start()).handle.id
    answered, ended = [(await create(http, "Paint.", parent=parent))["task_id"] for _ in range(2)]
    for task_id in (answered, ended):
        await awaited(http, task_id)
    await http.post(f"/workflow/{ended}/end")
    await env.client.get_workflow_handle(ended).result()
    await until(lambda: _are_completed(http, parent))
    await env.worker.shutdown()
    silent = (await create(http, "Paint.", parent=parent))["task_id"]
    tasks = {task["task_id"]: task["status"] for task in (await listed(http, parent=parent))["tasks"]}
    assert tasks == {answered: "completed", ended: "completed", silent: "working"}
    assert (await listed(http_nowhere))["tasks"] == []


async def _are_completed(http: AsyncClient, parent: str) -> bool:
    return len((await listed(http, parent=parent, status="completed"))["tasks"]) == 2
