"""What all parts of a running turn share: its terms, its clock, and whether it is to stop or to pause."""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from math import ceil

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, RetryState, is_cancelled_exception
from temporalio.exceptions import TimeoutError as ActivityTimeout

with workflow.unsafe.imports_passed_through():
    from turnkeeper.activities.failures import WORKER_DIED, describe_failure
    from turnkeeper.models.errors import TurnFailed
    from turnkeeper.models.session.session import CarriedTurn
    from turnkeeper.models.session.session_state import Session
    from turnkeeper.models.transcript.model_call import ModelResponse, ProviderState
    from turnkeeper.models.transcript.trajectory import Usage
    from turnkeeper.workflows.turn.budgets import Budgets


def new_terms(session: Session) -> CarriedTurn:
    """Freeze what a turn that begins now is bound by: later configuration is for the next one (SES-8)."""
    config = session.config
    return CarriedTurn(
        deadline=workflow.now() + timedelta(seconds=config.limits.turn_timeout),
        model=config.model,
        limits=config.limits,
        history=config.history,
        tool_policy=config.tool_policy,
    )


class Frame:
    """A running turn's terms and how far it is."""

    def __init__(
        self,
        session: Session,
        terms: CarriedTurn,
        *,
        on_change: Callable[[], None],
        is_due_for_new_run: Callable[[], bool],
    ) -> None:
        """Begin with `terms`, or go on where they say. `on_change` is called when there is something new to show."""
        self.session = session
        self.terms = terms
        self.limits = terms.limits
        self.model = terms.model
        self.budgets = Budgets(session, limits=terms.limits, model=terms.model)
        self.on_change = on_change
        self.steps = terms.steps
        self.calls = terms.calls
        self.stop_reason: str | None = None
        self.handles_stop = False
        """What runs now ends by itself once there is a `stop_reason`: it is not cancelled for that."""
        self.unfinished: ModelResponse | None = None
        """What the model had written of the newest answer, which did not become whole (SES-9)."""
        self.spent: Usage | None = None
        """What attempts for the newest answer took that gave none (AGT-9)."""
        self.is_due_for_new_run = is_due_for_new_run
        self._deadline = terms.deadline
        self._awaiting_since = terms.awaiting_since
        self._is_unsettled = terms.unsettled
        self._state = terms.state
        self._segment = terms.segment

    def carried(self) -> CarriedTurn:
        """Return what the next run goes on with (SES-14)."""
        return self.terms.model_copy(
            update={
                "deadline": self._deadline,
                "awaiting_since": self._awaiting_since,
                "steps": self.steps,
                "calls": self.calls,
                "unsettled": self._is_unsettled,
                "state": self._state,
                "segment": self._segment,
            }
        )

    # ---- the newest step

    @property
    def is_unsettled(self) -> bool:
        """The newest step is not shown to the model yet: calls of it may have no result."""
        return self._is_unsettled

    def unsettle(self, state: ProviderState | None, *, segment: int) -> None:
        """Keep a new step, the answer to a request of `segment`, from the model until every call of it has a result."""
        self._is_unsettled, self._state, self._segment = True, state, segment

    def settle(self) -> None:
        """Let the model see the newest step: from here every call of it has a result."""
        if self._is_unsettled:
            self.session.show_step(state=self._state, segment=self._segment)
            self._is_unsettled, self._state, self._segment = False, None, None

    def count_spent(self, spent: Usage | None) -> None:
        """Count what attempts took that gave no answer: for the turn now, for the step once there is one (AGT-9).

        Runs of rules 1 and 2 do not count it: it could decide otherwise what a replay has to repeat.
        """
        if spent and self.session.rules >= 3:
            self.session.add_usage(spent)
            self.spent = (self.spent or Usage()) + spent

    # ---- stopping and pausing

    def stop_if_told(self) -> None:
        """Go no further once the turn was told to stop."""
        if self.stop_reason is not None:
            raise asyncio.CancelledError

    def pauses(self) -> bool:
        """Tell whether the turn is to go on in a new run, from a point where nothing is in flight (SES-14).

        Runs from before this was possible hand over between turns only. A turn that was told to stop goes nowhere.
        """
        self.stop_if_told()
        return self.is_due_for_new_run() and workflow.patched("continue-as-new-within-a-turn")

    # ---- the clock

    @property
    def deadline(self) -> datetime:
        """When the turn's time is over; it moves on while people are asked to decide (AGT-1)."""
        waited = workflow.now() - self._awaiting_since if self._awaiting_since else timedelta()
        return self._deadline + waited

    def await_people(self) -> None:
        """Stop the clock: from here on the turn waits for people."""
        self._awaiting_since = self._awaiting_since or workflow.now()

    def go_on(self) -> None:
        """Let the clock run again, if it was stopped."""
        self._deadline, self._awaiting_since = self.deadline, None

    def remaining(self) -> timedelta:
        """Time left until `turn_timeout`: it bounds activities, so that it costs no timer of its own."""
        remaining = (self.deadline - workflow.now()).total_seconds()
        if remaining <= 0:
            raise self.out_of_time()
        return timedelta(seconds=ceil(remaining))

    def out_of_time(self) -> TurnFailed:
        """Say that the turn's time is over."""
        return self.budgets.out_of_time()

    def failure(self, error: ActivityError, *, of: str | None = None) -> BaseException:
        """Say how a failed activity ends the turn."""
        if is_cancelled_exception(error):
            return asyncio.CancelledError()
        if isinstance(error.cause, ActivityTimeout) and workflow.now() >= self.deadline:
            return self.out_of_time()
        error_type, sentence = describe_failure(error)
        is_ours = isinstance(error.cause, ActivityTimeout) or error_type == "internal"
        if isinstance(error.cause, ApplicationError) and error.cause.type == WORKER_DIED:
            is_ours = self.session.rules >= 3
        if is_ours and error.retry_state is RetryState.TIMEOUT and self.session.rules >= 2:
            return self.out_of_time()  # another attempt would have begun after the deadline
        return TurnFailed(error_type, f"{of}." if of else sentence)
