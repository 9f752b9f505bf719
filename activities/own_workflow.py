"""The workflow that an activity runs for: its ids, and queries to it on a machine that may be busy (AGT-2, OPS-10).

A query needs a worker that has the session in memory or replays it. While workers are busy, replay, or come and go,
it fails or goes unanswered, and says nothing about the session: it is asked again, until the activity's time is
nearly over. An activity of a worker that stops is given back at once: another worker can answer, this one can't.
"""

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import activity
from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from turnkeeper.models.backoff import growing_pauses
from turnkeeper.models.errors import REFUSED

Answer = TypeVar("Answer")

QUERY_SECONDS = 5.0
"""Bound of one query: the SDK itself tries again for longer than any caller can wait."""

FIRST_PAUSE_SECONDS = 0.1
MAX_PAUSE_SECONDS = 2.0

STOPPING = "worker_stopping"
"""`type` of the failure that gives an activity back."""

_FINAL = frozenset(
    {
        RPCStatusCode.NOT_FOUND,
        RPCStatusCode.INVALID_ARGUMENT,
        RPCStatusCode.PERMISSION_DENIED,
        RPCStatusCode.UNAUTHENTICATED,
        RPCStatusCode.UNIMPLEMENTED,
    }
)
"""What a query that is asked again would meet again."""


class WorkflowSilentError(Exception):
    """The session did not answer in time; nothing is wrong with it."""


def current_session_id() -> str:
    """Return the id of the session that the running activity is of (docs/decisions/0002)."""
    return activity.info().workflow_id or ""


def current_run_id() -> str:
    """Return the id of the run that the running activity is of."""
    return activity.info().workflow_run_id or ""


async def query_own_workflow(client: Client, query: str, argument: object, answer_type: type[Answer]) -> Answer:
    """Return the answer of this activity's own run, asking again for as long as the activity has time.

    Raises:
        WorkflowSilentError: The activity's time is nearly over.
        ApplicationError: The worker stops; the activity is to be run again elsewhere, soon.
        WorkflowQueryFailedError: The workflow refuses.
        RPCError: There is no such run, or it must not be asked.
    """
    try:
        async with asyncio.timeout(_available_seconds(activity.info())):
            return await _unless_stopping(_query_with_retries(client, query, argument, answer_type))
    except TimeoutError:
        raise WorkflowSilentError(f"the session did not answer {query!r} in time") from None


async def _query_with_retries(client: Client, query: str, argument: object, answer_type: type[Answer]) -> Answer:
    # Pinned to the run: the session may have continued as new since.
    workflow = client.get_workflow_handle(current_session_id(), run_id=current_run_id())
    pauses = growing_pauses(FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
    while True:
        try:
            async with asyncio.timeout(QUERY_SECONDS):
                answer: Answer = await workflow.query(
                    query, argument, result_type=answer_type, rpc_timeout=timedelta(seconds=QUERY_SECONDS)
                )
                return answer
        except (TimeoutError, RPCError, WorkflowQueryFailedError) as error:
            if not _is_temporary(error):
                raise
        await asyncio.sleep(next(pauses))


async def _unless_stopping(query_call: Coroutine[Any, Any, Answer]) -> Answer:
    """Return what `query_call` returns. Raises `ApplicationError` once the worker is told to stop."""
    query_task = asyncio.create_task(query_call)
    shutdown_task = asyncio.create_task(activity.wait_for_worker_shutdown())
    try:
        await asyncio.wait([query_task, shutdown_task], return_when=asyncio.FIRST_COMPLETED)
        if not query_task.done():
            raise ApplicationError("the worker stops", type=STOPPING, next_retry_delay=timedelta(seconds=0.1))
        return query_task.result()
    finally:
        query_task.cancel()
        shutdown_task.cancel()
        await asyncio.gather(query_task, shutdown_task, return_exceptions=True)


def _is_temporary(error: Exception) -> bool:
    """Return whether `error` is the machine's: busy workers, a full query buffer, a workflow task that failed."""
    if isinstance(error, RPCError):
        return error.status not in _FINAL
    return not str(error).startswith(REFUSED)


def _available_seconds(info: activity.Info) -> float | None:
    """Return how many seconds an activity may ask, so that it can still say that nobody answered."""
    seconds = min(
        (limit.total_seconds() for limit in (info.start_to_close_timeout, info.schedule_to_close_timeout) if limit),
        default=None,
    )
    return seconds and seconds - min(1.0, seconds / 10)
