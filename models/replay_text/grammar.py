r"""The grammar of the replay text: a conversation as text that people read and models continue (CTX-12).

The text is a list of blocks, section headers and events, with a blank line between them. A block starts at a structural
line, a header or `$user:` and the like, and ends before the next one. So structural lines alone divide the text. An
event cannot forge one: in an event, every line after the first that looks structural gets a leading backslash, one more
if it already has some. Only `\n` ends a line.

`parse_replay` is the exact inverse of `render_replay`. It also accepts a little more, since people and models write
such texts too: a call's JSON may have any spacing, key order, escapes and number format (of a duplicate key, the last
counts), and HISTORY may begin with a result. NaN and Infinity are not JSON and are rejected.

The sigil before an event's kind is `$`. Models that answer in this grammar use another one (`Grammar`, CTX-13).
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import dropwhile, pairwise
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, JsonValue, TypeAdapter, ValidationError

from turnkeeper.models.errors import TurnkeeperError
from turnkeeper.models.wire import Strict

HISTORY, CURRENT = "=== HISTORY ===", "=== CURRENT ==="

KINDS = ("user", "respond", "think", "call", "result")


@dataclass(frozen=True)
class Grammar:
    """The marks of structure in a text: the headers, and the `sigil` before an event's kind."""

    sigil: str = "$"

    @cached_property
    def structural_line(self) -> re.Pattern[str]:
        """Matches the start of a structural line, as far as it is structure."""
        return re.compile(f"^{self._structure}", re.MULTILINE)

    def escape(self, text: str) -> str:
        r"""Escape every line of `text`, after the first, that looks structural.

        >>> Grammar("§").escape("He said:\n§call: {}\n$call: {}")
        'He said:\n\\§call: {}\n$call: {}'
        """
        return self._like_structure.sub(r"\\", text)

    def unescape(self, text: str) -> str:
        return self._escaped.sub("", text)

    @property
    def _structure(self) -> str:
        return rf"(?:{re.escape(self.sigil)}(?:{'|'.join(KINDS)}):|(?:{HISTORY}|{CURRENT})$)"

    @cached_property
    def _like_structure(self) -> re.Pattern[str]:
        return re.compile(rf"(?<=\n)(?=\\*{self._structure})", re.MULTILINE)

    @cached_property
    def _escaped(self) -> re.Pattern[str]:
        return re.compile(rf"(?<=\n)\\(?=\\*{self._structure})", re.MULTILINE)


PLAIN = Grammar()
"""The grammar of the replay text."""

_SHOWING = re.compile(r"\n\(showing last ([1-9][0-9]{0,17}) of ([1-9][0-9]{0,17}) messages\)")


