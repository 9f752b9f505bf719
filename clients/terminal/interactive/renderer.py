"""How what is printed looks: the parts of turns, notes and errors, as something rich can print."""

import json
from collections.abc import Iterable, Mapping

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from turnkeeper.clients.terminal import texts
from turnkeeper.clients.terminal.formatting import amount, counted, duration, legible, one_line, signature
from turnkeeper.clients.terminal.interactive.markdown import INDENT, ChatMarkdown
from turnkeeper.clients.terminal.interactive.terminal_style import Sign, TerminalStyle
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.transcript.trajectory import ModelStep, ToolCall, ToolResult, UserStep

MAX_RESULT_CHARS = 4_000
"""Of a call's result, and of its arguments, where a turn is opened."""


class Renderer:
    """Renders in one style."""

    def __init__(self, style: TerminalStyle) -> None:
        """Render in `style`."""
        self._style = style

    # ---- apart from the conversation

    def note(self, text: str) -> RenderableType:
        """Return a remark."""
        return Padding(Text(text, style="dim"), (0, 0, 0, INDENT))

    def error(self, text: str) -> Text:
        """Return what went wrong."""
        return Text(f"{Sign.BAD} {legible(text)}", style="red")

    def command(self, text: str, *, style: str = "") -> RenderableType:
        """Return a line with a command in it: the terminal may break it, we do not, so that it can be copied."""
        # Not as a text: several texts are joined before they are printed, and broken together.
        return Group(Text(text, style=style, overflow="ignore", no_wrap=True))

    # ---- parts of a turn

    def prompt(self, text: str) -> Text:
        """Return what the turn was asked."""
        lines = legible(text).strip("\n").split("\n")
        return Text.assemble((f"{Sign.PROMPT} ", "bold cyan"), ("\n  ".join(lines), "bold"), overflow="fold")

    def steering(self, text: str) -> Text:
        """Return a prompt that joined the running turn."""
        return Text(f"  {Sign.STEER} {legible(text)}", style="bold")

    def thinking(self, text: str) -> Text:
        """Return the beginning of what the model thought, in one line."""
        return Text(f"  {Sign.THOUGHT} {one_line(text, self._style.width - INDENT - 2)}", style="dim italic")

    def markdown(self, text: str) -> RenderableType:
        """Return what the model wrote."""
        return Padding(ChatMarkdown(text), (0, 0, 0, INDENT))

    def call(self, call: ToolCall) -> Text:
        """Return a finished call in one line: what was called, how it ended, how long it took."""
        result = call.result or ToolResult(outcome="")
        is_good = result.status == "ok"
        took = f" {duration(result.duration_ms)}" if result.duration_ms is not None else ""
        outcome = took if is_good else f" {one_line(_outcome(call, result), 80)}{took}"
        sign = self._style.encodable(Sign.GOOD if is_good else Sign.BAD)
        room = max(20, self._style.width - INDENT - len(sign) - min(len(outcome), 40) - 4)
        line = Text(f"  {Sign.TOOL} ", style="dim", no_wrap=False)
        line.append(call_signature(call, max_chars=room), style="not dim")
        line.append(f" {sign}", style="not dim green" if is_good else "not dim red")
        return line.append(outcome)

    def turn_end(self, turn: ConversationMessage, number: int) -> list[RenderableType]:
        """Return why there is no answer, if there is none, and what the turn took."""
        took = turn.processing_time_ms
        ended = texts.TURN.format(number=number)
        line = facts([ended, duration(took) if took is not None else "", amount(turn.usage)])
        return [*_error_of(turn), self.note(line)]

    # ---- opened turns

    def opened_turn(self, turn: ConversationMessage, number: int) -> list[RenderableType]:
        """Return a turn with everything that happened in it."""
        opened = self.note(texts.TURN_OPENED.format(number=number))
        parts: list[RenderableType] = ["", opened, self.prompt(turn.user_message)]
        if turn.steps_omitted:
            parts.append(self.note(texts.left_out(turn.steps_omitted, "earlier step")))
        for step in turn.steps:
            parts += [self.steering(step.content)] if isinstance(step, UserStep) else self._opened_step(step)
        return [*parts, *_error_of(turn)]

    def _opened_step(self, step: ModelStep) -> list[RenderableType]:
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
        """Return a call's arguments, one a line, as far as they are shown at all."""
        if isinstance(call.args, str):
            return [_block(call.args, style=style)]
        # Further lines of a value stand to the right: none of them looks like another argument.
        lines = [f"{name}: {_value(value)}".replace("\n", "\n    ") for name, value in call.args.items()]
        if call.args_blob:
            lines.append(texts.ARGUMENTS_SIZE.format(size=counted(call.args_blob.chars, "character")))
        return [_block("\n".join(lines), style=style)] if lines else []

    def _result(self, call: ToolCall) -> list[RenderableType]:
        result = call.result
        if result is None:
            return []
        whole = texts.RESULT_SIZE.format(size=counted(result.blob.chars, "character")) if result.blob else ""
        outcome = self.note(f"  → {legible(result.outcome)}{whole}")
        return [outcome, _block(result.content)] if result.content else [outcome]


def facts(parts: Iterable[str]) -> str:
    """Return the parts that are not empty in one line.

    >>> facts(["turn 1", "", "2 s"])
    'turn 1 · 2 s'
    """
    return f" {Sign.DOT} ".join(filter(None, parts))


def call_signature(call: ToolCall, *, max_chars: int) -> str:
    """Return what a line that names a call shows of it."""
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
    reason = call.approval.reason
    return texts.REJECTED_BECAUSE.format(reason=reason) if reason else texts.REJECTED


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _block(text: str, *, style: str = "dim") -> RenderableType:
    shown = legible(text)
    left_out = len(shown) - MAX_RESULT_CHARS
    if left_out > 0:
        shown = f"{shown[:MAX_RESULT_CHARS]}\n{texts.left_out(left_out, 'more character')}"
    return Padding(Group(Text(shown)), (0, 0, 0, 3 * INDENT), style=style)
