"""Calls to Temporal with a time limit, and problems for their failures (API-2).

The SDK retries for longer than any `rpc_timeout`, so every call has a timeout around it too. "Not found", "closed", "no
worker" and "Temporal down" are different problems. When a query is not answered, describing the workflow, which needs
no worker, tells which one it is.

The deletion of a session is a workflow, and is found without a worker too.
"""

import asyncio
import copy
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
    WorkflowUpdateFailedError,
)
from temporalio.client import WorkflowExecutionStatus as Status
from temporalio.client import WorkflowUpdateRPCTimeoutOrCancelledError as UpdateTimeoutError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode, WorkflowService

from turnkeeper.api.problems import REJECTIONS, ProblemError, invalid, problem, rejected
from turnkeeper.api.roles import MAX_BODY_BYTES
from turnkeeper.api.temporal.commits import newest_tasks
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.models.errors import ARCHIVE_UNAVAILABLE, DELETION_REFUSED, NO_SESSION_YET, REJECTION_PREFIX
from turnkeeper.models.ids import WorkflowId, session_id_of
from turnkeeper.models.session.messages import FIRST_RUN, deletion_id

Answer = TypeVar("Answer")

NO_SESSION = WorkflowId("")
"""For calls that are about no session: Temporal never says that it is unknown."""

DESCRIBE_SECONDS = 0.7
UPDATE_PAUSE_SECONDS = 0.05
STUCK_ATTEMPTS = 3
"""A workflow task with this many attempts is not a hiccup: the session is stuck (API-2)."""

_UPDATE_UNDONE = "unexpected workflow task failure"

_UPDATE_LEFT_OUT = "UnprocessedUpdate"
"""Temporal's type of the failure of an update that a worker has received and not answered."""

_NO_NAMESPACE = "Namespace "
"""How Temporal's message begins where the namespace is unknown, and not the session."""

_CLOSED = ("already completed", "aborted by closing workflow")

_log = logging.getLogger(__name__)

DOWN = {RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED, RPCStatusCode.UNKNOWN}
"""Statuses of a call that the server has not answered."""


def without_retries(client: Client) -> Client:
    """Return a client on the same connection that sends each query and each request for a list once.

    The SDK itself retries a query that finds a full buffer only after a second or more, so that a caller that waits two
    seconds gets one retry, and a list with a page token that Temporal can't read. Its other calls are retried as usual.
    """
    config = client.config()
    config["service_client"] = copy.copy(client.service_client)
    config["service_client"].workflow_service = _UnretriedCalls(client.service_client)
    return Client(**config)


class _UnretriedCalls(WorkflowService):
    async def query_workflow(self, *request: Any, **options: Any) -> Any:
        return await super().query_workflow(*request, **{**options, "retry": False})

    async def list_workflow_executions(self, *request: Any, **options: Any) -> Any:
        return await super().list_workflow_executions(*request, **{**options, "retry": False})


async def call_temporal(call: Awaitable[Answer], workflow_id: WorkflowId, *, seconds: float) -> Answer:
    """Return the result of a call that needs no worker. Raises `ProblemError` for every failure."""
    try:
        async with asyncio.timeout(seconds):
            return await call
    except (TimeoutError, RuntimeError) as error:  # a client that could never connect raises `RuntimeError`
        raise problem("temporal-unreachable") from error
    except RPCError as error:
        raise _problem_of(error, workflow_id) from error


async def call_worker(client: Client, call: Awaitable[Answer], workflow_id: WorkflowId, *, seconds: float) -> Answer:
    """Return the result of a query or update. Raises `ProblemError`, which says who did not answer."""
    try:
        async with asyncio.timeout(seconds):
            return await call
    except WorkflowQueryFailedError as error:
        if NO_SESSION_YET in str(error):
            raise problem("unknown-session", workflow_id=workflow_id) from error
        raise invalid("request", str(error).removeprefix(REJECTION_PREFIX)) from error
    except WorkflowUpdateFailedError as error:
        if NO_SESSION_YET in str(error.cause):
            raise problem("unknown-session", workflow_id=workflow_id) from error
        raise _rejection_of(error) from error
    except (TimeoutError, UpdateTimeoutError, RuntimeError, WorkflowQueryRejectedError) as error:
        raise await _unanswered(client, workflow_id, error) from error
    except RPCError as error:
        if error.status in DOWN or error.status in (
            RPCStatusCode.FAILED_PRECONDITION,
            RPCStatusCode.RESOURCE_EXHAUSTED,
        ):
            raise await _unanswered(client, workflow_id, error) from error
        raise _problem_of(error, workflow_id) from error


