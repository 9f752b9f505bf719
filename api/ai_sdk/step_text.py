"""The content of a model step in the order that clients get it: thinking, text, tool calls.

A step arrives twice: as partial output, in parts in the vendor's order, and finally as thinking, text and calls. Both
are converted to the same form. If what was sent early is the beginning of the final text, the rest follows and nothing
is sent twice. If it is not (a retried attempt, parts in another order, a text with an omitted beginning), the client
has to drop the step.
"""

from dataclasses import dataclass, replace
from itertools import takewhile

from turnkeeper.models.ids import call_id
from turnkeeper.models.transcript.partial_output import PartialOutput, PartialPart
from turnkeeper.models.transcript.trajectory import ModelStep

LEFT_OUT = "…"
"""Stands for the omitted beginning of a partial text."""


@dataclass(frozen=True)
class NamedCall:
    """A tool call with our own id, not the vendor's."""

    id: str
    name: str


@dataclass(frozen=True)
class StepText:
    """Thinking, text and calls of a step, or the beginning of them."""

    reasoning: str = ""
    text: str = ""
    calls: tuple[NamedCall, ...] = ()

    def leads_to(self, whole: "StepText") -> bool:
        """Return whether a client that has this can append its way to `whole`.

        A kind of content has ended as soon as a later kind was sent.

        >>> start = StepText(reasoning="Hm.", text="He")
        >>> [start.leads_to(StepText(reasoning=thought, text="Hello")) for thought in ("Hm.", "Hm. So.")]
        [True, False]
        """
        if self.calls:
            return self == replace(whole, calls=whole.calls[: len(self.calls)])
        if self.text:
            return self.reasoning == whole.reasoning and whole.text.startswith(self.text)
        return whole.reasoning.startswith(self.reasoning)


def final_text(step: ModelStep) -> StepText:
    """Return the final content of a step."""
    return StepText(
        reasoning=step.thinking or "",
        text=step.text or "",
        calls=tuple(NamedCall(call.id, call.name) for call in step.tool_calls),
    )


def partial_text(partial: PartialOutput) -> StepText:
    """Return what can be sent of a snapshot: its content up to the first part that is out of order.

    >>> parts = [PartialPart(kind="think", text="Hm."), PartialPart(kind="respond", text="I")]
    >>> parts += [PartialPart(kind="think", text="Hm?"), PartialPart(kind="respond", text=" say")]
    >>> partial = PartialOutput(message_id="a", turn=1, step=1, request=1, attempt=1, parts=parts)
    >>> partial_text(partial)
    StepText(reasoning='Hm.', text='I say', calls=())
    """
    thoughts = takewhile(lambda part: part.kind == "think", partial.parts)
    before_calls = takewhile(lambda part: part.kind != "call", partial.parts)
    calls = (part for part in partial.parts if part.kind == "call")
    whole_names = takewhile(lambda part: part.text and not part.omitted, calls)
    return StepText(
        reasoning="\n\n".join(map(_text_of, thoughts)),
        text="".join(_text_of(part) for part in before_calls if part.kind == "respond"),
        calls=tuple(
            NamedCall(call_id(partial.turn, partial.step, index), part.text) for index, part in enumerate(whole_names)
        ),
    )


def _text_of(part: PartialPart) -> str:
    return LEFT_OUT + part.text if part.omitted else part.text
