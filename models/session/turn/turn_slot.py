"""The running turn in its session: applies each change to the transcript and the model view.

The rules of a turn are in `running_turn.py`.
"""

from collections.abc import Callable
from datetime import datetime

from turnkeeper.models.context.model_context import ModelContext
from turnkeeper.models.session.turn.running_turn import CarriedTurn, RunningTurn
from turnkeeper.models.transcript.conversation import ConversationMessage, ModelStep, ToolCall, TurnMetrics, Usage
from turnkeeper.models.transcript.model_call import ModelResponse, ProviderState
from turnkeeper.models.transcript.transcript import Transcript, carried_size


class TurnSlot:
    """Holds the running turn, if there is one: the newest of the transcript."""

    def __init__(
        self,
        carried: CarriedTurn | None,
        transcript: Transcript,
        context: ModelContext,
        *,
        raise_revision: Callable[[], int],
        on_usage: Callable[[Usage], None],
    ) -> None:
        """Continue the `carried` turn.

        `raise_revision` returns the session's new revision; `on_usage` adds to the session's usage.
        """
        self._transcript = transcript
        self._context = context
        self._raise_revision = raise_revision
        self._on_usage = on_usage
        newest = transcript.newest
        is_running = newest is not None and not newest.is_complete
        self.turn = carried.resume(newest) if carried and newest and is_running else None
        """The turn's present version; replaced with every change."""
        self.waiting_until: datetime | None = None
        """When the model is asked again; `None`: not waiting."""
        self.waiting_reason: str | None = None
        """Why the model is asked again, then or now."""

    def running(self) -> RunningTurn:
        """Return `turn`. Raises `RuntimeError` if it is `None`."""
        if self.turn is None:
            raise RuntimeError("no turn is running")
        return self.turn

    def begin(self, turn: RunningTurn) -> None:
        """Record a turn (SES-2), and append its prompt to the model view.

        If it retries the turn before it, and that has no answer, it takes its place there (CTX-17).
        """
        newest = self._transcript.newest
        self._transcript.record(turn.message)
        self.turn = turn
        is_retry = newest is not None and newest.is_error and newest.id == turn.message.retries
        self._context.begin_turn(turn.message, retried=newest if is_retry else None)

    def replace_prompt(self, text: str) -> None:
        """Replace the text of a turn's prompt, before the first model request with it."""
        turn = self.running().with_message(user_message=text)
        self.change(turn.model_copy(update={"carried_bytes": carried_size(turn.message)}))
        self._context.view.replace_request(self.running().message)

    def change(self, turn: RunningTurn) -> None:
        """Replace the turn with its next version; a changed message gets a new revision."""
        if turn.message is not self.running().message:
            turn = turn.with_message(revision=self._raise_revision())
        self._replace(turn)

    def publish(self) -> None:
        """Give the turn a new revision, since the model's view of it has changed."""
        self._replace(self.running().with_message(revision=self._raise_revision()))

    def end(self, message: ConversationMessage) -> None:
        """End the turn; `message` is the turn with its outcome."""
        ended = message.model_copy(update={"revision": self._raise_revision()})
        self._transcript.replace_newest(ended)
        self._context.end_turn(ended)
        self.turn = None

    # ---- model requests

    def note_request(self) -> None:
        self._context.note_request()
        view = self._context.view
        metrics = TurnMetrics(message_count=view.message_count, estimated_tokens=view.estimated_tokens)
        self.change(self.running().with_message(conversation_metrics=metrics))

    def wait_until(self, moment: datetime, *, reason: str) -> None:
        """Publish that the model is asked again at `moment`, and why, in a sentence; empty: unknown (AGT-9)."""
        self.waiting_until, self.waiting_reason = moment, reason or None
        self._raise_revision()

    def show_retry(self, reason: str) -> None:
        """Publish why the model is asked again now, until `stop_waiting` (AGT-9)."""
        self.waiting_reason = reason or None
        self._raise_revision()

    def stop_waiting(self) -> None:
        self.waiting_until = self.waiting_reason = None
        self._raise_revision()

    def add_usage(self, usage: Usage | None) -> None:
        if usage:
            self._on_usage(usage)
            self._replace(self.running().with_usage(usage))

    # ---- its steps

    def add_response(
        self,
        response: ModelResponse,
        calls: list[ToolCall],
        *,
        now: datetime,
        interrupted: bool = False,
        spent: Usage | None = None,
    ) -> ModelStep:
        """Record a model response as the next step, see `RunningTurn.with_response`, and its usage."""
        turn = self.running().with_response(response, calls, now=now, interrupted=interrupted, spent=spent)
        self.change(turn)
        if response.usage:
            self._on_usage(response.usage)
        self._context.note_usage(response.usage)
        return turn.newest_step

    def append_step_to_view(self, *, state: ProviderState | None, segment: int | None = None) -> None:
        """Append the newest step to the model view; every call of it has a result.

        Its `state` belongs to the segment of its request: in a later one it is no longer sent (CTX-4).
        """
        view = self._context.view
        if segment not in (None, view.segment):
            state = None
        view.append_step(self.running().message, number=self._transcript.count, state=state)

    def settle_step(self) -> None:
        """Append the newest step to the model view, unless it is there; every call of it has a result."""
        turn = self.running()
        if turn.unsettled:
            self.append_step_to_view(state=turn.state, segment=turn.segment)
            self.change(turn.model_copy(update={"unsettled": False, "state": None, "segment": None}))

    def _replace(self, turn: RunningTurn) -> None:
        self.turn = turn
        self._transcript.replace_newest(turn.message)
