"""The queue of a session: its limits, the order of prompts, and their fates (SES-6).

An accepted prompt waits in a row (`prompt_row.py`), part of which may be parked in the archive. Its id is remembered
(`taken_ids.py`), so that the same prompt sent again is not a second one. It leaves the row with exactly one fate
(`recent_fates.py`).
"""

from collections.abc import Callable, Collection, Iterable, Sequence

from turnkeeper.models.bounds import bound_json
from turnkeeper.models.errors import RejectedError, RejectionReason
from turnkeeper.models.limits import Limits
from turnkeeper.models.session.archive.archive_messages import ArchiveMove
from turnkeeper.models.session.queue.leaving_fates import LeavingFates
from turnkeeper.models.session.queue.prompt_row import PromptRow, RowState
from turnkeeper.models.session.queue.prompts import Fate, FateName, ParkedPrompt, Prompt, QueuedPrompt, QueueView
from turnkeeper.models.session.queue.recent_fates import RecentFates
from turnkeeper.models.session.queue.taken_ids import TakenIds
from turnkeeper.models.wire import Compact, Items, UtcDatetime

FATES_AT_ONCE = 50
"""Number of waiting fates that starts a move to the archive."""

REASON_BYTES = 500
"""Maximum of a fate's reason, as JSON."""


class QueueState(Compact):
    """The carried part of the queue (SES-14)."""

    row: RowState = RowState()
    taken_ids: Items[str] = []
    fates: Items[Fate] = []
    leaving: Items[Fate] = []
    """Fates that wait for the archive, oldest first."""


