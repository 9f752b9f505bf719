"""`CopySession`: the first run of a session that is a copy of another, or an import (SES-18, docs/decisions/0064).

The workflow has the id of the new session, so the id is taken as soon as the copy begins, and all that is stored under
it is the copy's. When everything is stored, the workflow continues as new as the session. So the session gets its state
as always from the run before, and is there whole or not at all. A copy that fails deletes what it has stored. Its
receipt is what Temporal says of it: its type, its status and its memo (`CopyMemo`).

Prompts that arrive meanwhile wait for the session. If they are more than Temporal carries over, they are parked first.

A document is too large for Temporal. Its gateway starts the workflow, stores the document in parts under the new id,
and signals them; the workflow does not wait forever.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, ApplicationError

with workflow.unsafe.imports_passed_through():
    from turnkeeper.features.copies.activities import CopyActivities
    from turnkeeper.features.copies.document.document import CopyOrder, FailedCopy, StoredDocument
    from turnkeeper.models.errors import NO_SESSION_YET, REJECTION_PREFIX, RejectedError
    from turnkeeper.models.ids import SESSION_TYPE, WorkflowId, session_id_of
    from turnkeeper.models.session.archive import ArchiveMove, ArchiveMoveQuery
    from turnkeeper.models.session.archive_moves import next_prompt_move, prompt_move_is_due
    from turnkeeper.models.session.messages import CarriedState, SessionInput, parse, read_end
    from turnkeeper.models.session.session import Session
    from turnkeeper.models.session.start import check_outside_start
    from turnkeeper.workflows import activity_options
    from turnkeeper.workflows.archiving import Archiving
    from turnkeeper.workflows.workflow_part import report_rejections

COPY_CANCELLED = "The copy was cancelled."
UPLOAD_ENDED = "The document was not uploaded in time. Send it again."


@workflow.defn
class CopySession:
    """The copy of a session, until it is the session."""

    def __init__(self) -> None:
        self._parts: list[str] | None = None
        self._waiting: list[Callable[[Session], object]] = []
        """What signals do to the session once it is there, in their order."""
        self._session: Session | None = None
        self._archiving: Archiving | None = None

    @workflow.run
    async def run(self, order: Any = None, *rest: Any) -> None:
        """Store the copy, and continue as the session. `order` is a `CopyOrder`."""
        order = _read_order(order, extra_arguments=len(rest))
        try:
            session = await self._session_with(order, await self._store(order))
        except asyncio.CancelledError:
            # Also raised when this worker evicts the workflow; then there is no reason, and nothing to do.
            if workflow.cancellation_reason() is not None:
                await self._clear(order, COPY_CANCELLED)
            raise
        except (ActivityError, TimeoutError) as error:
            if workflow.cancellation_reason() is not None:
                await self._clear(order, COPY_CANCELLED)
                raise
            reason = error.cause if isinstance(error, ActivityError) else None
            message = reason.message if isinstance(reason, ApplicationError) else UPLOAD_ENDED
            await self._clear(order, message)
            raise ApplicationError(message, type="copy_failed", non_retryable=True) from None
        session.reject_uncarriable(now=workflow.now())
        workflow.continue_as_new(args=[session.carry()], workflow=SESSION_TYPE)

    async def _store(self, order: CopyOrder) -> CarriedState:
        if order.document:
            await workflow.wait_condition(
                lambda: self._parts is not None,
                timeout=activity_options.UPLOAD_PATIENCE,
                timeout_summary="the document is uploaded",
            )
            order = order.model_copy(update={"parts": self._parts})
        state = await workflow.execute_activity_method(CopyActivities.store_copy, order, **activity_options.STORE_WORK)
        if order.document:
            await workflow.execute_activity_method(CopyActivities.drop_document, **activity_options.STORE_WORK)
        return state

    async def _clear(self, order: CopyOrder, reason: str) -> None:
        """Delete what is stored. Prompts that have arrived are discarded, also those that arrive meanwhile."""
        session, discarded = self._session or self._begin_session(order.start), None
        while discarded != (waiting := [prompt.id for prompt in session.queue]):
            failed = FailedCopy(reason=reason, at=workflow.now(), prompts=waiting)
            await workflow.execute_activity_method(CopyActivities.clear_copy, failed, **activity_options.STORE_WORK)
            discarded = waiting

    async def _session_with(self, order: CopyOrder, state: CarriedState) -> Session:
        """Return the session, with the prompts that have arrived; what Temporal can't carry of them is parked."""
        session = self._begin_session(order.start.model_copy(update={"carried": state}))
        archiving = self._archiving = Archiving(session, refresh_ui=lambda: None)
        while not session.room.is_carriable_by_temporal and prompt_move_is_due(session, parks=True):
            await archiving.pause()
            move = next_prompt_move(session, parks=True)
            if await archiving.store(move):
                session.queue.remove_moved(move)
                session.archive.record_success(now=workflow.now())
        return session

    def _begin_session(self, start: SessionInput) -> Session:
        session_id = session_id_of(WorkflowId(workflow.info().workflow_id))
        session = self._session = Session(session_id, start, now=workflow.now())
        for change in self._waiting:
            change(session)
        return session

    def _apply(self, change: Callable[[Session], object]) -> None:
        """Change the session, now or as soon as it is there."""
        if self._session is not None:
            change(self._session)
        else:
            self._waiting.append(change)

    @workflow.signal(description="The document is stored: {parts}. For our own gateway.")
    def document_stored(self, document: Any = None, *rest: Any) -> None:
        """Note the parts of the document. The activity checks that they are the document."""
        with suppress(RejectedError):
            self._parts = list(parse(StoredDocument, document).parts)

    @workflow.signal(description="Send a prompt, which waits until the session is copied.")
    def prompt(self, p: Any = None, *rest: Any) -> None:
        """Keep the prompt for the session, where any input gets a fate (SES-5)."""
        new_id, now = str(workflow.uuid4()), workflow.now()

        def receive(session: Session) -> None:
            max_chars = session.config.limits.max_prompt_chars
            session.receive(p, extra_arguments=len(rest), new_id=new_id, now=now, max_chars=max_chars)

        self._apply(receive)

    @workflow.signal(description="End the session as soon as it is copied and has processed its prompts.")
    def end_chat(self, request: Any = None, *rest: Any) -> None:
        """End the session, which discards later prompts; invalid input ends it too."""
        end, now = read_end(request), workflow.now()
        self._apply(lambda session: session.end(end.reason_text, discard_queue=end.discard_queue, now=now))

    @workflow.query(description="Prompts on their way to the archive: {move}. For our own activities.")
    def internal_archive_move(self, request: Any = None) -> ArchiveMove:
        with report_rejections():
            number = parse(ArchiveMoveQuery, request).move
            move = self._archiving.open_move(number) if self._archiving else None
            if move is None:
                raise RejectedError("not_open", f"Move {number} is not pending.")
        return move

    @workflow.query(dynamic=True, description="Every query is refused until the session is copied.")
    def refuse_query(self, name: str, arguments: Sequence[RawValue]) -> None:
        raise ApplicationError(f"{REJECTION_PREFIX}{NO_SESSION_YET}", type="no_session_yet")

    @workflow.update(dynamic=True, description="Every update is refused until the session is copied.")
    def update(self, name: str, arguments: Sequence[RawValue]) -> None:
        """Never runs: the validator refuses it, so nothing of it enters the history."""

    @update.validator
    def refuse_update(self, name: str, arguments: Sequence[RawValue]) -> None:
        self.refuse_query(name, arguments)


def _read_order(raw: Any, *, extra_arguments: int) -> CopyOrder:
    """Return the order. Raises `ApplicationError` if it is none, which fails the workflow: nothing is stored."""
    if raw is None or extra_arguments:
        raise ApplicationError("A copy is started with one JSON object.", type="invalid", non_retryable=True)
    try:
        order = parse(CopyOrder, raw)
        check_outside_start(order.start)
    except RejectedError as rejection:
        raise ApplicationError(rejection.message, type=rejection.reason, non_retryable=True) from None
    if (order.fork is None) == (order.document is None):
        raise ApplicationError("fork, document: give one of them.", type="invalid", non_retryable=True)
    return order
