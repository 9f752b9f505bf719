"""Sessions as Temporal's own list has them, a moment late (API-1, docs/decisions/0049).

It is the authority on what is open and how it ended. It has no previews and no costs, and it forgets ended sessions.
Values in a filter are first checked against a pattern, since quoting doesn't protect there (API-4).
"""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from temporalio.client import Client, WorkflowExecution

from turnkeeper.api.temporal.session_reader import FINAL_STATUS_OF
from turnkeeper.api.temporal.temporal_calls import NO_SESSION, call_temporal
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.models.ids import SESSION_TYPE, WorkflowId, is_tenant
from turnkeeper.models.texts import encodable_text
from turnkeeper.stores.session_index import IndexedSession
from turnkeeper.stores.temporal import search_attributes

SESSIONS = f"WorkflowType = '{SESSION_TYPE}' AND ExecutionStatus != 'ContinuedAsNew'"

PAGE = 200

MAX_TEXT_CHARS = 255
"""Of a title, name or id in Temporal's list. Our own titles have at most 120 characters."""

_PLAIN_ID = re.compile(r"[A-Za-z0-9._~:-]{1,255}")
"""What can stand in a filter. No other id is valid in our routes."""


async def visible_session(execution: WorkflowExecution) -> IndexedSession:
    """Return what Temporal has of a session, as the row of one that has none.

    Anybody can start a workflow with any memo, so only what is valid counts. A session that was started by hand began
    with its newest run.
    """
    attributes = execution.typed_search_attributes
    memo = await _memo_of(execution)
    started_at = _moment(memo.get("created_at")) or execution.start_time
    parent = _text(attributes.get(search_attributes.TASK_PARENT))
    return IndexedSession(
        WorkflowId(execution.id),
        started_at=started_at,
        last_activity_at=execution.close_time or max(started_at, execution.start_time),
        status=(FINAL_STATUS_OF.get(execution.status) if execution.status else None) or "open",
        title=_text(memo.get("title")),
        user=_text(search_attributes.decoded_user(attributes.get(search_attributes.USER))),
        model=_text(attributes.get(search_attributes.MODEL)),
        turn_count=attributes.get(search_attributes.TURNS) or 0,
        parent=parent,
        task_status=None if parent is None else "cancelled" if execution.close_time else "working",
        closed_at=execution.close_time,
    )


async def changed_since(
    client: Client, timeouts: Timeouts, since: datetime | None
) -> AsyncIterator[list[IndexedSession]]:
    """Yield pages of the sessions that have started or ended since then; `None`: of all. Raises `ProblemError`."""
    condition = SESSIONS
    if since is not None:
        moment = since.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        condition += f" AND (StartTime > '{moment}' OR CloseTime > '{moment}')"
    pages = client.list_workflows(condition, page_size=PAGE, rpc_timeout=timeouts.rpc)
    while True:
        await call_temporal(pages.fetch_next_page(), NO_SESSION, seconds=timeouts.call)
        yield [await visible_session(execution) for execution in pages.current_page or []]
        if not pages.next_page_token:
            return


async def retained(client: Client, timeouts: Timeouts, session_ids: Sequence[WorkflowId]) -> set[WorkflowId]:
    """Return those of at most some hundred sessions that Temporal has in its list. Raises `ProblemError`.

    One whose id can't stand in a filter counts as there.
    """
    plain = {session_id for session_id in session_ids if _PLAIN_ID.fullmatch(session_id)}
    names = ", ".join(f"'{session_id}'" for session_id in plain)
    # One more than the ids, since a full page makes Temporal look for another one.
    pages = client.list_workflows(
        f"{SESSIONS} AND WorkflowId IN ({names})", page_size=len(plain) + 1, rpc_timeout=timeouts.rpc
    )
    if plain:
        await call_temporal(pages.fetch_next_page(), NO_SESSION, seconds=timeouts.call)
    return {*session_ids} - plain | {WorkflowId(execution.id) for execution in pages.current_page or []}


async def count_open_sessions(client: Client, timeouts: Timeouts, tenant: str) -> int:
    """Return how many sessions of the tenant are open, its tasks' included.

    Raises `ProblemError`, and `ValueError` for a name that could end the filter's value.
    """
    if not is_tenant(tenant):
        raise ValueError(f"{tenant!r} is not a valid tenant")
    of_tenant = f"AgentTenant = '{tenant}'" if tenant else "AgentTenant IS NULL"
    condition = f"{SESSIONS} AND {of_tenant} AND ExecutionStatus = 'Running'"
    counting = client.count_workflows(condition, rpc_timeout=timeouts.rpc)
    return (await call_temporal(counting, NO_SESSION, seconds=timeouts.call)).count


async def _memo_of(execution: WorkflowExecution) -> Mapping[str, Any]:
    """Return the session's memo; an empty one if it can't be decoded."""
    try:
        return await execution.memo()
    except Exception:  # noqa: BLE001  # converters raise anything
        return {}


def _text(value: object) -> str | None:
    """Return a text that every store can have, `MAX_TEXT_CHARS` at most; `None` for anything else."""
    return encodable_text(value[:MAX_TEXT_CHARS]) if isinstance(value, str) else None


def _moment(value: object) -> datetime | None:
    """Return the time that a memo has, in UTC; `None` without a valid one."""
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
        return moment.astimezone(UTC) if moment and moment.tzinfo else None
    except (ValueError, OverflowError):
        return None
