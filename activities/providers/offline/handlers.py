"""Handlers of the offline model's intents, with tools or from the conversation alone.

A handler runs again at every step of a turn and must make the same calls each time: it may depend only on the
conversation and on the outcomes of its calls.

**Intents** are what a user can ask: a table of phrases. A request is split into clauses: at the end of a sentence, and
before a verb that follows "and" or "then". A clause is an intent if a phrase matches all of it; others are ignored, so
"don't write x to a.txt" writes nothing.
"""

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Literal

from pydantic import JsonValue

from turnkeeper.models.context.summary import SUMMARY_MARK
from turnkeeper.models.errors import TurnkeeperError
from turnkeeper.models.transcript.attachments import placeholder_text
from turnkeeper.models.transcript.conversation import ToolStatus
from turnkeeper.models.transcript.model_call import CallPart, ModelMessage, ModelRequest
from turnkeeper.models.transcript.notes import without_history_notes

MAX_CHARS = 4_000
"""Longer texts are not parsed."""

Kind = Literal[
    "time",
    "list",
    "longest file",
    "search",
    "read",
    "write",
    "remember",
    "memory",
    "recall",
    "delegate",
    "call",
    "last file",
    "first request",
]

_QUOTED = r"""(?:"[^"\n]+"|“[^”\n]+”)"""
_PATH = rf"(?:{_QUOTED}|(?=\S*[./])\S++)"
"""A path without quotes has a dot or a slash: "read on" reads nothing."""
_FOLDER = rf"(?P<folder>{_QUOTED}|\S++)"

_PHRASES: Mapping[Kind, str] = {
    "time": r"what time is it|(?:tell me|what is|what's) the (?:time|date)",
    "list": rf"list (?:the )?files(?: here| in {_FOLDER})?",
    "longest file": rf"(?:find|tell me|what is) the (?:longest|largest) file(?: in this workspace| in {_FOLDER})?",
    "search": rf"search for (?P<query>{_QUOTED}|.+?)(?: in {_FOLDER})?",
    "read": rf"read (?:the file )?(?P<path>{_PATH})(?P<heading> and tell me its first heading)?",
    "write": rf"write (?P<content>{_QUOTED}|.+?) to (?:the file )?(?P<path>{_PATH})",
    "remember": r"remember (?:that )?(?P<fact>.+)",
    "delegate": r"delegate(?: to (?P<agent>[\w-]++):|:)? (?P<task>.+)",
    "call": r"call (?P<tool>\w++)(?: with (?P<args>.+))?",
    "last file": r"what have you read|(?:what|which file) did you read",
    "first request": r"what did I ask first",
    "memory": r"what do you remember",
    "recall": r"what(?:'s| is| are) (?P<topic>.+)",
}
"""The first phrase that matches a clause counts."""

_VERB = r"(?:please )?(?:read|list|search|write|remember|delegate|call|find the|tell me the|what)\b"
_CLAUSE_END = rf"""(?<=[\w"”)])[.!?]+(?=\s|\Z)|\n|[,;]? (?:and then|and|then) (?={_VERB})"""


def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern.replace(" ", r"\s++"), re.IGNORECASE)


_CLAUSE = _compile(rf"((?:{_QUOTED}|(?!{_CLAUSE_END})[\s\S])+)(?:{_CLAUSE_END})?")
_PATTERNS = {kind: _compile(rf"(?:and |then |please )*(?:{phrase})") for kind, phrase in _PHRASES.items()}


@dataclass(frozen=True)
class Intent:
    """Something that the user wants, with the `words` that specify it."""

    kind: Kind
    words: Mapping[str, str] = field(default_factory=dict)


def find_intents(text: str) -> list[Intent]:
    """Return the intents in `text`, in its order.

    >>> find_intents("Write hello to a.txt and list files. Sing!")
    [Intent(kind='write', words={'content': 'hello', 'path': 'a.txt'}), Intent(kind='list', words={})]
    """
    intents: list[Intent] = []
    for clause in _CLAUSE.findall(text) if len(text) <= MAX_CHARS else []:
        matches = ((kind, match) for kind, pattern in _PATTERNS.items() if (match := pattern.fullmatch(clause.strip())))
        for kind, match in islice(matches, 1):
            words = {name: word for name, word in match.groupdict().items() if word}
            unquoted = {name: word[1:-1] if re.fullmatch(_QUOTED, word) else word for name, word in words.items()}
            intents.append(Intent(kind, unquoted))
    return intents