async def retry_undone(update: Callable[[], Awaitable[Answer]]) -> Answer:
    """Return the result of an update, retried if its workflow task was undone, or if the worker left it out.

    A task is undone when a session is about to continue as new and a signal arrives at the same moment. A busy worker
    may leave an update out when it gets newer work of the session. Our updates may run twice.
    """
    while True:
        try:
            return await update()
        except RPCError as error:
            if error.status != RPCStatusCode.FAILED_PRECONDITION or _UPDATE_UNDONE not in error.message:
                raise
        except WorkflowUpdateFailedError as error:
            if not isinstance(error.cause, ApplicationError) or error.cause.type != _UPDATE_LEFT_OUT:
                raise
        await asyncio.sleep(UPDATE_PAUSE_SECONDS)


async def _unanswered(client: Client, workflow_id: WorkflowId, error: Exception) -> ProblemError:
    """Return the problem, and log what the SDK said, which no client sees."""
    problem = await diagnose_silence(client, workflow_id)
    reason = error.status.name if isinstance(error, RPCError) else type(error).__name__
    _log.info("a query or update of %s was not answered (%s): %s", workflow_id, reason, problem.problem.title)
    return problem


async def diagnose_silence(client: Client, workflow_id: WorkflowId) -> ProblemError:
    """Return why nobody answered: Temporal unreachable, no such session, session stuck, or no worker."""
    describe_call = client.get_workflow_handle(workflow_id).describe(rpc_timeout=timedelta(seconds=DESCRIBE_SECONDS))
    until = asyncio.get_running_loop().time() + DESCRIBE_SECONDS
    try:
        description = await call_temporal(describe_call, workflow_id, seconds=DESCRIBE_SECONDS)
    except ProblemError as error:
        return error
    try:
        async with asyncio.timeout_at(until):
            is_failing = await keeps_failing(client, description)
    except (TimeoutError, RPCError):
        is_failing = False  # unknown in time
    return problem("session-stuck" if is_failing else "no-worker", workflow_id=workflow_id)


async def keeps_failing(client: Client, description: WorkflowExecutionDescription) -> bool:
    """Return whether the session's workflow task has failed or timed out too often. Raises `RPCError`."""
    if not description.raw_description.HasField("pending_workflow_task"):
        return False
    if description.raw_description.pending_workflow_task.attempt >= STUCK_ATTEMPTS:
        return True
    # Temporal restarts its count of attempts when a signal arrives in between.
    return (await newest_tasks(client, WorkflowId(description.id))).failures >= STUCK_ATTEMPTS


