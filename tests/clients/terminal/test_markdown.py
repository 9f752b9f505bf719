"""Markdown in a terminal: nothing of an answer is hidden. API-6."""

import pytest
from markdown_it.rules_block import StateBlock

from turnkeeper.clients.terminal.interactive import renderer
from turnkeeper.clients.terminal.interactive.renderer import ChatMarkdown
from turnkeeper.clients.terminal.interactive.screen import TerminalStyle
from turnkeeper.models import formulas


def printed(text: str, *, columns: int = 60) -> str:
    style = TerminalStyle(lambda: columns, colour=False)
    lines = style.render(renderer.markdown(text)).split("\n")
    assert max(map(len, lines)) <= columns
    return "\n".join(line.strip() for line in lines).strip()


@pytest.mark.parametrize(
    "text",
    [
        "List<int> is <b>not</b> a Map<K,V>",
        "<div>\nall of the answer\n</div>",
        "<!-- hi -->",
        "[ref]: http://example.org/x",
        "see [x][ref]\n\n[ref]: http://example.org/x",
        "#",
    ],
)
def test_api_6_text_that_markdown_would_hide_is_printed_unchanged(text: str) -> None:
    assert printed(text) == text


def test_api_6_an_image_is_printed_as_its_description_and_url() -> None:
    assert printed("![a cat](http://e/cat.png)") == "a cat (http://e/cat.png)"
    assert printed("![](http://e/cat.png)") == "http://e/cat.png"
    assert printed("![a&#8238;b](http://e/cat.png)") == "a\\u202eb (http://e/cat.png)"


@pytest.mark.parametrize("formula", [r"\(a^2 * b^2\)", r"$$e^{-x^2}\,dx$$", "\\[\na \\\\\nb\n\\]", r"$\{a_1\}$"])
def test_api_6_a_tex_formula_is_printed_unchanged(formula: str) -> None:
    """U13: Markdown dropped its backslashes."""
    assert printed(formula) == formula


UNENDED = {"open": "\\[\n", "dollars": "$$ a\n", "quoted": "> \\[\n", "in a list": "  \\[\n"}


@pytest.mark.parametrize("line", UNENDED.values(), ids=list(UNENDED))
def test_api_6_unclosed_formulas_are_parsed_in_linear_time(monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    reads = 0
    read_line = formulas._line

    def counted(state: StateBlock, number: int) -> str:
        nonlocal reads
        reads += 1
        return read_line(state, number)

    monkeypatch.setattr(formulas, "_line", counted)
    ChatMarkdown(f"- x\n{line * 1_000}\n\nThe end \\] of it")
    assert reads < 10 * 1_000


@pytest.mark.parametrize("columns", [60, 24, 18])
@pytest.mark.parametrize("cells", [["x" * 70, "y"], [letter * 7 for letter in "abcdefghijklmnop"]])
def test_api_6_no_cell_of_a_table_is_cut(cells: list[str], columns: int) -> None:
    table = "\n".join(f"|{'|'.join(row)}|" for row in (["?"] * len(cells), ["---"] * len(cells), cells))
    output = printed(table, columns=columns)
    assert [output.count(cell[0]) for cell in cells] == [len(cell) for cell in cells]


def test_api_6_a_character_reference_cannot_steer_the_terminal() -> None:
    output = printed("a&#8238;b &#x200b;c `&#27;` &lt;b&gt; &amp;\n\n[l](http://e/&#8238;)")
    assert output == "a\\u202eb \\u200bc &#27; <b> &\n\nl (http://e/%E2%80%AE)"
