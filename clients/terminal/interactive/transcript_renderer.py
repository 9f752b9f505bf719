"""Renders the parts of a conversation that are final and not printed yet, each once and in order.

A terminal can't change printed text, so each part is printed when it is final: a prompt when its turn starts, a step
when the model has finished it, a call when it has its result, an answer when the turn ends. Until then the live output
shows it (`live_output.py`). The ids of turns, steps and calls prevent printing twice after a reconnect or a reset.
"""

from collections.abc import Iterator
from itertools import takewhile

from rich.console import RenderableType

from turnkeeper.clients.python.conversation import Conversation
from turnkeeper.clients.terminal import texts
from turnkeeper.clients.terminal.interactive import renderer
from turnkeeper.models.transcript.conversation import ConversationMessage, ModelStep, UserStep


class TranscriptRenderer:
    """Renders the new parts of one conversation."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        """The numbers of the turns that were rendered at least in part, by id."""
        self._rendered: set[tuple[str | int, ...]] = set()
        """The parts of turns that were rendered."""
        self._next_number = 1

    def skip_to(self, number: int) -> Iterator[RenderableType]:
        """Continue with turn `number`; yield a note with the number of skipped turns."""
        if number > self._next_number:
            yield from ("", renderer.note(texts.left_out(number - self._next_number, "earlier turn")))
            self._next_number = number

    def overlaps(self, conversation: Conversation) -> bool:
        """Return whether no turn is missing between the rendered ones and those of the conversation."""
        turns = conversation.turns
        return not turns or not self.numbers or any(turn.id in self.numbers for turn in turns)

    def render_new(self, conversation: Conversation) -> Iterator[RenderableType]:
        """Yield what is new since the last call."""
        newest_first = takewhile(lambda turn: (turn.id, "end") not in self._rendered, reversed(conversation.turns))
        for turn in reversed(list(newest_first)):
            yield from self._render_turn(turn)

    def _render_turn(self, turn: ConversationMessage) -> Iterator[RenderableType]:
        if turn.id not in self.numbers:
            self.numbers[turn.id] = self._next_number
            self._next_number += 1
            yield from ("", renderer.prompt(turn))
        for index, step in enumerate(turn.steps):
            if isinstance(step, UserStep):
                if self._is_new(turn.id, "prompt", step.message_id):
                    yield renderer.steering(step)
            elif step.tool_calls or turn.is_complete or index + 1 < len(turn.steps):
                yield from self._render_step(step, turn)
        if turn.is_complete and self._is_new(turn.id, "end"):
            if turn.agent_message is not None:
                yield from _text(turn.agent_message, is_excerpt=turn.agent_message_blob is not None)
            yield from renderer.turn_end(turn, self.numbers[turn.id])

    def _render_step(self, step: ModelStep, turn: ConversationMessage) -> Iterator[RenderableType]:
        if self._is_new(turn.id, "step", step.number):
            if step.left_out:
                yield renderer.note(step.left_out)
            if step.thinking:
                yield renderer.thinking(step.thinking)
            is_answer = turn.agent_message is not None and not step.tool_calls and step is turn.steps[-1]
            if step.text and not is_answer:
                yield from _text(step.text, is_excerpt=step.text_blob is not None)
                if step.interrupted:
                    yield renderer.note(texts.INTERRUPTED)
        for call in step.tool_calls:
            if call.result and self._is_new(turn.id, "call", call.id):
                yield renderer.FinishedCall(call)

    def _is_new(self, *part: str | int) -> bool:
        """Return whether a part was not rendered yet; from now on it was."""
        is_new = part not in self._rendered
        self._rendered.add(part)
        return is_new


def _text(text: str, *, is_excerpt: bool) -> Iterator[RenderableType]:
    yield from ("", renderer.markdown(text), "")
    if is_excerpt:
        yield renderer.note(texts.EXCERPT)
