"""Attachments of a handed-over history reach the task's model, and are gone with the task: CTX-16."""

from base64 import b64encode
from hashlib import sha256
from typing import Any

from httpx import AsyncClient

from tests.features.tasks.api.delegating import awaited, create
from tests.features.tasks.workflow.test_sub_tasks import is_task
from tests.harness import Environment, asks, broken, heal, says
from tests.waiting import until
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.transcript.attachments import CodeAttachment, ImageAttachment
from turnkeeper.models.transcript.model_call import ModelRequest, ModelResponse
from turnkeeper.stores.blobs import attachments_owner

PNG = b"\x89PNG\r\n\x1a\n" + b"x" * 20_000
HISTORY: list[dict[str, Any]] = [
    {
        "role": "user",
        "content": "Our logo, and how it is drawn.",
        "attachments": [
            {"type": "image", "name": "logo.png", "media_type": "image/png", "data": b64encode(PNG).decode()},
            {"type": "code", "language": "python", "content": "draw('logo')"},
        ],
    },
    {"role": "assistant", "content": "I see."},
]


async def test_ctx_16_an_image_and_code_of_the_history_are_in_the_tasks_first_request(
    http: AsyncClient, env: Environment
) -> None:
    body = {"conversation_history": HISTORY, "idempotency_key": "logo"}
    receipt = await create(http, "Describe the logo.", **body)
    assert receipt["warnings"]
    assert {warning["code"] for warning in receipt["warnings"]} == {"missing_timestamp"}
    task = await awaited(http, receipt["task_id"])
    assert "[Image: logo.png, image/png, 20 KB]" in task["result"]["answer"]

    image, code = env.vendor.requests[0].messages[0].attachments
    assert isinstance(image, ImageAttachment)
    assert image.data == b64encode(PNG).decode()
    assert isinstance(code, CodeAttachment)
    assert code.content == "draw('logo')"

    session = env.adopt(env.client.get_workflow_handle(receipt["task_id"]))
    (history,) = await session.histories()
    assert len(history.to_json()) < 40_000
    assert (await create(http, "Describe the logo.", **body))["task_id"] == receipt["task_id"]
    other = [{**HISTORY[0], "attachments": HISTORY[0]["attachments"][:1]}, HISTORY[1]]
    answer = await http.post(
        "/tasks", json={"description": "Describe the logo.", **body, "conversation_history": other}
    )
    assert answer.status_code == 409

    assert (await http.delete(f"/workflow/{receipt['task_id']}")).status_code == 202

    async def is_gone() -> bool:
        owner = attachments_owner(WorkflowId(receipt["task_id"]))
        return not await env.stores.blobs.read_sizes(owner, [sha256(PNG).hexdigest()])

    await until(is_gone)


async def test_ctx_16_a_task_inherits_the_attachments_of_its_parent(http: AsyncClient, env: Environment) -> None:
    attachments = HISTORY[0]["attachments"]
    session = await env.start()
    prompt = {"id": "p1", "message": "Our logo.", "attachments": attachments}
    assert (await http.post(f"/workflow/{session.handle.id}/prompt", json=prompt)).status_code == 202
    await session.idle(turns=1)
    inherits = {"parent": session.handle.id, "conversation_history": "inherit"}
    view = (await http.post("/tasks/preview", json={"description": "Describe it.", **inherits})).json()
    assert "[Image: logo.png, image/png, 20 KB]" in view["prompt"]
    await awaited(http, (await create(http, "Describe it.", **inherits))["task_id"])
    image, code = env.vendor.requests[-1].messages[0].attachments
    assert isinstance(image, ImageAttachment)
    assert image.data == b64encode(PNG).decode()
    assert isinstance(code, CodeAttachment)
    assert code.content == "draw('logo')"

    def answer(request: ModelRequest) -> ModelResponse:
        if is_task(request):
            return says("Seen.")
        if request.messages[-1].role == "tool":
            return says("Done.")
        return asks(("run_task", {"description": "Describe it.", "conversation_history": "inherit"}))

    env.vendor.answer = answer
    await session.prompt(id="p2", text="Let somebody describe it.")
    await session.idle(turns=2)
    (request,) = [request for request in env.vendor.requests[2:] if is_task(request)]
    image, code = request.messages[0].attachments
    assert isinstance(image, ImageAttachment)
    assert image.data == b64encode(PNG).decode()


async def test_ctx_16_while_the_store_is_down_the_history_only_names_its_attachments(
    http: AsyncClient, env: Environment
) -> None:
    file = broken(env)
    receipt = await create(http, "Describe the logo.", conversation_history=HISTORY)
    assert "not_attached" in [warning["code"] for warning in receipt["warnings"]]
    heal(file)
    task = await awaited(http, receipt["task_id"])
    assert "[Image: logo.png, image/png, 20 KB]" in task["result"]["answer"]
    assert env.vendor.requests[0].messages[0].attachments == []
