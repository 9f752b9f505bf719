"""Tasks that a session starts with `run_task`, on the real server (TSK-5)."""

from typing import Any

from tests.harness import UNASKED, DrivenSession, Stage, asks, last_user_message, says
from turnkeeper.models.transcript.model_call import ModelRequest, ModelResponse

DELEGATE = "Delegate: find the longest file."


def is_task(request: ModelRequest) -> bool:
    return any(tool.name == "report_progress" for tool in request.head.tools)


def delegating(**args: Any) -> Any:
    """Answer as an agent that runs one task for every prompt, and as that task's agent."""

    def answer(request: ModelRequest) -> ModelResponse:
        if is_task(request):
            return says("README.md is the longest.")
        if request.messages[-1].role == "tool":
            return says(f"It says: {request.messages[-1].content}")
        if last_user_message(request) == DELEGATE:
            return asks(("run_task", {"description": "Find the longest file.", **args}))
        return says(f"I see: {last_user_message(request)}")

    return answer


async def test_tsk_5_a_task_in_the_foreground_answers_the_call_and_closes(on: Stage) -> None:
    on.vendor.answer = delegating()
    session = await on.start(UNASKED)
    await session.prompt(id="p1", text=DELEGATE)
    (turn,) = await session.idle(turns=1)

    assert turn.agent_message is not None
    assert "README.md is the longest." in turn.agent_message
    state = await session.state()
    (task,) = state.session.tasks
    assert (task.task_id, task.status, task.background) == (f"{session.handle.id}.task-1", "completed", False)
    child = on.adopt(on.client.get_workflow_handle(task.task_id))
    end = await child.handle.result()
    assert end["task"]["answer"] == "README.md is the longest."
    assert end["task"]["status"] == "completed"


async def test_tsk_5_the_answer_of_a_task_in_the_background_arrives_as_a_prompt(on: Stage) -> None:
    on.vendor.answer = delegating(background=True)
    session = await on.start(UNASKED)
    await session.prompt(id="p1", text=DELEGATE)
    turns = await session.idle(turns=2)

    assert turns[0].agent_message is not None
    assert "was started" in turns[0].agent_message
    assert turns[1].id == "task-1.answer-1"
    assert "README.md is the longest." in turns[1].user_message
    task = on.adopt(on.client.get_workflow_handle(f"{session.handle.id}.task-1"))
    assert (await task.state()).status == "idle"
    await session.update("end_session", {})
    await session.handle.result()
    assert (await task.until(lambda state: state.status in ("ended", "cancelled"))).status == "cancelled"


_ = DrivenSession
