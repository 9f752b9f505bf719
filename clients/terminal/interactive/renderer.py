"""Renders parts of turns, Markdown, notes and errors for rich."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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

from turnkeeper.clients.terminal import texts
from turnkeeper.clients.terminal.formatting import amount, duration, legible, one_line, signature
from turnkeeper.clients.terminal.interactive.screen import MAX_COLUMNS, Sign
from turnkeeper.models.formulas import leave_formulas
from turnkeeper.models.texts import counted
from turnkeeper.models.transcript.attachments import with_names
from turnkeeper.models.transcript.conversation import ConversationMessage, ModelStep, ToolCall, ToolResult, UserStep

INDENT = 2

MIN_CELL_COLUMNS = 5
"""The minimum width of a table's cell."""


class _Heading(Heading):
    """Headings at the left, not centred."""

    LEVEL_ALIGN: ClassVar[dict[str, JustifyMethod]] = dict.fromkeys(Heading.LEVEL_ALIGN, "left")


class _CodeBlock(CodeBlock):
    """Code without a box, so that people can copy it."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip()
        yield Syntax(code, self.lexer_name, theme=self.theme, word_wrap=True, padding=(0, 0, 0, INDENT))


class _Table(TableElement):
    """A table without cut cells: long ones are wrapped, and a table that is too wide becomes lines of cells."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for table in super().__rich_console__(console, options):
            if not isinstance(table, Table):
                yield table
            elif len(table.columns) * MIN_CELL_COLUMNS > options.max_width:
                columns = [[column.header, *column.cells] for column in table.columns]
                yield from (Text(" | ").join(map(_text, row)) for row in zip(*columns, strict=True))
            else:
                for column in table.columns:
                    column.overflow = "fold"
                yield table


def _text(cell: RenderableType) -> Text:
    return cell if isinstance(cell, Text) else Text(str(cell))


# A terminal can't show HTML and link definitions: they stay as plain text.
_PARSER = leave_formulas(MarkdownIt("commonmark", {"html": False}))
_PARSER.enable(["strikethrough", "table"]).disable("reference")


class ChatMarkdown(Markdown):
    """Markdown with line breaks as written, without lost text, and without control characters."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _Heading,
        "fence": _CodeBlock,
        "code_block": _CodeBlock,
        "table_open": _Table,
    }

    def __init__(self, text: str) -> None:
        """Use the terminal's own colours."""
        safe_text = legible(text)
        super().__init__(safe_text, code_theme="ansi_dark", hyperlinks=False)
        self.parsed = _PARSER.parse(safe_text)
        _make_legible(self.parsed)
        _show_images_as_links(self.parsed)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        segments = list(super().__rich_console__(console, options))
        is_empty = not any(isinstance(segment, Segment) and segment.text.strip() for segment in segments)
        yield from [Text(self.markup)] if is_empty else segments


def _make_legible(tokens: Sequence[Token]) -> None:
    """Escape control characters from character references (`&#27;`), and keep line breaks."""
    for token in tokens:
        token.content = legible(token.content)
        if token.type == "softbreak":
            token.type = "hardbreak"
        _make_legible(token.children or ())


def _show_images_as_links(tokens: Sequence[Token]) -> None:
    """Replace an image by its words and its address, or only the address."""
    for token in tokens:
        token.children = [part for child in token.children or () for part in _as_link(child)]


def _as_link(token: Token) -> list[Token]:
    if token.type != "image":
        return [token]
    address = str(token.attrs.get("src", ""))
    if not token.children:
        return [Token("text", "", 0, content=legible(address))]
    return [Token("link_open", "a", 1, attrs={"href": address}), *token.children, Token("link_close", "a", -1)]


MIN_CALL_CHARS = 20
"""In narrow terminals, a call is broken rather than shortened further."""

MAX_RESULT_CHARS = 4_000
"""How much of a call's arguments and of its result `/details` shows."""


def note(text: str) -> RenderableType:
    return Padding(Text(legible(text), style="dim"), (0, 0, 0, INDENT))


def error(text: str) -> Text:
    return Text(f"{Sign.BAD} {legible(text)}", style="red")


def command(text: str, *, style: str = "") -> RenderableType:
    """Return a line with a command, which we never break, so that it can be copied."""
    return _unbroken(Text(text, style=style, overflow="ignore"))


def prompt(turn: ConversationMessage) -> Text:
    lines = legible(with_names(turn.user_message, turn.attachments)).strip("\n").split("\n")
    return Text.assemble((f"{Sign.PROMPT} ", "bold cyan"), ("\n  ".join(lines), "bold"), overflow="fold")


def steering(step: UserStep) -> Text:
    return Text(f"  {Sign.STEER} {legible(with_names(step.content, step.attachments))}", style="bold")


