"""The usage of an answer while it arrives (AGT-9).

Vendors bill for an answer that breaks off, but most report usage only at its end. So the meter notes what is known
before: that the vendor has begun to answer, what it has counted so far, and how much it has written.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from turnkeeper.models.tokens import tokens_of, weighted_chars
from turnkeeper.models.transcript.trajectory import Usage

_BEFORE_THE_ANSWER = frozenset({"response.created", "response.queued", "response.in_progress", "ping"})
"""Events that a vendor sends before it has read the request."""


@dataclass
class Meter:
    """What is known of the usage of one request, before its answer is complete."""

    has_begun: bool = False
    """The vendor has begun to answer, so it has read the request."""
    usage_so_far: Usage | None = None
    """The vendor's own counts so far. Output tokens come last."""
    written_chars: int = 0
    """Weighted characters written so far: text, thinking, arguments of calls."""

    def note(self, event: Mapping[str, object], *, usage_so_far: Usage | None) -> None:
        """Note an event of the answer, and the vendor's counts up to it."""
        self.has_begun |= event.get("type") not in _BEFORE_THE_ANSWER
        self.usage_so_far = usage_so_far or self.usage_so_far
        self.written_chars += sum(map(weighted_chars, _arguments_in(event)))

    def write(self, text: str) -> None:
        """Note a piece of text, thinking, or the name of a call."""
        self.has_begun = True
        self.written_chars += weighted_chars(text)

    def usage(self, *, input_tokens: int) -> Usage | None:
        """Return the usage so far; `None` if the vendor has not begun.

        Where the vendor has no count, it is estimated: the input as `input_tokens`, the output from `written_chars`.

        >>> Meter().usage(input_tokens=100)
        >>> Meter(has_begun=True, written_chars=40).usage(input_tokens=100).model_dump(exclude_defaults=True)
        {'input_tokens': 100, 'output_tokens': 10, 'estimated_tokens': 110}
        >>> meter = Meter(usage_so_far=Usage(input_tokens=90), written_chars=40)
        >>> meter.usage(input_tokens=100).model_dump(exclude_defaults=True)
        {'input_tokens': 90, 'output_tokens': 10, 'estimated_tokens': 10}
        """
        written_tokens = tokens_of(self.written_chars)
        if self.usage_so_far is None:
            if not self.has_begun:
                return None
            return Usage(
                input_tokens=input_tokens, output_tokens=written_tokens, estimated_tokens=input_tokens + written_tokens
            )
        if self.usage_so_far.output_tokens:
            return self.usage_so_far
        return self.usage_so_far.model_copy(
            update={"output_tokens": written_tokens, "estimated_tokens": written_tokens}
        )


def _arguments_in(event: Mapping[str, object]) -> Iterator[str]:
    """Yield what an event adds to the arguments of a call, in the format of each API. They are not in the deltas.

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
