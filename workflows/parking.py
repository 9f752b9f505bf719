"""Prompts that a run can't hand over to the next one wait in the archive, and fates that nobody looks at any more.

Theory of operation. One task beside the main loop does one thing at a time, for as long as the run lasts. Once the
history has grown, it parks what is too much to be carried; once few prompts wait before the parked ones, it fetches
the next; fates that have left the last 200 it moves in batches (SES-6). The main loop goes on in a new run only when
nothing of that is under way and all that is left can be carried.

Nothing is dropped here before the archive has it, and nothing there before the session has recorded that it is back.
While the archive is down, the run just goes on: a long queue is shorter after every turn.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from turnkeeper.activities.archive import ArchiveActivities
    from turnkeeper.models.session.archive.archive_moves import next_prompt_move, prompt_move_is_due
    from turnkeeper.models.session.archive.archive_state import UnparkOrder
    from turnkeeper.models.session.session_state import Session
    from turnkeeper.workflows import activity_options
    from turnkeeper.workflows.archiving import Archiving
    from turnkeeper.workflows.background import run_in_background

BLOCKED_PAUSE = timedelta(minutes=1)
"""Between two attempts at an archive that is down, while nothing can go on without it."""


class Parking:
    """The parked prompts and the leaving fates of one run of a session."""

    def __init__(
        self, session: Session, archiving: Archiving, *, has_grown: Callable[[], bool], on_change: Callable[[], None]
    ) -> None:
        """Serve `session`; `has_grown`: the history is due for a new run."""
        self._session = session
        self._archiving = archiving
        self._has_grown = has_grown
        self._on_change = on_change
        self._task: asyncio.Task[None] | None = None
        self.is_fetching = False
        """Parked prompts are on their way back: not the moment for a new run."""

    def begin(self) -> None:
        """Serve the session from now on; returns at once."""
        if self._session.rules >= 2:
            self._task = asyncio.create_task(run_in_background(self._serve, rules=self._session.rules))

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
        # Once the history has grown they are left to the next run: fetching would hold it up, again and again.
        if session.closed is not None or self._has_grown():
            return False
        return session.queue.row.wants_parked(session.config.limits)

    def _is_move_due(self) -> bool:
        return self._session.closed is None and prompt_move_is_due(self._session, parks=self._has_grown())

    async def _move(self) -> None:
        move = next_prompt_move(self._session, parks=self._has_grown())
        if await self._archiving.is_stored(move):
            self._session.queue.remove_moved(move)
            self._session.archive.worked(now=workflow.now())
            self._on_change()

    async def _fetch(self) -> None:
        session, limits = self._session, self._session.config.limits
        order = UnparkOrder(
            first=session.queue.parked[0].number,
            max_prompts=max(1, limits.max_queued_prompts // 2),
            max_bytes=limits.queued_bytes // 2,
            forget_below=session.queue.row.forgettable,
        )
        self.is_fetching = True
        try:
            found = await workflow.execute_activity_method(
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
        session.queue.row.forget_below(order.forget_below)
        if session.queue.restore_parked(found.prompts):
            session.archive.worked(now=workflow.now())
        else:
            session.archive.failed("The archive does not have the prompts that were parked in it.", now=workflow.now())
        self._on_change()

    # ---- while the archive is down

    async def _pause(self) -> None:
        """Wait until the archive may be tried again, or has worked for somebody else."""
        archive = self._session.archive
        while (until := self._not_before()) and until > workflow.now():
            was_blocked = self._is_blocked()

            def is_another_matter(was_blocked: bool = was_blocked) -> bool:
                return archive.again_at is None or self._is_blocked() != was_blocked

            with suppress(TimeoutError):
                await workflow.wait_condition(
                    is_another_matter,
                    timeout=until - workflow.now(),
                    timeout_summary="until the archive is tried again",
                )

    def _not_before(self) -> datetime | None:
        archive = self._session.archive
        failed_at = archive.report.last_failed_at
        if archive.again_at and failed_at and self._is_blocked():
            return min(archive.again_at, failed_at + BLOCKED_PAUSE)
        return archive.again_at

    def _is_blocked(self) -> bool:
        """Return whether all that waits is parked: the session can do nothing until the archive answers."""
        session = self._session
        return bool(session.queue.parked) and not session.queue.waiting and session.turn is None
