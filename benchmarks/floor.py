"""The floor: a bare workflow that does nothing but the same number of activities, one after the other."""

from datetime import timedelta
from typing import Any

from temporalio import activity, workflow


@activity.defn
async def no_op(number: int) -> int:
    """Return at once."""
    return number


@workflow.defn
class FloorWorkflow:
    """Runs seven no-op activities for each signal."""

    def __init__(self) -> None:
        """Start with nothing to do."""
        self._asked = 0
        self._done = 0

    @workflow.run
    async def run(self) -> None:
        """Do what is asked, for ever."""
        while True:
            await workflow.wait_condition(lambda: self._asked > self._done)
            for number in range(7):
                await workflow.execute_activity(
                    no_op, number, start_to_close_timeout=timedelta(seconds=10), heartbeat_timeout=timedelta(seconds=6)
                )
            self._done += 1

    @workflow.signal
    def prompt(self, request: Any) -> None:
        """Ask for one more round."""
        self._asked += 1

    @workflow.query
    def is_done(self, cursor: dict[str, int]) -> bool:
        """Tell whether so many rounds are done; asked with a cursor, as a session is."""
        return self._done >= cursor["rounds"]
