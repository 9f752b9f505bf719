"""The queue of a session: what it may hold, which prompt starts next, and what becomes of each (SES-6).

Theory of operation. A prompt that is accepted waits in one row (`prompt_row.py`), part of which may be parked in the
archive. Its id is remembered (`taken_ids.py`), so that the same prompt sent again is no other one. It leaves the row by
exactly one fate (`prompt_fates.py`).
"""

from collections.abc import Callable, Collection, Iterable, Sequence

from turnkeeper.models.bounds import bound_json
from turnkeeper.models.errors import RefusalReason, Refused
from turnkeeper.models.limits import Limits
from turnkeeper.models.session.archive.archive_state import ArchiveMove
from turnkeeper.models.session.queue.leaving_fates import LeavingFates
from turnkeeper.models.session.queue.prompt_fates import PromptFates
from turnkeeper.models.session.queue.prompt_row import PromptRow, RowState, row_bytes, text_bytes
from turnkeeper.models.session.queue.prompts import Fate, FateName, ParkedPrompt, Prompt, QueuedPrompt, QueueView
from turnkeeper.models.session.queue.taken_ids import TakenIds
from turnkeeper.models.wire import Compact, Items, UtcDatetime

ACCEPTED_TIMES = 10
"""The session accepts this many times what the gateway admits: others send too, and some see an older queue (SES-6)."""

FATES_AT_ONCE = 50
"""Once this many fates wait to leave, they are moved to the archive."""

REASON_BYTES = 500
"""What is kept of a fate's reason, in JSON."""


class QueueState(Compact):
    """What the next run is handed of the queue (SES-14)."""

    row: RowState = RowState()
    taken_ids: Items[str] = []
    fates: Items[Fate] = []
    leaving: Items[Fate] = []
    """Fates on their way to the archive, oldest first."""


