"""The live output above the input line: partial output, running calls and waiting prompts.

The end of a growing text is shown as far as there is room. Once the text is final, it is printed in the same place
(`transcript_renderer.py`).
"""

from dataclasses import dataclass, field
from datetime import datetime

from rich.console import RenderableType
from rich.text import Text

from turnkeeper.clients.python.conversation import Conversation
from turnkeeper.clients.terminal import texts
from turnkeeper.clients.terminal.formatting import counted, elapsed, one_line
from turnkeeper.clients.terminal.interactive.renderer import Renderer, call_signature
from turnkeeper.clients.terminal.interactive.terminal_style import SPINNER, Sign, TerminalStyle
from turnkeeper.clients.terminal.opening import resume_command
from turnkeeper.models.session.queue.prompts import QueuedPrompt
from turnkeeper.models.transcript.attachments import Attachment, with_names
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.transcript.partial_output import PartialPart
from turnkeeper.models.transcript.task_view import SubTask
from turnkeeper.models.transcript.trajectory import ModelStep, ToolCall

MAX_QUEUE_LINES = 5
MAX_TASK_LINES = 8

MAX_PARTIAL_CHARS = 8_000
"""How much of a partial text is rendered: more than a screen can show."""

MIN_ROOM = 20
"""In narrow terminals, lines are broken rather than shortened further."""


@dataclass(frozen=True)
class PendingPrompt:
    """A typed prompt that the session does not show yet."""

    message_id: str
    text: str
    attachments: tuple[Attachment, ...] = ()


@dataclass
class LiveState:
    """The state that the live output shows.

    `stopping`: the id of the turn that is being stopped; `ticks` counts the frames of animations. `url`: the gateway's,
    where it has to be repeated in commands.
    """

    conversation: Conversation = field(default_factory=Conversation)
    pending: list[PendingPrompt] = field(default_factory=list)
    connection_error: str | None = None
    stopping: str | None = None
    ticks: int = 0
    url: str | None = None


