"""The scope of a running turn: session, change callback, stop and pause, its open model request (AGT-2).

Beside it: what a feature does in a turn, and the partial answer and usage of a failed model call (SES-9, AGT-9).
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, RetryState, is_cancelled_exception
from temporalio.exceptions import TimeoutError as ActivityTimeout

with workflow.unsafe.imports_passed_through():
    from pydantic import ValidationError

    from turnkeeper.activities.failures import describe_failure, is_reported_death
    from turnkeeper.activities.model_client import ENTRIES, REQUESTS, CacheKey
    from turnkeeper.models.errors import TurnStoppedError, fail
    from turnkeeper.models.session.running_turn import RunningTurn
    from turnkeeper.models.session.session import Session
    from turnkeeper.models.session.tools import ToolDecision, decide
    from turnkeeper.models.transcript.conversation import ToolCall, ToolResult, TurnStop, Usage
    from turnkeeper.models.transcript.model_call import (
        IndexEntry,
        ModelRequest,
        ModelRequestPage,
        ModelResponse,
        Spent,
        ToolSpec,
    )
    from turnkeeper.models.transcript.partial_output import PartialOutput, unfinished_answer


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


ENTRY_BYTES = 1_000
"""About the size of an entry of the index."""


@dataclass(frozen=True)
class OpenRequest:
    """A model request without an answer; it does not change when the model view does."""

    number: int
    model_request: ModelRequest
    digest: str
    estimated_tokens: int
    entry: IndexEntry | None = None
    """The session's list entry meanwhile; `None` for requests that are not a step of a turn."""

    @property
    def message_count(self) -> int:
        return len(self.model_request.messages)

    def page(self, offset: int, *, page_bytes: int) -> ModelRequestPage:
        """Return the messages from `offset` on that fit in a page."""
        end, room = offset, page_bytes
        while end < self.message_count:
            room -= len(self.model_request.messages[end].model_dump_json().encode())
            if room < 0 and end > offset:
                break
            end += 1
        return ModelRequestPage(
            head=self.model_request.head if offset == 0 else None,
            messages=self.model_request.messages[offset:end],
            next_offset=end if end < self.message_count else None,
            digest=self.digest,
            entry=self.entry if offset == 0 else None,
        )


class RequestSlot:
    """Holds the open request of a turn, if there is one."""

    def __init__(self) -> None:
        self.request: OpenRequest | None = None

    def open(self, request: OpenRequest) -> OpenRequest:
        self.close()
        self.request = request
        return request

    def cache_for_activity(self) -> None:
        """Cache the open request for an activity in this process."""
        # Write only, and not during replay: the workflow must not depend on this process.
        if self.request and not workflow.unsafe.is_replaying():
            REQUESTS.put(_key(self.request), self.request.model_request, size=4 * self.request.estimated_tokens)
            if self.request.entry:
                ENTRIES.put(_key(self.request), self.request.entry, size=ENTRY_BYTES)

    def close(self) -> None:
        if self.request and not workflow.unsafe.is_replaying():
            REQUESTS.discard(_key(self.request))
            ENTRIES.discard(_key(self.request))
        self.request = None


def _key(request: OpenRequest) -> CacheKey:
    return CacheKey(workflow.info().run_id, request.number, request.digest)


def unfinished_response(error: ActivityError, *, model: str, max_bytes: int) -> ModelResponse | None:
    """Return what the last attempt of a model call had written; `None` if nothing, or unknown.

    If the worker reported the failure, it is in the failure's details. If Temporal or the supervisor ended the call, it
    is the last snapshot from the heartbeats. A workflow can't write to the store, so its texts are cut to `max_bytes`
    of JSON together.
    """
    cause = error.cause
    try:
        if isinstance(cause, ApplicationError) and not is_reported_death(cause) and cause.details:
            return ModelResponse.model_validate(cause.details[0])
        if snapshot := _last_heartbeat(cause)[:1]:
            parts = PartialOutput.model_validate(snapshot[0]).parts
            return unfinished_answer(parts, model=model, max_bytes=max_bytes // 2)
    except ValidationError:
        return None  # details of something else, or of another version
    return None


def spent_usage(error: ActivityError) -> Usage | None:
    """Return the usage of a failed call's attempts; `None` if nothing, or unknown (AGT-9)."""
    cause = error.cause
    details = cause.details if isinstance(cause, ApplicationError) and not is_reported_death(cause) else ()
    try:
        reports = [*details[1:2], *_last_heartbeat(cause)[1:2]]
        return Spent.model_validate(reports[0]).usage if reports else None
    except ValidationError:
        return None


def _last_heartbeat(cause: BaseException | None) -> Sequence[Any]:
    """Return the details of the last heartbeat, if a timeout or the supervisor ended the call."""
    while cause is not None:
        if isinstance(cause, ActivityTimeout) and cause.last_heartbeat_details:
            return cause.last_heartbeat_details
        if is_reported_death(cause) and cause.details:
            return cause.details
        cause = cause.__cause__
    return ()
