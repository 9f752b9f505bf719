"""The official Python client, with what a client of the Tasks extension needs beside it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Literal, TypeVar

import httpx2
from mcp import Client
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, ElicitResult, Request, RequestParams, Result
from pydantic import Field, JsonValue

from tests.harness import LONG_PAUSE
from tests.waiting import BOUND, until

Opened = TypeVar("Opened")

EXTENSION = "io.modelcontextprotocol/tasks"


class CreatedTask(Result):
    """A handle, as the result of a call."""

    result_type: Literal["task"] = Field(alias="resultType")
    task_id: str = Field(alias="taskId")
    status: str
    status_message: str | None = Field(None, alias="statusMessage")
    created_at: str = Field(alias="createdAt")
    last_updated_at: str = Field(alias="lastUpdatedAt")
    ttl_ms: int | None = Field(alias="ttlMs")
    poll_interval_ms: int | None = Field(None, alias="pollIntervalMs")


class TaskParams(RequestParams):
    task_id: str = Field(alias="taskId")


class UpdateParams(TaskParams):
    input_responses: dict[str, JsonValue] = Field(alias="inputResponses")


class TaskRequest(Request[TaskParams, str]):
    name_param = "taskId"


class UpdateRequest(Request[UpdateParams, str]):
    name_param = "taskId"


class Answer(Result):
    """Any result, as it came."""

    model_config = {"extra": "allow"}


class Tasks(ClientExtension):
    """Declares the extension; handles are left to the test."""

    identifier = EXTENSION

    def claims(self) -> Sequence[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=CreatedTask, resolve=_never)]


async def _never(created: CreatedTask, context: ClaimContext) -> CallToolResult:
    raise AssertionError("a test takes the handle itself")


class McpClient:
    """One client of the MCP server at a gateway."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def call(self, name: str, /, **arguments: Any) -> CallToolResult:
        """Call a tool that answers with its result."""
        result = await self.client.call_tool(name, arguments)
        assert isinstance(result, CallToolResult), result
        return result

    async def answer(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        """Call a tool that succeeds, and return its typed answer."""
        result = await self.call(name, **arguments)
        assert not result.is_error, result
        return result.structured_content

    async def create(self, name: str, /, **arguments: Any) -> CreatedTask:
        """Call a tool that answers with a handle."""
        created = await self.client.session.call_tool(name, arguments, allow_claimed=True)
        assert isinstance(created, CreatedTask), created
        return created

    async def request(self, method: str, task_id: str, **params: Any) -> dict[str, Any]:
        """Send a request of the extension, and return its result."""
        request: Request[Any, str] = TaskRequest(method=method, params=TaskParams(taskId=task_id))
        if params:
            request = UpdateRequest(method=method, params=UpdateParams(taskId=task_id, **params))
        result = await self.client.session.send_request(request, Answer)
        return result.model_dump(by_alias=True, exclude={"meta"})

    async def task(self, task_id: str) -> dict[str, Any]:
        return await self.request("tasks/get", task_id)

    async def until(self, task_id: str, *statuses: str) -> dict[str, Any]:
        """Ask for a task until it has one of these statuses."""

        async def with_status() -> dict[str, Any] | None:
            task = await self.task(task_id)
            return task if task["status"] in statuses else None

        return await until(with_status, max_pause=LONG_PAUSE)


async def _no_answer(*_: Any) -> ElicitResult:
    return ElicitResult(action="cancel")


@asynccontextmanager
async def mcp_client(
    url: str, *, mode: str = "2026-07-28", tasks: bool = False, elicits: bool = True, key: str | None = None
) -> AsyncIterator[McpClient]:
    """Connect to a gateway, with a key if it needs one.

    `tasks`: the client declares the extension, `elicits`: it can ask a person.
    """
    extensions = [Tasks()] if tasks else None
    callback = _no_answer if elicits else None
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with httpx2.AsyncClient(headers=headers, timeout=BOUND) as http:
        server = streamable_http_client(f"{url}/mcp", http_client=http) if key else f"{url}/mcp"
        async with Client(server, mode=mode, extensions=extensions, elicitation_callback=callback) as client:
            yield McpClient(client)


@asynccontextmanager
async def in_own_task(context: AbstractAsyncContextManager[Opened]) -> AsyncIterator[Opened]:
    """Open a context in a task that also closes it: pytest sets a fixture up and takes it down in different tasks."""
    opened: asyncio.Future[Opened] = asyncio.get_running_loop().create_future()
    closing = asyncio.Event()

    async def run() -> None:
        async with context as value:
            opened.set_result(value)
            await closing.wait()

    task = asyncio.create_task(run())
    await asyncio.wait({task, opened}, return_when=asyncio.FIRST_COMPLETED)
    try:
        yield opened.result() if opened.done() else await task
    finally:
        closing.set()
        await task