def thinking(text: str) -> RenderableType:
    """Return the start of the model's thinking, on one line."""
    line = f"  {Sign.THOUGHT} {one_line(text, MAX_COLUMNS)}"
    return _unbroken(Text(line, style="dim italic", overflow="ellipsis"))


def markdown(text: str) -> RenderableType:
    return Padding(ChatMarkdown(text), (0, 0, 0, INDENT))


@dataclass(frozen=True)
class FinishedCall:
    """A finished call on one line: its signature, outcome and duration."""

    call: ToolCall

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        result = self.call.result or ToolResult(outcome="")
        is_good = result.status == "ok"
        time = f" {duration(result.duration_ms)}" if result.duration_ms is not None else ""
        outcome = time if is_good else f" {one_line(_outcome(self.call, result), 80)}{time}"
        room = options.max_width - INDENT - min(len(outcome), 40) - 5
        line = call_line(self.call, max_chars=room)
        line.append(f" {Sign.GOOD if is_good else Sign.BAD}", style="not dim green" if is_good else "not dim red")
        yield line.append(outcome)


def call_line(call: ToolCall, *, max_chars: int) -> Text:
    line = Text(f"  {Sign.TOOL} ", style="dim")
    return line.append(call_signature(call, max_chars=max_chars), style="not dim")


def turn_end(turn: ConversationMessage, number: int) -> list[RenderableType]:
    """Return the turn's error, if it has one, and its duration and usage."""
    milliseconds = turn.processing_time_ms
    time = duration(milliseconds) if milliseconds is not None else ""
    line = facts([texts.TURN.format(number=number), time, amount(turn.usage, of_tasks=turn.tasks_usage)])
    return [*_error_of(turn), note(line)]


# ---- a turn's details


def turn_details(turn: ConversationMessage, number: int) -> list[RenderableType]:
    """Return a turn with all of its steps."""
    heading = note(texts.TURN_DETAILS.format(number=number))
    parts: list[RenderableType] = ["", heading, prompt(turn)]
    if turn.steps_omitted:
        parts.append(note(texts.left_out(turn.steps_omitted, "earlier step")))
    for step in turn.steps:
        if isinstance(step, UserStep):
            parts.append(steering(step))
        else:
            parts += _step_details(step)
    return [*parts, *_error_of(turn)]


def _step_details(step: ModelStep) -> list[RenderableType]:
    parts: list[RenderableType] = [note(step.left_out)] if step.left_out else []
    if step.thinking:
        parts.append(Padding(Text(legible(step.thinking), style="dim italic"), (0, 0, 0, INDENT)))
    if step.text:
        parts.append(markdown(step.text))
    if step.interrupted:
        parts.append(note(texts.INTERRUPTED))
    for call in step.tool_calls:
        parts += [FinishedCall(call), *_arguments(call), *_result(call)]
    return parts


def _arguments(call: ToolCall) -> list[RenderableType]:
    """Return a call's arguments as people read them, up to `MAX_RESULT_CHARS`."""
    if call.args_blob:
        return [_block(texts.ARGUMENTS_SIZE.format(size=counted(call.args_blob.chars, "character")))]
    return [_block(call.legible_args)] if call.legible_args and call.args else []


def _result(call: ToolCall) -> list[RenderableType]:
    result = call.result
    if result is None:
        return []
    size = texts.RESULT_SIZE.format(size=counted(result.blob.chars, "character")) if result.blob else ""
    outcome = note(f"  → {result.outcome}{size}")
    return [outcome, _block(result.content)] if result.content else [outcome]


def facts(parts: Iterable[str]) -> str:
    """Return the parts that are not empty on one line.

    >>> facts(["turn 1", "", "2 s"])
    'turn 1 · 2 s'
    """
    return f" {Sign.DOT} ".join(filter(None, parts))


def call_signature(call: ToolCall, *, max_chars: int) -> str:
    """Return a call as one line, at least `MIN_CALL_CHARS` long; large arguments are replaced by their size."""
    args: Mapping[str, object] | str = call.args
    if call.args_blob:
        args = texts.left_out(call.args_blob.chars, "character")
    return signature(call.name, args, max_chars=max(MIN_CALL_CHARS, max_chars))


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


def _unbroken(text: Text) -> RenderableType:
    text.no_wrap = True
    # In a group, since rich joins adjacent texts and breaks them together.
    return Group(text)


def _block(text: str) -> RenderableType:
    block = legible(text)
    left_out = len(block) - MAX_RESULT_CHARS
    if left_out > 0:
        block = f"{block[:MAX_RESULT_CHARS]}\n{texts.left_out(left_out, 'more character')}"
    return Padding(Group(Text(block)), (0, 0, 0, 3 * INDENT), style="dim")
