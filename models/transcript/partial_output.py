"""Partial output: the text of an unfinished answer, which clients see and the session does not store (AGT-5).

The progress of running tool calls travels in the same way (AGT-7).

It travels outside the workflow's history. A worker publishes snapshots of the whole output so far, so any of them may
be lost; the gateway sends its clients what has grown since the last snapshot. The tag identifies the answer: the output
of a retried attempt replaces that of the attempt before.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from turnkeeper.models.texts import bound_json
from turnkeeper.models.transcript.model_call import CallPart, ModelResponse, Part, RespondPart, ThinkPart
from turnkeeper.models.wire import Frozen

MAX_PARTIAL_BYTES = 64_000
"""Maximum of a snapshot, as JSON. It is far below 2 MB, at which Temporal fails a heartbeat."""

PartialKind = Literal["think", "respond", "call"]


class PartialPart(Frozen):
    """A part of the answer: thinking, text, or the name of a tool call that begins.

    `omitted` counts the characters left out at its start, since snapshots are bounded.
    """

    kind: PartialKind
    text: str
    omitted: int = 0

    @property
    def end(self) -> int:
        """Length of the part in characters, with those left out."""
        return self.omitted + len(self.text)


class PartialTag(Frozen):
    """The answer that output belongs to: model step `step` of the turn `message_id`, the session's turn number `turn`.

    `request` counts the session's model requests; `attempt` grows with every attempt at one, also after a wait for the
    vendor. A later answer replaces all earlier ones.
    """

    message_id: str
    turn: int
    step: int
    request: int
    attempt: int

    def is_later_than(self, other: "PartialTag") -> bool:
        """Return whether this answer began after `other`, which a worker that lost its activity may still publish."""
        return (self.request, self.attempt) > (other.request, other.attempt)


class PartialOutput(PartialTag):
    """A snapshot of partial output: all parts so far."""

    parts: list[PartialPart] = []

    def supersedes(self, other: "PartialOutput") -> bool:
        """Return whether this replaces `other`: it is of a later answer, or has more of the same one.

        >>> tag = {"message_id": "a", "turn": 1, "step": 1, "request": 1}
        >>> less = PartialOutput(**tag, attempt=1, parts=[PartialPart(kind="respond", text="Hel")])
        >>> more = PartialOutput(**tag, attempt=1, parts=[PartialPart(kind="respond", text="lo", omitted=3)])
        >>> again = PartialOutput(**tag, attempt=2)
        >>> more.supersedes(less), less.supersedes(more), less.supersedes(less), again.supersedes(more)
        (True, False, False, True)
        """
        if self.is_later_than(other) or other.is_later_than(self):
            return self.is_later_than(other)
        return self._extent > other._extent

    @property
    def _extent(self) -> tuple[int, int]:
        """Its size, for comparison: number of parts, and characters with those left out. Neither ever shrinks."""
        return len(self.parts), sum(part.end for part in self.parts)


class PartialGrowth(PartialTag):
    """Changes since the last event. `fresh`: discard all earlier partial output first.

    Append the text of each of `parts` to the part with that index, which starts with it if it is new.
    """

    fresh: bool
    parts: list["GrownPart"] = []


class GrownPart(Frozen):
    """New text of a part. `omitted` counts the characters left out before it."""

    index: int
    kind: PartialKind
    text: str
    omitted: int = 0


def growth(old: PartialOutput | None, new: PartialOutput) -> PartialGrowth | None:
    """Return what turns `old` into `new`; `None` if nothing has grown.

    >>> parts = [PartialPart(kind="respond", text="Hel")]
    >>> first = PartialOutput(message_id="a", turn=1, step=1, request=1, attempt=1, parts=parts)
    >>> more = first.model_copy(update={"parts": [PartialPart(kind="respond", text="Hello")]})
    >>> growth(first, more).parts, growth(first, more).fresh, growth(more, more)
    ([GrownPart(index=0, kind='respond', text='lo', omitted=0)], False, None)
    >>> growth(None, first).fresh, growth(more, first).fresh
    (True, True)
    """
    if old is None or not _continues(old, new):
        parts = [GrownPart(index=index, **dict(part)) for index, part in enumerate(new.parts)]
        return PartialGrowth(**_tag(new), fresh=True, parts=parts)
    old_ends = [part.end for part in old.parts]
    old_ends += [0] * (len(new.parts) - len(old_ends))
    grown = [
        GrownPart(index=index, kind=part.kind, text=part.text[old_end - part.omitted :])
        for index, (part, old_end) in enumerate(zip(new.parts, old_ends, strict=True))
        if part.end > old_end or index >= len(old.parts)
    ]
    return PartialGrowth(**_tag(new), fresh=False, parts=grown) if grown else None


def with_growth(output: PartialOutput | None, growth: PartialGrowth) -> PartialOutput | None:
    """Return a client's `output` after `growth`; unchanged if the client does not have the start of that answer.

    >>> first = PartialOutput(message_id="a", turn=1, step=1, request=1, attempt=1)
    >>> more = first.model_copy(update={"parts": [PartialPart(kind="respond", text="Hello")]})
    >>> with_growth(first, growth(first, more)) == more, with_growth(None, growth(first, more))
    (True, None)
    """
    if growth.fresh:
        output = PartialOutput.model_validate(_tag(growth))
    if output is None or _tag(output) != _tag(growth):
        return output
    parts = dict(enumerate(output.parts))
    for grown in growth.parts:
        part = parts.get(grown.index) or PartialPart(kind=grown.kind, text="", omitted=grown.omitted)
        parts[grown.index] = part.model_copy(update={"text": part.text + grown.text})
    return output.model_copy(update={"parts": [parts[index] for index in sorted(parts)]})


def _continues(old: PartialOutput, new: PartialOutput) -> bool:
    """Return whether a client that has `old` can reach `new` by appending."""
    if _tag(old) != _tag(new) or len(new.parts) < len(old.parts):
        return False
    ends = [part.end for part in old.parts] + [0] * (len(new.parts) - len(old.parts))
    kinds = all(was.kind == now.kind for was, now in zip(old.parts, new.parts, strict=False))
    return kinds and all(part.omitted <= old_end <= part.end for part, old_end in zip(new.parts, ends, strict=True))


def _tag(partial: PartialTag) -> dict[str, object]:
    return {name: getattr(partial, name) for name in PartialTag.model_fields}


class CallProgress(Frozen):
    """How far a running tool call is, as its server reports it. A newer one replaces it, and the call's result ends it.

    The numbers are the server's: `progress` may go back, `total` is positive or unknown. `message` is one legible line
    of at most 200 characters, and `text` is all of it as people read it.
    """

    call_id: str
    progress: float
    total: float | None = None
    message: str = ""
    text: str


LiveNews = PartialOutput | CallProgress
"""A message of a worker: a snapshot of an answer, or the progress of a call."""


def with_progress(calls: Mapping[str, CallProgress], new: CallProgress) -> dict[str, CallProgress]:
    """Return the progress of a step's calls, by call id, with `new`. If that is of another step, `calls` have ended.

    >>> one, other, next = (CallProgress(call_id=id, progress=1, text="1") for id in ("1.1.0", "1.1.1", "1.2.0"))
    >>> list(with_progress({"1.1.0": one}, other)), list(with_progress({"1.1.0": one}, next))
    (['1.1.0', '1.1.1'], ['1.2.0'])
    """
    step, _, _ = new.call_id.rpartition(".")
    return {id_: one for id_, one in calls.items() if id_.rpartition(".")[0] == step} | {new.call_id: new}


MAX_CALLS = 20
"""Maximum tool calls recorded by name: none of them ran."""

MAX_CALL_NAME_CHARS = 256
"""Maximum of a recorded call's name: four times that of a tool's name."""


def unfinished_answer(parts: Iterable[PartialPart], *, model: str, max_bytes: int) -> ModelResponse | None:
    """Return the written parts as an incomplete answer; `None` if nothing was written (SES-9).

    The worker reports it when its attempt ends without the complete answer. If the worker is dead, its last snapshot is
    used, if the server has one.
    `model` is the requested one, as `provider:name`: vendors report their own name for it at the end of an answer.
    Thinking and text have at most `max_bytes` of JSON each; a mark replaces the middle of a longer one.

    >>> parts = [PartialPart(kind="think", text="Hm."), PartialPart(kind="respond", text="It was")]
    >>> answer = unfinished_answer(parts, model="m", max_bytes=1_000)
    >>> answer.thinking, answer.text, unfinished_answer([PartialPart(kind="respond", text=" ")], model="m", max_bytes=9)
    ('Hm.', 'It was', None)
    """
    parts = list(parts)
    thinking, text = "\n\n".join(_texts(parts, "think")), "".join(_texts(parts, "respond"))
    answer: list[Part] = []
    if thinking.strip():
        answer.append(ThinkPart(kind="think", text=bound_json(thinking, max_bytes, max_bytes)))
    if text.strip():
        answer.append(RespondPart(kind="respond", text=bound_json(text, max_bytes, max_bytes)))
    names = [name[:MAX_CALL_NAME_CHARS] for name in _texts(parts, "call") if name]
    answer += [CallPart(kind="call", id="", name=name) for name in names[:MAX_CALLS]]
    provider, _, name = model.partition(":")
    return ModelResponse(parts=answer, model=name or provider) if answer else None


def _texts(parts: Iterable[PartialPart], kind: str) -> Iterator[str]:
    for part in parts:
        if part.kind == kind and part.omitted and kind != "call":
            yield f"[... {part.omitted:,} characters left out ...]\n{part.text}"
        elif part.kind == kind and not part.omitted:
            yield part.text
