"""The next step of a turn: the activity `call_model`."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

from pydantic import ValidationError
from pydantic_core import to_json
from temporalio import activity
from temporalio.exceptions import ApplicationError

from turnkeeper.activities.failures import MOST_ATTEMPTS, judge
from turnkeeper.activities.heartbeat import heartbeating
from turnkeeper.activities.model_request.asking import Asking
from turnkeeper.activities.model_request.large_texts import LargeTexts
from turnkeeper.activities.model_request.partial_answer import GrowingAnswer, PartialAnswer
from turnkeeper.activities.model_request.spending import Spending
from turnkeeper.activities.own_workflow import STOPPING, WorkflowSilentError, own_session
from turnkeeper.activities.providers.protocol import Delta, ModelError
from turnkeeper.models.bounds import is_nested_over
from turnkeeper.models.limits import ANSWER_BYTES, MAX_NESTING, MAX_WHOLE_ANSWER_BYTES, SMALL_TEXT_BYTES
from turnkeeper.models.transcript.large_texts import STATE_INLINE_BYTES, cut_response
from turnkeeper.models.transcript.model_call import CallPart, ModelCall, ModelCallOutcome, ModelRequest, ModelResponse
from turnkeeper.models.transcript.partial_output import PartialOutput, PartialTag
from turnkeeper.models.transcript.unfinished import unfinished_answer
from turnkeeper.stores.partials.carrier import PartialCarrier

TRIES_A_ROUND = 1_000_000
"""More than a turn has time for."""

SILENCE_SECONDS = 1.0
"""Pause after the session itself has not answered."""

SILENCE_REASON = "The worker could not read the conversation from Temporal in time."

LONGEST_NAME = 256
"""Most characters of a call's name: four times what a tool may be called."""

SPENT_SECONDS = 1.0
"""Pause before a model is asked again by a turn whose budget was spent in vain: there it ends."""

HEARTBEAT_SECONDS = 0.5
"""A silent model's call is cancelled by the answer to a heartbeat, and the workflow waits for what was written for no
more than 1.5 s (SES-9)."""

STORE_SECONDS = 0.5
"""How long the store of large texts may take to keep an unfinished answer; after that the answer is cut."""

RETRIED_FAILURE_BYTES = 2_048
"""JSON bytes of an unfinished answer in a failure that may be retried: Temporal drops the details of one over 4 KB."""


