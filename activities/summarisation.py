"""Summaries of what the model no longer sees: the activity `summarise` (CTX-5)."""

from collections.abc import Sequence

from temporalio import activity
from temporalio.exceptions import ApplicationError

from turnkeeper.activities.failures import judge
from turnkeeper.activities.heartbeat import heartbeating
from turnkeeper.activities.model_request.asking import Asking
from turnkeeper.activities.model_request.spending import Spending
from turnkeeper.activities.own_workflow import WorkflowSilentError
from turnkeeper.activities.providers.protocol import ModelError
from turnkeeper.models.bounds import bound_json
from turnkeeper.models.context.summary import (
    PROMPT_CHARS,
    SUMMARY_BYTES,
    SUMMARY_CHARS,
    files_written,
    listed_files,
    summary_request,
    summary_trouble,
)
from turnkeeper.models.transcript.model_call import ModelRequest, ModelResponse, SummaryCall, SummaryOutcome


class SummaryActivities:
    """Activities that ask a model what is worth remembering."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking

    @activity.defn
    async def summarise(self, call: SummaryCall) -> SummaryOutcome:
        """Return a summary of exactly the messages that `call.digest` names, or say why there is none that is any good.

        A second run sees the same messages and asks the model again: it may be billed twice, it is recorded once.
        """
        spending = self._asking.spending(call.model)
        async with heartbeating(lambda: spending.behind(())):
            try:
                evicted = await self._asking.context_of(call.request, digest=call.digest)
            except WorkflowSilentError:
                return SummaryOutcome(trouble="its messages could not be handed over in time")
            if evicted is None:
                return SummaryOutcome(trouble="its messages could not be handed over unchanged")
            try:
                response = await self._asked(call, evicted, spending)
            except ApplicationError as failure:
                activity.heartbeat(*spending.behind(()))
                raise _with_details(failure, spending.behind(())) from None
        return _outcome_of(response, evicted).model_copy(update={"spent": spending.total})

    async def _asked(self, call: SummaryCall, evicted: ModelRequest, spending: Spending) -> ModelResponse:
        """Return the model's answer, to a shorter request where the first is too long for it."""
        for max_chars in (PROMPT_CHARS, PROMPT_CHARS // 2, PROMPT_CHARS // 4):
            request = summary_request(evicted.messages, has_earlier=call.has_earlier, max_chars=max_chars)
            try:
                return await self._asking.answer(call.model, request, number=call.request, spending=spending)
            except ModelError as error:
                failure = error
                if error.error_type != "context_too_long":
                    break
        # Raises what is worth another attempt, soon.
        judge(failure, attempt=activity.info().attempt, rounds=0, unclear=spending.unclear_answers)
        # What the turn's own calls would wait out for long, a summary is not worth.
        raise ApplicationError(failure.message, type=failure.error_type, non_retryable=True) from failure


def _with_details(failure: ApplicationError, details: Sequence[object]) -> ApplicationError:
    return ApplicationError(
        failure.message,
        *details,
        type=failure.type,
        non_retryable=failure.non_retryable,
        next_retry_delay=failure.next_retry_delay,
    )


def _outcome_of(response: ModelResponse, evicted: ModelRequest) -> SummaryOutcome:
    """Return what the session can keep of the answer, or why that is nothing."""
    text, files = response.text.strip(), files_written(evicted.messages, evicted.head.tools)
    # One that was cut lacks what came last: where things stand.
    is_cut = response.stop == "max_tokens"
    trouble = "it was cut before its end" if is_cut else summary_trouble(text, files, evicted.messages)
    if trouble:
        return SummaryOutcome(trouble=trouble, usage=response.usage)
    listed, omitted = listed_files(files)
    bounded = bound_json(text, SUMMARY_CHARS, SUMMARY_BYTES)
    return SummaryOutcome(text=bounded, files=listed, files_omitted=omitted, usage=response.usage)
