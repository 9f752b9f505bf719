"""Which turns of a session its replay text is made of, and which of them is CURRENT (CTX-12).

The newest turn is CURRENT while it is unfinished and there is something to go on from: a finished step, or a cut. One
that has just begun is neither CURRENT nor HISTORY yet; all other turns are HISTORY. HISTORY is counted from the first
turn on, wherever turns are by now: what is moved to the archive is counted when it leaves (`MovedEvents`).
"""

from collections.abc import Iterable, Sequence
from itertools import chain

from pydantic import field_serializer
from pydantic_core import to_json

from turnkeeper.models.as_of import Stamp
from turnkeeper.models.replay_text.grammar import ReplayEvent, ThinkEvent, render_event, render_replay
from turnkeeper.models.replay_text.turn_events import replay_events, step_events
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.transcript.trajectory import ModelStep, Step
from turnkeeper.models.wire import Compact


class MovedEvents(Compact):
    """How many events, thinking left out, the archive has of a session: of its newest turn, and of all earlier ones."""

    earlier: int = 0
    newest: int = 0

    def with_turns(self, turns: Iterable[ConversationMessage]) -> "MovedEvents":
        """Count turns that were moved; none of them is the newest."""
        return self.model_copy(update={"earlier": self.earlier + sum(map(count_events, turns))})

    def with_steps(self, steps: Iterable[Step]) -> "MovedEvents":
        """Count steps of the newest turn that were moved.

        >>> MovedEvents().with_steps([ModelStep(kind="model", number=1, text="Hm.", timestamp="2026-01-01T00:00:00Z")])
        MovedEvents(earlier=0, newest=1)
        """
        return self.model_copy(update={"newest": self.newest + len(_without_thinking(step_events(steps)))})

    def at_new_turn(self) -> "MovedEvents":
        """Count on for a turn that begins now.

        >>> MovedEvents(earlier=3, newest=2).at_new_turn()
        MovedEvents(earlier=5, newest=0)
        """
        return MovedEvents(earlier=self.earlier + self.newest)


class ReplayTurns(Compact):
    """The newest turns of a session, oldest first, and how many events HISTORY would have with all turns there are.

    `first_number` is the place of the first of them in the whole transcript, from 1; without any, of the next one.
    """

    turns: list[ConversationMessage] = []
    first_number: int = 1
    total_events: int = 0
    as_of: Stamp = None

    @field_serializer("turns")
    def _as_they_are_carried(self, turns: list[ConversationMessage]) -> list[dict[str, object]]:
        return [turn.without_defaults() for turn in turns]

    @classmethod
    def of(
        cls, turns: Sequence[ConversationMessage], *, archived: int, moved: MovedEvents, max_history: int
    ) -> "ReplayTurns":
        """Choose from the turns a session holds, after `archived` others, as many as `max_history` events need."""
        history = _history_turns(turns)
        counts = [count_events(turn) for turn in history]
        chosen = _newest_with(counts, max_history)
        return cls(
            turns=list(turns[len(history) - chosen :]),
            first_number=archived + len(history) - chosen + 1,
            # Turns that a release before the count has moved are counted as one event each, the least there is.
            total_events=max(moved.earlier, archived)
            + (moved.newest if len(history) == len(turns) else 0)
            + sum(counts),
        )

    @property
    def past_turns(self) -> Sequence[ConversationMessage]:
        return _history_turns(self.turns)

    @property
    def unfinished_turn(self) -> ConversationMessage | None:
        """The newest turn, if it has no answer: it is running, or was cut off."""
        return self.turns[-1] if self.turns and _is_unfinished(self.turns[-1]) else None

    @property
    def current(self) -> ConversationMessage | None:
        turn = self.unfinished_turn
        return turn if turn and _can_be_continued(turn) else None

    @property
    def history(self) -> list[ReplayEvent]:
        """The events of HISTORY that are at hand: back to the first turn here, or to steps that are omitted."""
        newest_first: list[list[ReplayEvent]] = []
        for turn in reversed(self.past_turns):
            events = _without_thinking(replay_events(turn))
            newest_first.append(events[1:] if turn.steps_omitted else events)
            if turn.steps_omitted:
                break
        return list(chain.from_iterable(reversed(newest_first)))

    def text(self, max_history: int, *, most_bytes: int | None = None) -> str:
        """Write the replay text. With `most_bytes`, HISTORY is cut so that it has about so many as JSON.

        CURRENT is never cut; a quarter of `most_bytes` is HISTORY's in any case.
        """
        current, history = replay_events(self.current) if self.current else [], self.history
        if most_bytes is not None:
            room = most_bytes - sum(map(_json_bytes, current))
            history = _newest_that_fit(history, max(room, most_bytes // 4))
        left_out = max(self.total_events - len(history), self.first_number - 1)
        return render_replay(history, current, max_history, left_out=left_out)

    def cut_off(self, error: str) -> "ReplayTurns":
        """Return the turns of a session that was closed by force: its running turn goes on no more."""
        if not self.turns or self.turns[-1].is_complete:
            return self
        cut = self.turns[-1].model_copy(update={"status": "cancelled", "error": error})
        return self.model_copy(update={"turns": [*self.turns[:-1], cut]})


def count_events(turn: ConversationMessage) -> int:
    """Count what a turn adds to HISTORY; steps that are omitted are counted elsewhere."""
    return len(_without_thinking(replay_events(turn)))


def with_newest_events(turn: ConversationMessage, count: int) -> ConversationMessage:
    """Return a turn of HISTORY without the early steps that its last `count` events don't need."""
    found = 0
    for later, step in enumerate(reversed(turn.steps)):
        if found >= count:
            return turn.without_oldest_steps(len(turn.steps) - later)
        found += len(_without_thinking(step_events([step])))
    return turn


def _is_unfinished(turn: ConversationMessage) -> bool:
    return turn.is_error or not turn.is_complete


def _can_be_continued(turn: ConversationMessage) -> bool:
    return turn.is_error or turn.steps_omitted > 0 or any(map(_is_finished, turn.steps))


def _is_finished(step: Step) -> bool:
    return isinstance(step, ModelStep) and all(call.result for call in step.tool_calls)


def _history_turns(turns: Sequence[ConversationMessage]) -> Sequence[ConversationMessage]:
    return turns[:-1] if turns and _is_unfinished(turns[-1]) else turns


def _without_thinking(events: Iterable[ReplayEvent]) -> list[ReplayEvent]:
    return [event for event in events if not isinstance(event, ThinkEvent)]


def _newest_with(counts: Sequence[int], max_history: int) -> int:
    """Return how many of the last of `counts` sum up to `max_history`; 0 stands for all.

    >>> _newest_with([2, 2, 2], 3), _newest_with([2, 2, 2], 0), _newest_with([2], 9)
    (2, 3, 1)
    """
    found = 0
    for chosen, count in enumerate(reversed(counts)):
        if max_history and found >= max_history:
            return chosen
        found += count
    return len(counts)


def _newest_that_fit(events: list[ReplayEvent], most_bytes: int) -> list[ReplayEvent]:
    for index in range(len(events) - 1, -1, -1):
        most_bytes -= _json_bytes(events[index])
        if most_bytes < 0:
            return events[index + 1 :]
    return events


def _json_bytes(event: ReplayEvent) -> int:
    return len(to_json(render_event(event))) + 2
