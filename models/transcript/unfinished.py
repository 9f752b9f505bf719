"""What a model had written of an answer that was stopped, or that broke off (SES-9).

The worker that asks the model reports it when its attempt ends without the whole answer, and the workflow records it as
an interrupted step. Where the worker is gone, the last snapshot that it showed stands for it, if the server has one.
"""

from collections.abc import Iterable, Iterator

from turnkeeper.models.bounds import bound_json
from turnkeeper.models.transcript.model_call import CallPart, ModelResponse, Part, RespondPart, ThinkPart
from turnkeeper.models.transcript.partial_output import PartialPart

MAX_CALLS = 20
"""Tool calls that are kept by name: none of them was run."""

MAX_CALL_NAME = 256
"""Characters of a call's name that are kept: four times what a tool may be called."""


def unfinished_answer(parts: Iterable[PartialPart], *, model: str, max_bytes: int) -> ModelResponse | None:
    """Return what was written as an answer without its end; `None` where nothing was.

    `model` is the one that was asked, as `provider:name`: its own name for itself comes with the end of an answer.
    Thinking and text have at most `max_bytes` of JSON each: of more, the middle is left out, and marked.

    >>> parts = [PartialPart(kind="think", text="Hm."), PartialPart(kind="respond", text="It was")]
    >>> answer = unfinished_answer(parts, model="m", max_bytes=1_000)
    >>> answer.thinking, answer.text, unfinished_answer([PartialPart(kind="respond", text=" ")], model="m", max_bytes=9)
    ('Hm.', 'It was', None)
    """
    written = list(parts)
    thinking, text = "\n\n".join(_texts(written, "think")), "".join(_texts(written, "respond"))
    kept: list[Part] = []
    if thinking.strip():
        kept.append(ThinkPart(kind="think", text=bound_json(thinking, max_bytes, max_bytes)))
    if text.strip():
        kept.append(RespondPart(kind="respond", text=bound_json(text, max_bytes, max_bytes)))
    names = [name[:MAX_CALL_NAME] for name in _texts(written, "call") if name]
    kept += [CallPart(kind="call", id="", name=name) for name in names[:MAX_CALLS]]
    provider, _, name = model.partition(":")
    return ModelResponse(parts=kept, model=name or provider) if kept else None


def _texts(parts: Iterable[PartialPart], kind: str) -> Iterator[str]:
    for part in parts:
        if part.kind == kind and part.omitted and kind != "call":
            yield f"[... {part.omitted:,} characters left out ...]\n{part.text}"
        elif part.kind == kind and not part.omitted:
            yield part.text
