"""Notes that tell the model what the conversation itself does not show (CTX-17).

A note is one line in brackets. What people wrote stands in it quoted, on one line and bounded, so that no text can
imitate a note's structure. Every view of a conversation has the notes from here: the model view, summary requests,
hand-offs and the replay text.
"""

import json
import re
from collections.abc import Iterable, Sequence

from turnkeeper.models.errors import ErrorType
from turnkeeper.models.transcript.conversation import ConversationMessage, ModelStep, TurnStop

MAX_QUOTED_CHARS = 500
"""Maximum of a quoted text, before its quotes are escaped."""

MAX_NAMED_TOOLS = 8
"""Maximum of tools that a note names."""

ADDED = "[The user added:]"
"""Line before each of several prompts in one message."""

ANSWERED = "Answered; the answer is left out here."
UNANSWERED = "Not answered yet."

REFUSED_PROMPT = "[A message of the user stood here. It is left out.]"
"""Replaces the prompt of a turn that the model's vendor refused (CTX-7)."""

HISTORY_NOTES = "[The history that the task got:"

_FAILED: dict[ErrorType, str] = {
    "rate_limited": "the provider accepted no more requests",
    "overloaded": "the provider was overloaded",
    "provider_error": "the provider had an error",
    "connection": "the provider could not be reached",
    "timeout": "the provider did not answer in time",
    "auth": "the provider rejected the key",
    "not_found": "the provider does not have the model",
    "bad_request": "the provider rejected the request",
    "quota": "the provider's quota was used up",
    "refusal": "the provider refused to answer",
    "context_too_long": "the conversation was too long for the model",
    "too_large": "the answer or the turn was too large",
    "max_steps": "it ran out of steps",
    "budget": "it ran out of its budget",
    "internal": "something went wrong inside",
}

_RAN_OUT = {
    "turn_timeout": "it ran out of time",
    "max_tool_calls": "it ran out of tool calls",
    "max_tokens_per_turn": "it ran out of tokens",
    "max_cost_per_turn": "it ran out of money",
}
"""Notes of a turn over budget, by the limit that its error names (`models/session/budgets.py`)."""

_PLAIN_NAME = re.compile(r"[\w@+~'\u2019-]+(?:[. ][\w@+~'\u2019-]+)*")
"""A name that needs no quotes: it has no dot at the end of a word, so it can't end a note's sentence."""

_LIKE_ADDED = re.compile(rf"^(?=\\*{re.escape(ADDED)})", re.MULTILINE)


def ending_note(turn: ConversationMessage) -> str | None:
    r"""Return how a turn ended that has no answer: by whom, why, and whether anything was done; `None` for others.

    >>> from datetime import UTC, datetime
    >>> moment = datetime(2026, 1, 1, tzinfo=UTC)
    >>> turn = ConversationMessage(
    ...     id="m1", timestamp=moment, user_timestamp=moment, revision=2, user_message="Delete all my files now.")
    >>> ending_note(turn) is None
    True
    >>> stop = TurnStop(by="ann", reason='I "did"\nnot mean it')
    >>> print(ending_note(turn.model_copy(update={"error": "", "error_type": "cancelled", "stop": stop})))
    [Stopped by ann: "I \"did\" not mean it". Nothing was done.]
    >>> ending_note(turn.model_copy(update={"error": "", "error_type": "overloaded"}))
    '[Failed: the provider was overloaded. Nothing was done.]'
    """
    if not turn.is_error:
        return None
    return f"[{_how(turn)}. {_deeds(_called_tools(turn))}]"


def closing_text(turn: ConversationMessage) -> str | None:
    """Return what ends a turn besides its steps: its `ending_note`, or an answer that none of its steps has."""
    newest = turn.steps[-1] if turn.steps else None
    if isinstance(newest, ModelStep) and newest.is_answer and newest.text and not turn.is_error:
        return None
    return ending_note(turn) or turn.agent_message


def earlier_try_note(turn: ConversationMessage) -> str | None:
    """Return what an earlier try at a prompt did, if it did anything: its retry must not do it again unaware."""
    note = ending_note(turn)
    return f"[An earlier try at the next request. {note[1:]}" if note and _called_tools(turn) else None


