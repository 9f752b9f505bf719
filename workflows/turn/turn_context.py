"""What the parts of a running turn share: its session, whom to tell of changes, and whether it is to stop or pause."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import NoReturn

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, RetryState, is_cancelled_exception
from temporalio.exceptions import TimeoutError as ActivityTimeout

with workflow.unsafe.imports_passed_through():
    from turnkeeper.activities.failures import WORKER_DIED, describe_failure
    from turnkeeper.models.errors import TurnStopped, fail
    from turnkeeper.models.session.session_state import Session
    from turnkeeper.models.session.turn.running_turn import RunningTurn


class TurnContext:
    """The surroundings of a running turn."""

    def __init__(
        self, session: Session, *, on_change: Callable[[], None], is_due_for_new_run: Callable[[], bool]
    ) -> None:
        """`on_change` is called when there is something new to show."""
        self.session = session
        self.on_change = on_change
        self.is_due_for_new_run = is_due_for_new_run
        self.stop_reason: str | None = None
        self.handles_stop = False
        """What runs now ends by itself once there is a `stop_reason`: it is not cancelled for that."""

    @property
    def turn(self) -> RunningTurn:
        return self.session.current_turn.running()

    def check_stop(self) -> None:
        if self.stop_reason is not None:
            raise TurnStopped(self.stop_reason)

    def is_due_to_pause(self) -> bool:
        """Return whether the turn is to go on in a new run, from a point where nothing is in flight (SES-14).

        Runs from before this was possible hand over between turns only. Raises `TurnStopped` where the turn was told
        to stop: such a one goes nowhere.
        """
        self.check_stop()
        return self.is_due_for_new_run() and workflow.patched("continue-as-new-within-a-turn")

    def time_left(self) -> timedelta:
        """Return how long the turn may still take, in whole seconds. Raises `TurnFailed` where its time is over."""
        return self.turn.time_left(workflow.now())

    def fail_by(self, error: ActivityError, *, sentence: str | None = None) -> NoReturn:
        """Raise `TurnFailed`: a failed activity ends the turn. A cancelled one raises `CancelledError` instead.

        `sentence` stands in the place of what the failure says of itself.
        """
        check_cancelled(error)
        if isinstance(error.cause, ActivityTimeout) and workflow.now() >= self.turn.deadline_at(workflow.now()):
            self.turn.budgets.fail_out_of_time()
        error_type, own_sentence = describe_failure(error)
        is_ours = isinstance(error.cause, ActivityTimeout) or error_type == "internal"
        if isinstance(error.cause, ApplicationError) and error.cause.type == WORKER_DIED:
            is_ours = self.session.rules >= 3
        if is_ours and error.retry_state is RetryState.TIMEOUT and self.session.rules >= 2:
            self.turn.budgets.fail_out_of_time()  # another attempt would have begun after the deadline
        fail(error_type, sentence or own_sentence)


def check_cancelled(error: ActivityError) -> None:
    """Raise `CancelledError` where an activity failed since it was cancelled: that is no failure of its own."""
    if is_cancelled_exception(error):
        raise asyncio.CancelledError from error
