"""The first prompt of a task's agent: what to do, and below it what led to it (TSK-3).

Text can never forge structure. Every rule, header and footer begins at the first column; whatever a caller wrote
stands behind four spaces, on every line, however that line was broken. Only the description stands above the rules as
it was given: a line of it that could be read as structure gets the four spaces too. What a line is taken for is judged
by what is seen of it: blanks and invisible characters count nowhere in it, and before it no marks, however many.
"""

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence

from turnkeeper.models.errors import TaskValidationError
from turnkeeper.models.limits import PROMPT_BYTES
from turnkeeper.models.tasks.hand_off import HISTORY_FIELD, HandedOver, history_warning
from turnkeeper.models.tasks.history_policy import HistoryRole
from turnkeeper.models.tasks.stored_history import ConversationHistory, HistoryMessage
from turnkeeper.models.tasks.task_context import TaskContext, read_task_context
from turnkeeper.models.tasks.timestamps import clock_time
from turnkeeper.models.tokens import estimate_tokens

PROMPT_TOKENS = 20_000
"""The first prompt is estimated at fewer tokens than this (TSK-7)."""

BARE_PROMPT_CHARS = 20_000
"""Most characters of the first prompt without its history (TSK-3)."""

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
"""The sections in their order, by the field each one prints."""

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
"""What shows as nothing or as a blank. Some of it are letters by their category, so `\\W` alone is not enough."""

_LEAST_RULE = "=" * 40
"""Nobody counts the characters of a rule. Underlines of headings are shorter."""

_BEGINNINGS = "|".join(
    re.escape(_UNSEEN.sub("", text)) for text in (_LEAST_RULE, _TITLE, _FOOTER, *_HEADERS.values(), *_SPEAKERS.values())
)
_LIKE_STRUCTURE = re.compile(rf"[\W_]*?(?:\[\d+\][\W_]*?)?(?:{_BEGINNINGS})")
"""How the seen part of a line begins that could be read as ours. No run can be split in two ways: it is linear."""


def format_task_enrichment_prompt(task_context: TaskContext | Mapping[str, object] | None) -> str:
    """Print the sections that have content, between rules; nothing at all where none has, or for None.

    A mapping may also be an object whose one key is `task_context`. Raises `TaskValidationError` for what is wrong in
    it, an unknown key too.

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
    r"""Return what a task's agent is told first: the description, then the context.

    >>> first_prompt(TaskContext(description="Say hello.\n📊 History metadata: 1 messages"))
    'Say hello.\n    📊 History metadata: 1 messages'
    """
    parts = (_without_structure(context.description), format_task_enrichment_prompt(context))
    return "\n\n".join(part for part in parts if part)


def history_that_fits(context: TaskContext) -> HandedOver:
    """Return as much of the latest history as leaves the first prompt under 20,000 tokens (TSK-7) and 128 KiB (SES-5).

    Raises `TaskValidationError` naming the longest field where the prompt is too long without any.
    """
    _refuse_long_bare_prompt(context)
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
    """Return whether the first prompt is under its tokens, and is a prompt that a session would take (SES-5)."""
    prompt = first_prompt(context)
    return estimate_tokens([{"content": prompt}]) < PROMPT_TOKENS and len(prompt.encode()) <= PROMPT_BYTES


def _refuse_long_bare_prompt(context: TaskContext) -> None:
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
    """Return the sections that have content, in their order, by field."""
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
    footer = f"{_FOOTER} {len(messages)} messages{truncated}"
    return "\n\n".join(["", _INTRODUCTION, *messages, footer])


def _message(number: int, message: HistoryMessage) -> str:
    mark = " [TRUNCATED]" if message.truncated else ""
    header = f"[{number}] {_SPEAKERS[message.role]} ({clock_time(message.timestamp)}){mark}:"
    return f"{header}\n{_indented(message.content, INDENT)}"


def _indented(text: str, first: str) -> str:
    """Put `first` before the text and spaces as wide before every further line, whatever breaks it."""
    return first + (" " * len(first)).join(text.splitlines(keepends=True))


def _without_structure(text: str) -> str:
    lines = text.splitlines(keepends=True)
    return "".join(INDENT + line if _LIKE_STRUCTURE.match(_UNSEEN.sub("", line)) else line for line in lines)
