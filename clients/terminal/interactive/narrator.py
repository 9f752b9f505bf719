"""What of a conversation is still to be told: each thing once, in its order, when it is final.

A terminal can't take back what it has printed. So only what no longer changes is told: a prompt once its turn has
started, a step once the model has finished it, a call once it has its result, an answer once the turn has ended. What
is in between is shown elsewhere and goes away (`live.py`). Whatever a client is told twice, after a lost connection or
a reset, is told here once: by the ids of turns, steps and calls.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from turnkeeper.clients.python.conversation import Conversation
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.transcript.trajectory import ModelStep, ToolCall, UserStep


@dataclass(frozen=True)
class Asked:
    """A prompt, whose turn has started; `number` counts the session's turns from 1."""

    number: int
    text: str


@dataclass(frozen=True)
class Thought:
    """What the model thought before a step."""

    text: str


@dataclass(frozen=True)
class Said:
    """What the model said beside its calls, or as its answer. `is_excerpt`: there is more of it.

    `is_interrupted`: the answer has no end.
    """

    text: str
    is_excerpt: bool = False
    is_interrupted: bool = False


@dataclass(frozen=True)
class Steered:
    """A prompt that joined the running turn."""

    text: str


@dataclass(frozen=True)
class Called:
    """A tool call with its result."""

    call: ToolCall


@dataclass(frozen=True)
class Ended:
    """A turn has ended, with an answer or without one."""

    number: int
    turn: ConversationMessage


@dataclass(frozen=True)
class Skipped:
    """Turns that are not told."""

    count: int


Item = Asked | Thought | Said | Steered | Called | Ended | Skipped


@dataclass
class _Told:
    """What was told of a turn."""

    number: int
    step: int = 0
    calls: set[str] = field(default_factory=set)
    steered: set[str] = field(default_factory=set)
    has_ended: bool = False


class Narrator:
    """Tells one conversation."""

    def __init__(self) -> None:
        """Have told nothing yet."""
        self._told: dict[str, _Told] = {}
        self._next_number = 1

    def skip_to(self, number: int) -> Iterator[Item]:
        """Go on with turn `number`; those before it that were not told are counted."""
        if number > self._next_number:
            yield Skipped(number - self._next_number)
            self._next_number = number

    @property
    def has_told_nothing(self) -> bool:
        """No turn was told yet."""
        return not self._told

    def knows(self, turn_id: str) -> bool:
        """Tell whether something of this turn was told."""
        return turn_id in self._told

    def number_of(self, turn_id: str) -> int | None:
        """Return the number of a turn that was told; `None` for others."""
        told = self._told.get(turn_id)
        return told.number if told else None

    def news(self, conversation: Conversation) -> Iterator[Item]:
        """Yield what is new since this was asked last."""
        due: list[ConversationMessage] = []
        for turn in reversed(conversation.turns):
            told = self._told.get(turn.id)
            if told and told.has_ended:
                break
            due.append(turn)
        for turn in reversed(due):
            yield from self._tell(turn)

    def _tell(self, turn: ConversationMessage) -> Iterator[Item]:
        told = self._told.get(turn.id)
        if told is None:
            told = self._told[turn.id] = _Told(self._next_number)
            self._next_number += 1
            yield Asked(told.number, turn.user_message)
        for index, step in enumerate(turn.steps):
            if isinstance(step, UserStep):
                yield from _tell_steered(step, told)
            elif step.tool_calls or turn.is_complete or index + 1 < len(turn.steps):
                yield from _tell_step(step, told, turn)
        if turn.is_complete:
            told.has_ended = True
            if turn.agent_message is not None:
                yield Said(turn.agent_message, is_excerpt=turn.agent_message_blob is not None)
            yield Ended(told.number, turn)


def _tell_steered(step: UserStep, told: _Told) -> Iterator[Item]:
    if step.message_id not in told.steered:
        told.steered.add(step.message_id)
        yield Steered(step.content)


def _tell_step(step: ModelStep, told: _Told, turn: ConversationMessage) -> Iterator[Item]:
    if step.number > told.step:
        told.step = step.number
        if step.thinking:
            yield Thought(step.thinking)
        if step.text and not _is_the_answer(step, turn):
            yield Said(step.text, is_excerpt=step.text_blob is not None, is_interrupted=step.interrupted)
    for call in step.tool_calls:
        if call.result and call.id not in told.calls:
            told.calls.add(call.id)
            yield Called(call)


def _is_the_answer(step: ModelStep, turn: ConversationMessage) -> bool:
    return turn.agent_message is not None and not step.tool_calls and step is turn.steps[-1]
