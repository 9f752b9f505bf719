"""The audit: who changed what, when, and with what outcome; never content (API-4, docs/decisions/0066).

The entry is written before the change, and gets its outcome afterwards. An entry without one is of a gateway that
stopped in between.

A caller with a credential waits for the entry, and is refused if it can't be written. Without authentication nobody
waits, and entries are written at most a second later. Nobody waits for an outcome. One transaction writes all that is
pending, so that any number of requests at the same time wait for one. While the store is unavailable, entries stay in
memory, at most `MAX_PENDING`.
"""

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import uuid4

from cachetools import LRUCache
from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse

from turnkeeper.api.callers import LOCAL, Caller
from turnkeeper.api.changes import Change, ChangeObserver, Refusal
from turnkeeper.api.coalescer import Coalescer
from turnkeeper.api.dependencies import ChangesDep, ServicesDep
from turnkeeper.api.http.openapi import ANY, errors
from turnkeeper.api.problems import problem, problem_of
from turnkeeper.api.roles import access
from turnkeeper.api.services import Services
from turnkeeper.features.access.tables import Audit, AuditFilter, AuditRow, Position, position_of
from turnkeeper.models.http_responses import Action, AuditEntry, AuditPage
from turnkeeper.models.ids import ID_PATTERN
from turnkeeper.models.session.messages import USER_PATTERN
from turnkeeper.models.texts import encodable_text
from turnkeeper.models.wire import UtcDatetime
from turnkeeper.stores.database.database import StoreUnavailableError
from turnkeeper.stores.database.rows import microseconds

MAX_PENDING = 10_000
"""Entries that wait for an unavailable store; beyond them the oldest are lost, and the log says so."""

WRITE_SECONDS = 1.0
"""How long an entry that nobody waits for may stay in memory."""

REPEAT_SECONDS = 60.0
"""How long the same refusal or login of a caller has no further entry."""

MAX_REPEATS = 10_000

_log = logging.getLogger(__name__)


class AuditRecorder(ChangeObserver):
    """The audit of one gateway."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit
        self._pending: dict[str, AuditRow] = {}
        self._writes = Coalescer[str, None]()
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._is_failing = False
        self._recent = LRUCache[_Repeatable, float](maxsize=MAX_REPEATS)

    @asynccontextmanager
    async def watch(self, change: Change) -> AsyncIterator[None]:
        """Write an entry before the block; with its end the entry gets its outcome, and the ids that were learned."""
        entry = new_entry(change)
        try:
            await self.begin(entry)
        except StoreUnavailableError as error:
            detail = f"{error} The audit can't record the change, so nothing was done. Try again."
            raise problem("archive-unavailable", detail) from error
        status = 500
        try:
            yield
            status = 200
        except Exception as error:
            status = problem_of(error, is_of_task=True).problem.status
            raise
        finally:
            entry.message_id = change.message_id
            self.finish(entry, status)

    async def begin(self, entry: AuditRow) -> None:
        """Write an entry before its change. Raises `StoreUnavailableError`, unless nobody needs a credential.

        If it fails or is cancelled, nothing may be done, and the entry says that.
        """
        self._pending[entry.id] = entry
        if entry.caller == LOCAL.id:
            self._write_soon()
            return
        try:
            await self._write()
        except (StoreUnavailableError, asyncio.CancelledError):
            self.finish(entry, 503)
            raise

    def finish(self, entry: AuditRow, status: int) -> None:
        """Write the outcome of a change, soon."""
        entry.status = status
        self._pending[entry.id] = entry
        self._write_soon()

    async def record_once(self, caller: Caller, action: Action, *, status: int) -> None:
        """Write that a caller did something that changes nothing, such as a login. Raises `StoreUnavailableError`.

        The same of a caller is written once in `REPEAT_SECONDS`.
        """
        repeatable = (caller.tenant, caller.id, action, status)
        if not self._is_repeated(repeatable):
            await self.begin(new_entry(Change(caller, action, operation=action), status=status))
            self._recent[repeatable] = time.monotonic()

    def note_refusal(self, refusal: Refusal) -> None:
        """Write soon that a request was refused before it had an entry.

        The same refusal of a caller is written once in `REPEAT_SECONDS`: a refused client may ask again at once.
        """
        caller = refusal.caller
        repeatable = (caller.tenant, caller.id, refusal.operation, refusal.status)
        if not self._is_repeated(repeatable):
            self._recent[repeatable] = time.monotonic()
            change = Change(caller, "request", refusal.operation, session_id=refusal.session_id)
            self.finish(new_entry(change), refusal.status)

    def _is_repeated(self, repeatable: "_Repeatable") -> bool:
        return time.monotonic() - self._recent.get(repeatable, -math.inf) < REPEAT_SECONDS

    async def page(self, which: AuditFilter, *, before: Position | None, limit: int) -> list[AuditRow]:
        """Return entries, newest first, with everything that this gateway has done. Raises `StoreUnavailableError`."""
        await self._write()
        return await self._audit.page(which, before=before, limit=limit)

    async def close(self) -> None:
        """Write what is pending, if the store is available."""
        if self._timer:
            self._timer.cancel()
        with suppress(StoreUnavailableError):
            await self._write()

    def _write_soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WRITE_SECONDS, self._start_writing)

    def _start_writing(self) -> None:
        self._timer = None
        self._writing = asyncio.create_task(self._write_if_possible())

    async def _write_if_possible(self) -> None:
        try:
            await self._write()
        except StoreUnavailableError:
            self._write_soon()  # perhaps no further request comes that would

    async def _write(self) -> None:
        # Also if nothing is pending: a write that runs may not be complete yet.
        await self._writes.run("write", self._write_pending, lane="audit")

    async def _write_pending(self) -> None:
        entries, self._pending = self._pending, {}
        try:
            await self._audit.put([*entries.values()])
        except BaseException as error:  # also a cancellation: nothing is lost
            self._pending = entries | self._pending
            if lost := [*self._pending][: max(0, len(self._pending) - MAX_PENDING)]:
                _log.error("the audit lost its oldest %d entries in memory", len(lost))
            for key in lost:
                del self._pending[key]
            if isinstance(error, StoreUnavailableError) and not self._is_failing:
                self._is_failing = True
                _log.warning("the audit can't be written: %s", error)
            raise
        self._is_failing = False


_Repeatable = tuple[str, str, str, int]
"""Tenant, caller, operation and status."""


def new_entry(change: Change, *, status: int | None = None) -> AuditRow:
    """Return an entry as of now, whose texts every store can have."""
    caller = change.caller
    starts = change.action == "prompt" and change.starts != "nothing"
    return AuditRow(
        id=uuid4().hex,
        at=datetime.now(UTC),
        tenant=caller.tenant,
        caller=encodable_text(caller.id),
        user=caller.user and encodable_text(caller.user),
        role=caller.role,
        operation=change.operation,
        action=change.action,
        session_id=change.session_id,
        message_id=change.message_id,
        call_id=change.call_id,
        fields=(*change.fields, "start") if starts else change.fields,
        status=status,
    )


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
    before: Position | None = None
    if cursor:
        at, entry_id = cursor.split(".")
        before = (int(at), entry_id)
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


def _entry(row: AuditRow) -> AuditEntry:
    values = {name: value for name, value in vars(row).items() if name not in ("tenant", "session_id")}
    status = row.status
    outcome = "unknown" if status is None else ("accepted", "refused", "failed")[(status >= 400) + (status >= 500)]
    return AuditEntry.model_validate({**values, "workflow_id": row.session_id, "outcome": outcome})