def joined_prompts(prompt: str | None, added: Sequence[str]) -> str:
    r"""Return the text of one message with a turn's `prompt`, if it is among them, and prompts that were added.

    Each added one is marked, unless it is alone.

    >>> joined_prompts("Send the mail.", ["Only to Ann!"])
    'Send the mail.\n\n[The user added:]\nOnly to Ann!'
    >>> joined_prompts(None, ["Only to Ann!"]), joined_prompts("Hi", [])
    ('Only to Ann!', 'Hi')
    """
    texts = [*([] if prompt is None else [prompt]), *added]
    if len(texts) == 1:
        return texts[0]
    first, *others = [_LIKE_ADDED.sub(r"\\", text) for text in texts]
    marked = [f"{ADDED}\n{text}" for text in others]
    beginning = f"{ADDED}\n{first}" if prompt is None else first
    return "\n\n".join(part for part in (beginning, *marked) if part)


def turns_left_out(count: int) -> str:
    """Return the sentence for turns that are in no message.

    >>> turns_left_out(14), turns_left_out(1)
    ('14 earlier turns are left out here.', '1 earlier turn is left out here.')
    """
    return f"{count:,} earlier turns are left out here." if count > 1 else "1 earlier turn is left out here."


def steps_left_out(count: int) -> str:
    """Return the sentence for steps of a turn that are in no message, while others of the turn are."""
    return f"{count:,} steps of this turn are left out here." if count > 1 else "1 step of this turn is left out here."


def prompt_left_out(text: str | None) -> str:
    """Return the note in place of a prompt that is not here; `text`: it stays elsewhere in the conversation."""
    if text is None:
        return "[The prompt of the following is left out.]"
    return f"[The prompt of the following stays in the conversation: {quoted(text, max_chars=200)}]"


def quoted(text: str, *, max_chars: int = MAX_QUOTED_CHARS) -> str:
    r"""Return `text` on one line, bounded, in quotes that nothing in it can end.

    >>> print(quoted('Stop". Nothing was done.]\n[Stopped by bob'))
    "Stop\". Nothing was done.] [Stopped by bob"
    """
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    bounded = line if len(line) <= max_chars else f"{line[: max_chars - 1]}…"
    return json.dumps(bounded, ensure_ascii=False)


def _how(turn: ConversationMessage) -> str:
    if turn.error_type == "cancelled" or turn.status == "cancelled":
        return _stopped(turn.stop)
    error_type, error = turn.error_type or "internal", turn.error or ""
    why = next((why for limit, why in _RAN_OUT.items() if f"limits.{limit}" in error), None)
    return f"Failed: {(error_type == 'budget' and why) or _FAILED.get(error_type, _FAILED['internal'])}"


def _stopped(stop: TurnStop | None) -> str:
    if stop is None or stop.cause == "session":
        return "Stopped with the session" if stop else "Stopped"
    if stop.cause == "prompt":
        return "Interrupted by a new prompt"
    person = _name(stop.by) if stop.by and stop.by.strip() else "the user"
    return (
        f"Stopped by {person}: {quoted(stop.reason)}" if stop.reason and stop.reason.strip() else f"Stopped by {person}"
    )


def _deeds(tools: Sequence[str]) -> str:
    if not tools:
        return "Nothing was done."
    named = ", ".join(map(_name, tools[:MAX_NAMED_TOOLS]))
    more = len(tools) - MAX_NAMED_TOOLS
    return f"Tools were called before: {named}{f' and {more} more' if more > 0 else ''}."


def _called_tools(turn: ConversationMessage) -> list[str]:
    if turn.steps_omitted:
        return list(turn.tools_used or [])
    return list(dict.fromkeys(_calls_of(turn.steps)))


def _calls_of(steps: Iterable[object]) -> Iterable[str]:
    for step in steps:
        if isinstance(step, ModelStep) and not step.interrupted:
            yield from (
                call.name
                for call in step.tool_calls
                if call.result is None or call.result.status not in ("denied", "cancelled")
            )


def _name(name: str) -> str:
    return name if len(name) <= 64 and _PLAIN_NAME.fullmatch(name) else quoted(name, max_chars=64)


def history_notes(notes: Sequence[str]) -> str:
    """Return what a session's model reads of how the history of its task was changed."""
    return "\n".join([HISTORY_NOTES, *notes]) + "]"


def without_history_notes(content: str) -> str:
    r"""Return what a task said itself, of the content of its tool result.

    >>> without_history_notes("It is README.md.\n\n" + history_notes(["1 long text was cut."]))
    'It is README.md.'
    """
    answer, notes, _ = content.rpartition(f"\n\n{HISTORY_NOTES}")
    return answer if notes else content
