"""Tasks and the agents that work on them, as the tests of tasks use them."""

from typing import Any

from httpx import AsyncClient

from tests.harness import BOUND, asks, says
from turnkeeper.models.transcript.model_call import ModelRequest, ModelResponse

FINAL = ("completed", "failed", "cancelled")


async def create(http: AsyncClient, description: str = "Paint it.", **fields: Any) -> dict[str, Any]:
    answer = await http.post("/tasks", json={"description": description, **fields})
    assert answer.status_code == 201, answer.text
    return answer.json()


async def awaited(http: AsyncClient, task_id: str, *statuses: str) -> dict[str, Any]:
    """Return the task once it has one of these statuses, or a final one, by the gateway's own wait."""
    answer = await http.get(f"/tasks/{task_id}", params={"wait_seconds": BOUND})
    assert answer.status_code == 200, answer.text
    task: dict[str, Any] = answer.json()
    assert task["status"] in (statuses or FINAL), task
    return task


def mailing_sub_task(request: ModelRequest) -> ModelResponse:
    """Answer as an agent that gives its prompt to a task, which sends a mail and so needs an approval."""
    has_result = request.messages[-1].role == "tool"
    if "Write to bob" in str(request.messages[0].content):
        return says("Bob was told.") if has_result else asks(("send_mail", {"to": "bob"}))
    return says("All is done.") if has_result else asks(("run_task", {"description": "Write to bob."}))
