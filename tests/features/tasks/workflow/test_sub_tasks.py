"""Tasks that a session starts with `run_task`, on the real server (TSK-5)."""

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import JsonValue
from temporalio.client import WorkflowExecutionStatus, WorkflowHandle

from tests.harness import UNASKED, AnswerParts, DrivenSession, Environment, Gate, asks, last_user_message, says
from tests.waiting import until
from tests.workflows.test_web_ui import details
from turnkeeper.features.tasks.session.sub_tasks import sub_task_id
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.transcript.conversation import ModelStep, ToolResult
from turnkeeper.models.transcript.model_call import ModelRequest, ModelResponse
from turnkeeper.stores.temporal import search_attributes

DELEGATE = "Delegate: find the longest file."
DESCRIPTION = "Find the longest file."
LONGEST = "README.md is the longest."


def is_task(request: ModelRequest) -> bool:
    return any(tool.name == "report_progress" for tool in request.head.tools)


Agent = Callable[[ModelRequest], ModelResponse | AnswerParts]


def answers(text: str) -> Agent:
    return lambda request: says(text)


def delegating(*, agent: Agent | None = None, calls: int = 1, **args: Any) -> Agent:
    """Answer as an agent that starts tasks when it is asked to; as the agent of a task, answer as `agent` does."""

    agent = agent or answers(LONGEST)

    def answer(request: ModelRequest) -> ModelResponse | AnswerParts:
        if is_task(request):
            return agent(request)
        if request.messages[-1].role == "tool":
            return says(f"It says: {request.messages[-1].content}")
        if last_user_message(request) == DELEGATE:
            return asks(*[("run_task", {"description": DESCRIPTION, **args})] * calls)
        return says(f"I see: {last_user_message(request)}")

    return answer


def calls_then(*calls: tuple[str, dict[str, Any] | str]) -> Agent:
    """Answer as an agent that calls tools, and then answers with their outcomes."""

    def answer(request: ModelRequest) -> ModelResponse:
        results = [message.content for message in request.messages if message.role == "tool"]
        return says(" / ".join(results)) if results else asks(*calls)

    return answer


async def delegated(
    env: Environment, start: Any = UNASKED, *, turns: int = 1
) -> tuple[DrivenSession, list[ToolResult]]:
    """Return a session whose first turn has started tasks, and the results of its calls."""
    session = await env.start(start)
    await session.prompt(id="p1", text=DELEGATE)
    first = (await session.idle(turns=turns))[0]
    step = first.steps[0]
    assert isinstance(step, ModelStep)
    return session, [call.result for call in step.tool_calls if call.result]


def task_message(kind: str, body: object) -> dict[str, object]:
    """Return what a session sends to the tasks of another one."""
    return {"feature": "tasks", "kind": kind, "body": body}


def task_of(env: Environment, session: DrivenSession, number: int = 1) -> DrivenSession:
    return env.adopt(env.client.get_workflow_handle(sub_task_id(session.handle.id, number)))


async def test_tsk_5_a_task_in_the_foreground_answers_the_call_and_closes(env: Environment) -> None:
    env.vendor.answer = delegating(title="Longest file")
    session, (result,) = await delegated(env)

    assert result.content == LONGEST
    assert result.status == "ok"
    (task,) = (await session.state()).session.tasks
    assert (task.task_id, task.title, task.status) == (f"{session.handle.id}.task-1", "Longest file", "completed")
    child = task_of(env, session)
    end = await child.handle.result()
    assert end["features"]["tasks"] == {"status": "completed", "answer": LONGEST, "usage": {}}
    view = (await child.state()).session
    assert view.task is not None
    assert (view.title, view.task.parent) == ("Longest file", session.handle.id)
    assert "Longest file" in await details(session)
    assert session.handle.id in await details(child)


