"""Prompts on their way in: what is accepted, in which order they start, and what became of each (SES-5 to SES-7).

Theory of operation. A prompt is accepted once, whatever the network does: its id is remembered. From then on it is
waiting, or has exactly one fate:

    accepted ──► waiting ──► started      became a turn
                    │  └───► withdrawn    taken back by the user
                    │  └───► discarded    the session ended first
                    └► steering ► steered taken up by the running turn; if the turn ends first, back to waiting
                    └───────► rejected    the session can hold no more (SES-15); its id may be sent again
    refused ───────────────► rejected     with the reason; its id may be sent again

Nothing here knows Temporal: ids and times are given by the caller.
"""

from collections import deque
from collections.abc import Iterable
from typing import Literal

from pydantic import Field, ValidationError
from pydantic_core import to_json

from models.as_of import Stamp
from models.context.bounds import bound_json
from models.errors import RefusalReason, Refused
from models.field_paths import field_path
from models.ids import ID_PATTERN, is_id
from models.limits import Limits
from models.wire import Compact, Frozen, Strict, UtcDatetime

PromptMode = Literal["enqueue", "interrupt", "steer"]
"""What a prompt does to a running turn: wait behind it, cancel it and go next, or join it (SES-7)."""

FateName = Literal["started", "steered", "withdrawn", "discarded", "rejected"]

REMEMBERED_IDS = 1_000
REMEMBERED_FATES = 200

REASON_BYTES = 500
"""What is kept of a fate's reason, in JSON."""


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


class QueuedPrompt(Frozen):
    """A waiting prompt as shown to clients; `position` counts from 1, `mode` `steer` waits for the running turn."""

    id: str
    text: str
    position: int
    mode: PromptMode
    received_at: UtcDatetime


class QueueView(Frozen):
    """Answer of the query `get_queue`: what waits, in order, and the last 200 fates, newest last.

    Asked for one `message_id`, it holds that prompt only.
    """

    waiting: list[QueuedPrompt]
    fates: list[Fate]
    revision: int
    refusing: RefusalReason | None = None
    """What any new prompt would be refused with now."""
    refusing_because: str | None = None
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
    if raw.get("attachments"):
        raise Refused("invalid", "Attachments are not taken by this version.", field="attachments")
    try:
        given = PromptSignal.model_validate({key: value for key, value in raw.items() if key != "attachments"})
    except ValidationError as error:
        raise Refused("invalid", sentence_of(error), field=field_of(error)) from error
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
        ) from error
    if size > limits.prompt_bytes:
        raise Refused(
            "too_long", f"The prompt has {size:,} bytes as UTF-8; {limits.prompt_bytes:,} are allowed.", field=field
        )


def sentence_of(error: ValidationError) -> str:
    """Name every field that is wrong and what is allowed; never repeats the caller's values."""
    return "; ".join(f"{_path(problem['loc'])}: {problem['msg']}" for problem in error.errors()[:10]) + "."


def field_of(error: ValidationError) -> str:
    """Return the path of the first field that is wrong."""
    return _path(error.errors()[0]["loc"])


def _path(location: tuple[int | str, ...]) -> str:
    return field_path(location) or "value"


def _json_type(raw: object) -> str:
    names = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", list: "an array"}
    return names.get(type(raw), "binary data")


