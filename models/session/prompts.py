"""Prompts: what is accepted, and which fates a prompt can have (SES-5 to SES-7).

A prompt is accepted once, even if the network repeats it, since its id is remembered. From then on it waits, or has
exactly one fate:

    accepted ──► waiting ──► started      became a turn (a parked prompt is restored first)
                    │  └───► withdrawn    by the user
                    │  └───► discarded    the session ended first
                    └► steering ► steered joined the running turn; if the turn ends first, back to waiting
                    └───────► rejected    Temporal's own limits leave no room (SES-15); its id may be sent again
    late ──────────────────► discarded    the session had begun to end
    invalid ───────────────► rejected     with the reason; its id may be sent again

Only what is wrong in itself is invalid, such as a text over `limits.max_prompt_chars`; want of room never is (SES-6).

Ids and times are arguments: this module does not depend on Temporal.

The session remembers the latest fates. Older ones leave for the archive, except `started`: its turn shows that. An id
counts as accepted while its prompt waits, which the queue knows, and from its fate on, which is noted here.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import accumulate, takewhile
from typing import Literal, NamedTuple

from pydantic import Field, ValidationError
from pydantic_core import to_json

from turnkeeper.models.errors import RejectedError, RejectionReason
from turnkeeper.models.ids import ID_PATTERN, is_id
from turnkeeper.models.limits import Limits
from turnkeeper.models.texts import bound_json
from turnkeeper.models.transcript.attachments import MAX_ATTACHMENTS, Attachment, check_attachments, json_bytes
from turnkeeper.models.wire import (
    Compact,
    Frozen,
    Items,
    Stamp,
    Strict,
    UndecodablePayload,
    UtcDatetime,
    field_path,
    reason_of,
)

PromptMode = Literal["enqueue", "interrupt", "steer"]
"""The effect of a prompt while a turn is running: wait, stop it and start next, or join it (SES-7)."""

FateName = Literal["started", "steered", "withdrawn", "discarded", "rejected"]

WIDEST = Limits()
"""The limits of a prompt that no session may raise."""

MAX_PROMPT_KEYS = 16
"""A prompt with more keys is rejected unread."""


class PromptSignal(Strict):
    """Argument of the signal `prompt`, unless that is a string (SES-5)."""

    id: str | None = Field(None, pattern=ID_PATTERN)
    text: str
    attachments: Items[Attachment] = Field([], max_length=MAX_ATTACHMENTS, exclude_if=lambda items: not items)
    sent_at: UtcDatetime | None = None
    mode: PromptMode = "enqueue"
    retries: str | None = Field(None, pattern=ID_PATTERN, exclude_if=lambda turn_id: turn_id is None)
    """The id of the failed turn that it sends again, whose place it takes for the model if no turn came between."""


class Prompt(Compact):
    """An accepted user message that has not started yet. Its text may be blank if it has attachments."""

    id: str
    text: str
    attachments: Items[Attachment] = []
    received_at: UtcDatetime
    sent_at: UtcDatetime | None = None
    mode: PromptMode = "enqueue"
    """As sent; in the queue, what it does to the running turn."""
    retries: str | None = None

    @cached_property
    def size(self) -> int:
        """JSON bytes of its text, with its attachments."""
        return text_bytes(self)


class Fate(Compact):
    """The outcome of a prompt; an accepted prompt gets exactly one. `turn_id` is the turn that it started or joined."""

    id: str
    fate: FateName
    at: UtcDatetime
    turn_id: str | None = None
    reason: str | None = None
    refusal: RejectionReason | None = None
    """Why the session rejected it. A model's refusal is something else."""


class ParkedPrompt(NamedTuple):
    """A waiting prompt whose text is in the archive under `number`. `size` is that of the text, as JSON."""

    id: str
    number: int
    size: int


class QueuedPrompt(Frozen):
    """A waiting prompt, as clients see it. `position` counts from 1; `mode` `steer`: it waits for the running turn."""

    id: str
    text: str
    attachments: Items[Attachment] = Field([], exclude_if=lambda items: not items)
    position: int
    mode: PromptMode
    received_at: UtcDatetime


class QueueView(Frozen):
    """Answer of the query `get_queue`: the waiting prompts in order, and the last 200 fates, newest last.

    If ids were requested, it has only these prompts, with their positions in the whole queue. Otherwise it has the
    first prompts before any parked one, in about 1 MB.
    """

    waiting: list[QueuedPrompt]
    fates: list[Fate]
    revision: int
    refusing: RejectionReason | None = None
    """Why the session would reject any new prompt now; null: it accepts prompts."""
    refusing_because: str | None = None
    length: int = 0
    """Number of waiting prompts, with parked ones."""
    bytes: int = 0
    """JSON bytes of all waiting texts."""
    parked: int = 0
    """Number of parked prompts, whose texts are in the archive only."""
    positions: dict[str, int] = {}
    """Positions in the whole queue, from 1, of the requested ids that are waiting, with parked ones."""
    max_prompts: int = 0
    """`limits.max_queued_prompts`. Only the gateway enforces this limit and the next one, as a courtesy."""
    max_bytes: int = 0
    """The same limit for the JSON bytes of all texts."""
    as_of: Stamp = None


