"""Deletions as Temporal knows them: one workflow for each session that is deleted, found without a worker (API-1)."""

from dataclasses import dataclass

from temporalio.client import Client, WorkflowExecutionDescription
from temporalio.client import WorkflowExecutionStatus as Status

from turnkeeper.api import problem_texts as texts
from turnkeeper.api import problems
from turnkeeper.api.problems import ProblemError
from turnkeeper.api.session_ids import workflow_id
from turnkeeper.api.temporal.temporal_calls import call_temporal, rpc_timeout
from turnkeeper.models.deletion import deletion_id
from turnkeeper.models.errors import ARCHIVE_UNAVAILABLE, DELETION_REFUSED

FIRST_RUN = "first_run_id"
"""The memo that says which session is deleted, of those that had the id one after the other."""


@dataclass(frozen=True)
class Deletion:
    """The newest deletion under a session's id, by what Temporal says of it."""

    run_id: str
    first_run_id: str
    """Of the session; empty where Temporal had forgotten it."""
    is_done: bool
    problem: ProblemError | None = None
    """Why it does not get on now; it is tried again."""


async def find_deletion(client: Client, session_id: str) -> Deletion | None:
    """Return the newest deletion under that id, under way or done; `None` where there is none. Raises 503."""
    description = await _describe(client, session_id, deletion_id(workflow_id(session_id)))
    if description is None or description.status not in (Status.RUNNING, Status.COMPLETED):
        return None
    return Deletion(
        run_id=description.run_id or "",
        first_run_id=(await description.memo()).get(FIRST_RUN, ""),
        is_done=description.status == Status.COMPLETED,
        problem=_problem_of(description),
    )


async def find_first_run(client: Client, session_id: str) -> str | None:
    """Return the id of the first run of the session that has the id now; `None` where none has. Raises 503."""
    description = await _describe(client, session_id, workflow_id(session_id))
    return None if description is None else first_run_of(description)


def first_run_of(description: WorkflowExecutionDescription) -> str:
    """Return the id of a session's first run: it tells this session from any other under the same id."""
    return description.raw_description.workflow_execution_info.first_run_id or description.run_id or ""


async def raise_if_deleted(client: Client, session_id: str) -> None:
    """Refuse to read a session that is being deleted: to who asks it is gone, though Temporal takes a while (API-1).

    To be asked of closed sessions only: a deletion begins with stopping the session. While the archive can't be
    cleared, or Temporal refuses to delete the session, it can be read. Raises 404.
    """
    deletion = await find_deletion(client, session_id)
    if deletion is None or deletion.is_done or deletion.problem:
        return
    if await find_first_run(client, session_id) in (None, deletion.first_run_id):  # else the id was used again
        raise problems.unknown_session(session_id)


async def _describe(client: Client, session_id: str, workflow: str) -> WorkflowExecutionDescription | None:
    handle = client.get_workflow_handle(workflow)
    try:
        return await call_temporal(handle.describe(rpc_timeout=rpc_timeout()), session_id)
    except ProblemError as problem:
        if problem.problem.status == 404:
            return None
        raise


def _problem_of(description: WorkflowExecutionDescription) -> ProblemError | None:
    """Return why the deletion's activity failed when it was last tried, if it is to be tried again."""
    for pending in description.raw_description.pending_activities:
        reason = pending.last_failure.message
        if pending.last_failure.application_failure_info.type == ARCHIVE_UNAVAILABLE:
            return problems.archive_unavailable(texts.DELETION_WAITS.format(reason=reason))
        if pending.last_failure.application_failure_info.type == DELETION_REFUSED:
            return problems.deletion_refused(texts.DELETION_NOT_PERMITTED.format(reason=reason))
    return None
