"""Finding the deletion of a session, which is a workflow, without a worker (API-1)."""

from dataclasses import dataclass

from temporalio.client import Client, WorkflowExecutionDescription
from temporalio.client import WorkflowExecutionStatus as Status

from turnkeeper.api.problems import ProblemError, problem
from turnkeeper.api.temporal.temporal_calls import call_temporal
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.models.errors import ARCHIVE_UNAVAILABLE, DELETION_REFUSED
from turnkeeper.models.ids import WorkflowId, session_id_of
from turnkeeper.models.session.messages import FIRST_RUN, deletion_id


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
        problem=_problem_of(description),
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


def _problem_of(description: WorkflowExecutionDescription) -> ProblemError | None:
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
