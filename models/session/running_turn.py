"""The running turn as a value, with its rules (AGT-1, SES-14).

Every change returns the next version of the turn, with which `TurnSlot` replaces the present one, in the transcript and
the model view too. Times are arguments: this module does not depend on Temporal.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil
from typing import Self

from pydantic import Field

from turnkeeper.models.context.model_context import ModelContext
from turnkeeper.models.context.window import ConversationHistoryConfig
from turnkeeper.models.errors import ErrorType, fail
from turnkeeper.models.ids import call_id
from turnkeeper.models.limits import Limits
from turnkeeper.models.session.approvals import (
    APPROVAL_BYTES,
    CHANGE_BYTES,
    MAX_DIFF_BYTES,
    ask_for_approval,
    expire_approval,
    record_decision,
)
from turnkeeper.models.session.budgets import Budgets
from turnkeeper.models.session.prompts import Prompt
from turnkeeper.models.session.tools import ToolNames, ToolPolicy
from turnkeeper.models.transcript.conversation import (
    ApprovalDecision,
    BlobRef,
    ConversationMessage,
    FileChange,
    ModelStep,
    ReasoningTrajectory,
    Step,
    ToolCall,
    ToolResult,
    TurnMetrics,
    TurnStop,
    Usage,
    UserStep,
)
from turnkeeper.models.transcript.model_call import CallPart, ModelResponse, ProviderState, left_out_text
from turnkeeper.models.transcript.transcript import Transcript, carried_size
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
            id=call_id(turn_number, step, index),
            name=part.name,
            args=part.args,
            args_blob=part.blob,
            provider_call_id=part.id or None,
        )
        for index, part in enumerate(parts)
    ]


# ---- the turn in its session


class TurnSlot:
    """Holds the running turn, if there is one: the newest of the transcript."""

    def __init__(
        self,
        carried: CarriedTurn | None,
        transcript: Transcript,
        context: ModelContext,
        *,
        raise_revision: Callable[[], int],
        on_usage: Callable[[Usage], None],
    ) -> None:
        """Continue the `carried` turn.

        `raise_revision` returns the session's new revision; `on_usage` adds to the session's usage.
        """
        self._transcript = transcript
        self._context = context
        self._raise_revision = raise_revision
        self._on_usage = on_usage
        newest = transcript.newest
        is_running = newest is not None and not newest.is_complete
        self.turn = carried.resume(newest) if carried and newest and is_running else None
        """The turn's present version; replaced with every change."""
        self.waiting_until: datetime | None = None
        """When the model is asked again; `None`: not waiting."""
        self.waiting_reason: str | None = None
        """Why the model is asked again, then or now."""

    def running(self) -> RunningTurn:
        """Return `turn`. Raises `RuntimeError` if it is `None`."""
        if self.turn is None:
            raise RuntimeError("no turn is running")
        return self.turn

    def begin(self, turn: RunningTurn) -> None:
        """Record a turn (SES-2), and append its prompt to the model view.

        If it retries the turn before it, and that has no answer, it takes its place there (CTX-17).
        """
        newest = self._transcript.newest
        self._transcript.record(turn.message)
        self.turn = turn
        is_retry = newest is not None and newest.is_error and newest.id == turn.message.retries
        self._context.begin_turn(turn.message, retried=newest if is_retry else None)

    def replace_prompt(self, text: str) -> None:
        """Replace the text of a turn's prompt, before the first model request with it."""
        turn = self.running().with_message(user_message=text)
        self.change(turn.model_copy(update={"carried_bytes": carried_size(turn.message)}))
        self._context.view.replace_request(self.running().message)

    def change(self, turn: RunningTurn) -> None:
        """Replace the turn with its next version; a changed message gets a new revision."""
        if turn.message is not self.running().message:
            turn = turn.with_message(revision=self._raise_revision())
        self._replace(turn)

    def publish(self) -> None:
        """Give the turn a new revision, since the model's view of it has changed."""
        self._replace(self.running().with_message(revision=self._raise_revision()))

    def end(self, message: ConversationMessage) -> None:
        """End the turn; `message` is the turn with its outcome."""
        ended = message.model_copy(update={"revision": self._raise_revision()})
        self._transcript.replace_newest(ended)
        self._context.end_turn(ended)
        self.turn = None

    # ---- model requests

    def note_request(self) -> None:
        self._context.note_request()
        view = self._context.view
        metrics = TurnMetrics(message_count=view.message_count, estimated_tokens=view.estimated_tokens)
        self.change(self.running().with_message(conversation_metrics=metrics))

    def wait_until(self, moment: datetime, *, reason: str) -> None:
        """Publish that the model is asked again at `moment`, and why, in a sentence; empty: unknown (AGT-9)."""
        self.waiting_until, self.waiting_reason = moment, reason or None
        self._raise_revision()

    def show_retry(self, reason: str) -> None:
        """Publish why the model is asked again now, until `stop_waiting` (AGT-9)."""
        self.waiting_reason = reason or None
        self._raise_revision()

    def stop_waiting(self) -> None:
        self.waiting_until = self.waiting_reason = None
        self._raise_revision()

    def add_usage(self, usage: Usage | None) -> None:
        if usage:
            self._on_usage(usage)
            self._replace(self.running().with_usage(usage))

    # ---- its steps

    def add_response(
        self,
        response: ModelResponse,
        calls: list[ToolCall],
        *,
        now: datetime,
        interrupted: bool = False,
        spent: Usage | None = None,
    ) -> ModelStep:
        """Record a model response as the next step, see `RunningTurn.with_response`, and its usage."""
        turn = self.running().with_response(response, calls, now=now, interrupted=interrupted, spent=spent)
        self.change(turn)
        if response.usage:
            self._on_usage(response.usage)
        self._context.note_usage(response.usage)
        return turn.newest_step

    def append_step_to_view(self, *, state: ProviderState | None, segment: int | None = None) -> None:
        """Append the newest step to the model view; every call of it has a result.

        Its `state` belongs to the segment of its request: in a later one it is no longer sent (CTX-4).
        """
        view = self._context.view
        if segment not in (None, view.segment):
            state = None
        view.append_step(self.running().message, number=self._transcript.count, state=state)

    def settle_step(self) -> None:
        """Append the newest step to the model view, unless it is there; every call of it has a result."""
        turn = self.running()
        if turn.unsettled:
            self.append_step_to_view(state=turn.state, segment=turn.segment)
            self.change(turn.model_copy(update={"unsettled": False, "state": None, "segment": None}))

    def _replace(self, turn: RunningTurn) -> None:
        self.turn = turn
        self._transcript.replace_newest(turn.message)
