"""Markdown for the terminal."""

from collections.abc import Sequence
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement, TableElement
from rich.segment import Segment
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from turnkeeper.clients.terminal.formatting import legible
from turnkeeper.models.formulas import leave_formulas

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
