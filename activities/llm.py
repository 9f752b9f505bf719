"""The next step of a turn: the activity `call_model`."""

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
from activities.partial_answer import PartialAnswer
from activities.providers.protocol import Delta, ModelError
from models.context.bounds import is_nested_over
from models.large_texts import STATE_INLINE_BYTES
from models.limits import LARGEST_ANSWER_BYTES, MOST_LEVELS, SMALL_TEXT_BYTES
from models.model_call import CallPart, ModelCall, ModelCallOutcome, ModelRequest, ModelResponse
from models.partial_output import PartialTag
from stores.partials.carrier import PartialCarrier

TRIES_A_ROUND = 1_000_000
"""More than a turn has time for."""

SILENCE_SECONDS = 1.0
"""Pause after the session itself has not answered."""

LONGEST_NAME = 256
"""Most characters of a call's name: four times what a tool may be called."""


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
        async with heartbeating(lambda: self._partials.heartbeat_details(own_session())), _bounded_bugs():
            try:
                request = await self._asking.context_of(call.request, digest=call.digest)
            except WorkflowSilentError:
                # No try of the model's: the workflow schedules anew, for as long as the turn has time.
                return ModelCallOutcome(wait_seconds=SILENCE_SECONDS)
            if request is None:
                return ModelCallOutcome(repeat="digest_mismatch")
            try:
                response = await self._answer(call, request)
            except ModelError as error:
                return judge(error, attempt=activity.info().attempt, rounds=call.round)
            return ModelCallOutcome(response=await self._storable(_without_traps(response), call))

    async def _answer(self, call: ModelCall, request: ModelRequest) -> ModelResponse:
        """Return the model's whole answer; show it while it is written. Raises `ModelError`."""
        with self._shown(call) as on_delta:
            return await self._asking.answer(
                call.model, request, number=call.request, rounds=call.round, on_delta=on_delta
            )

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
        raise ApplicationError(error.message, type=error.type, non_retryable=True) from error
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