MAX_LINES = 30
"""Maximum quoted lines of a result."""

_FILLER = frozenset({"a", "an", "are", "in", "is", "it", "my", "of", "on", "our", "the", "this", "was", "your"})
"""Words that are ignored when a statement is compared with a topic."""


def shorten(text: str, max_chars: int) -> str:
    r"""Return `text` on one line, in at most `max_chars` characters; an ellipsis stands for what is left out.

    >>> shorten("one  two\nthree", 9)
    'one two…'
    """
    text = " ".join(text.split())
    return text if len(text) <= max_chars else f"{text[: max_chars - 1].rstrip()}…"


def end_sentence(text: str) -> str:
    """Return `text` with punctuation at its end."""
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."


def quote(lines: Sequence[str]) -> str:
    """Quote the first `MAX_LINES` lines, with an ellipsis for the others."""
    more = ["…"] if len(lines) > MAX_LINES else []
    return "\n".join(f"> {line.rstrip()[:300]}" for line in [*lines[:MAX_LINES], *more])


def sentences(text: str) -> list[str]:
    """Return the sentences of `text`; a line ends one, too."""
    return re.split(r"(?<=[.!?])\s+|\n", text)


def lines_about(topic: str, lines: Iterable[str]) -> list[str]:
    """Return the lines that contain all words of `topic` and more.

    >>> lines_about("the code", ["- The code is 4711", "the code?", "tea is ready"])
    ['The code is 4711']
    """
    words = _words(topic)
    stripped = (line.strip(" \t\r-*>#") for line in lines)
    return [line for line in stripped if words and words < _words(line)]


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.casefold())) - _FILLER


MEMORY = "memory.md"
"""The workspace file with the facts that the model remembers."""

_CONTEXT_RULE = re.compile(r"^={80}$", re.MULTILINE)
"""The line above a task's context (TSK-3), which has facts to look up and no instructions."""


@dataclass(frozen=True)
class Outcome:
    """The result of a tool call: its first `line`, and the `content` below it."""

    purpose: str
    line: str
    content: str = ""
    status: ToolStatus = "ok"

    @property
    def failure(self) -> str | None:
        """A sentence about what did not work; None after a success."""
        if self.status == "ok":
            return None
        opening = "I do not know whether I managed to" if self.status == "outcome_unknown" else "I could not"
        return f"{opening} {self.purpose}: {end_sentence(self.line)}"

    @property
    def lines(self) -> list[str]:
        """The lines of the content; none after a failure."""
        return self.content.removesuffix("\n").split("\n") if self.content and self.status == "ok" else []


def outcome_of(purpose: str, result: ModelMessage) -> Outcome:
    """Read the tool message `result` of a call made for `purpose`."""
    line, _, content = result.content.partition("\n\n")
    return Outcome(purpose, shorten(line, 300) or "the tool did not say why", content, result.status or "ok")


class Conversation:
    """The conversation; lists are oldest first. The turn begins at the newest user message, even a steering prompt."""

    def __init__(self, request: ModelRequest) -> None:
        messages = request.messages
        self.tools = frozenset(tool.name for tool in request.head.tools)
        user_texts = [
            _CONTEXT_RULE.split(message.content, maxsplit=1) for message in messages if message.role == "user"
        ]
        self.requests = [text for text, *_ in user_texts]
        self.request = self.requests[-1] if user_texts else ""
        self.contexts = [context for _, *contexts in user_texts for context in contexts]
        """The contexts below the requests."""
        self.summaries = [
            message.content.removeprefix(SUMMARY_MARK)
            for message in messages
            if message.role == "assistant" and message.content.startswith(SUMMARY_MARK)
        ]
        """Summaries of evicted messages."""
        newest = max((index for index, message in enumerate(messages) if message.role == "user"), default=-1)
        self.results = list(_calls_with_results(messages[newest + 1 :]))
        """The calls of this turn that have a result."""
        self.attachments = [placeholder_text(one) for one in messages[newest].attachments] if user_texts else []
        """The names of what is attached to the newest user message."""
        self._messages = messages
        self._schemas = {tool.name: tool.input_schema for tool in request.head.tools}

    def arguments(self, tool: str, text: str) -> dict[str, JsonValue]:
        """Return what a user means as a tool's arguments: JSON, `city=Ulm, days=3`, or the value of the first one."""
        if text.startswith("{"):
            with contextlib.suppress(ValueError):
                args: dict[str, JsonValue] = json.loads(text)
                return args
        if pairs := re.findall(r"(\w+)=([^,]+)", text):
            return {name: _value(value.strip()) for name, value in pairs}
        properties = self._schemas.get(tool, {}).get("properties")
        name = next(iter(properties), None) if isinstance(properties, dict) else None
        return {name: _value(text)} if text and name else {}

    def last_file_read(self) -> tuple[str, Outcome] | None:
        """Return the path and the result of the last file that was read, other than the model's own memory."""
        files = [
            (str(call.args["path"]), outcome_of("read", result))
            for call, result in _calls_with_results(self._messages)
            if call.name == "file_read" and isinstance(call.args, dict) and "path" in call.args
        ]
        return next((file for file in reversed(files) if file[0] != MEMORY and not file[1].failure), None)


