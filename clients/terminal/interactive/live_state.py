"""What is going on right now, shown above the line one types in and gone again: nothing of it is final.

While a model writes, the end of its text is shown as it grows, as much as there is room for. Once it is final it is
printed where it stood (`transcript_renderer.py`), so it is never seen twice.
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
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.transcript.partial_output import PartialPart
from turnkeeper.models.transcript.trajectory import ModelStep, ToolCall

MAX_QUEUE_LINES = 5

MAX_GROWING_CHARS = 8_000
"""Of a text that grows: more than a screen has room for."""

MIN_ROOM = 20
"""In narrow terminals lines are broken rather than emptied."""


@dataclass(frozen=True)
class PendingPrompt:
    """A prompt that was typed and is not known to have arrived."""

    message_id: str
    text: str


@dataclass
class LiveState:
    """The conversation, what was typed and not heard of since, and what is wrong with the connection.

    `stopping`: the turn that was told to stop; `ticks` counts the frames, for what moves.
    """

    conversation: Conversation = field(default_factory=Conversation)
    pending: list[PendingPrompt] = field(default_factory=list)
    connection_error: str | None = None
    stopping: str | None = None
    ticks: int = 0


class LiveRenderer:
    """Renders what goes on in one style."""

    def __init__(self, style: TerminalStyle, renderer: Renderer) -> None:
        """Write in `style`; final parts look as `renderer` has them."""
        self._style = style
        self._renderer = renderer
        self._growing: list[str] = []
        self._growing_for: tuple[list[PartialPart], int] = [], 0

    def render(self, state: LiveState, *, now: datetime, rows: int) -> str:
        """Return the state as text for a terminal, in `rows` lines at most; empty where nothing goes on."""
        parts = [*self._activity(state, now), *self._queue(state)]
        below = [line for part in parts for line in self._lines(part)]
        growing = self._growing_lines(state.conversation.partial_parts)
        between = [""] if growing and below else []
        return "\n".join([*growing[-max(1, rows - len(below) - len(between)) :], *between, *below])

    # ---- what the model writes

    def _growing_lines(self, parts: list[PartialPart]) -> list[str]:
        """Return what the model has written of a step that is not final, as it will look when it is."""
        if (parts, self._style.width) != self._growing_for:
            self._growing_for = parts, self._style.width
            self._growing = [line for part in parts for line in self._part(part)]
        return self._growing

    def _part(self, part: PartialPart) -> list[str]:
        match part.kind:
            case "think":
                room = max(MIN_ROOM, self._style.width - 4)
                end = one_line(part.text[-4 * room :], 4 * room)[-room:]
                return self._lines(Text(f"  {Sign.THOUGHT} {end}", style="dim italic"))
            case "respond":
                text = end_of(part.text, MAX_GROWING_CHARS)
                return ["", *self._lines(self._renderer.markdown(text))] if text.strip() else []
            case "call":
                return self._lines(Text(f"  {Sign.TOOL} {one_line(part.text, 80)}…", style="dim"))

    # ---- what is going on

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

    # ---- what waits

    def _queue(self, state: LiveState) -> list[RenderableType]:
        waiting = state.conversation.waiting
        queued = {prompt.id for prompt in waiting}
        lines = [
            (texts.JOINS_IN if prompt.mode == "steer" else texts.QUEUED.format(position=prompt.position), prompt.text)
            for prompt in waiting
        ]
        lines += [(texts.SENDING, prompt.text) for prompt in state.pending if prompt.message_id not in queued]
        parts: list[RenderableType] = [
            Text(f"  {Sign.QUEUED} {place}  {one_line(text, self._room)}", style="dim")
            for place, text in lines[:MAX_QUEUE_LINES]
        ]
        if len(lines) > MAX_QUEUE_LINES:
            more = counted(len(lines) - MAX_QUEUE_LINES, "more prompt")
            parts.append(Text(f"    {texts.MORE_PROMPTS.format(prompts=more)}", style="dim"))
        return parts

    @property
    def _room(self) -> int:
        """The characters of a text that stands between others in a line."""
        return max(MIN_ROOM, self._style.width - 20)

    def _lines(self, part: RenderableType) -> list[str]:
        return self._style.render(part).rstrip("\n").split("\n")


def end_of(text: str, max_chars: int) -> str:
    r"""Return the last lines of a Markdown text, `max_chars` or fewer; code that was begun before is code still.

    >>> end_of("one\ntwo\nthree", 9), end_of("```py\na = 1\nb = 2", 8), end_of("short", 99)
    ('two\nthree', '```\nb = 2', 'short')
    """
    if len(text) <= max_chars:
        return text
    start = text.find("\n", len(text) - max_chars - 1) + 1 or len(text) - max_chars
    fences = sum(line.lstrip().startswith("```") for line in text[:start].split("\n"))
    return ("```\n" if fences % 2 else "") + text[start:]


def running_calls(turn: ConversationMessage) -> list[ToolCall]:
    """Return the calls of a turn that are under way."""
    step = turn.steps[-1] if turn.steps else None
    calls = step.tool_calls if isinstance(step, ModelStep) else []
    # While people are asked about some calls of a step, none of them runs.
    if any(call.awaits_approval for call in calls):
        return []
    return [call for call in calls if call.result is None]


def _seconds_of_step(turn: ConversationMessage, now: datetime) -> float:
    """Return how many seconds the running step has taken."""
    started = turn.steps[-1].timestamp if turn.steps else turn.timestamp
    return max(0.0, (now - started).total_seconds())


def _waiting_for_model(conversation: Conversation, now: datetime) -> str:
    reason = one_line(conversation.waiting_reason or texts.NO_ANSWER, 200)
    until = conversation.waiting_until
    time = elapsed((until - now).total_seconds()) if until else ""
    sentence = texts.TRYING_AGAIN_IN if time else texts.TRYING_AGAIN_NOW
    return sentence.format(reason=reason, time=time)
