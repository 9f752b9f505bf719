"""Writes the audit: an entry before each change, and its outcome afterwards.

Theory of operation. One transaction writes everything that is pending, so that any number of requests at the same time
wait for one. A caller with a credential waits for the entry before anything is done, and is refused if it can't be
written. Without authentication nobody waits, and entries are written at most a second later. Nobody ever waits for an
outcome: an entry without one is of a gateway that stopped in the middle.

An entry that the store can't hold would make every later transaction fail. So then each is written by itself, and those
that fail again are dropped and logged; their requests are refused.

While the store is unavailable, entries stay in memory, at most `MAX_PENDING`, and are written once it is back.
"""

import asyncio
import logging
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from cachetools import LRUCache

from turnkeeper.api.audit.actions import Change
from turnkeeper.api.callers import LOCAL, Caller
from turnkeeper.api.coalescer import SerialCoalescer
from turnkeeper.models.http_responses import AuditAction
from turnkeeper.models.ids import is_id
from turnkeeper.stores.audit import Audit, AuditFilter, AuditRow, OutcomeRow, Position, RecordedChange
from turnkeeper.stores.database.database import StoreUnavailableError

MAX_PENDING = 10_000
"""Entries that wait for an unavailable store; beyond them the oldest are lost, and the log says so."""

WRITE_SECONDS = 1.0
"""How long an entry that nobody waits for may stay in memory."""

REPEAT_SECONDS = 60.0
"""How long the same refusal or login of a caller has no further entry."""

MAX_REPEATS = 10_000

CANNOT_STORE = "The audit can't store this entry."

_log = logging.getLogger(__name__)


