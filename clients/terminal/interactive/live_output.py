"""The live output above the input line: partial output, running calls and waiting prompts.

The end of a growing text is shown as far as there is room. Once the text is final, it is printed in the same place
(`chat_session.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.console import RenderableType
from rich.text import Text

from turnkeeper.clients.python.conversation import Conversation
from turnkeeper.clients.terminal import texts
from turnkeeper.clients.terminal.formatting import elapsed, one_line
from turnkeeper.clients.terminal.interactive import renderer
from turnkeeper.clients.terminal.interactive.screen import SPINNER, Sign, TerminalStyle
from turnkeeper.models.session.prompts import QueuedPrompt
from turnkeeper.models.texts import counted
from turnkeeper.models.transcript.attachments import Attachment, with_names
from turnkeeper.models.transcript.conversation import ConversationMessage, ModelStep, SubTask, ToolCall
from turnkeeper.models.transcript.partial_output import PartialPart

FRAME_SECONDS = 0.1
"""The time between two frames of an animation."""

MAX_QUEUE_LINES = 5
MAX_TASK_LINES = 8

MAX_PARTIAL_CHARS = 8_000
"""How much of a partial text is rendered: more than a screen can show."""

MIN_ROOM = 20
"""In narrow terminals, lines are broken rather than shortened further."""


@dataclass
class PendingPrompt:
    """A typed prompt that the session does not show yet."""

    message_id: str
    text: str
    attachments: list[Attachment]
    is_accepted: bool = False
    """Whether the gateway has confirmed it."""


class LiveOutput:
    """The live output of one session."""

    def __init__(self, style: TerminalStyle, resume_command: Callable[[str], str]) -> None:
        """`resume_command` returns the command that continues a session."""
        self.conversation = Conversation()
        self.pending: list[PendingPrompt] = []
        self.connection_error: str | None = None
        self.stopping: str | None = None
        """The id of the turn that was stopped last."""
        self._style = style
        self._resume_command = resume_command
        self._partial_lines: list[str] = []
        self._partial_key: tuple[list[PartialPart], int] = [], 0

    def render(self, *, rows: int) -> str:
        """Return the live output as terminal text of at most `rows` lines; empty if there is nothing to show."""
        parts = [*self._activity(datetime.now(UTC)), *self._tasks(), *self._queue()]
        below = [line for part in parts for line in self._lines(part)]
        partial = self._partial_output()
        between = [""] if partial and below else []
        return "\n".join([*partial[-max(1, rows - len(below) - len(between)) :], *between, *below])

    # ---- partial output

    def _partial_output(self) -> list[str]:
        """Return the partial output's lines, rendered like final text. They are cached by parts and width."""
        key = self.conversation.partial_parts, self._style.width
        if key != self._partial_key:
            self._partial_key = key
            self._partial_lines = [line for part in key[0] for line in self._part(part)]
        return self._partial_lines

    def _part(self, part: PartialPart) -> list[str]:
        match part.kind:
            case "think":
                room = max(MIN_ROOM, self._style.width - 4)
                end = one_line(part.text[-4 * room :], 4 * room)[-room:]
                return self._lines(Text(f"  {Sign.THOUGHT} {end}", style="dim italic"))
            case "respond":
                text = last_lines(part.text, MAX_PARTIAL_CHARS)
                return ["", *self._lines(renderer.markdown(text))] if text.strip() else []
            case "call":
                return self._lines(Text(f"  {Sign.TOOL} {one_line(part.text, 80)}…", style="dim"))

    # ---- activity

    def _activity(self, now: datetime) -> list[RenderableType]:
        conversation, spinner = self.conversation, SPINNER[int(now.timestamp() / FRAME_SECONDS) % len(SPINNER)]
        if self.connection_error is not None:
            return [renderer.error(texts.STILL_LOST.format(reason=self.connection_error))]
        if conversation.status == "waiting_retry":
            return [Text(f"  {spinner} {_waiting_for_model(conversation, now)}", style="dim")]
        turn = conversation.running_turn
        if turn is None:
            return []
        started_at = turn.steps[-1].timestamp if turn.steps else turn.timestamp
        time = elapsed((now - started_at).total_seconds())
        if running := running_calls(turn):
            return [self._call(call).append(f" {spinner} {time}") for call in running]
        is_writing = any(part.kind == "respond" for part in conversation.partial_parts)
        is_stopping = self.stopping == turn.id
        if conversation.awaiting_calls or (is_writing and not is_stopping):
            return []
        reason = one_line(conversation.waiting_reason or texts.THINKING, 200)
        activity = texts.STOPPING if is_stopping else reason
        return [Text(f"  {spinner} {activity} {time}".rstrip(), style="dim")]

    def _call(self, call: ToolCall) -> Text:
        progress = self.conversation.progress.get(call.id)
        if progress is None:
            return renderer.call_line(call, max_chars=self._room)
        line = renderer.call_line(call, max_chars=self._room // 2)
        return line.append(f"  {one_line(progress.text, self._room // 2)}", style="dim")

    # ---- tasks

    def _tasks(self) -> list[RenderableType]:
        """Return a line per running task, and for one that needs a decision the command to decide with."""
        working = [task for task in self.conversation.tasks if task.is_working]
        return [self._task(task) for task in working[:MAX_TASK_LINES]]

    def _task(self, task: SubTask) -> Text:
        percent = "" if task.percent is None else f"{task.percent} %"
        progress = renderer.facts([texts.TASK_STATUS[task.status], percent, task.message or ""])
        words = texts.TASK_PROGRESS.format(title=task.title, progress=progress)
        line = Text(f"  {Sign.TOOL} {one_line(words, self._room)}", style="dim")
        if task.status != "input_required":
            return line
        command = self._resume_command(task.task_id)
        return line.append(f"\n    {texts.TASK_DECIDE_WITH.format(command=command)}", style="not dim")

    # ---- waiting prompts

    def _queue(self) -> list[RenderableType]:
        waiting = self.conversation.waiting
        queued = {prompt.id for prompt in waiting}
        prompts: list[tuple[str, QueuedPrompt | PendingPrompt]] = [
            (texts.JOINS_TURN if prompt.mode == "steer" else texts.QUEUED.format(position=prompt.position), prompt)
            for prompt in waiting
        ]
        prompts += [(texts.SENDING, prompt) for prompt in self.pending if prompt.message_id not in queued]
        lines = [
            f"  {Sign.QUEUED} {label}  {one_line(with_names(prompt.text, prompt.attachments), self._room)}"
            for label, prompt in prompts[:MAX_QUEUE_LINES]
        ]
        if len(prompts) > MAX_QUEUE_LINES:
            more = counted(len(prompts) - MAX_QUEUE_LINES, "more prompt")
            lines.append(f"    {texts.MORE_PROMPTS.format(prompts=more)}")
        return [Text(line, style="dim") for line in lines]

    @property
    def _room(self) -> int:
        """The characters for a text with other texts in its line."""
        return max(MIN_ROOM, self._style.width - 20)

    def _lines(self, part: RenderableType) -> list[str]:
        return self._style.render(part).rstrip("\n").split("\n")


def last_lines(text: str, max_chars: int) -> str:
    r"""Return the last lines of a Markdown text, at most `max_chars`; an open code block is opened again.

    >>> last_lines("one\ntwo\nthree", 9), last_lines("```py\na = 1\nb = 2", 8), last_lines("short", 99)
    ('two\nthree', '```\nb = 2', 'short')
    """
    if len(text) <= max_chars:
        return text
    start = text.find("\n", len(text) - max_chars - 1) + 1 or len(text) - max_chars
    fences = sum(line.lstrip().startswith("```") for line in text[:start].split("\n"))
    return ("```\n" if fences % 2 else "") + text[start:]


def running_calls(turn: ConversationMessage) -> list[ToolCall]:
    step = turn.steps[-1] if turn.steps else None
    calls = step.tool_calls if isinstance(step, ModelStep) else []
    # While a call of a step waits for approval, none of the step's calls runs.
    if any(call.awaits_approval for call in calls):
        return []
    return [call for call in calls if call.result is None]


def _waiting_for_model(conversation: Conversation, now: datetime) -> str:
    reason = one_line(conversation.waiting_reason or texts.NO_ANSWER, 200)
    until = conversation.waiting_until
    time = elapsed((until - now).total_seconds()) if until else ""
    sentence = texts.TRYING_AGAIN_IN if time else texts.TRYING_AGAIN_NOW
    return sentence.format(reason=reason, time=time)
