"""What an answer takes, while it comes in (AGT-9).

A vendor bills for an answer that breaks off, and most say only at its end what was used. So what is known on the way is
noted: that the vendor has begun to answer, what it has counted so far, and how much it has written.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from turnkeeper.models.tokens import tokens_of
from turnkeeper.models.transcript.trajectory import Usage

_BEFORE_THE_ANSWER = frozenset({"response.created", "response.queued", "response.in_progress", "ping"})
"""Events that come before a vendor has read the request."""


@dataclass
class Meter:
    """What is known of one request to a vendor, before its answer is whole."""

    has_begun: bool = False
    """The vendor has begun to answer, so that it has read the request."""
    usage_so_far: Usage | None = None
    """What the vendor has counted so far; it counts what was written last of all."""
    written_chars: int = 0
    """Characters that were written so far: text, thinking, arguments of calls."""

    def note(self, event: Mapping[str, object], *, usage_so_far: Usage | None) -> None:
        """Note an event of the answer, and what the vendor has counted by then."""
        self.has_begun |= event.get("type") not in _BEFORE_THE_ANSWER
        self.usage_so_far = usage_so_far or self.usage_so_far
        self.written_chars += sum(map(len, _arguments_in(event)))

    def write(self, text: str) -> None:
        """Note a piece of text, thinking, or the name of a call."""
        self.has_begun = True
        self.written_chars += len(text)

    def usage(self, *, input_tokens: int) -> Usage | None:
        """Return what the answer has taken so far; `None` where the vendor has not begun.

        What the vendor has not counted is estimated: the input as `input_tokens`, the output from what was written.

        >>> Meter().usage(input_tokens=100)
        >>> Meter(has_begun=True, written_chars=40).usage(input_tokens=100).model_dump(exclude_defaults=True)
        {'input_tokens': 100, 'output_tokens': 10, 'estimated_tokens': 110}
        >>> Meter(usage_so_far=Usage(input_tokens=90), written_chars=40).usage(input_tokens=100).model_dump(exclude_defaults=True)
        {'input_tokens': 90, 'output_tokens': 10, 'estimated_tokens': 10}
        """
        written_chars = tokens_of(self.written_chars)
        if self.usage_so_far is None:
            if not self.has_begun:
                return None
            return Usage(
                input_tokens=input_tokens, output_tokens=written_chars, estimated_tokens=input_tokens + written_chars
            )
        if self.usage_so_far.output_tokens:
            return self.usage_so_far
        return self.usage_so_far.model_copy(update={"output_tokens": written_chars, "estimated_tokens": written_chars})


def _arguments_in(event: Mapping[str, object]) -> Iterator[str]:
    """Yield what an event adds to the arguments of a call, in the words of each API: they are not shown as they come.

    >>> list(_arguments_in({"type": "response.function_call_arguments.delta", "delta": '{"at": '}))
    ['{"at": ']
    """
    match event:
        case {"delta": {"partial_json": str(text)}}:
            yield text
        case {"type": "response.function_call_arguments.delta", "delta": str(text)}:
            yield text
        case {"choices": [{"delta": {"tool_calls": [*calls]}}, *_]}:
            for call in calls:
                match call:
                    case {"function": {"arguments": str(text)}}:
                        yield text
