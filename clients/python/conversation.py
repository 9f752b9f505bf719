r"""A client's copy of a conversation, updated by the rules of SES-12, without any I/O.

The gateway returns what is new since a cursor; the copy applies it and has the next cursor:

    reset     drop all turns
    updated   replace the turns with those ids
    new       append the turns

The copy is always the end of the transcript, without gaps. Partial output is separate: it is visible only until the
final step replaces it.

    >>> from datetime import UTC, datetime
    >>> from turnkeeper.models.transcript.conversation import ConversationMessage
    >>> turn = ConversationMessage(
    ...     id="p1", user_message="Hi", timestamp=datetime(2026, 1, 1, tzinfo=UTC),
    ...     user_timestamp=datetime(2026, 1, 1, tzinfo=UTC), revision=2)
    >>> def update(**fields):
    ...     state = dict(is_processing=True, current_message_id="p1", last_seen_message_id="p1", queue_length=0)
    ...     rest = dict(new_messages=[], updated_messages=[], reset=False, has_more=False, status="processing")
    ...     return ConversationUpdate(**{**state, **rest, **fields})
    >>> copy = Conversation()
    >>> copy.apply(update(new_messages=[turn], revision=2))
    >>> copy.cursor, copy.running_turn.id
    (Cursor(last_seen_message_id='p1', since_revision=2), 'p1')

    >>> from turnkeeper.models.transcript.partial_output import GrownPart
    >>> tag = dict(message_id="p1", turn=1, step=1, request=1, attempt=1)
    >>> copy.apply_partial(PartialGrowth(**tag, fresh=True, parts=[GrownPart(index=0, kind="respond", text="Hel")]))
    >>> copy.apply_partial(PartialGrowth(**tag, fresh=False, parts=[GrownPart(index=0, kind="respond", text="lo")]))
    >>> [part.text for part in copy.partial_parts]
    ['Hello']

    >>> answered = turn.model_copy(update={"agent_message": "Hello!", "status": "completed", "revision": 3})
    >>> copy.apply(update(updated_messages=[answered], revision=3, current_message_id=None, is_processing=False))
    >>> copy.turns[0].agent_message, copy.running_turn, copy.partial_parts
    ('Hello!', None, [])
"""

from collections.abc import Sequence

from turnkeeper.models.session.queue.prompts import QueuedPrompt
from turnkeeper.models.transcript.conversation import (
    FINAL_STATUSES,
    ConversationMessage,
    ConversationState,
    ConversationUpdate,
    SessionStatus,
)
from turnkeeper.models.transcript.partial_output import (
    CallProgress,
    PartialGrowth,
    PartialOutput,
    PartialPart,
    with_growth,
    with_progress,
)
from turnkeeper.models.transcript.task_view import SubTask
from turnkeeper.models.transcript.trajectory import ModelStep, ToolCall
from turnkeeper.models.wire import Frozen, UtcDatetime


class Cursor(Frozen):
    """A client's position in a session, which it sends to get what is new. Both are null before the first update."""

    last_seen_message_id: str | None = None
    since_revision: int | None = None