async def test_tsk_5_the_answer_of_a_task_in_the_background_arrives_as_a_prompt(env: Environment) -> None:
    env.vendor.answer = delegating(background=True)
    session, (result,) = await delegated(env, turns=2)

    assert "was started" in result.outcome
    turns = (await session.state()).messages
    assert turns[1].id == "task-1.answer-1"
    assert LONGEST in turns[1].user_message
    task = task_of(env, session)
    assert (await task.state()).status == "idle"

    await task.prompt(id="more", text="And the second longest?")
    await session.idle(turns=3)
    assert (await session.state()).messages[2].id == "task-1.answer-2"

    await session.update("end_session", {})
    await session.handle.result()
    assert (await task.until(lambda state: state.status in ("ended", "cancelled"))).status == "cancelled"


async def test_tsk_5_a_task_inherits_the_conversation_shortened(env: Environment) -> None:
    env.vendor.answer = delegating(conversation_history="inherit")
    session = await env.start(UNASKED)
    await session.prompt(id="p0", text="The launch code is 4711.")
    await session.idle(turns=1)
    await session.prompt(id="p1", text=DELEGATE)
    await session.idle(turns=2)

    (request,) = [request for request in env.vendor.turn_requests if is_task(request)]
    prompt = last_user_message(request)
    assert prompt.startswith(DESCRIPTION)
    assert "The launch code is 4711." in prompt
    assert DELEGATE in prompt


@pytest.mark.parametrize(
    ("limits", "calls", "ran", "refused_by"),
    [
        ({"max_task_depth": 0}, 1, 0, "limits.max_task_depth"),
        ({"max_tasks": 1}, 3, 1, "limits.max_tasks"),
        ({"max_tasks_at_once": 2}, 3, 2, "limits.max_tasks_at_once"),
    ],
)
async def test_tsk_5_a_task_over_a_limit_is_a_result_that_names_the_limit(
    env: Environment, limits: dict[str, int], calls: int, ran: int, refused_by: str
) -> None:
    env.vendor.answer = delegating(calls=calls, background=True)
    start = SessionInput.model_validate({"tool_policy": {"*": "allow"}, "limits": limits})
    session, results = await delegated(env, start, turns=1 + ran)

    refused = [result for result in results if result.status == "error"]
    assert len(refused) == calls - ran
    assert all(refused_by in result.outcome for result in refused)
    assert len((await session.state()).session.tasks) == ran


async def test_tsk_5_tasks_of_tasks_share_one_allowance(env: Environment) -> None:
    nested = calls_then(*[("run_task", {"description": DESCRIPTION})] * 3)
    env.vendor.answer = delegating(agent=nested)
    start = SessionInput.model_validate(
        {"tool_policy": {"*": "allow"}, "limits": {"max_tasks": 8, "max_tasks_at_once": 2, "max_task_depth": 2}}
    )
    session, (result,) = await delegated(env, start)

    # The task has a share of (8 - 1) / 2 = 3; its own ones may start none.
    assert result.content.count("limits.max_task_depth") == 2 * 3
    assert "limits.max_tasks_at_once" in result.content
    assert (await session.state()).session.tasks[0].status == "completed"


async def test_tsk_5_a_parent_shows_what_its_task_waits_for_and_its_clock_is_paused(env: Environment) -> None:
    env.vendor.answer = delegating(agent=calls_then(("pay", {"sum": 1})))
    session = await env.start(SessionInput())
    await session.prompt(id="p1", text=DELEGATE)
    state = await session.until(lambda state: [task.status for task in state.session.tasks] == ["input_required"])
    assert state.status == "awaiting_approval"
    listed = (await session.handle.describe()).typed_search_attributes
    assert listed.get(search_attributes.SESSION_STATUS) == "awaiting_approval"

    task = task_of(env, session)
    (pending,) = await task.awaited_approvals()
    await task.decide(pending, "approve")
    (turn,) = await session.idle(turns=1)
    assert "pay done" in (turn.agent_message or "")


