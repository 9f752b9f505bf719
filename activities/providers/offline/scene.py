"""What the offline model looks at: the conversation as a scene, the tools' answers in it as outcomes of uses.

Everything here is read off the request; what the words of the user mean is the matter of `offline_phrases`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from turnkeeper.activities.providers.offline.text import ended, short
from turnkeeper.models.context.summary import SUMMARY_MARK
from turnkeeper.models.transcript.model_call import CallPart, ModelMessage, ModelRequest
from turnkeeper.models.transcript.trajectory import ToolStatus

MEMORY = "memory.md"
"""The workspace file that keeps what the model was told to remember, beyond what it can still see."""


@dataclass(frozen=True)
class Use:
    """A tool call that a plan needs; `aim` completes the sentence "I could not ..."."""

    tool: str
    aim: str
    args: Mapping[str, str]


def reading(path: str) -> Use:
    """Return the use that reads a file."""
    return Use("file_read", f"read {path}", {"path": path})


def writing(path: str, content: str) -> Use:
    """Return the use that replaces all of a file."""
    return Use("file_write", f"write {path}", {"path": path, "content": content})


_FAILURES: Mapping[ToolStatus, str] = {
    "error": "I could not {aim}: {line}",
    "denied": "I was not allowed to {aim}: {line}",
    "cancelled": "I was stopped before I could {aim}: {line}",
    "outcome_unknown": "I do not know whether I managed to {aim}: {line}",
}
_ABSENT = re.compile(r"not exist|no such|not found", re.IGNORECASE)
_CUT = re.compile(r"\[.*\b(?:cut|left out|truncated|omitted)\b", re.IGNORECASE)
_PART = re.compile(r"\blines? \d+(?:-\d+)? of (\d+)")


@dataclass(frozen=True)
class Outcome:
    """What a use came to: the result's one `line` for people, and its `content`."""

    use: Use
    line: str
    content: str = ""
    status: ToolStatus = "ok"

    @property
    def failure(self) -> str | None:
        """A sentence that says what did not work; None where it did."""
        return None if self.status == "ok" else _FAILURES[self.status].format(aim=self.use.aim, line=ended(self.line))

    @property
    def lines(self) -> list[str]:
        """The lines of the content; a newline at its end opens no further one."""
        return self.content.removesuffix("\n").split("\n") if self.content else []

    @property
    def is_cut(self) -> bool:
        """The content is not the whole: its tool says so in the outcome, or marks the cut in brackets (CTX-14)."""
        return bool(_PART.search(self.line)) or any(map(_CUT.match, self.lines))

    @property
    def line_count(self) -> int | None:
        """How many lines the whole has; None where it was cut and its tool does not say."""
        part = _PART.search(self.line)
        if part:
            return int(part[1])
        return None if self.is_cut else len(self.lines)

    @property
    def is_absent(self) -> bool:
        """There is no such file, as opposed to one that could not be read."""
        return self.status == "error" and bool(_ABSENT.search(self.line))


_CONTEXT_RULE = re.compile(r"^={80}$", re.MULTILINE)
"""Opens the context that a task is given below its description (TSK-3): facts to look up, no orders to follow."""


class Scene:
    """The conversation as the model reads it: the newest request, what came before it, and this turn's results."""

    def __init__(self, request: ModelRequest) -> None:
        """Find the newest user message of `request`: the turn begins there, also where it was steered in."""
        messages = request.messages
        newest = max((index for index, message in enumerate(messages) if message.role == "user"), default=-1)
        self.offered = frozenset(tool.name for tool in request.head.tools)
        self.earlier = messages[: max(newest, 0)]
        self.turn = messages[newest + 1 :]
        self.asked, self.context = _parted(messages[newest].content if newest >= 0 else "")

    @property
    def results(self) -> list[tuple[CallPart, ModelMessage]]:
        """The calls of this turn that have a result, oldest first."""
        return list(_exchanges(self.turn))

    @property
    def files_read(self) -> list[tuple[str, Outcome]]:
        """The files whose content is in the conversation, newest last; the model's own memory is none of them."""
        read = [
            (str(call.args["path"]), outcome_of(reading(""), result))
            for call, result in _exchanges([*self.earlier, *self.turn])
            if call.name == "file_read" and isinstance(call.args, dict) and "path" in call.args
        ]
        return [(path, outcome) for path, outcome in read if not outcome.failure and path != MEMORY]

    @property
    def requests(self) -> list[str]:
        """What the user asked before, oldest first."""
        return [_parted(message.content)[0].strip() for message in self.earlier if message.role == "user"]

    @property
    def answers(self) -> list[str]:
        """What the model said before, oldest first."""
        return [text for text in self._said if not text.startswith(SUMMARY_MARK)]

    @property
    def contexts(self) -> list[str]:
        """What was given to the requests as context, the newest one's last; empty where there was none."""
        earlier = [_parted(message.content)[1] for message in self.earlier if message.role == "user"]
        return [*earlier, self.context]

    @property
    def summaries(self) -> list[str]:
        """What stands for the evicted part of the conversation."""
        return [text.removeprefix(SUMMARY_MARK) for text in self._said if text.startswith(SUMMARY_MARK)]

    @property
    def _said(self) -> list[str]:
        return [message.content for message in self.earlier if message.role == "assistant" and message.content]


def _parted(message: str) -> tuple[str, str]:
    request, *context = _CONTEXT_RULE.split(message, maxsplit=1)
    return request, "".join(context)


def _exchanges(messages: Iterable[ModelMessage]) -> Iterator[tuple[CallPart, ModelMessage]]:
    """Pair calls with the results that follow them; further on, a vendor's call id can mean another call."""
    calls: dict[str | None, CallPart] = {}
    for message in messages:
        if message.role == "assistant":
            calls = {call.id: call for call in message.tool_calls}
        elif message.role == "tool" and message.call_id in calls:
            yield calls[message.call_id], message


def outcome_of(use: Use, result: ModelMessage) -> Outcome:
    """Read the tool message `result` as the outcome of `use`."""
    line, _, content = result.content.partition("\n\n")
    return Outcome(use, short(line, 300) or "it did not say what came of it", content, result.status or "ok")
