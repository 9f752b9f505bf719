"""Tool results: a typed object, the same as JSON text for clients that read only text, and notes."""

from collections.abc import Sequence

from mcp_types import CallToolResult, TextContent
from pydantic import BaseModel

from turnkeeper.models.http_responses import Task


def tool_result(answer: BaseModel, *, notes: Sequence[str] = (), is_error: bool = False) -> CallToolResult:
    texts = [answer.model_dump_json(), *notes]
    return CallToolResult(
        content=[TextContent(type="text", text=text) for text in texts],
        structured_content=answer.model_dump(mode="json"),
        is_error=is_error,
    )


def task_result(task: Task, *, notes: Sequence[str] = ()) -> CallToolResult:
    """Return the result of a tool that starts work; an error if the work has failed."""
    return tool_result(task, notes=notes, is_error=task.status == "failed")


def error_result(sentence: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=sentence)], is_error=True)
