"""What a typed line means: a command, which begins with a slash, an answer to a question, or a prompt.

An answer goes to the call that was shown when it was begun to be typed: a question that comes up in between is not
answered by what was meant for another.
"""

from dataclasses import dataclass

from turnkeeper.clients.terminal import texts
from turnkeeper.models.transcript.trajectory import ApprovalDecision
from turnkeeper.models.wire import REASON_CHARS


@dataclass(frozen=True)
class Command:
    """A command, and what was typed behind it."""

    name: str
    text: str = ""


class InputError(Exception):
    """A line that can't be done; the message says what is allowed."""


def read_command(line: str) -> Command | str:
    r"""Return what was typed: a command, or a prompt. Two slashes begin a prompt that begins with one.

    >>> read_command("/remove 2"), read_command("hello"), read_command("//etc is a folder")
    (Command(name='remove', text='2'), 'hello', '/etc is a folder')
    >>> read_command("/dance")
    Traceback (most recent call last):
    ...
    turnkeeper...InputError: There is no command /dance. /help lists them; // begins a prompt with a slash.
    >>> read_command("/steer")
    Traceback (most recent call last):
    ...
    turnkeeper...InputError: /steer TEXT: add to the running turn, before its next step
    """
    if not line.startswith("/"):
        return line
    if line.startswith("//"):
        return line[1:]
    name, _, rest = line[1:].partition(" ")
    if name not in texts.COMMANDS:
        raise InputError(texts.UNKNOWN_COMMAND.format(name=name))
    text = rest.strip()
    takes, does = texts.COMMANDS[name]
    is_needed = takes != "" and not takes.startswith("[")
    if (text and not takes) or (is_needed and not text):
        raise InputError(f"/{name} {takes}".rstrip() + f": {does}")
    return Command(name, text)


def read_number(text: str, *, last: int) -> int:
    """Return the number that was typed, from 1. Raises `InputError` saying what is allowed.

    >>> read_number("2", last=3)
    2
    >>> read_number("4", last=3)
    Traceback (most recent call last):
    ...
    turnkeeper...InputError: '4' is not a number from 1 to 3.
    """
    if not last:
        raise InputError(texts.NONE_TO_CHOOSE)
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= last:
        raise InputError(texts.NOT_IN_RANGE.format(text=text, last=last))
    return int(text)


@dataclass(frozen=True)
class Decision:
    """An answer to a question. `reason` is told to the model."""

    decision: ApprovalDecision
    reason: str | None = None


def read_decision(line: str) -> Decision | None:
    """Return what a line decides; `None` where it is no answer, but a prompt.

    >>> read_decision("y"), read_decision("Always").decision
    (Decision(decision='approve', reason=None), 'allow_for_session')
    >>> read_decision("no, use notes.txt"), read_decision("n")
    (Decision(decision='reject', reason='use notes.txt'), Decision(decision='reject', reason=None))
    >>> read_decision("a list of files, please"), read_decision("notes?"), read_decision("yes please do")
    (None, None, None)
    """
    answer = line.strip()
    if answer.casefold() in ("y", "yes"):
        return Decision("approve")
    if answer.casefold() in ("a", "always"):
        return Decision("allow_for_session")
    first = answer.replace(",", " ").replace(":", " ").split(maxsplit=1)[:1]
    if first and first[0].casefold() in ("n", "no"):
        reason = answer[len(first[0]) :].lstrip(" ,:")[:REASON_CHARS]
        return Decision("reject", reason or None)
    return None
