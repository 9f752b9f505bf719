r"""Formulas in TeX, which stay as they are written: Markdown would drop their backslashes, stars and underscores.

`\(…\)` and `$…$` stand in a line, `\[…\]` and `$$…$$` there or on lines of their own. They become code of the language
`math`, delimiters included, for the chat page and the terminal alike (API-5, API-6).
"""

from collections.abc import MutableMapping
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline

LANGUAGE = "math"

_BLOCKS = {"$$": "$$", r"\[": r"\]"}
_INLINE = {**_BLOCKS, r"\(": r"\)"}


def leave_formulas(parser: MarkdownIt) -> MarkdownIt:
    r"""Make `parser` leave formulas as they are written, and return it.

    >>> leave_formulas(MarkdownIt()).render(r"So \(a_1 * b_1\), for $5 and $6.")
    '<p>So <code class="language-math">\\(a_1 * b_1\\)</code>, for $5 and $6.</p>\n'
    """
    parser.inline.ruler.before("escape", "formula", _read_inline)
    parser.block.ruler.before(
        "fence", "formula", _read_block, {"alt": ["paragraph", "reference", "blockquote", "list"]}
    )
    return parser


def _read_inline(state: StateInline, silent: bool) -> bool:
    end = _end_of_formula(state.src, state.pos, state.posMax, env=state.env)
    if end is None:
        return False
    if not silent:
        token = state.push("code_inline", "code", 0)
        token.content = state.src[state.pos : end]
        token.attrSet("class", f"language-{LANGUAGE}")
    state.pos = end
    return True


def _end_of_formula(text: str, start: int, limit: int, *, env: MutableMapping[str, Any]) -> int | None:
    """Return where the formula that begins at `start` ends; `None`: there is none.

    `env` remembers what no further formula of the text can end with: a search for each would take the square of time.
    """
    missing: set[tuple[str, str]] = env.setdefault("missing_formula_ends", set())
    for opening, closing in _INLINE.items():
        if text.startswith(opening, start):
            if (text, closing) in missing:
                return None
            end = text.find(closing, start + len(opening), limit)
            if end < 0 and limit == len(text):
                missing.add((text, closing))
            return end + len(closing) if end > start + len(opening) else None
    return _end_between_dollars(text, start, limit)


def _end_between_dollars(text: str, start: int, limit: int) -> int | None:
    """Return where `$…$` ends. Amounts and variables of a shell are no formulas: `$5 and $6`, `$HOME/bin:$PATH`."""
    if text[start] != "$" or (start and (text[start - 1].isalnum() or text[start - 1] == "$")):
        return None
    end = text.find("$", start + 1, limit)
    while end > 0 and text[end - 1] == "\\":
        end = text.find("$", end + 1, limit)
    if end <= start + 1 or text[start + 1].isspace() or text[end - 1].isspace():
        return None
    after = text[end + 1 : end + 2]
    return None if after.isalnum() or after in {"$", "_", "{", "("} else end + 1


def _read_block(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    # A paragraph in a quote asks whether a formula could end it, with the end of what is around the quote.
    ends: dict[int, int] = state.env.setdefault("formula_block_ends", {})
    if not silent:
        ends[state.level] = end
    elif start < ends.get(state.level, 0):
        end = min(end, ends[state.level])
    last = None if state.is_code_block(start) else _last_line(state, start, end)
    if last is None:
        return False
    if not silent:
        state.line = last + 1
        token = state.push("fence", "code", 0)
        token.info = LANGUAGE
        token.content = state.getLines(start, state.line, state.sCount[start], keepLastLF=True)
        token.map = [start, state.line]
    return True


def _last_line(state: StateBlock, start: int, end: int) -> int | None:
    """Return the line that ends the formula that begins on line `start`; `None`: there is none.

    The parser's `env` remembers up to which line there is none: a search from each line would take the square of time.
    """
    first = _line(state, start)
    opening = first[:2]
    closing = _BLOCKS.get(opening)
    if closing is None:
        return None
    if closing in first[2:]:
        return start if first.index(closing, 2) == len(first) - 2 else None
    searched: dict[tuple[str, int, int, int], int] = state.env.setdefault("searched_formula_ends", {})
    block = (closing, state.level, state.blkIndent, end)
    if start < searched.get(block, 0):
        return None
    number = start + 1
    while number < end:
        line = _line(state, number)
        if line and state.sCount[number] < state.blkIndent:
            break
        if closing in line:
            if line.endswith(closing):
                return number
            break
        number += 1
    searched[block] = number
    return None


def _line(state: StateBlock, number: int) -> str:
    return state.src[state.bMarks[number] + state.tShift[number] : state.eMarks[number]].rstrip()
