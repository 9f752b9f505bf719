"""The running turn as a value, with its rules (AGT-1, SES-14).

Every change returns the next version of the turn, with which `TurnSlot` replaces the present one. Times are
arguments: this module does not depend on Temporal.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil
from typing import Self

from pydantic import Field

from turnkeeper.models import ids
from turnkeeper.models.context.window import ConversationHistoryConfig
from turnkeeper.models.errors import ErrorType, fail
from turnkeeper.models.limits import Limits
from turnkeeper.models.session.approvals import (
    APPROVAL_BYTES,
    CHANGE_BYTES,
    MAX_DIFF_BYTES,
    ask_for_approval,
    expire_approval,
    record_decision,
)
from turnkeeper.models.session.queue.prompts import Prompt
from turnkeeper.models.session.tools.tool_policy import ToolNames, ToolPolicy
from turnkeeper.models.session.turn.budgets import Budgets
from turnkeeper.models.transcript.conversation import ConversationMessage, TurnStop
from turnkeeper.models.transcript.model_call import CallPart, ModelResponse, ProviderState
from turnkeeper.models.transcript.refused_parts import left_out_text
from turnkeeper.models.transcript.trajectory import (
    ApprovalDecision,
    BlobRef,
    FileChange,
    ModelStep,
    ReasoningTrajectory,
    Step,
    ToolCall,
    ToolResult,
    Usage,
    UserStep,
)
from turnkeeper.models.transcript.transcript import carried_size
from turnkeeper.models.wire import Compact, UtcDatetime

MIN_ANSWER_BYTES = 2_000
"""Room for an answer, however full the turn is."""

RESULT_BYTES = 200
"""Size of a result without its content, as JSON."""


@dataclass(frozen=True)
class TurnBytes:
    """The room of a turn that has `carried` bytes of JSON. `cap` is the maximum that the session can carry."""

    limits: Limits
    carried: int

    def check(self, cap: int, *, archive_error: str | None) -> None:
        """Raise `TurnFailedError` if the turn is larger than `cap`, after its older steps could not be archived."""
        if self.carried > cap:
            holds = f"The turn holds {self.carried:,} bytes; limits.max_state_bytes leaves {cap:,} for it"
            why = f", and the archive could not take its older steps: {archive_error}" if archive_error else "."
            fail("too_large", holds + why)

    def check_room_for_results(self, calls: int, *, asks: bool, shows_changes: bool = False, cap: int) -> None:
        """Raise `TurnFailedError` if there is no room for the results of `calls`.

        `asks`: some need approval; `shows_changes`: of some it shows what they would change in a file.
        """
        needed = self.of_results(calls, asks=asks, shows_changes=shows_changes)
        if self.carried + needed > max(cap, self.limits.min_turn_bytes):
            max_results = max(0, cap - self.carried) * calls // needed
            fail("budget", f"One step asked for {calls} tool calls; the turn has room for {max_results} results.")

    def of_results(self, calls: int, *, asks: bool, shows_changes: bool = False) -> int:
        """Return the room that the results of `calls` need at least, however long they are."""
        a_result = self.limits.small_text_bytes + RESULT_BYTES + (APPROVAL_BYTES if asks else 0)
        return calls * (a_result + (self.limits.small_text_bytes + CHANGE_BYTES if shows_changes else 0))

    def max_answer(self, cap: int) -> int:
        """Return the maximum size of an answer; the results of its calls get the same room."""
        return min(self.limits.answer_bytes, max(MIN_ANSWER_BYTES, (cap - self.carried) // 2))

    @property
    def inline(self) -> int:
        """Maximum of an inline text of an answer (SES-15)."""
        return self.limits.inline_bytes(self.carried)

    @property
    def inline_room(self) -> int:
        """How much more the turn may carry before its texts go by reference; negative if it carries more."""
        return self.limits.turn_inline_bytes - self.carried

    def inline_result(self, results: int) -> int:
        """Return the maximum of an inline result when a step has this many `results` (SES-15)."""
        share = self.inline_room // max(1, results)
        return max(self.limits.small_text_bytes, min(self.inline, share))

    def diff(self, changes: int) -> int:
        """Return the maximum of a difference, as JSON, when a step shows this many `changes` (AGT-8).

        The results of the step's calls have the same room after it.
        """
        return min(MAX_DIFF_BYTES, self.inline_result(2 * changes))


class CarriedTurn(Compact):
    """The carried part of a running turn, without its message, which the transcript carries (SES-14).

    `model`, `limits`, `history`, `tools` and `tool_policy` are those at its begin: later configuration applies to the
    next turn (SES-8). `steps` and `calls` count towards its limits.
    """

    system_prompt: str | None = None
    """That at its begin, if the session has another one by now."""

    deadline: UtcDatetime
    """When its time is over; while a decision is pending, see `RunningTurn.deadline_at`."""
    model: str
    limits: Limits
    history: ConversationHistoryConfig
    tools: ToolNames | None = None
    tool_policy: ToolPolicy = {}
    awaiting_since: UtcDatetime | None = None
    """Since when a decision is pending; `deadline` moves by the time that this takes."""
    has_blocked_task: bool = False
    """Whether a task that the turn waits for needs a person's decision (TSK-5)."""
    steps: int = 0
    """Number of model steps begun; `message.steps` also has steering prompts, but no archived steps."""
    calls: int = 0
    unsettled: bool = False
    """Whether the newest step is not in the model view yet: calls of it may have no result."""
    state: ProviderState | None = None
    """The provider state of an unsettled step."""
    segment: int | None = None
    """The segment of the request that an unsettled step answers."""

    def resume(self, message: ConversationMessage) -> "RunningTurn":
        """Return the running turn with its `message`, in the next run."""
        fields = {name: getattr(self, name) for name in CarriedTurn.model_fields}
        return RunningTurn(**fields, message=message, carried_bytes=carried_size(message))


