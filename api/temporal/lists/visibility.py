"""Sessions as Temporal's visibility store has them, which repairs our own index (API-1, docs/decisions/0049).

It is the authority on what is open, how it ended, and what waits for an approval. It has no previews and no costs, and
it forgets ended sessions.
"""

import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from temporalio.client import Client, WorkflowExecution

from turnkeeper.api.problems import ProblemError
from turnkeeper.api.temporal.session_reader import FINAL_STATUS_OF
from turnkeeper.api.temporal.temporal_calls import NO_SESSION, call_temporal
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.models.bounds import encodable_text
from turnkeeper.models.deletion import deleted_session, deletion_id
from turnkeeper.models.ids import WorkflowId, is_tenant
from turnkeeper.models.transcript.index_entry import IndexStatus
from turnkeeper.stores.session_index import IndexedSession, SessionClosure
from turnkeeper.workflows import search_attributes

SESSIONS = "WorkflowType = 'AgenticAIWorkflow' AND ExecutionStatus != 'ContinuedAsNew'"

AWAITING_APPROVAL = "ExecutionStatus = 'Running' AND AgentSessionStatus = 'awaiting_approval'"

MAX_AWAITING = 1_000
"""How many sessions that wait for an approval a list can show."""

PAGE = 200

MAX_TEXT_CHARS = 255
"""Of a title, name or id in Temporal's list. Our own titles have at most 120 characters."""

_PLAIN_ID = re.compile(r"[A-Za-z0-9._~:-]{1,255}")
"""What can stand in a filter: quoting doesn't protect there (API-4). No other id is valid in our routes."""


@dataclass(frozen=True)
class VisibleSession:
    """A session in Temporal's list, a moment behind."""

    session_id: WorkflowId
    status: IndexStatus
    awaits_approval: bool
    title: str | None
    user: str | None
    model: str | None
    turn_count: int
    parent: str | None
    started_at: datetime
    """When the session was started; of one that was started by hand, its newest run."""
    run_started_at: datetime
    closed_at: datetime | None

    @property
    def as_indexed(self) -> IndexedSession:
        """The row of a session that has none."""
        return IndexedSession(
            self.session_id,
            started_at=self.started_at,
            last_activity_at=self.closed_at or max(self.started_at, self.run_started_at),
            status=self.status,
            title=self.title,
            user=self.user,
            model=self.model,
            turn_count=self.turn_count,
            parent=self.parent,
            closed_at=self.closed_at,
        )

    @property
    def closure(self) -> SessionClosure | None:
        """Its end; `None` while it is open."""
        if self.closed_at is None:
            return None
        return SessionClosure(self.session_id, self.status, self.closed_at, turn_count=self.turn_count)


def sessions_of(tenant: str) -> str:
    """Return the filter of a tenant's sessions. Raises `ValueError` for a name that could end the filter's value."""
    if not is_tenant(tenant):
        raise ValueError(f"{tenant!r} is not a valid tenant")
    return f"{SESSIONS} AND AgentTenant = '{tenant}'" if tenant else f"{SESSIONS} AND AgentTenant IS NULL"


async def find_visible(
    client: Client, timeouts: Timeouts, session_ids: Iterable[WorkflowId]
) -> dict[WorkflowId, VisibleSession]:
    """Return those of at most some hundred sessions that Temporal lists. Raises `ProblemError`."""
    plain = _plain(session_ids)
    return await _newest_by_id(client, timeouts, _has_id(plain), count=len(plain)) if plain else {}


async def find_changed(
    client: Client, timeouts: Timeouts, rows: Sequence[IndexedSession]
) -> dict[WorkflowId, VisibleSession]:
    """Return those of some hundred open sessions of the index of which Temporal may know more. Raises `ProblemError`.

    They have ended, wait for an approval, or have not sent a row yet. The others are left out, because Temporal reads
    its database for each session that it returns: a page without them takes a tenth of the time.
    """
    plain = _plain(row.session_id for row in rows)
    if not plain:
        return {}
    condition = f"{_has_id(plain)} AND (ExecutionStatus != 'Running' OR {AWAITING_APPROVAL})"
    if silent := _plain(row.session_id for row in rows if row.title is None and not row.revision):
        condition = f"({condition}) OR {_has_id(silent)}"
    visible = await _newest_by_id(client, timeouts, condition, count=len(plain))
    return {row.session_id: visible[row.session_id] for row in rows if _is_of_row(visible.get(row.session_id), row)}


