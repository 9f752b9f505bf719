"""The workflow that an activity runs for: its ids, and queries to it (AGT-2, OPS-10).

A query needs a worker that has the session in memory or replays it. While workers are busy, replay, or restart, it may
fail or time out, which says nothing about the session: it is retried until the activity's time is nearly over. When its
own worker shuts down, the activity fails at once, so that another worker can run it.
"""

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import activity
from temporalio.client import Client, WorkflowHandle, WorkflowQueryFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from turnkeeper.models.errors import REJECTION_PREFIX, TurnkeeperError, growing_pauses
from turnkeeper.models.ids import WorkflowId

Answer = TypeVar("Answer")

QUERY_SECONDS = 5.0
"""Limit of one query: the SDK itself retries for longer than any caller can wait."""

FIRST_PAUSE_SECONDS = 0.1
MAX_PAUSE_SECONDS = 2.0

STOPPING = "worker_stopping"
"""`type` of the failure when the worker shuts down."""

_FINAL = frozenset(
    {
        RPCStatusCode.NOT_FOUND,
        RPCStatusCode.INVALID_ARGUMENT,
        RPCStatusCode.PERMISSION_DENIED,
        RPCStatusCode.UNAUTHENTICATED,
        RPCStatusCode.UNIMPLEMENTED,
    }
)
"""Errors that a retried query would get again."""


class WorkflowSilentError(TurnkeeperError):
    """The session did not answer in time. That says nothing about its state."""


def current_session_id() -> WorkflowId:
    """Return the id of the running activity's session, with its tenant (docs/decisions/0002, 0048)."""
    return WorkflowId(activity.info().workflow_id or "")


def current_run_id() -> str:
    """Return the id of the running activity's workflow run."""
    return activity.info().workflow_run_id or ""


async def query_own_workflow(client: Client, query: str, argument: object, answer_type: type[Answer]) -> Answer:
    """Return the result of a query to this activity's own run; raises as `query_session`."""
    # Pinned to the run: the session may have continued as new since.
    own = client.get_workflow_handle(current_session_id(), run_id=current_run_id())
    return await query_session(own, query, argument, answer_type)


async def query_session(
    session: WorkflowHandle[Any, Any], query: str, argument: object, answer_type: type[Answer]
) -> Answer:
    """Return the result of a query to a session, retried as long as the activity has time.

    Raises:
        WorkflowSilentError: The activity's time is nearly over.
        ApplicationError: The worker is shutting down; the activity is retried soon, elsewhere.
        WorkflowQueryFailedError: The workflow rejects the query.
        RPCError: There is no such run, or querying it is not permitted.
    """
    try:
        async with asyncio.timeout(_available_seconds(activity.info())):
            return await _unless_stopping(_query_with_retries(session, query, argument, answer_type))
    except TimeoutError:
        raise WorkflowSilentError(f"the session did not answer {query!r} in time") from None


async def _query_with_retries(
    session: WorkflowHandle[Any, Any], query: str, argument: object, answer_type: type[Answer]
) -> Answer:
    pauses = growing_pauses(FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
    while True:
        try:
            async with asyncio.timeout(QUERY_SECONDS):
                answer: Answer = await session.query(
                    query, argument, result_type=answer_type, rpc_timeout=timedelta(seconds=QUERY_SECONDS)
                )
                return answer
        except (TimeoutError, RPCError, WorkflowQueryFailedError) as error:
            if not _is_temporary(error):
                raise
        await asyncio.sleep(next(pauses))


async def _unless_stopping(query_call: Coroutine[Any, Any, Answer]) -> Answer:
    """Return the result of `query_call`. Raises `ApplicationError` once the worker begins to shut down."""
    query_task = asyncio.create_task(query_call)
    shutdown_task = asyncio.create_task(activity.wait_for_worker_shutdown())
    try:
        await asyncio.wait([query_task, shutdown_task], return_when=asyncio.FIRST_COMPLETED)
        if not query_task.done():
            raise ApplicationError(
                "the worker is shutting down", type=STOPPING, next_retry_delay=timedelta(seconds=0.1)
            )
        return query_task.result()
    finally:
        query_task.cancel()
        shutdown_task.cancel()
        await asyncio.gather(query_task, shutdown_task, return_exceptions=True)


def _is_temporary(error: Exception) -> bool:
    """Return whether `error` is temporary: busy workers, a full query buffer, a failed workflow task."""
    if isinstance(error, RPCError):
        return error.status not in _FINAL
    return not str(error).startswith(REJECTION_PREFIX)


def _available_seconds(info: activity.Info) -> float | None:
    """Return for how many seconds an activity may query, so that it can still return its failure."""
    seconds = min(
        (limit.total_seconds() for limit in (info.start_to_close_timeout, info.schedule_to_close_timeout) if limit),
        default=None,
    )
    return seconds and seconds - min(1.0, seconds / 10)
