"""Parses a typed line: a command, which starts with a slash, a decision, or a prompt."""

import re
from dataclasses import dataclass

from turnkeeper.clients.terminal import texts
from turnkeeper.models.errors import TurnkeeperError
from turnkeeper.models.transcript.trajectory import ApprovalDecision
from turnkeeper.models.wire import REASON_CHARS


@dataclass(frozen=True)
class Command:
    """A command and its argument."""

    name: str
    text: str = ""


class InputError(TurnkeeperError):
    """An invalid line; the message says what is valid."""


def read_command(line: str) -> Command | str:
    r"""Return the command or prompt of a line. Two slashes start a prompt with one. Raises `InputError`.

    >>> read_command("/remove 2"), read_command("hello"), read_command("//etc is a folder")
    (Command(name='remove', text='2'), 'hello', '/etc is a folder')
    >>> read_command("/dance")
    Traceback (most recent call last):
    ...
    turnkeeper...InputError: Unknown command /dance. /help lists the commands; // starts a prompt with a slash.
    >>> read_command("/steer")
    Traceback (most recent call last):
    ...
    turnkeeper...InputError: /steer TEXT: add a prompt to the running turn, before its next step
    """
    if not line.startswith("/"):
        return line
    if line.startswith("//"):
        return line[1:]
    name, _, rest = line[1:].partition(" ")
    if name not in texts.COMMANDS:
        raise InputError(texts.UNKNOWN_COMMAND.format(name=name))
    text = rest.strip()
    argument, help_text = texts.COMMANDS[name]
    is_required = argument != "" and not argument.startswith("[")
    if (text and not argument) or (is_required and not text):
        raise InputError(f"/{name} {argument}".rstrip() + f": {help_text}")
    return Command(name, text)


def read_number(text: str, *, last: int) -> int:
    """Return the typed number, from 1 to `last`. Raises `InputError`.

    >>> read_number("2", last=3)
    2
    >>> read_number("4", last=3)
    Traceback (most recent call last):
    ...
    turnkeeper...InputError: '4' is not a number from 1 to 3.
    """
    if not last:
        raise InputError(texts.NOTHING_TO_CHOOSE)
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= last:
        raise InputError(texts.NOT_IN_RANGE.format(text=text, last=last))
    return int(text)


@dataclass(frozen=True)
class Decision:
    """A decision on a tool call. `reason` is sent to the model."""

    decision: ApprovalDecision
    reason: str | None = None


def read_decision(line: str) -> Decision | None:
    """Return the decision of a line; None if it is a prompt.

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
    if rejection := re.fullmatch(r"no?(?:[\s,:]+(.*))?", answer, re.IGNORECASE | re.DOTALL):
        return Decision("reject", (rejection[1] or "")[:REASON_CHARS] or None)
    return None