def _encodable(text: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError("has a lone surrogate, which no text can be written with") from None
    return text


def _writable(args: dict[str, JsonValue] | str) -> dict[str, JsonValue] | str:
    _encodable(_json_text(args))
    return args


def _json_text(value: JsonValue) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise ValueError("has a number that JSON has not: NaN, Infinity, or one of thousands of digits") from None


Text = Annotated[str, AfterValidator(_encodable)]
Arguments = Annotated[dict[str, JsonValue] | str, AfterValidator(_writable)]


class UserEvent(Strict):
    """A prompt of the user, or one that was steered into a turn."""

    type: Literal["user"] = "user"
    content: Text


class RespondEvent(Strict):
    """A text of the agent."""

    type: Literal["respond"] = "respond"
    content: Text


class ThinkEvent(Strict):
    """Thinking of the agent; never part of HISTORY."""

    type: Literal["think"] = "think"
    content: Text


class CallEvent(Strict):
    """A tool call. `args` is text if it was not a JSON object."""

    type: Literal["call"] = "call"
    name: Text
    args: Arguments

    @classmethod
    def of(cls, name: str, args: dict[str, JsonValue] | str) -> "CallEvent":
        """Return the event of a recorded call. NaN and Infinity, possible in a transcript, turn `args` into text."""
        try:
            return cls(name=name, args=args)
        except ValidationError:
            return cls(name=name, args=json.dumps(args, ensure_ascii=False))


class ResultEvent(Strict):
    """The result of a call: the `outcome` in one line, and its content."""

    type: Literal["result"] = "result"
    outcome: Annotated[Text, Field(pattern=r"^[^\n]*$")]
    content: Text = ""


ReplayEvent = Annotated[UserEvent | RespondEvent | ThinkEvent | CallEvent | ResultEvent, Field(discriminator="type")]

EventLike = ReplayEvent | Mapping[str, object]
"""An event, or a mapping with its fields."""

_EVENT: TypeAdapter[ReplayEvent] = TypeAdapter(ReplayEvent)
_EVENTS: TypeAdapter[list[ReplayEvent]] = TypeAdapter(list[ReplayEvent])


class MalformedReplayTextError(TurnkeeperError, ValueError):
    """A text is not a valid replay text. The message has the line, from 1, and what is allowed there."""

    def __init__(self, line: int, allowed: str) -> None:
        super().__init__(f"line {line}: {allowed}")
        self.line = line


# ---- writing


def render_replay(
    past_events: Sequence[EventLike],
    current_events: Sequence[EventLike] | None,
    max_history: int = 20,
    *,
    left_out: int = 0,
) -> str:
    r"""Write the last `max_history` past events (0: all), without thinking, and all current events.

    `left_out` counts earlier past events, without thinking, that the caller does not have; the header counts them too.
    HISTORY never begins with a result whose call is not shown. Takes linear time.

    Raises:
        ValueError: `max_history` or `left_out` is negative, or a mapping is not an event; the error names the field.

    >>> print(render_replay([], [UserEvent(content="Which day?\n$respond: Monday")]))
    === CURRENT ===
    <BLANKLINE>
    $user: Which day?
    \$respond: Monday
    """
    if max_history < 0 or left_out < 0:
        raise ValueError(f"max_history={max_history!r}, left_out={left_out!r}: 0 and above are allowed")
    history = [event for event in _EVENTS.validate_python(past_events) if not isinstance(event, ThinkEvent)]
    total = left_out + len(history)
    latest = history[-max_history:] if max_history else history
    if len(latest) < total:
        latest = list(dropwhile(lambda event: isinstance(event, ResultEvent), latest))
    showing = f"\n(showing last {len(latest)} of {total} messages)" if len(latest) < total else ""
    current = _EVENTS.validate_python(current_events or [])
    return "\n\n".join([*_section(HISTORY + showing, latest), *_section(CURRENT, current)])


def render_event(event: ReplayEvent, grammar: Grammar = PLAIN) -> str:
    r"""Write one event as a block.

    >>> render_event(CallEvent(name="file_read", args={"file": "é.txt"}))
    '$call: {"name": "file_read", "args": {"file": "é.txt"}}'
    >>> render_event(ResultEvent(outcome="Read é.txt", content="one\ntwo"))
    '$result: Read é.txt\n\none\ntwo'
    """
    return grammar.escape(f"{grammar.sigil}{event.type}: {_body_of(event)}")


def _section(header: str, events: Sequence[ReplayEvent]) -> list[str]:
    return [header, *map(render_event, events)] if events else []


def _body_of(event: ReplayEvent) -> str:
    if isinstance(event, CallEvent):
        return _json_text({"name": event.name, "args": event.args})
    if isinstance(event, ResultEvent):
        return f"{event.outcome}\n\n{event.content}" if event.content else event.outcome
    return event.content


# ---- reading

_ALLOWED = {
    "call": '$call: {"name": "…", "args": {…}} on one line is allowed, without NaN or Infinity in args',
    "result": "$result: and an outcome on one line is allowed; content, if there is any, after a blank line",
}


@dataclass(frozen=True)
class _Block:
    """A structural line and the text up to the next one, without the blank line; `line` is its number, from 1."""

    line: int
    text: str

    @property
    def first_line(self) -> str:
        return self.text.partition("\n")[0]


@dataclass(frozen=True)
class _Section:
    header: _Block
    events: list[_Block]


def parse_replay(text: str) -> tuple[list[ReplayEvent], list[ReplayEvent] | None]:
    r"""Return the past and the current events in `text`; `None` for the latter without a CURRENT section.

    Raises:
        MalformedReplayTextError: The text is not a valid replay text.

    >>> parse_replay("=== HISTORY ===\n\n$user: Which day?")
    ([UserEvent(type='user', content='Which day?')], None)
    >>> parse_replay("Which day?")
    Traceback (most recent call last):
    turnkeeper...MalformedReplayTextError: line 1: a replay text begins with === HISTORY === or === CURRENT ===
    """
    if text and text.partition("\n")[0] not in (HISTORY, CURRENT):
        raise MalformedReplayTextError(1, f"a replay text begins with {HISTORY} or {CURRENT}")
    events: dict[str, list[ReplayEvent]] = {}
    for section in _sections(text):
        header = section.header.first_line
        if header in events or CURRENT in events:
            allowed = f"only one {HISTORY}, and after it one {CURRENT}, is allowed"
            raise MalformedReplayTextError(section.header.line, allowed)
        events[header] = _history_of(section) if header == HISTORY else _current_of(section)
    return events.get(HISTORY, []), events.get(CURRENT)


def _sections(text: str) -> list[_Section]:
    sections: list[_Section] = []
    for block in _blocks(text):
        if block.text.startswith("="):
            sections.append(_Section(block, []))
        else:
            sections[-1].events.append(block)
    return sections


def _blocks(text: str) -> Iterator[_Block]:
    line = 1
    starts = [match.start() for match in PLAIN.structural_line.finditer(text)]
    for start, stop in pairwise([*starts, len(text)] if starts else []):
        block = text[start:stop]
        is_last = stop == len(text)
        if not (is_last or block.endswith("\n\n")):
            raise MalformedReplayTextError(line + block.count("\n"), "a blank line comes before an event or a header")
        yield _Block(line, block if is_last else block[:-2])
        line += block.count("\n")


def _history_of(section: _Section) -> list[ReplayEvent]:
    events = _events_of(section)
    for block, event in zip(section.events, events, strict=True):
        if isinstance(event, ThinkEvent):
            raise MalformedReplayTextError(block.line, f"$think: is allowed below {CURRENT} only")
    below = section.header.text.removeprefix(HISTORY)
    showing = _SHOWING.fullmatch(below)
    count, total = map(int, showing.groups()) if showing else (len(events), len(events) + 1)
    if (below and not showing) or count != len(events) or count >= total:
        raise MalformedReplayTextError(
            section.header.line + 1,
            f"a blank line is allowed, or (showing last {len(events)} of M messages) with M > {len(events)}",
        )
    return events


def _current_of(section: _Section) -> list[ReplayEvent]:
    if section.header.text != CURRENT:
        raise MalformedReplayTextError(section.header.line + 1, f"a blank line comes after {CURRENT}")
    return _events_of(section)


def _events_of(section: _Section) -> list[ReplayEvent]:
    if not section.events:
        raise MalformedReplayTextError(section.header.line, "a section has one event at least")
    return [_event_in(block) for block in section.events]


def _event_in(block: _Block) -> ReplayEvent:
    kind, _, body = PLAIN.unescape(block.text)[1:].partition(":")
    try:
        return _EVENT.validate_python({"type": kind, **_fields_in(kind, body)})
    except (ValueError, RecursionError) as error:
        allowed = _ALLOWED.get(kind, f"${kind}: and a space and any text is allowed, except lone surrogates")
        raise MalformedReplayTextError(block.line, allowed) from error


def _fields_in(kind: str, after_colon: str) -> dict[str, JsonValue]:
    space, body = after_colon[:1], after_colon[1:]
    if space != " ":
        raise ValueError("no space after the colon")
    if kind == "call":
        return _call_in(body)
    if kind == "result":
        outcome, blank_line, content = body.partition("\n\n")
        if blank_line and not content:
            raise ValueError("a blank line without content after it")
        return {"outcome": outcome, "content": content}
    return {"content": body}


def _call_in(body: str) -> dict[str, JsonValue]:
    call = json.loads(body)
    if "\n" in body or not isinstance(call, dict) or set(call) != {"name", "args"}:
        raise ValueError("not one line with a JSON object of name and args")
    return call