class AuditRecorder:
    """The audit of one gateway."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit
        self._rows: list[AuditRow] = []
        self._outcomes: list[OutcomeRow] = []
        self._writes = SerialCoalescer[str, None]()
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._is_failing = False
        self._recent = LRUCache[_Repeatable, float](maxsize=MAX_REPEATS)
        self._dropped = LRUCache[str, None](maxsize=MAX_PENDING)

    async def begin(self, caller: Caller, changes: Sequence[Change], *, operation: str) -> "Recording":
        """Write an entry for each change. Raises `StoreUnavailableError`, unless nobody needs a credential.

        If this is cancelled, nothing may be done, and the entries say that it failed.
        """
        recording = self._add(caller, changes, operation=operation)
        if caller.id == LOCAL.id:
            self._write_soon()
            return recording
        try:
            await self._write()
        except (StoreUnavailableError, asyncio.CancelledError):
            recording.finish(503)
            raise
        if recording.request_id in self._dropped:
            recording.finish(503)
            raise StoreUnavailableError(CANNOT_STORE)
        return recording

    async def record_once(self, caller: Caller, action: AuditAction, *, status: int) -> None:
        """Write that a caller did something that changes nothing, such as a login. Raises `StoreUnavailableError`.

        The same of a caller is written once in `REPEAT_SECONDS`.
        """
        if self._is_repeated(caller, action, status):
            return
        (await self.begin(caller, [Change(action)], operation=action)).finish(status)
        self._note(caller, action, status)

    def note_refusal(self, caller: Caller, *, operation: str, status: int, session_id: str | None) -> None:
        """Write soon that a request was refused before it had an entry.

        The same refusal of a caller is written once in `REPEAT_SECONDS`: a refused client may ask again at once.
        """
        if not self._is_repeated(caller, operation, status):
            self._note(caller, operation, status)
            self._add(caller, [Change("request", session_id)], operation=operation).finish(status)

    def _is_repeated(self, caller: Caller, operation: str, status: int) -> bool:
        written_at = self._recent.get((caller.tenant, caller.id, operation, status), -math.inf)
        return time.monotonic() - written_at < REPEAT_SECONDS

    def _note(self, caller: Caller, operation: str, status: int) -> None:
        self._recent[(caller.tenant, caller.id, operation, status)] = time.monotonic()

    def _add(self, caller: Caller, changes: Sequence[Change], *, operation: str) -> "Recording":
        request_id, now = uuid4().hex, datetime.now(UTC)
        self._rows += [
            AuditRow(
                request_id=request_id,
                number=number,
                at=now,
                tenant=caller.tenant,
                caller=caller.id,
                user=caller.user,
                role=caller.role,
                operation=operation,
                action=change.action,
                session_id=change.session_id,
                message_id=change.message_id,
                call_id=change.call_id,
                fields=change.fields,
            )
            for number, change in enumerate(changes)
        ]
        return Recording(self, request_id, changes)

    def finish(self, outcome: OutcomeRow) -> None:
        """Write the outcome of a change, soon."""
        self._outcomes.append(outcome)
        self._write_soon()

    async def page(self, which: AuditFilter, *, before: Position | None, limit: int) -> list[RecordedChange]:
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
        with suppress(StoreUnavailableError):
            await self._write()

    async def _write(self) -> None:
        # Also if nothing is pending: a write that runs may not be complete yet.
        await self._writes.run("audit", "write", self._write_pending)

    async def _write_pending(self) -> None:
        rows, outcomes = self._rows, self._outcomes
        if not rows and not outcomes:
            return
        self._rows, self._outcomes = [], []
        try:
            await self._audit.append(rows, outcomes)
        except BaseException as error:  # also a cancellation: nothing is lost
            self._rows, self._outcomes = rows + self._rows, outcomes + self._outcomes
            self._drop_oldest()
            if isinstance(error, StoreUnavailableError) and not self._is_failing:
                self._is_failing = True
                _log.warning("the audit can't be written: %s", error)
            if isinstance(error, StoreUnavailableError) or not isinstance(error, Exception):
                raise
            if not await self._drop_unwritable(rows):
                raise
            await self._write_pending()
            return
        self._is_failing = False

    async def _drop_unwritable(self, rows: Sequence[AuditRow]) -> bool:
        """Write each of the entries by itself, and drop those that the store can't hold; return whether there were any.

        Those that are written stay pending: writing them again has no effect. Raises `StoreUnavailableError`.
        """
        is_dropped = False
        for row in rows:
            try:
                await self._audit.append([row], [])
            except StoreUnavailableError:
                raise
            except Exception as error:  # noqa: BLE001  # an entry that can't be encoded, in whatever way
                # The error's own text may quote the entry.
                _log.error("the audit lost an entry of %s: %s", row.operation, type(error).__name__)
                self._rows = [other for other in self._rows if other is not row]
                self._dropped[row.request_id] = None
                is_dropped = True
        return is_dropped

    def _drop_oldest(self) -> None:
        lost = len(self._rows) - MAX_PENDING
        if lost > 0:
            _log.error("the audit lost its oldest %d entries in memory", lost)
        del self._rows[: max(0, lost)]
        del self._outcomes[: max(0, len(self._outcomes) - MAX_PENDING)]


_Repeatable = tuple[str, str, str, int]
"""Tenant, caller, operation and status."""


class Recording:
    """A request whose changes stand in the audit."""

    def __init__(self, recorder: AuditRecorder, request_id: str, changes: Sequence[Change]) -> None:
        self.request_id = request_id
        self._recorder = recorder
        self._unfinished = dict(enumerate(changes))

    def finish(self, status: int, *, session_id: Any = None, message_id: Any = None) -> None:
        """Record the response's status, and the ids that the gateway chose. A change that has an outcome keeps it."""
        ids = {"session_id": session_id, "message_id": message_id}
        chosen = {name: value for name, value in ids.items() if is_id(value)}
        for number in self._unfinished:
            self._recorder.finish(OutcomeRow(self.request_id, status, number=number, **chosen))
        self._unfinished.clear()

    def finish_decision(self, call_id: str, status: int) -> None:
        """Record the outcome of the next decision on this call, before the request's others are made."""
        for number, change in self._unfinished.items():
            if change.call_id == call_id:
                del self._unfinished[number]
                self._recorder.finish(OutcomeRow(self.request_id, status, number=number))
                return