class RunningTurn(CarriedTurn):
    """A running turn with its message in the transcript."""

    message: ConversationMessage = Field(exclude=True)
    carried_bytes: int = Field(exclude=True)
    """JSON bytes of the message as it is carried; updated with each step."""

    @classmethod
    def begin(
        cls,
        message: ConversationMessage,
        *,
        model: str,
        limits: Limits,
        history: ConversationHistoryConfig,
        tools: list[str] | None = None,
        tool_policy: ToolPolicy,
        now: datetime,
    ) -> Self:
        return cls(
            deadline=now + timedelta(seconds=limits.turn_timeout),
            model=model,
            limits=limits,
            history=history,
            tools=tools,
            tool_policy=tool_policy,
            message=message,
            carried_bytes=carried_size(message),
        )

    @property
    def carried(self) -> CarriedTurn:
        """The carried part, without the message."""
        return CarriedTurn(**{name: getattr(self, name) for name in CarriedTurn.model_fields})

    # ---- its clock

    def deadline_at(self, now: datetime) -> datetime:
        """Return when the turn's time is over; its clock is paused while a decision is pending (AGT-1)."""
        return self.deadline + (now - self.awaiting_since) if self.awaiting_since else self.deadline

    def time_left(self, now: datetime) -> timedelta:
        """Return the whole seconds until the deadline, at least one. Raises `TurnFailedError` if it is over.

        They become activity timeouts, so that the deadline needs no timer of its own.
        """
        seconds = (self.deadline_at(now) - now).total_seconds()
        if seconds <= 0:
            self.budgets.fail_out_of_time()
        return timedelta(seconds=ceil(seconds))

    def _with_clock(self, now: datetime) -> Self:
        """Stop the clock while a call awaits a decision, and restart it otherwise."""
        if self.waits_for_person:
            return self.model_copy(update={"awaiting_since": self.awaiting_since or now})
        return self.model_copy(update={"deadline": self.deadline_at(now), "awaiting_since": None})

    # ---- its budgets

    @property
    def own_usage(self) -> Usage:
        """The usage of the turn itself, without its tasks."""
        return (self.message.usage or Usage()) - (self.message.tasks_usage or Usage())

    @property
    def budgets(self) -> Budgets:
        """The turn's own budgets; `Session.budgets` are those with its tasks and its allowance."""
        return Budgets(self.limits, self.model, spent=self.own_usage)

    def with_more(self, *, steps: int = 0, calls: int = 0) -> Self:
        """Count steps and calls that have begun."""
        return self.model_copy(update={"steps": self.steps + steps, "calls": self.calls + calls})

    def with_usage(self, usage: Usage | None) -> Self:
        return self.with_message(usage=(self.message.usage or Usage()) + usage) if usage else self

    # ---- its bytes

    @property
    def bytes(self) -> TurnBytes:
        """The space that the turn has left."""
        return TurnBytes(self.limits, self.carried_bytes)

    def without_oldest_steps(self, count: int) -> Self:
        """Return the turn without its oldest `count` steps, which the archive has."""
        message = self.message.without_oldest_steps(count)
        return self.model_copy(update={"message": message, "carried_bytes": carried_size(message)})

    # ---- its steps

    @property
    def newest_step(self) -> ModelStep:
        """The newest step. Raises `TypeError` if it is not a model step."""
        step = self.message.steps[-1]
        if not isinstance(step, ModelStep):
            raise TypeError(f"the newest step of turn {self.message.id} is no model step")
        return step

    @property
    def pending_calls(self) -> list[ToolCall]:
        """The calls of the newest step without a result."""
        return [call for call in self.newest_step.tool_calls if call.result is None]

    def call(self, call_id: str) -> ToolCall:
        return next(call for call in self.newest_step.tool_calls if call.id == call_id)

    def with_response(
        self,
        response: ModelResponse,
        calls: list[ToolCall],
        *,
        now: datetime,
        interrupted: bool = False,
        spent: Usage | None = None,
    ) -> Self:
        """Add a model response as the next step; its calls have no results yet.

        An `interrupted` response is incomplete and ends its turn (SES-9). `spent` is the usage of earlier attempts: the
        turn already counts it, and the step shows it (AGT-9).
        """
        numbers = (step.number for step in self.message.steps if isinstance(step, ModelStep))
        step = ModelStep(
            kind="model",
            number=max(numbers, default=0) + 1,
            thinking=response.thinking or None,
            thinking_blob=response.thinking_blob,
            text=response.text or None,
            text_blob=response.text_blob,
            tool_calls=calls,
            stop=response.stop,
            interrupted=interrupted,
            usage=(response.usage or Usage()) + spent if spent else response.usage,
            model=response.model,
            request_id=response.request_id,
            left_out=left_out_text(response.left_out),
            timestamp=now,
        )
        turn = self._with_step(step).with_usage(response.usage)
        if interrupted or not calls:
            return turn
        return turn.with_message(
            tools_used=list(dict.fromkeys([*(self.message.tools_used or []), *(call.name for call in calls)]))
        )

    def with_prompt(self, prompt: Prompt, *, now: datetime) -> Self:
        step = UserStep(
            kind="user", message_id=prompt.id, content=prompt.text, attachments=prompt.attachments, timestamp=now
        )
        return self._with_step(step)

    def with_result(self, call_id: str, result: ToolResult) -> Self:
        calls = self.newest_step.tool_calls
        return self._with_tool_calls(
            (call.model_copy(update={"result": result}) if call.id == call_id else call for call in calls),
            added_bytes=_bytes_of(result),
        )

    def with_unsettled_step(self, state: ProviderState | None, *, segment: int) -> Self:
        """Keep the newest step out of the model view until every call has a result; `segment` is its request's."""
        return self.model_copy(update={"unsettled": True, "state": state, "segment": segment})

    # ---- decisions on calls of the newest step

    @property
    def awaits_approval(self) -> bool:
        """Whether a call waits for a person's decision (AGT-8)."""
        return self.message.status == "awaiting_approval"

    @property
    def waits_for_person(self) -> bool:
        """Whether a person's decision is needed, for a call of its own or of a task it waits for."""
        return self.awaits_approval or self.has_blocked_task

    def with_approvals_asked(
        self, call_ids: Collection[str], changes: Mapping[str, FileChange] | None = None, *, now: datetime
    ) -> Self:
        """Ask for decisions on calls, within `limits.approval_timeout`; this stops the turn's clock (AGT-8).

        `changes`: what some of the calls would change in a file.
        """
        timeout = self.limits.approval_timeout
        calls, changes = self.newest_step.tool_calls, changes or {}
        return self._with_tool_calls(
            (
                ask_for_approval(call, now=now, timeout=timeout, change=changes.get(call.id))
                if call.id in call_ids
                else call
                for call in calls
            ),
            added_bytes=len(call_ids) * APPROVAL_BYTES + sum(map(_bytes_of, changes.values())),
        )._with_clock(now)

    def with_decision(
        self,
        on: ToolCall,
        decision: ApprovalDecision,
        *,
        reason: str | None = None,
        by: str | None = None,
        now: datetime,
    ) -> Self:
        """Record a decision of the person `by`; `allow_for_session` applies to all pending calls of the tool."""
        for_all = decision == "allow_for_session"
        return self._with_tool_calls(
            record_decision(call, decision, reason=reason, by=by, now=now)
            if call.awaits_approval and (call.id == on.id or (for_all and call.name == on.name))
            else call
            for call in self.newest_step.tool_calls
        )._with_clock(now)

    def with_approvals_expired(self, now: datetime) -> Self:
        """Expire the pending approvals whose time is over."""
        return self._with_tool_calls(
            expire_approval(call, now=now) for call in self.newest_step.tool_calls
        )._with_clock(now)

    def with_blocked_task(self, is_blocked: bool, *, now: datetime) -> Self:  # reads as a sentence
        return self.model_copy(update={"has_blocked_task": is_blocked})._with_clock(now)

    # ---- its end: the final message

    def completed(self, answer: str, *, blob: BlobRef | None = None, now: datetime) -> ConversationMessage:
        """Return the message with the turn's answer; with a `blob`, `answer` is an excerpt."""
        return self._ended(now, agent_message=answer, agent_message_blob=blob, status="completed")

    def failed(
        self, error_type: ErrorType, error: str, *, stop: TurnStop | None = None, now: datetime
    ) -> ConversationMessage:
        """Return the message with the turn's error (SES-10); `stop`: who or what stopped it, if it was cancelled."""
        status = "cancelled" if error_type == "cancelled" else "failed"
        return self._ended(now, error=error, error_type=error_type, stop=stop, status=status)

    def _ended(self, now: datetime, **outcome: object) -> ConversationMessage:
        elapsed = round((now - self.message.timestamp).total_seconds() * 1000)
        return self.message.model_copy(update={"agent_timestamp": now, "processing_time_ms": elapsed, **outcome})

    # ---- the message

    def with_message(self, **update: object) -> Self:
        """Return the turn with a changed message; `carried_bytes` does not change."""
        return self.model_copy(update={"message": self.message.model_copy(update=update)})

    def _with_step(self, step: Step) -> Self:
        trajectory = ReasoningTrajectory(steps=[*self.message.steps, step])
        carried_bytes = self.carried_bytes + _bytes_of(step)
        return self.with_message(reasoning_trajectory=trajectory).model_copy(update={"carried_bytes": carried_bytes})

    def _with_tool_calls(self, calls: Iterable[ToolCall], *, added_bytes: int = 0) -> Self:
        step = self.newest_step.model_copy(update={"tool_calls": list(calls)})
        awaits = any(call.awaits_approval for call in step.tool_calls)
        turn = self.with_message(
            reasoning_trajectory=ReasoningTrajectory(steps=[*self.message.steps[:-1], step]),
            status="awaiting_approval" if awaits else "processing",
        )
        return turn.model_copy(update={"carried_bytes": self.carried_bytes + added_bytes})


def _bytes_of(part: Step | ToolResult | FileChange) -> int:
    return len(part.model_dump_json(exclude_defaults=True))


def number_calls(parts: Iterable[CallPart], *, turn_number: int, step: int) -> list[ToolCall]:
    """Return the calls of an answer, the model step `step` of its turn, with our own ids."""
    return [
        ToolCall(
            id=ids.call_id(turn_number, step, index),
            name=part.name,
            args=part.args,
            args_blob=part.blob,
            provider_call_id=part.id or None,
        )
        for index, part in enumerate(parts)
    ]
