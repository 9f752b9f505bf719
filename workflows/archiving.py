"""Moving a session's oldest turns to the archive, beside whatever else it does (SES-15).

A turn is dropped from the session only once the archive has it. While the archive is down the session works on, and
the move is tried again later, after longer and longer pauses; `Session.archive` says what happened.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from turnkeeper.activities.archive import ArchiveActivities
    from turnkeeper.activities.model_request.local_context_cache import MOVES, ContextKey
    from turnkeeper.models.session.archive.archive_moves import final_moves, next_move, spilled
    from turnkeeper.models.session.archive.archive_state import ArchiveMove, ArchiveOrder
    from turnkeeper.models.session.session_state import Session
    from turnkeeper.workflows import activity_options
    from turnkeeper.workflows.background import run_in_background


class Archiving:
    """The moves of one run of a session."""

    def __init__(self, session: Session, *, on_change: Callable[[], None]) -> None:
        self._session = session
        self._on_change = on_change
        self._task: asyncio.Task[None] | None = None
        self._moves = 0
        self._open: dict[int, ArchiveMove] = {}

    @property
    def is_storing(self) -> bool:
        """A move is under way: not the moment for a new run."""
        return bool(self._open)

    @property
    def may_be_tried(self) -> bool:
        """The archive has not failed so lately that it is to be left alone."""
        again_at = self._session.archive.again_at
        return again_at is None or again_at <= workflow.now()

    def open_move(self, number: int) -> ArchiveMove | None:
        return self._open.get(number)

    def begin_if_due(self) -> None:
        """See to it that turns are moved, if there are too many; returns at once."""
        # Runs from before there was an archive never move anything; their next run does.
        if self._is_at_rest() and next_move(self._session) and workflow.patched("archive"):
            self._task = asyncio.create_task(run_in_background(self._move_while_due, rules=self._session.rules))

    async def make_room(self) -> None:
        """Wait until the session can hold another turn, or the archive has failed to make that possible."""
        await workflow.wait_condition(
            lambda: self._is_at_rest() or not self._session.room.is_full or self._session.archive.is_failing
        )

    async def spill(self, *, most_bytes: int) -> None:
        """Move the running turn's oldest steps, so that it takes at most `most_bytes`; if the archive takes them."""
        move = spilled(self._session, most_bytes=most_bytes)
        if move and workflow.patched("archive") and await self.is_stored(move):
            self._session.remove_moved(move, now=workflow.now())
            self._on_change()

    async def copy_all(self, *, patience: timedelta) -> None:
        """Have the archive hold the whole transcript and every fate of a session that ends; they stay in it too.

        While the archive is down it is tried again, for as long as `patience`.
        """
        has_content = bool(self._session.transcript.turns) or self._session.rules >= 2
        if has_content and workflow.patched("archive"):
            until = workflow.now() + patience
            await workflow.wait_condition(lambda: not self.is_storing)
            for move in final_moves(self._session):
                while not await self.is_stored(move):
                    if workflow.now() >= until:
                        return
                    await self._pause()
            self._session.archive.worked(now=workflow.now())

    def _is_at_rest(self) -> bool:
        return self._task is None or self._task.done()

    async def _move_while_due(self) -> None:
        while move := next_move(self._session):
            await self._pause()
            if await self.is_stored(move):
                self._session.remove_moved(move, now=workflow.now())
                self._on_change()

    async def _pause(self) -> None:
        """Wait until the archive may be tried again, or has worked for somebody else."""
        archive = self._session.archive
        if archive.again_at and archive.again_at > workflow.now():
            with suppress(TimeoutError):
                await workflow.wait_condition(
                    lambda: archive.again_at is None,
                    timeout=archive.again_at - workflow.now(),
                    timeout_summary="until the archive is tried again",
                )

    async def is_stored(self, move: ArchiveMove) -> bool:
        """Have the archive hold `move`; `False`, and noted, if it can't."""
        try:
            await self._store(move)
        except ActivityError as error:
            self.note_failure(error)
            return False
        return True

    def note_failure(self, error: ActivityError) -> None:
        """Note why the archive has failed. Raises `CancelledError` where it was the session that gave up."""
        if is_cancelled_exception(error):
            raise asyncio.CancelledError from error
        cause = error.cause
        reason = cause.message if isinstance(cause, ApplicationError) else "it did not answer in time"
        self._session.archive.failed(reason, now=workflow.now())
        self._on_change()

    async def _store(self, move: ArchiveMove) -> None:
        self._moves += 1
        order = ArchiveOrder(move=self._moves, digest=move.digest)
        self._open[order.move] = move
        # Written only, and not while replaying: nothing the workflow does may depend on this process (AGT-2).
        if not workflow.unsafe.is_replaying():
            key = ContextKey(workflow.info().run_id, order.move, order.digest)
            MOVES.put(key, move, size=self._session.config.limits.max_state_bytes)
        try:
            await workflow.execute_activity_method(
                ArchiveActivities.move_to_archive,
                order,
                start_to_close_timeout=activity_options.ARCHIVE_TIMEOUT,
                schedule_to_close_timeout=activity_options.ARCHIVE_PATIENCE,
                retry_policy=activity_options.ARCHIVE_RETRIES,
                summary=f"{move} to the archive",
            )
        finally:
            # Also run when this worker forgets the session: nothing of Temporal may be used here. What was handed over
            # is forgotten in time.
            del self._open[order.move]