class PromptQueue:
    """The waiting prompts, first in first out, the ids of accepted prompts, and the last fates."""

    def __init__(self, state: QueueState, *, limits: Limits, on_change: Callable[[], object] = lambda: None) -> None:
        """Continue from `state`; `limits` bound the remembered ids and fates.

        `withdraw`, `remove_moved` and `restore_parked` call `on_change`. All other methods are called in a change of
        the session, which raises the revision itself.
        """
        self._on_change = on_change
        self.row = PromptRow(state.row)
        self.taken_ids = TakenIds(state.taken_ids, max_bytes=limits.ids_bytes)
        self._fates = RecentFates(state.fates, state.leaving, max_bytes=limits.fates_bytes)

    @property
    def state(self) -> QueueState:
        return QueueState(
            row=self.row.state, taken_ids=list(self.taken_ids), fates=list(self.fates), leaving=list(self.leaving)
        )

    def __len__(self) -> int:
        return len(self.row)

    @property
    def waiting(self) -> list[Prompt]:
        return self.row.waiting

    @property
    def steering(self) -> list[Prompt]:
        """The steering prompts, which wait to join the running turn."""
        return self.row.steering

    @property
    def parked(self) -> Sequence[ParkedPrompt]:
        return self.row.parked

    @property
    def fates(self) -> Sequence[Fate]:
        return self._fates.recent

    @property
    def leaving(self) -> LeavingFates:
        return self._fates.leaving

    def is_duplicate(self, message_id: str) -> bool:
        """Return whether this id was accepted before (SES-6)."""
        return message_id in self.taken_ids or message_id in self.row

    # ---- its size

    @property
    def carried_bytes(self) -> int:
        return self.taken_ids.bytes + self._fates.bytes + self.leaving.bytes + self.row.carried_bytes

    def reserved_bytes(self, limits: Limits) -> int:
        """Return the carried bytes of a full queue with the present ids and fates."""
        memory = self.taken_ids.bytes + self._fates.bytes + min(self.leaving.bytes, limits.leaving_bytes)
        return memory + self.row.reserved_bytes(limits)

    # ---- in and out

    def accept(self, prompt: Prompt, *, turn_is_running: bool) -> None:
        """Queue a prompt by its mode; from here it gets exactly one fate (SES-6, SES-7)."""
        self.taken_ids.add(prompt.id)
        self.row.insert(prompt, turn_is_running=turn_is_running)

    def reject(self, message_id: str, rejection: RejectedError, *, at: UtcDatetime) -> None:
        """Record that a prompt was rejected, and why; its id may be sent again."""
        self._decide(message_id, "rejected", at=at, reason=rejection.message, refusal=rejection.reason)

    def discard_late(self, message_id: str, rejection: RejectedError, *, at: UtcDatetime) -> None:
        """Record that a prompt came after the session had begun to end."""
        self._decide(message_id, "discarded", at=at, reason=rejection.message, refusal=rejection.reason)

    def start_next(self, *, at: UtcDatetime) -> Prompt:
        """Remove and return the prompt whose turn starts now. Raises `IndexError` if there is none."""
        prompt = self.row.pop_next()
        self._decide(prompt.id, "started", at=at, turn_id=prompt.id)
        return prompt

    def pop_steering_prompts(self, turn_id: str, *, at: UtcDatetime, room: int) -> list[Prompt]:
        """Remove and return the steering prompts that fit in `room` bytes of JSON, for turn `turn_id` (SES-7)."""
        prompts = self.row.pop_steering(room=room)
        for prompt in prompts:
            self._decide(prompt.id, "steered", at=at, turn_id=turn_id)
        return prompts

    def requeue_steering(self) -> None:
        """Move unused steering prompts to the head of the queue, behind interrupting ones (SES-7)."""
        self.row.requeue_steering()

    def withdraw(self, message_id: str, *, at: UtcDatetime) -> None:
        """Withdraw a waiting prompt, in linear time. Raises `RejectedError` (SES-8)."""
        self.check_waiting(message_id)
        self.row.remove(message_id)
        self._decide(message_id, "withdrawn", at=at)
        self._on_change()

    def check_waiting(self, message_id: str) -> None:
        """Raise `RejectedError` if the prompt is not waiting, with its fate."""
        if message_id in self.row:
            return
        fate = self.fate_of(message_id)
        if fate is None and message_id not in self.taken_ids:
            raise RejectedError("unknown_prompt", f"No prompt {message_id!r} is known in this session.", field="id")
        became = fate.fate if fate else "processed"
        raise RejectedError(
            "not_waiting", f"Prompt {message_id!r} is not waiting: it was {became} already.", field="id"
        )

    def discard_all(self, reason: str, *, at: UtcDatetime) -> None:
        """Discard all waiting prompts: the session ends without them."""
        for message_id in self.row.clear():
            self._decide(message_id, "discarded", at=at, reason=reason)

    def reject_last(self, rejection: RejectedError, *, at: UtcDatetime) -> None:
        """Reject the last waiting prompt, for which Temporal has no room (SES-15). Raises `IndexError`."""
        message_id = self.row.pop_last()
        self.reject(message_id, rejection, at=at)
        self.taken_ids.forget(message_id)

    # ---- the archive

    def remove_moved(self, move: ArchiveMove) -> None:
        """Hold no longer what the archive has taken of prompts and fates."""
        for message_id in self.row.put_parked(move.prompts, first=move.first):
            self.taken_ids.forget(message_id)  # what waits is known by its place
        self._fates.remove_leaving(move.fates)
        self.row.forget_below(move.forget_below)
        self._on_change()

    def restore_parked(self, prompts: Iterable[Prompt]) -> bool:
        """Put parked prompts back in their places; return whether the next one was among them."""
        is_next = self.row.restore_parked(prompts)
        self._on_change()
        return is_next

    def bound_leaving(self, limits: Limits, *, rejections_only: bool) -> None:
        """Drop fates that wait for the archive, rejections first, until the rest can be carried."""
        self._fates.bound_leaving(max_bytes=limits.leaving_bytes, rejections_only=rejections_only)

    # ---- its view

    def fate_of(self, message_id: str) -> Fate | None:
        return self._fates.of(message_id)

    def view(
        self,
        *,
        revision: int,
        message_ids: Collection[str] | None = None,
        rejection: RejectedError | None = None,
        limits: Limits | None = None,
    ) -> QueueView:
        """Return the waiting prompts and the last fates; with `message_ids`, of these prompts only."""
        limits, row = limits or Limits(), self.row
        if message_ids is None:
            places: Iterable[tuple[int, Prompt | ParkedPrompt]] = enumerate(row.before_parked, start=1)
            positions: dict[str, int] = {}
            fates = list(self.fates)
        else:
            places = row.places(message_ids)
            positions = {item.id: position for position, item in places}
            others = [one for one in message_ids if one not in row]
            fates = [fate for one in others if (fate := self.fate_of(one))]
        return QueueView(
            waiting=self._visible(places, max_bytes=limits.page_bytes - limits.fates_bytes),
            fates=fates,
            revision=revision,
            refusing=rejection.reason if rejection else None,
            refusing_because=rejection.message if rejection else None,
            length=len(row),
            bytes=row.text_bytes,
            parked=len(row.parked),
            positions=positions,
            max_prompts=limits.max_queued_prompts,
            max_bytes=limits.queued_bytes,
        )

    def _visible(self, places: Iterable[tuple[int, Prompt | ParkedPrompt]], *, max_bytes: int) -> list[QueuedPrompt]:
        """Return the first prompts, without parked ones, with at most `max_bytes` together, but at least one."""
        visible: list[QueuedPrompt] = []
        for position, item in places:
            if isinstance(item, Prompt):
                max_bytes -= self.row.size_of(item)
                if max_bytes < 0 and visible:
                    break
                visible.append(_queued(item, position))
        return visible

    # ---- inside

    def _decide(
        self,
        message_id: str,
        fate: FateName,
        *,
        at: UtcDatetime,
        turn_id: str | None = None,
        reason: str | None = None,
        refusal: RejectionReason | None = None,
    ) -> None:
        if fate != "rejected":
            self.taken_ids.add(message_id)  # it may have been forgotten while the prompt waited
        sentence = reason and bound_json(reason, REASON_BYTES, REASON_BYTES)
        self._fates.add(Fate(id=message_id, fate=fate, at=at, turn_id=turn_id, reason=sentence, refusal=refusal))


def _queued(prompt: Prompt, position: int) -> QueuedPrompt:
    return QueuedPrompt(
        id=prompt.id,
        text=prompt.text,
        attachments=prompt.attachments,
        position=position,
        mode=prompt.mode,
        received_at=prompt.received_at,
    )
