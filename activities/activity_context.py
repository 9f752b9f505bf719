"""An activity's workflow, with its ids and queries to it, and its heartbeats (AGT-2, OPS-8, OPS-10).

A query needs a worker that has the session in memory or replays it. While workers are busy, replay, or restart, it may
fail or time out, which says nothing about the session: it is retried until the activity's time is nearly over. When its
own worker shuts down, the activity fails at once, so that another worker can run it.

Heartbeats only show that the worker of a silent vendor or a slow tool is alive. Temporal delivers a cancellation in
response to a heartbeat. So that a stop takes effect at once, the worker that cancels an activity makes it heartbeat
now, if it runs in the same process (`beat_now`). Nothing is cancelled without Temporal: the workflow task that cancels
may be lost, and then the activity goes on. An activity of another process is cancelled with its next heartbeat.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
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


# ---- heartbeats

HEARTBEAT_SECONDS = 3.0
"""Each is a write at the server, and an action where those are billed. `HEARTBEAT_TIMEOUT` follows from it."""

STOP_SECONDS = (0.02, 0.05, *[0.2] * 7)
"""Pauses before the heartbeats after `beat_now`: Temporal knows of the cancellation once the workflow task has been
reported, and the SDK sends at most one heartbeat per 0.2 s."""

_RUNNING: dict[tuple[str, str], "_Heart"] = {}
"""The activities of this process, by the ids of their run and activity. Global: workflows can't be given anything."""


class _Heart:
    def __init__(self, details: Callable[[], Sequence[object]]) -> None:
        self._details = details
        self._is_stopping = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def beat_now(self) -> None:
        """Heartbeat soon and often; called in any thread."""
        with suppress(RuntimeError):  # the loop is closed, and so is the worker
            self._loop.call_soon_threadsafe(self._is_stopping.set)

    async def beat(self, last: float) -> None:
        """Heartbeat until this is cancelled."""
        last += self._loop.time()
        while True:
            now = self._loop.time()
            due = now + HEARTBEAT_SECONDS
            try:
                async with asyncio.timeout_at(last if now < last < due else due):
                    await self._is_stopping.wait()
            except TimeoutError:
                activity.heartbeat(*self._details())
                continue
            self._is_stopping.clear()
            for pause in STOP_SECONDS:
                await asyncio.sleep(pause)
                activity.heartbeat(*self._details())


@asynccontextmanager
async def heartbeating(
    details: Callable[[], Sequence[object]] = tuple, *, last: float = math.inf
) -> AsyncIterator[None]:
    """Heartbeat every `HEARTBEAT_SECONDS` inside the block, and after `last` seconds.

    `details` is called for each heartbeat. It must include what the activity sends with heartbeats of its own, since
    the server keeps only the newest details, even if they are empty.
    """
    info, heart = activity.info(), _Heart(details)
    key = (info.workflow_run_id or "", info.activity_id)
    _RUNNING[key] = heart
    beating = asyncio.create_task(heart.beat(last))
    try:
        yield
    finally:
        beating.cancel()
        if _RUNNING.get(key) is heart:  # not that of a newer attempt
            del _RUNNING[key]


def beat_now(run_id: str, activity_id: str) -> None:
    """Make an activity heartbeat now, if it runs in this process: Temporal then tells it that it is cancelled."""
    if heart := _RUNNING.get((run_id, activity_id)):
        heart.beat_now()
