"""What the offline model finds worth remembering of a conversation: a summary of it, without a word of its own (CTX-5).

It keeps what the user stated, then what was asked and how it was answered, and what went wrong. The summary so far is
read back in the same form. Where there is too much, the oldest questions go first, and facts last.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from turnkeeper.activities.providers.offline.plans import facts_about
from turnkeeper.activities.providers.offline.text import short
from turnkeeper.models.context.summary import SUMMARY_MARK
from turnkeeper.models.replay_text.grammar import (
    HISTORY,
    ReplayEvent,
    RespondEvent,
    ResultEvent,
    UserEvent,
    parse_replay,
)
from turnkeeper.models.transcript.model_call import ModelRequest

FACTS, EXCHANGES, PROBLEMS = "What the user said:", "What was asked and answered:", "What went wrong:"

MOST_CHARS = 3_000
FACTS_CHARS = 2_000
LONGEST_LINE = 300

_SECTION = re.compile(f"^({re.escape(FACTS)}|{re.escape(EXCHANGES)}|{re.escape(PROBLEMS)})$", re.MULTILINE)
_FAILED = re.compile(r"\b(?:failed|error|denied|not exist|unknown|cancelled|not called)\b", re.IGNORECASE)


@dataclass
class _Notes:
    """The lines of a summary, by section, oldest first."""

    facts: list[str] = field(default_factory=list)
    exchanges: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def take_up(self, summary: str) -> None:
        """Begin with what an earlier summary says; what stands in no section of ours are facts."""
        before, *rest = _SECTION.split(re.sub(r"^Files written: .*\Z", "", summary, flags=re.MULTILINE | re.DOTALL))
        self.facts += _lines(before)
        for header, body in zip(rest[::2], rest[1::2], strict=True):
            {FACTS: self.facts, EXCHANGES: self.exchanges, PROBLEMS: self.problems}[header].extend(_lines(body))

    def note(self, event: ReplayEvent) -> None:
        """Add what is worth it of one event."""
        match event:
            case RespondEvent(content=text) if text.startswith(SUMMARY_MARK):
                self.take_up(text.removeprefix(SUMMARY_MARK))
            case UserEvent(content=text):
                stated = facts_about("", text)
                self.facts += [short(fact, LONGEST_LINE) for fact in stated]
                self.exchanges += [] if stated else [f"asked: “{short(text, 80)}”"]
            case RespondEvent(content=text):
                self.exchanges.append(f"answered: “{short(text, 80)}”")
            case ResultEvent(outcome=outcome) if _FAILED.search(outcome):
                self.problems.append(short(outcome, 120))

    def written(self) -> str:
        """Return the summary."""
        facts = _newest(self.facts, FACTS_CHARS)
        room = MOST_CHARS - sum(map(len, facts))
        problems = _newest(self.problems, room // 3)
        exchanges = _newest(self.exchanges, room - sum(map(len, problems)))
        sections = ((FACTS, facts), (EXCHANGES, exchanges), (PROBLEMS, problems))
        return "\n".join(line for header, lines in sections if lines for line in (header, *_listed(lines)))


def summary_of(request: ModelRequest) -> str:
    """Return a summary of the conversation that `request` gives as replay text."""
    content = request.messages[-1].content
    past, _ = parse_replay(content[_record_start(content) :])
    notes = _Notes()
    for event in past:
        notes.note(event)
    return notes.written()


def _record_start(content: str) -> int:
    """Find the replay text below what is said of it; nothing in it can look like its header."""
    header = re.search(f"^{re.escape(HISTORY)}$", content, re.MULTILINE)
    return header.start() if header else len(content)


def _lines(text: str) -> list[str]:
    return [line.strip(" -") for line in text.splitlines() if line.strip(" -")]


def _listed(lines: Iterable[str]) -> list[str]:
    return [f"- {line}" for line in lines]


def _newest(lines: Iterable[str], most_chars: int) -> list[str]:
    """Return the newest of the lines, each once, that fit."""
    kept: list[str] = []
    for line in reversed(list(dict.fromkeys(lines))):
        most_chars -= len(line)
        if most_chars < 0:
            break
        kept.append(line)
    return kept[::-1]
