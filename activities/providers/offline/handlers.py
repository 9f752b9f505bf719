"""Handlers of the offline model's intents, with tools or from the conversation alone.

A handler runs again at every step of a turn and must make the same calls each time: it may depend only on the
conversation and on the outcomes of its calls.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from turnkeeper.activities.providers.offline.conversation import MEMORY, Conversation, Outcome, outcome_of
from turnkeeper.activities.providers.offline.intents import Intent, find_intents
from turnkeeper.activities.providers.offline.text import end_sentence, lines_about, quote, sentences, shorten
from turnkeeper.models.errors import TurnkeeperError
from turnkeeper.models.session.tasks.outcome import without_history_notes

_SIZED_FILE = re.compile(r"^(.+) \(([\d,]+) bytes?\)$", re.MULTILINE)
"""A file as `file_list` shows it."""


@dataclass(frozen=True)
class ToolUse:
    """A call to make; `purpose` completes the sentence "I could not ..."."""

    tool: str
    purpose: str
    args: Mapping[str, str]


def run_intents(intents: Iterable[Intent], conversation: Conversation) -> tuple[list[str], list[ToolUse]]:
    """Return the answers to the intents that have their results, and the next calls.

    An intent that changes something waits for all before it, and blocks all after it.
    """
    tools = _Tools(conversation)
    texts: list[str] = []
    for intent in intents:
        changes = intent.kind in ("write", "remember", "delegate")
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

    def run(self, tool: str, purpose: str, **args: str) -> Outcome:
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
            return files.failure or _longest(files.lines)
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
            outcome = tools.run("run_task", "delegate this", **task)
            answer = replace(outcome, content=without_history_notes(outcome.content))
            return outcome.failure or f"Another agent did it and answered:\n\n{quote(answer.lines)}"
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


def _longest(entries: list[str]) -> str:
    sizes = {path: int(size.replace(",", "")) for path, size in re.findall(_SIZED_FILE, "\n".join(entries))}
    if not sizes:
        return "I see no files in this workspace."
    longest = max(sizes, key=lambda path: sizes[path])
    return f"The longest file is {longest}: it has {sizes[longest]:,} bytes."


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
