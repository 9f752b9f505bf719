"""A session's state and rules: the core of the workflow, without Temporal.

This class has only what spans several parts; callers use a part directly for everything else. Every change that a query
can show raises the revision exactly once (SES-12): recorded runs depend on its number of digits. Ids and times are
arguments.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import ClassVar, TypeVar

from pydantic import JsonValue
from pydantic_core import to_json

from turnkeeper.models.context.model_context import ModelContext
from turnkeeper.models.errors import RejectedError
from turnkeeper.models.ids import PublicId
from turnkeeper.models.session.agents import filled
from turnkeeper.models.session.approvals import ApprovalReceipt, ResolveApproval, check_decision
from turnkeeper.models.session.archive import ArchiveHealth, ArchiveMove
from turnkeeper.models.session.budgets import Budgets
from turnkeeper.models.session.messages import CarriedState, Configure, SessionInput, configured, make_title
from turnkeeper.models.session.prompt_queue import PromptQueue
from turnkeeper.models.session.prompts import WIDEST, Prompt, PromptSignal, id_in, read_prompt
from turnkeeper.models.session.running_turn import RunningTurn, TurnSlot
from turnkeeper.models.session.tools import SessionRefusals, SessionTools
from turnkeeper.models.transcript.attachments import json_bytes
from turnkeeper.models.transcript.conversation import (
    ConversationMessage,
    SessionStatus,
    SubTask,
    TaskStatus,
    TaskView,
    ToolResult,
    Usage,
)
from turnkeeper.models.transcript.model_call import RequestHead, ToolSpec
from turnkeeper.models.transcript.transcript import Transcript

ENVELOPE_BYTES = 2_048
"""Allowance for carried data that is not counted: numbers, times, field names."""

MAX_CARRIED_BYTES = 1_800_000
"""Maximum of the carried state: with 2 MB Temporal would repeat the continue-as-new forever."""

_CLOSED = {"ended": "has ended", "cancelled": "was cancelled", "terminated": "was terminated"}


PartData = Mapping[str, JsonValue]


class SessionPart:
    """What a feature adds to a session: state and rules. Each hook adds nothing, unless a feature overrides it.

    A part calls `on_change` of its session for every change that a query can show.
    """

    name: ClassVar[str]
    """The feature's."""

    def __init__(self, session: "Session", input_data: PartData, carried: PartData) -> None:
        """Begin with what the session's input has for the feature, and what the last run has carried."""

    @classmethod
    def check_start(cls, start: SessionInput) -> None:
        """Check what the input of a new session has for the feature. Raises `RejectedError` naming the field."""

    def first_prompt(self, new_id: str) -> PromptSignal | None:
        """Return the prompt of a new session whose input has none; its id may be `new_id`."""
        return None

    @property
    def tools(self) -> list[ToolSpec]:
        """The tools that the feature runs itself, as they are offered now."""
        return []

    @property
    def unoffered_tools(self) -> list[ToolSpec]:
        """Tools that it would run, but does not offer now."""
        return []

    def budgets(self, budgets: Budgets) -> Budgets:
        """Return the running turn's budgets with what the feature knows of them."""
        return budgets

    def end_turn(self) -> None:
        """Finish what the feature does in the running turn, which ends now."""

    # ---- what people see

    @property
    def task(self) -> TaskView | None:
        """The task that the session is."""
        return None

    @property
    def task_status(self) -> TaskStatus | None:
        return None

    @property
    def sub_tasks(self) -> list[SubTask]:
        """The tasks that it has started."""
        return []

    @property
    def open_seconds(self) -> float | None:
        """How long the session waits for further prompts after an answer; `None`: until somebody ends it."""
        return None

    # ---- the next run

    @property
    def kept_input(self) -> dict[str, JsonValue]:
        """What the next run gets of its input; empty: nothing."""
        return {}

    @property
    def state(self) -> dict[str, JsonValue]:
        """What the next run gets; empty: nothing."""
        return {}

    @property
    def carried_bytes(self) -> int:
        """JSON bytes of `state`, if it can grow."""
        return 0


PartT = TypeVar("PartT", bound=SessionPart)

