"""`DeleteSession`: one workflow deletes one session permanently (API-1, docs/decisions/0042).

The workflow id, `<session>/delete`, is the lock: only one deletion of a session can run, whichever gateway starts it.
Its progress is the receipt, as a query while it runs and as its result afterwards. Its history has nothing of the
conversation.

A session's id can be used again when Temporal has deleted the last run; from then on, data under it in the stores
belongs to the new session. So the stores are cleared first, while the terminated session still has its id, and the
newest run is deleted last. An activity that was running may still write: it learns of the termination with its next
heartbeat, or has a short timeout. So the stores are cleared at once, and again after `DELETION_QUIET` if an activity
was running.
"""

from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from turnkeeper.activities.archive import DeletionActivities
    from turnkeeper.models.errors import RejectedError
    from turnkeeper.models.session.messages import DeletionOrder, DeletionProgress, SessionRuns, parse
    from turnkeeper.workflows.activity_options import DELETION_PAUSE, DELETION_QUIET, STORE_WORK


@workflow.defn
class DeleteSession:
    """The deletion of a session; it runs until nothing is left."""

    def __init__(self) -> None:
        self._progress = DeletionProgress()

    @workflow.run
    async def run(self, order: Any = None, *rest: Any) -> DeletionProgress:
        """Stop the session, clear the stores and delete its runs; return the receipt. `order` is a `DeletionOrder`.

        It is parsed here, since input that Temporal can't parse would fail the workflow task forever (SES-5).
        """
        order = _read_order(order, extra_arguments=len(rest))
        session = await workflow.execute_activity_method(DeletionActivities.stop_session, order, **STORE_WORK)
        runs = len(session.runs)
        self._progress = DeletionProgress(runs=runs, remaining=runs, archived_turns=session.archived_turns)
        await self._clear_stores(order)
        if session.busy_at:
            # Always a timer, even a late one: the recorded commands must not depend on the constants.
            await workflow.sleep(max(DELETION_PAUSE, session.busy_at + DELETION_QUIET - workflow.now()))
            await self._clear_stores(order)
        await self._delete_runs(SessionRuns(runs=session.runs))
        return self._progress

    @workflow.query(description="The progress of the deletion; takes no argument. For our own gateway.")
    def get_receipt(self) -> DeletionProgress:
        return self._progress

    async def _clear_stores(self, order: DeletionOrder) -> None:
        archived_turns = await workflow.execute_activity_method(DeletionActivities.clear_stores, order, **STORE_WORK)
        count = max(archived_turns, self._progress.archived_turns or 0)
        self._progress = self._progress.model_copy(update={"archived_turns": count})

    async def _delete_runs(self, session: SessionRuns) -> None:
        started_at = workflow.now()
        while True:
            session = await workflow.execute_activity_method(DeletionActivities.delete_runs, session, **STORE_WORK)
            self._progress = self._progress.model_copy(update={"remaining": len(session.runs)})
            if not session.runs:
                return
            # Growing pauses: the history has room for months of this.
            await workflow.sleep(max(DELETION_PAUSE, (workflow.now() - started_at) / 8))


def _read_order(raw: Any, *, extra_arguments: int) -> DeletionOrder:
    """Return the order. Raises `ApplicationError` if it is none, which fails the workflow: nothing is deleted."""
    if raw is None or extra_arguments:
        raise ApplicationError("A deletion is started with one JSON object.", type="invalid", non_retryable=True)
    try:
        return parse(DeletionOrder, raw)
    except RejectedError as rejection:
        raise ApplicationError(rejection.message, type=rejection.reason, non_retryable=True) from None