def _value(text: str) -> JsonValue:
    """Return what a text is as JSON, or the text itself."""
    try:
        value: JsonValue = json.loads(text)
    except ValueError:
        return text
    return value


def _calls_with_results(messages: Iterable[ModelMessage]) -> Iterator[tuple[CallPart, ModelMessage]]:
    """Pair calls with the results directly after them: a later step may reuse the ids."""
    calls: dict[str | None, CallPart] = {}
    for message in messages:
        if message.role == "assistant":
            calls = {call.id: call for call in message.tool_calls}
        elif message.role == "tool" and message.call_id in calls:
            yield calls[message.call_id], message


_SIZED_FILE = re.compile(r"^(.+) \(([\d,]+) bytes?\)$", re.MULTILINE)
"""A file as `file_list` shows it."""


@dataclass(frozen=True)
class ToolUse:
    """A call to make; `purpose` completes the sentence "I could not ..."."""

    tool: str
    purpose: str
    args: Mapping[str, JsonValue]


def run_intents(intents: Iterable[Intent], conversation: Conversation) -> tuple[list[str], list[ToolUse]]:
    """Return the answers to the intents that have their results, and the next calls.

    An intent that changes something waits for all before it, and blocks all after it.
    """
    tools = _Tools(conversation)
    texts: list[str] = []
    for intent in intents:
        changes = intent.kind in ("write", "remember", "delegate", "call")
        if changes and tools.pending:
            break
        try:
            texts.append(_answer(intent, conversation, tools))
        except _ResultPendingError:
            if changes:
                break
    return texts, tools.pending


def facts_in(text: str) -> list[str]:
    """Return the statements in `text`, including those to be remembered.

    >>> facts_in("My name is Ada. Remember that tea is at five. What is the time?")
    ['My name is Ada.', 'tea is at five']
    """
    facts: list[str] = []
    for sentence in map(str.strip, sentences(text)):
        intents = find_intents(sentence)
        facts += [intent.words["fact"] for intent in intents if intent.kind == "remember"]
        if sentence and not intents and not sentence.endswith("?"):
            facts.append(sentence)
    return facts


class _ResultPendingError(TurnkeeperError):
    pass


class _Tools:
    """The results of this turn. Each is used once, so that a file that is read twice is really read again."""

    def __init__(self, conversation: Conversation) -> None:
        self.pending: list[ToolUse] = []
        self._offered = conversation.tools
        self._results = list(conversation.results)

    def run(self, tool: str, purpose: str, **args: JsonValue) -> Outcome:
        """Return the outcome of a call. Raises `_ResultPendingError` if there is none yet."""
        if tool not in self._offered:
            return Outcome(purpose, f"the tool {tool} is not available here", status="error")
        for index, (call, result) in enumerate(self._results):
            if call.name == tool and call.args == args:
                del self._results[index]
                return outcome_of(purpose, result)
        self.pending.append(ToolUse(tool, purpose, args))
        raise _ResultPendingError

    def read(self, path: str) -> Outcome:
        return self.run("file_read", f"read {path}", path=path)

    def write(self, path: str, content: str) -> Outcome:
        return self.run("file_write", f"write {path}", path=path, content=content)