class ModelActivities:
    """Activities that ask a model for a turn's next step."""

    def __init__(self, asking: Asking, texts: LargeTexts, partials: PartialCarrier) -> None:
        self._asking = asking
        self._texts = texts
        self._partials = partials

    @activity.defn
    async def call_model(self, call: ModelCall) -> ModelCallOutcome:
        """Return the model's whole answer to exactly the context that `call.digest` names (AGT-2).

        A second run sees the same context and asks the model again: it may be billed twice, it is recorded once.
        """
        # All of it, while what is shown of it is bounded.
        written = GrowingAnswer(tag_of(call, attempt=activity.info().attempt), most_bytes=MAX_WHOLE_ANSWER_BYTES)
        spending = self._asking.spending(call.model, unclear_answers=call.unclear_answers)
        async with heartbeating(lambda: self._details(spending), seconds=HEARTBEAT_SECONDS), _bounded_bugs():
            try:
                outcome = await self._outcome(call, written, spending)
                spent, unclear_answers = spending.total, spending.unclear_answers
                return outcome.model_copy(update={"spent": spent, "unclear_answers": unclear_answers})
            except asyncio.CancelledError:
                cancellation = activity.cancellation_details()
                # Any other cause (this worker shuts down, say) is worth another attempt, and Temporal makes it.
                if cancellation is None or not cancellation.cancel_requested:
                    raise
                spent = spending.total
                unfinished = await self._unfinished(written.snapshot(), call, max_bytes=call.max_bytes)
                return ModelCallOutcome(unfinished=unfinished, spent=spent)

    def _details(self, spending: Spending) -> Sequence[object]:
        """Return what a heartbeat carries: what is shown now, and behind it what was spent in vain."""
        return spending.behind(self._partials.heartbeat_details(own_session()))

    async def _outcome(self, call: ModelCall, written: GrowingAnswer, spending: Spending) -> ModelCallOutcome:
        if spending.is_over(tokens_left=call.tokens_left, cost_left=call.cost_left):
            # By a worker that died: what it had shown is all that anybody has of its answer.
            unfinished = await self._unfinished(_shown_before(), call, max_bytes=call.max_bytes)
            return ModelCallOutcome(wait_seconds=SPENT_SECONDS, unfinished=unfinished)
        try:
            request = await self._asking.context_of(call.request, digest=call.digest)
        except WorkflowSilentError:
            # No try of the model's: the workflow schedules anew, for as long as the turn has time.
            return ModelCallOutcome(wait_seconds=SILENCE_SECONDS, wait_reason=SILENCE_REASON)
        if request is None:
            return ModelCallOutcome(repeat="digest_mismatch")
        response: ModelResponse | None = None
        try:
            response = await self._answer(call, request, written, spending)
            if call.repeats_empty and _is_empty(response):
                spending.add(response.usage)
                return ModelCallOutcome(repeat="empty_answer")
            return ModelCallOutcome(response=await self._storable(_without_traps(response), call))
        except ModelError as error:
            failure = error
        except ApplicationError as too_large:
            spending.add(response.usage if response else None)
            raise await self._with_unfinished(too_large, written, call, spending) from None
        try:
            outcome = judge(
                failure,
                attempt=activity.info().attempt,
                rounds=call.round - call.silences,
                unclear=spending.unclear_answers,
            )
        except ApplicationError as judgement:
            is_over = spending.is_over(tokens_left=call.tokens_left, cost_left=call.cost_left)
            if judgement.non_retryable or not is_over:
                raise await self._with_unfinished(judgement, written, call, spending) from None
            # No further attempt: the workflow looks at the turn's budget before it asks again.
            outcome = ModelCallOutcome(wait_seconds=SPENT_SECONDS)
        if outcome.wait_seconds is None:
            return outcome
        return outcome.model_copy(
            update={"unfinished": await self._unfinished(written.snapshot(), call, max_bytes=call.max_bytes)}
        )

    async def _answer(
        self, call: ModelCall, request: ModelRequest, written: GrowingAnswer, spending: Spending
    ) -> ModelResponse:
        """Return the model's whole answer; show it while it is written. Raises `ModelError`."""
        with self._shown(call, spending) as show:

            def take(delta: Delta) -> None:
                written.grow(delta.kind, delta.text)
                if show:
                    show(delta)

            try:
                return await self._asking.answer(
                    call.model, request, number=call.request, rounds=call.round, spending=spending, on_delta=take
                )
            except (ModelError, asyncio.CancelledError):
                activity.heartbeat(*self._details(spending))  # while it is shown: the next attempt is told of it
                raise

    async def _with_unfinished(
        self, failure: ApplicationError, written: GrowingAnswer, call: ModelCall, spending: Spending
    ) -> ApplicationError:
        """Return the failure with what was written, and what was spent, as details: it may end the turn (SES-9)."""
        is_final = failure.non_retryable or activity.info().attempt >= MOST_ATTEMPTS
        max_bytes = call.max_bytes if is_final else RETRIED_FAILURE_BYTES
        unfinished = await self._unfinished(written.snapshot(), call, max_bytes=max_bytes)
        details = spending.behind(() if unfinished is None else (unfinished,))
        if not details:
            return failure
        return ApplicationError(
            failure.message,
            *details,
            type=failure.type,
            non_retryable=failure.non_retryable,
            next_retry_delay=failure.next_retry_delay,
        )

    async def _unfinished(
        self, written: PartialOutput | None, call: ModelCall, *, max_bytes: int
    ) -> ModelResponse | None:
        """Return what was written as the session can hold it, in `max_bytes` of JSON; `None` where nothing was."""
        parts = written.parts if written else ()
        answer = unfinished_answer(parts, model=call.model, max_bytes=ANSWER_BYTES)
        if answer is None:
            return None
        inline_bytes = min(call.inline_bytes, max_bytes // 4)
        try:
            async with asyncio.timeout(STORE_SECONDS):
                kept = await self._texts.keep_response(own_session(), answer, inline_bytes, max_bytes=max_bytes)
        except TimeoutError:
            kept = cut_response(answer, answer_bytes=max_bytes)
        if _json_size(kept) <= max_bytes:
            return kept
        return kept.model_copy(update={"parts": [part for part in kept.parts if not isinstance(part, CallPart)]})

    @contextmanager
    def _shown(self, call: ModelCall, spending: Spending) -> Iterator[Callable[[Delta], None] | None]:
        if not call.message_id:
            yield None
            return
        tag = tag_of(call, attempt=activity.info().attempt)
        with PartialAnswer(self._partials, own_session(), tag, behind=spending.last_report) as answer:
            yield answer.grow

    async def _storable(self, response: ModelResponse, call: ModelCall) -> ModelResponse:
        """Return the response as the session can hold it: large texts by reference (SES-15, SES-16).

        Raises `ApplicationError` `too_large` if it is too large even so.
        """
        size = _json_size(response)
        if size > MAX_WHOLE_ANSWER_BYTES:
            raise _too_large(size, MAX_WHOLE_ANSWER_BYTES)
        if size <= min(call.inline_bytes, STATE_INLINE_BYTES):
            return response  # as nearly always: nothing in it can be large
        for inline_bytes in (call.inline_bytes, SMALL_TEXT_BYTES):
            kept = await self._texts.keep_response(own_session(), response, inline_bytes, max_bytes=call.max_bytes)
            size = _json_size(kept)
            if size <= call.max_bytes:
                return kept
        raise _too_large(size, call.max_bytes)


@asynccontextmanager
async def _bounded_bugs() -> AsyncIterator[None]:
    """End the turn at an error nobody foresaw after `MOST_ATTEMPTS`; a worker that dies raises none.

    A vendor's failures are judged before, and are few; a worker that stops gives the call back, as often as it takes.
    """
    try:
        yield
    except ApplicationError as error:
        if error.type == STOPPING or error.non_retryable or activity.info().attempt < MOST_ATTEMPTS:
            raise
        raise ApplicationError(error.message, *error.details, type=error.type, non_retryable=True) from error
    except Exception as error:
        if activity.info().attempt < MOST_ATTEMPTS:
            raise
        raise ApplicationError(str(error), type=type(error).__name__, non_retryable=True) from error


def _shown_before() -> PartialOutput | None:
    """Return what the attempt before this one had shown; `None` where its heartbeats do not say."""
    details = activity.info().heartbeat_details
    try:
        return PartialOutput.model_validate(details[0]) if details else None
    except ValidationError:
        return None  # nothing was shown, or by another release


def tag_of(call: ModelCall, *, attempt: int) -> PartialTag:
    """Return what the partial output of a try is known by; each try after a wait counts on beyond those before it.

    `step` is the number that the recorded step will have: the workflow counts both from 1, one for each answer.

    >>> call = ModelCall(turn=2, step=1, request=7, model="m", digest="d", message_id="a", round=1)
    >>> tag_of(call, attempt=1).attempt > tag_of(call.model_copy(update={"round": 0}), attempt=90_000).attempt
    True
    """
    tries = call.round * TRIES_A_ROUND + attempt
    return PartialTag(message_id=call.message_id, turn=call.turn, step=call.step, request=call.request, attempt=tries)


def _is_empty(response: ModelResponse) -> bool:
    """Return whether the model said nothing and called nothing, though it was not cut."""
    return response.stop != "max_tokens" and not response.calls and not response.text.strip()


def _without_traps(response: ModelResponse) -> ModelResponse:
    """Return the response as every later request can hold it.

    Arguments that are nested too deeply to be read back become text, and names no tool has are cut: nothing is run by
    either. The vendor's own blocks go without a trace where they are nested like that, and where the answer was cut: a
    call in them that was not taken up would be an orphan, which makes vendors refuse every later request.
    """
    parts = [_carriable(part) if isinstance(part, CallPart) else part for part in response.parts]
    state = response.state
    if state and (response.stop == "max_tokens" or is_nested_over(state.items, MAX_NESTING)):
        state = None
    return response.model_copy(update={"parts": parts, "state": state})


def _carriable(call: CallPart) -> CallPart:
    args = to_json(call.args).decode() if is_nested_over(call.args, MAX_NESTING) else call.args
    return call.model_copy(update={"args": args, "name": call.name[:LONGEST_NAME]})


def _json_size(response: ModelResponse) -> int:
    return len(response.model_dump_json().encode())


def _too_large(size: int, most: int) -> ApplicationError:
    return ApplicationError(f"it has {size:,} bytes, {most:,} are allowed", type="too_large", non_retryable=True)
