"""What a model step says, in the one order that every client is shown it: thinking, text, tool calls.

Theory of operation. A step comes twice: as partial output while it is written, by parts in the vendor's order, and once
for good, as thinking, text and calls. Both are brought into the same form. What was sent early is right if it is the
beginning of the final text: the rest then follows, and no word is sent twice. If it is not (a retried attempt, parts in
another order, a text whose beginning was left out), the client is to drop the step.
"""

from dataclasses import dataclass, replace
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
        """Return whether a client that has this can append its way to `whole`.

        What comes earlier in the order has ended as soon as anything later was sent.

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
    """Return what a step says for good."""
    return StepText(
        reasoning=step.thinking or "",
        text=step.text or "",
        calls=tuple(NamedCall(call.id, call.name) for call in step.tool_calls),
    )


def partial_text(partial: PartialOutput) -> StepText:
    """Return of a snapshot what can be sent already: what stands in the order, up to the first part that does not.

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
