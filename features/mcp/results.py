"""Tool results: a typed object, the same as JSON text for clients that read only text, and notes."""

from collections.abc import Sequence

from fastapi.exceptions import RequestValidationError
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, CallToolResult, TextContent
from pydantic import BaseModel, ValidationError

from turnkeeper.api.problems import FieldError, ProblemError, problem_of
from turnkeeper.models.errors import RejectedError, TaskValidationError
from turnkeeper.models.http_responses import Task
from turnkeeper.stores.database.database import StoreUnavailableError


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


EXPECTED = (ProblemError, RejectedError, TaskValidationError, StoreUnavailableError)
"""Errors of services that callers see. Any other is a bug."""


def arguments_error(error: ValidationError) -> ProblemError:
    """Return the problem that lists every wrong argument with reason and value."""
    details = error.errors(include_url=False, include_context=True)
    located = [{**detail, "loc": ("arguments", *detail["loc"])} for detail in details]
    return problem_of(RequestValidationError(located), is_of_task=True)


def sentence_of(error: Exception) -> str:
    """Return an error as text for a tool result, with the values of wrong arguments."""
    problem = problem_of(error, is_of_task=True).problem
    if not problem.errors:
        return problem.detail
    return "; ".join(map(_sentence_of_field, problem.errors))


def _sentence_of_field(error: FieldError) -> str:
    notes = [*filter(None, [error.error_type]), *([f"given: {error.value}"] if error.value else [])]
    return f"{error.field}: {error.reason}" + (f" ({'; '.join(notes)})" if notes else "")


def is_temporary(error: Exception) -> bool:
    """Return whether the same request may succeed later, because only the service is unavailable."""
    return problem_of(error, is_of_task=True).problem.status in (503, 504)


def rpc_error(error: Exception) -> MCPError:
    """Return the JSON-RPC error of a request of the Tasks extension."""
    problem = problem_of(error, is_of_task=True).problem
    code = INVALID_PARAMS if problem.status in (404, 422) else INTERNAL_ERROR
    errors = [one.model_dump(exclude_none=True) for one in problem.errors or []]
    return MCPError(code, problem.detail, {"errors": errors} if errors else None)