def text_bytes(prompt: Prompt | PromptSignal) -> int:
    """Return the JSON bytes of a prompt's text, with its attachments if it has any."""
    return len(to_json(prompt.text)) + json_bytes(prompt.attachments)


def read_prompt(
    raw: object, *, extra_arguments: int, new_id: str, now: UtcDatetime, max_chars: int = WIDEST.max_prompt_chars
) -> Prompt:
    """Parse the argument of the signal `prompt`. Raises `RejectedError` with a reason for people (SES-5).

    `max_chars` is the session's own limit of a text. The other bounds are absolute.

    >>> from datetime import datetime, UTC
    >>> at = datetime(2026, 1, 1, tzinfo=UTC)
    >>> read_prompt("hello", extra_arguments=0, new_id="p1", now=at).text
    'hello'
    """
    if extra_arguments:
        raise RejectedError("invalid", f"A prompt is one JSON value; this signal has {extra_arguments + 1}.")
    if isinstance(raw, str):
        raw = {"text": raw}
    if not isinstance(raw, dict):
        raise RejectedError("invalid", f"A prompt is a JSON string or an object with `text`, not {_json_type(raw)}.")
    if len(raw) > MAX_PROMPT_KEYS:
        raise RejectedError("invalid", f"A prompt is an object with `text`; this one has {len(raw):,} keys.")
    if not raw.get("attachments"):
        raw = {key: value for key, value in raw.items() if key != "attachments"}
    try:
        signal = PromptSignal.model_validate(raw)
    except ValidationError as error:
        raise rejection_for(error) from None
    limits = WIDEST.model_copy(update={"max_prompt_chars": max_chars})
    check_text(signal.text, limits=limits, may_be_blank=bool(signal.attachments))
    _check_attachments(signal.attachments)
    return Prompt(
        id=signal.id or new_id,
        text=signal.text,
        attachments=signal.attachments,
        received_at=now,
        sent_at=signal.sent_at,
        mode=signal.mode,
        retries=signal.retries,
    )


def id_in(raw: object) -> str | None:
    """Return the id in a prompt that may be invalid otherwise; `None` if it has no valid id."""
    message_id = raw.get("id") if isinstance(raw, dict) else None
    return message_id if isinstance(message_id, str) and is_id(message_id) else None


def _check_attachments(attachments: Sequence[Attachment]) -> None:
    """Raise `RejectedError` for attachments that no signal may have (CTX-16)."""
    check_attachments(attachments)
    size = json_bytes(attachments)
    if size > WIDEST.attachments_bytes:
        raise RejectedError(
            "invalid",
            f"attachments: hold {size:,} bytes as JSON; a signal may have {WIDEST.attachments_bytes:,}. Send the "
            "prompt through the gateway, which stores larger contents.",
            field="attachments",
        )


def check_text(text: str, *, limits: Limits, field: str = "text", may_be_blank: bool = False) -> None:
    """Raise `RejectedError` for a blank, too long or unstorable text (SES-5)."""
    if not text.strip() and not may_be_blank:
        raise RejectedError("blank", "The prompt is blank: send some text.", field=field)
    if len(text) > limits.max_prompt_chars:
        raise RejectedError(
            "too_long",
            f"The prompt has {len(text):,} characters; limits.max_prompt_chars allows {limits.max_prompt_chars:,}.",
            field=field,
        )
    if "\0" in text:
        raise RejectedError("invalid", "The prompt contains a NUL character (U+0000).", field=field)
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise RejectedError(
            "invalid",
            f"The prompt contains a lone surrogate at character {error.start}; send valid Unicode.",
            field=field,
        ) from None  # the cause has the whole text
    if size > limits.prompt_bytes:
        raise RejectedError(
            "too_long", f"The prompt has {size:,} bytes as UTF-8; {limits.prompt_bytes:,} are allowed.", field=field
        )


MAX_REJECTION_BYTES = 800
"""Maximum of a rejection's message, as JSON: with type and stack it stays under 2 KB (SES-10)."""


def rejection_for(error: ValidationError) -> RejectedError:
    """Return a rejection that names the wrong fields and what is allowed."""
    location = error.errors(include_url=False, include_context=False, include_input=False)[0]["loc"]
    return RejectedError("invalid", sentence_for(error), field=_path(location))


def sentence_for(error: ValidationError) -> str:
    """Return the first ten wrong fields and what is allowed; never repeats the caller's values."""
    problems = error.errors(include_url=False, include_input=False)[:10]
    sentence = "; ".join(f"{_path(problem['loc'])}: {reason_of(problem)}" for problem in problems)
    return f"{bound_json(sentence, MAX_REJECTION_BYTES, MAX_REJECTION_BYTES)}."


