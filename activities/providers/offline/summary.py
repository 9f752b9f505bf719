"""The offline model's summary of a conversation, from the conversation's own sentences (CTX-5).

It lists what the user stated, what was asked and answered, and what went wrong. An earlier summary is parsed and
included. If a section is too long, its oldest lines are dropped.
"""

import re
from collections.abc import Mapping, Sequence

from turnkeeper.activities.providers.offline.handlers import facts_in
from turnkeeper.activities.providers.offline.text import shorten
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

SECTIONS = {FACTS: 2_000, EXCHANGES: 1_000, PROBLEMS: 300}
"""Maximum characters of each section's lines."""

_HEADER = re.compile(f"^({'|'.join(map(re.escape, SECTIONS))})$", re.MULTILINE)
_FILES = re.compile(r"^Files written: .*\Z", re.MULTILINE | re.DOTALL)
_FAILED = re.compile(r"\b(?:failed|error|denied|not exist|unknown|cancelled|not called)\b", re.IGNORECASE)


def summary_of(request: ModelRequest) -> str:
    """Return a summary of the conversation that `request` gives as replay text."""
    content = request.messages[-1].content
    # Nothing in the text before it can look like its header.
    header = re.search(f"^{re.escape(HISTORY)}$", content, re.MULTILINE)
    events, _ = parse_replay(content[header.start() :] if header else "")
    lines: dict[str, list[str]] = {section: [] for section in SECTIONS}
    for event in events:
        _add_event(lines, event)
    summary: list[str] = []
    for section, max_chars in SECTIONS.items():
        newest = _newest(lines[section], max_chars)
        summary += [section, *(f"- {line}" for line in newest)] if newest else []
    return "\n".join(summary)


def _add_event(lines: Mapping[str, list[str]], event: ReplayEvent) -> None:
    match event:
        case RespondEvent(content=text) if text.startswith(SUMMARY_MARK):
            _add_summary(lines, text.removeprefix(SUMMARY_MARK))
        case RespondEvent(content=text):
            lines[EXCHANGES].append(f"answered: “{shorten(text, 80)}”")
        case UserEvent(content=text):
            facts = facts_in(text)
            lines[FACTS].extend(shorten(fact, 300) for fact in facts)
            if not facts:
                lines[EXCHANGES].append(f"asked: “{shorten(text, 80)}”")
        case ResultEvent(outcome=outcome) if _FAILED.search(outcome):
            lines[PROBLEMS].append(shorten(outcome, 120))


def _add_summary(lines: Mapping[str, list[str]], summary: str) -> None:
    """Add an earlier summary; what stands in no section of ours are facts."""
    facts, *sections = _HEADER.split(_FILES.sub("", summary))
    for section, text in [(FACTS, facts), *zip(sections[::2], sections[1::2], strict=True)]:
        stripped = (line.strip(" -") for line in text.splitlines())
        lines[section].extend(line for line in stripped if line)


def _newest(lines: Sequence[str], max_chars: int) -> list[str]:
    """Return the newest of the lines, each once, that fit."""
    newest: list[str] = []
    for line in reversed(list(dict.fromkeys(lines))):
        max_chars -= len(line)
        if max_chars < 0:
            break
        newest.append(line)
    return newest[::-1]
