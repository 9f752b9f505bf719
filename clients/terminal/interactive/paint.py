"""How what is told looks: every item of the narrator as something rich can print."""

import json
from collections.abc import Sequence
from functools import singledispatchmethod
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, Group, JustifyMethod, RenderableType, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement, TableElement
from rich.padding import Padding
from rich.segment import Segment
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from turnkeeper.clients.terminal.interactive.look import Look
from turnkeeper.clients.terminal.interactive.narrator import Asked, Called, Ended, Item, Said, Skipped, Steered, Thought
from turnkeeper.clients.terminal.words import (
    INTERRUPTED_MARK,
    amount,
    counted,
    duration,
    ending,
    legible,
    one_line,
    signature,
)
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.transcript.trajectory import ModelStep, ToolCall, ToolResult, UserStep

INDENT = 2

MOST_RESULT_CHARS = 4_000
"""Of a call's result, and of its arguments, where a turn is opened."""

LEAST_CELL = 5
"""The columns that a cell of a table takes at least, to be readable."""


class Painter:
    """Paints in one look."""

    def __init__(self, look: Look) -> None:
        """Paint in `look`."""
        self._look = look

    def paint(self, items: Sequence[Item]) -> list[RenderableType]:
        """Return the items as they are printed, with room between those that want it."""
        return [part for item in items for part in self._parts(item)]

    @singledispatchmethod
    def _parts(self, item: Item) -> Sequence[RenderableType]:
        raise NotImplementedError(type(item))

    @_parts.register
    def _(self, item: Asked) -> Sequence[RenderableType]:
        return [Text(""), self.prompt(item.text)]

    @_parts.register
    def _(self, item: Thought) -> Sequence[RenderableType]:
        room = self._look.width - INDENT - 2
        return [Text(f"  {self._look.sign('thought')} {one_line(item.text, room)}", style="dim italic")]

    @_parts.register
    def _(self, item: Said) -> Sequence[RenderableType]:
        more = [self.aside("This is an excerpt: the whole text can't be read now.")] if item.is_excerpt else []
        mark = [self.aside(INTERRUPTED_MARK)] if item.is_interrupted else []
        return [Text(""), self.markdown(item.text), Text(""), *more, *mark]

    @_parts.register
    def _(self, item: Steered) -> Sequence[RenderableType]:
        return [Text(f"  {self._look.sign('joins')} {legible(item.text)}", style="bold")]

    @_parts.register
    def _(self, item: Called) -> Sequence[RenderableType]:
        return [self.call(item.call)]

    @_parts.register
    def _(self, item: Ended) -> Sequence[RenderableType]:
        turn = item.turn
        took = duration(turn.processing_time_ms) if turn.processing_time_ms is not None else ""
        facts = [f"turn {item.number}", took, amount(turn.usage)]
        return [*self._error(turn), self.aside(f" {self._look.sign('dot')} ".join(filter(None, facts)))]

    @_parts.register
    def _(self, item: Skipped) -> Sequence[RenderableType]:
        return [Text(""), self.aside(f"… {counted(item.count, 'earlier turn')}")]

    # ---- parts

    def prompt(self, text: str) -> Text:
        """Return a prompt as it was asked."""
        lines = legible(text).strip("\n").split("\n")
        return Text.assemble(
            (f"{self._look.sign('prompt')} ", "bold cyan"), ("\n  ".join(lines), "bold"), overflow="fold"
        )

    def markdown(self, text: str) -> RenderableType:
        """Return a model's text, set."""
        return Padding(set_markdown(text), (0, 0, 0, INDENT))

    def aside(self, text: str) -> RenderableType:
        """Return a remark that is not part of the conversation."""
        return Padding(Text(text, style="dim"), (0, 0, 0, INDENT))

    def command(self, text: str, *, style: str = "") -> RenderableType:
        """Return a line with a command in it: the terminal may break it, we do not, so that it can be copied."""
        # Not as a text: several texts are joined before they are printed, and broken together.
        return Group(Text(text, style=style, overflow="ignore", no_wrap=True))

    def trouble(self, text: str) -> Text:
        """Return what went wrong."""
        return Text(f"{self._look.sign('bad')} {legible(text)}", style="red")

    def call(self, call: ToolCall) -> Text:
        """Return a finished call in one line: what was called, how it ended, how long it took."""
        result = call.result or ToolResult(outcome="")
        is_good = result.status == "ok"
        took = f" {duration(result.duration_ms)}" if result.duration_ms is not None else ""
        verdict = took if is_good else f" {one_line(_verdict(call, result), 80)}{took}"
        sign = self._look.sign("good" if is_good else "bad")
        room = max(20, self._look.width - INDENT - len(sign) - min(len(verdict), 40) - 4)
        line = Text(f"  {self._look.sign('tool')} ", style="dim", no_wrap=False)
        line.append(signature(call.name, args_of(call), most=room), style="not dim")
        line.append(f" {sign}", style="not dim green" if is_good else "not dim red")
        return line.append(verdict)

    def _error(self, turn: ConversationMessage) -> Sequence[RenderableType]:
        if turn.error is None:
            return []
        if turn.status == "cancelled":
            return [Text(f"  {self._look.sign('bad')} {legible(ending(turn.error))}", style="yellow")]
        return [Text(f"  {self._look.sign('bad')} {legible(turn.error)}", style="red")]

    def opened(self, turn: ConversationMessage, number: int) -> list[RenderableType]:
        """Return a turn with everything that happened in it."""
        parts: list[RenderableType] = [Text(""), self.aside(f"turn {number}, opened"), self.prompt(turn.user_message)]
        if turn.steps_omitted:
            parts.append(self.aside(f"… {counted(turn.steps_omitted, 'earlier step')}"))
        for step in turn.steps:
            parts += self._opened_step(step)
        return [*parts, *self._error(turn)]

    def _opened_step(self, step: ModelStep | UserStep) -> list[RenderableType]:
        if isinstance(step, UserStep):
            return [Text(f"  {self._look.sign('joins')} {legible(step.content)}", style="bold")]
        parts: list[RenderableType] = []
        if step.thinking:
            parts.append(Padding(Text(legible(step.thinking), style="dim italic"), (0, 0, 0, INDENT)))
        if step.text:
            parts.append(self.markdown(step.text))
        if step.interrupted:
            parts.append(self.aside(INTERRUPTED_MARK))
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
            lines.append(f"({counted(call.args_blob.chars, 'character')} of arguments)")
        return [_block("\n".join(lines), style=style)] if lines else []

    def _result(self, call: ToolCall) -> list[RenderableType]:
        result = call.result
        if result is None:
            return []
        whole = f" of {counted(result.blob.chars, 'character')}" if result.blob else ""
        return [
            self.aside(f"  → {legible(result.outcome)}{whole}"),
            *([_block(result.content)] if result.content else []),
        ]


