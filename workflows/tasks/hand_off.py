"""The activity that prepares a session's task, where its history is ranked or condensed (CTX-15)."""

from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from turnkeeper.activities.hand_off import HandOffActivities
    from turnkeeper.models.session.tasks.hand_off_messages import PreparedSubTask, PrepareSubTask
    from turnkeeper.workflows import activity_options
    from turnkeeper.workflows.turn.turn_scope import check_cancelled


async def prepare_in_activity(call: PrepareSubTask, *, time_left: timedelta) -> PreparedSubTask | None:
    """Return the context of a task; `None` if the activity fails."""
    try:
        return await workflow.execute_activity_method(
            HandOffActivities.prepare_sub_task,
            call,
            start_to_close_timeout=activity_options.HAND_OFF_TIMEOUT,
            schedule_to_close_timeout=min(time_left, activity_options.HAND_OFF_PATIENCE),
            retry_policy=activity_options.HAND_OFF_RETRIES,
            summary=f"history of {call.task_id}",
        )
    except ActivityError as error:
        check_cancelled(error)
        workflow.logger.warning("The history of %s is only cut: %s", call.task_id, error.cause or error)
        return None
