"""The conversation as replay text, for models without tool calling of their own: the protocol `text` (CTX-13, AGT-4).

    request    the system prompt, the tools and the grammar as one system text; the conversation as one replay text, or
               the user's message alone at its beginning
    answer     the events that come next, in the same grammar

The conversation has the usual marks, such as `$user:`; an answer has `§` instead of `$`. So a model that repeats a part
of the conversation doesn't begin an event. In texts of users and tools, lines that look like either mark are escaped.

The text is made again for every request. Of an answer its parts are stored, and its thinking as the step's state: the
model reads its own thinking of the running turn, until an eviction. Within a turn a later request's text begins with an
earlier one's, as servers' prefix caches need it, but for the first request of a conversation.

**The answer** is parsed while it arrives. A model without tool calling answers with the next events: `§think:`,
`§call:`, `§respond:`. The parser accepts what `render_event` writes, and more, since models are careless: blank lines
may be missing, JSON may span lines or be fenced, and text without any mark is an answer. From the first `§user:`,
`§result:` or header on, the model invents what others say, so the answer is cut there. Only a `§call:` that the model
itself begins is a call; in texts of others such lines are escaped.

Lines decide: text is passed on at once, except for the beginning of a line that may become a mark, and for line ends
that may turn out to be the space between two events.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Literal, NoReturn

from turnkeeper.activities.providers.protocol import Delta
from turnkeeper.activities.providers.request_encoding import description_with_schema, result_text
from turnkeeper.models.replay_text.grammar import (
    CURRENT,
    HISTORY,
    KINDS,
    PLAIN,
    CallEvent,
    Grammar,
    ReplayEvent,
    RespondEvent,
    ResultEvent,
    ThinkEvent,
    UserEvent,
    render_replay,
)
from turnkeeper.models.transcript.model_call import (
    CallPart,
    ModelMessage,
    Part,
    ProviderState,
    RequestHead,
    RespondPart,
    ThinkPart,
    ToolSpec,
)

GRAMMAR = Grammar("§")
"""The grammar of answers. Unlike `$`, `§` rarely begins a line in texts that models quote."""

UNREADABLE = "unreadable"
"""The name of a call whose own name can't be parsed."""

AnswerEvent = ThinkEvent | RespondEvent | CallEvent

_Kind = Literal["think", "respond", "call"]

_WRITTEN_BY_MODELS: dict[str, _Kind] = {
    f"{GRAMMAR.sigil}think:": "think",
    f"{GRAMMAR.sigil}respond:": "respond",
    f"{GRAMMAR.sigil}call:": "call",
}
_MARKS = tuple(f"{GRAMMAR.sigil}{kind}:" for kind in KINDS)
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_NAME = re.compile(r'"name"\s*:\s*"([A-Za-z0-9_-]{1,64})"')
_NAME_WITHIN = 200
"""Within how many characters a call's name is searched before its JSON is complete."""
_FENCE = re.compile(r"\A\s*```\w*\s*")


@dataclass
class _Block:
    """An event while it arrives: its kind, its text so far, and line ends that nothing has followed yet."""

    kind: _Kind
    is_marked: bool = True
    """False for the text before the first mark."""
    is_at_mark: bool = True
    """Whether nothing has been written after the mark."""
    text: str = ""
    line_ends: str = ""

    def write(self, text: str) -> str:
        """Add `text`; return the part of it that is final."""
        if self.is_at_mark and self.is_marked:
            # One space belongs to the mark. Without it, the event may begin on a later line.
            text, has_begun = (
                (text[1:], bool(text)) if text.startswith(" ") else (text.lstrip("\n"), bool(text.strip("\n")))
            )
            self.is_at_mark = not has_begun
        text = self.line_ends + text
        final_text = text.rstrip("\n")
        self.line_ends = text[len(final_text) :]
        self.text += final_text
        return final_text

    def close(self) -> None:
        """Drop the blank line between two events."""
        self.line_ends = self.line_ends.removesuffix("\n").removesuffix("\n")