class _Heading(Heading):
    """All headings begin at the left: a conversation is no printed page."""

    LEVEL_ALIGN: ClassVar[dict[str, JustifyMethod]] = dict.fromkeys(Heading.LEVEL_ALIGN, "left")


class _CodeBlock(CodeBlock):
    """Code without a box around it: what is copied is the code."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = Syntax(str(self.text).rstrip(), self.lexer_name, theme=self.theme, word_wrap=True)
        yield Padding(code, (0, 0, 0, INDENT))


class _Table(TableElement):
    """No cell is cut: long ones go on in the next line, and a table without room for its columns is lines of cells."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for table in super().__rich_console__(console, options):
            if not isinstance(table, Table):
                yield table
            elif len(table.columns) * LEAST_CELL > options.max_width:
                columns = [[column.header, *column.cells] for column in table.columns]
                yield from (Text(" | ").join(map(_text, row)) for row in zip(*columns, strict=True))
            else:
                for column in table.columns:
                    column.overflow = "fold"
                yield table


def _text(cell: RenderableType) -> Text:
    return cell if isinstance(cell, Text) else Text(str(cell))


# HTML, images and link definitions are nothing that a terminal shows: left as they were written, no text gets lost.
_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"]).disable(["image", "reference"])


class _ChatMarkdown(Markdown):
    """Markdown as it is meant in a conversation: a line break is a line break, and no text is left out."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _Heading,
        "fence": _CodeBlock,
        "code_block": _CodeBlock,
        "table_open": _Table,
    }

    def __init__(self, text: str) -> None:
        super().__init__(text, code_theme="ansi_dark", hyperlinks=False)
        self.parsed = _PARSER.parse(text)
        _make_legible(self.parsed)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        segments = list(super().__rich_console__(console, options))
        is_empty = not any(isinstance(segment, Segment) and segment.text.strip() for segment in segments)
        yield from [Text(self.markup)] if is_empty else segments


def _make_legible(tokens: Sequence[Token]) -> None:
    """Show what was written as a character reference (`&#27;`) and would steer the terminal; break lines as written."""
    for token in tokens:
        token.content = legible(token.content)
        if token.type == "softbreak":
            token.type = "hardbreak"
        _make_legible(token.children or ())


def set_markdown(text: str) -> Markdown:
    """Return Markdown as rich sets it, in the terminal's own colours; what would steer the terminal is only shown."""
    return _ChatMarkdown(legible(text))


def _verdict(call: ToolCall, result: ToolResult) -> str:
    if result.status == "denied" and call.approval and call.approval.decision == "reject":
        return f"rejected: {call.approval.reason}" if call.approval.reason else "rejected"
    return result.outcome


def args_of(call: ToolCall) -> object:
    """Return what a line that names a call shows of its arguments."""
    if call.args_blob:
        return f"… {counted(call.args_blob.chars, 'character')}"
    return call.args


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _block(text: str, *, style: str = "dim") -> RenderableType:
    shown = legible(text)
    left_out = len(shown) - MOST_RESULT_CHARS
    if left_out > 0:
        shown = f"{shown[:MOST_RESULT_CHARS]}\n… {counted(left_out, 'more character')}"
    return Padding(Group(Text(shown)), (0, 0, 0, 3 * INDENT), style=style)
