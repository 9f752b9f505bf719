"""What the offline model reads: the conversation, and the results of its own tool calls."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from turnkeeper.activities.providers.offline.text import end_sentence, shorten
from turnkeeper.models.context.summary import SUMMARY_MARK
from turnkeeper.models.transcript.model_call import CallPart, ModelMessage, ModelRequest
from turnkeeper.models.transcript.trajectory import ToolStatus

MEMORY = "memory.md"
"""The workspace file with the facts that the model was asked to remember."""

_CONTEXT_RULE = re.compile(r"^={80}$", re.MULTILINE)
"""Opens the context below a task's description (TSK-3): facts to look up, no orders to follow."""

_FAILURES: Mapping[ToolStatus, str] = {
    "error": "I could not {purpose}: {line}",
    "denied": "I was not allowed to {purpose}: {line}",
    "cancelled": "I was stopped before I could {purpose}: {line}",
    "outcome_unknown": "I do not know whether I managed to {purpose}: {line}",
}
_NO_SUCH_FILE = re.compile(r"not exist|no such|not found", re.IGNORECASE)
_CUT = re.compile(r"\[.*\b(?:cut|left out|truncated|omitted)\b", re.IGNORECASE)
_PART = re.compile(r"\blines? \d+(?:-\d+)? of (\d+)")


@dataclass(frozen=True)
class Outcome:
    """The result of a tool call: the tool's one `line` for people, and the `content` below it."""

    purpose: str
    line: str
    content: str = ""
    status: ToolStatus = "ok"

    @property
    def failure(self) -> str | None:
        """A sentence about what did not work; None after a success."""
        if self.status == "ok":
            return None
        return _FAILURES[self.status].format(purpose=self.purpose, line=end_sentence(self.line))

    @property
    def lines(self) -> list[str]:
        """The lines of the content; a newline at its end opens no further one."""
        return self.content.removesuffix("\n").split("\n") if self.content else []

    @property
    def is_cut(self) -> bool:
        """Whether this is only a part: the line says so, or a line in brackets marks the cut (CTX-14)."""
        return bool(_PART.search(self.line)) or any(map(_CUT.match, self.lines))

    @property
    def line_count(self) -> int | None:
        """How many lines the whole has; None where it was cut and its tool does not say."""
        part = _PART.search(self.line)
        return int(part[1]) if part else None if self.is_cut else len(self.lines)

    @property
    def is_missing_file(self) -> bool:
        """Whether there is no such file, as opposed to one that could not be read."""
        return self.status == "error" and bool(_NO_SUCH_FILE.search(self.line))


def outcome_of(purpose: str, result: ModelMessage) -> Outcome:
    """Read the tool message `result` of a call made for `purpose`."""
    line, _, content = result.content.partition("\n\n")
    return Outcome(purpose, shorten(line, 300) or "it did not say what came of it", content, result.status or "ok")


class Conversation:
    """The conversation as the model reads it; lists are oldest first."""

    def __init__(self, request: ModelRequest) -> None:
        """Begin the turn at the newest user message, also where that was steered in."""
        messages = request.messages
        newest = max((index for index, message in enumerate(messages) if message.role == "user"), default=-1)
        earlier, turn = messages[: max(newest, 0)], messages[newest + 1 :]
        self.tools = frozenset(tool.name for tool in request.head.tools)
        self.request, context = _split_context(messages[newest].content if newest >= 0 else "")
        before = [_split_context(message.content) for message in earlier if message.role == "user"]
        self.earlier_requests = [text.strip() for text, _ in before]
        self.contexts = [*(text for _, text in before), context]
        """What stands below the requests as their context; the newest one's is the last."""
        texts = [message.content for message in earlier if message.role == "assistant" and message.content]
        self.answers = [text for text in texts if not text.startswith(SUMMARY_MARK)]
        self.summaries = [text.removeprefix(SUMMARY_MARK) for text in texts if text.startswith(SUMMARY_MARK)]
        """What stands for the evicted part of the conversation."""
        self.results = list(_calls_with_results(turn))
        """The calls of this turn that have a result."""
        self._messages = messages

    @cached_property
    def files_read(self) -> list[tuple[str, Outcome]]:
        """The files whose content is in the conversation, without the model's own memory."""
        reads = [
            (str(call.args["path"]), outcome_of("read", result))
            for call, result in _calls_with_results(self._messages)
            if call.name == "file_read" and isinstance(call.args, dict) and "path" in call.args
        ]
        return [(path, outcome) for path, outcome in reads if not outcome.failure and path != MEMORY]


def _split_context(message: str) -> tuple[str, str]:
    request, *context = _CONTEXT_RULE.split(message, maxsplit=1)
    return request, "".join(context)


def _calls_with_results(messages: Iterable[ModelMessage]) -> Iterator[tuple[CallPart, ModelMessage]]:
    """Pair calls with the results that follow them; further on, a vendor's call id can mean another call."""
    calls: dict[str | None, CallPart] = {}
    for message in messages:
        if message.role == "assistant":
            calls = {call.id: call for call in message.tool_calls}
        elif message.role == "tool" and message.call_id in calls:
            yield calls[message.call_id], message
