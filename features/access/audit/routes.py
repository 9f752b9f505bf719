"""The audit: who changed what, and with what outcome (API-4)."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse

from turnkeeper.api.dependencies import ChangesDep, ServicesDep
from turnkeeper.api.http.openapi import ANY, errors
from turnkeeper.api.roles import access
from turnkeeper.api.services import Services
from turnkeeper.features.access.audit.recorder import AuditRecorder
from turnkeeper.features.access.audit.store import AuditFilter, AuditRow, Position, position_of
from turnkeeper.models.http_responses import Action, AuditEntry, AuditPage
from turnkeeper.models.ids import ID_PATTERN
from turnkeeper.models.session.messages import USER_PATTERN
from turnkeeper.models.wire import UtcDatetime
from turnkeeper.stores.database.moments import microseconds

router = APIRouter(tags=["audit"])

LINES = "application/x-ndjson"
PAGE = 1_000
"""Entries that are read at once for JSON lines."""

CURSOR_PATTERN = r"^[0-9]{1,16}\.[0-9a-f]{32}$"


@router.get(
    "/audit",
    operation_id="read_audit",
    response_model=AuditPage,
    responses={
        200: {"content": {LINES: {"schema": {"type": "string"}}}},
        **errors(*ANY),
    },
)
@access("admin")
async def read_audit(
    services: ServicesDep,
    changes: ChangesDep,
    session: Annotated[str | None, Query(pattern=ID_PATTERN, description="Only changes of this session.")] = None,
    user: Annotated[str | None, Query(pattern=USER_PATTERN, description="Only what this user asked for.")] = None,
    action: Annotated[Action | None, Query(description="Only this action.")] = None,
    since: Annotated[UtcDatetime | None, Query(description="Only from this time on.")] = None,
    limit: Annotated[int, Query(ge=1, le=1_000, description="Most entries a page; JSON lines have no pages.")] = 100,
    cursor: Annotated[
        str | None, Query(pattern=CURSOR_PATTERN, description="`next_cursor` of the page before.")
    ] = None,
    accept: Annotated[str, Header(include_in_schema=False)] = "",
) -> Any:
    """Return who changed what in the caller's tenant, newest first, for admins.

    With `Accept: application/x-ndjson` all of it comes, one entry a line; that stands in the audit itself, as `export`.
    There is never a text of a conversation in it, nor a value that was set.
    """
    which = AuditFilter(changes.caller.tenant, session_id=session, user=user, action=action, since=since)
    before = _position(cursor)
    if LINES in accept:
        before = before or (microseconds(datetime.now(UTC)), "")  # nothing of this request, nor of later ones
        async with changes.begin("export", changes.caller.workflow_id(session) if session else None):
            first = await services.get(AuditRecorder).page(which, before=before, limit=PAGE)
        return StreamingResponse(_lines(services, which, first), media_type=LINES)
    page = await services.get(AuditRecorder).page(which, before=before, limit=limit)
    next_cursor = "{}.{}".format(*position_of(page[-1])) if len(page) == limit else None
    return AuditPage(entries=[_entry(row) for row in page], next_cursor=next_cursor)


async def _lines(services: Services, which: AuditFilter, page: list[AuditRow]) -> AsyncIterator[str]:
    while page:
        yield "".join(f"{_entry(row).model_dump_json()}\n" for row in page)
        if len(page) < PAGE:
            return
        page = await services.get(AuditRecorder).page(which, before=position_of(page[-1]), limit=PAGE)


def _position(cursor: str | None) -> Position | None:
    if cursor is None:
        return None
    at, entry_id = cursor.split(".")
    return (int(at), entry_id)


def _entry(row: AuditRow) -> AuditEntry:
    values = {name: value for name, value in vars(row).items() if name not in ("tenant", "session_id")}
    status = row.status
    outcome = "unknown" if status is None else ("accepted", "refused", "failed")[(status >= 400) + (status >= 500)]
    return AuditEntry.model_validate({**values, "workflow_id": row.session_id, "outcome": outcome})
