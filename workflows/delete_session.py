"""`DeleteSession`: one workflow deletes one session for good (API-1, docs/decisions/0042).

Theory of operation. Its id, `<session>/delete`, is the lock: there is one deletion of a session at a time, however many
gateways ask for it. Its progress is the receipt, by query while it runs and as its result afterwards. Nothing of the
conversation is in its history.

A session's id is free for another one once Temporal has forgotten the last run, and what the stores have under an id
then is that session's. So the stores are cleared first, while the terminated session still holds its id, and the newest
run is deleted last. An activity that was under way when the session was terminated may still write: it learns of the
termination with its next heartbeat, or has a short timeout. So the stores are cleared at once, and again after
`DELETION_QUIET`; where nothing was under way, once is enough.
"""

from datetime import datetime, timedelta

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from turnkeeper.activities.deletion import DeletionActivities
    from turnkeeper.models.deletion import DeletionOrder, DeletionProgress, SessionRuns
    from turnkeeper.workflows import activity_options


@workflow.defn
class DeleteSession:
    """The deletion of a session; it goes on until nothing is left."""

    def __init__(self) -> None:
        """Begin without knowing anything of the session."""
        self._progress = DeletionProgress()

    @workflow.run
    async def run(self, order: DeletionOrder) -> DeletionProgress:
        """Stop the session, clear the stores and delete its runs; return the receipt."""
        session = await workflow.execute_activity_method(
            DeletionActivities.stop_session, order, **activity_options.deletion()
        )
        runs = len(session.runs)
        self._progress = DeletionProgress(runs=runs, remaining=runs, archived_turns=session.archived_turns)
        await self._clear_stores(order)
        if session.busy_at:
            await _sleep_until(session.busy_at + activity_options.DELETION_QUIET)
            await self._clear_stores(order)
        await self._delete_runs(SessionRuns(runs=session.runs))
        return self._progress

    @workflow.query(description="How far the deletion is: nothing. For our own gateway.")
    def get_receipt(self) -> DeletionProgress:
        """Return what is known of what is deleted."""
        return self._progress

    async def _clear_stores(self, order: DeletionOrder) -> None:
        archived_turns = await workflow.execute_activity_method(
            DeletionActivities.clear_stores, order, **activity_options.deletion()
        )
        most = max(archived_turns, self._progress.archived_turns or 0)
        self._progress = self._progress.model_copy(update={"archived_turns": most})

    async def _delete_runs(self, session: SessionRuns) -> None:
        begun_at = workflow.now()
        while True:
            session = await workflow.execute_activity_method(
                DeletionActivities.delete_runs, session, **activity_options.deletion()
            )
            self._progress = self._progress.model_copy(update={"remaining": len(session.runs)})
            if not session.runs:
                return
            # Asked for less and less often: a history has room for months of this.
            await workflow.sleep(max(activity_options.DELETION_PAUSE, (workflow.now() - begun_at) / 8))


async def _sleep_until(moment: datetime) -> None:
    await workflow.sleep(max(timedelta(), moment - workflow.now()))
