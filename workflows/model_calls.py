"""Asking the model within a turn: the request, its repetitions, and the waiting in between (AGT-2, AGT-9)."""

from dataclasses import dataclass
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from activities.hand_over import REQUESTS, HandOverKey
    from activities.llm import ModelActivities
    from models.errors import ErrorType
    from models.model_call import ModelCall, ModelCallOutcome, ModelRequest, ModelRequestPage, ModelResponse
    from workflows import activity_options
    from workflows.turn_frame import Frame, TurnFailed

LEAST_ANSWER_BYTES = 2_000
"""What an answer may have however full the turn is."""

_REPEATED_ONCE = {"stale_reasoning", "digest_mismatch"}
"""What a changed request is tried against, once for each model call (AGT-9)."""

_NOT_REPEATED: dict[str, tuple[ErrorType, str]] = {
    "context_too_long": ("context_too_long", "The conversation is too long for the model."),
    "stale_reasoning": ("bad_request", "The model's provider refused its own reasoning, and the request without it."),
    "digest_mismatch": ("internal", "The model's context could not be handed over unchanged; see the worker's log."),
}


@dataclass(frozen=True)
class OpenRequest:
    """A model request that is not answered yet: kept unchanged, whatever happens to the view meanwhile (AGT-2)."""

    number: int
    request: ModelRequest
    digest: str
    message_count: int
    estimated_tokens: int

    def page(self, offset: int, *, page_bytes: int) -> ModelRequestPage:
        """Return the messages from `offset` on that fit in a page."""
        end, room = offset, page_bytes
        while end < len(self.request.messages):
            room -= len(self.request.messages[end].model_dump_json().encode())
            if room < 0 and end > offset:
                break
            end += 1
        return ModelRequestPage(
            head=self.request.head if offset == 0 else None,
            messages=self.request.messages[offset:end],
            next_offset=end if end < len(self.request.messages) else None,
            digest=self.digest,
        )


class ModelCalls:
    """The model calls of a turn."""

    def __init__(self, frame: Frame) -> None:
        """Ask for the turn of `frame`."""
        self._frame = frame
        self._session = frame.session
        self.open_request: OpenRequest | None = None

    async def ask(self) -> ModelResponse:
        """Return the model's answer, waiting and repeating as `activities/failures.py` says (AGT-9)."""
        rounds, repeated = 0, set[str]()
        self._open_new_request()
        while True:
            outcome = await self._call_model(rounds)
            while outcome.wait_seconds is not None:
                await self._wait(outcome.wait_seconds)
                rounds += 1
                outcome = await self._call_model(rounds)
            if outcome.response is not None:
                self.close_request()
                return outcome.response
            if outcome.repeat in repeated or outcome.repeat not in _REPEATED_ONCE:
                raise TurnFailed(*_NOT_REPEATED[outcome.repeat or "digest_mismatch"])
            repeated.add(outcome.repeat)
            if outcome.repeat == "stale_reasoning":
                self._session.view.open_segment()
            self._open_new_request()

    def close_request(self) -> None:
        """Keep the request no longer."""
        if self.open_request and not workflow.unsafe.is_replaying():
            REQUESTS.discard(_key(self.open_request))
        self.open_request = None

    def _open_new_request(self) -> None:
        session, history = self._session, self._frame.terms.history
        self.close_request()
        eviction = session.make_room(history)
        if eviction:
            workflow.logger.info(
                "Trimmed conversation: %d messages removed, %d kept (~%d tokens)",
                eviction.evicted,
                eviction.preserved,
                eviction.estimated_tokens,
            )
        if session.approaches_limit(history):
            workflow.logger.warning(
                "Conversation approaching limit (%d/%d messages)", session.view.message_count, history.max_messages
            )
        self.open_request = OpenRequest(
            number=session.open_request(),
            request=session.view.request(session.head),
            digest=session.view.digest(session.head),
            message_count=session.view.message_count,
            estimated_tokens=session.view.estimated_tokens,
        )

    async def _call_model(self, rounds: int) -> ModelCallOutcome:
        frame, session = self._frame, self._session
        frame.stop_if_told()
        opened = self._opened()
        self._hand_over(opened)
        try:
            return await workflow.execute_activity_method(
                ModelActivities.call_model,
                ModelCall(
                    turn=session.turn_count,
                    step=frame.steps,
                    request=opened.number,
                    model=frame.model,
                    digest=opened.digest,
                    round=rounds,
                    inline_bytes=frame.limits.inline_bytes(session.turn_bytes),
                    max_bytes=self._most_bytes(),
                ),
                start_to_close_timeout=timedelta(seconds=frame.limits.model_timeout),
                schedule_to_close_timeout=frame.remaining(),
                heartbeat_timeout=activity_options.HEARTBEAT_TIMEOUT,
                retry_policy=activity_options.MODEL_RETRIES,
                summary=self._summary(opened),
            )
        except ActivityError as error:
            raise frame.failure(error) from error

    def _most_bytes(self) -> int:
        """Leave as much of the turn's room for the results of the calls as for the answer that asks for them."""
        limits, held = self._frame.limits, self._session.turn_bytes
        return min(limits.answer_bytes, max(LEAST_ANSWER_BYTES, (self._session.turn_cap(limits) - held) // 2))

    def _hand_over(self, opened: OpenRequest) -> None:
        # Written only, and not while replaying: nothing the workflow does may depend on this process (AGT-2).
        if not workflow.unsafe.is_replaying():
            REQUESTS.put(_key(opened), opened.request, size=4 * opened.estimated_tokens)

    def _opened(self) -> OpenRequest:
        if self.open_request is None:
            raise RuntimeError("no model request is open")
        return self.open_request

    def _summary(self, opened: OpenRequest) -> str:
        model = self._frame.model
        return (
            f"{model.partition(':')[2] or model} · turn {self._session.turn_count} · step {self._frame.steps} · "
            f"{opened.message_count} messages, ~{_short(opened.estimated_tokens)} tokens"
        )

    async def _wait(self, seconds: float) -> None:
        """Sleep until the model may be asked again; shown as `waiting_retry` (AGT-9)."""
        until = workflow.now() + timedelta(seconds=seconds)
        if until >= self._frame.terms.deadline:
            raise self._frame.out_of_time()
        self._frame.stop_if_told()
        self._session.wait_until(until)
        self._frame.on_change()
        try:
            await workflow.sleep(seconds, summary=f"{self._frame.model} asked for {seconds:g} s of patience")
        finally:
            # Also run when this worker forgets the session: nothing of Temporal may be used here.
            self._session.wait_until(None)
        self._frame.on_change()


def _key(opened: OpenRequest) -> HandOverKey:
    return HandOverKey(workflow.info().run_id, opened.number, opened.digest)


def _short(tokens: int) -> str:
    return str(tokens) if tokens < 1000 else f"{tokens / 1000:.1f}k"
