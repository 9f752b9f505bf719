"""What goes wrong, in the two forms that MCP has: a result of the tool, which the model reads, or a JSON-RPC error."""

from fastapi.exceptions import RequestValidationError
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS
from pydantic import ValidationError

from turnkeeper.api.problems import ProblemError, problem_of
from turnkeeper.models.errors import RejectedError, TaskValidationError
from turnkeeper.stores.database.database import StoreUnavailableError

EXPECTED = (ProblemError, RejectedError, TaskValidationError, StoreUnavailableError)
"""What services raise for a reason that callers are told. Anything else is a bug."""


def arguments_error(error: ValidationError) -> ProblemError:
    """Return the problem that names every wrong argument, the reason and the value."""
    details = error.errors(include_url=False, include_context=True)
    located = [{**detail, "loc": ("arguments", *detail["loc"])} for detail in details]
    return problem_of(RequestValidationError(located), is_of_task=True)


def sentence_of(error: Exception) -> str:
    """Return what went wrong as a tool says it, with the values of wrong arguments."""
    problem = problem_of(error, is_of_task=True).problem
    if not problem.errors:
        return problem.detail
    fields = (f"{one.field}: {one.reason}" + (f" (given: {one.value})" if one.value else "") for one in problem.errors)
    return "; ".join(fields)


def is_passing(error: Exception) -> bool:
    """Return whether the same request may succeed later, with nothing wrong with the work itself."""
    return problem_of(error, is_of_task=True).problem.status in (503, 504)


def rpc_error(error: Exception) -> MCPError:
    """Return the JSON-RPC error of a request of the Tasks extension."""
    problem = problem_of(error, is_of_task=True).problem
    code = INVALID_PARAMS if problem.status in (404, 422) else INTERNAL_ERROR
    return MCPError(code, problem.detail)
