"""Errors in both forms of MCP: a tool result, which the model reads, or a JSON-RPC error."""

from fastapi.exceptions import RequestValidationError
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS
from pydantic import ValidationError

from turnkeeper.api.problems import FieldError, ProblemError, problem_of
from turnkeeper.models.errors import RejectedError, TaskValidationError
from turnkeeper.stores.database.database import StoreUnavailableError

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
