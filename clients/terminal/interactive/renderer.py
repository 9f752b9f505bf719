"""Renders parts of turns, notes and errors for rich."""

import json
from collections.abc import Iterable, Mapping

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from turnkeeper.clients.terminal import texts
from turnkeeper.clients.terminal.formatting import amount, counted, duration, legible, one_line, signature
from turnkeeper.clients.terminal.interactive.markdown import INDENT, ChatMarkdown
from turnkeeper.clients.terminal.interactive.terminal_style import Sign, TerminalStyle
from turnkeeper.models.transcript.attachments import with_names
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.transcript.trajectory import ModelStep, ToolCall, ToolResult, UserStep

MAX_RESULT_CHARS = 4_000
"""How much of a call's arguments and of its result `/details` shows."""


class Renderer:
    """Renders in one style."""

    def __init__(self, style: TerminalStyle) -> None:
        self._style = style

    # ---- notes

    def note(self, text: str) -> RenderableType:
        return Padding(Text(text, style="dim"), (0, 0, 0, INDENT))

    def error(self, text: str) -> Text:
        return Text(f"{Sign.BAD} {legible(text)}", style="red")

    def command(self, text: str, *, style: str = "") -> RenderableType:
        """Return a line with a command, which we never break, so that it can be copied."""
        # In a group, since rich joins adjacent texts and breaks them together.
        return Group(Text(text, style=style, overflow="ignore", no_wrap=True))

    # ---- parts of a turn

    def prompt(self, text: str) -> Text:
        lines = legible(text).strip("\n").split("\n")
        return Text.assemble((f"{Sign.PROMPT} ", "bold cyan"), ("\n  ".join(lines), "bold"), overflow="fold")

    def steering(self, text: str) -> Text:
        """Return a steering prompt."""
        return Text(f"  {Sign.STEER} {legible(text)}", style="bold")

    def thinking(self, text: str) -> Text:
        """Return the start of the model's thinking, on one line."""
        return Text(f"  {Sign.THOUGHT} {one_line(text, self._style.width - INDENT - 2)}", style="dim italic")

    def markdown(self, text: str) -> RenderableType:
        return Padding(ChatMarkdown(text), (0, 0, 0, INDENT))

    def call(self, call: ToolCall) -> Text:
        """Return a finished call on one line: its signature, outcome and duration."""
        result = call.result or ToolResult(outcome="")
        is_good = result.status == "ok"
        time = f" {duration(result.duration_ms)}" if result.duration_ms is not None else ""
        outcome = time if is_good else f" {one_line(_outcome(call, result), 80)}{time}"
        sign = self._style.encodable(Sign.GOOD if is_good else Sign.BAD)
        room = max(20, self._style.width - INDENT - len(sign) - min(len(outcome), 40) - 4)
        line = Text(f"  {Sign.TOOL} ", style="dim", no_wrap=False)
        line.append(call_signature(call, max_chars=room), style="not dim")
        line.append(f" {sign}", style="not dim green" if is_good else "not dim red")
        return line.append(outcome)

    def turn_end(self, turn: ConversationMessage, number: int) -> list[RenderableType]:
        """Return the turn's error, if it has one, and its duration and usage."""
        milliseconds = turn.processing_time_ms
        time = duration(milliseconds) if milliseconds is not None else ""
        line = facts([texts.TURN.format(number=number), time, amount(turn.usage)])
        return [*_error_of(turn), self.note(line)]

    # ---- a turn's details

    def turn_details(self, turn: ConversationMessage, number: int) -> list[RenderableType]:
        """Return a turn with all of its steps."""
        heading = self.note(texts.TURN_DETAILS.format(number=number))
        parts: list[RenderableType] = ["", heading, self.prompt(with_names(turn.user_message, turn.attachments))]
        if turn.steps_omitted:
            parts.append(self.note(texts.left_out(turn.steps_omitted, "earlier step")))
        for step in turn.steps:
            if isinstance(step, UserStep):
                parts.append(self.steering(with_names(step.content, step.attachments)))
            else:
                parts += self._step_details(step)
        return [*parts, *_error_of(turn)]

    def _step_details(self, step: ModelStep) -> list[RenderableType]:
        parts: list[RenderableType] = []
        if step.thinking:
            parts.append(Padding(Text(legible(step.thinking), style="dim italic"), (0, 0, 0, INDENT)))
        if step.text:
            parts.append(self.markdown(step.text))
        if step.interrupted:
            parts.append(self.note(texts.INTERRUPTED))
        for call in step.tool_calls:
            parts += [self.call(call), *self.arguments(call), *self._result(call)]
        return parts

    def arguments(self, call: ToolCall, *, style: str = "dim") -> list[RenderableType]:
        """Return a call's arguments, one a line, up to `MAX_RESULT_CHARS`."""
        if isinstance(call.args, str):
            return [_block(call.args, style=style)]
        # A value's further lines are indented, so that none looks like another argument.
        lines = [f"{name}: {_value(value)}".replace("\n", "\n    ") for name, value in call.args.items()]
        if call.args_blob:
            lines.append(texts.ARGUMENTS_SIZE.format(size=counted(call.args_blob.chars, "character")))
        return [_block("\n".join(lines), style=style)] if lines else []

    def _result(self, call: ToolCall) -> list[RenderableType]:
        result = call.result
        if result is None:
            return []
        size = texts.RESULT_SIZE.format(size=counted(result.blob.chars, "character")) if result.blob else ""
        outcome = self.note(f"  → {legible(result.outcome)}{size}")
        return [outcome, _block(result.content)] if result.content else [outcome]


def facts(parts: Iterable[str]) -> str:
    """Return the parts that are not empty on one line.

    >>> facts(["turn 1", "", "2 s"])
    'turn 1 · 2 s'
    """
    return f" {Sign.DOT} ".join(filter(None, parts))


def call_signature(call: ToolCall, *, max_chars: int) -> str:
    """Return a call as one line; large arguments are replaced by their size."""
    args: Mapping[str, object] | str = call.args
    if call.args_blob:
        args = texts.left_out(call.args_blob.chars, "character")
    return signature(call.name, args, max_chars=max_chars)


def _error_of(turn: ConversationMessage) -> list[RenderableType]:
    if turn.error is None:
        return []
    if turn.status == "cancelled":
        return [Text(f"  {Sign.BAD} {legible(texts.stopped_turn(turn.error))}", style="yellow")]
    return [Text(f"  {Sign.BAD} {legible(turn.error)}", style="red")]


def _outcome(call: ToolCall, result: ToolResult) -> str:
    if result.status != "denied" or call.approval is None or call.approval.decision != "reject":
        return result.outcome
    return texts.rejected(by=call.approval.decided_by, reason=call.approval.reason)


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _block(text: str, *, style: str = "dim") -> RenderableType:
    block = legible(text)
    left_out = len(block) - MAX_RESULT_CHARS
    if left_out > 0:
        block = f"{block[:MAX_RESULT_CHARS]}\n{texts.left_out(left_out, 'more character')}"
    return Padding(Group(Text(block)), (0, 0, 0, 3 * INDENT), style=style)
