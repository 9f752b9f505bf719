"""Lists of tasks from Temporal's visibility store, and of sessions while our index can't be read (API-1, TSK-4).

Values in a visibility filter are first checked against a pattern, since quoting doesn't protect there (API-4).

A cursor is Temporal's page token with a checksum. Temporal responds to an unreadable token as it does to an outage, and
the SDK repeats such a call for seconds, so anything that is not one of our cursors is rejected here. A cursor with a
correct checksum is used once; if that fails and the first page can be read, the cursor is at fault and not Temporal.
"""

from collections.abc import Sequence
from typing import Literal

from temporalio.client import Client, WorkflowExecution
from temporalio.service import RPCError, RPCStatusCode

from turnkeeper.api.problems import ProblemError, invalid
from turnkeeper.api.temporal.lists.cursors import decode_cursor, encode_cursor
from turnkeeper.api.temporal.lists.visibility import AWAITING_APPROVAL, SESSIONS, sessions_of, visible_session
from turnkeeper.api.temporal.query_client import query_client
from turnkeeper.api.temporal.temporal_calls import NO_SESSION, call_temporal
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.models.http_responses import ListedSession, SessionList
from turnkeeper.models.ids import WorkflowId, session_id_of, tenant_of
from turnkeeper.models.texts.one_line import searchable
from turnkeeper.workflows import search_attributes

PAGE = 50
MAX_SCANNED = 500
"""How many sessions one request searches for a text before it returns a cursor to continue."""

_LIST = "sessions"

_PAGE_TOKEN_STATUSES = (RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.UNKNOWN, RPCStatusCode.INTERNAL)
"""Temporal's possible responses to a page token that it can't read."""

ListedStatus = Literal["open", "awaiting_approval", "ended", "cancelled", "terminated"]

_STATUS_FILTERS: dict[ListedStatus, str] = {
    "open": "ExecutionStatus = 'Running'",
    "awaiting_approval": AWAITING_APPROVAL,
    "ended": "ExecutionStatus = 'Completed'",
    "cancelled": "ExecutionStatus = 'Canceled'",
    "terminated": "ExecutionStatus IN ('Terminated', 'Failed', 'TimedOut')",
}


async def list_sessions(
    client: Client,
    timeouts: Timeouts,
    *,
    tenant: str,
    status: ListedStatus | None = None,
    user: str | None = None,
    text: str | None = None,
    cursor: str | None = None,
) -> SessionList:
    """Return a page of a tenant's sessions without our index: open ones first, newest first.

    `text` is searched in titles and ids.
    `user` must match `turnkeeper.models.session.messages.USER_PATTERN`.
    """
    pages = _Pages(client, timeouts, _filter(tenant, status, user), page_size=PAGE, cursor=cursor)
    sessions: list[ListedSession] = []
    scanned_count = 0
    while True:
        page = await pages.next()
        scanned_count += len(page)
        for execution in page:
            if tenant_of(WorkflowId(execution.id)) != tenant:
                continue  # was not started by a gateway
            session = await _listed_session(execution)
            if text is None or searchable(text) in searchable(f"{session.title or ''}\n{session.workflow_id}"):
                sessions.append(session)
        if not pages.next_cursor or len(sessions) >= PAGE or text is None or scanned_count >= MAX_SCANNED:
            return SessionList(sessions=sessions, next_cursor=pages.next_cursor)


async def list_task_executions(
    client: Client,
    timeouts: Timeouts,
    *,
    tenant: str,
    parent: str | None,
    is_open: bool,
    page_size: int,
    cursor: str | None,
) -> tuple[Sequence[WorkflowExecution], str | None]:
    """Return a page of the tenant's sessions that are tasks, of all or of `parent`, and the cursor of the next one.

    `is_open`: only those whose workflows run. `parent` must match `turnkeeper.models.ids.ID_PATTERN`.
    """
    conditions = [sessions_of(tenant), f"AgentTaskParent = '{parent}'" if parent else "AgentTaskParent IS NOT NULL"]
    if is_open:
        conditions.append(_STATUS_FILTERS["open"])
    pages = _Pages(client, timeouts, " AND ".join(conditions), page_size=page_size, cursor=cursor)
    page = [execution for execution in await pages.next() if tenant_of(WorkflowId(execution.id)) == tenant]
    return page, pages.next_cursor


async def count_open_sessions(client: Client, timeouts: Timeouts, tenant: str) -> int:
    """Return how many sessions of the tenant are open, its tasks' included."""
    condition = f"{sessions_of(tenant)} AND {_STATUS_FILTERS['open']}"
    count = await call_temporal(
        client.count_workflows(condition, rpc_timeout=timeouts.rpc), NO_SESSION, seconds=timeouts.call
    )
    return count.count


class _Pages:
    """The pages of a list, from a cursor on. Raises 422 for what is no cursor of ours."""

    def __init__(
        self, client: Client, timeouts: Timeouts, condition: str, *, page_size: int, cursor: str | None
    ) -> None:
        self._client = client
        self._timeouts = timeouts
        self._token = _token(cursor)
        self._pages = (query_client(client) if self._token else client).list_workflows(
            condition, page_size=page_size, next_page_token=self._token, rpc_timeout=timeouts.rpc
        )

    async def next(self) -> Sequence[WorkflowExecution]:
        try:
            await call_temporal(self._pages.fetch_next_page(), NO_SESSION, seconds=self._timeouts.call)
        except ProblemError as problem:
            if self._token and await _is_token_invalid(problem, self._client, self._timeouts):
                raise _invalid_cursor() from problem
            raise
        self._token = None
        return self._pages.current_page or []

    @property
    def next_cursor(self) -> str | None:
        token = self._pages.next_page_token
        return encode_cursor(token, list_name=_LIST) if token else None


async def _is_token_invalid(problem: ProblemError, client: Client, timeouts: Timeouts) -> bool:
    """Return whether only this page can't be read, by reading the first one: the error doesn't mention the token."""
    error = problem.__cause__
    if not isinstance(error, RPCError) or error.status not in _PAGE_TOKEN_STATUSES:
        return False
    first_page = query_client(client).list_workflows(SESSIONS, page_size=1, rpc_timeout=timeouts.rpc)
    try:
        await first_page.fetch_next_page()
    except RPCError:
        return False
    return True


def _filter(tenant: str, status: ListedStatus | None, user: str | None) -> str:
    conditions = [sessions_of(tenant)]
    if status:
        conditions.append(_STATUS_FILTERS[status])
    if user:
        conditions.append(f"AgentUser = '{search_attributes.encoded_user(user)}'")
    return " AND ".join(conditions)


async def _listed_session(execution: WorkflowExecution) -> ListedSession:
    session = await visible_session(execution)
    return ListedSession(
        workflow_id=session_id_of(session.session_id),
        title=session.title,
        user=session.user,
        model=session.model,
        status="awaiting_approval" if session.awaits_approval else session.status,
        turn_count=session.turn_count,
        started_at=session.started_at,
        closed_at=session.closed_at,
    )


def _token(cursor: str | None) -> bytes | None:
    if cursor is None:
        return None
    token = decode_cursor(cursor, list_name=_LIST)
    if token is None:
        raise _invalid_cursor()
    return token


def _invalid_cursor() -> ProblemError:
    return invalid("cursor", "is not a cursor of this list")
