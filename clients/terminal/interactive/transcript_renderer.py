"""What of a conversation is still to be printed: each thing once, in its order, when it is final.

A terminal can't take back what it has printed. So only what no longer changes is printed: a prompt once its turn has
started, a step once the model has finished it, a call once it has its result, an answer once the turn has ended. What
is in between is shown elsewhere and goes away (`live_state.py`). What a client receives twice, after a lost connection
or a reset, is printed once: by the ids of turns, steps and calls.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from rich.console import RenderableType

from turnkeeper.clients.python.conversation import Conversation
from turnkeeper.clients.terminal import texts
from turnkeeper.clients.terminal.interactive.renderer import Renderer
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.transcript.trajectory import ModelStep, UserStep


@dataclass
class _Progress:
    """How much of a turn has been rendered; `number` counts the session's turns from 1."""

    number: int
    step: int = 0
    calls: set[str] = field(default_factory=set)
    steering: set[str] = field(default_factory=set)
    has_ended: bool = False


class TranscriptRenderer:
    """Renders of one conversation what is new."""

    def __init__(self, renderer: Renderer) -> None:
        """Render the parts of turns with `renderer`."""
        self.ended_count = 0
        """How many turns have been rendered to their end."""
        self._renderer = renderer
        self._progress: dict[str, _Progress] = {}
        self._next_number = 1

    def skip_to(self, number: int) -> Iterator[RenderableType]:
        """Go on with turn `number`; those before it that were not rendered are counted."""
        if number > self._next_number:
            yield from ("", self._renderer.note(texts.left_out(number - self._next_number, "earlier turn")))
            self._next_number = number

    def overlaps(self, conversation: Conversation) -> bool:
        """Return whether no turn is missing between what was rendered and what the conversation has."""
        turns = conversation.turns
        return not turns or not self._progress or any(turn.id in self._progress for turn in turns)

    def number_of(self, turn_id: str) -> int | None:
        """Return the number of a turn of which something was rendered; `None` for others."""
        progress = self._progress.get(turn_id)
        return progress.number if progress else None

    def news(self, conversation: Conversation) -> Iterator[RenderableType]:
        """Yield what is new since this was called last."""
        due: list[ConversationMessage] = []
        for turn in reversed(conversation.turns):
            progress = self._progress.get(turn.id)
            if progress and progress.has_ended:
                break
            due.append(turn)
        for turn in reversed(due):
            yield from self._news_of_turn(turn)

    def _news_of_turn(self, turn: ConversationMessage) -> Iterator[RenderableType]:
        progress = self._progress.get(turn.id)
        if progress is None:
            progress = self._progress[turn.id] = _Progress(self._next_number)
            self._next_number += 1
            yield from ("", self._renderer.prompt(turn.user_message))
        for index, step in enumerate(turn.steps):
            if isinstance(step, UserStep):
                if step.message_id not in progress.steering:
                    progress.steering.add(step.message_id)
                    yield self._renderer.steering(step.content)
            elif step.tool_calls or turn.is_complete or index + 1 < len(turn.steps):
                yield from self._news_of_step(step, progress, turn)
        if turn.is_complete:
            progress.has_ended = True
            self.ended_count += 1
            if turn.agent_message is not None:
                yield from self._text(turn.agent_message, is_excerpt=turn.agent_message_blob is not None)
            yield from self._renderer.turn_end(turn, progress.number)

    def _news_of_step(
        self, step: ModelStep, progress: _Progress, turn: ConversationMessage
    ) -> Iterator[RenderableType]:
        if step.number > progress.step:
            progress.step = step.number
            if step.thinking:
                yield self._renderer.thinking(step.thinking)
            is_the_answer = turn.agent_message is not None and not step.tool_calls and step is turn.steps[-1]
            if step.text and not is_the_answer:
                yield from self._text(step.text, is_excerpt=step.text_blob is not None)
                if step.interrupted:
                    yield self._renderer.note(texts.INTERRUPTED)
        for call in step.tool_calls:
            if call.result and call.id not in progress.calls:
                progress.calls.add(call.id)
                yield self._renderer.call(call)

    def _text(self, text: str, *, is_excerpt: bool) -> Iterator[RenderableType]:
        yield from ("", self._renderer.markdown(text), "")
        if is_excerpt:
            yield self._renderer.note(texts.EXCERPT)
