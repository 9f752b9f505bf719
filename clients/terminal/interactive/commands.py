"""What can be typed instead of a prompt: a line that begins with a slash."""

from dataclasses import dataclass
from typing import Literal, get_args

CommandName = Literal[
    "queue", "remove", "steer", "interrupt", "retry", "stop", "details", "model", "title", "open", "help", "quit"
]

HELP: dict[CommandName, tuple[str, str]] = {
    "queue": ("", "show the queued prompts"),
    "remove": ("N", "remove queued prompt N"),
    "steer": ("TEXT", "add to the running turn, before its next step"),
    "interrupt": ("TEXT", "stop the running turn and ask this next"),
    "retry": ("", "send the prompt of the last failed turn again"),
    "stop": ("", "stop the running turn, also one that was started elsewhere"),
    "details": ("[N]", "open turn N, or the newest: thinking, arguments and results"),
    "model": ("[NAME]", "show the model, or use another from the next turn on"),
    "title": ("[TEXT]", "show or change the session's title"),
    "open": ("", "print the session's links for a browser"),
    "help": ("", "show this"),
    "quit": ("", "leave; the session goes on (or Ctrl-D)"),
}

_NEEDS_TEXT: frozenset[CommandName] = frozenset({"remove", "steer", "interrupt"})
_TAKES_NONE: frozenset[CommandName] = frozenset({"queue", "retry", "stop", "open", "help", "quit"})


@dataclass(frozen=True)
class Command:
    """A command, and what was typed behind it."""

    name: CommandName
    text: str = ""


class NotUnderstood(Exception):
    """A line that begins with a slash and is no command; the message says what is allowed."""


def read_command(line: str) -> Command | str:
    r"""Return what was typed: a command, or a prompt. Two slashes begin a prompt that begins with one.

    >>> read_command("/remove 2"), read_command("hello"), read_command("//etc is a folder")
    (Command(name='remove', text='2'), 'hello', '/etc is a folder')
    >>> read_command("/dance")
    Traceback (most recent call last):
    ...
    turnkeeper...NotUnderstood: There is no command /dance. /help lists them; // begins a prompt with a slash.
    >>> read_command("/steer")
    Traceback (most recent call last):
    ...
    turnkeeper...NotUnderstood: /steer TEXT: add to the running turn, before its next step
    """
    if not line.startswith("/"):
        return line
    if line.startswith("//"):
        return line[1:]
    word, _, rest = line[1:].partition(" ")
    name = next((name for name in get_args(CommandName) if name == word), None)
    if name is None:
        raise NotUnderstood(f"There is no command /{word}. /help lists them; // begins a prompt with a slash.")
    text = rest.strip()
    if (not text and name in _NEEDS_TEXT) or (text and name in _TAKES_NONE):
        raise NotUnderstood(usage(name))
    return Command(name, text)


def usage(name: CommandName) -> str:
    """Say how a command is typed, and what it does.

    >>> usage("details")
    '/details [N]: open turn N, or the newest: thinking, arguments and results'
    """
    takes, does = HELP[name]
    return f"/{name}{f' {takes}' if takes else ''}: {does}"


def number(text: str, *, most: int) -> int:
    """Return the number that was typed, from 1. Raises `NotUnderstood` saying what is allowed.

    >>> number("2", most=3)
    2
    >>> number("4", most=3)
    Traceback (most recent call last):
    ...
    turnkeeper...NotUnderstood: '4' is not a number from 1 to 3.
    """
    if not most:
        raise NotUnderstood("There is none.")
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= most:
        raise NotUnderstood(f"{text!r} is not a number from 1 to {most}.")
    return int(text)
