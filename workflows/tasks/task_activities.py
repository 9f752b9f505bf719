"""Activities for tasks, of what a workflow can't do itself: large texts, and a history that is ranked or condensed."""

from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from turnkeeper.activities.hand_off import HandOffActivities, KeepResult, TaskTextActivities
    from turnkeeper.models.session.tasks.hand_off_messages import PreparedSubTask, PrepareSubTask
    from turnkeeper.models.session.tasks.outcome import TaskOutcome
    from turnkeeper.models.transcript.large_texts import cut_result
    from turnkeeper.models.transcript.trajectory import BlobRef, ToolResult
    from turnkeeper.workflows import activity_options
    from turnkeeper.workflows.turn.turn_scope import check_cancelled


async def read_text(ref: BlobRef) -> str | None:
    """Return a text of this session that is stored by reference; `None` if it can't be read now."""
    try:
        text: str | None = await workflow.execute_activity_method(
            TaskTextActivities.read_large_text,
            ref,
            start_to_close_timeout=activity_options.TEXT_TIMEOUT,
            schedule_to_close_timeout=activity_options.TEXT_PATIENCE,
            retry_policy=activity_options.ARCHIVE_RETRIES,
            summary="large text of a task",
        )
    except ActivityError as error:
        check_cancelled(error)
        return None
    return text


async def keep_result(result: ToolResult, *, inline_bytes: int) -> ToolResult:
    """Return the result, with content over `inline_bytes` by reference. While the store is down, content is cut."""
    try:
        return await workflow.execute_activity_method(
            TaskTextActivities.keep_large_result,
            KeepResult(result=result, inline_bytes=inline_bytes),
            start_to_close_timeout=activity_options.TEXT_TIMEOUT,
            schedule_to_close_timeout=activity_options.TEXT_PATIENCE,
            retry_policy=activity_options.ARCHIVE_RETRIES,
            summary="answer of a task",
        )
    except ActivityError as error:
        check_cancelled(error)
        return cut_result(result, inline_bytes=inline_bytes)


async def with_whole_answer(outcome: TaskOutcome) -> TaskOutcome:
    """Return the outcome with its whole answer; if the store can't be read, with the excerpt."""
    if outcome.answer_blob is None:
        return outcome
    answer = await read_text(outcome.answer_blob)
    return outcome if answer is None else outcome.model_copy(update={"answer": answer, "answer_blob": None})


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
