"""The steps of copying a session: `store_copy`, `drop_document` and `clear_copy` (SES-18, docs/decisions/0064).

The workflow has the new session's id, so nobody else writes under it. Every write adds what is missing.
"""

import asyncio
from base64 import b64decode
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256

from temporalio import activity
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from turnkeeper.activities.heartbeat import heartbeating
from turnkeeper.activities.own_workflow import current_session_id, query_session
from turnkeeper.activities.store_failures import store_failures
from turnkeeper.models.deletion import FIRST_RUN, deletion_id
from turnkeeper.models.errors import RejectedError
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.session.carried_state import CarriedState
from turnkeeper.models.session.copies.copied import (
    CopiedTurns,
    Copy,
    StoredContents,
    copy_of_first_turns,
    session_form,
    state_of_copy,
)
from turnkeeper.models.session.copies.document import ExportedTurn, SessionDocument
from turnkeeper.models.session.copies.order import CopyOrder, ForkSource
from turnkeeper.models.session.copies.reading import check_document, copy_of_document, read_document
from turnkeeper.models.session.copies.snapshot import SessionSnapshot
from turnkeeper.models.transcript.attachments import with_names
from turnkeeper.models.transcript.index_entry import preview_of
from turnkeeper.models.transcript.transcript import TranscriptState, carried_size
from turnkeeper.stores.archive import ArchivedTurn, ArchiveGapError
from turnkeeper.stores.blobs import attachments_owner, document_owner
from turnkeeper.stores.copies import RowCopies, batches, whole_turns
from turnkeeper.stores.database.database import StoreUnavailableError
from turnkeeper.stores.session_index import IndexedSession
from turnkeeper.stores.stores import Stores

RPC_TIMEOUT = timedelta(seconds=5)

WRITTEN_BYTES = 1_000_000
"""About as much is written in one transaction, which must stay short for every session."""

STEPS_AT_ONCE = 200

ORIGINAL_DELETED = "The original was deleted while it was copied."
DOCUMENT_INCOMPLETE = "The document was not stored whole. Send it again."


