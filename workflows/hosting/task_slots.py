"""Limits a worker's concurrent workflow tasks, and how many of them may be replays (OPS-8, OPS-10).

A session that the worker has in memory gets its tasks through the sticky queue: they take milliseconds. All others,
among them every session after a worker has died, are replayed from their history, which takes 0.4 ms of a processor
for each event. Replays share one processor, and a task's clock runs from the moment it is polled: ten at a time on a
busy machine would all exceed `task_timeout`, be given to the next worker, and begin anew there, for ever. So a worker
polls for a few at a time only; the others wait in Temporal, where their clocks stand still.
"""

import asyncio
from contextlib import suppress

from temporalio.worker import (
    CustomSlotSupplier,
    FixedSizeSlotSupplier,
    SlotMarkUsedContext,
    SlotPermit,
    SlotReleaseContext,
    SlotReserveContext,
    WorkerTuner,
)

OTHER_SLOTS = 100
"""Activities at once: the SDK's own default."""


def task_tuner(*, max_tasks: int, max_replays: int) -> WorkerTuner:
    """Return a tuner for at most `max_tasks` tasks of sessions in memory, and `max_replays` of others."""
    others = FixedSizeSlotSupplier(OTHER_SLOTS)
    return WorkerTuner.create_composite(
        workflow_supplier=TaskSlots(max_tasks=max_tasks, max_replays=max_replays),
        activity_supplier=others,
        local_activity_supplier=others,
        nexus_supplier=others,
    )


class _Permit(SlotPermit):
    def __init__(self, slots: asyncio.Semaphore) -> None:
        self._slots = slots
        self._loop = asyncio.get_running_loop()

    def release(self) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._slots.release)


class TaskSlots(CustomSlotSupplier):
    """Slots for workflow tasks: those from the sticky queue and the others have their own."""

    def __init__(self, *, max_tasks: int, max_replays: int) -> None:
        """Have `max_tasks` slots for the sticky queue and `max_replays` for the other one."""
        self._sticky = asyncio.Semaphore(max_tasks)
        self._replays = asyncio.Semaphore(max_replays)

    async def reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit:
        """Return a permit for a poll and the task it brings, once there is one."""
        slots = self._sticky if ctx.is_sticky else self._replays
        await slots.acquire()
        return _Permit(slots)

    def try_reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit | None:
        """Return no permit: only eager starts ask for one like this, and nobody here starts sessions."""
        return None

    def mark_slot_used(self, ctx: SlotMarkUsedContext) -> None:
        """Do nothing: a permit is taken from the poll on."""

    def release_slot(self, ctx: SlotReleaseContext) -> None:
        """Give the permit back; called by a thread of the SDK's."""
        if isinstance(ctx.permit, _Permit):
            ctx.permit.release()
