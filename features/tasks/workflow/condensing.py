"""Condenses the long texts of a task's history, before the first model call of its first turn (CTX-15).

They are cut already: while this runs, and if it fails, the prompt has the cut texts.
"""

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from turnkeeper.activities.failures import describe_failure
    from turnkeeper.features.tasks.activities import HandOffActivities
    from turnkeeper.features.tasks.session.new_sub_task import CondenseCall, CondenseOutcome
    from turnkeeper.features.tasks.session_part import tasks_of
    from turnkeeper.models.transcript.task_view import CondensedTexts
    from turnkeeper.models.transcript.trajectory import BlobRef
    from turnkeeper.models.wire import REASON_CHARS
    from turnkeeper.workflows import activity_options
    from turnkeeper.workflows.turn.turn_scope import TurnScope, check_cancelled
    from turnkeeper.workflows.turn.unfinished import spent_usage


async def condense_if_due(scope: TurnScope) -> None:
    """Replace the turn's prompt by one with condensed texts, if it has texts to condense.

    The usage counts towards the turn's budget. If it fails, the turn continues with the cut texts.
    """
    session, task = scope.session, tasks_of(scope.session).own
    texts = task.to_condense
    if texts is None:
        return
    outcome = await _outcome(scope, texts.blob)
    session.turn_slot.add_usage(outcome.usage)
    session.turn_slot.add_usage(outcome.spent)
    if outcome.trouble:
        workflow.logger.warning("Long texts of the task's history are cut, not condensed: %s", outcome.trouble)
    reason = outcome.trouble and outcome.trouble[:REASON_CHARS]
    task.end_condensing(
        outcome.prompt,
        CondensedTexts(condensed=outcome.condensed, cut=max(0, texts.count - outcome.condensed), reason=reason),
    )
    scope.refresh_ui()


async def _outcome(scope: TurnScope, texts: BlobRef) -> CondenseOutcome:
    session = scope.session
    scope.check_stop()
    try:
        return await workflow.execute_activity_method(
            HandOffActivities.condense_history,
            CondenseCall(
                turn=session.transcript.count,
                texts=texts,
                model=scope.turn.model,
                request=session.count_request(),
                max_bytes=scope.turn.limits.prompt_bytes,
                **session.budgets.remaining(),
            ),
            start_to_close_timeout=activity_options.CONDENSE_TIMEOUT,
            schedule_to_close_timeout=min(scope.time_left(), activity_options.CONDENSE_PATIENCE),
            heartbeat_timeout=activity_options.HEARTBEAT_TIMEOUT,
            retry_policy=activity_options.SUMMARY_RETRIES,
            summary="long texts of the task's history",
        )
    except ActivityError as error:
        check_cancelled(error)
        return CondenseOutcome(trouble=describe_failure(error)[1], spent=spent_usage(error))
