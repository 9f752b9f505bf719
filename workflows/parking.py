"""Parks prompts that the next run can't carry in the archive, fetches them again, and moves old fates there.

A background task does one of these at a time, for as long as the run lasts. When the history has grown, it parks the
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
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from turnkeeper.activities.archive import ArchiveActivities
    from turnkeeper.models.session.archive.archive_messages import UnparkOrder
    from turnkeeper.models.session.archive.archive_moves import next_prompt_move, prompt_move_is_due
    from turnkeeper.models.session.session import Session
    from turnkeeper.workflows import activity_options
    from turnkeeper.workflows.archiving import Archiving
    from turnkeeper.workflows.background import run_in_background

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
        if session.queue.restore_parked(unparked.prompts) or self._is_withdrawn(order.first):
            session.archive.record_success(now=workflow.now())
        else:
            session.archive.record_failure(
                "The archive does not have the prompts that were parked in it.", now=workflow.now()
            )
        self._refresh_ui()

    def _is_withdrawn(self, number: int) -> bool:
        """Return whether this prompt, the first that was fetched, is no longer parked, so that another one is next."""
        return self._session.queue.parked[0].number != number

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
                    has_changed,
                    timeout=until - workflow.now(),
                    timeout_summary="until the archive is tried again",
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
