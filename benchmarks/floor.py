"""The floor: a bare workflow that only runs as many activities as a turn does, one after the other.

`python -m benchmarks.floor ADDRESS` runs its worker for the Temporal server at that address.
"""

import asyncio
import sys
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.service import GrpcCompression
from temporalio.worker import Worker

TASK_QUEUE = "floor"


@activity.defn
async def no_op(number: int) -> int:
    """Do nothing."""
    return number


@workflow.defn
class FloorWorkflow:
    """Runs a round of no-op activities for each signal."""

    def __init__(self) -> None:
        self._requested_rounds = 0
        self._done_rounds = 0

    @workflow.run
    async def run(self, activities: int) -> None:
        while True:
            await workflow.wait_condition(lambda: self._requested_rounds > self._done_rounds)
            for number in range(activities):
                await workflow.execute_activity(
                    no_op, number, start_to_close_timeout=timedelta(seconds=10), heartbeat_timeout=timedelta(seconds=6)
                )
            self._done_rounds += 1

    @workflow.signal
    def prompt(self, request: Any) -> None:
        """Request one more round."""
        self._requested_rounds += 1

    @workflow.query
    def is_done(self, cursor: dict[str, int]) -> bool:
        """Return whether `cursor["rounds"]` rounds are done; the argument is as large as a session's."""
        return self._done_rounds >= cursor["rounds"]


async def _work(address: str) -> None:
    client = await Client.connect(address, grpc_compression=GrpcCompression.NONE)
    await Worker(client, task_queue=TASK_QUEUE, workflows=[FloorWorkflow], activities=[no_op]).run()


if __name__ == "__main__":
    asyncio.run(_work(sys.argv[1]))
