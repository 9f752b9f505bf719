"""The written part of an answer that was stopped or broke off (SES-9).

The worker reports it when its attempt ends without the complete answer, and the workflow records it as an interrupted
step. If the worker is dead, its last snapshot is used, if the server has one.
"""

from collections.abc import Iterable, Iterator

from turnkeeper.models.bounds import bound_json
from turnkeeper.models.transcript.model_call import CallPart, ModelResponse, Part, RespondPart, ThinkPart
from turnkeeper.models.transcript.partial_output import PartialPart

MAX_CALLS = 20
"""Maximum tool calls recorded by name: none of them ran."""

MAX_CALL_NAME_CHARS = 256
"""Maximum of a recorded call's name: four times that of a tool's name."""


def unfinished_answer(parts: Iterable[PartialPart], *, model: str, max_bytes: int) -> ModelResponse | None:
    """Return the written parts as an incomplete answer; `None` if nothing was written.

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
