"""Reading a session cheaply, whoever asks (API-3).

Temporal buffers one query per workflow, so queries go one at a time, and everyone who asks the same thing shares the
answer. A caller joins the next flight, never one that has left: what it has just written is then in the answer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

Question = TypeVar("Question", bound=Hashable)
Answer = TypeVar("Answer")


class SingleFlight(Generic[Question, Answer]):
    """Asks one question at a time; equal questions that wait at the same time are asked once."""

    def __init__(self, ask: Callable[[Question], Awaitable[Answer]]) -> None:
        """Answer questions with `ask`."""
        self._ask = ask
        self._boarding: dict[Question, _Flight[Answer]] = {}
        self._in_the_air = asyncio.Lock()

    @property
    def is_idle(self) -> bool:
        """Nobody is waiting for an answer."""
        return not self._boarding and not self._in_the_air.locked()

    async def read(self, question: Question) -> Answer:
        """Return the answer to a question asked after this call began. Raises what `ask` raises."""
        flight = self._boarding.get(question)
        if flight is None:
            flight = self._boarding[question] = _Flight()
            flight.task = asyncio.create_task(self._fly(question, flight))
            flight.task.add_done_callback(_note_failure)
        flight.passengers += 1
        try:
            # Whoever gives up must not take the others' answer away.
            return await asyncio.shield(flight.task)
        finally:
            flight.passengers -= 1

    async def _fly(self, question: Question, flight: "_Flight[Answer]") -> Answer:
        async with self._in_the_air:
            del self._boarding[question]
            if not flight.passengers:
                raise asyncio.CancelledError  # all have given up: spare the worker the question
            return await self._ask(question)


class _Flight(Generic[Answer]):
    def __init__(self) -> None:
        self.passengers = 0
        self.task: asyncio.Task[Answer]


def _note_failure(task: "asyncio.Task[Answer]") -> None:
    # Every passenger has been told; without one left, asyncio would log the failure as never retrieved.
    if not task.cancelled():
        task.exception()
