"""Prompts on their way in: what is accepted, in which order they start, and what became of each (SES-5 to SES-7).

Theory of operation. A prompt is accepted once, whatever the network does: its id is remembered. From then on it is
waiting, or has exactly one fate:

    accepted ──► waiting ──► started      became a turn (parked ones first come back)
                    │  └───► withdrawn    taken back by the user
                    │  └───► discarded    the session ended first
                    └► steering ► steered taken up by the running turn; if the turn ends first, back to waiting
                    └───────► rejected    the session can hold no more (SES-15); its id may be sent again
    refused ───────────────► rejected     with the reason; its id may be sent again

Nothing here knows Temporal: ids and times are given by the caller.
"""

from typing import Literal, NamedTuple

from pydantic import Field, ValidationError

from turnkeeper.models.as_of import Stamp
from turnkeeper.models.bounds import bound_json
from turnkeeper.models.errors import RefusalReason, Refused
from turnkeeper.models.field_paths import field_path
from turnkeeper.models.ids import ID_PATTERN, is_id
from turnkeeper.models.invalid_values import reason_of
from turnkeeper.models.limits import Limits
from turnkeeper.models.wire import Compact, Frozen, Strict, UtcDatetime

PromptMode = Literal["enqueue", "interrupt", "steer"]
"""What a prompt does to a running turn: wait behind it, cancel it and go next, or join it (SES-7)."""

FateName = Literal["started", "steered", "withdrawn", "discarded", "rejected"]

MAX_PROMPT_KEYS = 16
"""A prompt with more keys is refused without a look at them."""


class PromptSignal(Strict):
    """Argument of the signal `prompt`, where it is no bare string (SES-5)."""

    id: str | None = Field(None, pattern=ID_PATTERN)
    text: str
    sent_at: UtcDatetime | None = None
    mode: PromptMode = "enqueue"


class Prompt(Compact):
    """An accepted user message that has not started yet."""

    id: str
    text: str
    received_at: UtcDatetime
    sent_at: UtcDatetime | None = None
    mode: PromptMode = "enqueue"


class Fate(Compact):
    """What became of a prompt, at most once for each accepted one. `turn_id` is the turn it started or steered."""

    id: str
    fate: FateName
    at: UtcDatetime
    turn_id: str | None = None
    reason: str | None = None
    refusal: RefusalReason | None = None


class ParkedPrompt(NamedTuple):
    """A waiting prompt whose text is in the archive, under `number`. `size`: JSON bytes of the text."""

    id: str
    number: int
    size: int


class QueuedPrompt(Frozen):
    """A waiting prompt as shown to clients; `position` counts from 1, `mode` `steer` waits for the running turn."""

    id: str
    text: str
    position: int
    mode: PromptMode
    received_at: UtcDatetime


class QueueView(Frozen):
    """Answer of the query `get_queue`: what waits, in order, and the last 200 fates, newest last.

    Asked for ids, it holds these prompts only, with their positions in the whole queue. Otherwise it has the prompts at
    the head of the queue, as many as fit into about 1 MB; none that is parked, and none behind those.
    """

    waiting: list[QueuedPrompt]
    fates: list[Fate]
    revision: int
    refusing: RefusalReason | None = None
    """What the session would refuse any new prompt with now."""
    refusing_because: str | None = None
    length: int = 0
    """How many prompts wait, parked ones included."""
    bytes: int = 0
    """JSON bytes of all texts that wait."""
    parked: int = 0
    """How many of them are parked: only the archive has their texts."""
    positions: dict[str, int] = {}
    """Of all that were asked for by id and wait, parked ones included, the positions in the whole queue from 1."""
    max_prompts: int = 0
    """`limits.max_queued_prompts`: the gateway admits no more. The session itself accepts ten times as many."""
    max_bytes: int = 0
    """The same for the JSON bytes of all texts."""
    as_of: Stamp = None


def read_prompt(raw: object, *, extra_arguments: int, new_id: str, now: UtcDatetime, limits: Limits) -> Prompt:
    """Make a prompt of whatever a signal carried. Raises `Refused` with a reason for people (SES-5).

    >>> from datetime import datetime, UTC
    >>> at = datetime(2026, 1, 1, tzinfo=UTC)
    >>> read_prompt("hello", extra_arguments=0, new_id="p1", now=at, limits=Limits()).text
    'hello'
    """
    if extra_arguments:
        raise Refused("invalid", f"A prompt is one JSON value; this signal carried {extra_arguments + 1}.")
    if isinstance(raw, str):
        raw = {"text": raw}
    if not isinstance(raw, dict):
        raise Refused("invalid", f"A prompt is a JSON string or an object with `text`, not {_json_type(raw)}.")
    if len(raw) > MAX_PROMPT_KEYS:
        raise Refused("invalid", f"A prompt is an object with `text`; this one has {len(raw):,} keys.")
    if raw.get("attachments"):
        raise Refused("invalid", "Attachments are not taken by this version.", field="attachments")
    try:
        given = PromptSignal.model_validate({key: value for key, value in raw.items() if key != "attachments"})
    except ValidationError as error:
        raise refusal_of(error) from None
    check_text(given.text, limits=limits)
    return Prompt(id=given.id or new_id, text=given.text, received_at=now, sent_at=given.sent_at, mode=given.mode)


def id_in(raw: object) -> str | None:
    """Return the id that a prompt was sent with, whatever else is wrong with it; `None` where there is no valid one."""
    given = raw.get("id") if isinstance(raw, dict) else None
    return given if isinstance(given, str) and is_id(given) else None


def check_text(text: str, *, limits: Limits, field: str = "text") -> None:
    """Pass what can be recorded, sent and shown. Raises `Refused` naming what is wrong and what is allowed (SES-5)."""
    if not text.strip():
        raise Refused("blank", "The prompt is blank: send some text.", field=field)
    if len(text) > limits.max_prompt_chars:
        raise Refused(
            "too_long",
            f"The prompt has {len(text):,} characters; limits.max_prompt_chars allows {limits.max_prompt_chars:,}.",
            field=field,
        )
    if "\0" in text:
        raise Refused("invalid", "The prompt contains a NUL character (U+0000).", field=field)
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise Refused(
            "invalid",
            f"The prompt contains a lone surrogate at character {error.start}; send valid Unicode.",
            field=field,
        ) from None  # it has the whole text
    if size > limits.prompt_bytes:
        raise Refused(
            "too_long", f"The prompt has {size:,} bytes as UTF-8; {limits.prompt_bytes:,} are allowed.", field=field
        )


MAX_REFUSAL_BYTES = 800
"""Most JSON bytes of a refusal's sentence: with its type and stack, a caller is sent at most 2 KB (SES-10)."""


def refusal_of(error: ValidationError) -> Refused:
    """Return the refusal that names the wrong fields and what is allowed."""
    location = error.errors(include_url=False, include_context=False, include_input=False)[0]["loc"]
    return Refused("invalid", sentence_of(error), field=_path(location))


def sentence_of(error: ValidationError) -> str:
    """Name the first ten fields that are wrong and what is allowed; never repeats the caller's values."""
    problems = error.errors(include_url=False, include_input=False)[:10]
    sentence = "; ".join(f"{_path(problem['loc'])}: {reason_of(problem)}" for problem in problems)
    return f"{bound_json(sentence, MAX_REFUSAL_BYTES, MAX_REFUSAL_BYTES)}."


def _path(location: tuple[int | str, ...]) -> str:
    return field_path(location) or "value"


def _json_type(raw: object) -> str:
    names = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", list: "an array"}
    return names.get(type(raw), "binary data")
