"""What a provider and its callers exchange: the request's coordinates, deltas, failures, and usage on the way (AGT-4).

A provider turns a `ModelRequest` into a stream of `Delta`s that ends with exactly one `ModelResponse`. It raises
`ModelError` for every failure and never retries by itself: `activities/failures.py` judges, the workflow retries. (If a
vendor refuses a part of a request, it is sent again without that, see `refused_parts`; the same request is never sent
twice.) A stream that ends without a `ModelResponse` broke off and is no answer (AGT-3).

Vendors bill for an answer that breaks off, but most report usage only at its end. So the meter notes what is known
before: that the vendor has begun to answer, what it has counted so far, and how much it has written (AGT-9).
"""

from dataclasses import dataclass, field
from typing import Literal

from turnkeeper.models.errors import ErrorType, TurnkeeperError
from turnkeeper.models.texts import tokens_of, weighted_chars
from turnkeeper.models.transcript.conversation import Usage
from turnkeeper.models.transcript.model_call import RefusedPart


@dataclass
class Meter:
    """The usage of one request as far as it is known before the answer is complete."""

    has_begun: bool = False
    """The vendor has begun to answer, so it has read the request."""
    usage_so_far: Usage | None = None
    """The vendor's own counts so far. Output tokens come last."""
    written_chars: int = 0
    """Weighted characters written so far: text, thinking, arguments of calls."""

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


ErrorKind = ErrorType | Literal["stale_reasoning", "permission"]
"""An error's type, before `permission` is counted among `auth`: the two are fixed differently."""

AttachmentProblem = Literal["no_images", "no_pdfs", "no_media", "unreadable", "too_large", "too_many"]
"""What a vendor refuses about a request's images and PDFs: a kind that the model does not read, `no_media` both kinds;
a content that the vendor can't read; their size together; their number."""


@dataclass(frozen=True)
class AttachmentRefusal:
    """A vendor's refusal of a request's images or PDFs."""

    problem: AttachmentProblem
    limit: int | None = None
    """How many are allowed, if the vendor says it."""
    place: str = ""
    """The path of the refused one in the request's body, if the vendor says it: `messages.0.content.1.image`."""


@dataclass(frozen=True)
class VendorRefusal:
    """How a vendor refused a request, in its own words: to find the part that it blames, never shown."""

    status: int
    """The HTTP status, or in a stream the number in its place; below 400: there is none."""
    words: str
    parameter: str = ""
    """The part of the request that it blames, by its own name for it."""
    of_attachments: AttachmentRefusal | None = None
    """What it refuses, if the request has images or PDFs."""


@dataclass(frozen=True)
class Delta:
    """A piece of the answer: more text, more thinking, or the name of a new call."""

    kind: Literal["think", "respond", "call"]
    text: str


@dataclass(frozen=True)
class CallInfo:
    """The coordinates of a request. `request` counts the session's model requests from 1.

    `attempt` counts the attempts of this activity from 1. `waits` counts how often the workflow has waited and then
    scheduled a new activity for this request, whose attempts start at 1 again (AGT-9). `meter` notes the usage while
    the answer arrives. `left_out` are the parts that the session knows to be refused. `may_be_too_long`: the model has
    answered shorter requests with the same tools, but none of this length.
    """

    session_id: str
    request: int
    attempt: int
    waits: int = 0
    meter: Meter = field(default_factory=Meter, compare=False)
    left_out: tuple[RefusedPart, ...] = ()
    may_be_too_long: bool = False


class ModelError(TurnkeeperError):
    """A vendor's failure, mapped to our own types. `message` is safe to show: no key, no prompt, no stack trace."""

    def __init__(
        self,
        error_type: ErrorType | Literal["stale_reasoning"],
        message: str,
        *,
        retry_after: float | None = None,
        should_retry: bool | None = None,
        vendor: str = "",
        lasting: str = "",
        refusal: VendorRefusal | None = None,
    ) -> None:
        """Create the error. `retry_after` is in seconds, `should_retry` is the vendor's own statement, if any.

        `vendor` is the vendor's name for sentences. `lasting` marks a failure that may be the same each time, and is
        equal for equal ones: after a few of these it is final. Empty: it passes by its nature, and the limits of its
        type apply. `refusal`: what the vendor says of a request that it refused, if a part of it may be the reason.
        """
        super().__init__(message)
        self.error_type = error_type
        self.message = message
        self.retry_after = retry_after
        self.should_retry = should_retry
        self.vendor = vendor
        self.lasting = lasting
        self.refusal = refusal
        self.is_unexplained = False
        """Whether the vendor refused the request and blamed no part of it."""
