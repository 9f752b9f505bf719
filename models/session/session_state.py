"""One session's whole state and the rules by which it changes: the workflow's core, without Temporal.

Here is what spans two of its parts; what concerns one is with that part, and callers ask it there. Whatever changes
what a query shows raises the revision (SES-12), exactly once: recorded runs have counted its digits.
Ids and times are arguments.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from turnkeeper.models.context.model_context import ModelContext
from turnkeeper.models.context.model_view import ModelView, ViewEntry
from turnkeeper.models.context.request_size import head_tokens
from turnkeeper.models.context.window import ConversationHistoryConfig
from turnkeeper.models.errors import ErrorType, Refused
from turnkeeper.models.session.admission import check_open, refusal_of_full, refusal_of_uncarriable
from turnkeeper.models.session.approvals import (
    ApprovalReceipt,
    ResolveApproval,
    check_decision,
    find_call,
)
from turnkeeper.models.session.archive.archive_health import ArchiveHealth
from turnkeeper.models.session.archive.archive_state import ArchiveMove
from turnkeeper.models.session.queue.prompt_queue import PromptQueue
from turnkeeper.models.session.queue.prompts import Prompt, id_in, read_prompt
from turnkeeper.models.session.room import Room
from turnkeeper.models.session.running_turn import RunningTurn
from turnkeeper.models.session.session import (
    CarriedState,
    Configure,
    SessionInput,
    configuration_of,
    configured,
    title_of,
)
from turnkeeper.models.session.session_tools import SessionTools
from turnkeeper.models.transcript.conversation import ConversationMessage, SessionStatus, TurnMetrics
from turnkeeper.models.transcript.model_call import ModelResponse, ProviderState, RequestHead, SummaryOutcome, ToolSpec
from turnkeeper.models.transcript.trajectory import (
    BlobRef,
    ModelStep,
    ToolCall,
    ToolResult,
    Usage,
)
from turnkeeper.models.transcript.transcript import Transcript

CURRENT_RULES = 3
"""The rules of a run decide what it does where releases differ (SES-19):