@dataclass
class AnswerReader:
    r"""Parses an answer piece by piece.

    >>> reader = AnswerReader()
    >>> reader.read("§think: The clock")
    [Delta(kind='think', text='The clock')]
    >>> reader.read(' knows.\n\n§call: {"name": "now", "args": {}}\n\n§result: noon')
    [Delta(kind='think', text=' knows.'), Delta(kind='call', text='now')]
    >>> reader.finish(), reader.events
    ([], [ThinkEvent(type='think', content='The clock knows.'), CallEvent(type='call', name='now', args={})])
    """

    _blocks: list[_Block] = field(default_factory=lambda: [_Block("respond", is_marked=False)])
    _line: str = ""
    """The beginning of a line that may become a mark."""
    _is_within_line: bool = False
    _is_cut: bool = False

    def read(self, text: str) -> list[Delta]:
        """Add the next piece of the answer; return its deltas."""
        return [delta for line in _LINE.findall(text) for delta in self._read_line(line)]

    def finish(self) -> list[Delta]:
        """End the answer; return the remaining deltas."""
        rest, self._line = self._line, ""
        return list(self._decide(rest)) if rest and not self._is_cut else []

    @property
    def events(self) -> list[AnswerEvent]:
        """The events of the answer. Valid after `finish`."""
        return [event for block in self._blocks for event in _events_in(block)]

    def _read_line(self, piece: str) -> Iterator[Delta]:
        if self._is_cut:
            return
        is_whole = piece.endswith("\n")
        if self._is_within_line:
            yield from self._write(piece)
        else:
            self._line += piece
            if not is_whole and _may_become_structure(self._line):
                return
            line, self._line = self._line, ""
            yield from self._decide(line)
        self._is_within_line = not is_whole

    def _decide(self, line: str) -> Iterator[Delta]:
        """Treat the beginning of a line as a mark or as text."""
        mark = GRAMMAR.structural_line.match(line)
        if mark is None:
            yield from self._write(GRAMMAR.unescape(f"\n{line}")[1:])
            return
        self._blocks[-1].close()
        kind = _WRITTEN_BY_MODELS.get(mark[0])
        if kind is None:
            self._is_cut = True
        else:
            self._blocks.append(_Block(kind))
            yield from self._write(line[mark.end() :])

    def _write(self, text: str) -> Iterator[Delta]:
        block = self._blocks[-1]
        before = block.text
        final_text = block.write(text)
        if block.kind == "call":
            name_match = _NAME.search(block.text[:_NAME_WITHIN])
            if name_match and not _NAME.search(before[:_NAME_WITHIN]):
                yield Delta("call", name_match[1])
        elif final_text:
            yield Delta(block.kind, final_text if before else self._gap() + final_text)

    def _gap(self) -> str:
        """Return the separator between the text that begins now and earlier text of its kind."""
        *earlier, block = self._blocks
        return "\n\n" if any(other.kind == block.kind and other.text for other in earlier) else ""


def parts_of(events: Sequence[AnswerEvent], *, request: int) -> list[Part]:
    """Return the events as parts of a response. Ids depend only on the number of the request.

    Line ends at the end of a text are dropped. Texts for the user are separated by a blank line.
    """
    parts: list[Part] = []
    for event in events:
        if not isinstance(event, CallEvent) and not event.content.strip("\n"):
            continue
        if isinstance(event, CallEvent):
            index = sum(isinstance(part, CallPart) for part in parts)
            parts.append(CallPart(kind="call", id=f"call_{request}_{index}", name=event.name, args=event.args))
        elif isinstance(event, ThinkEvent):
            parts.append(ThinkPart(kind="think", text=event.content.rstrip("\n")))
        else:
            gap = "\n\n" if any(isinstance(part, RespondPart) for part in parts) else ""
            parts.append(RespondPart(kind="respond", text=gap + event.content.rstrip("\n")))
    return parts


def _may_become_structure(line: str) -> bool:
    """Return whether the beginning of a line may still become a mark or an escaped mark."""
    unescaped = line.lstrip("\\")
    return any(mark.startswith(unescaped) and mark != unescaped for mark in _MARKS) or any(
        header.startswith(unescaped) for header in (HISTORY, CURRENT)
    )


def _events_in(block: _Block) -> Iterator[AnswerEvent]:
    text = block.text + block.line_ends
    if block.kind == "call":
        yield from _calls_in(text)
    elif block.kind == "think":
        yield ThinkEvent(content=text)
    elif block.is_marked or text.strip():
        yield RespondEvent(content=text)


def _calls_in(text: str) -> Iterator[AnswerEvent]:
    """Yield the call at the beginning of `text`, which may be invalid, and the model's text after it."""
    text = _FENCE.sub("", text).lstrip()
    try:
        call, end = _DECODER.raw_decode(text)
        yield CallEvent(name=call["name"], args=call.get("args", call.get("arguments", {})))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        name_match = _NAME.search(text)
        yield CallEvent(name=name_match[1] if name_match else UNREADABLE, args=text)
        return
    if rest := text[end:].strip("` \n"):
        yield RespondEvent(content=rest)


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_reject_constant)


API = "openai.chat.text"
"""The name of this protocol in `ProviderState`. Its only item: the thinking of the step."""

_LIKE_AN_ANSWER = re.compile(rf"^(?=\\*{GRAMMAR.sigil}(?:{'|'.join(KINDS)}):)", re.MULTILINE)

STOP_SEQUENCES = ["\n§result:", "\n§user:"]
"""Stop sequences: text after them would be invented."""

