"""The running turn in its session: every change of it, in the transcript and in what the model sees.

`running_turn.py` has the rules, which know nothing of a session.
"""

from collections.abc import Callable
from datetime import datetime

from turnkeeper.models.context.model_context import ModelContext
from turnkeeper.models.session.turn.running_turn import CarriedTurn, RunningTurn
from turnkeeper.models.transcript.conversation import ConversationMessage, TurnMetrics
from turnkeeper.models.transcript.model_call import ModelResponse, ProviderState
from turnkeeper.models.transcript.trajectory import ModelStep, ToolCall, Usage
from turnkeeper.models.transcript.transcript import Transcript


class CurrentTurn:
    """The turn that is being processed, if there is one: the newest of the transcript."""

    def __init__(
        self,
        carried: CarriedTurn | None,
        transcript: Transcript,
        context: ModelContext,
        *,
        on_change: Callable[[], int],
        on_usage: Callable[[Usage], None],
    ) -> None:
        """Go on with the turn that is `carried`.

        `on_change` raises the session's revision and returns it; `on_usage` counts for the session what was spent.
        """
        self._transcript = transcript
        self._context = context
        self._on_change = on_change
        self._on_usage = on_usage
        newest = transcript.newest
        is_running = newest is not None and not newest.is_complete
        self.value = carried.resume(newest) if carried and newest and is_running else None
        """The turn as it is now. Every change replaces it."""
        self.waiting_until: datetime | None = None
        """The model is not asked again before; `None`: nothing is waited for."""
        self.waiting_reason: str | None = None

    def running(self) -> RunningTurn:
        """Return the turn as it is now. Raises `RuntimeError` where none is running."""
        if self.value is None:
            raise RuntimeError("no turn is running")
        return self.value

    def begin(self, turn: RunningTurn) -> None:
        """Record a turn whose processing starts (SES-2), and let the model see its prompt."""
        self._transcript.record(turn.message)
        self.value = turn
        self._context.view.append_request(turn.message, number=self._transcript.count)

    def change(self, turn: RunningTurn) -> None:
        """Put the next version of the turn in its place; if its message has changed, clients are shown it."""
        if turn.message is not self.running().message:
            turn = turn.with_message(revision=self._on_change())
        self._replace(turn)

    def show(self) -> None:
        """Show the turn to clients again: what the model sees of it has changed."""
        self._replace(self.running().with_message(revision=self._on_change()))

    def end(self, message: ConversationMessage) -> None:
        """Leave the turn in the transcript as `message`, which has its outcome."""
        self._transcript.replace_newest(message.model_copy(update={"revision": self._on_change()}))
        self.value = None

    # ---- asking the model

    def note_request(self) -> None:
        self._context.note_request()
        view = self._context.view
        metrics = TurnMetrics(message_count=view.message_count, estimated_tokens=view.estimated_tokens)
        self.change(self.running().with_message(conversation_metrics=metrics))

    def wait_until(self, moment: datetime, *, reason: str) -> None:
        """Show that the model is not asked again before `moment`, and why, in a sentence; empty: unknown (AGT-9)."""
        self.waiting_until, self.waiting_reason = moment, reason or None
        self._on_change()

    def stop_waiting(self) -> None:
        self.waiting_until = self.waiting_reason = None
        self._on_change()

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
        """Record a model response as the next step, as `RunningTurn.with_response` says, and what it took."""
        turn = self.running().with_response(response, calls, now=now, interrupted=interrupted, spent=spent)
        self.change(turn)
        if response.usage:
            self._on_usage(response.usage)
        self._context.note_usage(response.usage)
        return turn.newest_step

    def show_step(self, *, state: ProviderState | None, segment: int | None = None) -> None:
        """Let the model see the newest step from now on; every call of it has a result.

        Its `state` belongs to the segment it was asked for in: in a later one it is no longer sent (CTX-4).
        """
        view = self._context.view
        if segment not in (None, view.segment):
            state = None
        view.append_step(self.running().message, number=self._transcript.count, state=state)

    def settle_step(self) -> None:
        """Let the model see the newest step, if it does not yet: every call of it has a result."""
        turn = self.running()
        if turn.unsettled:
            self.show_step(state=turn.state, segment=turn.segment)
            self.change(turn.with_settled_step())

    def _replace(self, turn: RunningTurn) -> None:
        self.value = turn
        self._transcript.replace_newest(turn.message)