1   every release before there was a number
2   prompts are parked, a stop waits for what was written, tools that write ask
3   the present ones
"""

MIN_SUMMARY_BYTES = 600
"""What a summary may have however little a model takes."""


class Session:
    """A conversation: its transcript, its queue, its model view and its configuration."""

    def __init__(self, session_id: str, start: SessionInput, *, now: datetime, rules: int = CURRENT_RULES) -> None:
        """Begin a session, or continue the one that `start.carried` hands over (SES-14).

        `rules` are those of the run; the defaults of a session stay those that it was started with.
        """
        state = start.carried or CarriedState(created_at=now, revision=0, default_rules=rules)
        self.id = session_id
        self.rules = rules
        self.default_rules = state.default_rules
        self.config = configuration_of(start, default_rules=state.default_rules)
        self.created_at = state.created_at
        self.revision = state.revision
        self.on_revision: Callable[[], None] = lambda: None
        """Called with every change."""
        self.request_count = state.request_count
        self.usage = state.usage
        self.tools = SessionTools(state.tools)
        self.transcript = Transcript(state.transcript, page_bytes=start.limits.page_bytes)
        self.queue = PromptQueue(state.queue, limits=start.limits, rules=rules, on_change=self._changed)
        # A window that an earlier run has halved grows back: what a model takes is learned in tokens now (CTX-7).
        context = state.context if rules < 3 else state.context.model_copy(update={"halved": None})
        self.context = ModelContext(context, self.transcript)
        self.archive = ArchiveHealth(state.archive, on_change=self._changed)
        self.moved_events = state.moved_events
        self.ending = state.ending
        self.closed: SessionStatus | None = None
        self.waiting_until: datetime | None = None
        self.waiting_reason: str | None = None
        self.room = Room(self)
        self._head: RequestHead | None = None
        newest = self.transcript.newest
        is_running = newest is not None and not newest.is_complete
        self.turn = state.running.resume(newest) if state.running and newest and is_running else None
        """The turn that is being processed. Changed by `change_turn`."""

    # ---- what it is

    @property
    def view(self) -> ModelView:
        """What the model sees."""
        return self.context.view

    @property
    def status(self) -> SessionStatus:
        """The session's status in one word (SES-3)."""
        if self.closed:
            return self.closed
        if self.awaits_approval:
            return "awaiting_approval"  # also while it is ending: that too waits for it
        if self.ending is not None:
            return "ending"
        if self.waiting_until:
            return "waiting_retry"
        return "processing" if self.turn else "idle"

    @property
    def awaits_approval(self) -> bool:
        """A person is asked to decide on a call of the running turn (AGT-8)."""
        return self.turn is not None and self.turn.awaits_approval

    @property
    def turn_count(self) -> int:
        """How many turns there are, those in the archive too: the number of the newest one."""
        return self.transcript.count

    @property
    def head(self) -> RequestHead:
        """What is sent to the model before the messages; the same object until tools or system prompt change."""
        known, tools = self._head, self.tools.specs or []
        if known is None or known.tools != tools or known.system != self.config.system_prompt:
            known = self._head = RequestHead(system=self.config.system_prompt, tools=tools)
        return known

    # ---- prompts

    def receive(self, raw: object, *, extra_arguments: int, new_id: str, now: datetime) -> Prompt | None:
        """Accept a prompt, or record why it is rejected; the same id twice is one prompt (SES-5, SES-6).

        Returns the prompt if it was accepted now.
        """
        try:
            prompt = read_prompt(
                raw, extra_arguments=extra_arguments, new_id=new_id, now=now, limits=self.config.limits
            )
            if self.queue.is_duplicate(prompt.id) or prompt.id in self.transcript:
                return None
            check_open(self)
            self.queue.check_room(prompt, self.config.limits)
        except Refused as refusal:
            sent_id = id_in(raw)
            # An id that was accepted before has its one fate, or waits for it; this is another prompt, and no prompt.
            is_taken = sent_id is None or self.queue.is_duplicate(sent_id) or sent_id in self.transcript
            self.queue.reject(new_id if is_taken else sent_id or new_id, refusal, at=now)
            self._changed()
            return None
        self.queue.accept(prompt, turn_is_running=self.turn is not None)
        self._changed()
        return prompt

    def reject_waiting_if_full(self, *, now: datetime) -> None:
        """Tell everyone who waits that no further turn can be held, rather than let them wait for ever (SES-15)."""
        if len(self.queue) and self.room.is_full:
            # What the model remembers gives way before the session does.
            self._make_carriable(self.config.limits.view_bytes // 4)
        if len(self.queue) and self.room.is_full:
            self.queue.reject_all(refusal_of_full(self), at=now)
            self._changed()

    # ---- what waits, at a hand-over

    @property
    def is_carriable(self) -> bool:
        """All that waits, and all fates that must not be lost, can be handed over to the next run (SES-14)."""
        if self.rules < 2:
            return True
        leaving = self.queue.leaving
        # While the archive takes nothing, rejections give way.
        unstored = leaving.accepted_bytes if self.archive.is_failing else leaving.bytes
        return self.queue.row.fits(self.config.limits) and unstored <= self.config.limits.leaving_bytes

    def prompts_moved(self, move: ArchiveMove, *, now: datetime) -> None:
        """Hold no longer what the archive has taken of prompts and fates."""
        self.queue.remove_moved(move)
        self.archive.worked(now=now)
        self._changed()

    def restore_parked(self, prompts: Iterable[Prompt], *, now: datetime) -> bool:
        """Hold parked prompts again, at their place; returns whether the next one was among them."""
        is_next = self.queue.row.restore_parked(prompts)
        if is_next:
            self.archive.worked(now=now)
        self._changed()
        return is_next

    def give_up_uncarriable(self, *, now: datetime) -> None:
        """Reject what waits and can't be handed over, though the run can't go on: the last resort (SES-15)."""
        if self.is_carriable:
            return
        self.queue.reject_surplus(refusal_of_uncarriable(self), self.config.limits, at=now)
        self.queue.bound_leaving(self.config.limits, rejections_only=False)
        self._changed()

    # ---- tools

    def take_tools(self, tools: list[ToolSpec], *, is_whole: bool = True) -> None:
        """Offer the model `tools` from the next request on, for this segment; if not whole, for this turn (AGT-6).

        Others than before open a new segment.
        """
        if self.tools.replace(tools):
            self.view.open_segment()
            self._changed()
        self.tools.note_reading(segment=self.view.segment, turn=self.turn_count, is_whole=is_whole)

    # ---- the running turn

    def running(self) -> RunningTurn:
        """Return the running turn. Raises `RuntimeError` where none is running."""
        if self.turn is None:
            raise RuntimeError("no turn is running")
        return self.turn

    def begin_turn(self, *, now: datetime) -> ConversationMessage:
        """Record the next prompt as a turn: its processing starts (SES-2), under the present configuration (SES-8)."""
        prompt = self.queue.start_next(at=now)
        self.moved_events = self.moved_events.at_new_turn()
        if self.config.title is None:
            self.config = self.config.model_copy(update={"title": title_of(prompt.text)})
        message = ConversationMessage(
            id=prompt.id,
            timestamp=now,
            user_message=prompt.text,
            user_timestamp=prompt.sent_at or prompt.received_at,
            revision=self._changed(),
        )
        self.transcript.record(message)
        self.turn = RunningTurn.begin(
            message,
            model=self.config.model,
            limits=self.config.limits,
            history=self.config.history,
            tool_policy=self.config.tool_policy,
            now=now,
        )
        self.view.append_request(message, number=self.turn_count)
        return message

    def change_turn(self, turn: RunningTurn) -> None:
        """Put the next version of the running turn in its place; if its message has changed, clients are shown it."""
        if turn.message is not self.running().message:
            turn = turn.with_message(revision=self._changed())
        self._put_turn(turn)

    def steer_turn(self, *, now: datetime) -> None:
        """Record what was steered into the running turn, before its next model call (SES-7).

        What the turn has no room for any more goes on waiting, and becomes a turn of its own.
        """
        if not self.queue.steering:
            return
        # Half of what the turn may still take: an answer and its results must fit too.
        room = (self.room.turn_cap - self.running().carried_bytes) // 2
        for prompt in self.queue.take_steering(self.running().message.id, at=now, room=room):
            self.change_turn(self.running().with_prompt(prompt.id, prompt.text, now=now))
            self.view.append_step(self.running().message, number=self.turn_count)

    def count_request(self) -> int:
        """Return the number of a new request to the model (AGT-2)."""
        self.request_count += 1
        return self.request_count

    def open_request(self) -> int:
        """Count a new model request and note what the model is about to see; returns its number."""
        self.count_request()
        self.context.note_request()
        metrics = TurnMetrics(message_count=self.view.message_count, estimated_tokens=self.view.estimated_tokens)
        self.change_turn(self.running().with_message(conversation_metrics=metrics))
        return self.request_count

    def make_room(self, history: ConversationHistoryConfig, *, model: str | None = None) -> None:
        """Evict a block of the model view if it is over its cap, or too large to be carried (CTX-4).

        The cap is that of `history`, or what was learned of `model` since it was configured (CTX-7).
        """
        window, max_tokens = history, None
        if model is not None:
            window = self.context.window(history, model=model)
            max_tokens = self.context.max_tokens(history, model=model)
        self.context.make_room(
            window,
            running_turn=self.running().message.id,
            most_bytes=self.config.limits.view_bytes,
            max_tokens=None if max_tokens is None else max(0, max_tokens - head_tokens(self.head)),
        )

    def learn_limit(self, history: ConversationHistoryConfig, *, model: str) -> None:
        """Send half of what was sent, by its size, after the model's vendor said that it was too long (CTX-7)."""
        self.context.learn_limit(
            history, model=model, head_tokens=head_tokens(self.head), running_turn=self.running().message.id
        )
        self._show_turn()

    def leave_out_turn(self) -> None:
        """Send a note in the place of the running turn from now on, since the vendor refused it (CTX-7)."""
        self.context.leave_out(self.running().message, number=self.turn_count)

    def _make_carriable(self, most_bytes: int) -> None:
        running = self.turn.message.id if self.turn else ""
        self.context.make_carriable(self.config.history, running_turn=running, most_bytes=most_bytes)

    def add_summary(self, outcome: SummaryOutcome, *, of: Sequence[ViewEntry], head: int) -> None:
        """Let a summary stand for the evicted entries `of` (CTX-5)."""
        most_bytes, limit = self.config.limits.view_bytes // 6, self.context.limit
        if limit:  # about a quarter of what is sent
            most_bytes = min(most_bytes, max(limit.tokens, MIN_SUMMARY_BYTES))
        self.context.put_summary(outcome, of=of, head=head, most_bytes=most_bytes)
        self._show_turn()

    def add_usage(self, usage: Usage | None) -> None:
        """Count what the vendor reported for the running turn."""
        if usage:
            self.usage += usage
            self._put_turn(self.running().with_usage(usage))

    def add_response(
        self,
        response: ModelResponse,
        calls: list[ToolCall],
        *,
        now: datetime,
        interrupted: bool = False,
        spent: Usage | None = None,
    ) -> ModelStep:
        """Record a model response as the running turn's next step; its calls have no results yet.

        An `interrupted` one is not whole, and ends its turn (SES-9). What attempts before it have `spent` is counted
        for the turn already, and is shown with the step (AGT-9).
        """
        turn = self.running().with_response(response, calls, now=now, interrupted=interrupted, spent=spent)
        self.change_turn(turn)
        if response.usage:
            self.usage += response.usage
        self.context.note_usage(response.usage)
        return turn.newest_step

    def add_result(self, call_id: str, result: ToolResult) -> None:
        """Record the result of a call of the newest step; if its tool has changed, the tools are read again."""
        if result.tool_changed:
            self.tools.distrust()
            result = result.model_copy(update={"tool_changed": False})  # said to the session, not to people
        if result.cut:
            self.archive.count_cut_result()
        self.change_turn(self.running().with_result(call_id, result))

    # ---- approvals

    def check_decision(self, request: ResolveApproval, *, now: datetime) -> ToolCall:
        """Return the call that is decided on. Raises `Refused` where that can't be."""
        call = find_call(self.transcript, request.call_id)
        check_decision(call, request, now=now)
        return call

    def resolve_approval(self, request: ResolveApproval, *, now: datetime) -> ApprovalReceipt:
        """Record a decision; one that was recorded before changes nothing. Raises `Refused`."""
        call = self.check_decision(request, now=now)
        if call.awaits_approval:
            if request.decision == "allow_for_session":
                self.tools.allow(call.name)
            self.change_turn(self.running().with_decision(call, request.decision, reason=request.reason, now=now))
        return ApprovalReceipt(call_id=call.id, decision=request.decision)

    def settle_step(self) -> None:
        """Let the model see the newest step, if it does not yet: every call of it has a result."""
        turn = self.running()
        if turn.unsettled:
            self.show_step(state=turn.state, segment=turn.segment)
            self.change_turn(turn.with_settled_step())

    def show_step(self, *, state: ProviderState | None, segment: int | None = None) -> None:
        """Let the model see the newest step from now on; every call of it has a result.

        Its `state` belongs to the segment it was asked for in: in a later one it is no longer sent (CTX-4).
        """
        if segment not in (None, self.view.segment):
            state = None
        self.view.append_step(self.running().message, number=self.turn_count, state=state)

    def complete_turn(self, answer: str, *, blob: BlobRef | None = None, now: datetime) -> None:
        """End the running turn with its answer, or with an excerpt of the answer that is kept in `blob`."""
        self._end_turn(now, agent_message=answer, agent_message_blob=blob, status="completed")

    def fail_turn(self, error_type: ErrorType, error: str, *, now: datetime) -> None:
        """End the running turn without an answer; the session goes on (SES-10)."""
        status = "cancelled" if error_type == "cancelled" else "failed"
        self._end_turn(now, error=error, error_type=error_type, status=status)

    def wait_until(self, moment: datetime, *, reason: str) -> None:
        """Show that the model is not asked again before `moment`, and why, in a sentence; empty: unknown (AGT-9)."""
        self.waiting_until, self.waiting_reason = moment, reason or None
        self._changed()

    def stop_waiting(self) -> None:
        """Show that the model is asked again."""
        self.waiting_until = self.waiting_reason = None
        self._changed()

    def _end_turn(self, now: datetime, **outcome: object) -> None:
        self.transcript.replace_newest(self.running().ended(now=now, revision=self._changed(), **outcome))
        self.turn = None
        self.queue.requeue_steering()

    def _show_turn(self) -> None:
        """Show the running turn to clients again: what the model sees of it has changed."""
        self._put_turn(self.running().with_message(revision=self._changed()))

    def _put_turn(self, turn: RunningTurn) -> None:
        self.turn = turn
        self.transcript.replace_newest(turn.message)

    # ---- the archive

    def moved(self, move: ArchiveMove, *, now: datetime) -> None:
        """Hold no longer what the archive has taken."""
        if move.steps_of is not None:
            count, message = len(move.steps), self.running().message
            self.context.detach(message, steps_before=message.steps_omitted + count, kept_bytes=move.kept_bytes)
            self.change_turn(self.running().without_oldest_steps(count))
            self.moved_events = self.moved_events.with_steps(move.steps)
        else:
            for turn in move.turns:
                self.context.detach(turn, kept_bytes=move.kept_bytes)
            self.transcript.drop_oldest(len(move.turns))
            self.moved_events = self.moved_events.with_turns(move.turns)
        self._make_carriable(self.config.limits.view_bytes)
        self.archive.worked(now=now)
        self._changed()

    # ---- configuration and end

    def configure(self, change: Configure) -> None:
        """Change the configuration from the next turn on (SES-8). Raises `Refused`."""
        self.config = configured(self.config, change)
        if change.tool_policy is not None:
            self.tools.end_allowances()  # who says anew what is asked about means it
        self._changed()

    def end(self, reason: str, *, discard_queue: bool, now: datetime) -> None:
        """Take no further prompts; discard those that wait, if asked to (SES-8)."""
        if self.ending is None:
            self.ending = reason
        if discard_queue:
            self.queue.discard_all(reason, at=now)
        self._changed()

    def close(self, status: SessionStatus, *, reason: str, now: datetime) -> None:
        """Reach the final status; whatever still waits is discarded (SES-9)."""
        self.queue.discard_all(reason, at=now)
        self.closed = status
        self._changed()

    # ---- the next run

    def carry(self) -> SessionInput:
        """Return the input of the next run: everything this one knows, the running turn included (SES-14)."""
        if self.archive.is_failing:
            self.queue.bound_leaving(self.config.limits, rejections_only=True)
        state = CarriedState(
            created_at=self.created_at,
            revision=self.revision,
            request_count=self.request_count,
            usage=self.usage,
            ending=self.ending,
            default_rules=self.default_rules,
            transcript=self.transcript.state,
            moved_events=self.moved_events,
            queue=self.queue.state,
            context=self.context.state,
            tools=self.tools.state,
            archive=self.archive.state,
            running=self.turn.carried if self.turn else None,
        )
        return self.config.model_copy(update={"carried": state})

    def _changed(self) -> int:
        self.revision += 1
        self.on_revision()
        return self.revision
