"""Positions of prompts, with one query to a session for all concurrent callers (API-1).

A caller's id joins the next query, never one that has been sent, so that the result includes the prompt that the caller
has just signalled. A session gets one query at a time.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from turnkeeper.api.coalescer import SerialCoalescer
from turnkeeper.api.problems import problem, rejected
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.session.queue.prompts import Fate, QueueView

MAX_IDS = 100
"""Ids in one query."""

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Receipt:
    """Where an accepted prompt is; neither field is set while no worker answers.

    `position` counts from 1 in the queue. It is 0 once the prompt has started or joined a turn; `fate` then says which.
    """

    message_id: str
    position: int | None = None
    fate: Fate | None = None

    @property
    def is_known(self) -> bool:
        """Return whether a worker has answered."""
        return self.position is not None or self.fate is not None


def position_in(view: QueueView, message_id: str) -> int | None:
    """Return a prompt's position in the queue, from 1; `None` if it is not in the queue."""
    return view.positions.get(message_id)


def receipt_of(view: QueueView, message_id: str) -> Receipt:
    """Return the receipt of a prompt from a view that includes it. Raises the session's rejection."""
    position = position_in(view, message_id)
    if position is not None:
        return Receipt(message_id, position=position)
    fate = next((fate for fate in view.fates if fate.id == message_id), None)
    if fate and fate.refusal:
        raise rejected(fate.refusal, fate.reason or "The prompt was rejected.", field="message")
    if fate and fate.turn_id is None:
        raise problem("not-waiting", message_id=message_id, fate=fate.fate)
    return Receipt(message_id, position=0 if fate else None, fate=fate)


def early_receipt_of(view: QueueView, message_id: str) -> Receipt | None:
    """Return the receipt from a view that may be of the moment before the signal; `None` if only a later one has it.

    The prompt has mode `enqueue` and no attachments: of another one the view says nothing.
    Raises as `receipt_of` does. A rejection in the view may be an earlier one: the id may have been sent again.
    """
    if view.next_position is not None and message_id not in view.positions:
        return Receipt(message_id, position=view.next_position)
    if any(fate.id == message_id and fate.fate == "rejected" for fate in view.fates):
        return None
    receipt = receipt_of(view, message_id)
    return receipt if receipt.is_known else None


def are_accepted(view: QueueView, message_ids: Sequence[str]) -> bool:
    """Return whether each of these prompts waits, is part of a turn or is next, and the session accepts more."""
    if view.refusing:
        return False
    turns = {fate.id for fate in view.fates if fate.turn_id is not None}
    return view.next_position is not None or all(
        message_id in turns or position_in(view, message_id) is not None for message_id in message_ids
    )


class ReceiptReader(Generic[Answer]):
    """Queries sessions for the receipts of prompts."""

    def __init__(self, query: Callable[[WorkflowId, Sequence[str]], Awaitable[Answer]]) -> None:
        self._query = query
        self._pending: dict[str, _Batch] = {}
        """The next query to each session, while ids can be added to it."""
        self._questions = SerialCoalescer[_Batch, Answer]()

    async def answer(self, workflow_id: WorkflowId, message_id: str) -> Answer:
        """Return the session's answer about this prompt, and maybe others. Raises what `query` raises."""
        batch = self._pending.get(workflow_id)
        if batch is None or len(batch.callers) >= MAX_IDS:
            batch = self._pending[workflow_id] = _Batch()
        batch.callers[message_id] += 1
        try:
            return await self._questions.run(workflow_id, batch, partial(self._ask_for, workflow_id, batch))
        finally:
            batch.callers[message_id] -= 1
            if not batch.callers.total():
                self._close(workflow_id, batch)

    async def _ask_for(self, workflow_id: WorkflowId, batch: "_Batch") -> Answer:
        self._close(workflow_id, batch)
        return await self._query(workflow_id, [message_id for message_id, callers in batch.callers.items() if callers])

    def _close(self, workflow_id: WorkflowId, batch: "_Batch") -> None:
        if self._pending.get(workflow_id) is batch:
            del self._pending[workflow_id]


@dataclass(eq=False)
class _Batch:
    """One query: its ids, and how many callers wait for each."""

    callers: Counter[str] = field(default_factory=Counter)
