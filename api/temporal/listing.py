"""Listing sessions, and those that are tasks, from Temporal's visibility store (API-1, TSK-4).

Values in a visibility filter are first checked against a pattern, since quoting doesn't protect there (API-4).

A cursor is Temporal's page token with a checksum. Temporal responds to an unreadable token as it does to an outage, and
the SDK repeats such a call for seconds, so anything that is not one of our cursors is rejected here. A cursor with a
correct checksum is used once; if that fails and the first page can be read, the cursor is at fault and not Temporal.
"""

import base64
import binascii
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Literal

from temporalio.client import Client, WorkflowExecution
from temporalio.service import RPCError, RPCStatusCode

from turnkeeper.api import problem_texts as texts
from turnkeeper.api import problems
from turnkeeper.api.temporal.query_client import query_client
from turnkeeper.api.temporal.session_reader import FINAL_STATUS_OF
from turnkeeper.api.temporal.temporal_calls import call_temporal, rpc_timeout
from turnkeeper.models.http_responses import ListedSession, SessionList
from turnkeeper.workflows import search_attributes

PAGE = 50
MAX_SCANNED = 500
"""How many sessions one request searches for a text before it returns a cursor to continue."""

_CHECKSUM_BYTES = 12

_PAGE_TOKEN_STATUSES = (RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.UNKNOWN, RPCStatusCode.INTERNAL)
"""Temporal's possible responses to a page token that it can't read."""

ListedStatus = Literal["open", "awaiting_approval", "ended", "cancelled", "terminated"]

_SESSIONS = "WorkflowType = 'AgenticAIWorkflow' AND ExecutionStatus != 'ContinuedAsNew'"

_STATUS_FILTERS: dict[ListedStatus, str] = {
    "open": "ExecutionStatus = 'Running'",
    "awaiting_approval": "ExecutionStatus = 'Running' AND AgentSessionStatus = 'awaiting_approval'",
    "ended": "ExecutionStatus = 'Completed'",
    "cancelled": "ExecutionStatus = 'Canceled'",
    "terminated": "ExecutionStatus IN ('Terminated', 'Failed', 'TimedOut')",
}


async def list_sessions(
    client: Client,
    *,
    status: ListedStatus | None = None,
    user: str | None = None,
    text: str | None = None,
    cursor: str | None = None,
) -> SessionList:
    """Return a page of sessions, open ones first, newest first. `text` is searched in titles and ids.

    `user` must match `turnkeeper.models.session.session.USER_PATTERN`.
    """
    pages = _Pages(client, _filter(status, user), page_size=PAGE, cursor=cursor)
    sessions: list[ListedSession] = []
    scanned_count = 0
    while True:
        page = await pages.next()
        scanned_count += len(page)
        for execution in page:
            session = await _listed_session(execution)
            searched_text = f"{session.title or ''}\n{session.workflow_id}".casefold()
            if text is None or text.casefold() in searched_text:
                sessions.append(session)
        if not pages.next_cursor or len(sessions) >= PAGE or text is None or scanned_count >= MAX_SCANNED:
            return SessionList(sessions=sessions, next_cursor=pages.next_cursor)


async def list_task_executions(
    client: Client, *, parent: str | None, is_open: bool, page_size: int, cursor: str | None
) -> tuple[Sequence[WorkflowExecution], str | None]:
    """Return a page of the sessions that are tasks, of all or of `parent`, and the cursor of the next one.

    `is_open`: only those whose workflows run. `parent` must match `turnkeeper.models.ids.ID_PATTERN`.
    """
    conditions = [_SESSIONS, f"AgentTaskParent = '{parent}'" if parent else "AgentTaskParent IS NOT NULL"]
    if is_open:
        conditions.append(_STATUS_FILTERS["open"])
    pages = _Pages(client, " AND ".join(conditions), page_size=page_size, cursor=cursor)
    return await pages.next(), pages.next_cursor


async def count_open_sessions(client: Client, tenant: str) -> int:
    """Return how many sessions of the tenant are open, its tasks' included."""
    of_tenant = f"AgentTenant = '{tenant}'" if tenant else None
    condition = " AND ".join(filter(None, (_SESSIONS, _STATUS_FILTERS["open"], of_tenant)))
    count = await call_temporal(client.count_workflows(condition, rpc_timeout=rpc_timeout()), "")
    return count.count


class _Pages:
    """The pages of a list, from a cursor on. Raises 422 for what is no cursor of ours."""

    def __init__(self, client: Client, condition: str, *, page_size: int, cursor: str | None) -> None:
        self._client = client
        self._token = _token(cursor)
        self._pages = (query_client(client) if self._token else client).list_workflows(
            condition, page_size=page_size, next_page_token=self._token, rpc_timeout=rpc_timeout()
        )

    async def next(self) -> Sequence[WorkflowExecution]:
        try:
            await call_temporal(self._pages.fetch_next_page(), "")
        except problems.ProblemError as problem:
            if self._token and await _is_token_invalid(problem, self._client):
                raise _invalid_cursor() from problem
            raise
        self._token = None
        return self._pages.current_page or []

    @property
    def next_cursor(self) -> str | None:
        return _cursor(self._pages.next_page_token)


async def _is_token_invalid(problem: problems.ProblemError, client: Client) -> bool:
    """Return whether only this page can't be read, by reading the first one: the error doesn't mention the token."""
    error = problem.__cause__
    if not isinstance(error, RPCError) or error.status not in _PAGE_TOKEN_STATUSES:
        return False
    first_page = query_client(client).list_workflows(_filter(None, None), page_size=1, rpc_timeout=rpc_timeout())
    try:
        await first_page.fetch_next_page()
    except RPCError:
        return False
    return True


def _filter(status: ListedStatus | None, user: str | None) -> str:
    conditions = [_SESSIONS]
    if status:
        conditions.append(_STATUS_FILTERS[status])
    if user:
        conditions.append(f"AgentUser = '{search_attributes.encoded_user(user)}'")
    return " AND ".join(conditions)


async def _listed_session(execution: WorkflowExecution) -> ListedSession:
    attributes = execution.typed_search_attributes
    memo: dict[str, Any] = dict(await execution.memo())
    status = FINAL_STATUS_OF.get(execution.status) if execution.status else None
    waits = attributes.get(search_attributes.SESSION_STATUS) == "awaiting_approval"
    return ListedSession(
        workflow_id=execution.id,
        title=memo.get("title"),
        user=search_attributes.decoded_user(attributes.get(search_attributes.USER)),
        model=attributes.get(search_attributes.MODEL),
        status=status or ("awaiting_approval" if waits else "open"),
        turn_count=attributes.get(search_attributes.TURNS) or 0,
        started_at=memo.get("created_at") or execution.start_time,
        closed_at=execution.close_time,
    )


def _cursor(token: bytes | None) -> str | None:
    return base64.urlsafe_b64encode(_checksum(token) + token).decode() if token else None


def _token(cursor: str | None) -> bytes | None:
    if cursor is None:
        return None
    try:
        decoded = base64.b64decode(cursor, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise _invalid_cursor() from None
    checksum, token = decoded[:_CHECKSUM_BYTES], decoded[_CHECKSUM_BYTES:]
    if not token or checksum != _checksum(token):
        raise _invalid_cursor()
    return token


def _checksum(token: bytes) -> bytes:
    return sha256(b"turnkeeper:sessions:" + token).digest()[:_CHECKSUM_BYTES]


def _invalid_cursor() -> problems.ProblemError:
    return problems.invalid("cursor", texts.NOT_A_CURSOR)
