"""What a model step says, in the one order that every client is shown it: thinking, text, tool calls.

Theory of operation. A step is told twice: as partial output while it is written, by parts in the vendor's order, and
once for good, as thinking, text and calls. Both are brought into the same form. What was told early is right if it is
the beginning of what is told for good: the rest then follows, and no word is told twice. If it is not (a retried
attempt, parts in another order, a text whose beginning was left out), the client is told to drop the step.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from turnkeeper.models.ids import call_id
from turnkeeper.models.transcript.partial_output import PartialOutput, PartialPart
from turnkeeper.models.transcript.trajectory import ModelStep

LEFT_OUT = "…"
"""Stands for the beginning of a partial text that is not known."""


@dataclass(frozen=True)
class NamedCall:
    """A tool call by our own id."""

    id: str
    name: str


@dataclass(frozen=True)
class StepText:
    """Thinking, text and calls of a step, or the beginning of them."""

    reasoning: str = ""
    text: str = ""
    calls: tuple[NamedCall, ...] = ()

    def leads_to(self, whole: "StepText") -> bool:
        """Tell whether a client that was told this can append its way to `whole`.

        What comes earlier in the order has ended as soon as anything later was told.

        >>> said = StepText(reasoning="Hm.", text="He")
        >>> [said.leads_to(StepText(reasoning=thought, text="Hello")) for thought in ("Hm.", "Hm. So.")]
        [True, False]
        """
        if self.calls:
            return (self.reasoning, self.text, self.calls) == (
                whole.reasoning,
                whole.text,
                whole.calls[: len(self.calls)],
            )
        if self.text:
            return self.reasoning == whole.reasoning and whole.text.startswith(self.text)
        return whole.reasoning.startswith(self.reasoning)


def settled_text(step: ModelStep) -> StepText:
    """Return what a step says for good."""
    return StepText(
        reasoning=step.thinking or "",
        text=step.text or "",
        calls=tuple(NamedCall(call.id, call.name) for call in step.tool_calls),
    )


def partial_text(partial: PartialOutput) -> StepText:
    """Return of a snapshot what can be told already: what stands in the order, up to the first part that does not.

    >>> parts = [PartialPart(kind="think", text="Hm."), PartialPart(kind="respond", text="I")]
    >>> parts += [PartialPart(kind="think", text="Hm?"), PartialPart(kind="respond", text=" say")]
    >>> partial = PartialOutput(message_id="a", turn=1, step=1, request=1, attempt=1, parts=parts)
    >>> partial_text(partial)
    StepText(reasoning='Hm.', text='I say', calls=())
    """
    parts = partial.parts
    thoughts = takewhile(lambda part: part.kind == "think", parts)
    before_calls = takewhile(lambda part: part.kind != "call", parts)
    return StepText(
        reasoning="\n\n".join(map(_known, thoughts)),
        text="".join(_known(part) for part in before_calls if part.kind == "respond"),
        calls=tuple(_named_calls(partial, parts)),
    )


def _known(part: PartialPart) -> str:
    return LEFT_OUT + part.text if part.omitted else part.text


def _named_calls(partial: PartialOutput, parts: Sequence[PartialPart]) -> Iterator[NamedCall]:
    calls = (part for part in parts if part.kind == "call")
    for index, part in enumerate(takewhile(lambda part: bool(part.text) and not part.omitted, calls)):
        yield NamedCall(call_id(partial.turn, partial.step, index), part.text)
