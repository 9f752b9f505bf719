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

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from turnkeeper.activities.deletion import DeletionActivities
    from turnkeeper.models.deletion import DeletionOrder, DeletionProgress, SessionRuns
    from turnkeeper.workflows.activity_options import DELETION, DELETION_PAUSE, DELETION_QUIET


@workflow.defn
class DeleteSession:
    """The deletion of a session; it goes on until nothing is left."""

    def __init__(self) -> None:
        self._progress = DeletionProgress()

    @workflow.run
    async def run(self, order: DeletionOrder) -> DeletionProgress:
        """Stop the session, clear the stores and delete its runs; return the receipt."""
        session = await workflow.execute_activity_method(DeletionActivities.stop_session, order, **DELETION)
        runs = len(session.runs)
        self._progress = DeletionProgress(runs=runs, remaining=runs, archived_turns=session.archived_turns)
        await self._clear_stores(order)
        if session.busy_at:
            # Always a timer, however late it is: what is recorded must not depend on how long the quiet is.
            await workflow.sleep(max(DELETION_PAUSE, session.busy_at + DELETION_QUIET - workflow.now()))
            await self._clear_stores(order)
        await self._delete_runs(SessionRuns(runs=session.runs))
        return self._progress

    @workflow.query(description="How far the deletion is; takes no argument. For our own gateway.")
    def get_receipt(self) -> DeletionProgress:
        return self._progress

    async def _clear_stores(self, order: DeletionOrder) -> None:
        archived_turns = await workflow.execute_activity_method(DeletionActivities.clear_stores, order, **DELETION)
        most = max(archived_turns, self._progress.archived_turns or 0)
        self._progress = self._progress.model_copy(update={"archived_turns": most})

    async def _delete_runs(self, session: SessionRuns) -> None:
        begun_at = workflow.now()
        while True:
            session = await workflow.execute_activity_method(DeletionActivities.delete_runs, session, **DELETION)
            self._progress = self._progress.model_copy(update={"remaining": len(session.runs)})
            if not session.runs:
                return
            # Asked for less and less often: a history has room for months of this.
            await workflow.sleep(max(DELETION_PAUSE, (workflow.now() - begun_at) / 8))
