"""The state of a chat: applies events in their order, prints what is final and shows what is not."""

from collections.abc import Callable

from rich.cells import cell_len
from rich.console import RenderableType

from turnkeeper.clients.python.events import (
    ConnectionLostEvent,
    Event,
    PartialEvent,
    ProgressEvent,
    QueueEvent,
    UpdateEvent,
)
from turnkeeper.clients.terminal import texts
from turnkeeper.clients.terminal.formatting import amount, context_size, one_line
from turnkeeper.clients.terminal.interactive import renderer
from turnkeeper.clients.terminal.interactive.approval_questions import ApprovalQuestions
from turnkeeper.clients.terminal.interactive.live_output import LiveOutput
from turnkeeper.clients.terminal.interactive.screen import Screen
from turnkeeper.clients.terminal.interactive.terminal_style import Sign, TerminalStyle
from turnkeeper.clients.terminal.interactive.transcript_renderer import TranscriptRenderer
from turnkeeper.models.http_responses import FullConversation, SessionDescription
from turnkeeper.models.session.approvals import PendingApproval
from turnkeeper.models.texts.legible import legible_line
from turnkeeper.models.transcript.conversation import ConversationUpdate
from turnkeeper.models.transcript.trajectory import ModelStep, ToolCall, UserStep

LOWER_ROWS = 6
"""The rows of the input line, the status line and a question."""