def _problem_of(error: RPCError, workflow_id: WorkflowId) -> ProblemError:
    if error.status == RPCStatusCode.NOT_FOUND and error.message.startswith(_NO_NAMESPACE):
        return problem("temporal-unreachable")
    if error.status == RPCStatusCode.NOT_FOUND:
        is_closed = any(text in error.message for text in _CLOSED)
        return problem("session-ended" if is_closed else "unknown-session", workflow_id=workflow_id)
    if error.status == RPCStatusCode.INVALID_ARGUMENT and "limit for signal" not in error.message:
        if "size" in error.message:
            return problem("too-large", mib=MAX_BODY_BYTES // 1024**2)
        return invalid("request", "is not accepted by Temporal")
    if error.status in (RPCStatusCode.RESOURCE_EXHAUSTED, RPCStatusCode.INVALID_ARGUMENT):
        return problem("rate-limited")
    return problem("temporal-unreachable")


def _rejection_of(error: WorkflowUpdateFailedError) -> ProblemError:
    cause = error.cause
    if isinstance(cause, ApplicationError) and cause.type in REJECTIONS:
        field = cause.details[0] if cause.details else None
        return rejected(cause.type, cause.message.removeprefix(REJECTION_PREFIX), field=field)
    return invalid("request", "was rejected by the session")


@dataclass(frozen=True)
class Deletion:
    """The newest deletion for a session's id, as Temporal describes it."""

    run_id: str
    first_run_id: str
    """Of the session; empty if Temporal no longer had the session."""
    is_done: bool
    problem: ProblemError | None = None
    """Why it makes no progress now; Temporal retries it."""


async def find_deletion(client: Client, workflow_id: WorkflowId, timeouts: Timeouts) -> Deletion | None:
    """Return the newest deletion for that id, running or done; `None` if there is none. Raises 503."""
    description = await _describe(client, workflow_id, deletion_id(workflow_id), timeouts)
    if description is None or description.status not in (Status.RUNNING, Status.COMPLETED):
        return None
    return Deletion(
        run_id=description.run_id or "",
        first_run_id=(await description.memo()).get(FIRST_RUN, ""),
        is_done=description.status == Status.COMPLETED,
        problem=_obstacle_of(description),
    )


async def find_first_run(client: Client, workflow_id: WorkflowId, timeouts: Timeouts) -> str | None:
    """Return the id of the first run of the session that has the id now; `None` if there is none. Raises 503."""
    description = await _describe(client, workflow_id, workflow_id, timeouts)
    return None if description is None else first_run_of(description)


def first_run_of(description: WorkflowExecutionDescription) -> str:
    """Return the id of a session's first run, which distinguishes it from other sessions with the same id."""
    return description.raw_description.workflow_execution_info.first_run_id or description.run_id or ""


async def find_running_deletion(client: Client, workflow_id: WorkflowId, timeouts: Timeouts) -> Deletion | None:
    """Return the running deletion of the session that has the id now; `None` if there is none. Raises 503."""
    deletion = await find_deletion(client, workflow_id, timeouts)
    if deletion is None or deletion.is_done:
        return None
    # Otherwise a new session has the id.
    is_of_it = await find_first_run(client, workflow_id, timeouts) in (None, deletion.first_run_id)
    return deletion if is_of_it else None


async def raise_if_deleted(client: Client, workflow_id: WorkflowId, timeouts: Timeouts) -> None:
    """Raise 404 if the session is being deleted: for clients it is gone, though Temporal takes a while (API-1).

    Call it for closed sessions only, since a deletion begins by terminating the session. While the archive is
    unavailable, or Temporal doesn't permit the deletion, the session can still be read.
    """
    deletion = await find_running_deletion(client, workflow_id, timeouts)
    if deletion and not deletion.problem:
        raise problem("unknown-session", workflow_id=workflow_id)


def id_is_being_deleted(workflow_id: WorkflowId) -> ProblemError:
    detail = (
        f"The session {session_id_of(workflow_id)!r} is being deleted, which takes up to a minute. Send the request "
        "again then, or choose another id."
    )
    return problem("session-exists", detail)


async def used_id_error(client: Client, workflow_id: WorkflowId, timeouts: Timeouts) -> ProblemError:
    """Return the 409 for an id that another session has or had. Raises 503."""
    if await find_running_deletion(client, workflow_id, timeouts):
        return id_is_being_deleted(workflow_id)
    return problem("session-exists", workflow_id=workflow_id)


async def _describe(
    client: Client, workflow_id: WorkflowId, workflow: str, timeouts: Timeouts
) -> WorkflowExecutionDescription | None:
    handle = client.get_workflow_handle(workflow)
    try:
        return await call_temporal(handle.describe(rpc_timeout=timeouts.rpc), workflow_id, seconds=timeouts.call)
    except ProblemError as problem:
        if problem.problem.status == 404:
            return None
        raise


def _obstacle_of(description: WorkflowExecutionDescription) -> ProblemError | None:
    """Return why the deletion's activity last failed, if Temporal retries it."""
    for pending in description.raw_description.pending_activities:
        reason = pending.last_failure.message
        if pending.last_failure.application_failure_info.type == ARCHIVE_UNAVAILABLE:
            detail = (
                f"{reason} The session is stopped but not deleted yet. The deletion finishes when the archive is back; "
                "ask again."
            )
            return problem("archive-unavailable", detail)
        if pending.last_failure.application_failure_info.type == DELETION_REFUSED:
            detail = (
                f"{reason} The deletion continues once workers may terminate and delete workflows in this namespace."
            )
            return problem("deletion-refused", detail)
    return None