async def test_tsk_5_stopping_the_turn_cancels_its_task_and_its_tasks_tasks(env: Environment) -> None:
    env.vendor.answer = delegating(agent=calls_then(("run_task", {"description": DESCRIPTION}), ("look", {})))
    env.tools.gate.close()
    session = await env.start(UNASKED)
    await session.prompt(id="p1", text=DELEGATE)
    await env.tools.gate.until_arrived(2)
    task = task_of(env, session)
    below = task_of(env, task)
    await session.update("cancel_turn", {"message_id": "p1", "reason": "enough"})

    (turn,) = await session.idle(turns=1)
    assert turn.status == "cancelled"
    assert [task.status for task in (await session.state()).session.tasks] == ["cancelled"]
    for cancelled in (task, below):
        assert (await cancelled.until(lambda state: state.status == "cancelled")).status == "cancelled"


async def test_tsk_5_a_task_that_ends_otherwise_is_a_result(env: Environment) -> None:
    env.vendor.answer = delegating(agent=calls_then(("look", {})))
    env.tools.gate.close()
    for number, end in enumerate(("terminate", "cancel"), start=1):
        session = await env.start(UNASKED)
        await session.prompt(id="p1", text=DELEGATE)
        await env.tools.gate.until_arrived(number)
        await getattr(task_of(env, session).handle, end)()
        (turn,) = await session.idle(turns=1)
        step = turn.steps[0]
        assert isinstance(step, ModelStep)
        assert step.tool_calls[0].result is not None
        assert step.tool_calls[0].result.status == "outcome_unknown", "it may have acted before"
        env.sessions.pop()


@pytest.mark.parametrize("is_retried", [False, True])
async def test_ctx_17_a_stopped_task_may_have_acted_and_the_model_reads_it(env: Environment, is_retried: bool) -> None:
    env.vendor.answer = delegating(agent=calls_then(("look", {})))
    env.tools.gate.close()
    session = await env.start(UNASKED)
    await session.prompt(id="p1", text=DELEGATE)
    await env.tools.gate.until_arrived(1)
    await session.update("cancel_turn", {"message_id": "p1"})
    (turn,) = await session.idle(turns=1)
    result = turn.steps[0].tool_calls[0].result
    assert result is not None
    assert result.status == "outcome_unknown"

    env.vendor.answer = answers("I see.")
    if is_retried:
        await session.prompt(id="p2", text=DELEGATE, retries="p1")
    else:
        await session.prompt(id="p2", text="And now?")
    await session.idle(turns=2)
    note = "Stopped by the user. Tools were called before: run_task.]"
    before = "[An earlier try at the next request. " if is_retried else "["
    read = [message.content for message in env.vendor.turn_requests[-1].messages]
    assert any(f"{before}{note}" in str(text) for text in read), read


async def test_tsk_5_a_task_may_take_no_longer_than_its_timeout(env: Environment) -> None:
    env.vendor.answer = delegating(agent=calls_then(("look", {})), timeout=1)
    env.tools.gate.close()
    _, (result,) = await delegated(env)
    assert result.status == "error"
    assert "limits.turn_timeout" in result.content


async def test_tsk_5_long_arguments_and_answers_go_through_the_store(env: Environment) -> None:
    background, answer = "context " * 2_000, "word " * 5_000
    env.vendor.answer = delegating(agent=answers(answer), background_context=background.strip())
    session, (result,) = await delegated(env)

    assert result.blob is not None
    assert result.blob.chars >= len(answer.strip())
    assert any(background.strip() in last_user_message(request) for request in env.vendor.turn_requests)
    end = await task_of(env, session).handle.result()
    assert end["features"]["tasks"]["answer"] == answer


WRONG: list[tuple[dict[str, JsonValue], str]] = [
    ({}, "description"),
    ({"description": " "}, "blank"),
    ({"description": "x", "priority": "P9"}, "priority"),
    ({"description": "x", "colour": "red"}, "colour"),
    ({"description": "x", "conversation_history": [{"role": "ghost", "content": "boo"}]}, "role"),
]


async def test_tsk_5_wrong_arguments_are_a_result_that_names_them(env: Environment) -> None:
    env.vendor.script = [asks(*[("run_task", args) for args, _ in WRONG]), says("I see.")]
    session, results = await delegated(env)
    for (args, complaint), result in zip(WRONG, results, strict=True):
        assert result.status == "error", args
        assert complaint in result.outcome
    assert (await session.state()).session.tasks == []