class PromptQueue:
    """The waiting prompts, first in first out, the ids already taken, and the last fates."""

    def __init__(
        self, state: QueueState, *, limits: Limits, rules: int = 3, on_change: Callable[[], object] = lambda: None
    ) -> None:
        """Go on from `state`; `limits` bound what is remembered.

        `on_change` is called by `withdraw`, `remove_moved` and `restore_parked`. All other changes are pieces of a
        change of the session, which raises its revision itself. By rules 1 nothing is parked, and fates that fall out
        of the last 200 are forgotten.
        """
        self._rules = rules
        self._on_change = on_change
        self.row = PromptRow(state.row, rules=rules)
        self.taken_ids = TakenIds(state.taken_ids, max_bytes=limits.ids_bytes)
        self._fates = PromptFates(state.fates, state.leaving, max_bytes=limits.fates_bytes, rules=rules)

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
        """The prompts that wait to join the running turn."""
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
        """Return whether this id was accepted before: the same prompt, sent again (SES-6)."""
        return message_id in self.taken_ids or (self._rules >= 2 and message_id in self.row)

    # ---- what it may hold

    def check_room(self, prompt: Prompt, limits: Limits) -> None:
        """Raise `Refused` where another prompt would be too much (SES-6)."""
        self.check_count(limits)
        # As JSON, since that is how they are carried: a control character takes six bytes there.
        size = text_bytes(prompt)
        most = limits.queued_bytes * self._times
        if self.row.text_bytes + size > most or size > limits.queued_bytes:
            one = f", {limits.queued_bytes:,} of them for one prompt" if self._times > 1 else ""
            raise Refused(
                "queue_full",
                f"The waiting prompts would hold {self.row.text_bytes + size:,} bytes; limits.max_queued_bytes and "
                f"limits.max_state_bytes allow {most:,}{one}.",
            )
        if self._rules >= 2 and self.row.id_bytes + row_bytes(prompt.id) > limits.parked_bytes:
            raise Refused(
                "queue_full",
                f"The ids of the {len(self):,} waiting prompts take {self.row.id_bytes:,} bytes; "
                f"limits.max_state_bytes allows {limits.parked_bytes:,}.",
            )

    def check_count(self, limits: Limits) -> None:
        """Raise `Refused` where as many prompts wait as may (SES-6)."""
        most = limits.max_queued_prompts * self._times
        if len(self) >= most:
            allows = f"limits.max_queued_prompts allows {limits.max_queued_prompts}"
            held = f"{allows}, and the session holds {self._times} times as many" if self._times > 1 else allows
            raise Refused("queue_full", f"{len(self)} prompts are waiting already; {held}.")

    @property
    def _times(self) -> int:
        return ACCEPTED_TIMES if self._rules >= 2 else 1

    def carried_bytes(self, limits: Limits) -> int:
        """Count what is carried of the queue, as if it were full."""
        memory = self.taken_ids.bytes + self._fates.bytes + min(self.leaving.bytes, limits.leaving_bytes)
        return memory + self.row.carried_bytes(limits)

    # ---- in and out

    def accept(self, prompt: Prompt, *, turn_is_running: bool) -> None:
        """Queue a prompt by its mode; from here it ends in exactly one fate (SES-6, SES-7)."""
        self.taken_ids.add(prompt.id)
        self.row.insert(prompt, turn_is_running=turn_is_running)

    def reject(self, message_id: str, refusal: Refused, *, at: UtcDatetime) -> None:
        """Record that a prompt was refused and why; its id may be sent again."""
        self._decide(message_id, "rejected", at=at, reason=refusal.message, refusal=refusal.reason)

    def start_next(self, *, at: UtcDatetime) -> Prompt:
        """Take the prompt whose turn starts now. Raises `IndexError` when none waits here."""
        prompt = self.row.pop_next()
        self._decide(prompt.id, "started", at=at, turn_id=prompt.id)
        return prompt

    def take_steering(self, turn_id: str, *, at: UtcDatetime, room: int) -> list[Prompt]:
        """Take what waits to join the running turn `turn_id` and fits into `room` bytes of JSON, in order (SES-7)."""
        taken = self.row.pop_steering(room=room)
        for prompt in taken:
            self._decide(prompt.id, "steered", at=at, turn_id=turn_id)
        return taken

    def requeue_steering(self) -> None:
        """Put what no model call took up to the head of the queue, behind the prompt that interrupted it (SES-7)."""
        self.row.requeue_steering()

    def withdraw(self, message_id: str, *, at: UtcDatetime) -> None:
        """Take a waiting prompt back, at a cost in proportion to what waits. Raises `Refused` (SES-8)."""
        self.check_waiting(message_id)
        self.row.remove(message_id)
        self._decide(message_id, "withdrawn", at=at)
        self._on_change()

    def check_waiting(self, message_id: str) -> None:
        """Raise `Refused` where the prompt can't be withdrawn, saying what became of it instead."""
        if message_id in self.row:
            return
        fate = self.fate_of(message_id)
        if fate is None and message_id not in self.taken_ids:
            raise Refused("unknown_prompt", f"No prompt {message_id!r} is known in this session.", field="id")
        became = fate.fate if fate else "processed"
        raise Refused("not_waiting", f"Prompt {message_id!r} is not waiting: it was {became} already.", field="id")

    def discard_all(self, reason: str, *, at: UtcDatetime) -> None:
        """Give every waiting prompt the fate `discarded`: the session ends without them."""
        for message_id in self.row.clear():
            self._decide(message_id, "discarded", at=at, reason=reason)

    def reject_all(self, refusal: Refused, *, at: UtcDatetime) -> None:
        """Give every waiting prompt the fate `rejected`: the session can take no more work (SES-15)."""
        for message_id in self.row.clear():
            self._reject_accepted(message_id, refusal, at=at)

    def reject_surplus(self, refusal: Refused, limits: Limits, *, at: UtcDatetime) -> None:
        """Give what can't be carried, the last of what is held here, the fate `rejected`; parked prompts stay."""
        while not self.row.fits(limits):
            self._reject_accepted(self.row.pop_last().id, refusal, at=at)

    def _reject_accepted(self, message_id: str, refusal: Refused, *, at: UtcDatetime) -> None:
        self.reject(message_id, refusal, at=at)
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
        """Hold parked prompts again, at their place; returns whether the next one was among them."""
        is_next = self.row.restore_parked(prompts)
        self._on_change()
        return is_next

    def bound_leaving(self, limits: Limits, *, rejections_only: bool) -> None:
        """Drop the oldest fates on their way to the archive until the rest can be carried, rejections first."""
        self._fates.bound_leaving(max_bytes=limits.leaving_bytes, rejections_only=rejections_only)

    # ---- what it shows

    def fate_of(self, message_id: str) -> Fate | None:
        return self._fates.of(message_id)

    def view(
        self,
        *,
        revision: int,
        message_ids: Collection[str] | None = None,
        refusing: Refused | None = None,
        limits: Limits | None = None,
    ) -> QueueView:
        """Show what waits and what became of the rest; only these prompts, where `message_ids` are given."""
        limits, row = limits or Limits(), self.row
        if message_ids is None:
            places: Iterable[tuple[int, Prompt | ParkedPrompt]] = enumerate(row.held, start=1)
            positions: dict[str, int] = {}
            fates = list(self.fates)
        else:
            places = row.places(message_ids)
            positions = {item.id: position for position, item in places}
            decided = [one for one in message_ids if one not in row]
            fates = [fate for one in decided if (fate := self.fate_of(one))]
        return QueueView(
            waiting=self._shown(places, max_bytes=limits.page_bytes - limits.fates_bytes),
            fates=fates,
            revision=revision,
            refusing=refusing.reason if refusing else None,
            refusing_because=refusing.message if refusing else None,
            length=len(row),
            bytes=row.text_bytes,
            parked=len(row.parked),
            positions=positions,
            max_prompts=limits.max_queued_prompts,
            max_bytes=limits.queued_bytes,
        )

    def _shown(self, places: Iterable[tuple[int, Prompt | ParkedPrompt]], *, max_bytes: int) -> list[QueuedPrompt]:
        """Return the first prompts that take at most `max_bytes` together, one at least; none that is parked."""
        shown: list[QueuedPrompt] = []
        for position, item in places:
            if isinstance(item, Prompt):
                max_bytes -= self.row.size_of(item)
                if max_bytes < 0 and shown:
                    break
                shown.append(_queued(item, position))
        return shown

    # ---- inside

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
        if self._rules >= 2 and fate != "rejected":
            self.taken_ids.add(message_id)  # while it waited it may have made way for others
        sentence = reason and bound_json(reason, REASON_BYTES, REASON_BYTES)
        self._fates.add(Fate(id=message_id, fate=fate, at=at, turn_id=turn_id, reason=sentence, refusal=refusal))


def _queued(prompt: Prompt, position: int) -> QueuedPrompt:
    return QueuedPrompt(
        id=prompt.id, text=prompt.text, position=position, mode=prompt.mode, received_at=prompt.received_at
    )
