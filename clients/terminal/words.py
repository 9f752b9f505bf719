"""The words of the terminal: how calls, times, amounts and states are said in a line."""

import json
import unicodedata

from turnkeeper.models.transcript.conversation import SessionStatus
from turnkeeper.models.transcript.trajectory import Usage, dollars

MOST_VALUE_CHARS = 60
"""Of an argument, in a line that names a call."""

INTERRUPTED_MARK = "(interrupted here)"
"""Stands below an answer that has no end (SES-9)."""

_STATES: dict[SessionStatus, str] = {
    "idle": "ready",
    "processing": "working",
    "awaiting_approval": "needs your approval",
    "waiting_retry": "waiting for the model",
    "ending": "ending",
    "ended": "ended",
    "cancelled": "cancelled",
    "terminated": "terminated",
    "stuck": "stuck",
}


def legible(text: str) -> str:
    r"""Return text of others as a terminal may be given it: what would steer the terminal is shown, not done.

    It is anybody's text: of a model, a tool, a file, a web page. Line breaks and tabs are kept.

    >>> legible("\x1b[2J gone?\r\nno\x07"), legible("a\u202eb")
    ('␛[2J gone?\nno␇', 'a\\u202eb')
    """
    return "".join(map(_legible, text.replace("\r\n", "\n").replace("\r", "\n")))


def _legible(char: str) -> str:
    if char in "\n\t" or char.isprintable():
        return char
    if char < " ":
        return chr(0x2400 + ord(char))
    # Format characters turn text around and hide it; those that join emoji and letters are harmless.
    if unicodedata.category(char) in ("Zs", "Zl", "Zp") or char in "\u200c\u200d\ufe0f":
        return char if char in "\u200c\u200d\ufe0f" else " "
    return ascii(char)[1:-1]


def well_formed(text: str) -> str:
    r"""Return text that was typed or piped in as it can be sent: bytes that are no UTF-8 are shown as such.

    >>> well_formed("fine \U0001f44d"), well_formed("ol\udce9")
    ('fine 👍', 'ol���')
    """
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def one_line(text: str, most: int) -> str:
    r"""Return the beginning of a text in one line of `most` characters, at least one.

    >>> one_line("first\n  second", 40), one_line("a long sentence", 8)
    ('first second', 'a long …')
    """
    line = " ".join(legible(text).split())
    return line if len(line) <= max(1, most) else f"{line[: max(0, most - 1)]}…"


def signature(name: str, args: object, *, most: int = 100) -> str:
    """Write a call as in code, its arguments cut, in one line.

    >>> signature("file_read", {"path": "notes.txt", "lines": 3})
    'file_read(path="notes.txt", lines=3)'
    >>> signature("say", "no JSON at all"), signature("now", {})
    ('say(no JSON at all)', 'now()')
    """
    shown = args if isinstance(args, str) else ", ".join(_argument(key, value) for key, value in _items(args))
    return one_line(f"{name}({shown})", most)


def fits_in_a_line(name: str, args: object, *, most: int) -> bool:
    """Tell whether `signature` leaves nothing out.

    >>> fits_in_a_line("file_read", {"path": "notes.txt"}, most=80), fits_in_a_line("say", {"text": "x" * 70}, most=99)
    (True, False)
    """
    return not signature(name, args, most=most).endswith(("…", "…)")) and all(
        len(json.dumps(value, ensure_ascii=False)) <= MOST_VALUE_CHARS for _, value in _items(args)
    )


def _items(args: object) -> list[tuple[str, object]]:
    return list(args.items()) if isinstance(args, dict) else []


def _argument(name: str, value: object) -> str:
    written = json.dumps(value, ensure_ascii=False)
    if len(written) > MOST_VALUE_CHARS:
        end = '…"' if isinstance(value, str) else "…"
        written = f"{written[: MOST_VALUE_CHARS - len(end)]}{end}"
    return f"{name}={written}"


def duration(milliseconds: float) -> str:
    """Write how long something took.

    >>> duration(12), duration(1_234), duration(59_960), duration(125_000), duration(7_260_000)
    ('12 ms', '1.2 s', '1 min', '2 min 5 s', '2 h 1 min')
    """
    if milliseconds < 1_000:
        return f"{milliseconds:.0f} ms"
    if milliseconds < 59_950:
        return f"{milliseconds / 1_000:.1f} s"
    minutes, seconds = divmod(round(milliseconds / 1_000), 60)
    hours, minutes = divmod(minutes, 60)
    return _pair(hours, "h", minutes, "min") if hours else _pair(minutes, "min", seconds, "s")


def _pair(large: int, unit: str, small: int, smaller: str) -> str:
    return f"{large} {unit} {small} {smaller}" if small else f"{large} {unit}"


def elapsed(seconds: float) -> str:
    """Write how long something has been going on: whole seconds, so that it is calm to look at.

    >>> elapsed(0.4), elapsed(3.9), elapsed(75)
    ('', '3 s', '1 min 15 s')
    """
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s" if whole >= 1 else ""
    return duration(whole * 1_000)


def amount(usage: Usage | None) -> str:
    """Write what was used: tokens, and what they cost where that is known.

    >>> amount(Usage(input_tokens=1_500, output_tokens=32)), amount(Usage(input_tokens=12_345, cost=0.05)), amount(None)
    ('1,532 tokens', '12.3k tokens · $0.05', '')
    """
    if usage is None or not usage.tokens:
        return ""
    count = usage.tokens
    tokens = f"{count:,} tokens" if count < 10_000 else f"{count / 1_000:.1f}k tokens"
    return f"{tokens} · {dollars(usage.cost)}" if usage.cost else tokens


def state(status: SessionStatus | None) -> str:
    """Say what a session does.

    >>> state("processing"), state(None)
    ('working', 'connecting')
    """
    return "connecting" if status is None else _STATES[status]


_STOPS = {
    "Stopped by the user.": "You stopped this answer.",
    "Interrupted by a new prompt.": "Stopped, because you sent a new prompt.",
    "The session was cancelled.": "Stopped, because the session was cancelled.",
}


def ending(error: str) -> str:
    """Say how a turn ended that was stopped.

    >>> ending("Cancelled: Stopped by the user."), ending("Cancelled: wrong account")
    ('You stopped this answer.', 'Stopped: wrong account')
    """
    reason = error.removeprefix("Cancelled: ")
    return _STOPS.get(reason, f"Stopped: {reason}")


def counted(count: int, noun: str) -> str:
    """Write a number of things.

    >>> counted(1, "prompt"), counted(1_200, "character")
    ('1 prompt', '1,200 characters')
    """
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