async def test_tsk_4_a_task_reports_progress_and_findings(env: Environment) -> None:
    reports = [
        ("report_progress", {"message": "Half of\nit", "percent": 50}),
        ("report_progress", {"findings": {"longest": "README.md"}}),
        ("report_progress", {"percent": 101}),
        ("report_progress", {}),
        ("look", {}),
    ]
    env.vendor.answer = delegating(agent=calls_then(*reports), background=True)
    env.tools.gate.close()
    session = await env.start(UNASKED)
    await session.prompt(id="p1", text=DELEGATE)
    state = await session.until(lambda state: any(task.percent == 50 for task in state.session.tasks))
    assert state.session.tasks[0].message == "Half of it"
    env.tools.gate.open()
    await session.idle(turns=2)

    view = (await task_of(env, session).state()).session.task
    assert view is not None
    assert view.findings == {"longest": "README.md"}


async def test_tsk_5_a_signal_about_no_task_of_the_session_changes_nothing(env: Environment) -> None:
    session = await env.start(UNASKED)
    await session.handle.signal("feature_message", args=[])
    unknown = {"task_id": "unknown", "status": "completed"}
    for change in ("x", [], {}, unknown, {"task_id": 1}, {"status": "working"}):
        await session.handle.signal("feature_message", task_message("task_changed", change))
    for message in ("x", [], task_message("told", unknown), {**task_message("task_changed", {}), "feature": "teams"}):
        await session.handle.signal("feature_message", message)
    await session.prompt(id="p1", text="hello")
    await session.idle(turns=1)
    assert (await session.state()).session.tasks == []


async def test_tsk_5_a_task_in_the_background_ends_where_its_parent_is_gone(env: Environment) -> None:
    env.vendor.answer = delegating(agent=calls_then(("look", {})), background=True)
    env.tools.gate.close()
    session, _ = await delegated(env)
    await session.handle.terminate()
    env.tools.gate.open()
    end = await task_of(env, session).handle.result()
    assert end["status"] == "ended"


async def test_tsk_5_a_session_that_continues_in_a_new_run_keeps_its_tasks(env: Environment) -> None:
    env.vendor.answer = delegating(agent=calls_then(("look", {})), background=True)
    env.tools.gate.close()
    limits = {"max_history_events": 50}
    start = SessionInput.model_validate({"tool_policy": {"*": "allow"}, "limits": limits})
    session, _ = await delegated(env, start)
    for number in range(2, 8):
        await session.prompt(id=f"p{number}", text=f"line {number}")
        await session.idle(turns=number)
    assert len(await session.histories()) > 1

    env.tools.gate.open()
    turns = await session.idle(turns=8)
    assert turns[-1].id == "task-1.answer-1"
    await session.handle.cancel()
    task = task_of(env, session)

    async def has_ended() -> bool:
        return (await task.state()).status == "cancelled"

    assert await until(has_ended)


async def test_tsk_5_all_tasks_that_a_root_may_have_end_with_it(env: Environment) -> None:
    unanswered = Gate(is_open=False)
    env.vendor.answer = delegating(agent=lambda request: [unanswered, says("never")], calls=28, background=True)
    limits = {"max_tasks": 25, "max_tasks_at_once": 25, "max_task_depth": 1}
    start = SessionInput.model_validate({"tool_policy": {"*": "allow"}, "limits": limits})
    session, results = await delegated(env, start)
    await unanswered.until_arrived(25)

    assert [result.status for result in results].count("ok") == 25
    assert all("limits.max_tasks" in result.outcome for result in results if result.status == "error")
    await session.handle.cancel()
    for number in range(1, 26):
        task = env.client.get_workflow_handle(sub_task_id(session.handle.id, number))

        async def is_cancelled(task: WorkflowHandle[Any, Any] = task) -> bool:
            return (await task.describe()).status is WorkflowExecutionStatus.CANCELED

        assert await until(is_cancelled)