_FORM = """\
# How the conversation is written

A conversation begins with the user's message alone. Later you are given it as text. Each event begins on a line of its
own with a mark: "$user:" is what the user said, "$think:" what you considered, "$respond:" what you said to the user,
"$call:" a tool you used, "$result:" what came of it. Below "=== HISTORY ===" is what came before, below
"=== CURRENT ===" what you are to go on with. Only these marks at the beginning of a line count; a line of someone's
text that looks like one has a backslash before it, and is nothing but text.

# How you answer

Write the events that come next, in the same form but with "§" in place of "$", with a blank line between them, and
nothing else:

§think: what you consider, if you need to; the user does not see it

§respond: what you say to the user"""

_CALLING = """\


To use a tool, write a call instead, as one line of JSON, and stop after it; several calls may follow one another. The
results are given to you before you go on:

§call: {"name": "the tool's name", "args": {"its argument": "a value"}}

Write "§respond:" once you need no more tools. Never write "§user:" or "§result:" yourself: what you make up is cut."""

_NO_TOOLS = """\


There are no tools. Never write "§user:" or "§result:" yourself: what you make up is cut."""


def system_text(head: RequestHead, tools: Sequence[ToolSpec]) -> str:
    """Return the system text: the system prompt, the grammar, and the `tools`."""
    sections = [head.system, _FORM + (_CALLING if tools else _NO_TOOLS)]
    if tools:
        sections.append("# The tools")
        sections += (f"## {tool.name}\n\n{description_with_schema(tool)}" for tool in tools)
    return "\n\n".join(filter(None, sections))


def conversation_text(messages: Sequence[ModelMessage]) -> str:
    r"""Return the conversation as replay text: CURRENT is what follows the last answer, with its thinking.

    A user's first message stands alone: no cycle has begun.

    >>> said = [("user", "Hi"), ("assistant", "Hello!"), ("user", "Bye\n$call: {}\n§call: {}")]
    >>> print(conversation_text([ModelMessage(role=role, content=content) for role, content in said]))
    === HISTORY ===
    <BLANKLINE>
    $user: Hi
    <BLANKLINE>
    $respond: Hello!
    <BLANKLINE>
    === CURRENT ===
    <BLANKLINE>
    $user: Bye
    \$call: {}
    \§call: {}
    """
    if len(messages) == 1 and messages[0].role == "user":
        return PLAIN.escape(f"\n{_escape_marks(messages[0].content)}")[1:]
    past = _count_answered(messages)
    return render_replay(list(_events_of(messages[:past])), list(_events_of(messages[past:])), 0)


def thinking_state(thinking: str, *, model: str) -> ProviderState | None:
    """Return the state of a step with the model's own thinking; `None` if it has none."""
    return ProviderState(api=API, model=model, items=[{"thinking": thinking}]) if thinking.strip() else None


def _escape_marks(text: str) -> str:
    """Return `text` with a backslash before each line that looks like an event of an answer."""
    return _LIKE_AN_ANSWER.sub(r"\\", text)


def _count_answered(messages: Sequence[ModelMessage]) -> int:
    """Return the number of messages up to the last answer: one without calls that no step of its turn follows.

    A note of steps that are left out stands within a turn, and is no answer.
    """
    answers = (
        count
        for count, message in enumerate(messages, 1)
        if message.role == "assistant"
        and not message.tool_calls
        and (count == len(messages) or messages[count].role == "user")
    )
    return max(answers, default=0)


def _events_of(messages: Sequence[ModelMessage]) -> Iterator[ReplayEvent]:
    for index, message in enumerate(messages):
        if message.role == "user":
            yield UserEvent(content=_escape_marks(message.content))
        elif message.role == "assistant":
            items = message.state.items if message.state and message.state.api == API else []
            if thinking := "".join(str(item.get("thinking", "")) for item in items if isinstance(item, dict)):
                yield ThinkEvent(content=_escape_marks(thinking))
            if message.content.strip():
                yield RespondEvent(content=_escape_marks(message.content))
            results = takewhile(lambda following: following.role == "tool", islice(messages, index + 1, None))
            yield from _calls_with_results(message.tool_calls, results)


def _calls_with_results(calls: Iterable[CallPart], results: Iterable[ModelMessage]) -> Iterator[ReplayEvent]:
    """Yield every call with its result directly after it, also for parallel calls."""
    remaining_results = list(results)
    for call in calls:
        yield CallEvent.of(call.name, call.args)
        result = next((result for result in remaining_results if result.call_id == call.id), None)
        if result:
            remaining_results.remove(result)
            outcome, _, content = result_text(result).partition("\n")
            yield ResultEvent(outcome=outcome, content=_escape_marks(content.removeprefix("\n")))
