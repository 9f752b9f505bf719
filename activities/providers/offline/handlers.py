"""How the offline model carries out the intents of a request: with tools, or from the conversation alone.

A handler runs anew at every step of a turn and must ask for the same calls each time: it may look at the conversation
and at its outcomes, at nothing else.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress

from turnkeeper.activities.providers.offline import answers
from turnkeeper.activities.providers.offline.conversation import MEMORY, Conversation, Outcome, outcome_of
from turnkeeper.activities.providers.offline.intents import (
    FileQuestion,
    Intent,
    LookBack,
    Read,
    Recall,
    Remember,
    ToolUse,
    find_intents,
)
from turnkeeper.activities.providers.offline.text import end_sentence, lines_about, quote, sentences, shorten

_CHANGING_TOOLS = ("file_write", "run_task")

_NOT_SAVED = "I know it only as long as I can see this conversation."


def run_intents(intents: Iterable[Intent], conversation: Conversation) -> tuple[list[str], list[ToolUse]]:
    """Return the answers to the intents that have their results, and the calls that come next.

    What changes something waits for everything before it, and all after it wait for it.
    """
    tools = _Tools(conversation)
    texts: list[str] = []
    for intent in intents:
        changes = isinstance(intent, Remember) or (isinstance(intent, ToolUse) and intent.tool in _CHANGING_TOOLS)
        if changes and tools.pending:
            break
        with suppress(_ResultsPendingError):
            texts.append(_answer(intent, conversation, tools))
        if changes and tools.pending:
            break
    return texts, tools.pending


def facts_about(topic: str, request: str) -> list[str]:
    """Return what `request` states about `topic`, in passing or to be remembered; without a topic, all."""
    passing = [line for line in lines_about(topic, sentences(request)) if line[-1] != "?" and not find_intents(line)]
    return [*passing, *lines_about(topic, _facts_to_remember(request))]


class _ResultsPendingError(Exception):
    pass


class _Tools:
    """The results of this turn. Each serves one call, so that a file that is read again is read as it is then."""

    def __init__(self, conversation: Conversation) -> None:
        self.pending: list[ToolUse] = []
        self._offered = conversation.tools
        self._results = list(conversation.results)

    def run(self, *uses: ToolUse) -> list[Outcome]:
        """Return the outcomes of parallel calls. Raises `_ResultsPendingError` if a call is still to be made."""
        outcomes = [(use, self._outcome(use)) for use in uses]
        pending = [use for use, outcome in outcomes if outcome is None]
        self.pending += pending
        if pending:
            raise _ResultsPendingError
        return [outcome for _, outcome in outcomes if outcome]

    def _outcome(self, use: ToolUse) -> Outcome | None:
        if use.tool not in self._offered:
            return Outcome(use.purpose, f"the tool {use.tool} is not available here", status="error")
        for index, (call, result) in enumerate(self._results):
            if call.name == use.tool and call.args == use.args:
                del self._results[index]
                return outcome_of(use.purpose, result)
        return None


def _answer(intent: Intent, conversation: Conversation, tools: _Tools) -> str:
    match intent:
        case ToolUse():
            return answers.tool_result(*tools.run(intent))
        case LookBack(question):
            return answers.about_conversation(question, conversation)
        case Read():
            return _read(intent, conversation, tools)
        case Remember(fact):
            return _remember(fact, tools)
        case Recall(topic):
            return _recall(topic, conversation, tools)


def _read(intent: Read, conversation: Conversation, tools: _Tools) -> str:
    """Read the files anew, all at once, and answer each question about each of them."""
    if intent.paths:
        outcomes = tools.run(*map(ToolUse.read, intent.paths))
        files = list(zip(intent.paths, outcomes, strict=True))
    else:
        files = conversation.files_read[-1:]
    questions: Sequence[FileQuestion] = intent.questions or ("beginning",)
    texts: list[str] = []
    for path, outcome in files:
        if outcome.failure:
            texts.append(outcome.failure)
        else:
            texts += [answers.about_file(question, path, outcome) for question in questions]
    return "\n\n".join(texts) or "I have read no file in this conversation yet that could answer this. Name one."


def _remember(fact: str, tools: _Tools) -> str:
    """Add the fact to the memory file, unless it stands there already; what could not be read is not replaced."""
    line = f"- {fact}"
    [memory] = tools.run(ToolUse.read(MEMORY))
    if memory.failure and not memory.is_missing_file:
        return f"{memory.failure} {_NOT_SAVED}"
    if memory.is_cut:
        return f"I was shown only a part of {MEMORY}, so I do not replace it. {_NOT_SAVED}"
    lines = [] if memory.failure else memory.lines
    if line not in lines:
        [written] = tools.run(ToolUse.write(MEMORY, "\n".join([*lines, line, ""])))
        if written.failure:
            return f"{written.failure} {_NOT_SAVED}"
    return f"I will remember: {end_sentence(fact)} It is noted in {MEMORY}."


def _recall(topic: str, conversation: Conversation, tools: _Tools) -> str:
    """Answer from the conversation, and from the memory file only if that holds nothing."""
    answer = _recall_topic(topic, conversation) if topic else _recall_facts(conversation)
    if answer:
        return answer
    [memory] = tools.run(ToolUse.read(MEMORY))
    lines = [] if memory.failure else lines_about(topic, memory.lines)
    if lines:
        return f"{MEMORY} says:\n\n{quote(lines, max_lines=answers.RESULT_LINES)}"
    about = f"about “{shorten(topic, 80)}”" if topic else "that I was to remember"
    if memory.failure and not memory.is_missing_file:
        return f"I find nothing {about} in this conversation. {memory.failure}"
    return f"I find nothing {about}, neither in this conversation nor in {answers.visible_part(MEMORY, memory)}."


def _recall_topic(topic: str, conversation: Conversation) -> str | None:
    """Quote the newest statement about `topic` of the first source that has one."""
    requests = [*conversation.earlier_requests, conversation.request]
    # A fact is better told in the user's own words than as a part of what was asked and answered.
    stated = [
        line
        for summary in conversation.summaries
        for line in summary.split("\n")
        if not line.startswith(("- asked:", "- answered:"))
    ]
    sources = [
        ("You told me", [fact for request in requests for fact in facts_about(topic, request)]),
        ("The context I was given says", lines_about(topic, sentences(*conversation.contexts))),
        ("The summary of our conversation says", lines_about(topic, sentences(*stated))),
        ("The summary of our conversation says", lines_about(topic, sentences(*conversation.summaries))),
        *((f"{path} says", lines_about(topic, outcome.lines)) for path, outcome in conversation.files_read[::-1]),
    ]
    return next((f"{source}: {end_sentence(shorten(facts[-1], 300))}" for source, facts in sources if facts), None)


def _recall_facts(conversation: Conversation) -> str | None:
    facts = [fact for request in conversation.earlier_requests for fact in _facts_to_remember(request)]
    return f"You told me to remember:\n\n{quote(facts, max_lines=answers.RESULT_LINES)}" if facts else None


def _facts_to_remember(request: str) -> list[str]:
    return [intent.fact for intent in find_intents(request) if isinstance(intent, Remember)]