class CopyActivities:
    """Activities that copy a session, or import one, under the id of their workflow."""

    def __init__(self, client: Client, stores: Stores, *, max_values: int) -> None:
        """`max_values`: JSON values that a document may have."""
        self._client = client
        self._stores = stores
        self._rows = RowCopies(stores.database)
        self._max_values = max_values
        self._imports = asyncio.Semaphore(1)  # a document and what is made of it take some hundred MB

    @activity.defn
    async def store_copy(self, order: CopyOrder) -> CarriedState:
        """Store texts, attachments and archived turns of the copy, and return what its session begins with.

        A second attempt adds what the first one has not stored.
        """
        async with heartbeating():
            with store_failures():
                state = await (self._store_fork(order, order.fork) if order.fork else self._store_import(order))
                if await self._stores.archive.count(current_session_id()) < state.transcript.archived:
                    raise ArchiveGapError("The archive does not have all turns of the copy.")
        self._list(order, state)
        return state

    @activity.defn
    async def drop_document(self) -> None:
        """Delete the stored document; a second attempt deletes what is left."""
        async with heartbeating():
            with store_failures():
                await self._stores.blobs.delete_data(document_owner(current_session_id()))

    @activity.defn
    async def clear_copy(self) -> None:
        """Delete everything of a copy that failed; a second attempt deletes what is left."""
        async with heartbeating():
            self._stores.index_writer.forget(current_session_id())
            with store_failures():
                await self._stores.delete(current_session_id())

    # ---- forks

    async def _store_fork(self, order: CopyOrder, fork: ForkSource) -> CarriedState:
        source, target, archive = WorkflowId(fork.session), current_session_id(), self._stores.archive
        snapshot = await self._snapshot(source)
        transcript = snapshot.transcript if snapshot else TranscriptState(archived=fork.turn)
        copied, rows = CopiedTurns(order.start.history, order.start.limits), _Rows()
        try:
            async for page in whole_turns(archive, source, transcript, last=fork.turn):
                for exported in page:
                    copied.add(exported)
                    rows.add(exported, is_archived=exported.number <= transcript.archived)
            copy = copy_of_first_turns(order.start, transcript, snapshot.context if snapshot else None, copied)
            rows.contents.add_view(copy.context)
            await self._write_fork(source, target, rows, copy, archived=fork.turn - len(copy.turns))
        except StoreUnavailableError:
            await self._raise_if_deleted(fork)
            raise
        await self._raise_if_deleted(fork)
        return state_of_copy(copied, copy, now=datetime.now(UTC))

    async def _snapshot(self, source: WorkflowId) -> SessionSnapshot | None:
        """Return the original's newest state; `None` if Temporal no longer has it.

        It may not be committed, but the turns that are copied were when the copy was requested, and never change.
        """
        try:
            original = self._client.get_workflow_handle(source)
            return await query_session(original, "internal_session_snapshot", {}, SessionSnapshot)
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
            return None

    async def _write_fork(
        self, source: WorkflowId, target: WorkflowId, rows: "_Rows", copy: Copy, *, archived: int
    ) -> None:
        """Write texts first: turns refer to them. `archived`: how many turns the fork has in the archive."""
        archive, contents = self._stores.archive, rows.contents
        await self._rows.copy_blobs(source, target, contents.texts)
        await self._rows.copy_blobs(attachments_owner(source), attachments_owner(target), contents.attachments)
        await self._stores.blobs.put(target, copy.texts)
        copied = min(archived, rows.archived)
        await self._rows.copy_turns(source, target, last=copied)
        added = [one for one in rows.unarchived if one.number <= archived]
        await archive.put_turns(target, [ArchivedTurn(number=one.number, turn=session_form(one)) for one in added])
        for number in rows.stepped:
            if number > copied:
                await self._rows.copy_steps(source, target, turn_number=number)

    async def _raise_if_deleted(self, fork: ForkSource) -> None:
        """Fail the copy for good if the original is deleted, or being deleted: nothing of it may stay in a copy."""
        source = WorkflowId(fork.session)
        deletion, original = await self._describe(deletion_id(source)), await self._describe(source)
        is_deleted = (
            deletion is not None
            and deletion.status == WorkflowExecutionStatus.RUNNING
            and (await deletion.memo()).get(FIRST_RUN, "") == fork.first_run_id
        )
        if original is None:  # one that Temporal has forgotten has its turns in the archive until it is deleted
            is_deleted = is_deleted or await self._stores.archive.count(source) < fork.turn
        else:
            info = original.raw_description.workflow_execution_info
            is_deleted = is_deleted or (info.first_run_id or original.run_id) != fork.first_run_id
        if is_deleted:
            raise ApplicationError(ORIGINAL_DELETED, type="unknown_session", non_retryable=True)

    async def _describe(self, workflow_id: str) -> WorkflowExecutionDescription | None:
        try:
            return await self._client.get_workflow_handle(workflow_id).describe(rpc_timeout=RPC_TIMEOUT)
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
            return None

    # ---- imports

    async def _store_import(self, order: CopyOrder) -> CarriedState:
        async with self._imports:
            body = await self._document(order)
            try:
                document, copy, state = await asyncio.to_thread(_prepare, body, order, max_values=self._max_values)
            except RejectedError as error:
                raise ApplicationError(error.message, type=error.reason, non_retryable=True) from None
            await self._write_import(current_session_id(), document, copy)
            return state

    async def _document(self, order: CopyOrder) -> bytes:
        owner, body = document_owner(current_session_id()), bytearray()
        for part in order.parts:
            body += (await self._stores.blobs.get_data(owner, [part])).get(part, b"")
        if sha256(body).hexdigest() != order.document:
            raise ApplicationError(DOCUMENT_INCOMPLETE, type="invalid", non_retryable=True)
        return bytes(body)

    async def _write_import(self, target: WorkflowId, document: SessionDocument, copy: Copy) -> None:
        """Write texts first: turns refer to them."""
        blobs, archive = self._stores.blobs, self._stores.archive
        texts = [*document.texts.values(), *copy.texts]
        for some in batches(texts, map(len, texts), max_size=WRITTEN_BYTES):
            await blobs.put(target, some)
        for encoded in document.attachments.values():
            await blobs.put_data(attachments_owner(target), [b64decode(encoded)])
        for exported in document.turns:
            steps = exported.turn.steps[: exported.archived_steps]
            for first in range(0, len(steps), STEPS_AT_ONCE):
                await archive.put_steps(target, exported.number, first, steps[first : first + STEPS_AT_ONCE])
        archived = document.turns[: len(document.turns) - len(copy.turns)]
        rows = [ArchivedTurn(number=one.number, turn=session_form(one)) for one in archived]
        for part in batches(rows, (carried_size(row.turn) for row in rows), max_size=WRITTEN_BYTES):
            await archive.put_turns(target, part)

    # ----

    def _list(self, order: CopyOrder, state: CarriedState) -> None:
        """Add the session to the index; its first turn completes the row (API-1)."""
        turns = state.transcript.turns
        text = turns[-1].user_message or with_names("", turns[-1].attachments) if turns else ""
        self._stores.index_writer.add_missing(
            IndexedSession(
                current_session_id(),
                started_at=state.created_at,
                last_activity_at=state.created_at,
                title=order.start.title,
                user=order.start.user,
                model=order.start.model,
                turn_count=state.transcript.count,
                cost=state.usage.cost,
                preview=preview_of(text) if text else None,
            )
        )


@dataclass
class _Rows:
    """What the stores have of the turns that are copied, and the turns that only the original's session has."""

    contents: StoredContents = field(default_factory=StoredContents)
    archived: int = 0
    unarchived: list[ExportedTurn] = field(default_factory=list)
    stepped: list[int] = field(default_factory=list)
    """Numbers of the turns with archived steps."""

    def add(self, exported: ExportedTurn, *, is_archived: bool) -> None:
        """Add the next turn."""
        self.contents.add_turn(exported.turn)
        if is_archived:
            self.archived += 1
        else:
            self.unarchived.append(exported)
        if exported.archived_steps:
            self.stepped.append(exported.number)


def _prepare(body: bytes, order: CopyOrder, *, max_values: int) -> tuple[SessionDocument, Copy, CarriedState]:
    document = read_document(body, max_values=max_values)
    check_document(document)
    return document, *copy_of_document(document, order.start, now=datetime.now(UTC))
