"""Foreign text as people can read it: nothing in it is invisible, turned around or pushed out of sight (AGT-8).

What a person approves was written by a model, which may have been misled. So every character of the result is printable
or a line break, and different texts stay different: what can't be seen stands in a marker such as `<U+202E>`, and a `<`
that would begin a marker is one itself.

There are no exceptions. Zero-width joiners are needed to write Persian or Hindi, and to join emoji; but behind a letter
that doesn't join they change nothing that can be seen, so two paths could look the same. Their words stay readable with
a marker inside.

Titles and lists have texts of one line, which are searched in a form of their own (API-1).
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from itertools import groupby
from json import JSONDecoder

import wcwidth
from pydantic_core import to_json

from turnkeeper.models.texts import head_within
from turnkeeper.models.transcript.conversation import (
    ConversationMessage,
    ModelStep,
    ReasoningTrajectory,
    Step,
    ToolCall,
)

MAX_SPACES = 40
"""More spaces in a row are shown as their number; so are all at the end of a line."""

MAX_BLANK_LINES = 3
"""More blank lines in a row are shown as their number."""

MARGIN = "  "

_UNSEEN = (
    "\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    "\U00013441\U00013442\U00016fe4\U0001d159\U000e0000-\U000e0fff"
)
"""Characters that Unicode counts as letters, marks or symbols, and that leave a gap or nothing at all."""

_UNUSUAL = re.compile(rf"[<{_UNSEEN}]| \Z| {{{MAX_SPACES + 1}}}")

_MARKER = r"<(?:tab|1 space|[0-9]+ (?:spaces|tabs|x U\+[0-9A-F]+)|U\+[0-9A-F]+)>"

_REPLACED = re.compile(rf"(?={_MARKER})<| {{{MAX_SPACES + 1},}}| +\Z|(?P<char>[^ -~])(?P=char)*")

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.$/-]*")


class _Number(str):
    """A number as it stands in the JSON."""

    __slots__ = ()


_EXACT = JSONDecoder(parse_int=_Number, parse_float=_Number)


def legible_line(text: str) -> str:
    r"""Return one line of text with a marker for everything that can't be seen.

    >>> legible_line("report\u202egpj.exe"), legible_line("a\t\tb "), legible_line("1 < 2 <U+202E>")
    ('report<U+202E>gpj.exe', 'a<2 tabs>b<1 space>', '1 < 2 <U+003C>U+202E>')
    """
    if text.isprintable() and not _UNUSUAL.search(text):
        return text
    return _REPLACED.sub(_marker, text)


def _marker(match: re.Match[str]) -> str:
    run, char = match[0], match[0][0]
    if match["char"] and char.isprintable() and not _UNUSUAL.search(char):
        return run
    if char == " ":
        return f"<{len(run)} space{'s' if len(run) > 1 else ''}>"
    if char == "\t":
        return f"<{len(run)} tabs>" if len(run) > 1 else "<tab>"
    return f"<{len(run)} x U+{ord(char):04X}>" if len(run) > 1 else f"<U+{ord(char):04X}>"


def legible_lines(text: str) -> Iterator[str]:
    r"""Yield a text of several lines, each behind a bar, which no line can imitate; long blank runs as their number.

    >>> list(legible_lines("ls" + "\n" * 81 + "evil"))
    ['| ls', '(80 blank lines)', '| evil']
    """
    for line, run in groupby(text.split("\n")):
        count = sum(1 for _ in run)
        marked = legible_line(line)
        if count > MAX_BLANK_LINES and not line.strip(" \t"):
            yield f"({count} blank lines)" if not line else f"({count} lines of {marked})"
        else:
            yield from [f"| {marked}" if marked else "|"] * count


def legible_json(json: str) -> str:
    r"""Return the text of a call's arguments, a JSON object as compact JSON, as the digest covers it.

    Numbers stand digit by digit, keys in their order, and texts of several lines as lines. Different arguments have
    different texts. A text that is no JSON object is shown as lines.

    >>> print(legible_json('{"account":7960607143101464576,"rate":1.0,"to":["Ann","Bob"],"note":"Hello,\\nthanks"}'))
    account: 7960607143101464576
    rate: 1.0
    to:
      - "Ann"
      - "Bob"
    note: 2 lines
      | Hello,
      | thanks
    """
    try:
        arguments = _EXACT.decode(json)
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        return legible_text(json)
    return "\n".join(_members(arguments)) or "(none)"


def legible_text(text: str) -> str:
    """Return a text that should have been JSON, as lines."""
    return "\n".join(legible_lines(text))


def legible_excerpt(text: str, *, max_bytes: int) -> list[str]:
    """Return the lines of a text, cut after `max_bytes` of UTF-8, with a last line that says so."""
    head = head_within(text, max_bytes)
    cut = len(text) - len(head)
    return [*legible_lines(head), *([f"({cut:,} more characters)"] if cut else [])]


def indented(lines: Iterable[str]) -> Iterator[str]:
    return (MARGIN + line for line in lines)


# ---- the calls of a turn


def legible_args(call: ToolCall) -> str:
    """Return the text of a call's arguments, which the call has itself.

    >>> legible_args(ToolCall(id="1.1.0", name="pay", args={"account": 7960607143101464576}))
    'account: 7960607143101464576'
    """
    return legible_text(call.args) if isinstance(call.args, str) else legible_json(to_json(call.args).decode())


def with_legible_args(turn: ConversationMessage) -> ConversationMessage:
    """Return the turn with the text of all arguments that are not stored by reference, and no other text."""
    if not any(isinstance(step, ModelStep) and step.tool_calls for step in turn.steps):
        return turn
    trajectory = ReasoningTrajectory.model_construct(steps=[_with_legible_args(step) for step in turn.steps])
    return turn.model_copy(update={"reasoning_trajectory": trajectory})


def _with_legible_args(step: Step) -> Step:
    if not isinstance(step, ModelStep) or not step.tool_calls:
        return step
    calls = [
        call.model_copy(update={"legible_args": None if call.args_blob else legible_args(call)})
        for call in step.tool_calls
    ]
    return step.model_copy(update={"tool_calls": calls})


# ---- the layout of JSON


def _members(value: object) -> Iterator[str]:
    """Yield the lines of an object's or a list's members."""
    if isinstance(value, dict):
        for key, member in value.items():
            yield from _labelled(f"{_key(key)}:", member)
    elif isinstance(value, list):
        for member in value:
            yield from _labelled("-", member)


def _labelled(label: str, value: object) -> Iterator[str]:
    if isinstance(value, dict | list) and value:
        yield label
        yield from indented(_members(value))
    elif isinstance(value, str) and not isinstance(value, _Number) and "\n" in value:
        lines = value.count("\n") + 1
        yield f"{label} {lines} lines"
        yield from indented(legible_lines(value))
    else:
        yield f"{label} {_scalar(value)}"


def _scalar(value: object) -> str:
    match value:
        case _Number():
            return str(value)
        case str():
            # The line ends with the text, so that quotes in it need no mark.
            return f'"{legible_line(value)}"'
        case True:
            return "true"
        case False:
            return "false"
        case None:
            return "null"
    return "{}" if isinstance(value, dict) else "[]"


def _key(key: str) -> str:
    if _PLAIN_KEY.fullmatch(key):
        return key
    # Here more follows, so a quote or a line break inside would end the key.
    marked = legible_line(key).replace('"', "<U+0022>")
    return f'"{marked}"'


_JOINERS = "\u200c\u200d"
"""They shape the letters beside them, as in Persian, and join emoji."""

_JOINED = re.compile(rf"(?<=[^\x00-\x7f])[{_JOINERS}](?=[^\x00-\x7f])")


def one_line(text: str, max_chars: int, *, whole_words: bool = False) -> str:
    r"""Return the beginning of `text` in one line of at most `max_chars` characters, without invisible ones.

    It is cut between letters as readers see them: not within an emoji, a flag or an accented letter. With
    `whole_words`, it is cut between words where that is possible.

    >>> one_line("  list\nthe files ", 20), one_line("list the files", 10)
    ('list the files', 'list the …')
    >>> one_line("🇩🇪🇫🇷🇪🇸", 4)
    '🇩🇪…'
    """
    head = text.lstrip()[: 20 * max_chars]
    joiners = {match.start() for match in _JOINED.finditer(head)}
    visible = "".join(char if char.isprintable() or at in joiners else " " for at, char in enumerate(head))
    line = " ".join(visible.split())
    if len(line) <= max_chars:
        return line
    beginning = line[: wcwidth.grapheme_boundary_before(line, max_chars) or max_chars - 1]
    return f"{beginning.rsplit(' ', 1)[0] if whole_words else beginning}…"


def searchable(text: str) -> str:
    r"""Return `text` in the form in which it is compared: without case, in one normal form, without joiners.

    >>> searchable("Cre\u0300me") == searchable("CRÈME"), searchable("\u06cc\u200c\u062e") == searchable("\u06cc\u062e")
    (True, True)
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    return unicodedata.normalize("NFKC", folded).translate(dict.fromkeys(map(ord, _JOINERS)))