class ChatSession:
    """The state of the session `session_id` and its output on `screen`."""

    def __init__(
        self, session_id: str, screen: Screen, style: TerminalStyle, resume_command: Callable[[str], str]
    ) -> None:
        self.session_id = session_id
        self.live = LiveOutput(style, resume_command)
        self.conversation = self.live.conversation
        self.description: SessionDescription | None = None
        self.transcript = TranscriptRenderer()
        self.must_reopen = False
        """Whether turns are missing, so that the session has to be opened at its newest page."""
        self._screen = screen
        self._style = style
        self._ends_with_note = False
        self.questions = ApprovalQuestions(self._print_approval)

    # ---- events

    def open_at(self, page: FullConversation) -> None:
        """Print the newest turns and continue after them."""
        self.conversation.open_at(page)
        self.must_reopen = False
        skipped = self.transcript.skip_to(page.first_number) if page.first_number else []
        self.print(*skipped, *self.transcript.render_new(self.conversation))
        if page.archive_time:
            self.note(texts.AS_OF.format(time=f"{page.archive_time.astimezone():%H:%M}"))

    def apply(self, event: Event) -> bool:
        """Apply an event and print what is new; return whether a turn has ended."""
        if isinstance(event, ConnectionLostEvent):
            reason = texts.connection_problem(event.problem, event.reason)
            if self.live.connection_error is None:
                self.error(texts.RECONNECTING.format(reason=reason))
            self.live.connection_error = reason
            return False
        if self.live.connection_error is not None:
            self.live.connection_error = None
            self.note(texts.RECONNECTED)
        match event:
            case UpdateEvent():
                return self._apply_update(event.update)
            case QueueEvent():
                self.conversation.apply_queue(event.waiting)
                self._remove_pending({prompt.id for prompt in event.waiting})
            case PartialEvent():
                self.conversation.apply_partial(event.partial)
            case ProgressEvent():
                self.conversation.apply_progress(event.progress)
        return False

    def _apply_update(self, update: ConversationUpdate) -> bool:
        self.conversation.apply(update)
        is_behind = update.reset and not self.transcript.overlaps(self.conversation)
        self.must_reopen = self.must_reopen or is_behind
        if self.must_reopen:
            return False
        running = self.conversation.running_turn
        steering = {step.message_id for step in (running.steps if running else ()) if isinstance(step, UserStep)}
        self._remove_pending(steering | {turn.id for turn in self.conversation.turns})
        self.print(*self.transcript.render_new(self.conversation))
        return any(turn.is_complete for turn in update.new_messages + update.updated_messages)

    def _remove_pending(self, arrived: set[str]) -> None:
        self.live.pending = [prompt for prompt in self.live.pending if prompt.message_id not in arrived]

    # ---- permanent output

    def print(self, *parts: RenderableType) -> None:
        if parts:
            self._screen.print(self._style.render(*parts))
            self._ends_with_note = False

    def _print_approval(self, text: str) -> None:
        self._screen.print(f"{self._style.approval(text)}\n")
        self._ends_with_note = False

    def note(self, text: str) -> None:
        """Print a note that is not part of the conversation."""
        self._print_note(renderer.note(text))

    def error(self, text: str) -> None:
        self._print_note(renderer.error(text))

    def _print_note(self, part: RenderableType) -> None:
        self.print(*([] if self._ends_with_note else [""]), part)
        self._ends_with_note = True

    # ---- live output

    @property
    def is_busy(self) -> bool:
        """Whether something on the screen is animated."""
        live = self.live
        return self.conversation.is_processing or live.connection_error is not None or bool(live.pending)

    @property
    def has_prompts(self) -> bool:
        """Whether the session has a prompt, or one is being sent."""
        return bool(self.conversation.turns or self.conversation.waiting or self.live.pending)

    @property
    def model_line(self) -> str:
        model = self.description.model if self.description else None
        return texts.MODEL.format(model=texts.MODEL_NOTES.get(model, model))

    @property
    def awaited_call(self) -> ToolCall | None:
        """The call that is decided on next."""
        return next(iter(self.conversation.awaiting_calls), None)

    @property
    def question(self) -> PendingApproval | None:
        """The approval being decided, of which at least a part was printed."""
        call = self.awaited_call
        return self.questions.find(call.id) if call else None

    def print_question(self) -> None:
        """Print the next part of the call that is decided on next."""
        if call := self.awaited_call:
            heading = texts.APPROVAL_HEADING.format(call_id=call.id, position=self._position_of(call))
            self.questions.print_next(call.id, f"\n{Sign.QUESTION} {heading}")

    @property
    def blocked_tasks(self) -> set[str]:
        """The ids of the tasks in which a call needs a decision."""
        return {task.task_id for task in self.conversation.tasks if task.status == "input_required"}

    def print_call_of_task(self, approval: PendingApproval) -> None:
        """Print the text of a call of a task, all at once: it is decided on in the task's own session."""
        heading = texts.TASK_APPROVAL_HEADING.format(call_id=approval.call_id, session_id=approval.workflow_id)
        self._print_approval(f"\n{Sign.QUESTION} {heading}\n{approval.text}")

    def _position_of(self, call: ToolCall) -> str:
        """Return which of the step's calls that needed approval this is; empty if it is the only one."""
        turn = self.conversation.running_turn
        step = turn.steps[-1] if turn else None
        call_ids = [other.id for other in step.tool_calls if other.approval] if isinstance(step, ModelStep) else []
        if len(call_ids) < 2 or call.id not in call_ids:
            return ""
        return texts.POSITION.format(number=call_ids.index(call.id) + 1, count=len(call_ids))

    def refresh(self) -> None:
        """Show the live output, the question and the status line."""
        rows = max(3, self._screen.size.rows - LOWER_ROWS)
        self._screen.show(live=self.live.render(rows=rows), question=self._question_line(), status=self._status_line())

    def _question_line(self) -> str:
        call, approval = self.awaited_call, self.question
        if call is None or approval is None:
            return ""
        width = self._style.width
        question = self._style.exact(f"{Sign.QUESTION} {legible_line(call.name)}{self._position_of(call)}")
        keys = next((keys for keys in texts.APPROVAL_KEYS if len(keys) <= width - 2), texts.APPROVAL_KEYS[-1])
        if not approval.is_whole:
            keys = texts.ARGUMENTS_MISSING
        elif rest := self.questions.remaining_text(call.id):
            keys = texts.SHOW_REST.format(rest=rest)
        dash = self._style.encodable(" — ")
        # The keys are never broken: without room after the call, they get their own line.
        has_room = cell_len(f"{question}{dash}{keys}") <= width
        between = dash if has_room else "\n  "
        return f"\n{question}{between}{keys}"

    def _context_size(self) -> str:
        """Return what the newest model call has seen: it is newer than the description."""
        size = self.description.conversation_metrics if self.description else None
        newest = next((turn for turn in reversed(self.conversation.turns) if turn.conversation_metrics), None)
        metrics = newest.conversation_metrics if newest else size
        return context_size(metrics, max_messages=size.max_messages if size else 0)

    def _status_line(self) -> str:
        conversation, description = self.conversation, self.description
        queued, sending = len(conversation.waiting), len(self.live.pending)
        is_lost = self.live.connection_error is not None
        line = renderer.facts(
            [
                self.session_id,
                texts.STATUS_LOST if is_lost else texts.STATUS[conversation.status],
                texts.QUEUED_COUNT.format(count=queued) if queued else "",
                texts.SENDING_COUNT.format(count=sending) if sending else "",
                self._context_size(),
                amount(description.usage, of_tasks=description.tasks_usage) if description else "",
                (description.model or "") if description else "",
            ]
        )
        return self._style.encodable(one_line(line, self._style.width))
