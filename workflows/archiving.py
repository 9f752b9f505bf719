"""What a session does with the archive in the background: copies and moves of turns, parked prompts (SES-15, SES-6).

An ended turn is copied once the session has been idle for a moment, so that the archive has the whole conversation and
a gateway can show it without a worker. A copy for each turn as it ends would cost a busy session too much
(docs/decisions/0069); there the copies wait until there is a block of them. The session drops a turn only after the
archive has it. While the archive is down the session continues, and what failed is retried with growing pauses;
`Session.archive` has the errors.

A move without content writes the session's row of the index (API-1, docs/decisions/0049). Each model call writes it,
and so does the session's end. In between, a session begins and ceases to wait for a person's decision, and a task that
stays open comes to an end: no activity runs then.

`Parking` parks prompts that the next run can't carry in the archive, fetches them again, and moves old fates there. A
background task does one of these at a time, for as long as the run lasts. When the history has grown, it parks the
surplus of the queue; when few prompts wait before the parked ones, it fetches the next; it moves fates beyond the last
200 in batches (SES-6). The session continues as new only when none of this is pending and the next run can carry the
rest.

The session drops data only after the archive has it, and the archive only after the session has recorded that it is
back. While the archive is down, the run continues: every turn makes the queue shorter.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from turnkeeper.activities.archive import ArchiveActivities
    from turnkeeper.activities.model_client import MOVES, CacheKey
    from turnkeeper.models.session.archive import ArchiveMove, ArchiveOrder, UnparkOrder
    from turnkeeper.models.session.archive_moves import (
        final_moves,
        next_copy,
        next_move,
        next_prompt_move,
        next_step_move,
        prompt_move_is_due,
    )
    from turnkeeper.models.session.session import Session
    from turnkeeper.models.session.views import listed_status, make_index_entry
    from turnkeeper.models.transcript.conversation import FINAL
    from turnkeeper.workflows import activity_options
    from turnkeeper.workflows.workflow_part import run_in_background


class Archiving:
    """The moves of a session to the archive, in one run."""

    def __init__(self, session: Session, *, refresh_ui: Callable[[], None]) -> None:
        self._session = session
        self._refresh_ui = refresh_ui
        self._task: asyncio.Task[None] | None = None
        self._idle_task: asyncio.Task[None] | None = None
        self._moves = 0
        self._open: dict[int, ArchiveMove] = {}

    @property
    def is_storing(self) -> bool:
        """Whether a move is pending, which delays continue-as-new."""
        return bool(self._open)

    @property
    def is_attempt_due(self) -> bool:
        """Whether the pause after the archive's last failure is over."""
        again_at = self._session.archive.again_at
        return again_at is None or again_at <= workflow.now()

    def open_move(self, number: int) -> ArchiveMove | None:
        return self._open.get(number)

    def begin(self) -> None:
        """Copy ended turns whenever the session has been idle for a moment, until this run ends."""
        self._idle_task = asyncio.create_task(run_in_background(self._copy_when_idle))

    def begin_if_due(self) -> None:
        """Start moving and copying turns in the background, if there are too many."""
        session, block = self._session, activity_options.COPIED_AT_ONCE
        if self._is_at_rest() and (next_move(session) or len(session.transcript) - session.transcript.copied > block):
            self._start()

    def _start(self) -> None:
        self._task = asyncio.create_task(run_in_background(self._move_while_due))

    async def _copy_when_idle(self) -> None:
        while True:
            await workflow.wait_condition(self._can_copy)
            try:
                await workflow.wait_condition(
                    lambda: not self._can_copy(),
                    timeout=activity_options.IDLE_PAUSE,
                    timeout_summary="until the turn is archived",
                )
            except TimeoutError:
                self._start()

    def _can_copy(self) -> bool:
        session = self._session
        is_idle = session.turn is None and session.closed is None and not len(session.queue)
        return is_idle and self._is_at_rest() and not session.transcript.is_copied

    async def wait_for_room(self) -> None:
        """Wait until the session has room for another turn, or the archive has failed."""
        await self.wait_until(lambda: not self._session.room.is_full)

    async def wait_until(self, has_room: Callable[[], bool]) -> None:
        """Wait until `has_room`, no ended turns are on their way to the archive, or the archive has failed."""
        await workflow.wait_condition(lambda: self._is_at_rest() or has_room() or self._session.archive.is_failing)

    async def move_steps(self, *, max_bytes: int) -> None:
        """Move the running turn's oldest steps to the archive, if it works, so that at most `max_bytes` stay."""
        move = next_step_move(self._session, max_bytes=max_bytes)
        if move and await self.store(move):
            self._session.remove_moved(move, now=workflow.now())
            self._refresh_ui()

    async def copy_all(self, *, patience: timedelta) -> None:
        """Copy the whole transcript and all fates of an ending session to the archive.

        Retries for `patience` while the archive is down.
        """
        until = workflow.now() + patience
        await workflow.wait_condition(lambda: not self.is_storing)
        for move in final_moves(self._session):
            while not await self.store(move):
                if workflow.now() >= until:
                    return
                await self.pause()
        self._session.archive.record_success(now=workflow.now())

    def _is_at_rest(self) -> bool:
        return self._task is None or self._task.done()

    async def _move_while_due(self) -> None:
        while move := next_move(self._session) or next_copy(self._session):
            await self.pause()
            if not await self.store(move):
                continue
            if move.keeps:
                self._session.note_copied(move, now=workflow.now())
            else:
                self._session.remove_moved(move, now=workflow.now())
            self._refresh_ui()

    async def pause(self) -> None:
        """Wait until the next attempt is due, or another task has used the archive successfully."""
        archive = self._session.archive
        if archive.again_at and archive.again_at > workflow.now():
            with suppress(TimeoutError):
                await workflow.wait_condition(
                    lambda: archive.again_at is None,
                    timeout=archive.again_at - workflow.now(),
                    timeout_summary="until the archive is tried again",
                )

    async def store(self, move: ArchiveMove) -> bool:
        """Store `move` in the archive; return `False` if that fails, and record the error."""
        try:
            await self._run_activity(move)
        except ActivityError as error:
            self.note_failure(error)
            return False
        return True

    def note_failure(self, error: ActivityError) -> None:
        """Record the archive's error. Raises `CancelledError` if the session was cancelled."""
        if is_cancelled_exception(error):
            raise asyncio.CancelledError from error
        cause = error.cause
        reason = cause.message if isinstance(cause, ApplicationError) else "it did not answer in time"
        self._session.archive.record_failure(reason, now=workflow.now())
        self._refresh_ui()

    async def _run_activity(self, move: ArchiveMove) -> None:
        self._moves += 1
        order = ArchiveOrder(move=self._moves, digest=move.digest)
        move = move.model_copy(update={"entry": make_index_entry(self._session)})
        self._open[order.move] = move
        # Write only, and not during replay: the workflow must not depend on this process (AGT-2).
        if not workflow.unsafe.is_replaying():
            key = CacheKey(workflow.info().run_id, order.move, order.digest)
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
            # Also runs when this worker evicts the workflow, so no Temporal API may be used here. The cached move
            # expires by itself.
            del self._open[order.move]


