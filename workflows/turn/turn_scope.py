"""The scope of a running turn: session, change callback, stop and pause; and what a feature does in a turn."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import NoReturn

from temporalio import workflow
from temporalio.exceptions import ActivityError, RetryState, is_cancelled_exception
from temporalio.exceptions import TimeoutError as ActivityTimeout

with workflow.unsafe.imports_passed_through():
    from turnkeeper.activities.failures import describe_failure, is_reported_death
    from turnkeeper.models.errors import TurnStoppedError, fail
    from turnkeeper.models.session.session import Session
    from turnkeeper.models.session.tools.tool_policy import ToolDecision, decide
    from turnkeeper.models.session.turn.running_turn import RunningTurn
    from turnkeeper.models.transcript.conversation import TurnStop
    from turnkeeper.models.transcript.model_call import ToolSpec
    from turnkeeper.models.transcript.trajectory import ToolCall, ToolResult, Usage


class TurnPart:
    """What a feature does in a turn. Each hook does nothing, unless a feature overrides it."""

    async def begin(self) -> None:
        """Do what comes before the turn's first model call, in each run."""

    async def draw(self) -> None:
        """Get more of a budget that the turn shares with others, if it needs more: its budgets are checked next."""

    def runs(self, name: str) -> bool:
        """Return whether the feature runs the tool of this name."""
        return False

    async def run(self, call: ToolCall, *, inline_bytes: int) -> ToolResult:
        """Run a call of such a tool; content over `inline_bytes` of JSON is stored by reference."""
        raise NotImplementedError

    def may_have_acted(self, call_id: str) -> bool:
        """Return whether a call that the feature has not finished may have had an effect."""
        return False


class TurnScope:
    """State shared by the parts of a running turn."""

    def __init__(
        self, session: Session, *, refresh_ui: Callable[[], None], is_due_for_new_run: Callable[[], bool]
    ) -> None:
        """`refresh_ui` updates the Web UI; it is called after visible changes."""
        self.session = session
        self.refresh_ui = refresh_ui
        self.is_due_for_new_run = is_due_for_new_run
        self.parts: Sequence[TurnPart] = ()
        """What features do in the turn."""
        self.stop: TurnStop | None = None
        self.handles_stop = False
        """Whether the model call watches `stop` itself: then a stop must not cancel the turn's task.

        Cancelling would lose an answer that arrives at the same moment.
        """

    @property
    def turn(self) -> RunningTurn:
        return self.session.turn_slot.running()

    def check_stop(self) -> None:
        if self.stop is not None:
            raise TurnStoppedError(self.stop.sentence)

    async def check_spent(self) -> None:
        """Raise `TurnFailedError` if nothing is left for a further step, after features have drawn more."""
        for part in self.parts:
            await part.draw()
        self.session.budgets.check_spent()

    async def check_step(self, usage: Usage | None) -> None:
        """Check this before the calls of a step run, see `Budgets.check_step`."""
        for part in self.parts:
            await part.draw()
        self.session.budgets.check_step(usage)

    def is_due_to_pause(self) -> bool:
        """Return whether to continue the turn in a new run (SES-14).

        A caller that gets `True` must start no activity; running ones finish first.
        Raises `TurnStoppedError` if the turn was stopped.
        """
        self.check_stop()
        return self.is_due_for_new_run()

    def decide(self, tool: ToolSpec) -> ToolDecision:
        """Return whether a call of `tool` may run in this turn (AGT-8)."""
        session = self.session
        return decide(
            self.turn.tool_policy,
            tool,
            only=self.turn.tools,
            unattended=session.config.unattended,
            allowed=session.tools.allowances,
        )

    def time_left(self) -> timedelta:
        """Return the turn's remaining time, in whole seconds. Raises `TurnFailedError` if it is over."""
        return self.turn.time_left(workflow.now())

    def fail_with(self, error: ActivityError, *, sentence: str | None = None) -> NoReturn:
        """Raise `TurnFailedError` for a failed activity, or `CancelledError` for a cancelled one.

        `sentence` replaces the failure's own message.
        """
        check_cancelled(error)
        if self.has_no_time_left(error):
            self.turn.budgets.fail_out_of_time()
        error_type, own_sentence = describe_failure(error)
        fail(error_type, sentence or own_sentence)

    def has_no_time_left(self, error: ActivityError) -> bool:
        """Return whether the turn's time ended the activity, or leaves none to retry a failure of ours."""
        if isinstance(error.cause, ActivityTimeout) and workflow.now() >= self.turn.deadline_at(workflow.now()):
            return True
        return error.retry_state is RetryState.TIMEOUT and self._is_not_vendors(error)

    def _is_not_vendors(self, error: ActivityError) -> bool:
        """Return whether the last attempt failed for a reason of ours: a timeout, a worker's death or a bug."""
        if is_reported_death(error.cause):
            return True
        return isinstance(error.cause, ActivityTimeout) or describe_failure(error)[0] == "internal"


def check_cancelled(error: ActivityError) -> None:
    """Raise `CancelledError` if the activity was cancelled, which is not a failure."""
    if is_cancelled_exception(error):
        raise asyncio.CancelledError from error
