"""The turns that a session's replay text is made of: HISTORY and CURRENT (CTX-12).

The newest turn is CURRENT while it is unfinished and can be continued: it has a finished step, or an error. A turn that
has just begun is neither CURRENT nor HISTORY; all other turns are HISTORY. Its count covers all turns of the session:
events that move to the archive are counted when they leave (`MovedEvents`).
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby, takewhile

from pydantic import field_serializer
from pydantic_core import to_json

from turnkeeper.models.replay_text.grammar import (
    CallEvent,
    ReplayEvent,
    RespondEvent,
    ResultEvent,
    ThinkEvent,
    UserEvent,
    render_event,
    render_replay,
)
from turnkeeper.models.transcript.attachments import with_names
from turnkeeper.models.transcript.conversation import (
    INTERRUPTED_NOTE,
    ConversationMessage,
    ModelStep,
    Step,
    ToolCall,
    ToolResult,
    UserStep,
)
from turnkeeper.models.transcript.notes import ending_note, joined_prompts
from turnkeeper.models.wire import Compact, Stamp


class MovedEvents(Compact):
    """Counts of a session's events in the archive, without thinking: of its newest turn, and of all earlier ones."""

    earlier: int = 0
    newest: int = 0

    def with_turns(self, turns: Iterable[ConversationMessage]) -> "MovedEvents":
        """Add turns that were moved; the newest is not among them."""
        return self.model_copy(update={"earlier": self.earlier + sum(map(count_events, turns))})

    def with_steps(self, steps: Sequence[Step], *, first: int = 0) -> "MovedEvents":
        """Add steps of the newest turn that were moved, those from index `first` on.

        Prompts that were added before the first answer are in the event of the turn's own prompt, which stays.

        >>> MovedEvents().with_steps([ModelStep(kind="model", number=1, text="Hm.", timestamp="2026-01-01T00:00:00Z")])
        MovedEvents(earlier=0, newest=1)
        """
        joined = 1 if not first and steps and isinstance(steps[0], UserStep) else 0
        return self.model_copy(update={"newest": self.newest + len(_without_thinking(step_events(steps))) - joined})

    def at_new_turn(self) -> "MovedEvents":
        """Return the counts when a turn begins.

        >>> MovedEvents(earlier=3, newest=2).at_new_turn()
        MovedEvents(earlier=5, newest=0)
        """
        return MovedEvents(earlier=self.earlier + self.newest)


