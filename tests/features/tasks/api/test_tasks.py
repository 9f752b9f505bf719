"""One task: created, read, waited for, told more, cancelled: TSK-1, TSK-2, TSK-4, API-2."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from httpx import AsyncClient
from temporalio.client import WorkflowExecutionStatus

from tests.api.conftest import gateway
from tests.api.http.test_bad_input import problem_of
from tests.features.tasks.api.delegating import awaited, create, mailing_sub_task
from tests.features.tasks.workflow.test_sub_tasks import is_task
from tests.harness import FAILING_TASK_SECONDS, Environment, asks, fail_workflow_tasks, last_user_message, product, says
from tests.waiting import until
from turnkeeper.activities.providers.offline.provider import answer as offline_answer
from turnkeeper.activities.providers.protocol import ModelError
from turnkeeper.models.transcript.conversation import NO_PARENT, ModelStep
from turnkeeper.models.transcript.model_call import ModelRequest, ModelResponse, ToolSpec
from turnkeeper.stores.temporal import search_attributes

CONVERSATION = [
    {
        "role": "user",
        "content": "I need to add a new feature for user authentication",
        "timestamp": "2025-10-29T10:00:00",
    },
    {
        "role": "assistant",
        "content": "I'll help you implement user authentication. This involves several components: (1) authentication "
        "middleware, (2) session management, (3) password hashing with bcrypt, (4) JWT token generation. We should "
        "follow OAuth 2.0 patterns for best security practices.",
        "timestamp": "2025-10-29T10:00:15",
    },
    {"role": "user", "content": "Focus on JWT tokens first", "timestamp": "2025-10-29T10:01:00"},
]
"""From the example call of the original design (decision 38)."""


# ── Created ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_tsk_1_the_call_of_the_original_design_starts_an_agent_with_all_of_it(
    http: AsyncClient, env: Environment
) -> None:
    answer = await http.post(
        "/tasks",
        json={
            "description": "Implement JWT token authentication system",
            "priority": "P1",
            "conversation_history": CONVERSATION,
            "expected_deliverables": [
                "JWT token generation function",
                "Token validation middleware",
                "Unit tests for token lifecycle",
            ],
        },
    )
    assert answer.status_code == 201
    receipt = answer.json()
    task_id = receipt["task_id"]
    assert answer.headers["location"] == f"/tasks/{task_id}"
    assert (receipt["workflow_id"], receipt["status"]) == (task_id, "working")
    assert receipt["url"].endswith(f"/?session={task_id}")
    assert receipt["context"] == {
        "given": 3,
        "kept": 3,
        "truncated": 1,
        "dropped": 0,
        "estimated_tokens_before": receipt["context"]["estimated_tokens_before"],
        "estimated_tokens_after": receipt["context"]["estimated_tokens_after"],
    }
    assert receipt["context"]["estimated_tokens_after"] < receipt["context"]["estimated_tokens_before"]
    assert [(warning["code"], warning["field"]) for warning in receipt["warnings"]] == [
        ("truncated", "conversation_history[1].content")
    ]

    task = await awaited(http, task_id)
    prompt = last_user_message(env.vendor.requests[0])
    assert prompt.startswith("Implement JWT token authentication system\n\n====")
    for part in (
        "    - Token validation middleware\n",
        "[1] 👤 User (10:00:00):\n    I need to add a new feature for user authentication\n",
        "[2] 🤖 Assistant (10:00:15) [TRUNCATED]:\n",
        "[3] 👤 User (10:01:00):\n    Focus on JWT tokens first\n",
        "📊 History metadata: 3 messages, 1 truncated",
        "    P1\n",
    ):
        assert part in prompt
    assert (task["status"], task["title"]) == ("completed", "Implement JWT token authentication system")
    started = await env.client.get_workflow_handle(task_id).describe()
    assert started.typed_search_attributes[search_attributes.TASK_PARENT] == NO_PARENT
    assert started.raw_info.priority.priority_key == 2


async def test_tsk_1_title_model_policy_and_timeout_are_those_of_its_session(
    http: AsyncClient, env: Environment
) -> None:
    env.tools.specs = [ToolSpec(name="send_mail")]
    env.vendor.script = [asks(("send_mail", {})), says("denied")]
    receipt = await create(
        http, title="Paint", model="offline:other", tool_policy={"send_mail": "deny"}, timeout=77, priority="P4"
    )
    await awaited(http, receipt["task_id"])
    session = env.adopt(env.client.get_workflow_handle(receipt["task_id"]))
    state = await session.state()
    assert (state.session.title, state.session.model) == ("Paint", "offline:other")
    assert state.messages[0].steps[0].tool_calls[0].result.status == "denied"  # type: ignore[union-attr]
    (history,) = await session.histories()
    start = history.events[0].workflow_execution_started_event_attributes
    assert b'"turn_timeout":77' in start.input.payloads[0].data
    assert start.priority.priority_key == 5


async def test_agt_8_a_task_is_unattended_and_requests_no_approval(http: AsyncClient, env: Environment) -> None:
    env.tools.specs = [ToolSpec(name="send_mail")]
    env.vendor.answer = mailing_sub_task
    receipt = await create(http, "Have bob told.", unattended=True)
    task = await awaited(http, receipt["task_id"])
    assert task["status"] == "completed"
    session = env.adopt(env.client.get_workflow_handle(f"{receipt['task_id']}.task-1"))
    (turn,) = (await session.state()).messages
    step = turn.steps[0]
    assert isinstance(step, ModelStep)
    assert step.tool_calls[0].result is not None
    assert step.tool_calls[0].result.status == "denied", "a task's own tasks are unattended too"


async def test_tsk_2_what_was_handed_over_is_shown_with_every_task(http: AsyncClient, env: Environment) -> None:
    def answer(request: ModelRequest) -> ModelResponse:
        if request.messages[-1].role == "tool":
            return says("Done.")
        if is_task(request) and "Inner" in str(request.messages[0].content):
            return says("Inner done.")
        return asks(("run_task", {"description": "Inner task.", "history": "latest"}))

    env.vendor.answer = answer
    receipt = await create(http, "Outer task.", conversation_history=CONVERSATION)
    task = await awaited(http, receipt["task_id"])
    assert task["context"] == receipt["context"]
    inner = (await http.get(f"/tasks/{receipt['task_id']}.task-1")).json()
    assert inner["description"] == "Inner task."
    assert inner["context"]["given"] == inner["context"]["kept"] == 1
    listed = (await http.get("/tasks", params={"parent": receipt["task_id"]})).json()["tasks"]
    assert [one["title"] for one in listed] == ["Inner task."]


async def test_tsk_1_a_task_of_a_session_inherits_its_conversation_and_id_prefix(
    http: AsyncClient, env: Environment
) -> None:
    parent = await env.start()
    await parent.prompt(id="p1", text="The colour is teal.")
    await parent.idle(turns=1)
    receipt = await create(http, parent=parent.handle.id, conversation_history="inherit")
    own = receipt["task_id"].removeprefix(f"{parent.handle.id}.task-")
    assert len(own) == 12
    task = await awaited(http, receipt["task_id"])
    assert task["parent"] == parent.handle.id
    assert "    The colour is teal.\n" in last_user_message(env.vendor.requests[-1])
    assert (await parent.state()).session.turn_count == 1


async def test_api_2_an_unknown_parent_starts_nothing(http: AsyncClient) -> None:
    answer = await http.post("/tasks", json={"description": "x", "parent": "never-was"})
    assert (answer.status_code, problem_of(answer)) == (404, "unknown-session")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"priority": "P5"}, "priority"),
        ({"description": " "}, "description"),
        ({"description": "x" * 19_000, "background_context": "y" * 5_000}, "description"),
        ({"conversation_history": "inherit"}, "parent"),
        ({"conversation_history": "not a list"}, "conversation_history"),
        ({"conversation_history": ["no dictionary"]}, "conversation_history[0]"),
        ({"conversation_history": [{"content": "no role"}]}, "conversation_history[0]"),
        ({"conversation_history": [{"role": "system", "content": "x"}]}, "conversation_history[0].role"),
        (
            {"conversation_history": [{"role": "user", "content": "x" * 301}], "history_policy": "keep_assistant"},
            "conversation_history[0].content",
        ),
        (
            {
                "conversation_history": [{"role": "assistant", "content": "x" * 16_385}],
                "history_policy": "keep_assistant",
            },
            "conversation_history[0].content",
        ),
    ],
    ids=lambda value: str(value)[:50],
)
async def test_tsk_1_the_errors_of_seed_3_name_field_reason_and_value_and_start_no_task(
    http_nowhere: AsyncClient, body: dict[str, Any], field: str
) -> None:
    answer = await http_nowhere.post("/tasks", json={"description": "x", **body})
    assert (answer.status_code, problem_of(answer)) == (422, "invalid")
    (error,) = answer.json()["errors"]
    assert (error["field"], bool(error["reason"]), bool(error["value"])) == (field, True, True)
    assert error["error_type"] in ("type_error", "missing_field", "invalid_value", "too_long")


@pytest.mark.parametrize(
    ("body", "error_type", "value"),
    [
        ({"description": 7}, "type_error", "7"),
        ({"priority": "P1"}, "missing_field", "an object with the keys 'priority'"),
        ({"description": "x", "priority": "P9"}, "invalid_value", "'P9'"),
        (
            {"description": "x", "conversation_history": [{"role": "user", "contnet": "hi"}]},
            "missing_field",
            "an object with the keys 'role', 'contnet'",
        ),
        (
            {"description": "x", "conversation_history": [{"role": "user", "content": 7}]},
            "type_error",
            "7",
        ),
        (
            {
                "description": "x",
                "conversation_history": [
                    {
                        "role": "user",
                        "content": "hi",
                        "attachments": [{"type": "image", "media_type": "image/png", "data": "no base64!" * 100}],
                    }
                ],
            },
            "invalid_value",
            "'no base64!no base64!no base64!no base64!no base64!no base64!' ... 1,000 characters",
        ),
    ],
    ids=["type", "missing", "value", "misspelt", "type in the history", "wrong base64"],
)
async def test_tsk_1_an_error_has_a_type_for_programs_and_the_value(
    http_nowhere: AsyncClient, body: dict[str, Any], error_type: str, value: str
) -> None:
    answer = await http_nowhere.post("/tasks", json=body)
    (error,) = answer.json()["errors"]
    assert (error["error_type"], error["value"]) == (error_type, value)


async def test_tsk_2_the_warnings_of_seed_3_stand_in_the_receipt_and_fail_nothing(http: AsyncClient) -> None:
    messages = [
        *[{"role": "user", "content": f"message {number}"} for number in range(50)],
        {"role": "user", "content": "x" * 200, "timestamp": "2025-10-29T13:30:00"},
        {"role": "user", "content": "when?", "timestamp": "yesterday"},
        {"role": "assistant", "content": "  "},
    ]
    receipt = await create(http, conversation_history=messages, history_policy="keep_assistant")
    assert {warning["code"] for warning in receipt["warnings"]} == {
        "too_many_messages",
        "missing_timestamp",
        "invalid_timestamp",
        "truncated",
        "empty_content",
    }
    assert (await awaited(http, receipt["task_id"]))["status"] == "completed"
    all_filtered = await create(http, conversation_history=[{"role": "user", "content": ""}])
    assert "all_filtered" in [warning["code"] for warning in all_filtered["warnings"]]


async def test_tsk_1_a_prompt_that_its_session_would_reject_starts_no_task(http: AsyncClient, env: Environment) -> None:
    answer = await http.post("/tasks", json={"description": "x" * 15_000, "constraints": ["y" * 6_000]})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "description")
    assert env.vendor.requests == []


# ── The same request twice ───────────────────────────────────────────────────────────────────────────────────────────


async def test_tsk_2_the_same_key_is_the_same_task_also_at_once_and_after_it_has_ended(
    http: AsyncClient, env: Environment
) -> None:
    body = {"idempotency_key": str(uuid4()), "conversation_history": [{"role": "user", "content": "x"}], "title": "T"}
    receipts = await asyncio.gather(*[create(http, **body) for _ in range(5)])
    (task_id,) = {receipt["task_id"] for receipt in receipts}
    await awaited(http, task_id)
    again = await create(http, **body)
    assert (again["task_id"], again["status"]) == (task_id, "completed")
    assert again["context"] == receipts[0]["context"]
    assert {str(receipt["warnings"]) for receipt in receipts} == {str(again["warnings"])}
    await http.post(f"/workflow/{task_id}/end")
    await env.client.get_workflow_handle(task_id).result()
    assert (await create(http, **body))["task_id"] == task_id
    assert len(env.vendor.requests) == 1


async def test_tsk_2_the_same_key_with_another_request_is_a_409(http: AsyncClient) -> None:
    body = {
        "description": "Paint it.",
        "idempotency_key": str(uuid4()),
        "conversation_history": [{"role": "user", "content": "x"}],
    }
    assert (await http.post("/tasks", json=body)).status_code == 201
    for other in (
        {"description": "Paint that."},
        {"priority": "P2"},
        {"conversation_history": [{"role": "user", "content": "y"}]},
        {"constraints": ["Two coats"]},
        {"timeout": 60},
    ):
        answer = await http.post("/tasks", json={**body, **other})
        assert (answer.status_code, problem_of(answer)) == (409, "idempotency-key-reused"), other
    same = await http.post("/tasks", json={**body, "history_policy": "keep_user", "title": None})
    assert same.status_code == 201


async def test_tsk_2_without_a_key_every_request_is_a_task_of_its_own(http: AsyncClient) -> None:
    assert (await create(http))["task_id"] != (await create(http))["task_id"]


# ── Read ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_tsk_4_the_result_of_a_task_has_summary_answer_findings_and_usage(
    http: AsyncClient, env: Environment
) -> None:
    long = "It is README.md.\n\n" + "x" * 50_000
    env.vendor.script = [
        asks(("report_progress", {"percent": 40, "message": "Halfway", "findings": {"files": 12}})),
        says(long),
    ]
    receipt = await create(http, "Find the longest file.")
    task = await awaited(http, receipt["task_id"])
    assert (task["status"], task["percent"], task["status_message"]) == ("completed", 40, "Halfway")
    assert (task["description"], task["parent"], task["approvals"]) == ("Find the longest file.", None, 0)
    assert (task["error"], task["error_type"]) == (None, None)
    result = task["result"]
    assert result["summary"] == "It is README.md."
    assert result["answer"] == long
    assert result["findings"] == {"files": 12}
    assert result["usage"]["input_tokens"] >= 0
    path = result["transcript_url"].partition("/workflow/")[2]
    transcript = (await http.get(f"/workflow/{path}")).json()
    assert transcript["messages"][0]["agent_message"] == long
    assert task["created_at"] <= task["updated_at"]


async def test_tsk_4_a_task_that_has_failed_says_why(http: AsyncClient, env: Environment) -> None:
    env.vendor.script = [ModelError("bad_request", "no such parameter")]
    task = await awaited(http, (await create(http))["task_id"])
    assert (task["status"], task["error_type"]) == ("failed", "bad_request")
    assert "no such parameter" in task["error"]
    assert "no such parameter" in task["result"]["summary"]
    assert task["result"]["answer"] is None


async def test_tsk_4_waiting_ends_at_the_timeout_while_the_task_continues(http: AsyncClient, env: Environment) -> None:
    env.vendor.gate.close()
    task_id = (await create(http))["task_id"]
    await env.vendor.gate.until_arrived(1)
    task = (await http.get(f"/tasks/{task_id}", params={"wait_seconds": 0.2})).json()
    assert (task["status"], task["result"]) == ("working", None)
    waiting = asyncio.create_task(awaited(http, task_id))
    env.vendor.gate.open()
    assert (await waiting)["status"] == "completed"


async def test_tsk_4_waiting_ends_when_a_person_has_to_decide(http: AsyncClient, env: Environment) -> None:
    env.tools.specs = [ToolSpec(name="send_mail")]
    env.vendor.script = [asks(("send_mail", {"to": "bob"}), ("send_mail", {"to": "eve"})), says("done")]
    task_id = (await create(http))["task_id"]
    task = await awaited(http, task_id, "input_required")
    assert (task["approvals"], bool(task["status_message"])) == (2, True)
    for pending in (await http.get(f"/workflow/{task_id}/approvals")).json()["approvals"]:
        decision = {"args_digest": pending["args_digest"], "decision": "approve"}
        decided = await http.post(f"/workflow/{task_id}/approvals/{pending['call_id']}", json=decision)
        assert decided.status_code == 200
    assert (await awaited(http, task_id))["status"] == "completed"


async def test_api_2_an_unknown_task_is_a_404(http: AsyncClient, env: Environment) -> None:
    session = await env.start()
    for task_id in ("never-was", session.handle.id):
        for answer in (
            await http.get(f"/tasks/{task_id}"),
            await http.post(f"/tasks/{task_id}/messages", json={"text": "x"}),
            await http.post(f"/tasks/{task_id}/cancel"),
        ):
            assert (answer.status_code, problem_of(answer)) == (404, "unknown-task")
    assert (await session.state()).revision == 0


@pytest.mark.parametrize("wait", ["-1", "61", "nan", "soon"])
async def test_api_2_a_wait_out_of_bounds_is_a_422(http_nowhere: AsyncClient, wait: str) -> None:
    answer = await http_nowhere.get("/tasks/x", params={"wait_seconds": wait})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "wait_seconds")


# ── Told more, and cancelled ─────────────────────────────────────────────────────────────────────────────────────────


async def test_tsk_4_a_message_to_a_task_that_has_answered_makes_it_work_again(
    http: AsyncClient, env: Environment
) -> None:
    task_id = (await create(http))["task_id"]
    await awaited(http, task_id)
    env.vendor.gate.close()
    for _ in range(2):  # the same message twice is one
        answer = await http.post(f"/tasks/{task_id}/messages", json={"text": "and now?", "id": "m1"})
        assert (answer.status_code, answer.json()["message_id"]) == (202, "m1")
    task = (await http.get(f"/tasks/{task_id}")).json()
    assert (task["status"], task["result"]) == ("working", None)
    env.vendor.gate.open()
    assert (await awaited(http, task_id))["result"]["answer"] == "echo: and now?"
    assert len(env.vendor.requests) == 2


@pytest.mark.parametrize("text", ["", "  ", "a\0b"])
async def test_api_2_an_invalid_message_to_a_task_names_its_field(http_nowhere: AsyncClient, text: str) -> None:
    answer = await http_nowhere.post("/tasks/x/messages", json={"text": text})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "text")


async def test_tsk_4_a_task_is_cancelled_with_a_reason_and_takes_no_more(http: AsyncClient, env: Environment) -> None:
    env.vendor.gate.close()
    task_id = (await create(http))["task_id"]
    await env.vendor.gate.until_arrived(1)
    answer = await http.post(f"/tasks/{task_id}/cancel", json={"reason": "Not needed."})
    assert answer.status_code == 202
    task = await awaited(http, task_id)
    assert (task["status"], task["error_type"], task["result"]["answer"]) == ("cancelled", "cancelled", None)
    handle = env.client.get_workflow_handle(task_id)

    async def has_ended() -> bool:
        return (await handle.describe()).status != WorkflowExecutionStatus.RUNNING

    await until(has_ended)  # the task is "cancelled" a moment before
    (history,) = await env.adopt(handle).histories()
    assert "Not needed." in str(history.events)
    late = await http.post(f"/tasks/{task_id}/cancel")
    assert (late.status_code, late.json()["status"]) == (202, "cancelled")
    more = await http.post(f"/tasks/{task_id}/messages", json={"text": "and now?"})
    assert (more.status_code, problem_of(more)) == (409, "session-ended")


async def test_tsk_4_cancelling_a_task_that_has_answered_leaves_it_completed(http: AsyncClient) -> None:
    task_id = (await create(http))["task_id"]
    await awaited(http, task_id)
    for _ in range(2):
        cancelled = await http.post(f"/tasks/{task_id}/cancel")
        assert (cancelled.status_code, cancelled.json()["status"]) == (202, "completed")


async def test_tsk_4_a_task_with_a_terminated_session_is_cancelled(http: AsyncClient, env: Environment) -> None:
    env.vendor.gate.close()
    task_id = (await create(http))["task_id"]
    await env.vendor.gate.until_arrived(1)
    await env.client.get_workflow_handle(task_id).terminate()
    assert (await awaited(http, task_id))["status"] == "cancelled"


# ── Without an answer of a worker ────────────────────────────────────────────────────────────────────────────────────


async def test_api_2_without_a_worker_a_task_can_be_created_steered_and_cancelled(
    http_alone: AsyncClient,
) -> None:
    body = {"idempotency_key": str(uuid4())}
    task_id = (await create(http_alone, **body))["task_id"]
    again = await create(http_alone, **body)
    assert (again["task_id"], again["status"]) == (task_id, "working")
    answer = await http_alone.get(f"/tasks/{task_id}", params={"wait_seconds": 0.1})
    assert (answer.status_code, problem_of(answer)) == (504, "no-worker")
    message = await http_alone.post(f"/tasks/{task_id}/messages", json={"text": "and now?"})
    assert message.status_code == 202
    assert message.headers["location"] == f"/workflow/{task_id}/queue/{message.json()['message_id']}"
    cancelled = await http_alone.post(f"/tasks/{task_id}/cancel")
    assert (cancelled.status_code, cancelled.json()["status"]) == (202, "working")
    assert cancelled.json()["status_message"] == "The task is being cancelled."


async def test_api_2_a_task_is_working_and_says_so_if_its_workflow_task_keeps_failing(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_workflow_tasks(monkeypatch)
    state_dir = env.settings.state_dir
    async with gateway(
        env.client, env.task_queue, state_dir, task_seconds=FAILING_TASK_SECONDS, timeouts=product()
    ) as http:
        task_id = (await create(http, title="Paint"))["task_id"]

        async def is_stuck() -> bool:
            answer = await http.get(f"/tasks/{task_id}")
            return answer.status_code == 200 and "keeps failing" in (answer.json()["status_message"] or "")

        await until(is_stuck)
        task = (await http.get(f"/tasks/{task_id}")).json()
    assert (task["status"], task["title"], task["result"]) == ("working", "Paint", None)
    await env.client.get_workflow_handle(task_id).terminate()


# ── Many ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_tsk_4_many_tasks_created_at_once_all_answer(http: AsyncClient) -> None:
    receipts = await asyncio.gather(*[create(http, f"Task {number}.") for number in range(24)])
    tasks = await asyncio.gather(*[awaited(http, receipt["task_id"]) for receipt in receipts])
    assert [task["result"]["answer"] for task in tasks] == [f"echo: Task {number}." for number in range(24)]


# ── TSK-7 ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_tsk_7_a_task_answers_only_with_the_handed_over_history(http: AsyncClient, env: Environment) -> None:
    env.vendor.answer = offline_answer
    for role, policy in (("user", "keep_user"), ("assistant", "keep_assistant"), ("assistant", "keep_user")):
        history = [{"role": "user", "content": "Hello."}, {"role": role, "content": "The launch code is 4711."}]
        fields = {"conversation_history": history, "history_policy": policy}
        task = await awaited(http, (await create(http, "What is the launch code?", **fields))["task_id"])
        assert "The launch code is 4711." in task["result"]["answer"]
    task = await awaited(http, (await create(http, "What is the launch code?"))["task_id"])
    assert "I find nothing about" in task["result"]["answer"]
