"""The steps of copying a session: `store_copy`, `drop_document` and `clear_copy` (SES-18, docs/decisions/0064).

The workflow has the new session's id, so nobody else writes under it, and nobody reads it before all is there. Every
write adds what is missing.
"""

import asyncio
from base64 import b64decode
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import TypeVar

from temporalio import activity
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from turnkeeper.activities.activity_context import current_session_id, heartbeating, query_session
from turnkeeper.activities.archive import store_failures
from turnkeeper.features.copies.document.copied import (
    CopiedTurns,
    Copy,
    SessionSnapshot,
    StoredContents,
    copy_of_first_turns,
    session_form,
    state_of_copy,
)
from turnkeeper.features.copies.document.document import (
    SNAPSHOT,
    CopyOrder,
    ExportedTurn,
    FailedCopy,
    ForkSource,
    SessionDocument,
)
from turnkeeper.features.copies.document.reading import check_document, copy_of_document, read_document
from turnkeeper.features.copies.whole_turns import whole_turns
from turnkeeper.models.errors import RejectedError
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.session.messages import FIRST_RUN, CarriedState, deletion_id
from turnkeeper.models.session.prompts import Fate
from turnkeeper.models.transcript.attachments import with_names
from turnkeeper.models.transcript.model_call import make_preview
from turnkeeper.models.transcript.transcript import TranscriptState, carried_size
from turnkeeper.stores.archive import ArchivedTurn, ArchiveGapError
from turnkeeper.stores.blobs import attachments_owner, document_owner
from turnkeeper.stores.database.database import StoreUnavailableError
from turnkeeper.stores.session_index import IndexedSession
from turnkeeper.stores.stores import Stores

Item = TypeVar("Item")

RPC_TIMEOUT = timedelta(seconds=5)

WRITTEN_BYTES = 1_000_000
"""About as much is written in one transaction, which must stay short for every session."""

STEPS_AT_ONCE = 200
FATES_AT_ONCE = 500

ORIGINAL_DELETED = "The original was deleted while it was copied."
DOCUMENT_INCOMPLETE = "The document was not stored whole. Send it again."


class CopyActivities:
    """Activities that copy a session, or import one, under the id of their workflow."""

    def __init__(self, client: Client, stores: Stores, *, max_values: int) -> None:
        """`max_values`: JSON values that a document may have."""
        self._client = client
        self._stores = stores
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
    async def clear_copy(self, copy: FailedCopy) -> None:
        """Delete everything of a copy that failed, and discard its prompts (SES-6); a second attempt does the same."""
        async with heartbeating():
            self._stores.index_writer.forget(current_session_id())
            with store_failures():
                await self._stores.delete(current_session_id())
                for first in range(0, len(copy.prompts), FATES_AT_ONCE):
                    ids = copy.prompts[first : first + FATES_AT_ONCE]
                    fates = [Fate(id=one, fate="discarded", at=copy.at, reason=copy.reason) for one in ids]
                    await self._stores.prompts.put_fates(current_session_id(), fates)

    # ---- forks

    async def _store_fork(self, order: CopyOrder, fork: ForkSource) -> CarriedState:
        source, target = WorkflowId(fork.session), current_session_id()
        snapshot = await self._snapshot(source)
        transcript = snapshot.transcript if snapshot else TranscriptState(archived=fork.turn)
        copied, contents = CopiedTurns(order.start.history, order.start.limits), StoredContents()
        try:
            async for page in whole_turns(self._stores.archive, source, transcript, last=fork.turn):
                for exported in page:
                    copied.add(exported)
                    contents.add_turn(exported.turn)
                await self._write_turns(target, page, archived=transcript.archived)
            copy = copy_of_first_turns(order.start, transcript, snapshot.context if snapshot else None, copied)
            contents.add_view(copy.context)
            await self._stores.blobs.put(target, copy.texts)
            await self._copy_contents(source, target, contents.texts)
            await self._copy_contents(attachments_owner(source), attachments_owner(target), contents.attachments)
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
            return await query_session(original, "internal_feature_query", SNAPSHOT, SessionSnapshot)
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
            return None

    async def _copy_contents(self, source: WorkflowId, target: WorkflowId, hashes: set[str]) -> None:
        blobs = self._stores.blobs
        sizes = await blobs.read_sizes(source, hashes)
        for some in batches(sorted(sizes), (sizes[name] for name in sorted(sizes)), max_size=WRITTEN_BYTES):
            await blobs.put_data(target, (await blobs.get_data(source, some)).values())

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
        texts = [*document.texts.values(), *copy.texts]
        for some in batches(texts, map(len, texts), max_size=WRITTEN_BYTES):
            await self._stores.blobs.put(target, some)
        for encoded in document.attachments.values():
            await self._stores.blobs.put_data(attachments_owner(target), [b64decode(encoded)])
        await self._write_turns(target, document.turns, archived=len(document.turns) - len(copy.turns))

    # ---- both

    async def _write_turns(self, target: WorkflowId, turns: Sequence[ExportedTurn], *, archived: int) -> None:
        """Write those up to number `archived`, and of all turns their archived steps.

        The session itself may have the newest of them too: its archive then has them a little early.
        """
        for exported in turns:
            steps = exported.turn.steps[: exported.archived_steps]
            for first in range(0, len(steps), STEPS_AT_ONCE):
                part = steps[first : first + STEPS_AT_ONCE]
                await self._stores.archive.put_steps(target, exported.number, first, part)
        rows = [ArchivedTurn(number=one.number, turn=session_form(one)) for one in turns if one.number <= archived]
        for some in batches(rows, (carried_size(row.turn) for row in rows), max_size=WRITTEN_BYTES):
            await self._stores.archive.put_turns(target, some)

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
                preview=make_preview(text) if text else None,
            )
        )


def _prepare(body: bytes, order: CopyOrder, *, max_values: int) -> tuple[SessionDocument, Copy, CarriedState]:
    document = read_document(body, max_values=max_values)
    check_document(document)
    return document, *copy_of_document(document, order.start, now=datetime.now(UTC))


def batches(items: Iterable[Item], sizes: Iterable[int], *, max_size: int) -> Iterator[list[Item]]:
    """Yield the items in lists of at most `max_size` together; a larger item is in a list of its own.

    >>> list(batches("abcd", [3, 2, 9, 1], max_size=5))
    [['a', 'b'], ['c'], ['d']]
    """
    batch, room = list[Item](), max_size
    for item, size in zip(items, sizes, strict=True):
        if batch and room < size:
            yield batch
            batch, room = [], max_size
        batch.append(item)
        room -= size
    if batch:
        yield batch
