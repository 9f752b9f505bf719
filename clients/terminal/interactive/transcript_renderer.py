"""Renders the parts of a conversation that are final and not printed yet, each once and in order.

A terminal can't change printed text, so each part is printed when it is final: a prompt when its turn starts, a step
when the model has finished it, a call when it has its result, an answer when the turn ends. Until then the live output
shows it (`live_output.py`). The ids of turns, steps and calls prevent printing twice after a reconnect or a reset.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from rich.console import RenderableType

from turnkeeper.clients.python.conversation import Conversation
from turnkeeper.clients.terminal import texts
from turnkeeper.clients.terminal.interactive import renderer
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.transcript.trajectory import ModelStep, UserStep


@dataclass
class _Progress:
    """How much of a turn has been rendered; `number` is the turn's, from 1."""

    number: int
    step: int = 0
    calls: set[str] = field(default_factory=set)
    steering: set[str] = field(default_factory=set)
    has_ended: bool = False


class TranscriptRenderer:
    """Renders the new parts of one conversation."""

    def __init__(self) -> None:
        self.ended_count = 0
        """The number of turns that have been rendered to their end."""
        self._progress: dict[str, _Progress] = {}
        self._next_number = 1

    def skip_to(self, number: int) -> Iterator[RenderableType]:
        """Continue with turn `number`; yield a note with the number of skipped turns."""
        if number > self._next_number:
            yield from ("", renderer.note(texts.left_out(number - self._next_number, "earlier turn")))
            self._next_number = number

    def overlaps(self, conversation: Conversation) -> bool:
        """Return whether no turn is missing between the rendered ones and those of the conversation."""
        turns = conversation.turns
        return not turns or not self._progress or any(turn.id in self._progress for turn in turns)

    def number_of(self, turn_id: str) -> int | None:
        """Return the number of a turn that was rendered at least in part; None for others."""
        progress = self._progress.get(turn_id)
        return progress.number if progress else None

    def render_new(self, conversation: Conversation) -> Iterator[RenderableType]:
        """Yield what is new since the last call."""
        unfinished: list[ConversationMessage] = []
        for turn in reversed(conversation.turns):
            progress = self._progress.get(turn.id)
            if progress and progress.has_ended:
                break
            unfinished.append(turn)
        for turn in reversed(unfinished):
            yield from self._render_turn(turn)

    def _render_turn(self, turn: ConversationMessage) -> Iterator[RenderableType]:
        progress = self._progress.get(turn.id)
        if progress is None:
            progress = self._progress[turn.id] = _Progress(self._next_number)
            self._next_number += 1
            yield from ("", renderer.prompt(turn))
        for index, step in enumerate(turn.steps):
            if isinstance(step, UserStep):
                if step.message_id not in progress.steering:
                    progress.steering.add(step.message_id)
                    yield renderer.steering(step)
            elif step.tool_calls or turn.is_complete or index + 1 < len(turn.steps):
                yield from self._render_step(step, progress, turn)
        if turn.is_complete:
            progress.has_ended = True
            self.ended_count += 1
            if turn.agent_message is not None:
                yield from _text(turn.agent_message, is_excerpt=turn.agent_message_blob is not None)
            yield from renderer.turn_end(turn, progress.number)

    def _render_step(self, step: ModelStep, progress: _Progress, turn: ConversationMessage) -> Iterator[RenderableType]:
        if step.number > progress.step:
            progress.step = step.number
            if step.thinking:
                yield renderer.thinking(step.thinking)
            is_answer = turn.agent_message is not None and not step.tool_calls and step is turn.steps[-1]
            if step.text and not is_answer:
                yield from _text(step.text, is_excerpt=step.text_blob is not None)
                if step.interrupted:
                    yield renderer.note(texts.INTERRUPTED)
        for call in step.tool_calls:
            if call.result and call.id not in progress.calls:
                progress.calls.add(call.id)
                yield renderer.FinishedCall(call)


def _text(text: str, *, is_excerpt: bool) -> Iterator[RenderableType]:
    yield from ("", renderer.markdown(text), "")
    if is_excerpt:
        yield renderer.note(texts.EXCERPT)