async def awaiting_approval(client: Client, timeouts: Timeouts, *, tenant: str) -> list[WorkflowId]:
    """Return a tenant's sessions that wait for an approval, `MAX_AWAITING` at most. Raises `ProblemError`."""
    ids: list[WorkflowId] = []
    async for page in _pages(client, timeouts, f"{sessions_of(tenant)} AND {AWAITING_APPROVAL}", page_size=PAGE):
        ids += [session.session_id for session in page]
        if len(ids) >= MAX_AWAITING:
            break
    return ids[:MAX_AWAITING]


async def changed_since(
    client: Client, timeouts: Timeouts, since: datetime | None
) -> AsyncIterator[list[VisibleSession]]:
    """Yield pages of the sessions that have started or ended since then; `None`: of all. Raises `ProblemError`."""
    condition = SESSIONS
    if since is not None:
        moment = since.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        condition += f" AND (StartTime > '{moment}' OR CloseTime > '{moment}')"
    async for page in _pages(client, timeouts, condition, page_size=PAGE):
        yield page


async def sessions_in_deletion(client: Client, timeouts: Timeouts) -> set[WorkflowId]:
    """Return the workflow ids of the sessions that are being deleted. Raises `ProblemError`."""
    condition = "WorkflowType = 'DeleteSession' AND ExecutionStatus = 'Running'"
    pages = client.list_workflows(condition, page_size=PAGE, rpc_timeout=timeouts.rpc)
    ids: set[WorkflowId] = set()
    while True:
        await call_temporal(pages.fetch_next_page(), NO_SESSION, seconds=timeouts.call)
        ids |= {deleted_session(execution.id) for execution in pages.current_page or []}
        if not pages.next_page_token:
            return ids


async def is_deletion_begun(client: Client, timeouts: Timeouts, session: VisibleSession) -> bool:
    """Return whether a deletion of the session has begun. Raises `ProblemError`."""
    deletion = client.get_workflow_handle(deletion_id(session.session_id))
    try:
        description = await call_temporal(
            deletion.describe(rpc_timeout=timeouts.rpc), NO_SESSION, seconds=timeouts.call
        )
    except ProblemError as problem:
        if problem.problem.status == 404:
            return False
        raise
    return description.start_time >= session.started_at


async def visible_session(execution: WorkflowExecution) -> VisibleSession:
    """Return a session of Temporal's list. Anybody can start a workflow with any memo, so only what is valid counts."""
    attributes = execution.typed_search_attributes
    memo = await _memo_of(execution)
    status = FINAL_STATUS_OF.get(execution.status) if execution.status else None
    return VisibleSession(
        session_id=WorkflowId(execution.id),
        status=status or "open",
        awaits_approval=status is None and attributes.get(search_attributes.SESSION_STATUS) == "awaiting_approval",
        title=_text(memo.get("title")),
        user=_text(search_attributes.decoded_user(attributes.get(search_attributes.USER))),
        model=_text(attributes.get(search_attributes.MODEL)),
        turn_count=attributes.get(search_attributes.TURNS) or 0,
        parent=_text(attributes.get(search_attributes.TASK_PARENT)),
        started_at=_moment(memo.get("created_at")) or execution.start_time,
        run_started_at=execution.start_time,
        closed_at=execution.close_time,
    )


def _plain(session_ids: Iterable[WorkflowId]) -> list[WorkflowId]:
    return [session_id for session_id in session_ids if _PLAIN_ID.fullmatch(session_id)]


def _has_id(plain_ids: Sequence[WorkflowId]) -> str:
    names = ", ".join(f"'{session_id}'" for session_id in plain_ids)
    return f"WorkflowId IN ({names})"


async def _newest_by_id(
    client: Client, timeouts: Timeouts, condition: str, *, count: int
) -> dict[WorkflowId, VisibleSession]:
    """Return the newest session with each id; `count`: of the ids."""
    by_id: dict[WorkflowId, VisibleSession] = {}
    # One more than the ids, since a full page makes Temporal look for another one.
    async for page in _pages(client, timeouts, f"{SESSIONS} AND ({condition})", page_size=count + 1):
        for session in page:
            other = by_id.get(session.session_id)
            if other is None or session.run_started_at > other.run_started_at:
                by_id[session.session_id] = session
    return by_id


def _is_of_row(session: VisibleSession | None, row: IndexedSession) -> bool:
    """Return whether there is a session, and not an earlier one with the row's id."""
    return session is not None and (session.closed_at is None or session.closed_at > row.started_at)


async def _pages(
    client: Client, timeouts: Timeouts, condition: str, *, page_size: int
) -> AsyncIterator[list[VisibleSession]]:
    pages = client.list_workflows(condition, page_size=page_size, rpc_timeout=timeouts.rpc)
    while True:
        await call_temporal(pages.fetch_next_page(), NO_SESSION, seconds=timeouts.call)
        yield [await visible_session(execution) for execution in pages.current_page or []]
        if not pages.next_page_token:
            return


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
