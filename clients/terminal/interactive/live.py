"""What is going on right now, shown above the line one types in and gone again: nothing of it is final.

While a model writes, the end of its text is shown as it grows, as much as there is room for. Once it is final it is
printed where it stood (`narrator.py`), so it is never seen twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from rich.console import RenderableType
from rich.text import Text

from turnkeeper.clients.python.conversation import Conversation
from turnkeeper.clients.terminal.interactive.look import Look
from turnkeeper.clients.terminal.interactive.paint import Painter, args_of
from turnkeeper.clients.terminal.words import counted, elapsed, one_line, signature
from turnkeeper.models.session.queue.prompts import QueuedPrompt
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.transcript.partial_output import PartialPart
from turnkeeper.models.transcript.trajectory import ModelStep, ToolCall

QUEUE_LINES = 5

MOST_SHOWN_CHARS = 8_000
"""Of a text that grows, at most: more than a screen has room for."""

LEAST_ROOM = 20
"""In narrow terminals lines are broken rather than emptied."""

SPIN = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
PLAIN_SPIN = "|/-\\"


@dataclass(frozen=True)
class OnItsWay:
    """A prompt that was typed and is not known to have arrived."""

    message_id: str
    text: str


@dataclass(frozen=True)
class Moment:
    """What is shown: the conversation, what was typed and not heard of since, and what went wrong with the connection.

    `since`: seconds that the running step has taken so far; `until`: seconds after which a model that did not answer is
    asked again; `tick` counts the pictures, for what moves.
    """

    conversation: Conversation
    on_its_way: Sequence[OnItsWay] = ()
    lost: str | None = None
    stopping: bool = False
    since: float = 0.0
    until: float = 0.0
    tick: int = 0


class LivePainter:
    """Paints moments in one look."""

    def __init__(self, look: Look) -> None:
        """Paint in `look`."""
        self._look = look
        self._painter = Painter(look)
        self._grown: list[str] = []
        self._grown_for: tuple[list[PartialPart], int] = [], 0

    def paint(self, moment: Moment, *, rows: int) -> str:
        """Return the moment as text for a terminal, in `rows` lines at most; empty where nothing goes on."""
        below = [line for part in (*self._state(moment), *self._queue(moment)) for line in self._lines(part)]
        growing = self._growing(moment.conversation.partial_parts)
        apart = [""] if growing and below else []
        return "\n".join([*growing[-max(1, rows - len(below) - len(apart)) :], *apart, *below])

    # ---- what the model writes

    def _growing(self, parts: list[PartialPart]) -> list[str]:
        """Return what the model has written of a step that is not final, as it will look when it is."""
        if (parts, self._look.width) != self._grown_for:
            self._grown_for = parts, self._look.width
            self._grown = [line for part in parts for line in self._part(part)]
        return self._grown

    def _part(self, part: PartialPart) -> list[str]:
        match part.kind:
            case "think":
                room = max(LEAST_ROOM, self._look.width - 4)
                end = one_line(part.text[-4 * room :], 4 * room)[-room:]
                return self._lines(Text(f"  {self._look.sign('thought')} {end}", style="dim italic"))
            case "respond":
                text = end_of(part.text, MOST_SHOWN_CHARS)
                return ["", *self._lines(self._painter.markdown(text))] if text.strip() else []
            case "call":
                return self._lines(Text(f"  {self._look.sign('tool')} {one_line(part.text, 80)}…", style="dim"))

    # ---- what is going on

    def _state(self, moment: Moment) -> list[RenderableType]:
        conversation = moment.conversation
        if moment.lost is not None:
            return [self._painter.trouble(f"{moment.lost}; trying again")]
        turn = conversation.running_turn
        if conversation.status == "waiting_retry":
            again = f"in {elapsed(moment.until)}" if moment.until >= 1 else "now"
            reason = one_line(conversation.waiting_reason or "The model did not answer.", 200)
            return [Text(f"  {self._spin(moment)} {reason} Trying again {again}", style="dim")]
        if turn is None:
            return []
        running = running_calls(turn)
        if running:
            return [self._running(call, moment) for call in running]
        if conversation.awaiting_calls:
            return []
        if moment.stopping:
            return [self._busy(moment, "stopping")]
        is_writing = any(part.kind == "respond" for part in conversation.partial_parts)
        return [] if is_writing else [self._busy(moment, "thinking")]

    def _busy(self, moment: Moment, words: str) -> Text:
        time = elapsed(moment.since)
        return Text(f"  {self._spin(moment)} {words}{f' {time}' if time else ''}", style="dim")

    def _running(self, call: ToolCall, moment: Moment) -> Text:
        line = Text(f"  {self._look.sign('tool')} ", style="dim")
        line.append(signature(call.name, args_of(call), most=self._room), style="not dim")
        return line.append(f" {self._spin(moment)} {elapsed(moment.since)}")

    def _spin(self, moment: Moment) -> str:
        frames = SPIN if self._look.encodable(SPIN) == SPIN else PLAIN_SPIN
        return frames[moment.tick % len(frames)]

    # ---- what waits

    def _queue(self, moment: Moment) -> list[RenderableType]:
        waiting = moment.conversation.waiting
        known = {prompt.id for prompt in waiting}
        texts = [(_place(prompt), prompt.text) for prompt in waiting]
        texts += [("sending", prompt.text) for prompt in moment.on_its_way if prompt.message_id not in known]
        lines: list[RenderableType] = [
            Text(f"  {self._look.sign('waits')} {place}  {one_line(text, self._room)}", style="dim")
            for place, text in texts[:QUEUE_LINES]
        ]
        if len(texts) > QUEUE_LINES:
            lines.append(Text(f"    and {counted(len(texts) - QUEUE_LINES, 'more prompt')}: /queue", style="dim"))
        return lines

    @property
    def _room(self) -> int:
        """The characters of a text that stands between others in a line."""
        return max(LEAST_ROOM, self._look.width - 20)

    def _lines(self, part: RenderableType) -> list[str]:
        return self._look.render(part).rstrip("\n").split("\n")


def end_of(text: str, most: int) -> str:
    r"""Return the last lines of a Markdown text, `most` characters or fewer; code that was begun before is code still.

    >>> end_of("one\ntwo\nthree", 9), end_of("```py\na = 1\nb = 2", 8), end_of("short", 99)
    ('two\nthree', '```\nb = 2', 'short')
    """
    if len(text) <= most:
        return text
    start = text.find("\n", len(text) - most - 1) + 1 or len(text) - most
    fences = sum(line.lstrip().startswith("```") for line in text[:start].split("\n"))
    return ("```\n" if fences % 2 else "") + text[start:]


def _place(prompt: QueuedPrompt) -> str:
    return "joins in" if prompt.mode == "steer" else f"queued {prompt.position}"


def running_calls(turn: ConversationMessage) -> list[ToolCall]:
    """Return the calls of a turn that are under way."""
    step = turn.steps[-1] if turn.steps else None
    calls = step.tool_calls if isinstance(step, ModelStep) else []
    # While people are asked about some calls of a step, none of them runs.
    if any(call.awaits_approval for call in calls):
        return []
    return [call for call in calls if call.result is None]


def since_of(turn: ConversationMessage | None, *, now: datetime) -> float:
    """Return how many seconds the running step of a turn has taken; 0 without one."""
    if turn is None:
        return 0.0
    began = turn.steps[-1].timestamp if turn.steps else turn.timestamp
    return max(0.0, (now - began).total_seconds())