def _path(location: tuple[int | str, ...]) -> str:
    return field_path(location) or "value"


def _json_type(raw: object) -> str:
    if isinstance(raw, UndecodablePayload):
        return str(raw)
    names = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", list: "an array"}
    return names.get(type(raw), "binary data")


REMEMBERED_FATES = 200

REMEMBERED_IDS = 1_000


class FateBook:
    """The last fates, oldest first, those that wait for the archive, and the ids of decided prompts."""

    def __init__(self, *, recent: Iterable[Fate], leaving: Iterable[Fate], ids: Iterable[str], limits: Limits) -> None:
        """`limits` bound the bytes of `recent` and `ids`; `leaving` is only bounded by `bound_leaving`."""
        self.recent: deque[Fate] = deque()
        self.leaving: list[Fate] = []
        """Fates that wait for the archive, oldest first."""
        self.leaving_bytes = self.accepted_leaving_bytes = 0
        """JSON bytes of `leaving`, and of those that are no rejections."""
        self.ids: dict[str, None] = {}
        """The last ids of prompts that were accepted and have a fate, oldest first."""
        self._limits = limits
        self._recent_bytes = self._ids_bytes = 0
        self._by_id: dict[str, Fate] = {}
        for fate in leaving:
            self._by_id[fate.id] = fate
            self._leave(fate)
        for message_id in ids:
            self._remember(message_id)
        for fate in recent:
            self.add(fate)

    @property
    def bytes(self) -> int:
        """JSON bytes of the last fates and the ids, without the fates that wait for the archive."""
        return self._recent_bytes + self._ids_bytes

    def find(self, message_id: str) -> Fate | None:
        return self._by_id.get(message_id)

    def add(self, fate: Fate) -> None:
        """Remember a fate; the oldest ones leave. A rejected id may be sent again."""
        if fate.fate != "rejected":
            self._remember(fate.id)
        self.recent.append(fate)
        self._by_id[fate.id] = fate
        self._recent_bytes += fate_bytes(fate)
        while len(self.recent) > REMEMBERED_FATES or self._recent_bytes > self._limits.fates_bytes:
            oldest = self.recent.popleft()
            self._recent_bytes -= fate_bytes(oldest)
            if oldest.fate == "started":
                self._forget(oldest)
            else:
                self._leave(oldest)

    def first_leaving(self, *, max_bytes: int) -> list[Fate]:
        """Return the oldest fates with at most `max_bytes` together, but at least one if there is any."""
        total = accumulate(map(fate_bytes, self.leaving))
        return self.leaving[: max(1, sum(1 for _ in takewhile(lambda size: size <= max_bytes, total)))]

    def remove_leaving(self, fates: Iterable[Fate]) -> None:
        """Forget those fates that the archive has stored."""
        objects, leaving = {id(fate) for fate in fates}, self.leaving
        self.leaving, self.leaving_bytes, self.accepted_leaving_bytes = [], 0, 0
        for fate in leaving:
            if id(fate) in objects:
                self._forget(fate)
            else:
                self._leave(fate)

    def bound_leaving(self, *, max_bytes: int, rejections_only: bool) -> None:
        """Drop the oldest fates that wait for the archive, rejections first, until at most `max_bytes` are left."""
        rejections = [fate for fate in self.leaving if fate.fate == "rejected"]
        others = [] if rejections_only else [fate for fate in self.leaving if fate.fate != "rejected"]
        excess, dropped = self.leaving_bytes - max_bytes, list[Fate]()
        for fate in [*rejections, *others]:
            if excess <= 0:
                break
            dropped.append(fate)
            excess -= fate_bytes(fate)
        self.remove_leaving(dropped)

    def _remember(self, message_id: str) -> None:
        """Remember an id, and forget the oldest if necessary. A known id keeps its place."""
        if message_id in self.ids:
            return
        self.ids[message_id] = None
        self._ids_bytes += _id_bytes(message_id)
        while len(self.ids) > REMEMBERED_IDS or self._ids_bytes > self._limits.ids_bytes:
            oldest = next(iter(self.ids))
            del self.ids[oldest]
            self._ids_bytes -= _id_bytes(oldest)

    def _leave(self, fate: Fate) -> None:
        self.leaving.append(fate)
        self.leaving_bytes += fate_bytes(fate)
        self.accepted_leaving_bytes += fate_bytes(fate) if fate.fate != "rejected" else 0

    def _forget(self, fate: Fate) -> None:
        if self._by_id.get(fate.id) is fate:
            del self._by_id[fate.id]


def fate_bytes(fate: Fate) -> int:
    """Return the JSON bytes of a fate in a list."""
    return len(fate.model_dump_json()) + 1


def _id_bytes(message_id: str) -> int:
    return len(message_id) + 3  # its quotes, and a comma
