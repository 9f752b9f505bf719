"""Summarises evicted messages before the next model request (CTX-5)."""

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from turnkeeper.activities.failures import describe_failure
    from turnkeeper.activities.summarisation import SummaryActivities
    from turnkeeper.models.context.model_view import digest_of
    from turnkeeper.models.texts.counted import counted
    from turnkeeper.models.tokens import estimate_tokens
    from turnkeeper.models.transcript.model_call import ModelRequest, SummaryCall, SummaryOutcome
    from turnkeeper.workflows import activity_options
    from turnkeeper.workflows.turn.open_request import OpenRequest, RequestSlot
    from turnkeeper.workflows.turn.turn_scope import TurnScope, check_cancelled
    from turnkeeper.workflows.turn.unfinished import spent_usage


class Summaries:
    """The summaries of a turn."""

    def __init__(self, scope: TurnScope, slot: RequestSlot) -> None:
        self._scope = scope
        self._session = scope.session
        self._slot = slot

    async def make_if_due(self) -> None:
        """Replace evicted messages by a summary, if one is due.

        If it fails, the session continues without it, and its messages wait for the next one.
        """
        session, history = self._session, self._scope.turn.history
        if not session.context.evicted.is_summary_due(history):
            return
        request = self._open_request()
        evicted = session.context.evicted.begin_summary()
        outcome = await self._outcome(request)
        self._slot.close()
        session.turn_slot.add_usage(outcome.usage)
        session.turn_slot.add_usage(outcome.spent)
        if outcome.trouble:
            session.context.evicted.note_failed_summary()
            workflow.logger.warning("No summary of %d messages: %s", request.message_count, outcome.trouble)
        else:
            view_bytes = session.config.limits.view_bytes
            session.context.insert_summary(outcome, of=evicted, view_bytes=view_bytes)

    def _open_request(self) -> OpenRequest:
        session = self._session
        request = ModelRequest(head=session.head, messages=session.context.messages_to_summarise())
        pending = OpenRequest(
            number=session.count_request(),
            model_request=request,
            digest=digest_of(request),
            estimated_tokens=estimate_tokens(request.messages),
        )
        return self._slot.open(pending)

    async def _outcome(self, request: OpenRequest) -> SummaryOutcome:
        scope, session = self._scope, self._session
        scope.check_stop()
        self._slot.cache_for_activity()
        try:
            return await workflow.execute_activity_method(
                SummaryActivities.summarise,
                SummaryCall(
                    turn=session.transcript.count,
                    request=request.number,
                    model=scope.turn.model,
                    digest=request.digest,
                    has_earlier=session.context.view.summary is not None,
                ),
                start_to_close_timeout=activity_options.SUMMARY_TIMEOUT,
                schedule_to_close_timeout=min(scope.time_left(), activity_options.SUMMARY_PATIENCE),
                heartbeat_timeout=activity_options.HEARTBEAT_TIMEOUT,
                retry_policy=activity_options.SUMMARY_RETRIES,
                summary=f"summary · turn {session.transcript.count} · of {counted(request.message_count, 'message')}",
            )
        except ActivityError as error:
            check_cancelled(error)
            return SummaryOutcome(trouble=describe_failure(error)[1], spent=spent_usage(error))
