"""Writes a session's status into the index, where no activity does that anyway (API-1, docs/decisions/0049).

Each model call writes the session's row, and so does its end. In between, a session begins and ceases to wait for a
person's decision, and a task that stays open comes to an end: then an activity has nothing else to do.
"""

import asyncio

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from turnkeeper.models.session.archive.archive_messages import ArchiveMove
    from turnkeeper.models.session.archive.index_entries import listed_status
    from turnkeeper.models.session.session import Session
    from turnkeeper.models.transcript.task_view import FINAL
    from turnkeeper.workflows.archiving import Archiving
    from turnkeeper.workflows.background import run_in_background


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
        """Note that a model call is next, which writes that the session is open and its task at work."""
        self._listed = ("open", "working" if self._session.config.task else None)

    @property
    def is_due(self) -> bool:
        """Whether the status has changed. An archive that fails is no reason to wait for it."""
        return self._is_changed() and not self._session.archive.is_failing

    def _is_changed(self) -> bool:
        session, status, task = self._session, listed_status(self._session), self._session.config.task
        if session.closed is not None or status == self._listed:
            return False
        # A turn follows, whose first model call writes the row; or the end, which does.
        begins, ends = session.turn is None and status[1] == "working", status[1] in FINAL
        return not (task and (begins or (ends and task.open_seconds == 0)))

    async def _run(self) -> None:
        while True:
            await workflow.wait_condition(self._is_changed)
            await self._archiving.pause()
            status = self._listed = listed_status(self._session)
            if await self._archiving.store(ArchiveMove(first=0)):
                self._session.archive.record_success(now=workflow.now())
            elif self._listed == status:
                self._listed = None
