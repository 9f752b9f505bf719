"""The model condenses a task's long texts before its first call, and what matters less is left out: CTX-15."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from httpx import AsyncClient

from tests.features.tasks.api.delegating import awaited, create
from tests.harness import Environment, broken, heal, last_user_message, replayer, says
from tests.waiting import until
from turnkeeper.activities.providers.protocol import ModelError
from turnkeeper.features.tasks.rules.enrichment import INSTRUCTION, answer_of, read_request
from turnkeeper.features.tasks.session.task import CreateTask, prepare_task
from turnkeeper.features.tasks.session.task_state import TaskInput, TextsToCondense
from turnkeeper.features.tasks.session_part import with_task
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.limits import Limits
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.transcript.conversation import Usage
from turnkeeper.models.transcript.large_texts import Texts
from turnkeeper.models.transcript.model_call import ModelRequest, ModelResponse

SECRET = "The vault is in room 17."
LONG = "Nothing of note was said. " * 900 + SECRET + " And so on." * 1_200
HISTORY = [{"role": "user", "content": "Where is it?"}, {"role": "assistant", "content": LONG}]
CONDENSING = {"compress": "summarise", "max_total_chars": 1}
"""Without room for whole texts."""
USAGE = Usage(input_tokens=900, output_tokens=50)

Reply = Callable[[ModelRequest], ModelResponse | ModelError]


def is_condensing(request: ModelRequest) -> bool:
    return request.head.system == INSTRUCTION


def condensing(reply: Reply) -> Reply:
    """Answer requests to condense by `reply`, and others with what they were parsed."""
    return lambda request: reply(request) if is_condensing(request) else says(f"I read: {last_user_message(request)}")


def condense(request: ModelRequest) -> ModelResponse:
    parsed = read_request(request.messages[0].content)
    assert parsed is not None
    texts = {text.id: SECRET for text in parsed.texts if SECRET in text.text}
    return says(answer_of(texts)).model_copy(update={"usage": USAGE})


async def test_ctx_15_the_model_condenses_long_texts_before_the_tasks_first_call(
    http: AsyncClient, env: Environment
) -> None:
    env.vendor.answer = condensing(condense)
    receipt = await create(http, "Find the vault.", conversation_history=HISTORY, history_policy=CONDENSING)
    assert (receipt["context"]["truncated"], receipt["context"]["to_condense"]) == (1, 1)
    assert "condensed" in [warning["code"] for warning in receipt["warnings"]]

    task = await awaited(http, receipt["task_id"])
    assert [is_condensing(request) for request in env.vendor.requests] == [True, False]
    assert env.vendor.requests[0].head.tools == []
    prompt = last_user_message(env.vendor.requests[1])
    assert f"[CONDENSED]:\n    {SECRET} ... (condensed, original: {len(LONG)} chars)\n" in prompt
    assert task["condensed"] == {"condensed": 1, "cut": 0, "reason": None}
    assert task["result"]["usage"]["input_tokens"] == USAGE.input_tokens
    assert task["result"]["answer"] == f"I read: {prompt}"

    session = env.adopt(env.client.get_workflow_handle(receipt["task_id"]))
    (turn,) = (await session.state()).messages
    assert (turn.user_message, turn.usage) == (prompt, USAGE)
    (history,) = await session.histories()
    assert len(history.to_json()) < len(LONG), "the long text is in the store alone"
    await replayer().replay_workflow(history)

    assert (await http.delete(f"/workflow/{receipt['task_id']}")).status_code == 202

    async def is_deleted() -> bool:
        return not await env.stores.blobs.delete(receipt["task_id"])

    await until(is_deleted)


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (lambda request: ModelError("auth", "no such key"), "no such key"),
        (lambda request: says("I'd rather not."), "The model gave no condensed text."),
        (lambda request: says('{"2": "  "}'), "The model gave no condensed text."),
    ],
)
async def test_ctx_15_if_the_model_cannot_condense_them_the_texts_are_cut(
    http: AsyncClient, env: Environment, reply: Reply, reason: str
) -> None:
    env.vendor.answer = condensing(reply)
    receipt = await create(http, "Find it.", conversation_history=HISTORY, history_policy=CONDENSING)
    task = await awaited(http, receipt["task_id"])
    assert task["status"] == "completed"
    assert (task["condensed"]["condensed"], task["condensed"]["cut"]) == (0, 1)
    assert reason in task["condensed"]["reason"]
    assert "[TRUNCATED]:\n" in task["result"]["answer"]
    assert SECRET not in task["result"]["answer"]


async def test_ctx_15_a_passing_failure_of_the_model_is_tried_again(http: AsyncClient, env: Environment) -> None:
    outcomes: list[Any] = [ModelError("overloaded", "busy", retry_after=0.01)]
    env.vendor.answer = condensing(lambda request: outcomes.pop() if outcomes else condense(request))
    receipt = await create(http, "Find it.", conversation_history=HISTORY, history_policy=CONDENSING)
    task = await awaited(http, receipt["task_id"])
    assert task["condensed"]["condensed"] == 1
    assert SECRET in task["result"]["answer"]


async def test_ctx_15_while_the_store_is_down_texts_are_cut_with_a_warning(http: AsyncClient, env: Environment) -> None:
    file = broken(env)
    receipt = await create(http, "Find it.", conversation_history=HISTORY, history_policy=CONDENSING)
    assert "not_condensed" in [warning["code"] for warning in receipt["warnings"]]
    assert "to_condense" not in receipt["context"]
    heal(file)
    task = await awaited(http, receipt["task_id"])
    assert (task["status"], task["condensed"]) == ("completed", None)


async def test_ctx_15_a_task_can_be_stopped_while_its_texts_are_condensed(http: AsyncClient, env: Environment) -> None:
    env.vendor.answer = condensing(condense)
    env.vendor.gate.close()
    receipt = await create(http, "Find it.", conversation_history=HISTORY, history_policy=CONDENSING)
    await env.vendor.gate.until_arrived(1)
    stopped = await http.post(f"/workflow/{receipt['task_id']}/cancel", json={})
    assert stopped.json()["cancelling"] is True
    task = await awaited(http, receipt["task_id"])
    assert (task["status"], task["condensed"]) == ("cancelled", None)
    assert len(env.vendor.requests) == 1


async def test_ctx_15_condensing_counts_towards_the_budget_of_the_turn(env: Environment) -> None:
    env.vendor.answer = condensing(condense)
    request = {"description": "Find it.", "conversation_history": HISTORY, "history_policy": CONDENSING}
    prepared = prepare_task(CreateTask.model_validate(request), now="2026-01-01T00:00:00Z")
    assert prepared.long_texts is not None
    texts, task_id = Texts(), WorkflowId(f"task-{uuid4()}")
    blob = texts.add(prepared.long_texts.model_dump_json())
    await env.stores.blobs.put(task_id, texts.by_hash.values())
    task = TaskInput(context=prepared.context, to_condense=TextsToCondense(blob=blob, count=1), open_seconds=None)
    session = await env.start(with_task(SessionInput(limits=Limits(max_tokens_per_turn=100)), task), id=task_id)
    (turn,) = await session.idle(turns=1)
    assert (turn.status, turn.error_type) == ("failed", "budget")
    assert turn.usage == USAGE
    assert [is_condensing(request) for request in env.vendor.requests] == [True]


async def test_ctx_15_a_preview_says_what_would_be_condensed_and_asks_no_model(
    http: AsyncClient, env: Environment
) -> None:
    body = {"description": "Find it.", "conversation_history": HISTORY, "history_policy": CONDENSING}
    view = (await http.post("/tasks/preview", json=body)).json()
    assert view["context"]["to_condense"] == 1
    assert view["conversation_history"]["messages"][1]["truncated"] is True
    assert "The model will condense the text" in " ".join(warning["message"] for warning in view["warnings"])
    assert env.vendor.requests == []


async def test_ctx_15_a_task_gets_only_relevant_messages_even_from_its_parent(
    http: AsyncClient, env: Environment
) -> None:
    session = await env.start()
    texts = ["Hello.", "The launch code is 4711.", "What is for lunch?", "Paint it blue.", "Thank you."]
    for number, text in enumerate(texts, start=1):
        await session.prompt(id=f"p{number}", text=text)
        await session.idle(turns=number)
    inherits = {"parent": session.handle.id, "conversation_history": "inherit", "history_policy": {"relevant_to": True}}
    body = {"description": "Enter the launch code.", **inherits}
    view = (await http.post("/tasks/preview", json=body)).json()
    assert [exchange["reason"] for exchange in view["relevance"]] == [
        "first",
        "relevant",
        "irrelevant",
        "irrelevant",
        "last",
    ]
    assert (view["context"]["kept"], view["context"]["left_out"]) == (6, 4)
    assert "launch code is 4711" in view["prompt"]
    assert "lunch" not in view["prompt"]
    task = await awaited(http, (await create(http, **body))["task_id"])
    assert "launch code is 4711" in task["result"]["answer"]
