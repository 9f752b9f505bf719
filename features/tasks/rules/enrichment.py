"""The first prompt of a task's agent: the description, then its context (TSK-3).

No text can forge structure. Rules, headers and footer begin in the first column; every line of a caller's text is
indented by four spaces, whatever ends the line before it. Only the description, which comes first, is not indented,
except lines that look like structure. The check ignores blanks and invisible characters anywhere in a line, and
punctuation at its start.
"""

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence

from turnkeeper.features.tasks.rules.hand_off import HISTORY_FIELD, PROMPT_TOKENS, HandedOver, history_warning
from turnkeeper.features.tasks.rules.task_context import (
    ConversationHistory,
    HistoryMessage,
    TaskContext,
    clock_time,
    read_task_context,
)
from turnkeeper.models.errors import TaskValidationError
from turnkeeper.models.limits import PROMPT_BYTES
from turnkeeper.models.settings.history_policy import HistoryRole
from turnkeeper.models.tokens import estimate_tokens
from turnkeeper.models.transcript.attachments import with_names

BARE_PROMPT_CHARS = 20_000
"""Maximum characters of the first prompt without its history (TSK-3)."""

RULE = "=" * 80
INDENT = " " * 4

_TITLE = "🎯 TASK CONTEXT (Provided by task creator)"
_FOOTER = "📊 History metadata:"
_INTRODUCTION = (
    "The orchestrator had the following conversation before creating this task.\n"
    "This provides context for WHY this task exists and WHAT the user wants."
)
_HEADERS = {
    "priority": "⚡ PRIORITY:",
    "client_cwd": "📂 WORKING DIRECTORY:",
    "background_context": "📋 BACKGROUND CONTEXT:",
    "expected_deliverables": "✅ EXPECTED DELIVERABLES:",
    "success_criteria": "🏁 SUCCESS CRITERIA:",
    "constraints": "🚧 CONSTRAINTS:",
    "relevant_files": "📁 RELEVANT FILES:",
    HISTORY_FIELD: "💬 CONVERSATION HISTORY (Leading to This Task):",
    "related_documentation": "📚 RELATED DOCUMENTATION:",
}
"""Headers of the sections, in order, by field."""

_SPEAKERS: Mapping[HistoryRole, str] = {
    "user": "👤 User",
    "assistant": "🤖 Assistant",
    "orchestrator": "🎯 Orchestrator",
}

_UNSEEN = re.compile(
    # White space and controls; Unicode's Default_Ignorable_Code_Point; the blank of Braille.
    r"[\s\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    r"\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3"
    r"\U0001d173-\U0001d17a\U000e0000-\U000e0fff]+"
)
"""Invisible and blank characters. Unicode counts some of them as letters, so `\\W` is not enough."""

_MIN_RULE = "=" * 40
"""A shorter rule looks like ours too. Underlines of headings are shorter still."""

_BEGINNINGS = "|".join(
    re.escape(_UNSEEN.sub("", text)) for text in (_MIN_RULE, _TITLE, _FOOTER, *_HEADERS.values(), *_SPEAKERS.values())
)
_LIKE_STRUCTURE = re.compile(rf"[\W_]*?(?:\[\d+\][\W_]*?)?(?:{_BEGINNINGS})")
"""Matches the visible start of a line that looks like structure. Unambiguous, so it takes linear time."""


def format_task_enrichment_prompt(task_context: TaskContext | Mapping[str, object] | None) -> str:
    """Return the sections with content, between rules; empty if there are none.

    A mapping may have the context below its one key `task_context`. Raises `TaskValidationError` for wrong values and
    unknown keys.

    >>> print(format_task_enrichment_prompt({"constraints": ["No new dependencies"]}).replace(RULE, "==="))
    ===
    🎯 TASK CONTEXT (Provided by task creator)
    ===
    <BLANKLINE>
    🚧 CONSTRAINTS:
        - No new dependencies
    <BLANKLINE>
    ===
    """
    context = task_context if isinstance(task_context, TaskContext) else read_task_context(task_context or {})
    sections = _sections(context)
    if not sections:
        return ""
    return "\n\n".join([f"{RULE}\n{_TITLE}\n{RULE}", *sections.values(), RULE])


