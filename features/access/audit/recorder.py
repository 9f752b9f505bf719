"""The audit: who changed what, when, and with what outcome; never content (API-4, docs/decisions/0066).

A handler opens `RequestAudit.change` around what it does, and so says what changes. The entry is
written before the change, and gets its outcome afterwards. An entry without one is of a gateway that stopped in
between.

A caller with a credential waits for the entry, and is refused if it can't be written. Without authentication nobody
waits, and entries are written at most a second later. Nobody waits for an outcome. One transaction writes all that is
pending, so that any number of requests at the same time wait for one. While the store is unavailable, entries stay in
memory, at most `MAX_PENDING`.
"""

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Iterator, MutableMapping
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Self
from uuid import uuid4

from cachetools import LRUCache
from pydantic import BaseModel

from turnkeeper.api.callers import LOCAL, Caller
from turnkeeper.api.coalescer import Coalescer
from turnkeeper.api.problems import problem, problem_of
from turnkeeper.features.access.audit.store import Audit, AuditFilter, AuditRow, Position
from turnkeeper.features.access.auth.browser_logins import let_change_finish
from turnkeeper.features.access.session_limits import SessionLimits, Starts
from turnkeeper.models.bounds import encodable_text
from turnkeeper.models.http_responses import AuditAction
from turnkeeper.models.ids import WorkflowId, session_id_of
from turnkeeper.models.transcript.trajectory import ApprovalDecision
from turnkeeper.stores.database.database import StoreUnavailableError

MAX_PENDING = 10_000
"""Entries that wait for an unavailable store; beyond them the oldest are lost, and the log says so."""

WRITE_SECONDS = 1.0
"""How long an entry that nobody waits for may stay in memory."""

REPEAT_SECONDS = 60.0
"""How long the same refusal or login of a caller has no further entry."""

MAX_REPEATS = 10_000

DECISIONS: dict[ApprovalDecision, AuditAction] = {
    "approve": "approve",
    "reject": "reject",
    "allow_for_session": "allow",
}

_log = logging.getLogger(__name__)


class AuditRecorder:
    """The audit of one gateway."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit
        self._pending: dict[str, AuditRow] = {}
        self._writes = Coalescer[str, None]()
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._is_failing = False
        self._recent = LRUCache[_Repeatable, float](maxsize=MAX_REPEATS)

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

    async def record_once(self, caller: Caller, action: AuditAction, *, status: int) -> None:
        """Write that a caller did something that changes nothing, such as a login. Raises `StoreUnavailableError`.

        The same of a caller is written once in `REPEAT_SECONDS`.
        """
        repeatable = (caller.tenant, caller.id, action, status)
        if not self._is_repeated(repeatable):
            await self.begin(new_entry(caller, action, operation=action, status=status))
            self._recent[repeatable] = time.monotonic()

    def note_refusal(self, caller: Caller, *, operation: str, status: int, session_id: str | None) -> None:
        """Write soon that a request was refused before it had an entry.

        The same refusal of a caller is written once in `REPEAT_SECONDS`: a refused client may ask again at once.
        """
        repeatable = (caller.tenant, caller.id, operation, status)
        if not self._is_repeated(repeatable):
            self._recent[repeatable] = time.monotonic()
            self.finish(new_entry(caller, "request", operation=operation, session_id=session_id), status)

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


class RequestAudit:
    """The audit of one request, to whose handler it says who calls."""

    def __init__(
        self,
        recorder: AuditRecorder,
        limits: SessionLimits,
        caller: Caller,
        *,
        operation: str,
        scope: MutableMapping[str, Any],
    ) -> None:
        """`scope`: the ASGI scope of the request."""
        self.caller = caller
        self._recorder = recorder
        self._limits = limits
        self._operation = operation
        self._scope = scope
        self._session_id: str | None = None
        self._has_entry = False

    @asynccontextmanager
    async def change(
        self,
        action: AuditAction,
        workflow_id: WorkflowId | None,
        *,
        message_id: str | None = None,
        call_id: str | None = None,
        fields: tuple[str, ...] = (),
        starts: Starts = "nothing",
    ) -> AsyncIterator[AuditRow]:
        """Check the limits of sessions and write an entry; with the end of the block it gets its outcome.

        The block may set the entry's ids that it learns. Raises `ProblemError` before the block begins: then nothing
        may be done. A block that is cancelled may have changed something.
        """
        self._session_id = session_id_of(workflow_id) if workflow_id else self._session_id
        await self._limits.check(self.caller, action, workflow_id, starts)
        if starts != "nothing" and action == "prompt":
            fields = (*fields, "start")
        entry = new_entry(
            self.caller,
            action,
            operation=self._operation,
            session_id=self._session_id,
            message_id=message_id,
            call_id=call_id,
            fields=fields,
        )
        self._has_entry = True
        try:
            await self._recorder.begin(entry)
        except StoreUnavailableError as error:
            detail = f"{error} The audit can't record the change, so nothing was done. Try again."
            raise problem("archive-unavailable", detail) from error
        let_change_finish(self._scope)
        status = 500
        try:
            yield entry
            status = 200
        except Exception as error:
            status = problem_of(error, is_of_task=True).problem.status
            raise
        finally:
            self._recorder.finish(entry, status)

    @contextmanager
    def whole(self, *, must_record: bool, session_id: str | None = None) -> Iterator[Self]:
        """Note a refusal that comes before any entry; of a request that only reads, only for its role.

        Raises `RuntimeError` with `must_record`, for a request that changes something, if it succeeds without an entry.
        `session_id`: of the request, if it is known.
        """
        self._session_id = session_id
        try:
            yield self
        except Exception as error:
            status = problem_of(error, is_of_task=True).problem.status
            if not self._has_entry and (must_record or status == 403):
                self._recorder.note_refusal(
                    self.caller, operation=self._operation, status=status, session_id=self._session_id
                )
            raise
        if must_record and not self._has_entry:
            raise RuntimeError(f"{self._operation} has no entry in the audit")


def new_entry(
    caller: Caller,
    action: AuditAction,
    *,
    operation: str,
    session_id: str | None = None,
    message_id: str | None = None,
    call_id: str | None = None,
    fields: tuple[str, ...] = (),
    status: int | None = None,
) -> AuditRow:
    """Return an entry of a caller as of now, whose texts every store can have."""
    return AuditRow(
        id=uuid4().hex,
        at=datetime.now(UTC),
        tenant=caller.tenant,
        caller=encodable_text(caller.id),
        user=caller.user and encodable_text(caller.user),
        role=caller.role,
        operation=operation,
        action=action,
        session_id=session_id,
        message_id=message_id,
        call_id=call_id,
        fields=fields,
        status=status,
    )


def field_names(model: BaseModel, *, without: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the names of the fields that a request sets, with those inside `limits` and `history`."""
    names: list[str] = []
    for name in type(model).model_fields:
        value = getattr(model, name) if name in model.model_fields_set and name not in without else None
        nested = field_names(value) if name in ("limits", "history") and isinstance(value, BaseModel) else ()
        names += [f"{name}.{one}" for one in nested] or [name] * (value is not None)
    return tuple(names)