class ReplayTurns(Compact):
    """The newest turns of a session, oldest first; `total_events` counts HISTORY with all turns of the session.

    `first_number` is the number of the first turn, from 1; without turns, that of the next turn.
    """

    turns: list[ConversationMessage] = []
    first_number: int = 1
    total_events: int = 0
    as_of: Stamp = None

    @field_serializer("turns")
    def _serialise_turns(self, turns: list[ConversationMessage]) -> list[dict[str, object]]:
        return [turn.without_defaults() for turn in turns]

    @classmethod
    def of(
        cls, turns: Sequence[ConversationMessage], *, archived: int, moved: MovedEvents, max_history: int
    ) -> "ReplayTurns":
        """Choose as many of the newest `turns` as `max_history` events need; `archived` turns come before them."""
        history = _history_turns(turns)
        counts = [count_events(turn) for turn in history]
        needed = _count_newest(counts, max_history)
        return cls(
            turns=list(turns[len(history) - needed :]),
            first_number=archived + len(history) - needed + 1,
            total_events=moved.earlier + (moved.newest if len(history) == len(turns) else 0) + sum(counts),
        )

    @property
    def past_turns(self) -> Sequence[ConversationMessage]:
        return _history_turns(self.turns)

    @property
    def unfinished_turn(self) -> ConversationMessage | None:
        """The newest turn, if it has no answer: it is running, or ended with an error."""
        return self.turns[-1] if self.turns and _is_unfinished(self.turns[-1]) else None

    @property
    def current(self) -> ConversationMessage | None:
        turn = self.unfinished_turn
        return turn if turn and (turn.is_error or turn.steps_omitted or any(map(_is_finished, turn.steps))) else None

    @property
    def history(self) -> list[ReplayEvent]:
        """The available events of HISTORY: back to the first turn here, or to omitted steps."""
        newest_first: list[list[ReplayEvent]] = []
        for turn in reversed(self.past_turns):
            events = _without_thinking(replay_events(turn))
            newest_first.append(events[1:] if turn.steps_omitted else events)
            if turn.steps_omitted:
                break
        return list(chain.from_iterable(reversed(newest_first)))

    def text(self, max_history: int, *, max_bytes: int | None = None) -> str:
        """Write the replay text. `max_bytes` bounds it approximately, as JSON, by dropping the oldest of HISTORY.

        CURRENT is never cut; HISTORY may always have a quarter of `max_bytes`.
        """
        current, history = replay_events(self.current) if self.current else [], self.history
        if max_bytes is not None:
            room = max_bytes - sum(map(_json_bytes, current))
            history = _newest_that_fit(history, max(room, max_bytes // 4))
        left_out = max(self.total_events - len(history), self.first_number - 1)
        return render_replay(history, current, max_history, left_out=left_out)

    def cut_off(self, error: str) -> "ReplayTurns":
        """Return the turns of a terminated session: its running turn has ended with `error`."""
        if not self.turns or self.turns[-1].is_complete:
            return self
        cancelled = self.turns[-1].model_copy(update={"status": "cancelled", "error": error})
        return self.model_copy(update={"turns": [*self.turns[:-1], cancelled]})


def count_events(turn: ConversationMessage) -> int:
    """Count the events of a turn in HISTORY, without omitted steps."""
    return len(_without_thinking(replay_events(turn)))


def with_newest_events(turn: ConversationMessage, count: int) -> ConversationMessage:
    """Return a turn of HISTORY without the early steps that its last `count` events do not need."""
    events, next_step = 0, None
    for later, step in enumerate(reversed(turn.steps)):
        is_joined = isinstance(step, UserStep) and isinstance(next_step, UserStep)  # they are one event
        if events >= count and not is_joined:
            return turn.without_oldest_steps(len(turn.steps) - later)
        events += 0 if is_joined else len(_without_thinking(step_events([step])))
        next_step = step
    return turn


def _is_unfinished(turn: ConversationMessage) -> bool:
    return turn.is_error or not turn.is_complete


def _is_finished(step: Step) -> bool:
    return isinstance(step, ModelStep) and all(call.result for call in step.tool_calls)


def _history_turns(turns: Sequence[ConversationMessage]) -> Sequence[ConversationMessage]:
    return turns[:-1] if turns and _is_unfinished(turns[-1]) else turns


def _without_thinking(events: Iterable[ReplayEvent]) -> list[ReplayEvent]:
    return [event for event in events if not isinstance(event, ThinkEvent)]


def _count_newest(counts: Sequence[int], max_history: int) -> int:
    """Return how many of the last `counts` sum up to `max_history`; 0 stands for all.

    >>> _count_newest([2, 2, 2], 3), _count_newest([2, 2, 2], 0), _count_newest([2], 9)
    (2, 3, 1)
    """
    total = 0
    for index, count in enumerate(reversed(counts)):
        if max_history and total >= max_history:
            return index
        total += count
    return len(counts)


def _newest_that_fit(events: list[ReplayEvent], max_bytes: int) -> list[ReplayEvent]:
    for index in range(len(events) - 1, -1, -1):
        max_bytes -= _json_bytes(events[index])
        if max_bytes < 0:
            return events[index + 1 :]
    return events


def _json_bytes(event: ReplayEvent) -> int:
    return len(to_json(render_event(event))) + 2


INTERRUPTED = "Interrupted: outcome unknown"
"""Outcome of a call without a result."""

RUNNING = "Running"
"""Outcome of a call that is still running."""


def replay_events(turn: ConversationMessage) -> list[ReplayEvent]:
    """Return the events of a turn, oldest first; the result of a call comes right after it.

    The first event is the turn's prompt; attachments are named in lines below it. Prompts that came together are one
    event. If steps are omitted, a thought says how many. A turn that ended without an answer has a note in its place
    (CTX-17). Large texts by reference appear as excerpts; `resolve_turn` restores them first.

    >>> from datetime import UTC, datetime
    >>> moment = datetime(2026, 1, 1, tzinfo=UTC)
    >>> turn = ConversationMessage(
    ...     id="m1", timestamp=moment, user_timestamp=moment, revision=2, user_message="Hi", agent_message="Hello!")
    >>> replay_events(turn)
    [UserEvent(type='user', content='Hi'), RespondEvent(type='respond', content='Hello!')]
    """
    added = [] if turn.steps_omitted else list(takewhile(lambda step: isinstance(step, UserStep), turn.steps))
    prompt = with_names(turn.user_message, turn.attachments)
    events: list[ReplayEvent] = [UserEvent(content=joined_prompts(prompt, _texts(added)))]
    if turn.steps_omitted:
        events.append(ThinkEvent(content=f"[... the first {turn.steps_omitted:,} steps of this turn are left out ...]"))
    events += step_events(turn.steps[len(added) :], is_running=not turn.is_complete)
    # The last step of a turn that ended well is its answer.
    end = RespondEvent(content=ending_note(turn) or turn.agent_message or "")
    return [*events, end] if end.content and events[-1] != end else events


def step_events(steps: Iterable[Step], *, is_running: bool = False) -> list[ReplayEvent]:
    """Return the events of some steps of a turn; in one that `is_running`, missing results are still to come."""
    events = list[ReplayEvent]()
    for are_prompts, some in groupby(steps, key=lambda step: isinstance(step, UserStep)):
        if are_prompts:
            events.append(UserEvent(content=joined_prompts(None, _texts(list(some)))))
        else:
            events += [event for step in some for event in _events_in_step(step, is_running)]
    return events


def _texts(steps: Sequence[Step]) -> list[str]:
    return [with_names(step.content, step.attachments) for step in steps if isinstance(step, UserStep)]


def _events_in_step(step: Step, is_running: bool) -> Iterator[ReplayEvent]:
    if isinstance(step, UserStep):
        return
    if step.interrupted:
        # A model can continue from the text only: the thinking is incomplete, and the calls were never made.
        if step.text:
            yield RespondEvent(content=f"{INTERRUPTED_NOTE}{step.text}")
        return
    if step.thinking:
        yield ThinkEvent(content=step.thinking)
    if step.text:
        yield RespondEvent(content=step.text)
    for call in step.tool_calls:
        yield _call_event(call)
        yield _result_event(call.result, is_running)


def _call_event(call: ToolCall) -> CallEvent:
    if call.args_blob is not None:
        return CallEvent(name=call.name, args=f"[... {call.args_blob.chars:,} characters left out ...]")
    return CallEvent.of(call.name, call.args)


def _result_event(result: ToolResult | None, is_running: bool) -> ResultEvent:
    if result is None:
        return ResultEvent(outcome=RUNNING if is_running else INTERRUPTED)
    outcome = result.outcome.replace("\n", " ")
    if result.status in ("cancelled", "outcome_unknown"):
        # Written by the session or its worker when the call was lost or the turn ended; the tool has returned nothing.
        content = f"{outcome}\n{result.content}" if result.content else outcome
        return ResultEvent(outcome=INTERRUPTED, content=content)
    return ResultEvent(outcome=outcome, content=with_names(result.content, result.attachments))
