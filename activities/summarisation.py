"""Summaries of what the model no longer sees: the activity `summarise` (CTX-5)."""

from temporalio import activity
from temporalio.exceptions import ApplicationError

from turnkeeper.activities.failures import raise_if_retried_soon, with_details
from turnkeeper.activities.heartbeat import heartbeating
from turnkeeper.activities.model_request.model_client import ModelClient
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
    """The activity that summarises evicted messages."""

    def __init__(self, model_client: ModelClient) -> None:
        self._model_client = model_client

    @activity.defn
    async def summarise(self, call: SummaryCall) -> SummaryOutcome:
        """Return a summary of exactly the messages of `call.digest`, or why there is no usable one.

        A second attempt calls the model again with the same messages: it may be billed twice, it is recorded once.
        """
        spending = self._model_client.spending(call.model)
        async with heartbeating(lambda: spending.heartbeat_details(())):
            try:
                evicted = await self._model_client.load_request(call.request, digest=call.digest)
            except WorkflowSilentError:
                return SummaryOutcome(trouble="its messages could not be read in time")
            if evicted is None:
                return SummaryOutcome(trouble="its messages changed on their way to the worker")
            try:
                response = await self._ask_model(call, evicted, spending)
            except ApplicationError as failure:
                activity.heartbeat(*spending.heartbeat_details(()))
                raise with_details(failure, spending.heartbeat_details(())) from None
        return _outcome_of(response, evicted).model_copy(update={"spent": spending.total})

    async def _ask_model(self, call: SummaryCall, evicted: ModelRequest, spending: Spending) -> ModelResponse:
        """Return the model's answer, to a shorter request if the first is too long for it."""
        for max_chars in (PROMPT_CHARS, PROMPT_CHARS // 2, PROMPT_CHARS // 4):
            request = summary_request(evicted.messages, has_earlier=call.has_earlier, max_chars=max_chars)
            try:
                return await self._model_client.answer(call.model, request, number=call.request, spending=spending)
            except ModelError as error:
                failure = error
                if error.error_type != "context_too_long":
                    break
        same = spending.times_failed(failure)
        raise_if_retried_soon(failure, attempt=activity.info().attempt, same=same)
        raise ApplicationError(failure.message, type=failure.error_type, non_retryable=True) from failure


def _outcome_of(response: ModelResponse, evicted: ModelRequest) -> SummaryOutcome:
    """Return the bounded summary, or why the answer is not usable."""
    text, files = response.text.strip(), files_written(evicted.messages, evicted.head.tools)
    # A summary that was cut lacks the current state, which comes last.
    is_cut = response.stop == "max_tokens"
    trouble = "it was cut before its end" if is_cut else summary_trouble(text, files, evicted.messages)
    if trouble:
        return SummaryOutcome(trouble=trouble, usage=response.usage)
    file_list, omitted = listed_files(files)
    bounded_text = bound_json(text, SUMMARY_CHARS, SUMMARY_BYTES)
    return SummaryOutcome(text=bounded_text, files=file_list, files_omitted=omitted, usage=response.usage)
