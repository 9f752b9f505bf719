"""The state of a chat: applies events in their order, prints what is final and shows what is not.

**Printed once.** A terminal can't change printed text, so each part is printed when it is final: a prompt when its turn
starts, a step when the model has finished it, a call when it has its result, an answer when the turn ends. Until then
the live output shows it (`live_output.py`). The ids of turns, steps and calls prevent printing twice after a reconnect
or a reset.

**Approvals.** A call can be approved once all of its text was printed. Nothing of it is cut or wrapped here: a terminal
breaks long lines itself, and what scrolls out of sight is in the scrollback. A text that is too long for most
scrollbacks is printed part by part. A line that is broken between two of them continues behind a margin, since only
labels begin a line.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile

from rich.cells import cell_len
from rich.console import RenderableType

from turnkeeper.clients.python.conversation import (
    ConnectionLostEvent,
    Conversation,
    Event,
    PartialEvent,
    ProgressEvent,
    QueueEvent,
    UpdateEvent,
)
from turnkeeper.clients.terminal import texts
from turnkeeper.clients.terminal.formatting import amount, context_size, one_line
from turnkeeper.clients.terminal.interactive import renderer
from turnkeeper.clients.terminal.interactive.live_output import LiveOutput
from turnkeeper.clients.terminal.interactive.screen import Screen, Sign, TerminalStyle
from turnkeeper.models.http_responses import FullConversation, SessionDescription
from turnkeeper.models.legible import MARGIN, legible_line
from turnkeeper.models.session.approvals import PendingApproval
from turnkeeper.models.transcript.conversation import (
    ConversationMessage,
    ConversationUpdate,
    ModelStep,
    ToolCall,
    UserStep,
)

PART_CHARS = 64_000
"""The most that is printed at once."""


class ApprovalQuestions:
    """The texts of waiting calls, and which parts of them were printed. `print_text` prints a part of one as it is."""

    def __init__(self, print_text: Callable[[str], None]) -> None:
        self._print = print_text
        self._approvals: dict[str, PendingApproval] = {}
        self._printed: dict[str, int] = {}
        """How many parts of a call's text were printed."""

    def find(self, call_id: str) -> PendingApproval | None:
        """Return what people decide on, if at least a part of it was printed."""
        return self._approvals.get(call_id) if self._printed.get(call_id) else None

    def has(self, call_id: str) -> bool:
        """Return whether the call's text is known and has the arguments."""
        approval = self._approvals.get(call_id)
        return approval is not None and approval.is_whole

    def learn(self, approvals: Iterable[PendingApproval]) -> None:
        """Note the texts of calls; one that has changed is printed again."""
        for approval in approvals:
            earlier = self._approvals.get(approval.call_id)
            if earlier is None or earlier.text != approval.text:
                self._printed.pop(approval.call_id, None)
            self._approvals[approval.call_id] = approval

    def print_next(self, call_id: str, heading: str) -> None:
        """Print the next part of a call's text; before the first, the heading."""
        approval, printed = self._approvals.get(call_id), self._printed.get(call_id, 0)
        parts = list(_parts_of(approval.text)) if approval else []
        if printed < len(parts):
            self._print(f"{'' if printed else heading}\n{parts[printed]}")
            self._printed[call_id] = printed + 1

    def is_shown_whole(self, call_id: str) -> bool:
        """Return whether all that is decided on was printed: only then can the call be approved."""
        return self.has(call_id) and not self.remaining_text(call_id)

    def remaining_text(self, call_id: str) -> str:
        """Return which part of a call's text is printed next; empty if all was printed."""
        approval, printed = self._approvals.get(call_id), self._printed.get(call_id, 0)
        count = len(list(_parts_of(approval.text))) if approval else 1
        return texts.NEXT_PART.format(part=printed + 1, parts=count) if printed < count else ""


def _parts_of(text: str) -> Iterator[str]:
    """Yield a text in parts of at most `PART_CHARS`, which end with a line where that is possible."""
    while len(text) > PART_CHARS:
        line_end = text.rfind("\n", 0, PART_CHARS) + 1
        end = line_end or PART_CHARS
        yield text[:end].removesuffix("\n")
        text = text[end:] if line_end else MARGIN + text[end:]
    yield text


class TranscriptRenderer:
    """Renders the new parts of one conversation."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        """The numbers of the turns that were rendered at least in part, by id."""
        self._rendered: set[tuple[str | int, ...]] = set()
        """The parts of turns that were rendered."""
        self._next_number = 1

    def skip_to(self, number: int) -> Iterator[RenderableType]:
        """Continue with turn `number`; yield a note with the number of skipped turns."""
        if number > self._next_number:
            yield from ("", renderer.note(texts.left_out(number - self._next_number, "earlier turn")))
            self._next_number = number

    def overlaps(self, conversation: Conversation) -> bool:
        """Return whether no turn is missing between the rendered ones and those of the conversation."""
        turns = conversation.turns
        return not turns or not self.numbers or any(turn.id in self.numbers for turn in turns)

    def render_new(self, conversation: Conversation) -> Iterator[RenderableType]:
        """Yield what is new since the last call."""
        newest_first = takewhile(lambda turn: (turn.id, "end") not in self._rendered, reversed(conversation.turns))
        for turn in reversed(list(newest_first)):
            yield from self._render_turn(turn)

    def _render_turn(self, turn: ConversationMessage) -> Iterator[RenderableType]:
        if turn.id not in self.numbers:
            self.numbers[turn.id] = self._next_number
            self._next_number += 1
            yield from ("", renderer.prompt(turn))
        for index, step in enumerate(turn.steps):
            if isinstance(step, UserStep):
                if self._is_new(turn.id, "prompt", step.message_id):
                    yield renderer.steering(step)
            elif step.tool_calls or turn.is_complete or index + 1 < len(turn.steps):
                yield from self._render_step(step, turn)
        if turn.is_complete and self._is_new(turn.id, "end"):
            if turn.agent_message is not None:
                yield from _text(turn.agent_message, is_excerpt=turn.agent_message_blob is not None)
            yield from renderer.turn_end(turn, self.numbers[turn.id])

    def _render_step(self, step: ModelStep, turn: ConversationMessage) -> Iterator[RenderableType]:
        if self._is_new(turn.id, "step", step.number):
            if step.left_out:
                yield renderer.note(step.left_out)
            if step.thinking:
                yield renderer.thinking(step.thinking)
            is_answer = turn.agent_message is not None and not step.tool_calls and step is turn.steps[-1]
            if step.text and not is_answer:
                yield from _text(step.text, is_excerpt=step.text_blob is not None)
                if step.interrupted:
                    yield renderer.note(texts.INTERRUPTED)
        for call in step.tool_calls:
            if call.result and self._is_new(turn.id, "call", call.id):
                yield renderer.FinishedCall(call)

    def _is_new(self, *part: str | int) -> bool:
        """Return whether a part was not rendered yet; from now on it was."""
        is_new = part not in self._rendered
        self._rendered.add(part)
        return is_new


def _text(text: str, *, is_excerpt: bool) -> Iterator[RenderableType]:
    yield from ("", renderer.markdown(text), "")
    if is_excerpt:
        yield renderer.note(texts.EXCERPT)


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
