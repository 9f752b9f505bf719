"""Parses a typed line: a command, which starts with a slash, a decision, or a prompt."""

import re

from turnkeeper.clients.terminal import texts
from turnkeeper.models.errors import TurnkeeperError
from turnkeeper.models.transcript.conversation import ApprovalDecision
from turnkeeper.models.wire import REASON_CHARS


class InputError(TurnkeeperError):
    """An invalid line; the message says what is valid."""


def read_command(line: str) -> tuple[str | None, str]:
    r"""Return the name and the argument of a command, or None and a prompt. Raises `InputError`.

    Two slashes start a prompt with one.

    >>> read_command("/remove 2"), read_command("hello"), read_command("//etc is a folder")
    (('remove', '2'), (None, 'hello'), (None, '/etc is a folder'))
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
        return None, line
    if line.startswith("//"):
        return None, line[1:]
    name, _, rest = line[1:].partition(" ")
    if name not in texts.COMMANDS:
        raise InputError(texts.UNKNOWN_COMMAND.format(name=name))
    text = rest.strip()
    argument, help_text = texts.COMMANDS[name]
    is_required = argument != "" and not argument.startswith("[")
    if (text and not argument) or (is_required and not text):
        raise InputError(f"/{name} {argument}".rstrip() + f": {help_text}")
    return name, text


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


def read_decision(line: str) -> tuple[ApprovalDecision, str | None] | None:
    """Return the decision on a tool call and the reason for the model; None if the line is a prompt.

    >>> read_decision("y"), read_decision("Always")
    (('approve', None), ('allow_for_session', None))
    >>> read_decision("no, use notes.txt"), read_decision("n")
    (('reject', 'use notes.txt'), ('reject', None))
    >>> read_decision("a list of files, please"), read_decision("notes?"), read_decision("yes please do")
    (None, None, None)
    """
    answer = line.strip()
    if answer.casefold() in ("y", "yes"):
        return "approve", None
    if answer.casefold() in ("a", "always"):
        return "allow_for_session", None
    if rejection := re.fullmatch(r"no?(?:[\s,:]+(.*))?", answer, re.IGNORECASE | re.DOTALL):
        return "reject", (rejection[1] or "")[:REASON_CHARS] or None
    return None
