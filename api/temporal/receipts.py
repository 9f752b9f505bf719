"""Where prompts stand, asked of a session for all who want to know at that moment (API-1).

A caller's id joins the next question, never one that has left: what the caller has just signalled is then in the
answer. There is one question of a session at a time.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from turnkeeper.api import problems
from turnkeeper.models.session.queue.prompts import Fate, QueueView

MAX_IDS = 100
"""Ids in one question."""

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Receipt:
    """Where an accepted prompt stands: waiting at `position`, or with a `fate`; neither while no worker can say."""

    message_id: str
    position: int | None = None
    fate: Fate | None = None

    @property
    def is_known(self) -> bool:
        """Return whether a worker could say where the prompt stands."""
        return self.position is not None or self.fate is not None


def position_in(view: QueueView, message_id: str) -> int | None:
    """Return the place of a prompt that waits, from 1; `None` where it does not."""
    # A worker of an earlier release shows the prompts themselves only.
    shown = next((prompt.position for prompt in view.waiting if prompt.id == message_id), None)
    return view.positions.get(message_id, shown)


def receipt_of(view: QueueView, message_id: str) -> Receipt:
    """Return where a prompt stands in a view that was asked for it. Raises what the session refused it with."""
    position = position_in(view, message_id)
    if position is not None:
        return Receipt(message_id, position=position)
    fate = next((fate for fate in view.fates if fate.id == message_id), None)
    if fate and fate.fate == "rejected" and fate.refusal:
        raise problems.refused(fate.refusal, fate.reason or "The prompt was rejected.", field="message")
    if fate and fate.turn_id is None:
        raise problems.refused("not_waiting", f"Prompt {message_id!r} was {fate.fate}; send it under a new id.")
    return Receipt(message_id, position=0 if fate else None, fate=fate)


class Receipts(Generic[Answer]):
    """Asks sessions where prompts stand."""

    def __init__(self, ask: Callable[[str, Sequence[str]], Awaitable[Answer]]) -> None:
        """Ask a session for the prompts with some ids by `ask`."""
        self._ask = ask
        self._lines: dict[str, _Line[Answer]] = {}

    async def answer(self, session_id: str, message_id: str) -> Answer:
        """Return what the session says of this prompt, and maybe of others. Raises what `ask` raises."""
        line = self._lines.setdefault(session_id, _Line())
        batch = line.forming
        if batch is None or len(batch.callers) >= MAX_IDS:
            batch = line.forming = _Batch()
            line.batches += 1
            batch.task = asyncio.create_task(self._run(session_id, line, batch))
            batch.task.add_done_callback(_note_failure)
        batch.callers[message_id] += 1
        try:
            # A caller who gives up must not take the others' answer away.
            return await asyncio.shield(batch.task)
        finally:
            batch.callers[message_id] -= 1

    async def _run(self, session_id: str, line: "_Line[Answer]", batch: "_Batch[Answer]") -> Answer:
        try:
            async with line.asking:
                if line.forming is batch:
                    line.forming = None
                ids = [message_id for message_id, callers in batch.callers.items() if callers]
                if not ids:
                    raise asyncio.CancelledError  # all have given up: spare the worker the question
                return await self._ask(session_id, ids)
        finally:
            line.batches -= 1
            if not line.batches:
                del self._lines[session_id]


class _Batch(Generic[Answer]):
    def __init__(self) -> None:
        self.callers: Counter[str] = Counter()
        self.task: asyncio.Task[Answer]


class _Line(Generic[Answer]):
    """The questions to one session, one after the other."""

    def __init__(self) -> None:
        self.forming: _Batch[Answer] | None = None
        self.batches = 0
        self.asking = asyncio.Lock()


def _note_failure(task: "asyncio.Task[Answer]") -> None:
    # Every caller has been told; without one left, asyncio would log the failure as never retrieved.
    if not task.cancelled():
        task.exception()
