"""The next step of a turn: the activity `call_model`."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from pydantic_core import to_json
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.asking import Asking
from activities.failures import MOST_ATTEMPTS, judge
from activities.heartbeat import heartbeating
from activities.large_texts import LargeTexts
from activities.own_ids import own_session
from activities.own_workflow import STOPPING, WorkflowSilentError
from activities.partial_answer import GrowingAnswer, PartialAnswer
from activities.providers.protocol import Delta, ModelError
from models.context.bounds import is_nested_over
from models.large_texts import STATE_INLINE_BYTES, cut_response
from models.limits import ANSWER_BYTES, LARGEST_ANSWER_BYTES, MOST_LEVELS, SMALL_TEXT_BYTES
from models.model_call import CallPart, ModelCall, ModelCallOutcome, ModelRequest, ModelResponse
from models.partial_output import PartialTag
from models.unfinished import unfinished_answer
from stores.partials.carrier import PartialCarrier

TRIES_A_ROUND = 1_000_000
"""More than a turn has time for."""

SILENCE_SECONDS = 1.0
"""Pause after the session itself has not answered."""

LONGEST_NAME = 256
"""Most characters of a call's name: four times what a tool may be called."""

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
        """Ask models by way of `asking`; keep large answers in `texts`, show those being written by `partials`."""
        self._asking = asking
        self._texts = texts
        self._partials = partials

    @activity.defn
    async def call_model(self, call: ModelCall) -> ModelCallOutcome:
        """Return the model's whole answer to exactly the context that `call.digest` names (AGT-2).

        A second run sees the same context and asks the model again: it may be billed twice, it is recorded once.
        """
        # All of it, while what is shown of it is bounded.
        written = GrowingAnswer(tag_of(call, attempt=activity.info().attempt), most_bytes=LARGEST_ANSWER_BYTES)
        beating = heartbeating(lambda: self._partials.heartbeat_details(own_session()), seconds=HEARTBEAT_SECONDS)
        async with beating, _bounded_bugs():
            try:
                return await self._outcome(call, written)
            except asyncio.CancelledError:
                cancellation = activity.cancellation_details()
                # Any other cause (this worker shuts down, say) is worth another attempt, and Temporal makes it.
                if cancellation is None or not cancellation.cancel_requested:
                    raise
                return ModelCallOutcome(unfinished=await self._unfinished(written, call, max_bytes=call.max_bytes))

    async def _outcome(self, call: ModelCall, written: GrowingAnswer) -> ModelCallOutcome:
        try:
            request = await self._asking.context_of(call.request, digest=call.digest)
        except WorkflowSilentError:
            # No try of the model's: the workflow schedules anew, for as long as the turn has time.
            return ModelCallOutcome(wait_seconds=SILENCE_SECONDS)
        if request is None:
            return ModelCallOutcome(repeat="digest_mismatch")
        try:
            response = await self._answer(call, request, written)
            return ModelCallOutcome(response=await self._storable(_without_traps(response), call))
        except ModelError as error:
            failure = error
        except ApplicationError as too_large:
            raise await self._with_unfinished(too_large, written, call) from None
        try:
            outcome = judge(failure, attempt=activity.info().attempt, rounds=call.round)
        except ApplicationError as judgement:
            raise await self._with_unfinished(judgement, written, call) from None
        if outcome.wait_seconds is None:
            return outcome
        return outcome.model_copy(
            update={"unfinished": await self._unfinished(written, call, max_bytes=call.max_bytes)}
        )

    async def _answer(self, call: ModelCall, request: ModelRequest, written: GrowingAnswer) -> ModelResponse:
        """Return the model's whole answer; show it while it is written. Raises `ModelError`."""
        with self._shown(call) as show:

            def take(delta: Delta) -> None:
                written.grow(delta.kind, delta.text)
                if show:
                    show(delta)

            return await self._asking.answer(call.model, request, number=call.request, rounds=call.round, on_delta=take)

    async def _with_unfinished(
        self, failure: ApplicationError, written: GrowingAnswer, call: ModelCall
    ) -> ApplicationError:
        """Return the failure with what was written as its only detail, for the case that it ends the turn (SES-9)."""
        is_final = failure.non_retryable or activity.info().attempt >= MOST_ATTEMPTS
        max_bytes = call.max_bytes if is_final else RETRIED_FAILURE_BYTES
        unfinished = await self._unfinished(written, call, max_bytes=max_bytes)
        if unfinished is None:
            return failure
        return ApplicationError(
            failure.message,
            unfinished,
            type=failure.type,
            non_retryable=failure.non_retryable,
            next_retry_delay=failure.next_retry_delay,
        )

    async def _unfinished(self, written: GrowingAnswer, call: ModelCall, *, max_bytes: int) -> ModelResponse | None:
        """Return what was written as the session can hold it, in `max_bytes` of JSON; `None` where nothing was."""
        answer = unfinished_answer(written.snapshot().parts, model=call.model, max_bytes=ANSWER_BYTES)
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
    def _shown(self, call: ModelCall) -> Iterator[Callable[[Delta], None] | None]:
        if not call.message_id:
            yield None
            return
        with PartialAnswer(self._partials, own_session(), tag_of(call, attempt=activity.info().attempt)) as answer:
            yield answer.grow

    async def _storable(self, response: ModelResponse, call: ModelCall) -> ModelResponse:
        """Return the response as the session can hold it: large texts by reference (SES-15, SES-16).

        Raises `ApplicationError` `too_large` if it is too large even so.
        """
        size = _json_size(response)
        if size > LARGEST_ANSWER_BYTES:
            raise _too_large(size, LARGEST_ANSWER_BYTES)
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


def tag_of(call: ModelCall, *, attempt: int) -> PartialTag:
    """Return what the partial output of a try is known by; each try after a wait counts on beyond those before it.

    `step` is the number that the recorded step will have: the workflow counts both from 1, one for each answer.

    >>> call = ModelCall(turn=2, step=1, request=7, model="m", digest="d", message_id="a", round=1)
    >>> tag_of(call, attempt=1).attempt > tag_of(call.model_copy(update={"round": 0}), attempt=90_000).attempt
    True
    """
    tries = call.round * TRIES_A_ROUND + attempt
    return PartialTag(message_id=call.message_id, turn=call.turn, step=call.step, request=call.request, attempt=tries)


def _without_traps(response: ModelResponse) -> ModelResponse:
    """Return the response as every later request can hold it.

    Arguments that are nested too deeply to be read back become text, and names no tool has are cut: nothing is run by
    either. The vendor's own blocks
    go without a trace where they are nested like that, and where the answer was cut: a call in them that was not taken
    up would be an orphan, which makes vendors refuse every later request.
    """
    parts = [_carriable(part) if isinstance(part, CallPart) else part for part in response.parts]
    state = response.state
    if state and (response.stop == "max_tokens" or is_nested_over(state.items, MOST_LEVELS)):
        state = None
    return response.model_copy(update={"parts": parts, "state": state})


def _carriable(call: CallPart) -> CallPart:
    args = to_json(call.args).decode() if is_nested_over(call.args, MOST_LEVELS) else call.args
    return call.model_copy(update={"args": args, "name": call.name[:LONGEST_NAME]})


def _json_size(response: ModelResponse) -> int:
    return len(response.model_dump_json().encode())


def _too_large(size: int, most: int) -> ApplicationError:
    return ApplicationError(f"it has {size:,} bytes, {most:,} are allowed", type="too_large", non_retryable=True)
