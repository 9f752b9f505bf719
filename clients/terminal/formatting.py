"""Formats values for a terminal: escaped text, calls, times and amounts."""

import json
import unicodedata
from collections.abc import Mapping

from turnkeeper.models.texts import counted
from turnkeeper.models.transcript.conversation import TurnMetrics, Usage, dollars

MAX_VALUE_CHARS = 60
"""The longest argument in the line of a call."""

JOINERS = "\u200c\u200d\ufe0f"
"""Harmless format characters, which join emoji and letters. The others can reverse or hide text."""


def legible(text: str) -> str:
    r"""Return text with visible control characters, so that it can't control the terminal.

    The text may come from a model, a tool, a file or a web page. Line breaks and tabs stay.

    >>> legible("\x1b[2J gone?\r\nno\x07"), legible("a\u202eb")
    ('␛[2J gone?\nno␇', 'a\\u202eb')
    """
    return "".join(map(_legible, text.replace("\r\n", "\n").replace("\r", "\n")))


def _legible(char: str) -> str:
    if char in "\n\t" or char.isprintable() or char in JOINERS:
        return char
    if char < " ":
        return chr(0x2400 + ord(char))
    return " " if unicodedata.category(char) in ("Zs", "Zl", "Zp") else ascii(char)[1:-1]


def well_formed(text: str) -> str:
    r"""Return typed or piped text as valid Unicode: bytes that are not UTF-8 become replacement characters.

    >>> well_formed("fine \U0001f44d"), well_formed("ol\udce9")
    ('fine 👍', 'ol���')
    """
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def one_line(text: str, max_chars: int) -> str:
    r"""Return the start of a text on one line of at most `max_chars` characters, and at least one.

    >>> one_line("first\n  second", 40), one_line("a long sentence", 8)
    ('first second', 'a long …')
    """
    line = " ".join(legible(text).split())
    return line if len(line) <= max(1, max_chars) else f"{line[: max(0, max_chars - 1)]}…"


def signature(
    name: str, args: Mapping[str, object] | str, *, max_chars: int = 100, max_value_chars: int = MAX_VALUE_CHARS
) -> str:
    """Return a call as one line of code, with shortened arguments.

    >>> signature("file_read", {"path": "notes.txt", "lines": 3})
    'file_read(path="notes.txt", lines=3)'
    >>> signature("say", "no JSON at all"), signature("say", {"text": "Hello"}, max_value_chars=5)
    ('say(no JSON at all)', 'say(text="He…")')
    """
    if not isinstance(args, str):
        args = ", ".join(f"{key}={_json(value, max_value_chars)}" for key, value in args.items())
    return one_line(f"{name}({args})", max_chars)


def _json(value: object, max_chars: int) -> str:
    text = json.dumps(value, ensure_ascii=False)
    if len(text) <= max_chars:
        return text
    end = '…"' if isinstance(value, str) else "…"
    return f"{text[: max_chars - len(end)]}{end}"


def duration(milliseconds: float) -> str:
    """Return a duration as text.

    >>> duration(12), duration(1_234), duration(59_960), duration(125_000), duration(7_260_000)
    ('12 ms', '1.2 s', '1 min', '2 min 5 s', '2 h 1 min')
    """
    if milliseconds < 1_000:
        return f"{milliseconds:.0f} ms"
    if milliseconds < 59_950:
        return f"{milliseconds / 1_000:.1f} s"
    minutes, seconds = divmod(round(milliseconds / 1_000), 60)
    hours, minutes = divmod(minutes, 60)
    units = [(hours, "h"), (minutes, "min")] if hours else [(minutes, "min"), (seconds, "s")]
    return " ".join(f"{count} {unit}" for count, unit in units if count)


def elapsed(seconds: float) -> str:
    """Return a running duration in whole seconds, so that it does not flicker; empty below 1 s.

    >>> elapsed(0.4), elapsed(3.9), elapsed(75)
    ('', '3 s', '1 min 15 s')
    """
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s" if whole >= 1 else ""
    return duration(whole * 1_000)


def amount(usage: Usage | None, *, of_tasks: Usage | None = None) -> str:
    """Return the used tokens, with their cost if it is known, and the part that tasks used; empty without usage.

    >>> amount(Usage(input_tokens=1_500, output_tokens=32)), amount(Usage(input_tokens=12_345, cost=0.05)), amount(None)
    ('1,532 tokens', '12.3k tokens · $0.05', '')
    >>> amount(Usage(input_tokens=1_500), of_tasks=Usage(input_tokens=500))
    '1,500 tokens (500 by tasks)'
    """
    if usage is None or not usage.tokens:
        return ""
    by_tasks = f" ({of_tasks.tokens:,} by tasks)" if of_tasks and of_tasks.tokens else ""
    tokens = _tokens(usage.tokens) + by_tasks
    return f"{tokens} · {dollars(usage.cost)}" if usage.cost else tokens


def _tokens(count: int) -> str:
    return f"{count:,} tokens" if count < 10_000 else f"{count / 1_000:.1f}k tokens"


def context_size(metrics: TurnMetrics | None, *, max_messages: int) -> str:
    """Return how much the model sees, of at most `max_messages` (0: no cap); empty before the first request.

    >>> context_size(TurnMetrics(message_count=62, estimated_tokens=31_200), max_messages=100)
    '62 of 100 messages, ~31.2k tokens'
    >>> context_size(TurnMetrics(message_count=85, estimated_tokens=900), max_messages=100)
    '! 85 of 100 messages, ~900 tokens'
    """
    if metrics is None or not metrics.message_count:
        return ""
    count = metrics.message_count
    near = "! " if max_messages and count * 5 > max_messages * 4 else ""
    messages = f"{count} of {max_messages} messages" if max_messages else counted(count, "message")
    return f"{near}{messages}, ~{_tokens(metrics.estimated_tokens)}"


def attachment_problem(error: OSError | ValueError) -> str:
    """Return why a file can't be attached.

    >>> attachment_problem(FileNotFoundError(2, "No such file or directory", "a.png"))
    'a.png: No such file or directory'
    """
    return f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
