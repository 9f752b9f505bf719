"""Writes the audit: an entry before each change, and its outcome afterwards.

Theory of operation. One transaction writes everything that is pending, so that any number of requests at the same time
wait for one. A caller with a credential waits for the entry before anything is done, and is refused if it can't be
written. Without authentication nobody waits, and entries are written at most a second later. Nobody ever waits for an
outcome: an entry without one is of a gateway that stopped in the middle.

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

from turnkeeper.api.audit.actions import Change
from turnkeeper.api.callers import LOCAL, Caller
from turnkeeper.api.coalescer import SerialCoalescer
from turnkeeper.models.ids import is_id
from turnkeeper.stores.audit import Audit, AuditFilter, AuditRow, OutcomeRow, Position, RecordedChange
from turnkeeper.stores.bounded_dict import BoundedDict
from turnkeeper.stores.database.database import StoreUnavailableError

MAX_PENDING = 10_000
"""Entries that wait for an unavailable store; beyond them the oldest are lost, and the log says so."""

WRITE_SECONDS = 1.0
"""How long an entry that nobody waits for may stay in memory."""

REFUSAL_SECONDS = 60.0
"""How long the same refusal of a caller has no further entry."""

MAX_REFUSALS = 10_000

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
        self._refusals = BoundedDict[tuple[str, str, str, int], float](max_entries=MAX_REFUSALS)

    async def begin(self, caller: Caller, changes: Sequence[Change], *, operation: str) -> "Recording":
        """Write an entry for each change. Raises `StoreUnavailableError`, unless nobody needs a credential."""
        recording = self._add(caller, changes, operation=operation)
        if caller.id == LOCAL.id:
            self._write_soon()
            return recording
        try:
            await self._write()
        except StoreUnavailableError:
            recording.finish(503)
            raise
        return recording

    def note_refusal(self, caller: Caller, *, operation: str, status: int, session_id: str | None) -> None:
        """Write soon that a request was refused before it had an entry.

        The same refusal of a caller is written once in `REFUSAL_SECONDS`: a refused client may ask again at once.
        """
        key, now = (caller.tenant, caller.id, operation, status), time.monotonic()
        if now - self._refusals.get(key, -math.inf) >= REFUSAL_SECONDS:
            self._refusals[key] = now
            self._add(caller, [Change("request", session_id)], operation=operation).finish(status)

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
        return Recording(self, request_id)

    def finish(self, outcome: OutcomeRow) -> None:
        """Write the outcome of a request, soon."""
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
            raise
        self._is_failing = False

    def _drop_oldest(self) -> None:
        lost = len(self._rows) - MAX_PENDING
        if lost > 0:
            _log.error("the audit lost its oldest %d entries in memory", lost)
        del self._rows[: max(0, lost)]
        del self._outcomes[: max(0, len(self._outcomes) - MAX_PENDING)]


class Recording:
    """A request whose changes stand in the audit."""

    def __init__(self, recorder: AuditRecorder, request_id: str) -> None:
        self._recorder = recorder
        self._request_id = request_id
        self._is_finished = False

    def finish(self, status: int, *, session_id: Any = None, message_id: Any = None) -> None:
        """Record the response's status, and the ids that the gateway chose. Only the first call counts."""
        if self._is_finished:
            return
        self._is_finished = True
        ids = {"session_id": session_id, "message_id": message_id}
        self._recorder.finish(
            OutcomeRow(self._request_id, status, **{name: value for name, value in ids.items() if is_id(value)})
        )