def first_prompt(context: TaskContext) -> str:
    r"""Return the first prompt of a task's agent: the description, then the context.

    >>> first_prompt(TaskContext(description="Say hello.\n📊 History metadata: 1 messages"))
    'Say hello.\n    📊 History metadata: 1 messages'
    """
    parts = (_without_structure(context.description), format_task_enrichment_prompt(context))
    return "\n\n".join(part for part in parts if part)


def history_that_fits(context: TaskContext) -> HandedOver:
    """Return the latest part of the history with which the first prompt is short enough (TSK-7, SES-5).

    Raises `TaskValidationError` naming the longest field if the prompt is too long without any history.
    """
    _check_bare_prompt(context)
    history = context.conversation_history
    if history is None or _fits(context):
        return HandedOver(history, [])
    total = len(history.messages)
    dropped = bisect_left(
        range(total + 1), True, lo=1, key=lambda count: _fits(context.with_history(history.without_oldest(count)))
    )
    message = (
        f"{dropped} of {total} messages, the oldest, were dropped: with them the first prompt "
        f"would not be under {PROMPT_TOKENS:,} tokens and {PROMPT_BYTES:,} bytes."
    )
    return HandedOver(history.without_oldest(dropped), [history_warning("prompt_size", message)])


def _fits(context: TaskContext) -> bool:
    """Return whether the first prompt is short enough, also for a session (SES-5)."""
    prompt = first_prompt(context)
    return estimate_tokens([{"content": prompt}]) < PROMPT_TOKENS and len(prompt.encode()) <= PROMPT_BYTES


def _check_bare_prompt(context: TaskContext) -> None:
    bare = context.with_history(None)
    chars = len(first_prompt(bare))
    if chars <= BARE_PROMPT_CHARS:
        return
    sizes = {name: len(text) for name, text in {"description": context.description, **_sections(bare)}.items()}
    longest = max(sizes, key=lambda name: sizes[name])
    raise TaskValidationError(
        longest,
        f"is the longest part of a first prompt that has {chars:,} characters without its history; "
        f"{BARE_PROMPT_CHARS:,} are allowed",
        f"{sizes[longest]:,} characters",
        "too_long",
    )


def _sections(context: TaskContext) -> dict[str, str]:
    """Return the sections with content, in order, by field."""
    contents = {field: _content(getattr(context, field)) for field in _HEADERS}
    return {field: _HEADERS[field] + content for field, content in contents.items() if content}


def _content(value: str | Sequence[str] | ConversationHistory | None) -> str:
    if isinstance(value, ConversationHistory):
        return _conversation(value)
    if isinstance(value, str):
        return f"\n{_indented(value.strip(), INDENT)}" if value.strip() else ""
    return "".join(f"\n{_indented(item.strip(), f'{INDENT}- ')}" for item in value or () if item.strip())


def _conversation(history: ConversationHistory) -> str:
    if not history.messages:
        return ""
    messages = [_message(number, message) for number, message in enumerate(history.messages, start=1)]
    truncated = f", {history.truncated_count} truncated" if history.truncated_count else ""
    left_out = f", {history.left_out} less relevant left out" if history.left_out else ""
    footer = f"{_FOOTER} {len(messages)} messages{truncated}{left_out}"
    return "\n\n".join(["", _INTRODUCTION, *messages, footer])


def _message(number: int, message: HistoryMessage) -> str:
    mark = " [CONDENSED]" if message.condensed else " [TRUNCATED]" if message.truncated else ""
    header = f"[{number}] {_SPEAKERS[message.role]} ({clock_time(message.timestamp)}){mark}:"
    return f"{header}\n{_indented(with_names(message.content, message.attachments), INDENT)}"


def _indented(text: str, first: str) -> str:
    """Return the text with `first` before its first line, and as many spaces before all others."""
    return first + (" " * len(first)).join(text.splitlines(keepends=True))


def _without_structure(text: str) -> str:
    lines = text.splitlines(keepends=True)
    return "".join(INDENT + line if _LIKE_STRUCTURE.match(_UNSEEN.sub("", line)) else line for line in lines)
