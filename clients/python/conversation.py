r"""A client's copy of a conversation, kept by the rules of SES-12 and no others: pure, without any network.

Theory of operation. The gateway says what is new since a cursor; the copy takes it in and has the next cursor:

    reset     drop all that is held
    updated   replace the turns of those ids
    new       append

Whatever happens meanwhile, the copy is then a gapless tail of the transcript, each turn in its final form. What a
model is still writing is held beside it: it is shown only while nothing final has taken its place, and never kept.

    >>> from datetime import UTC, datetime
    >>> from turnkeeper.models.transcript.conversation import ConversationMessage
    >>> turn = ConversationMessage(
    ...     id="p1", user_message="Hi", timestamp=datetime(2026, 1, 1, tzinfo=UTC),
    ...     user_timestamp=datetime(2026, 1, 1, tzinfo=UTC), revision=2)
    >>> def update(**fields):
    ...     standing = dict(is_processing=True, current_message_id="p1", last_seen_message_id="p1", queue_length=0)
    ...     rest = dict(new_messages=[], updated_messages=[], reset=False, has_more=False, status="processing")
    ...     return ConversationUpdate(**{**standing, **rest, **fields})
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
    ConversationMessage,
    ConversationState,
    ConversationUpdate,
    SessionStatus,
)
from turnkeeper.models.transcript.partial_output import PartialGrowth, PartialOutput, PartialPart, with_growth
from turnkeeper.models.transcript.trajectory import ModelStep, ToolCall
from turnkeeper.models.wire import Frozen, UtcDatetime

OVER: frozenset[SessionStatus] = frozenset({"ended", "cancelled", "terminated"})
"""What a session's status is once nothing more comes."""


class Cursor(Frozen):
    """How far a client is: what it sends to be told what is new. Both are null before the first answer."""

    last_seen_message_id: str | None = None
    since_revision: int | None = None


class Conversation:
    """One session as far as its client knows it. `turns` are oldest first and must not be changed from outside."""

    def __init__(self) -> None:
        self.turns: list[ConversationMessage] = []
        self.waiting: list[QueuedPrompt] = []
        self._latest: ConversationUpdate | None = None
        self._partial: PartialOutput | None = None

    # ---- taking in

    def apply(self, update: ConversationUpdate) -> None:
        if update.reset:
            self.turns = []
        changed = {turn.id: turn for turn in update.updated_messages}
        self.turns = [changed.get(turn.id, turn) for turn in self.turns] + update.new_messages
        self._latest = update
        self._forget_what_waited()
        if self._partial and self._is_superseded(self._partial):
            self._partial = None

    def open_at(self, page: ConversationState) -> None:
        """Hold the newest page of the transcript, and go on from there: what is older need not be read at all."""
        self.turns = list(page.messages)
        self._partial = None
        standing = {name: getattr(page, name) for name in ConversationUpdate.model_fields if hasattr(page, name)}
        told = {"new_messages": [], "updated_messages": [], "reset": False, "has_more": False}
        last = page.messages[-1].id if page.messages else None
        self._latest = ConversationUpdate(**{**standing, **told, "last_seen_message_id": last})
        self._forget_what_waited()

    def apply_queue(self, waiting: Sequence[QueuedPrompt]) -> None:
        self.waiting = list(waiting)

    def apply_partial(self, growth: PartialGrowth) -> None:
        """Hold what the model has written since; growth of an answer that is not held is left aside."""
        partial = with_growth(self._partial, growth)
        self._partial = None if partial and self._is_superseded(partial) else partial

    # ---- what is known

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
        """What the session does; null before the first answer."""
        return self._latest.status if self._latest else None

    @property
    def is_over(self) -> bool:
        """The session is closed: nothing more comes."""
        return self.status in OVER

    @property
    def is_processing(self) -> bool:
        return self._latest is not None and self._latest.is_processing

    @property
    def waiting_until(self) -> UtcDatetime | None:
        """With status `waiting_retry`: when the model is asked again."""
        return self._latest.waiting_until if self._latest else None

    @property
    def waiting_reason(self) -> str | None:
        """With status `waiting_retry`: why the model is not asked before, as a sentence."""
        return self._latest.waiting_reason if self._latest else None

    @property
    def queue_length(self) -> int:
        return self._latest.queue_length if self._latest else 0

    @property
    def revision(self) -> int:
        """The session's revision, as far as it is known; 0 before the first answer."""
        return self._latest.revision if self._latest else 0

    def find(self, message_id: str) -> ConversationMessage | None:
        # From the newest: it is nearly always one of the last.
        return next((turn for turn in reversed(self.turns) if turn.id == message_id), None)

    @property
    def running_turn(self) -> ConversationMessage | None:
        """The turn that is running; null also while it is not held yet."""
        current = self._latest.current_message_id if self._latest else None
        turn = self.find(current) if current else None
        return turn if turn and not turn.is_complete else None

    @property
    def awaiting_calls(self) -> list[ToolCall]:
        """The calls that a person is asked about, in their order."""
        turn = self.running_turn
        steps = turn.steps if turn else []
        return [
            call for step in steps if isinstance(step, ModelStep) for call in step.tool_calls if call.awaits_approval
        ]

    @property
    def partial_parts(self) -> list[PartialPart]:
        """What the model has written of its next step, to be shown now (AGT-5)."""
        turn, partial = self.running_turn, self._partial
        return partial.parts if turn and partial and partial.message_id == turn.id else []

    def _forget_what_waited(self) -> None:
        """Take it from the standing that nothing waits: after a lost connection nothing else says so."""
        if self.queue_length == 0:
            self.waiting = []

    def _is_superseded(self, partial: PartialOutput) -> bool:
        """Return whether what was written is held in its final form. Of a turn that is not held yet, nothing is."""
        turn = self.find(partial.message_id)
        return turn is not None and (turn.is_complete or partial.step <= last_step_number(turn))


def last_step_number(turn: ConversationMessage) -> int:
    """Return the number of the turn's newest model step; 0 where there is none."""
    return max((step.number for step in turn.steps if isinstance(step, ModelStep)), default=0)
