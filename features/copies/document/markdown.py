"""A session as Markdown for people (SES-18).

What people and models have written is quoted, and what tools have returned is in fences, so that nothing in it can look
like a part of this text. HTML is escaped outside fences.
"""

import re
from collections.abc import Iterable, Iterator
from datetime import datetime

from pydantic_core import to_json

from turnkeeper.features.copies.document.copied import SessionSnapshot
from turnkeeper.models.transcript.attachments import Attachment, placeholder_text
from turnkeeper.models.transcript.conversation import ConversationMessage, MessageRole
from turnkeeper.models.transcript.trajectory import ModelStep, ToolCall, dollars

_LINE_ENDS = re.compile(r"\r\n|\r|\n")
_FENCE = re.compile(r"(`{3,}(?!.*`)|~{3,})")
"""Opens a fence wherever it stands. Indented, it may be in a list item, and end with it."""
_SPECIAL = re.compile(r"([\\`*_\[\]<>#|~&])")
_TAG = re.compile(r"<(?=[A-Za-z/!?])")


def markdown_head(session_id: str, snapshot: SessionSnapshot, *, now: datetime) -> str:
    config, usage = snapshot.config, snapshot.facts.usage
    cost = f", {dollars(usage.cost)}" if usage.cost is not None else ""
    facts = [
        f"Session: {_plain(session_id)}",
        *([f"User: {_plain(config.user)}"] if config.user else []),
        f"Model: {_plain(config.model)}",
        f"Began: {_time(snapshot.facts.created_at)}",
        f"Exported: {_time(now)}",
        f"Turns: {snapshot.transcript.count:,}",
        f"Tokens: {usage.tokens:,}{cost}",
    ]
    if snapshot.running_turn:
        facts.append("A turn was running, which is left out")
    return f"# {_plain(config.title or 'Untitled')}\n\n" + "".join(f"- {fact}\n" for fact in facts)


def markdown_turn(number: int, turn: ConversationMessage) -> str:
    """Return a turn with all its steps."""
    return "".join(f"\n{block}\n" for block in _blocks(number, turn))


def _blocks(number: int, turn: ConversationMessage) -> Iterator[str]:
    yield f"## Turn {number:,}"
    yield f"{_speaker(MessageRole.USER)}, {_time(turn.user_timestamp)}"
    yield from _prompt_blocks(turn.user_message, turn.attachments)
    for step in turn.steps:
        if isinstance(step, ModelStep):
            yield from _step_blocks(step)
        else:
            yield f"{_speaker(MessageRole.USER)}, added at {_time(step.timestamp)}"
            yield from _prompt_blocks(step.content, step.attachments)
    ended = f", {_time(turn.agent_timestamp)}" if turn.agent_timestamp else ""
    if turn.agent_message is not None:
        yield f"{_speaker(MessageRole.AGENT)}{ended}"
        yield _quote(turn.agent_message)
    if turn.error is not None:
        yield f"**Error**{ended} ({_plain(turn.error_type or 'error')})"
        yield _quote(turn.error)


def _step_blocks(step: ModelStep) -> Iterator[str]:
    if step.left_out:
        yield f"*{_plain(step.left_out)}*"
    if step.thinking:
        yield "**Thinking**"
        yield _quote(step.thinking)
    if step.text and (step.tool_calls or step.interrupted):  # otherwise it is the turn's answer
        yield f"{_speaker(MessageRole.AGENT)}{', interrupted' if step.interrupted else ''}"
        yield _quote(step.text)
    for call in step.tool_calls:
        yield from _call_blocks(call)


def _call_blocks(call: ToolCall) -> Iterator[str]:
    yield f"**Tool call** {_code(call.name)}"
    yield _fence(call.args if isinstance(call.args, str) else to_json(call.args, indent=2).decode(), "json")
    if call.result is None:
        return
    status = "" if call.result.status == "ok" else f" ({_plain(call.result.status)})"
    yield f"**Result**{status}: {_plain(call.result.outcome)}"
    if call.result.content:
        yield _fence(call.result.content, "text")
    yield from _attachment_blocks(call.result.attachments)


def _prompt_blocks(text: str, attachments: Iterable[Attachment]) -> Iterator[str]:
    if text:
        yield _quote(text)
    yield from _attachment_blocks(attachments)


def _attachment_blocks(attachments: Iterable[Attachment]) -> Iterator[str]:
    lines = [f"- {_plain(placeholder_text(attachment))}" for attachment in attachments]
    if lines:
        yield "\n".join(lines)


def _quote(text: str) -> str:
    r"""Return the text as a quote, whose Markdown stays inside; HTML is shown as it is written.

    >>> _quote("# A <b>\n```\n<b>\n```")
    '> # A &lt;b>\n> ```\n> <b>\n> ```'
    """
    lines, fence, is_clear = list[str](), "", True
    for line in _LINE_ENDS.split(text):
        lines.append(line if fence else _TAG.sub("&lt;", line))
        if fence:
            if re.fullmatch(rf"\s*{fence}{fence[0]}*\s*", line):
                fence, is_clear = "", not line.strip("`~")
        elif is_clear and (opening := _FENCE.match(line)):
            fence = opening[1]
        elif "```" in line or "~~~" in line:
            is_clear = False  # it may open a fence, so that the next line in the form of one would end it
    return "\n".join(f"> {line}".rstrip() for line in lines)


def _fence(text: str, language: str) -> str:
    r"""Return the text in a fence that is longer than any in it.

    >>> _fence("```", "text")
    '````text\n```\n````'
    """
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _code(text: str) -> str:
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    ticks = "`" * (longest + 1)
    pad = " " if longest else ""
    return f"{ticks}{pad}{' '.join(text.split())}{pad}{ticks}"


def _plain(text: str) -> str:
    r"""Return the text in one line, without meaning in Markdown.

    >>> print(_plain("# *A* <b>"))
    \# \*A\* \<b\>
    """
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _speaker(role: MessageRole) -> str:
    return f"**{role.capitalize()}**"


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