_parts: tuple[type[SessionPart], ...] = ()


def use_parts(parts: Iterable[type[SessionPart]]) -> None:
    """Give these parts to every session of this process that is built from now on: once, before the first one."""
    global _parts  # Temporal builds workflows itself, and gives them only their input
    _parts = tuple(parts)


def used_parts() -> tuple[type[SessionPart], ...]:
    return _parts


def check_features(names: Iterable[str]) -> None:
    """Raise `RejectedError` for a feature that this process does not have: nothing of it may get lost."""
    enabled = [part.name for part in _parts]
    if missing := sorted(set(names) - set(enabled)):
        message = f"features: {missing[0]!r} is not enabled here; enabled are {', '.join(enabled) or 'none'}."
        raise RejectedError("invalid", message, field="features")


class Session:
    """A conversation: its transcript, its queue, its model view and its configuration."""

    def __init__(
        self,
        session_id: PublicId,
        start: SessionInput,
        *,
        now: datetime,
        on_revision: Callable[[], None] = lambda: None,
    ) -> None:
        """Begin a session, or continue the one in `start.carried` (SES-14).

        `session_id` is without the tenant: a session only knows ids of its own tenant. Every change calls
        `on_revision`. Raises `RejectedError` if it has anything of a feature that this process does not have.
        """
        state = start.carried or CarriedState(created_at=now, revision=0)
        check_features([*start.features, *state.features])
        self.id = session_id
        self.config = start.model_copy(update={"carried": None, "first_prompt": None})
        self.facts = state.facts
        """The carried fields of no part; replaced with every change."""
        self._on_revision = on_revision
        self.transcript = Transcript(state.transcript, page_bytes=start.limits.page_bytes)
        self.queue = PromptQueue(state.queue, limits=start.limits, on_change=self.on_change)
        self.context = ModelContext(state.context, self.transcript, on_change=lambda: self.turn_slot.publish())
        self.tools = SessionTools(
            state.tools,
            self.context.view,
            own=lambda: [tool for part in self.parts for tool in part.tools],
            unoffered=lambda: [tool for part in self.parts for tool in part.unoffered_tools],
            on_change=self.on_change,
        )
        self.refusals = SessionRefusals(state.refusals)
        self.archive = ArchiveHealth(state.archive, on_change=self.on_change)
        self.turn_slot = TurnSlot(
            state.running,
            self.transcript,
            self.context,
            raise_revision=self.on_change,
            on_usage=lambda usage: self._update(usage=self.facts.usage + usage),
        )
        data = ((part, start.features.get(part.name, {}), state.features.get(part.name, {})) for part in _parts)
        self.parts = [part(self, input_data, carried) for part, input_data, carried in data]
        """What features add."""
        features = {part.name: part.kept_input for part in self.parts if part.kept_input}
        self.config = self.config.model_copy(update={"features": features})
        self.room = Room(self)
        self.closed: SessionStatus | None = None
        self._head: RequestHead | None = None

    # ---- its properties

    @property
    def turn(self) -> RunningTurn | None:
        return self.turn_slot.turn

    @property
    def revision(self) -> int:
        return self.facts.revision

    def part(self, kind: type[PartT]) -> PartT:
        """Return the part of this class. Raises `StopIteration` if the feature is not enabled."""
        return next(part for part in self.parts if isinstance(part, kind))

    @property
    def task(self) -> TaskView | None:
        """The task that the session is."""
        return next((task for part in self.parts if (task := part.task)), None)

    @property
    def task_status(self) -> TaskStatus | None:
        """The status of that task."""
        return next((status for part in self.parts if (status := part.task_status)), None)

    @property
    def sub_tasks(self) -> list[SubTask]:
        """The tasks that it has started: all that are open and the newest others, oldest first."""
        return [task for part in self.parts for task in part.sub_tasks]

    @property
    def open_seconds(self) -> float | None:
        """How long it waits for further prompts after an answer; `None`: until somebody ends it."""
        times = (part.open_seconds for part in self.parts)
        return min((seconds for seconds in times if seconds is not None), default=None)

    @property
    def budgets(self) -> Budgets:
        """The running turn's budgets, with what features know of them."""
        budgets = self.turn_slot.running().budgets
        for part in self.parts:
            budgets = part.budgets(budgets)
        return budgets

    @property
    def status(self) -> SessionStatus:
        if self.closed:
            return self.closed
        if self.turn and self.turn.waits_for_person:
            return "awaiting_approval"  # also while it is ending, which waits for the decision
        if self.facts.ending is not None:
            return "ending"
        if self.turn_slot.waiting_until:
            return "waiting_retry"
        return "processing" if self.turn else "idle"

    @property
    def rejection_when_ending(self) -> RejectedError | None:
        """The rejection that any new prompt gets; `None` unless the session is ending or closed."""
        if self.facts.ending is None and not self.closed:
            return None
        state = _CLOSED.get(self.status, "is ending and takes no more prompts")
        return RejectedError("ending", f"The session {state} ({self.facts.ending or 'no reason given'}).")

    @property
    def head(self) -> RequestHead:
        """The head of requests; the same object until tools or system prompt change."""
        head, tools = self._head, self.tools.offered
        system = "\n\n".join(filter(None, (self._system_prompt, self.tools.instructions)))
        if head is None or head.tools != tools or head.system != system:
            head = self._head = RequestHead(system=system, tools=tools)
        return head

    @property
    def _system_prompt(self) -> str:
        """The running turn's, or that of the next one; an agent's with what is filled in."""
        config, text = self.config, self.turn.system_prompt if self.turn else None
        text = config.system_prompt if text is None else text
        if config.agent is None:
            return text
        return filled(text, {**config.variables, "user": config.user or "the user", "today": self.facts.today})

    # ---- prompts

    def receive(
        self, raw: object, *, extra_arguments: int, new_id: str, now: datetime, max_chars: int = WIDEST.max_prompt_chars
    ) -> Prompt | None:
        """Accept a prompt, or record why it is rejected; a repeated id is the same prompt (SES-5, SES-6).

        Returns the prompt if this call accepted it. It is only rejected if it is wrong in itself, never for want of
        room: a gateway has promised that it is processed. `max_chars` is for its text; what the session sends itself
        may be as long as any prompt. After the session has begun to end, it is discarded like those that wait.
        """
        try:
            prompt = read_prompt(raw, extra_arguments=extra_arguments, new_id=new_id, now=now, max_chars=max_chars)
        except RejectedError as rejection:
            sent_id = id_in(raw)
            # An id that was accepted before already has a fate or will get one, so this prompt needs a new id.
            is_taken = sent_id is None or self.has_prompt(sent_id)
            message_id = new_id if is_taken else sent_id or new_id
            self.queue.record(message_id, "rejected", at=now, rejection=rejection)
            self.on_change()
            return None
        if self.has_prompt(prompt.id):
            return None
        late = self.rejection_when_ending
        if late:
            self.queue.record(prompt.id, "discarded", at=now, rejection=late)
        else:
            self.queue.accept(prompt, turn_is_running=self.turn is not None)
        self.on_change()
        return None if late else prompt

    def has_prompt(self, message_id: str) -> bool:
        """Return whether a prompt with this id was accepted before, as far as the session remembers (SES-6)."""
        queue = self.queue
        return message_id in queue or message_id in queue.fate_book.ids or message_id in self.transcript

    def shrink_view_if_full(self) -> None:
        """Evict most of the model view if there is no room for another turn beside it (SES-15)."""
        if self.room.is_full:
            self.context.evict_over_bytes(self.config.history, max_bytes=self.config.limits.view_bytes // 4)

    # ---- the running turn

    def renew_after_refusal(self, *, has_state: bool) -> None:
        """List the tools again before the next request, and drop the vendor's state, if there is some: once (AGT-9).

        The turn that was refused for good ends now, which raises the revision.
        """
        if self.refusals.note_reset():
            self.tools.invalidate()
            if has_state:
                self.context.view.open_segment()

    def begin_turn(self, *, now: datetime) -> ConversationMessage:
        """Record the next prompt as a turn (SES-2), with the present configuration (SES-8)."""
        prompt = self.queue.start_next(at=now)
        self._update(moved_events=self.facts.moved_events.at_new_turn())
        if self.config.agent:
            self._begin_agent(self.config.agent, now=now)
        if self.config.title is None:
            names = " ".join(one.name or "" for one in prompt.attachments)
            self.config = self.config.model_copy(update={"title": make_title(prompt.text.strip() or names)})
        message = ConversationMessage(
            id=prompt.id,
            timestamp=now,
            user_message=prompt.text,
            attachments=prompt.attachments,
            user_timestamp=prompt.sent_at or prompt.received_at,
            usage=self.facts.usage_between_turns,
            tasks_usage=self.facts.usage_between_turns,
            revision=self.on_change(),
            retries=prompt.retries,
            agent=self.config.agent,
        )
        self._update(usage_between_turns=None)
        turn = RunningTurn.begin(
            message,
            model=self.config.model,
            limits=self.config.limits,
            history=self.config.history,
            tools=self.config.tools,
            tool_policy=self.config.tool_policy,
            now=now,
        )
        self.turn_slot.begin(turn)
        return message

    def _begin_agent(self, label: str, *, now: datetime) -> None:
        """Begin a segment if the next turn is that of another version than the last one; date what begins one."""
        newest = self.transcript.newest
        if newest and newest.agent != label:
            self.context.view.open_segment()
            self.tools.invalidate()  # the code of its tools may be new too
        if self.facts.today_segment != (segment := self.context.view.segment):
            self._update(today=now.date().isoformat(), today_segment=segment)

    def steer_turn(self, *, now: datetime) -> None:
        """Add the steering prompts to the running turn, before its next model call (SES-7).

        Those that the turn has no room for keep waiting, and become turns of their own.
        """
        if not self.queue.steering:
            return
        slot = self.turn_slot
        # Half of the turn's remaining room: an answer and its results must fit too.
        room = (self.room.turn_cap - slot.running().carried_bytes) // 2
        for prompt in self.queue.pop_steering_prompts(slot.running().message.id, at=now, room=room):
            slot.change(slot.running().with_prompt(prompt, now=now))
            slot.append_step_to_view(state=None)

    def count_request(self) -> int:
        """Count a new model request and return its number (AGT-2)."""
        self._update(request_count=self.facts.request_count + 1)
        return self.facts.request_count

    def add_result(self, call_id: str, result: ToolResult) -> None:
        """Record the result of a call of the newest step; if its tool has changed, reload the tools."""
        if result.tool_changed:
            self.tools.invalidate()
            result = result.model_copy(update={"tool_changed": False})  # for the session, not for clients
        if result.cut:
            self.archive.count_cut_result()
        self.turn_slot.change(self.turn_slot.running().with_result(call_id, result))

    def resolve_approval(self, request: ResolveApproval, *, now: datetime) -> ApprovalReceipt:
        """Record a decision; repeating it changes nothing. Raises `RejectedError`."""
        call = check_decision(self.transcript, request, now=now)
        if call.awaits_approval:
            if request.decision == "allow_for_session":
                self.tools.allow(call.name)
            turn = self.turn_slot.running()
            turn = turn.with_decision(call, request.decision, reason=request.reason, by=request.decided_by, now=now)
            self.turn_slot.change(turn)
        return ApprovalReceipt(call_id=call.id, decision=request.decision)

    def end_turn(self, message: ConversationMessage) -> None:
        """End the running turn; `message` is the turn with its outcome."""
        for part in self.parts:
            part.end_turn()
        self.turn_slot.end(message)
        self.queue.requeue_steering()

    def count_tasks(self, usage: Usage | None, *, is_blocked: bool, now: datetime) -> None:
        """Count what its tasks have used, for the session and for the running turn, or else for the next one.

        `is_blocked`: one that the turn waits for needs a person's decision, which pauses the turn's clock.
        """
        facts = self.facts
        if usage:
            self._update(usage=facts.usage + usage, tasks_usage=facts.tasks_usage + usage)
        if usage and self.turn:
            turn = self.turn.with_usage(usage)
            self.turn_slot.change(turn.with_message(tasks_usage=(turn.message.tasks_usage or Usage()) + usage))
        elif usage:
            self._update(usage_between_turns=(facts.usage_between_turns or Usage()) + usage)
        if self.turn and self.turn.has_blocked_task != is_blocked:
            self.turn_slot.change(self.turn.with_blocked_task(is_blocked, now=now))

    # ---- the archive

    def note_copied(self, move: ArchiveMove, *, now: datetime) -> None:
        """Note that the archive has turns that stay in the session; no query shows that."""
        self.transcript.copied = move.first + len(move.turns) - 1 - self.transcript.archived
        self.archive.record_success(now=now)

    def remove_moved(self, move: ArchiveMove, *, now: datetime) -> None:
        """Drop turns or steps that the archive has stored."""
        if move.steps_of is not None:
            count, turn = len(move.steps), self.turn_slot.running()
            steps_before = turn.message.steps_omitted + count
            self.context.detach(turn.message, steps_before=steps_before, inline_bytes=move.kept_bytes)
            self.turn_slot.change(turn.without_oldest_steps(count))
            self._update(moved_events=self.facts.moved_events.with_steps(move.steps, first=turn.message.steps_omitted))
        else:
            for message in move.turns:
                self.context.detach(message, inline_bytes=move.kept_bytes)
            self.transcript.drop_oldest(len(move.turns))
            self._update(moved_events=self.facts.moved_events.with_turns(move.turns))
        self.context.evict_over_bytes(self.config.history, max_bytes=self.config.limits.view_bytes)
        self.archive.record_success(now=now)
        self.on_change()

    # ---- configuration and end

    def configure(self, change: Configure) -> None:
        """Change the configuration from the next turn on (SES-8). Raises `RejectedError`."""
        before, turn = self.tools.offered, self.turn
        old, self.config = self.config, configured(self.config, change)
        if self.tools.offered != before:
            self.context.view.open_segment()
        if turn and turn.system_prompt is None and self.config.system_prompt != old.system_prompt:
            self.turn_slot.change(turn.model_copy(update={"system_prompt": old.system_prompt}))
        if change.tool_policy is not None or change.agent is not None:
            self.tools.end_allowances()  # the new policy replaces earlier allowances
        self.on_change()

    def end(self, reason: str, *, discard_queue: bool, now: datetime) -> None:
        """Accept no more prompts; with `discard_queue`, discard the waiting ones (SES-8)."""
        if self.facts.ending is None:
            self._update(ending=reason)
        if discard_queue:
            self.queue.discard_all(reason, at=now)
        self.on_change()

    def close(self, status: SessionStatus, *, reason: str, now: datetime) -> None:
        """Set the final status and discard all waiting prompts (SES-9)."""
        self.queue.discard_all(reason, at=now)
        self.closed = status
        self.on_change()

    # ---- the next run

    def reject_uncarriable(self, *, now: datetime) -> None:
        """Reject the last waiting prompts until Temporal can carry the rest: the last resort (SES-15)."""
        if self.room.is_carriable_by_temporal:
            return
        book, max_bytes = self.queue.fate_book, self.config.limits.leaving_bytes
        book.bound_leaving(max_bytes=max_bytes, rejections_only=False)
        rejection = RejectedError(
            "state_full",
            "The session holds more than can be handed over to its next run, and the archive takes none of it "
            f"({self.archive.current_error or 'it gave no reason'}). It continues when the archive works again.",
        )
        # The fate of a short prompt is as large as the prompt: those beyond `max_bytes` are dropped in the end.
        while len(self.queue) and self.room.carried_bytes > MAX_CARRIED_BYTES + max(0, book.leaving_bytes - max_bytes):
            self.queue.reject_last(rejection, at=now)
        book.bound_leaving(max_bytes=max_bytes, rejections_only=False)
        self.on_change()

    def carry(self) -> SessionInput:
        """Return the input of the next run: the whole state, with the running turn (SES-14)."""
        if self.archive.is_failing:
            max_bytes = self.config.limits.leaving_bytes
            self.queue.fate_book.bound_leaving(max_bytes=max_bytes, rejections_only=True)
        state = CarriedState(
            **dict(self.facts),
            transcript=self.transcript.state,
            queue=self.queue.state,
            context=self.context.state,
            tools=self.tools.state,
            refusals=self.refusals.state,
            archive=self.archive.state,
            features={part.name: state for part in self.parts if (state := part.state)},
            running=self.turn.carried if self.turn else None,
        )
        return self.config.model_copy(update={"carried": state})

    # ---- inside

    def on_change(self) -> int:
        """Note a change that a query can show, and return the new revision."""
        self._update(revision=self.revision + 1)
        self._on_revision()
        return self.revision

    def _update(self, **facts: object) -> None:
        self.facts = self.facts.model_copy(update=facts)


class Room:
    """The room that is left in a session, in JSON bytes: its whole state is carried to the next run (SES-15).

    `limits.max_state_bytes` is what the session aims at: it decides when turns, steps and prompts move to the archive,
    and how large a turn may become. It rejects no prompt. Only what Temporal can't carry, `MAX_CARRIED_BYTES`, is a
    last bound.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._measured_config: tuple[SessionInput, int] | None = None

    @property
    def is_full(self) -> bool:
        """Whether another turn would make the session too large to carry to the next run."""
        return self.for_turn < self._session.config.limits.min_turn_bytes

    @property
    def for_turn(self) -> int:
        """Room for a turn, such that everything together can be carried."""
        session = self._session
        return session.config.limits.max_state_bytes - self._fixed_bytes() - session.transcript.carried_bytes

    @property
    def turn_cap(self) -> int:
        """Maximum size of a turn; it leaves room for the next one, and is never too small for its own prompt.

        It uses the limits of the running turn, if there is one: later configuration applies to the next turn (SES-8).
        """
        turn = self._session.turn
        limits = turn.limits if turn else self._session.config.limits
        beside = max(self._session.transcript.carried_bytes, limits.min_turn_bytes)
        cap = min(limits.turn_bytes, limits.max_state_bytes - self._fixed_bytes() - beside)
        prompt = turn and turn.message
        prompt_bytes = len(to_json(prompt.user_message)) + json_bytes(prompt.attachments) if prompt else 0
        return max(cap, limits.min_turn_bytes + prompt_bytes)

    @property
    def carried_bytes(self) -> int:
        """Size of the carried state as it is now."""
        session = self._session
        return self._bytes_beside_queue() + session.queue.carried_bytes + session.transcript.carried_bytes

    @property
    def is_carriable(self) -> bool:
        """Whether the next run can have the state without loss, and as many prompts as the limits allow (SES-14)."""
        session, limits = self._session, self._session.config.limits
        book = session.queue.fate_book
        # While the archive is down, rejections may be dropped.
        unstored = book.accepted_leaving_bytes if session.archive.is_failing else book.leaving_bytes
        fits = session.queue.fits(limits) and unstored <= limits.leaving_bytes
        return fits and self.is_carriable_by_temporal

    @property
    def is_carriable_by_temporal(self) -> bool:
        return self.carried_bytes <= MAX_CARRIED_BYTES

    @property
    def is_carriable_at_last(self) -> bool:
        """Whether the next run can have the state at least without the waiting prompts."""
        return self._bytes_beside_queue() + self._session.transcript.carried_bytes <= MAX_CARRIED_BYTES

    def _fixed_bytes(self) -> int:
        """Return the size of the carried state without turns; the queue counts as full."""
        return self._bytes_beside_queue() + self._session.queue.reserved_bytes(self._session.config.limits)

    def _bytes_beside_queue(self) -> int:
        """Return the size of the carried state without turns and queue."""
        session = self._session
        features = sum(part.carried_bytes for part in session.parts)
        tools = session.tools.carried_bytes + session.refusals.carried_bytes
        return ENVELOPE_BYTES + self._config_bytes() + features + tools + session.context.carried_bytes

    def _config_bytes(self) -> int:
        """Return the JSON bytes of the configuration, cached until it changes."""
        config = self._session.config
        if self._measured_config is None or self._measured_config[0] is not config:
            self._measured_config = (config, len(config.model_dump_json().encode()))
        return self._measured_config[1]
