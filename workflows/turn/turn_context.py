"""What the parts of a running turn share: session, change callback, stop and pause."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import NoReturn

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, RetryState, is_cancelled_exception
from temporalio.exceptions import TimeoutError as ActivityTimeout

with workflow.unsafe.imports_passed_through():
    from turnkeeper.activities.failures import WORKER_DIED, describe_failure
    from turnkeeper.models.errors import TurnStoppedError, fail
    from turnkeeper.models.session.session import Session
    from turnkeeper.models.session.turn.running_turn import RunningTurn


class TurnContext:
    """The shared context of a running turn."""

    def __init__(
        self, session: Session, *, on_change: Callable[[], None], is_due_for_new_run: Callable[[], bool]
    ) -> None:
        """`on_change` is called after visible changes."""
        self.session = session
        self.on_change = on_change
        self.is_due_for_new_run = is_due_for_new_run
        self.stop_reason: str | None = None
        self.handles_stop = False
        """Whether the current operation watches `stop_reason` itself, so that its task must not be cancelled."""

    @property
    def turn(self) -> RunningTurn:
        return self.session.current_turn.running()

    def check_stop(self) -> None:
        if self.stop_reason is not None:
            raise TurnStoppedError(self.stop_reason)

    def is_due_to_pause(self) -> bool:
        """Return whether to continue the turn in a new run; call it only while no activity is running (SES-14).

        Runs of earlier releases continue as new between turns only. Raises `TurnStoppedError` if the turn was stopped.
        """
        self.check_stop()
        return self.is_due_for_new_run() and workflow.patched("continue-as-new-within-a-turn")

    def time_left(self) -> timedelta:
        """Return the turn's remaining time, in whole seconds. Raises `TurnFailedError` if it is over."""
        return self.turn.time_left(workflow.now())

    def fail_with(self, error: ActivityError, *, sentence: str | None = None) -> NoReturn:
        """Raise `TurnFailedError` for a failed activity, or `CancelledError` for a cancelled one.

        `sentence` replaces the failure's own message.
        """
        check_cancelled(error)
        if isinstance(error.cause, ActivityTimeout) and workflow.now() >= self.turn.deadline_at(workflow.now()):
            self.turn.budgets.fail_out_of_time()
        error_type, own_sentence = describe_failure(error)
        is_ours = isinstance(error.cause, ActivityTimeout) or error_type == "internal"
        if isinstance(error.cause, ApplicationError) and error.cause.type == WORKER_DIED:
            is_ours = self.session.rules >= 3
        if is_ours and error.retry_state is RetryState.TIMEOUT and self.session.rules >= 2:
            self.turn.budgets.fail_out_of_time()  # another attempt would have started after the deadline
        fail(error_type, sentence or own_sentence)


def check_cancelled(error: ActivityError) -> None:
    """Raise `CancelledError` if the activity was cancelled, which is not a failure."""
    if is_cancelled_exception(error):
        raise asyncio.CancelledError from error
