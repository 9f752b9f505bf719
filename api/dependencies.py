"""Dependencies of the routes: the services, path parameters, and checks that all routes share.

All are `async`: FastAPI runs plain functions in threads, and a request would wait for ten of them.
"""

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Depends, Path, Request
from fastapi.dependencies.utils import get_flat_params
from fastapi.params import Query
from fastapi.routing import APIRoute

from turnkeeper.api.callers import Caller, caller_of
from turnkeeper.api.changes import RequestChanges
from turnkeeper.api.problems import NO_CREDENTIAL, invalid, problem
from turnkeeper.api.services import Services
from turnkeeper.models.ids import CALL_ID_PATTERN, ID_PATTERN, WorkflowId, is_id


async def get_services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


async def reject_unknown_parameters(request: Request) -> None:
    """Reject query parameters that the route doesn't have, so that no option is silently ignored (API-2).

    A page ignores them: mail filters, chats and analytics add their own to every link.
    """
    route = request.scope.get("route")
    if not isinstance(route, APIRoute) or not request.query_params:
        return
    parameters = {field.alias for field in get_flat_params(route.dependant) if isinstance(field.field_info, Query)}
    for name in request.query_params:
        if name not in parameters:
            allowed = ", ".join(sorted(parameters)) or "none"
            raise invalid(ascii(name)[1:61].rstrip("'"), f"is not a parameter of this route; allowed: {allowed}")


async def get_caller(request: Request) -> Caller:
    """Return who sends the request. Raises `ProblemError` 401 on a route that asks nobody for a credential."""
    caller = caller_of(request.scope)
    if caller is None:
        raise problem("unauthenticated", NO_CREDENTIAL)
    return caller


async def get_changes(request: Request) -> AsyncIterator[RequestChanges]:
    """Yield the changes of the request, in which its handler says what it changes.

    A handler of another method than GET that succeeds without having said it makes the request fail (500). So no route
    can leave limits and audit out; a test looks for this dependency on each of them.
    """
    services, caller = await get_services(request), await get_caller(request)
    operation = request.scope["route"].operation_id
    changes = RequestChanges(services.observers, caller, operation=operation, scope=request.scope)
    must_change, session_id = request.method not in ("GET", "HEAD"), request.path_params.get("id")
    with changes.whole(must_change=must_change, session_id=session_id if is_id(session_id) else None):
        yield changes


CallerDep = Annotated[Caller, Depends(get_caller)]
ChangesDep = Annotated[RequestChanges, Depends(get_changes, scope="function")]


async def get_session(
    request: Request, session_id: Annotated[str, Path(alias="id", pattern=ID_PATTERN, description="The session's id.")]
) -> WorkflowId:
    """Return the workflow id of the session in the path: one of the caller's tenant, whether it exists or not."""
    return (await get_caller(request)).workflow_id(session_id)


async def get_task(
    request: Request, task_id: Annotated[str, Path(alias="id", pattern=ID_PATTERN, description="The task's id.")]
) -> WorkflowId:
    return (await get_caller(request)).workflow_id(task_id)


ServicesDep = Annotated[Services, Depends(get_services)]
SessionId = Annotated[WorkflowId, Depends(get_session)]
TaskId = Annotated[WorkflowId, Depends(get_task)]
MessageId = Annotated[str, Path(pattern=ID_PATTERN, description="The prompt's id.")]
CallId = Annotated[str, Path(pattern=CALL_ID_PATTERN, description="The tool call's id: turn, step and index.")]
BlobHash = Annotated[str, Path(alias="hash", pattern=r"^[0-9a-f]{64}$", description="`hash` of a blob in a turn.")]
