"""Limits a worker's concurrent workflow tasks, and how many of them may be replays (OPS-8, OPS-10).

A session that the worker has in memory gets its workflow tasks through the sticky queue; they take milliseconds. Other
sessions, such as all sessions of a worker that died, are replayed from their history, which takes 0.4 ms of CPU time
per event. Replays share one processor, and a workflow task's timeout runs from the moment it is polled. Ten replays at
once on a busy machine would all exceed `task_timeout`, go to the next worker and start again there, forever. So a
worker polls for only a few at a time; the others wait in Temporal, where their timeout does not run.
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
"""Maximum of concurrent activities: the SDK's default."""


def task_tuner(*, max_tasks: int, max_replays: int) -> WorkerTuner:
    """Return a tuner that allows `max_tasks` workflow tasks of sessions in memory, and `max_replays` of others."""
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
        with suppress(RuntimeError):  # the loop is closed, so nothing waits any more
            self._loop.call_soon_threadsafe(self._slots.release)


class TaskSlots(CustomSlotSupplier):
    """Slots for workflow tasks: one pool for the sticky queue, one for the normal queue."""

    def __init__(self, *, max_tasks: int, max_replays: int) -> None:
        """Provide `max_tasks` slots for the sticky queue and `max_replays` for the normal one."""
        self._sticky = asyncio.Semaphore(max_tasks)
        self._replays = asyncio.Semaphore(max_replays)

    async def reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit:
        """Wait for a permit, which covers a poll and the task that it returns."""
        slots = self._sticky if ctx.is_sticky else self._replays
        await slots.acquire()
        return _Permit(slots)

    def try_reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit | None:
        """Return no permit: only eager workflow starts use this, and child workflows are not started eagerly."""
        return None

    def mark_slot_used(self, ctx: SlotMarkUsedContext) -> None:
        """Do nothing: the permit is in use since the poll."""

    def release_slot(self, ctx: SlotReleaseContext) -> None:
        """Release the permit. The SDK calls this from its own thread."""
        if isinstance(ctx.permit, _Permit):
            ctx.permit.release()