class Listing:
    """The status of one session in lists, in one run."""

    def __init__(self, session: Session, archiving: Archiving) -> None:
        self._session = session
        self._archiving = archiving
        self._listed: object = None
        self._task: asyncio.Task[None] | None = None
        self.expect_model_call()

    def begin(self) -> None:
        """Write the status whenever it differs, until this run ends."""
        self._task = asyncio.create_task(run_in_background(self._run))

    def expect_model_call(self) -> None:
        """Note that a model call is next, which writes that the session is open and its task at work.

        It does not write it while the archive fails.
        """
        if not self._session.archive.is_failing:
            self._listed = ("open", "working" if self._session.task_status else None)

    @property
    def is_due(self) -> bool:
        """Whether the status has changed. An archive that fails is no reason to wait for it."""
        return self._is_changed() and not self._session.archive.is_failing

    def _is_changed(self) -> bool:
        session, status = self._session, listed_status(self._session)
        if session.closed is not None or status == self._listed:
            return False
        # A turn follows, whose first model call writes the row; or the end, which does.
        begins, ends = session.turn is None and status[1] == "working", status[1] in FINAL
        return not (begins or (ends and session.open_seconds == 0))

    async def _run(self) -> None:
        while True:
            await workflow.wait_condition(self._is_changed)
            await self._archiving.pause()
            status = self._listed = listed_status(self._session)
            if await self._archiving.store(ArchiveMove(first=0)):
                self._session.archive.record_success(now=workflow.now())
            elif self._listed == status:
                self._listed = None