class LiveRenderer:
    """Renders the live output."""

    def __init__(self, style: TerminalStyle, renderer: Renderer) -> None:
        self._style = style
        self._renderer = renderer
        self._partial_lines: list[str] = []
        self._partial_key: tuple[list[PartialPart], int] = [], 0

    def render(self, state: LiveState, *, now: datetime, rows: int) -> str:
        """Return the state as terminal text of at most `rows` lines; empty if there is nothing to show."""
        parts = [*self._activity(state, now), *self._tasks(state), *self._queue(state)]
        below = [line for part in parts for line in self._lines(part)]
        partial = self._partial_output(state.conversation.partial_parts)
        between = [""] if partial and below else []
        return "\n".join([*partial[-max(1, rows - len(below) - len(between)) :], *between, *below])

    # ---- partial output

    def _partial_output(self, parts: list[PartialPart]) -> list[str]:
        """Return the partial output's lines, rendered like final text. They are cached by parts and width."""
        if (parts, self._style.width) != self._partial_key:
            self._partial_key = parts, self._style.width
            self._partial_lines = [line for part in parts for line in self._part(part)]
        return self._partial_lines

    def _part(self, part: PartialPart) -> list[str]:
        match part.kind:
            case "think":
                room = max(MIN_ROOM, self._style.width - 4)
                end = one_line(part.text[-4 * room :], 4 * room)[-room:]
                return self._lines(Text(f"  {Sign.THOUGHT} {end}", style="dim italic"))
            case "respond":
                text = end_of(part.text, MAX_PARTIAL_CHARS)
                return ["", *self._lines(self._renderer.markdown(text))] if text.strip() else []
            case "call":
                return self._lines(Text(f"  {Sign.TOOL} {one_line(part.text, 80)}…", style="dim"))

    # ---- activity

    def _activity(self, state: LiveState, now: datetime) -> list[RenderableType]:
        conversation, spinner = state.conversation, SPINNER[state.ticks % len(SPINNER)]
        if state.connection_error is not None:
            return [self._renderer.error(texts.STILL_LOST.format(reason=state.connection_error))]
        if conversation.status == "waiting_retry":
            return [Text(f"  {spinner} {_waiting_for_model(conversation, now)}", style="dim")]
        turn = conversation.running_turn
        if turn is None:
            return []
        time = elapsed(_seconds_of_step(turn, now))
        running = running_calls(turn)
        if running:
            return [self._running_call(call, f"{spinner} {time}") for call in running]
        is_writing = any(part.kind == "respond" for part in conversation.partial_parts)
        if conversation.awaiting_calls or (is_writing and not state.stopping):
            return []
        activity = texts.STOPPING if state.stopping else texts.THINKING
        return [Text(f"  {spinner} {activity} {time}".rstrip(), style="dim")]

    def _running_call(self, call: ToolCall, progress: str) -> Text:
        line = Text(f"  {Sign.TOOL} ", style="dim")
        line.append(call_signature(call, max_chars=self._room), style="not dim")
        return line.append(f" {progress}")

    # ---- tasks

    def _tasks(self, state: LiveState) -> list[RenderableType]:
        """Return a line per running task, and for one that needs a decision the command to decide with."""
        working = [task for task in state.conversation.tasks if task.is_working]
        return [self._task(task, state.url) for task in working[:MAX_TASK_LINES]]

    def _task(self, task: SubTask, url: str | None) -> Text:
        percent = "" if task.percent is None else f"{task.percent} %"
        facts = [texts.TASK_STATUS[task.status], percent, task.message or ""]
        progress = f" {Sign.DOT} ".join(filter(None, facts))
        words = texts.TASK_PROGRESS.format(title=task.title, progress=progress)
        line = Text(f"  {Sign.TOOL} {one_line(words, self._room)}", style="dim")
        if task.status != "input_required":
            return line
        command = resume_command(task.task_id, url=url)
        return line.append(f"\n    {texts.TASK_DECIDE_WITH.format(command=command)}", style="not dim")

    # ---- waiting prompts

    def _queue(self, state: LiveState) -> list[RenderableType]:
        waiting = state.conversation.waiting
        queued = {prompt.id for prompt in waiting}
        lines: list[tuple[str, QueuedPrompt | PendingPrompt]] = [
            (texts.JOINS_TURN if prompt.mode == "steer" else texts.QUEUED.format(position=prompt.position), prompt)
            for prompt in waiting
        ]
        lines += [(texts.SENDING, prompt) for prompt in state.pending if prompt.message_id not in queued]
        parts: list[RenderableType] = [
            Text(f"  {Sign.QUEUED} {label}  {self._queued_line(prompt)}", style="dim")
            for label, prompt in lines[:MAX_QUEUE_LINES]
        ]
        if len(lines) > MAX_QUEUE_LINES:
            more = counted(len(lines) - MAX_QUEUE_LINES, "more prompt")
            parts.append(Text(f"    {texts.MORE_PROMPTS.format(prompts=more)}", style="dim"))
        return parts

    def _queued_line(self, prompt: QueuedPrompt | PendingPrompt) -> str:
        return one_line(with_names(prompt.text, prompt.attachments), self._room)

    @property
    def _room(self) -> int:
        """The characters for a text with other texts in its line."""
        return max(MIN_ROOM, self._style.width - 20)

    def _lines(self, part: RenderableType) -> list[str]:
        return self._style.render(part).rstrip("\n").split("\n")


def end_of(text: str, max_chars: int) -> str:
    r"""Return the last lines of a Markdown text, at most `max_chars`; an open code block is opened again.

    >>> end_of("one\ntwo\nthree", 9), end_of("```py\na = 1\nb = 2", 8), end_of("short", 99)
    ('two\nthree', '```\nb = 2', 'short')
    """
    if len(text) <= max_chars:
        return text
    start = text.find("\n", len(text) - max_chars - 1) + 1 or len(text) - max_chars
    fences = sum(line.lstrip().startswith("```") for line in text[:start].split("\n"))
    return ("```\n" if fences % 2 else "") + text[start:]


def running_calls(turn: ConversationMessage) -> list[ToolCall]:
    """Return the calls of a turn that are running."""
    step = turn.steps[-1] if turn.steps else None
    calls = step.tool_calls if isinstance(step, ModelStep) else []
    # While a call of a step waits for approval, none of the step's calls runs.
    if any(call.awaits_approval for call in calls):
        return []
    return [call for call in calls if call.result is None]


def _seconds_of_step(turn: ConversationMessage, now: datetime) -> float:
    """Return how many seconds the current step has been running."""
    started_at = turn.steps[-1].timestamp if turn.steps else turn.timestamp
    return max(0.0, (now - started_at).total_seconds())


def _waiting_for_model(conversation: Conversation, now: datetime) -> str:
    reason = one_line(conversation.waiting_reason or texts.NO_ANSWER, 200)
    until = conversation.waiting_until
    time = elapsed((until - now).total_seconds()) if until else ""
    sentence = texts.TRYING_AGAIN_IN if time else texts.TRYING_AGAIN_NOW
    return sentence.format(reason=reason, time=time)
