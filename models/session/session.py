"""A session's state and rules: the core of the workflow, without Temporal.

This class has only what spans several parts; callers use a part directly for everything else. Every change that a query
can show raises the revision exactly once (SES-12): recorded runs depend on its number of digits. Ids and times are
arguments.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from turnkeeper.models.context.model_context import ModelContext
from turnkeeper.models.context.model_view import ModelView
from turnkeeper.models.errors import RejectedError
from turnkeeper.models.ids import PublicId
from turnkeeper.models.session.admission import rejection_at_last, rejection_when_ending
from turnkeeper.models.session.approvals import ApprovalReceipt, ResolveApproval, check_decision
from turnkeeper.models.session.archive.archive_health import ArchiveHealth
from turnkeeper.models.session.archive.archive_messages import ArchiveMove
from turnkeeper.models.session.carried_state import CarriedState
from turnkeeper.models.session.messages import Configure, SessionInput, configuration_of, configured, title_of
from turnkeeper.models.session.queue.prompt_queue import PromptQueue
from turnkeeper.models.session.queue.prompts import WIDEST, Prompt, id_in, read_prompt
from turnkeeper.models.session.refused_parts import SessionRefusals
from turnkeeper.models.session.room import Room
from turnkeeper.models.session.tasks.allowance import Accounts, Allowance, AllowanceAnswer, AllowanceRequest, Amount
from turnkeeper.models.session.tasks.outcome import TaskOutcome, bound_answer
from turnkeeper.models.session.tasks.sub_tasks import SubTasks
from turnkeeper.models.session.tasks.task_input import TaskInput, TextsToCondense
from turnkeeper.models.session.tasks.task_specs import REPORT_PROGRESS_SPEC, RUN_TASK_SPEC
from turnkeeper.models.session.tasks.task_state import ProgressReport, TaskChange, task_status
from turnkeeper.models.session.tools.session_tools import SessionTools
from turnkeeper.models.session.turn.budgets import Budgets
from turnkeeper.models.session.turn.running_turn import RunningTurn
from turnkeeper.models.session.turn.turn_slot import TurnSlot
from turnkeeper.models.transcript.conversation import ConversationMessage, SessionStatus
from turnkeeper.models.transcript.model_call import RequestHead, ServerText, ToolSpec
from turnkeeper.models.transcript.task_view import FINAL, CondensedTexts, SubTask, TaskStatus, TaskView
from turnkeeper.models.transcript.trajectory import ToolResult, Usage
from turnkeeper.models.transcript.transcript import Transcript


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
        `on_revision`.
        """
        state = start.carried or CarriedState(created_at=now, revision=0)
        self.id = session_id
        self.config = configuration_of(start)
        self.facts = state.facts
        """The carried fields of no part; replaced with every change."""
        self._on_revision = on_revision
        self.transcript = Transcript(state.transcript, page_bytes=start.limits.page_bytes)
        self.queue = PromptQueue(state.queue, limits=start.limits, on_change=self._changed)
        self.context = ModelContext(state.context, self.transcript, on_change=lambda: self.turn_slot.publish())
        self.tools = SessionTools(state.tools)
        self.refusals = SessionRefusals(state.refusals)
        self.archive = ArchiveHealth(state.archive, on_change=self._changed)
        self.own_task = state.task
        """What is reported of the task that this session is; replaced with every change."""
        self.sub_tasks = SubTasks(state.tasks, session_id=session_id, on_change=self._changed)
        self.accounts = Accounts(state.accounts, session_id=session_id)
        in_tree = start.task and start.task.allowance
        self.allowance = Allowance(in_tree, state.allowance, task_id=session_id) if in_tree else None
        """`None`: the session is the root of a tree."""
        self.allowance_answers: list[tuple[PublicId, AllowanceAnswer]] = []
        """Answers of the root that are to be sent, in order, with the tasks that get them."""
        self.turn_slot = TurnSlot(
            state.running, self.transcript, self.context, raise_revision=self._changed, on_usage=self._count_usage
        )
        self.room = Room(self)
        self.closed: SessionStatus | None = None
        self._head: RequestHead | None = None

    # ---- its properties

    @property
    def turn(self) -> RunningTurn | None:
        return self.turn_slot.turn

    @property
    def view(self) -> ModelView:
        return self.context.view

    @property
    def revision(self) -> int:
        return self.facts.revision

    @property
    def status(self) -> SessionStatus:
        if self.closed:
            return self.closed
        if self.waits_for_person:
            return "awaiting_approval"  # also while it is ending, which waits for the decision
        if self.facts.ending is not None:
            return "ending"
        if self.turn_slot.waiting_until:
            return "waiting_retry"
        return "processing" if self.turn else "idle"

    @property
    def awaits_approval(self) -> bool:
        """Whether a call of the running turn waits for a person's decision (AGT-8)."""
        return self.turn is not None and self.turn.awaits_approval

    @property
    def waits_for_person(self) -> bool:
        """Whether the running turn needs a person's decision, for a call of its own or of a task it waits for."""
        return self.awaits_approval or (self.turn is not None and self.turn.has_blocked_task)

    @property
    def turn_count(self) -> int:
        """Number of turns, with those in the archive: also the number of the newest one."""
        return self.transcript.count

    @property
    def head(self) -> RequestHead:
        """The head of requests; the same object until tools or system prompt change."""
        head, tools = self._head, self.offered_tools
        system = "\n\n".join(filter(None, (self.config.system_prompt, self.tools.instructions)))
        if head is None or head.tools != tools or head.system != system:
            head = self._head = RequestHead(system=system, tools=tools)
        return head

    @property
    def offered_tools(self) -> list[ToolSpec]:
        """The tools in the order the model is told of them, without those that the policy denies (AGT-8)."""
        denied = set(self.tools.state.denied)
        return [tool for tool in self.all_tools if tool.name not in denied]

    @property
    def all_tools(self) -> list[ToolSpec]:
        """All tools: those of the worker, then the session's own."""
        own = []
        if self.config.limits.max_task_depth:
            own.append(RUN_TASK_SPEC)
        if self.config.task:
            own.append(REPORT_PROGRESS_SPEC)
        return [*(self.tools.specs or []), *own]

    def find_tool(self, name: str) -> ToolSpec | None:
        """Return the tool, offered or not; `run_task` also where tasks may be nested no deeper: its result says so."""
        tool = next((tool for tool in self.all_tools if tool.name == name), None)
        return RUN_TASK_SPEC if tool is None and name == RUN_TASK_SPEC.name else tool

    # ---- prompts

    def receive(
        self,
        raw: object,
        *,
        extra_arguments: int,
        new_id: str,
        now: datetime,
        max_chars: int = WIDEST.max_prompt_chars,
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
            self.queue.reject(new_id if is_taken else sent_id or new_id, rejection, at=now)
            self._changed()
            return None
        if self.has_prompt(prompt.id):
            return None
        ending = rejection_when_ending(self)
        if ending:
            self.queue.discard_late(prompt.id, ending, at=now)
        else:
            self.queue.accept(prompt, turn_is_running=self.turn is not None)
        self._changed()
        return None if ending else prompt

    def has_prompt(self, message_id: str) -> bool:
        """Return whether a prompt with this id was accepted before, as far as the session remembers (SES-6)."""
        return self.queue.is_duplicate(message_id) or message_id in self.transcript

    def shrink_view_if_full(self) -> None:
        """Evict most of the model view if there is no room for another turn beside it (SES-15)."""
        if self.room.is_full:
            self.context.evict_over_bytes(self.config.history, max_bytes=self.config.limits.view_bytes // 4)

    def reject_waiting(self, *, now: datetime) -> None:
        """Reject all waiting prompts: the run can neither continue nor hand over what it holds (SES-15)."""
        if len(self.queue):
            self._reject_last(lambda: not len(self.queue), now=now)

    # ---- tools

    def deny_tools(self, names: list[str], *, is_first: bool) -> None:
        """Offer all tools but `names` from the next request on (AGT-8).

        A change opens a new segment, unless it `is_first`: no request had tools before.
        """
        if self.tools.deny(names) and not is_first:
            self.view.open_segment()
            self.tools.keep_for_segment(segment=self.view.segment)
            self._changed()

    def note_absent_servers(self, absent: list[ServerText]) -> None:
        """Record which tool servers have no tools now, or their earlier ones only, and why."""
        if absent != self.tools.state.absent:
            self.tools.note_absent(absent)
            self._changed()

    def offer_tools(
        self, tools: list[ToolSpec], *, instructions: list[ServerText] | None = None, is_complete: bool = True
    ) -> None:
        """Offer `tools` from the next request on: for this segment, or for this turn if `is_complete` is false (AGT-6).

        A changed list opens a new segment. With `None`, the servers' `instructions` stay.
        """
        if self.tools.replace(tools, self.tools.state.instructions if instructions is None else instructions):
            self.view.open_segment()
            self._changed()
        self.tools.note_loaded(segment=self.view.segment, turn=self.turn_count, is_complete=is_complete)

    def renew_after_refusal(self, *, has_state: bool) -> None:
        """List the tools anew before the next request, and drop the vendor's state, if there is some: once (AGT-9).

        The turn that was refused for good ends now, which raises the revision.
        """
        if self.refusals.note_reset():
            self.tools.invalidate()
            if has_state:
                self.view.open_segment()

    # ---- the running turn

    def begin_turn(self, *, now: datetime) -> ConversationMessage:
        """Record the next prompt as a turn (SES-2), with the present configuration (SES-8)."""
        prompt = self.queue.start_next(at=now)
        self._update(moved_events=self.facts.moved_events.at_new_turn())
        if self.config.title is None:
            names = " ".join(one.name or "" for one in prompt.attachments)
            self.config = self.config.model_copy(update={"title": title_of(prompt.text.strip() or names)})
        message = ConversationMessage(
            id=prompt.id,
            timestamp=now,
            user_message=prompt.text,
            attachments=prompt.attachments,
            user_timestamp=prompt.sent_at or prompt.received_at,
            usage=self.facts.usage_between_turns,
            tasks_usage=self.facts.usage_between_turns,
            revision=self._changed(),
            retries=prompt.retries,
        )
        self._update(usage_between_turns=None)
        turn = RunningTurn.begin(
            message,
            model=self.config.model,
            limits=self.config.limits,
            history=self.config.history,
            tool_policy=self.config.tool_policy,
            now=now,
        )
        self.turn_slot.begin(turn)
        return message

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
        self.sub_tasks.end_foreground()
        self._note_used()
        self.turn_slot.end(message)
        if self.allowance:
            self.allowance.return_rest(self.used)
        self.queue.requeue_steering()

    # ---- tasks

    @property
    def task_view(self) -> TaskView | None:
        start, state = self.config.task, self.own_task
        if start is None:
            return None
        return TaskView(
            parent=start.parent,
            background=start.background,
            percent=state.percent,
            message=state.message,
            findings=state.findings,
            context=start.report,
            condensed=state.condensed,
        )

    @property
    def to_condense(self) -> TextsToCondense | None:
        """The texts of the running turn's prompt that the model is to condense first; `None`: there are none."""
        texts = self.config.task and self.config.task.to_condense
        if not texts or self.turn is None or texts.prompt_id != self.turn.message.id:
            return None
        return texts

    def note_task_prompt(self, prompt_id: str | None) -> None:
        """Note the id of the task's first prompt; `None`: that is not made from the task's context."""
        task = self.config.task
        if task and task.to_condense:
            texts = task.to_condense.model_copy(update={"prompt_id": prompt_id}) if prompt_id else None
            self._replace_task(task.model_copy(update={"to_condense": texts}))

    def end_condensing(self, prompt: str | None, texts: CondensedTexts) -> None:
        """Replace the running turn's prompt by the condensed one, if there is one, and note what was condensed."""
        if self.config.task:
            self._replace_task(self.config.task.model_copy(update={"to_condense": None}))
        self.own_task = self.own_task.model_copy(update={"condensed": texts})
        if prompt is not None:
            self.turn_slot.replace_prompt(prompt)
        else:
            self._changed()

    def _replace_task(self, task: TaskInput) -> None:
        self.config = self.config.model_copy(update={"task": task})

    @property
    def task_status(self) -> TaskStatus:
        """How the task is that this session is, or could be (TSK-4)."""
        newest = self.transcript.newest
        return task_status(
            newest.status if newest else None,
            session=self.status,
            waits=self.sub_tasks.has_approval_pending,
            queue_length=len(self.queue),
        )

    @property
    def task_outcome(self) -> TaskOutcome | None:
        """What came of the task that this session is; `None`: it is none."""
        if self.config.task is None:
            return None
        newest = self.transcript.newest
        return TaskOutcome(
            status=self.task_status,
            answer=newest and newest.agent_message,
            answer_blob=newest and newest.agent_message_blob,
            error=newest and newest.error,
            error_type=newest and newest.error_type,
            usage=self.facts.usage,
            findings=self.own_task.findings,
        )

    @property
    def due_task_change(self) -> TaskChange | None:
        """What the parent of this task is still to be told; `None`: nothing.

        A parent that waits for the result of the task's workflow learns its end from that, unless it was cancelled.
        """
        start, status = self.config.task, self.task_status
        if start is None or not start.reports:
            return None
        if status in FINAL and not start.background and self.closed != "cancelled":
            return None
        change = TaskChange(
            task_id=self.id,
            status=status,
            percent=self.own_task.percent,
            message=self.own_task.message,
            turn=self.turn_count if status in FINAL else 0,
            is_closed=self.closed is not None,
        )
        if change == (self.own_task.reported or TaskChange(task_id=self.id)):
            return None
        newest = self.transcript.newest
        if status not in FINAL or newest is None:
            return change
        answer, error = bound_answer(newest.agent_message), newest.error
        return change.model_copy(update={"answer": answer, "error": error, "usage": self.facts.usage})

    def note_task_change_sent(self, change: TaskChange) -> None:
        """Remember what the parent knows."""
        reported = change.model_copy(update={"answer": None, "error": None, "usage": None})
        self.own_task = self.own_task.model_copy(update={"reported": reported})

    def report_progress(self, report: ProgressReport) -> None:
        """Note what the agent reports of the task that this session is."""
        self.own_task = self.own_task.with_report(report)
        self._changed()

    def change_sub_task(self, change: TaskChange, *, now: datetime) -> SubTask | None:
        """Record the progress of one of the session's tasks; while a person decides for it, the turn's clock is paused.

        Returns the task as it was before; `None`: nothing has changed.
        """
        before = self.sub_tasks.change(change)
        self._count_tasks_usage(self.sub_tasks.add_usage(change.task_id, change.usage))
        self._stop_clock_for_tasks(now)
        return before

    def end_sub_task(self, task_id: str, outcome: TaskOutcome, *, now: datetime) -> None:
        """Record what came of a task that the running turn has waited for."""
        self.sub_tasks.end(task_id, outcome.status)
        self._count_tasks_usage(self.sub_tasks.add_usage(task_id, outcome.usage))
        self._stop_clock_for_tasks(now)

    def _stop_clock_for_tasks(self, now: datetime) -> None:
        if self.turn and self.turn.has_blocked_task != self.sub_tasks.has_blocking_approval:
            self.turn_slot.change(self.turn.with_blocked_task(self.sub_tasks.has_blocking_approval, now=now))

    def _count_tasks_usage(self, usage: Usage | None) -> None:
        """Count what tasks have used, for the session and for the running turn, or else for the next one."""
        if usage is None:
            return
        self._count_usage(usage)
        self._update(tasks_usage=self.facts.tasks_usage + usage)
        if self.turn:
            self.turn_slot.change(self.turn.with_tasks_usage(usage))
        else:
            self._update(usage_between_turns=(self.facts.usage_between_turns or Usage()) + usage)

    # ---- what the tree of tasks may use

    @property
    def depth(self) -> int:
        """How deep the session is below the root of its tree."""
        return self.allowance.start.depth if self.allowance else 0

    @property
    def used(self) -> Amount:
        """What the session has used itself, without its tasks."""
        return Amount.of(self.facts.usage - self.facts.tasks_usage)

    @property
    def budgets(self) -> Budgets:
        """The running turn's budgets, with what its tasks have drawn and what a task has been granted."""
        turn = self.turn_slot.running()
        drawn = Amount.of(turn.message.tasks_usage) if self.allowance else self.accounts.drawn(turn.message.id)
        return replace(turn.budgets, drawn=drawn, allowance=self.allowance, used=self.used)

    def register_task(self, task_id: PublicId) -> AllowanceAnswer:
        """Return the first portion of a task that this session, a root, starts, or why it may not be started."""
        turn = self.turn_slot.running()
        self.accounts.open(turn.message.id, turn.limits)
        self._note_used()
        return self.accounts.start(task_id, turn=turn.message.id, max_tasks=turn.limits.max_tasks)

    def void_task(self, task_id: PublicId) -> None:
        """Note that a task was not started, at the root of the tree."""
        if self.allowance:
            self.allowance.void_start(task_id)
        else:
            self.accounts.void(task_id)

    def answer_allowance_request(self, request: AllowanceRequest) -> None:
        """Apply a request of a task of this tree; the answer is sent later."""
        self._note_used()
        limits = self.turn.limits if self.turn else self.config.limits
        answer = self.accounts.answer(request, max_tasks=limits.max_tasks)
        if answer:
            self.allowance_answers.append((request.task_id, answer))

    def _note_used(self) -> None:
        """Note in its account what the running turn has used itself."""
        if self.turn:
            self.accounts.note_used(self.turn.message.id, Amount.of(self.turn.own_usage))

    # ---- the archive

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
        self._changed()

    # ---- configuration and end

    def configure(self, change: Configure) -> None:
        """Change the configuration from the next turn on (SES-8). Raises `RejectedError`."""
        before = self.offered_tools
        self.config = configured(self.config, change)
        if self.offered_tools != before:
            self.view.open_segment()
        if change.tool_policy is not None:
            self.tools.end_allowances()  # the new policy replaces earlier allowances
        self._changed()

    def end(self, reason: str, *, discard_queue: bool, now: datetime) -> None:
        """Accept no more prompts; with `discard_queue`, discard the waiting ones (SES-8)."""
        if self.facts.ending is None:
            self._update(ending=reason)
        if discard_queue:
            self.queue.discard_all(reason, at=now)
        self._changed()

    def close(self, status: SessionStatus, *, reason: str, now: datetime) -> None:
        """Set the final status and discard all waiting prompts (SES-9)."""
        self.queue.discard_all(reason, at=now)
        self.closed = status
        self._changed()

    # ---- the next run

    def reject_uncarriable(self, *, now: datetime) -> None:
        """Reject the last waiting prompts until Temporal can carry the rest: the last resort (SES-15)."""
        if not self.room.is_carriable_by_temporal:
            self.queue.bound_leaving(self.config.limits, rejections_only=False)
            self._reject_last(lambda: self.room.is_carriable_by_temporal or not len(self.queue), now=now)

    def _reject_last(self, is_enough: Callable[[], bool], *, now: datetime) -> None:
        rejection = rejection_at_last(self)
        while not is_enough():
            self.queue.reject_last(rejection, at=now)
        self._changed()

    def carry(self) -> SessionInput:
        """Return the input of the next run: the whole state, with the running turn (SES-14)."""
        if self.archive.is_failing:
            self.queue.bound_leaving(self.config.limits, rejections_only=True)
        state = CarriedState(
            **dict(self.facts),
            transcript=self.transcript.state,
            queue=self.queue.state,
            context=self.context.state,
            tools=self.tools.state,
            refusals=self.refusals.state,
            archive=self.archive.state,
            task=self.own_task,
            tasks=self.sub_tasks.state,
            accounts=self.accounts.accounts,
            allowance=self.allowance and self.allowance.state,
            running=self.turn.carried if self.turn else None,
        )
        return self.config.model_copy(update={"carried": state})

    # ---- inside

    def _changed(self) -> int:
        self._update(revision=self.revision + 1)
        self._on_revision()
        return self.revision

    def _count_usage(self, usage: Usage) -> None:
        self._update(usage=self.facts.usage + usage)

    def _update(self, **facts: object) -> None:
        self.facts = self.facts.model_copy(update=facts)
