"""The difference between two texts of a file, for the person who approves it (AGT-8)."""

from collections.abc import Iterator
from difflib import SequenceMatcher
from itertools import accumulate
from typing import Literal

from pydantic_core import to_json

Opcode = tuple[Literal["replace", "delete", "insert", "equal"], int, int, int, int]

MAX_COMPARED_LINES = 1_000
"""Between the first and the last line that differ, on either side. Comparing takes time by the square of it; more lines
are shown as replaced."""

CONTEXT_LINES = 3

NO_LINE_END = "\\ No newline at the end of the file"


def unified_diff(before: str, after: str, *, max_bytes: int) -> tuple[str, int]:
    r"""Return the unified difference without its two header lines, cut between lines, and how many lines are cut.

    >>> print(unified_diff("a\nb\n", "a\nc\n", max_bytes=1_000)[0])
    @@ -1,2 +1,2 @@
     a
    -b
    +c
    """
    lines = list(_diff_lines(_lines_of(before), _lines_of(after)))
    sizes = accumulate(len(to_json(line)) for line in lines)
    whole = sum(size <= max_bytes for size in sizes)
    return "\n".join(lines[:whole]), len(lines) - whole


def _lines_of(text: str) -> list[str]:
    """Return the lines of a text; the last one says if it has no end."""
    *lines, rest = text.split("\n")
    return [*lines, f"{rest}\n{NO_LINE_END}"] if rest else lines


def _diff_lines(before: list[str], after: list[str]) -> Iterator[str]:
    for group in _KnownOpcodes(_opcodes(before, after)).get_grouped_opcodes(CONTEXT_LINES):
        (_, start, _, new_start, _), (_, _, end, _, new_end) = group[0], group[-1]
        yield f"@@ -{_range(start, end)} +{_range(new_start, new_end)} @@"
        for tag, i1, i2, j1, j2 in group:
            yield from _signed(" " if tag == "equal" else "-", before[i1:i2])
            yield from _signed("+", [] if tag == "equal" else after[j1:j2])


def _signed(sign: str, lines: list[str]) -> Iterator[str]:
    for line in lines:
        yield from f"{sign}{line}".split("\n")


def _range(start: int, end: int) -> str:
    """Return a range of lines, as in the header of a hunk; an empty one names the line before it."""
    return f"{start + 1 if end > start else start},{end - start}"


class _KnownOpcodes(SequenceMatcher[str]):
    """Groups opcodes that were found otherwise."""

    def __init__(self, opcodes: list[Opcode]) -> None:
        super().__init__()
        self._opcodes = opcodes

    def get_opcodes(self) -> list[Opcode]:
        return self._opcodes


def _opcodes(before: list[str], after: list[str]) -> list[Opcode]:
    """Return how `before` becomes `after`; only the lines between the first and the last that differ are compared."""
    head = _common_start(before, after)
    tail = _common_start(before[head:][::-1], after[head:][::-1])
    old, new = before[head : len(before) - tail], after[head : len(after) - tail]
    middle: list[Opcode] = [("replace", 0, len(old), 0, len(new))] if old or new else []
    if max(len(old), len(new)) <= MAX_COMPARED_LINES:
        middle = SequenceMatcher(None, old, new).get_opcodes()
    opcodes: list[Opcode] = [
        ("equal", 0, head, 0, head),
        *((tag, i1 + head, i2 + head, j1 + head, j2 + head) for tag, i1, i2, j1, j2 in middle),
        ("equal", len(before) - tail, len(before), len(after) - tail, len(after)),
    ]
    return [opcode for opcode in opcodes if opcode[0] != "equal" or opcode[1] < opcode[2]]


def _common_start(one: list[str], other: list[str]) -> int:
    """Return how many first lines are the same."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (left, right) in pairs if left != right), min(len(one), len(other)))