BLOCKED_PAUSE = timedelta(minutes=1)
"""Pause between attempts at an archive that is down, while the session can do nothing without it."""


class Parking:
    """The parked prompts and leaving fates of a session, in one run."""

    def __init__(
        self, session: Session, archiving: Archiving, *, has_grown: Callable[[], bool], refresh_ui: Callable[[], None]
    ) -> None:
        """`has_grown` returns whether the history is due for continue-as-new."""
        self._session = session
        self._archiving = archiving
        self._has_grown = has_grown
        self._refresh_ui = refresh_ui
        self._task: asyncio.Task[None] | None = None
        self.is_fetching = False
        """Whether parked prompts are being fetched, which delays continue-as-new."""

    def begin(self) -> None:
        """Start the background task."""
        self._task = asyncio.create_task(run_in_background(self._serve))

    async def _serve(self) -> None:
        while True:
            await workflow.wait_condition(lambda: self._is_fetch_due() or self._is_move_due())
            await self._pause()
            if self._is_fetch_due():
                await self._fetch()
            elif self._is_move_due():
                await self._move()

    def _is_fetch_due(self) -> bool:
        session = self._session
        # When the history has grown, the next run fetches them: fetching would delay continue-as-new again and again.
        if session.closed is not None or self._has_grown():
            return False
        return session.queue.is_unparking_due(session.config.limits)

    def _is_move_due(self) -> bool:
        return self._session.closed is None and prompt_move_is_due(self._session, parks=self._has_grown())

    async def _move(self) -> None:
        move = next_prompt_move(self._session, parks=self._has_grown())
        if await self._archiving.store(move):
            self._session.queue.remove_moved(move)
            self._session.archive.record_success(now=workflow.now())
            self._refresh_ui()

    async def _fetch(self) -> None:
        session, limits = self._session, self._session.config.limits
        order = UnparkOrder(
            first=session.queue.parked[0].number,
            max_prompts=max(1, limits.max_queued_prompts // 2),
            max_bytes=limits.queued_bytes // 2,
            forget_below=session.queue.forgettable,
        )
        self.is_fetching = True
        try:
            unparked = await workflow.execute_activity_method(
                ArchiveActivities.unpark,
                order,
                start_to_close_timeout=activity_options.ARCHIVE_TIMEOUT,
                schedule_to_close_timeout=activity_options.ARCHIVE_PATIENCE,
                retry_policy=activity_options.ARCHIVE_RETRIES,
                summary=f"the next of {len(session.queue.parked)} parked prompts",
            )
        except ActivityError as error:
            self._archiving.note_failure(error)
            return
        finally:
            self.is_fetching = False
        session.queue.forget_below(order.forget_below)
        # If the first that was fetched was withdrawn meanwhile, another one is next.
        if session.queue.restore_parked(unparked.prompts) or session.queue.parked[0].number != order.first:
            session.archive.record_success(now=workflow.now())
        else:
            session.archive.record_failure(
                "The archive does not have the prompts that were parked in it.", now=workflow.now()
            )
        self._refresh_ui()

    # ---- while the archive is down

    async def _pause(self) -> None:
        """Wait until the next attempt is due, or another task has used the archive successfully."""
        archive = self._session.archive
        while (until := self._next_attempt_at()) and until > workflow.now():
            was_blocked = self._is_blocked()

            def has_changed(was_blocked: bool = was_blocked) -> bool:
                return archive.again_at is None or self._is_blocked() != was_blocked

            with suppress(TimeoutError):
                await workflow.wait_condition(
                    has_changed, timeout=until - workflow.now(), timeout_summary="until the archive is tried again"
                )

    def _next_attempt_at(self) -> datetime | None:
        archive = self._session.archive
        failed_at = archive.report.last_failed_at
        if archive.again_at and failed_at and self._is_blocked():
            return min(archive.again_at, failed_at + BLOCKED_PAUSE)
        return archive.again_at

    def _is_blocked(self) -> bool:
        """Return whether all waiting prompts are parked, so that the session depends on the archive."""
        session = self._session
        return bool(session.queue.parked) and session.queue.next is None and session.turn is None
