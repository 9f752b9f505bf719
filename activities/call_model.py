"""The activities that ask a model: `call_model` for the next step of a turn, `summarise` for what leaves its view."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime

from pydantic import ValidationError
from pydantic_core import to_json
from temporalio import activity
from temporalio.exceptions import ApplicationError

from turnkeeper.activities.activity_context import (
    STOPPING,
    WorkflowSilentError,
    current_run_id,
    current_session_id,
    heartbeating,
)
from turnkeeper.activities.answer_publisher import AnswerPublisher, GrowingAnswer
from turnkeeper.activities.failures import MAX_ATTEMPTS, judge, raise_if_retried_soon, with_details
from turnkeeper.activities.large_texts import LargeTexts
from turnkeeper.activities.model_client import ENTRIES, CacheKey, ModelClient
from turnkeeper.activities.providers.protocol import Delta, ModelError
from turnkeeper.activities.spending import Spending
from turnkeeper.activities.tools import QuickReader
from turnkeeper.models.context.summary import (
    PROMPT_CHARS,
    SUMMARY_BYTES,
    SUMMARY_CHARS,
    files_written,
    listed_files,
    summary_request,
    summary_trouble,
)
from turnkeeper.models.limits import ANSWER_BYTES, MAX_NESTING, MAX_WHOLE_ANSWER_BYTES, SMALL_TEXT_BYTES
from turnkeeper.models.texts import bound_json, is_nested_over
from turnkeeper.models.transcript.large_texts import STATE_INLINE_BYTES, cut_response
from turnkeeper.models.transcript.model_call import (
    CallPart,
    ModelCall,
    ModelCallOutcome,
    ModelRequest,
    ModelResponse,
    Part,
    RespondPart,
    SummaryCall,
    SummaryOutcome,
)
from turnkeeper.models.transcript.partial_output import PartialOutput, PartialTag, unfinished_answer
from turnkeeper.stores.database.database import StoreUnavailableError
from turnkeeper.stores.partials.carrier import PartialCarrier
from turnkeeper.stores.session_index import IndexedSession, IndexWriter

ATTEMPTS_PER_WAIT = 1_000_000
"""More attempts than a turn has time for."""

SILENCE_SECONDS = 1.0
"""Pause after the session did not answer a query."""

STORE_WAIT_SECONDS = 5.0
"""Pause after the store of large texts could not be read."""

MAX_CALL_NAME_CHARS = 256
"""Maximum characters of a call's name: four times the longest name of a tool."""

OVER_BUDGET_SECONDS = 1.0
"""Marks an outcome without an answer, because failed attempts used up the turn's budget. The workflow checks the budget
before it would wait, so the turn ends at once."""

STORE_SECONDS = 0.5
"""How long storing an unfinished answer's large texts may take; after that the answer is cut."""


class IndexNotes:
    """Notes model calls in the index of sessions, in the background: when one was active, what a turn has cost (API-1).

    The session's entry comes with the request, by the same cache or query (AGT-2). Without it nothing is written: the
    next call has one.
    """

    def __init__(self, writer: IndexWriter) -> None:
        self._writer = writer

    def note_begin(self, call: ModelCall) -> None:
        self._note(call, cost=None)

    def note_end(self, call: ModelCall, outcome: ModelCallOutcome | None) -> None:
        """Note the end of a call; `outcome` is `None` if it failed. The session itself adds the cost later."""
        usages = () if outcome is None else (outcome.response and outcome.response.usage, outcome.spent)
        costs = [usage.cost for usage in usages if usage and usage.cost is not None]
        self._note(call, cost=sum(costs) if costs else None)

    def _note(self, call: ModelCall, *, cost: float | None) -> None:
        entry = ENTRIES.get(CacheKey(current_run_id(), call.request, call.digest))
        if entry is not None:
            row = IndexedSession.of_entry(current_session_id(), entry, now=datetime.now(UTC))
            self._writer.put(row.with_cost(cost))