class Conversation:
    """One session, as its client knows it. `turns` are oldest first; do not modify them."""

    def __init__(self) -> None:
        self.turns: list[ConversationMessage] = []
        self.waiting: list[QueuedPrompt] = []
        self.progress: dict[str, CallProgress] = {}
        """How far tool calls are, by id; of no interest once a call has its result."""
        self._latest: ConversationUpdate | None = None
        self._partial: PartialOutput | None = None

    # ---- changes

    def apply(self, update: ConversationUpdate) -> None:
        if update.reset:
            self.turns = []
        changed = {turn.id: turn for turn in update.updated_messages}
        self.turns = [changed.get(turn.id, turn) for turn in self.turns] + update.new_messages
        self._latest = update
        self._clear_empty_queue()
        if self._partial and self._is_superseded(self._partial):
            self._partial = None

    def open_at(self, page: ConversationState) -> None:
        """Start from the newest page of the transcript, without its older turns."""
        self.turns = list(page.messages)
        self._partial = None
        state = {name: getattr(page, name) for name in ConversationUpdate.model_fields if hasattr(page, name)}
        state["tasks"] = page.session.tasks
        no_changes = {"new_messages": [], "updated_messages": [], "reset": False, "has_more": False}
        last = page.messages[-1].id if page.messages else None
        self._latest = ConversationUpdate(**{**state, **no_changes, "last_seen_message_id": last})
        self._clear_empty_queue()

    def apply_queue(self, waiting: Sequence[QueuedPrompt]) -> None:
        self.waiting = list(waiting)

    def apply_partial(self, growth: PartialGrowth) -> None:
        """Append partial output; growth of an unknown answer is ignored."""
        partial = with_growth(self._partial, growth)
        self._partial = None if partial and self._is_superseded(partial) else partial

    def apply_progress(self, progress: CallProgress) -> None:
        self.progress = with_progress(self.progress, progress)

    # ---- state

    @property
    def cursor(self) -> Cursor:
        if self._latest is None:
            return Cursor()
        return Cursor(
            last_seen_message_id=self._latest.last_seen_message_id or None, since_revision=self._latest.revision
        )

    @property
    def has_more(self) -> bool:
        return self._latest is not None and self._latest.has_more

    @property
    def status(self) -> SessionStatus | None:
        """The session's status; None before the first update."""
        return self._latest.status if self._latest else None

    @property
    def is_over(self) -> bool:
        """Whether the session is closed, so that no events follow."""
        return self.status in FINAL_STATUSES

    @property
    def is_processing(self) -> bool:
        return self._latest is not None and self._latest.is_processing

    @property
    def tasks(self) -> list[SubTask]:
        """The tasks that the session has started, oldest first."""
        return self._latest.tasks if self._latest else []

    @property
    def waiting_until(self) -> UtcDatetime | None:
        """With status `waiting_retry`: when the model is called again."""
        return self._latest.waiting_until if self._latest else None

    @property
    def waiting_reason(self) -> str | None:
        """Why the model is called again, after the wait of `waiting_retry` or now, as a sentence."""
        return self._latest.waiting_reason if self._latest else None

    @property
    def queue_length(self) -> int:
        return self._latest.queue_length if self._latest else 0

    @property
    def revision(self) -> int:
        """The session's revision as of the last update; 0 before the first one."""
        return self._latest.revision if self._latest else 0

    def find(self, message_id: str) -> ConversationMessage | None:
        # From the end, since it is nearly always one of the newest.
        return next((turn for turn in reversed(self.turns) if turn.id == message_id), None)

    @property
    def running_turn(self) -> ConversationMessage | None:
        """The running turn; None also if it has not arrived yet."""
        current = self._latest.current_message_id if self._latest else None
        turn = self.find(current) if current else None
        return turn if turn and not turn.is_complete else None

    @property
    def awaiting_calls(self) -> list[ToolCall]:
        """The calls that wait for approval, in their order."""
        turn = self.running_turn
        steps = turn.steps if turn else []
        return [
            call for step in steps if isinstance(step, ModelStep) for call in step.tool_calls if call.awaits_approval
        ]

    @property
    def partial_parts(self) -> list[PartialPart]:
        """The partial output of the running step (AGT-5)."""
        turn, partial = self.running_turn, self._partial
        return partial.parts if turn and partial and partial.message_id == turn.id else []

    def _clear_empty_queue(self) -> None:
        """Clear the queue if its length is 0: after a lost connection, no queue event says so."""
        if self.queue_length == 0:
            self.waiting = []

    def _is_superseded(self, partial: PartialOutput) -> bool:
        """Return whether the step of `partial` has arrived in its final form."""
        turn = self.find(partial.message_id)
        return turn is not None and (turn.is_complete or partial.step <= last_step_number(turn))


def last_step_number(turn: ConversationMessage) -> int:
    """Return the number of the turn's newest model step; 0 if it has none."""
    return max((step.number for step in turn.steps if isinstance(step, ModelStep)), default=0)
