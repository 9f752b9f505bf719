"""The conversation as the offline model reads it, with the results of its tool calls."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from turnkeeper.activities.providers.offline.text import end_sentence, shorten
from turnkeeper.models.context.summary import SUMMARY_MARK
from turnkeeper.models.transcript.attachments import named_in_text
from turnkeeper.models.transcript.model_call import CallPart, ModelMessage, ModelRequest
from turnkeeper.models.transcript.trajectory import ToolStatus

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
        self.attachments = [named_in_text(one) for one in messages[newest].attachments] if user_texts else []
        """The names of what is attached to the newest user message."""
        self._messages = messages

    def last_file_read(self) -> tuple[str, Outcome] | None:
        """Return the path and the result of the last file that was read, other than the model's own memory."""
        files = [
            (str(call.args["path"]), outcome_of("read", result))
            for call, result in _calls_with_results(self._messages)
            if call.name == "file_read" and isinstance(call.args, dict) and "path" in call.args
        ]
        return next((file for file in reversed(files) if file[0] != MEMORY and not file[1].failure), None)


def _calls_with_results(messages: Iterable[ModelMessage]) -> Iterator[tuple[CallPart, ModelMessage]]:
    """Pair calls with the results directly after them: a later step may reuse the ids."""
    calls: dict[str | None, CallPart] = {}
    for message in messages:
        if message.role == "assistant":
            calls = {call.id: call for call in message.tool_calls}
        elif message.role == "tool" and message.call_id in calls:
            yield calls[message.call_id], message
