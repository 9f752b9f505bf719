"""The running turn: what it began with, how far it is, and the rules that follow from that (AGT-1, SES-14).

A turn is a value: every change returns its next version, which `CurrentTurn` puts in the place of the one before.
Nothing here knows Temporal: times are arguments.
"""

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from math import ceil
from typing import Self

from pydantic import Field

from turnkeeper.models import ids
from turnkeeper.models.context.window import ConversationHistoryConfig
from turnkeeper.models.errors import ErrorType, fail
from turnkeeper.models.limits import Limits
from turnkeeper.models.session.approvals import APPROVAL_BYTES, asked, decided, expired
from turnkeeper.models.session.tool_policy import ToolPolicy
from turnkeeper.models.session.turn.budgets import Budgets
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.transcript.model_call import CallPart, ModelResponse, ProviderState
from turnkeeper.models.transcript.trajectory import (
    ApprovalDecision,
    BlobRef,
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
"""What an answer may have however full the turn is."""

RESULT_BYTES = 200
"""What a result takes beside its content."""


class CarriedTurn(Compact):
    """What is carried of a running turn beside its message, which is carried in the transcript (SES-14).

    `model`, `limits`, `history` and `tool_policy` are those it began with: later configuration is for the next turn
    (SES-8). `steps` and `calls` count towards its limits.
    """

    deadline: UtcDatetime
    """When its time is over; while people are asked to decide, `RunningTurn.deadline_at` says it."""
    model: str
    limits: Limits
    history: ConversationHistoryConfig
    tool_policy: ToolPolicy = {}
    awaiting_since: UtcDatetime | None = None
    """Since when people are asked to decide: `deadline` moves on by as long as that takes."""
    has_blocked_task: bool = False
    """People are asked to decide on a call of a task that the turn waits for (TSK-5)."""
    steps: int = 0
    calls: int = 0
    unsettled: bool = False
    """The newest step is not shown to the model yet: calls of it may have no result."""
    state: ProviderState | None = None
    """The vendor's own blocks of an unsettled step."""
    segment: int | None = None
    """The segment of the request that an unsettled step answers."""

    def resume(self, message: ConversationMessage) -> "RunningTurn":
        """Return the turn with its `message`, as it goes on in the next run."""
        fields = {name: getattr(self, name) for name in CarriedTurn.model_fields}
        return RunningTurn(**fields, message=message, carried_bytes=carried_size(message))


class RunningTurn(CarriedTurn):
    """A running turn with the message that it is recorded as, and shown as."""

    message: ConversationMessage = Field(exclude=True)
    carried_bytes: int = Field(exclude=True)
    """JSON bytes of the message as it is carried; counted step by step."""

    @classmethod
    def begin(
        cls,
        message: ConversationMessage,
        *,
        model: str,
        limits: Limits,
        history: ConversationHistoryConfig,
        tool_policy: ToolPolicy,
        now: datetime,
    ) -> Self:
        return cls(
            deadline=now + timedelta(seconds=limits.turn_timeout),
            model=model,
            limits=limits,
            history=history,
            tool_policy=tool_policy,
            message=message,
            carried_bytes=carried_size(message),
        )

    @property
    def carried(self) -> CarriedTurn:
        """What the next run is handed beside the message."""
        return CarriedTurn(**{name: getattr(self, name) for name in CarriedTurn.model_fields})

    # ---- its clock

    def deadline_at(self, now: datetime) -> datetime:
        """Return when the turn's time is over: while people are asked to decide, its clock stands still (AGT-1)."""
        return self.deadline + (now - self.awaiting_since) if self.awaiting_since else self.deadline

    def time_left(self, now: datetime) -> timedelta:
        """Return the whole seconds left until the deadline, at least one. Raises `TurnFailed` where it is over.

        They bound activities, so that the deadline costs no timer of its own.
        """
        seconds = (self.deadline_at(now) - now).total_seconds()
        if seconds <= 0:
            self.budgets.fail_out_of_time()
        return timedelta(seconds=ceil(seconds))

    def _with_clock(self, now: datetime) -> Self:
        """Stop the clock while a call awaits a decision, and let it run on otherwise."""
        if self.awaits_approval or self.has_blocked_task:
            return self.model_copy(update={"awaiting_since": self.awaiting_since or now})
        return self.model_copy(update={"deadline": self.deadline_at(now), "awaiting_since": None})

    # ---- its budgets

    @property
    def budgets(self) -> Budgets:
        return Budgets(self.limits, self.model, spent=self.message.usage or Usage())

    def with_next_step(self) -> Self:
        return self.model_copy(update={"steps": self.steps + 1})

    def with_calls(self, count: int) -> Self:
        return self.model_copy(update={"calls": self.calls + count})

    def with_usage(self, usage: Usage | None) -> Self:
        return self.with_message(usage=(self.message.usage or Usage()) + usage) if usage else self

    # ---- its bytes: `cap` is the most that the session can carry of the turn

    def check_size(self, cap: int, *, archive_error: str | None) -> None:
        """Raise `TurnFailed` where the turn holds more than `cap`; the archive could not take its older steps."""
        if self.carried_bytes > cap:
            holds = f"The turn holds {self.carried_bytes:,} bytes; limits.max_state_bytes leaves {cap:,} for it"
            why = f", and the archive could not take its older steps: {archive_error}" if archive_error else "."
            fail("too_large", holds + why)

    def check_room_for_results(self, calls: int, *, asks: bool, cap: int) -> None:
        """Raise `TurnFailed` where the turn cannot hold the results of `calls`; `asks`: people decide on some."""
        a_result = self.limits.small_text_bytes + RESULT_BYTES + (APPROVAL_BYTES if asks else 0)
        most = (cap - self.carried_bytes) // a_result
        if self.carried_bytes + calls * a_result > self.limits.least_turn_bytes and calls > most:
            fail("budget", f"One step asked for {calls} tool calls; the turn has room for {max(0, most)} results.")

    def max_answer_bytes(self, cap: int) -> int:
        """Return the most bytes of an answer: as much room stays for the results of the calls that it asks for."""
        return min(self.limits.answer_bytes, max(MIN_ANSWER_BYTES, (cap - self.carried_bytes) // 2))

    @property
    def inline_bytes(self) -> int:
        """Most bytes of a text of an answer that is not kept by reference (SES-15)."""
        return self.limits.inline_bytes(self.carried_bytes)

    def result_inline_bytes(self, results: int) -> int:
        """Return each result's fair share of what the turn may hold inline, where a step has so many (SES-15)."""
        share = (self.limits.turn_inline_bytes - self.carried_bytes) // max(1, results)
        return max(self.limits.small_text_bytes, min(self.inline_bytes, share))

    def oldest_steps(self, *, beyond_bytes: int) -> list[Step]:
        """Return the oldest steps that are to go so that the turn takes at most `beyond_bytes`.

        The newest step stays: what is still to be done is in it.
        """
        leaving, excess = list[Step](), self.carried_bytes - beyond_bytes
        for step in self.message.steps[:-1]:
            if excess <= 0:
                break
            leaving.append(step)
            excess -= _bytes_of(step)
        return leaving

    def without_oldest_steps(self, count: int) -> Self:
        """Return the turn without its oldest steps, which the archive has."""
        message = self.message.without_oldest_steps(count)
        return self.model_copy(update={"message": message, "carried_bytes": carried_size(message)})

    # ---- its steps

    @property
    def newest_step(self) -> ModelStep:
        """The newest step, which is the model's own. Raises `TypeError` where it is not."""
        step = self.message.steps[-1]
        if not isinstance(step, ModelStep):
            raise TypeError(f"the newest step of turn {self.message.id} is no model step")
        return step

    @property
    def pending_calls(self) -> list[ToolCall]:
        """The calls of the newest step that have no result yet."""
        return [call for call in self.newest_step.tool_calls if call.result is None]

    def call(self, call_id: str) -> ToolCall:
        return next(call for call in self.newest_step.tool_calls if call.id == call_id)

    def number_calls(self, parts: Iterable[CallPart], *, turn_number: int) -> list[ToolCall]:
        """Return the calls of an answer under ids of our own."""
        return [
            ToolCall(
                id=ids.call_id(turn_number, self.steps, index),
                name=part.name,
                args=part.args,
                args_blob=part.blob,
                provider_call_id=part.id or None,
            )
            for index, part in enumerate(parts)
        ]

    def with_response(
        self,
        response: ModelResponse,
        calls: list[ToolCall],
        *,
        now: datetime,
        interrupted: bool = False,
        spent: Usage | None = None,
    ) -> Self:
        """Record a model response as the next step; its calls have no results yet.

        An `interrupted` one is not whole, and ends its turn (SES-9). What attempts before it have `spent` is counted
        for the turn already, and is shown with the step (AGT-9).
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
            timestamp=now,
        )
        used = [] if interrupted else [call.name for call in calls]
        return self._with_step(step).with_usage(response.usage)._with_tools_used(used)

    def with_prompt(self, message_id: str, text: str, *, now: datetime) -> Self:
        return self._with_step(UserStep(kind="user", message_id=message_id, content=text, timestamp=now))

    def with_result(self, call_id: str, result: ToolResult) -> Self:
        calls = self.newest_step.tool_calls
        return self._with_calls(
            call.model_copy(update={"result": result}) if call.id == call_id else call for call in calls
        )._with_bytes(_bytes_of(result))

    def with_unsettled_step(self, state: ProviderState | None, *, segment: int) -> Self:
        """Keep the newest step, the answer to a request of `segment`, from the model until every call has a result."""
        return self.model_copy(update={"unsettled": True, "state": state, "segment": segment})

    def with_settled_step(self) -> Self:
        return self.model_copy(update={"unsettled": False, "state": None, "segment": None})

    # ---- people's decisions on its calls; they are all in the newest step

    @property
    def awaits_approval(self) -> bool:
        """A person is asked to decide on a call (AGT-8)."""
        return self.message.status == "awaiting_approval"

    def with_approvals_asked(self, call_ids: Collection[str], *, now: datetime) -> Self:
        """Ask people to decide on calls within `limits.approval_timeout`; the clock stands still meanwhile (AGT-8)."""
        timeout = self.limits.approval_timeout
        calls = self.newest_step.tool_calls
        return (
            self._with_calls(asked(call, now=now, timeout=timeout) if call.id in call_ids else call for call in calls)
            ._with_bytes(len(call_ids) * APPROVAL_BYTES)
            ._with_clock(now)
        )

    def with_decision(
        self, on: ToolCall, decision: ApprovalDecision, *, reason: str | None = None, now: datetime
    ) -> Self:
        """Record a decision on a call; one for the session is about all calls of its tool that await one."""
        for_all = decision == "allow_for_session"
        return self._with_calls(
            decided(call, decision, reason=reason, now=now)
            if call.awaits_approval and (call.id == on.id or (for_all and call.name == on.name))
            else call
            for call in self.newest_step.tool_calls
        )._with_clock(now)

    def with_approvals_expired(self, now: datetime) -> Self:
        """Record for the calls whose time to decide is over that nobody did."""
        return self._with_calls(expired(call, now=now) for call in self.newest_step.tool_calls)._with_clock(now)

    def with_blocked_task(self, is_blocked: bool, *, now: datetime) -> Self:  # reads as a sentence
        return self.model_copy(update={"has_blocked_task": is_blocked})._with_clock(now)

    # ---- its end: the message as it stays in the transcript

    def completed(self, answer: str, *, blob: BlobRef | None = None, now: datetime) -> ConversationMessage:
        """Return the message with the turn's answer, or with an excerpt of the answer that is kept in `blob`."""
        return self._ended(now, agent_message=answer, agent_message_blob=blob, status="completed")

    def failed(self, error_type: ErrorType, error: str, *, now: datetime) -> ConversationMessage:
        """Return the message of a turn that ends without an answer (SES-10)."""
        status = "cancelled" if error_type == "cancelled" else "failed"
        return self._ended(now, error=error, error_type=error_type, status=status)

    def _ended(self, now: datetime, **outcome: object) -> ConversationMessage:
        elapsed = round((now - self.message.timestamp).total_seconds() * 1000)
        return self.message.model_copy(update={"agent_timestamp": now, "processing_time_ms": elapsed, **outcome})

    # ---- the message

    def with_message(self, **update: object) -> Self:
        """Return the turn with a changed message; `carried_bytes` leave out what such changes add."""
        return self.model_copy(update={"message": self.message.model_copy(update=update)})

    def _with_step(self, step: Step) -> Self:
        trajectory = ReasoningTrajectory(steps=[*self.message.steps, step])
        return self.with_message(reasoning_trajectory=trajectory)._with_bytes(_bytes_of(step))

    def _with_calls(self, calls: Iterable[ToolCall]) -> Self:
        step = self.newest_step.model_copy(update={"tool_calls": list(calls)})
        awaits = any(call.awaits_approval for call in step.tool_calls)
        return self.with_message(
            reasoning_trajectory=ReasoningTrajectory(steps=[*self.message.steps[:-1], step]),
            status="awaiting_approval" if awaits else "processing",
        )

    def _with_tools_used(self, names: list[str]) -> Self:
        if not names:
            return self
        return self.with_message(tools_used=list(dict.fromkeys([*(self.message.tools_used or []), *names])))

    def _with_bytes(self, added: int) -> Self:
        return self.model_copy(update={"carried_bytes": self.carried_bytes + added})


def _bytes_of(part: Step | ToolResult) -> int:
    return len(part.model_dump_json(exclude_defaults=True))