def _answer(intent: Intent, conversation: Conversation, tools: _Tools) -> str:
    words = intent.words
    folder = words.get("folder", ".")
    match intent.kind:
        case "time":
            return _quote_result(tools.run("now", "tell the time"))
        case "list":
            return _quote_result(tools.run("file_list", "list the files", path=folder))
        case "longest file":
            files = tools.run("file_list", "list the files", path=folder, pattern="*")
            sizes = re.findall(_SIZED_FILE, "\n".join(files.lines))
            size, longest = max(((int(size.replace(",", "")), path) for path, size in sizes), default=(0, ""))
            nothing = files.failure or "I see no files in this workspace."
            return f"The longest file is {longest}: it has {size:,} bytes." if longest else nothing
        case "search":
            return _quote_result(tools.run("file_search", "search the files", query=words["query"], path=folder))
        case "read" | "memory":
            path = words.get("path", MEMORY)
            outcome = tools.read(path)
            return outcome.failure or _about_file(path, outcome, heading="heading" in words)
        case "write":
            return _quote_result(tools.write(words["path"], words["content"]))
        case "delegate":
            task = {"description": words["task"], "conversation_history": "inherit"}
            task |= {"agent": words["agent"]} if "agent" in words else {}
            outcome = tools.run("run_task", "delegate this", **task)
            answer = replace(outcome, content=without_history_notes(outcome.content))
            return outcome.failure or f"Another agent did it and answered:\n\n{quote(answer.lines)}"
        case "call":
            args = conversation.arguments(words["tool"], words.get("args", ""))
            return _quote_result(tools.run(words["tool"], f"call {words['tool']}", **args))
        case "remember":
            return _remember(words["fact"], tools)
        case "recall":
            return _recall(words["topic"], conversation, tools)
        case "last file":
            file = conversation.last_file_read()
            return f"The last file I read was {file[0]}. {_about_file(*file)}" if file else "I see no file that I read."
        case "first request":
            return f"The first thing you asked that I can see was: “{shorten(conversation.requests[0], 200)}”."


def _quote_result(outcome: Outcome) -> str:
    return outcome.failure or f"{end_sentence(outcome.line)}\n\n{quote(outcome.lines)}".strip()


def _about_file(path: str, outcome: Outcome, *, heading: bool = False) -> str:
    lines = outcome.lines
    if heading:
        headings = [line.strip("# \t\r") for line in lines if re.match(r"#{1,6}\s", line)]
        return f"The first heading of {path} is “{headings[0]}”." if headings else f"I see no heading in {path}."
    return f"{path} says:\n\n{quote(lines)}" if lines else f"{path} is empty."


def _remember(fact: str, tools: _Tools) -> str:
    """Add the fact to the memory file, unless the file has other content or was truncated."""
    line = f"- {fact}"
    memory = tools.read(MEMORY)
    if memory.failure and "does not exist" not in memory.line:
        problem = memory.failure
    elif not all(line.startswith("- ") for line in memory.lines):  # also false for the mark of a truncated file
        problem = f"I see more than facts in {MEMORY}, so I do not replace it."
    elif line in memory.lines:
        problem = None
    else:
        problem = tools.write(MEMORY, "\n".join([*memory.lines, line, ""])).failure
    if problem:
        return f"{problem} I know it only as long as I can see this conversation."
    return f"I will remember: {end_sentence(fact)} It is noted in {MEMORY}."


def _recall(topic: str, conversation: Conversation, tools: _Tools) -> str:
    """Quote the newest statement about `topic` from the conversation, or else from the memory file."""
    sources = {
        "You told me": [fact for request in conversation.requests for fact in facts_in(request)],
        "The context I was given says": [line for context in conversation.contexts for line in sentences(context)],
        "The summary of our conversation says": [
            line
            for summary in conversation.summaries
            for line in summary.splitlines()
            if not line.startswith(("- asked:", "- answered:"))
        ],
    }
    for source, lines in sources.items():
        about = lines_about(topic, lines)
        if about:
            return f"{source}: {end_sentence(shorten(about[-1], 300))}"
    memory = tools.read(MEMORY)
    about = lines_about(topic, memory.lines)
    if about:
        return f"{MEMORY} says:\n\n{quote(about)}"
    nothing = f"I find nothing about “{shorten(topic, 80)}” in this conversation"
    return f"{nothing}. {memory.failure}" if memory.failure else f"{nothing} or in {MEMORY}."