class PromptQueue:
    """The waiting prompts, first in first out, the ids already taken, and the last fates."""

    def __init__(
        self,
        *,
        waiting: Iterable[Prompt] = (),
        steering: Iterable[Prompt] = (),
        taken_ids: Iterable[str] = (),
        fates: Iterable[Fate] = (),
        limits: Limits | None = None,
    ) -> None:
        """Continue from what another run carried over; `limits` bound what is remembered."""
        limits = limits or Limits()
        self.waiting = list(waiting)
        self.steering = list(steering)
        self._most_ids_bytes, self._most_fates_bytes = limits.ids_bytes, limits.fates_bytes
        self.ids_bytes = 0
        self.fates_bytes = 0
        self.taken_ids: dict[str, None] = {}
        self.fates: deque[Fate] = deque()
        for message_id in taken_ids:
            self._take_id(message_id)
        for fate in fates:
            self._remember(fate)

    def __len__(self) -> int:
        return len(self.waiting) + len(self.steering)

    def is_duplicate(self, message_id: str) -> bool:
        """Tell whether this id was accepted before: the same prompt, sent again (SES-6)."""
        return message_id in self.taken_ids

    def check_room(self, prompt: Prompt, limits: Limits) -> None:
        """Pass while another prompt fits. Raises `Refused` (SES-6)."""
        self.check_count(limits)
        # As JSON, since that is how they are carried: a control character takes six bytes there.
        size = sum(len(to_json(queued.text)) for queued in [*self.waiting, *self.steering, prompt])
        if size > limits.queued_bytes:
            raise Refused(
                "queue_full",
                f"The waiting prompts would hold {size:,} bytes; limits.max_queued_bytes and limits.max_state_bytes "
                f"allow {limits.queued_bytes:,}.",
            )

    def check_count(self, limits: Limits) -> None:
        """Pass while fewer prompts wait than may. Raises `Refused` (SES-6)."""
        if len(self) >= limits.max_queued_prompts:
            raise Refused(
                "queue_full",
                f"{len(self)} prompts are waiting already; "
                f"limits.max_queued_prompts allows {limits.max_queued_prompts}.",
            )

    def accept(self, prompt: Prompt, *, turn_is_running: bool) -> None:
        """Queue a prompt by its mode; from here it ends in exactly one fate (SES-6, SES-7)."""
        self._take_id(prompt.id)
        if not turn_is_running or prompt.mode == "enqueue":
            self.waiting.append(prompt)
        elif prompt.mode == "interrupt":
            self.waiting.insert(0, prompt)
        else:
            self.steering.append(prompt)

    def reject(self, message_id: str, refusal: Refused, *, at: UtcDatetime) -> None:
        """Record that a prompt was refused and why; its id may be sent again."""
        self._decide(message_id, "rejected", at=at, reason=refusal.message, refusal=refusal.reason)

    def start_next(self, *, at: UtcDatetime) -> Prompt:
        """Take the prompt whose turn starts now. Raises `IndexError` when none waits."""
        prompt = self.waiting.pop(0)
        self._decide(prompt.id, "started", at=at, turn_id=prompt.id)
        return prompt

    def take_steering(self, turn_id: str, *, at: UtcDatetime, room: int) -> list[Prompt]:
        """Take what waits to join the running turn `turn_id` and fits into `room` bytes of JSON, in order (SES-7)."""
        taken: list[Prompt] = []
        while self.steering and (room := room - len(to_json(self.steering[0].text))) >= 0:
            taken.append(self.steering.pop(0))
            self._decide(taken[-1].id, "steered", at=at, turn_id=turn_id)
        return taken

    def requeue_steering(self) -> None:
        """Put what no model call took up to the head of the queue, behind the prompt that interrupted it (SES-7)."""
        first = next(
            (index for index, prompt in enumerate(self.waiting) if prompt.mode != "interrupt"), len(self.waiting)
        )
        self.waiting[first:first] = self.steering
        self.steering = []

    def find(self, message_id: str) -> Prompt | None:
        """Return the waiting prompt with this id."""
        return next((prompt for prompt in [*self.steering, *self.waiting] if prompt.id == message_id), None)

    def withdraw(self, message_id: str, *, at: UtcDatetime) -> None:
        """Take a waiting prompt back. Raises `Refused` when it is not waiting (SES-8)."""
        self.check_waiting(message_id)
        self.waiting = [prompt for prompt in self.waiting if prompt.id != message_id]
        self.steering = [prompt for prompt in self.steering if prompt.id != message_id]
        self._decide(message_id, "withdrawn", at=at)

    def check_waiting(self, message_id: str) -> None:
        """Pass when the prompt can still be withdrawn. Raises `Refused` saying what became of it instead."""
        if self.find(message_id):
            return
        fate = self.fate_of(message_id)
        if fate is None and message_id not in self.taken_ids:
            raise Refused("unknown_prompt", f"No prompt {message_id!r} is known in this session.", field="id")
        became = fate.fate if fate else "processed"
        raise Refused("not_waiting", f"Prompt {message_id!r} is not waiting: it was {became} already.", field="id")

    def discard_all(self, reason: str, *, at: UtcDatetime) -> None:
        """Give every waiting prompt the fate `discarded`: the session ends without them."""
        for prompt in [*self.steering, *self.waiting]:
            self._decide(prompt.id, "discarded", at=at, reason=reason)
        self.waiting, self.steering = [], []

    def reject_all(self, refusal: Refused, *, at: UtcDatetime) -> None:
        """Give every waiting prompt the fate `rejected`: the session can take no more work (SES-15)."""
        for prompt in [*self.steering, *self.waiting]:
            self.reject(prompt.id, refusal, at=at)
            self._forget_id(prompt.id)
        self.waiting, self.steering = [], []

    def fate_of(self, message_id: str) -> Fate | None:
        """Return what became of a prompt, as far as it is remembered."""
        return next((fate for fate in reversed(self.fates) if fate.id == message_id), None)

    def view(self, *, revision: int, message_id: str | None = None, refusing: Refused | None = None) -> QueueView:
        """Show what waits and what became of the rest; of one prompt only, where its id is given."""
        waiting = [
            QueuedPrompt(
                id=prompt.id, text=prompt.text, position=number, mode=prompt.mode, received_at=prompt.received_at
            )
            for number, prompt in enumerate([*self.steering, *self.waiting], start=1)
            if message_id in (None, prompt.id)
        ]
        if message_id is None:
            fates = list(self.fates)
        else:
            fate = None if waiting else self.fate_of(message_id)
            fates = [fate] if fate else []
        return QueueView(
            waiting=waiting,
            fates=fates,
            revision=revision,
            refusing=refusing.reason if refusing else None,
            refusing_because=refusing.message if refusing else None,
        )

    def _take_id(self, message_id: str) -> None:
        self.taken_ids[message_id] = None
        self.ids_bytes += _id_bytes(message_id)
        while len(self.taken_ids) > REMEMBERED_IDS or self.ids_bytes > self._most_ids_bytes:
            self._forget_id(next(iter(self.taken_ids)))

    def _forget_id(self, message_id: str) -> None:
        if message_id in self.taken_ids:
            del self.taken_ids[message_id]
            self.ids_bytes -= _id_bytes(message_id)

    def _decide(
        self,
        message_id: str,
        fate: FateName,
        *,
        at: UtcDatetime,
        turn_id: str | None = None,
        reason: str | None = None,
        refusal: RefusalReason | None = None,
    ) -> None:
        told = reason and bound_json(reason, REASON_BYTES, REASON_BYTES)
        self._remember(Fate(id=message_id, fate=fate, at=at, turn_id=turn_id, reason=told, refusal=refusal))

    def _remember(self, fate: Fate) -> None:
        self.fates.append(fate)
        self.fates_bytes += _fate_bytes(fate)
        while len(self.fates) > REMEMBERED_FATES or self.fates_bytes > self._most_fates_bytes:
            self.fates_bytes -= _fate_bytes(self.fates.popleft())


def _id_bytes(message_id: str) -> int:
    return len(message_id) + 3  # its quotes, and a comma


def _fate_bytes(fate: Fate) -> int:
    return len(fate.model_dump_json()) + 1
