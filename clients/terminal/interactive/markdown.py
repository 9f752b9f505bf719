"""Markdown as the terminal sets it."""

from collections.abc import Sequence
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement, TableElement
from rich.padding import Padding
from rich.segment import Segment
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from turnkeeper.clients.terminal.formatting import legible

INDENT = 2

MIN_CELL_COLUMNS = 5
"""What a cell of a table takes at least, to be readable."""


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
            elif len(table.columns) * MIN_CELL_COLUMNS > options.max_width:
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


class ChatMarkdown(Markdown):
    """Markdown in a conversation: a line break is a line break, no text is left out, none of it steers the terminal."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _Heading,
        "fence": _CodeBlock,
        "code_block": _CodeBlock,
        "table_open": _Table,
    }

    def __init__(self, text: str) -> None:
        """Set `text` in the terminal's own colours."""
        shown = legible(text)
        super().__init__(shown, code_theme="ansi_dark", hyperlinks=False)
        self.parsed = _PARSER.parse(shown)
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
