"""The audit: who changed what, and with what outcome (API-4)."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse

from turnkeeper.api.audit.actions import Change
from turnkeeper.api.dependencies import CallerDep, ServicesDep
from turnkeeper.api.http.openapi import ANY, errors
from turnkeeper.api.request_audit import recorded
from turnkeeper.api.services import Services
from turnkeeper.models.http_responses import AuditAction, AuditEntry, AuditPage
from turnkeeper.models.ids import ID_PATTERN
from turnkeeper.models.session.messages import USER_PATTERN
from turnkeeper.models.wire import UtcDatetime
from turnkeeper.stores.audit import AuditFilter, Position, RecordedChange, position_of
from turnkeeper.stores.database.moments import microseconds

router = APIRouter(tags=["audit"])

LINES = "application/x-ndjson"
PAGE = 1_000
"""Entries that are read at once for JSON lines."""

CURSOR_PATTERN = r"^[0-9]{1,16}\.[0-9a-f]{32}\.[0-9]{1,4}$"


@router.get(
    "/audit",
    operation_id="read_audit",
    response_model=AuditPage,
    responses={
        200: {"content": {LINES: {"schema": {"type": "string"}}}},
        **errors(*ANY),
    },
)
async def read_audit(
    request: Request,
    services: ServicesDep,
    caller: CallerDep,
    session: Annotated[str | None, Query(pattern=ID_PATTERN, description="Only changes of this session.")] = None,
    user: Annotated[str | None, Query(pattern=USER_PATTERN, description="Only what this user asked for.")] = None,
    action: Annotated[AuditAction | None, Query(description="Only this action.")] = None,
    since: Annotated[UtcDatetime | None, Query(description="Only from this time on.")] = None,
    limit: Annotated[int, Query(ge=1, le=1_000, description="Most entries a page; JSON lines have no pages.")] = 100,
    cursor: Annotated[
        str | None, Query(pattern=CURSOR_PATTERN, description="`next_cursor` of the page before.")
    ] = None,
    accept: Annotated[str, Header(include_in_schema=False)] = "",
) -> Any:
    """Return who changed what in the caller's tenant, newest first, for admins.

    With `Accept: application/x-ndjson` all of it comes, one entry a line; that stands in the audit itself, as `export`.
    There is never a text of a conversation in
    it, nor a value that was set.
    """
    which = AuditFilter(caller.tenant, session_id=session, user=user, action=action, since=since)
    before = _position(cursor)
    if LINES in accept:
        export = Change("export", session)
        before = before or _position_now()
        async with recorded(services, caller, [export], operation="read_audit", scope=request.scope):
            first = await services.audit.page(which, before=before, limit=PAGE)
        return StreamingResponse(_lines(services, which, first), media_type=LINES)
    page = await services.audit.page(which, before=before, limit=limit)
    return AuditPage(entries=[_entry(change) for change in page], next_cursor=_cursor(page, limit))


async def _lines(services: Services, which: AuditFilter, page: list[RecordedChange]) -> AsyncIterator[str]:
    while page:
        yield "".join(f"{_entry(change).model_dump_json()}\n" for change in page)
        if len(page) < PAGE:
            return
        page = await services.audit.page(which, before=position_of(page[-1]), limit=PAGE)


def _position(cursor: str | None) -> Position | None:
    if cursor is None:
        return None
    at, request_id, number = cursor.split(".")
    return (int(at), request_id, int(number))


def _position_now() -> Position:
    """Return where a page begins that has nothing of this request, nor of later ones."""
    return (microseconds(datetime.now(UTC)), "", 0)


def _cursor(page: list[RecordedChange], limit: int) -> str | None:
    if len(page) < limit:
        return None
    return "{}.{}.{}".format(*position_of(page[-1]))


def _entry(change: RecordedChange) -> AuditEntry:
    row, status = change.row, change.status
    outcome = "unknown" if status is None else ("accepted", "refused", "failed")[(status >= 400) + (status >= 500)]
    return AuditEntry.model_validate(
        {
            "at": row.at,
            "request_id": row.request_id,
            "caller": row.caller,
            "user": row.user,
            "role": row.role,
            "action": row.action,
            "operation": row.operation,
            "workflow_id": row.session_id,
            "message_id": row.message_id,
            "call_id": row.call_id,
            "key_id": row.key_id,
            "fields": row.fields,
            "outcome": outcome,
            "status": status,
            "repeats": change.repeats if outcome == "accepted" else None,
        }
    )
