"""Forks and imports: a request is checked and started here, and a workflow copies (SES-18, docs/decisions/0064).

The original of a fork is only read, by one query and in the archive, so nothing is added to its history. Nothing of an
imported document is trusted: its id is ignored, its configuration must be one that the caller may set, and all of it is
checked before the workflow is started, and once more by the worker that stores it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from hashlib import sha256
from tempfile import SpooledTemporaryFile

from pydantic import ValidationError
from pydantic_core import to_json
from temporalio.client import WorkflowExecutionDescription, WorkflowFailureError
from temporalio.client import WorkflowExecutionStatus as Status
from temporalio.common import WorkflowIDReusePolicy

from turnkeeper.api.bodies import StartSession, chat_url
from turnkeeper.api.callers import Caller
from turnkeeper.api.new_sessions import described_input, plain_input
from turnkeeper.api.problems import ProblemError, invalid, problem
from turnkeeper.api.roles import MAX_HISTORY_BYTES, require_for_copy
from turnkeeper.api.services import Services
from turnkeeper.api.temporal.temporal_calls import call_temporal
from turnkeeper.api.timeouts import read_store, seconds_from_now
from turnkeeper.features.copies.document.copied import SessionSnapshot
from turnkeeper.features.copies.document.document import (
    COPY,
    CopyMemo,
    CopyOrder,
    ForkSource,
    SessionDocument,
    StoredDocument,
)
from turnkeeper.features.copies.document.reading import BYTES_PER_VALUE, check_document, copy_of_document, read_document
from turnkeeper.features.copies.exporting import SessionExporter
from turnkeeper.models.errors import ARCHIVE_UNAVAILABLE, RejectedError
from turnkeeper.models.http_responses import CopyReceipt
from turnkeeper.models.ids import WorkflowId, session_id_of
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.session.start import check_outside_start
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.texts import head_within
from turnkeeper.models.wire import field_path, reason_of
from turnkeeper.stores.blobs import document_owner

TITLE_BYTES = 100
FORK_MARK = " (fork)"

MAX_IMPORTS = 1
"""Documents that a gateway has in memory at once; more requests wait, with theirs in files."""

PART_BYTES = 1_000_000
"""Of a document, stored in one transaction."""

UPLOAD_SECONDS = 120.0
"""How long a gateway stores a document. The workflow waits longer before it deletes what is there."""

COPY_TYPE = "CopySession"

COPY_STOPPED = "The copy was stopped from outside. Delete the session, or choose another id."


class SessionCopier:
    """Starts copies of sessions, and says what has become of them. Methods raise `ProblemError`."""

    def __init__(self, services: Services, exporter: SessionExporter) -> None:
        self._services = services
        self._exporter = exporter
        self._slots = asyncio.Semaphore(MAX_IMPORTS)

    async def fork(
        self, caller: Caller, source: WorkflowId, target: WorkflowId, *, turn: int | str | None, title: str | None
    ) -> CopyReceipt:
        """Start to copy the turns up to `turn`, an id or a number from 1; `None`: up to the last completed one.

        Raises 403, 404, 409 and 422.
        """
        snapshot = await self._exporter.snapshot(source)
        require_for_copy(caller, snapshot.config)
        number, turn_id = await self._turn_of(source, snapshot, turn)
        earlier = snapshot.config.title  # without one, the first prompt of the fork gives it one
        start = snapshot.config.model_copy(
            update={
                "title": title or (earlier and head_within(earlier.removesuffix(FORK_MARK), TITLE_BYTES) + FORK_MARK),
                "user": caller.user or snapshot.config.user,
                "chat_url": chat_url(self._services.settings, target),
                "first_prompt": None,
                "features": self._services.settings.session_features,
            }
        )
        first_run_id = await self._services.reader.first_run_id(source) if snapshot.context else ""
        order = CopyOrder(start=start, fork=ForkSource(session=source, first_run_id=first_run_id, turn=number))
        key = sha256(to_json(["fork", source, first_run_id, turn_id, number, title])).hexdigest()
        memo = CopyMemo(key=key, turn_count=number, forked_from=session_id_of(source), message_id=turn_id)
        await self._begin(target, order, memo)
        return await self.receipt(target)

    async def import_document(self, caller: Caller, target: WorkflowId, parts: AsyncIterator[bytes]) -> CopyReceipt:
        """Start to import a document.

        Raises 422 naming what is wrong in the document, 409 if the id was used, 429 while others are imported.
        """
        with SpooledTemporaryFile(max_size=MAX_HISTORY_BYTES) as file:
            async for part in parts:
                file.write(part)
            async with self._slot():
                file.seek(0)
                body = file.read()
                # In a thread: a large document takes seconds.
                document, start = await asyncio.to_thread(_checked, body, caller, target, self._services.settings)
                key = sha256(body).hexdigest()
                memo = CopyMemo(key=key, turn_count=len(document.turns))
                if await self._begin(target, CopyOrder(start=start, document=key), memo):
                    await self._upload(target, body)
                return await self.receipt(target)

    async def receipt(self, workflow_id: WorkflowId) -> CopyReceipt:
        """Return the progress of a copy. Raises 404 if the session is none."""
        description, memo = await self._find(workflow_id)
        if memo is None:
            raise problem("unknown-session", workflow_id=workflow_id)
        is_copying = description.workflow_type == COPY_TYPE
        status = "done" if not is_copying else "running" if description.status == Status.RUNNING else "failed"
        return CopyReceipt(
            workflow_id=session_id_of(workflow_id),
            status=status,
            reason=await self._reason(description) if is_copying else None,
            turn_count=memo.turn_count,
            forked_from=memo.forked_from,
            message_id=memo.message_id,
        )

    # ---- starting

    async def _begin(self, target: WorkflowId, order: CopyOrder, memo: CopyMemo) -> bool:
        """Start the copy, unless it was started before; return whether it still runs. Raises 409."""
        await self._services.transcripts.raise_if_id_was_used(target)
        copy, reuse = {COPY: memo.model_dump()}, WorkflowIDReusePolicy.REJECT_DUPLICATE
        while True:
            try:
                await self._services.sessions.start_as(COPY_TYPE, order, target, order.start, memo=copy, reuse=reuse)
            except ProblemError as error:
                if error.problem.status != 409:
                    raise
                try:
                    description, earlier = await self._find(target)
                except ProblemError:  # it is being deleted
                    raise error from None
                has_failed = description.workflow_type == COPY_TYPE and description.status == Status.FAILED
                if has_failed and reuse == WorkflowIDReusePolicy.REJECT_DUPLICATE:  # nothing is left of it
                    reuse = WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY
                    continue
                if earlier is None or earlier.key != memo.key:
                    raise
                return _is_running_copy(description)
            return True

    async def _find(self, workflow_id: WorkflowId) -> tuple[WorkflowExecutionDescription, CopyMemo | None]:
        description = await self._services.reader.describe(workflow_id)
        try:
            return description, CopyMemo.model_validate((await description.memo()).get(COPY))
        except ValidationError:  # anybody can start a workflow with any memo
            return description, None

    async def _upload(self, target: WorkflowId, body: bytes) -> None:
        """Store the document, and tell its workflow. A repetition changes nothing."""
        owner, parts = document_owner(target), list[str]()
        until = seconds_from_now(UPLOAD_SECONDS)
        for first in range(0, len(body), PART_BYTES):
            part = body[first : first + PART_BYTES]
            storing = self._services.stores.blobs.put_data(owner, [part])
            await read_store(storing, until=min(until, seconds_from_now(self._services.timeouts.request)))
            parts.append(sha256(part).hexdigest())
        try:
            await self._services.sessions.signal(target, "document_stored", StoredDocument(parts=parts))
            description, _ = await self._find(target)
        except ProblemError as error:
            if error.problem.status in (404, 409):  # the workflow has stopped waiting, and has deleted what was there
                await self._services.stores.blobs.delete_data(owner)
            raise
        if not _is_running_copy(description):  # another gateway stored the document too, and this one was later
            await self._services.stores.blobs.delete_data(owner)

    async def _reason(self, description: WorkflowExecutionDescription) -> str | None:
        """Return why a copy has failed, or why it makes no progress now."""
        if description.status == Status.RUNNING:
            failures = [pending.last_failure for pending in description.raw_description.pending_activities]
            # Messages of other failures were not written for callers, and may have internals (API-2).
            messages = {one.application_failure_info.type: one.message for one in failures}
            return messages.get(ARCHIVE_UNAVAILABLE)
        if description.status != Status.FAILED:
            return COPY_STOPPED
        handle = self._services.client.get_workflow_handle(description.id, run_id=description.run_id)
        try:
            result = handle.result(rpc_timeout=self._services.timeouts.rpc)
            await call_temporal(result, WorkflowId(description.id), seconds=self._services.timeouts.call)
        except WorkflowFailureError as error:
            return str(getattr(error.cause, "message", error.cause))
        return None

    # ---- forks

    async def _turn_of(self, source: WorkflowId, snapshot: SessionSnapshot, turn: int | str | None) -> tuple[int, str]:
        """Return number and id of a completed turn. Raises 404 if there is no such turn, 422 if it is running."""
        transcript, running, archive = (snapshot.transcript, snapshot.running_turn, self._services.stores.archive)
        if turn is None:
            if not transcript.count:
                raise invalid("turn", "the session has no completed turn")
            turn = transcript.count
        elif running and turn in (running, transcript.count + 1):
            raise invalid("turn", "has not ended yet")
        for number, own in enumerate(transcript.turns, start=transcript.archived + 1):
            if turn in (number, own.id):
                return number, own.id
        reading = archive.range(source, turn, turn) if isinstance(turn, int) else archive.find(source, turn)
        stored = await read_store(reading, until=seconds_from_now(self._services.timeouts.request))
        row = next(iter(stored), None) if isinstance(stored, list) else stored
        if row is None or row.number > transcript.archived:
            raise problem("unknown-turn", turn_id=str(turn))
        return row.number, row.turn.id

    # ---- imports

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._services.timeouts.import_queue):
                await self._slots.acquire()
        except TimeoutError:
            detail = "Other imports are running. Try again in a moment."
            raise problem("rate-limited", detail, retry_after=5) from None
        try:
            yield
        finally:
            self._slots.release()


def _is_running_copy(description: WorkflowExecutionDescription) -> bool:
    return description.workflow_type == COPY_TYPE and description.status == Status.RUNNING


def _checked(
    body: bytes, caller: Caller, workflow_id: WorkflowId, settings: Settings
) -> tuple[SessionDocument, SessionInput]:
    """Return the document, and the configuration of its session. Raises 403 and 422."""
    document = read_document(body, max_values=settings.api_max_import_bytes // BYTES_PER_VALUE)
    check_document(document)
    configuration = document.session.configuration
    require_for_copy(caller, configuration, path="session.configuration.")
    try:
        options = StartSession.model_validate(configuration.model_dump(mode="json"))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise invalid(f"session.configuration.{field_path(first['loc'])}", reason_of(first)) from None
    try:
        start = described_input(options, plain_input(settings, workflow_id, user=options.user or caller.user))
        check_outside_start(start)
    except RejectedError as error:
        if not error.field:
            raise
        name = f"session.configuration.{error.field}"
        raise RejectedError(error.reason, error.message.replace(error.field, name, 1), field=name) from None
    copy_of_document(document, start, now=datetime.now(UTC))
    return document, start