class ModelActivities:
    """The activity that calls a model for a turn's next step."""

    def __init__(
        self,
        model_client: ModelClient,
        texts: LargeTexts,
        partials: PartialCarrier,
        index_notes: IndexNotes,
        quick_reader: QuickReader,
    ) -> None:
        self._model_client = model_client
        self._texts = texts
        self._partials = partials
        self._index_notes = index_notes
        self._quick_reader = quick_reader

    @activity.defn
    async def call_model(self, call: ModelCall) -> ModelCallOutcome:
        """Return the model's whole answer to exactly the context of `call.digest` (AGT-2), and its quick reads.

        A second attempt calls the model again with the same context: it may be billed twice, it is recorded once.
        """
        # Kept whole, to record it if the call is cancelled; the publisher bounds its own copy to 64 KB.
        answer_so_far = GrowingAnswer(
            make_partial_tag(call, attempt=activity.info().attempt), max_bytes=MAX_WHOLE_ANSWER_BYTES
        )
        spending = self._model_client.spending(call.model, lasting_failures=call.lasting_failures)
        outcome: ModelCallOutcome | None = None
        try:
            outcome = await self._complete_outcome(call, answer_so_far, spending)
        finally:
            self._index_notes.note_end(call, outcome)
        return outcome

    def _details(self, answer_so_far: GrowingAnswer, spending: Spending) -> Sequence[object]:
        """Return the details of a heartbeat: the partial output, then the usage of failed attempts.

        The partial output is only there where heartbeats carry it, and shortly before the turn's time is over.
        """
        partial = self._partials.heartbeat_details(current_session_id())
        if not partial and seconds_to_last_heartbeat() <= 0 and answer_so_far.has_begun:
            partial = (answer_so_far.bounded(),)
        return spending.heartbeat_details(partial)

    async def _complete_outcome(
        self, call: ModelCall, answer_so_far: GrowingAnswer, spending: Spending
    ) -> ModelCallOutcome:
        """Return the outcome with the usage of failed attempts; of a call that was cancelled, the unfinished answer."""

        def details() -> Sequence[object]:
            return self._details(answer_so_far, spending)

        async with heartbeating(details, last=seconds_to_last_heartbeat()), _bounded_bugs():
            try:
                outcome = await self._outcome(call, answer_so_far, spending)
                return outcome.model_copy(
                    update={"spent": spending.total, "lasting_failures": spending.lasting_failures}
                )
            except asyncio.CancelledError:
                cancellation = activity.cancellation_details()
                # Any other cause, such as this worker's shutdown, is worth another attempt, which Temporal makes.
                if cancellation is None or not cancellation.cancel_requested:
                    raise
                spent = spending.total
                unfinished = await self._unfinished_answer(answer_so_far.snapshot(), call, max_bytes=call.max_bytes)
                return ModelCallOutcome(unfinished=unfinished, spent=spent)

    async def _outcome(self, call: ModelCall, answer_so_far: GrowingAnswer, spending: Spending) -> ModelCallOutcome:
        if spending.is_over(tokens_left=call.tokens_left, cost_left=call.cost_left):
            # A worker died: its last partial output is all that is left of the answer.
            unfinished = await self._unfinished_answer(_previous_attempt_output(), call, max_bytes=call.max_bytes)
            return ModelCallOutcome(wait_seconds=OVER_BUDGET_SECONDS, unfinished=unfinished)
        try:
            request = await self._model_client.load_request(call.request, digest=call.digest)
        except WorkflowSilentError:
            # Not a failure of the model: the workflow schedules the activity again, as long as the turn has time.
            reason = "The worker could not read the conversation from Temporal in time."
            return ModelCallOutcome(wait_seconds=SILENCE_SECONDS, wait_reason=reason)
        if request is None:
            return ModelCallOutcome(repeat="digest_mismatch")
        try:
            request = await self._texts.with_attachments(current_session_id(), request)
        except StoreUnavailableError as error:
            # As for a silent session: no request was sent, and the turn continues as soon as the store answers.
            return ModelCallOutcome(
                wait_seconds=STORE_WAIT_SECONDS,
                wait_reason=f"The attachments of the conversation can't be read now. {error}",
            )
        self._index_notes.note_begin(call)
        response: ModelResponse | None = None
        try:
            response = await self._answer(call, request, answer_so_far, spending)
            if call.repeats_empty and _is_empty(response):
                spending.add(response.usage)
                return ModelCallOutcome(repeat="empty_answer")
            carriable = _sanitized(_with_thinking_as_text(response) if _is_empty(response) else response)
            stored = await self._storable(carriable, call)
            return ModelCallOutcome(response=stored, reads=await self._quick_reader.read(call, carriable))
        except ModelError as error:
            failure = error
        except ApplicationError as error:
            spending.add(response.usage if response else None)
            raise await self._with_details(error, answer_so_far, call, spending) from None
        try:
            outcome = judge(
                failure,
                failures=call.round - call.silences,
                same=spending.times_failed(failure),
                may_be_too_long=call.may_be_too_long,
            )
        except ApplicationError as end:
            raise await self._with_details(end, answer_so_far, call, spending) from None
        if outcome.wait_seconds is None:
            return outcome
        return outcome.model_copy(
            update={
                "unfinished": await self._unfinished_answer(answer_so_far.snapshot(), call, max_bytes=call.max_bytes)
            }
        )

    async def _answer(
        self, call: ModelCall, request: ModelRequest, answer_so_far: GrowingAnswer, spending: Spending
    ) -> ModelResponse:
        with self._publishing(call, spending) as publish:

            def take(delta: Delta) -> None:
                answer_so_far.grow(delta.kind, delta.text)
                if publish:
                    publish(delta)

            try:
                return await self._model_client.answer(
                    call.model,
                    request,
                    number=call.request,
                    waits=call.round,
                    left_out=call.left_out,
                    may_be_too_long=call.may_be_too_long,
                    spending=spending,
                    on_delta=take,
                )
            except (ModelError, asyncio.CancelledError):
                activity.heartbeat(*self._details(answer_so_far, spending))  # now: the next attempt reads these details
                raise

    async def _with_details(
        self, failure: ApplicationError, answer_so_far: GrowingAnswer, call: ModelCall, spending: Spending
    ) -> ApplicationError:
        """Return the failure with the unfinished answer and the usage as details, since it ends the turn (SES-9)."""
        unfinished = await self._unfinished_answer(answer_so_far.snapshot(), call, max_bytes=call.max_bytes)
        details = spending.heartbeat_details(() if unfinished is None else (unfinished,))
        return with_details(failure, details)

    async def _unfinished_answer(
        self, answer_so_far: PartialOutput | None, call: ModelCall, *, max_bytes: int
    ) -> ModelResponse | None:
        """Return the unfinished answer in at most `max_bytes` of JSON; `None` if nothing was written."""
        parts = answer_so_far.parts if answer_so_far else ()
        answer = unfinished_answer(parts, model=call.model, max_bytes=ANSWER_BYTES)
        if answer is None:
            return None
        inline_bytes = min(call.inline_bytes, max_bytes // 4)
        try:
            async with asyncio.timeout(STORE_SECONDS):
                stored = await self._texts.keep_response(
                    current_session_id(), answer, inline_bytes, max_bytes=max_bytes
                )
        except TimeoutError:
            stored = cut_response(answer, answer_bytes=max_bytes)
        if _json_size(stored) <= max_bytes:
            return stored
        return stored.model_copy(update={"parts": [part for part in stored.parts if not isinstance(part, CallPart)]})

    @contextmanager
    def _publishing(self, call: ModelCall, spending: Spending) -> Iterator[Callable[[Delta], None] | None]:
        if not call.message_id:
            yield None
            return
        tag = make_partial_tag(call, attempt=activity.info().attempt)
        with AnswerPublisher(self._partials, current_session_id(), tag, behind=spending.last_report) as answer:
            yield answer.grow

    async def _storable(self, response: ModelResponse, call: ModelCall) -> ModelResponse:
        """Return the response with large texts by reference (SES-15, SES-16).

        Raises `ApplicationError` `too_large` if the response is still too large.
        """
        size = _json_size(response)
        if size > MAX_WHOLE_ANSWER_BYTES:
            raise _too_large(size, MAX_WHOLE_ANSWER_BYTES)
        if size <= min(call.inline_bytes, STATE_INLINE_BYTES):
            return response  # the usual case: no text in it can be large
        for inline_bytes in (call.inline_bytes, SMALL_TEXT_BYTES):
            stored = await self._texts.keep_response(
                current_session_id(), response, inline_bytes, max_bytes=call.max_bytes
            )
            size = _json_size(stored)
            if size <= call.max_bytes:
                return stored
        raise _too_large(size, call.max_bytes)


@asynccontextmanager
async def _bounded_bugs() -> AsyncIterator[None]:
    """Make an unexpected error final after `MAX_ATTEMPTS`, so that a bug of ours ends the turn.

    Vendors' failures are judged before. A worker that shuts down may return the call to Temporal any number of times.
    """
    try:
        yield
    except ApplicationError as error:
        if error.type == STOPPING or error.non_retryable or activity.info().attempt < MAX_ATTEMPTS:
            raise
        raise ApplicationError(error.message, *error.details, type=error.type, non_retryable=True) from error
    except Exception as error:
        if activity.info().attempt < MAX_ATTEMPTS:
            raise
        raise ApplicationError(str(error), type=type(error).__name__, non_retryable=True) from error


def seconds_to_last_heartbeat() -> float:
    """Return when to heartbeat with what was written, as Temporal ends the call soon after (SES-9).

    It is then in the failure: the call can't report anything once the turn's time is over. Infinite if it has no limit.
    """
    info = activity.info()
    if info.schedule_to_close_timeout is None:
        return math.inf
    limit = info.schedule_to_close_timeout.total_seconds()
    elapsed = (datetime.now(UTC) - info.scheduled_time).total_seconds()
    return limit - elapsed - min(1.0, limit / 4)


def _previous_attempt_output() -> PartialOutput | None:
    details = activity.info().heartbeat_details
    try:
        return PartialOutput.model_validate(details[0]) if details else None
    except ValidationError:
        return None  # the usage alone


def make_partial_tag(call: ModelCall, *, attempt: int) -> PartialTag:
    """Return the tag of an attempt's partial output. Attempts after a wait have higher numbers than those before.

    `step` is the number that the recorded step will have: the workflow counts both from 1, one for each answer.

    >>> call = ModelCall(turn=2, step=1, request=7, model="m", digest="d", message_id="a", round=1)
    >>> before = call.model_copy(update={"round": 0})
    >>> make_partial_tag(call, attempt=1).attempt > make_partial_tag(before, attempt=90_000).attempt
    True
    """
    attempts = call.round * ATTEMPTS_PER_WAIT + attempt
    return PartialTag(
        message_id=call.message_id, turn=call.turn, step=call.step, request=call.request, attempt=attempts
    )


def _is_empty(response: ModelResponse) -> bool:
    """Return whether the answer has neither text nor calls, although it was not cut."""
    return response.stop != "max_tokens" and not response.calls and not response.text.strip()


def _with_thinking_as_text(response: ModelResponse) -> ModelResponse:
    """Return an answer that is only thinking, also when asked again, with it as text: some servers put it there."""
    if not response.thinking.strip():
        return response
    text = RespondPart(kind="respond", text=response.thinking)
    return response.model_copy(update={"parts": [text], "state": None})


def _sanitized(response: ModelResponse) -> ModelResponse:
    """Return the response in a form that every later request can include.

    Arguments that are nested too deeply to be read back become text, and overlong names are cut; neither can be run.
    The vendor's own blocks are dropped if they are nested too deeply or the answer was cut: a call in them without a
    result would make the vendor reject every later request.
    """
    parts = list[Part]()
    for part in response.parts:
        if isinstance(part, CallPart):
            args = to_json(part.args).decode() if is_nested_over(part.args, MAX_NESTING) else part.args
            part = part.model_copy(update={"args": args, "name": part.name[:MAX_CALL_NAME_CHARS]})
        parts.append(part)
    state = response.state
    if state and (response.stop == "max_tokens" or is_nested_over(state.items, MAX_NESTING)):
        state = None
    return response.model_copy(update={"parts": parts, "state": state})


def _json_size(response: ModelResponse) -> int:
    return len(response.model_dump_json().encode())


def _too_large(size: int, most: int) -> ApplicationError:
    return ApplicationError(f"it has {size:,} bytes, {most:,} are allowed", type="too_large", non_retryable=True)


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
