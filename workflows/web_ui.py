"""A session in the Temporal Web UI and in lists of sessions: details, search attributes, title (SES-17)."""

import asyncio
import re
from datetime import datetime
from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeKey

from turnkeeper.models.ids import sibling_url
from turnkeeper.models.session.approvals import PendingApproval
from turnkeeper.models.session.session import Session
from turnkeeper.models.session.views import approvals_of
from turnkeeper.models.texts import counted
from turnkeeper.models.transcript.attachments import with_names
from turnkeeper.models.transcript.conversation import SubTask, ToolCall, Usage, dollars
from turnkeeper.models.transcript.model_call import left_out_text

with workflow.unsafe.imports_passed_through():
    from turnkeeper.models.session.session import Session
    from turnkeeper.stores.temporal import search_attributes

MAX_TEXT_CHARS = 8_000
"""Maximum characters of what all waiting calls show."""


def render_current_details(session: Session) -> str:
    """Return user, model, progress, and what is waiting."""
    parts = (_facts(session), _running(session), _approvals(session), _tasks(session), _queue(session))
    heading = f"### {_plain(session.config.title or 'New session')}"
    return "\n".join([heading, "", *(line for part in parts for line in part)])


def _facts(session: Session) -> list[str]:
    config, transcript = session.config, session.transcript
    is_loaded = session.tools.specs is not None
    tools = ", ".join(tool.name for tool in session.tools.offered) if is_loaded else "loaded at the first turn"
    facts = [
        f"- **Status:** {_status(session)}",
        *_last_turn(session),
        f"- **User:** {_plain(config.user or 'not given')}",
        f"- **Model:** `{config.model}`",
        f"- **Turns:** {transcript.count} ({len(transcript)} here, {transcript.archived} archived)",
        f"- **Usage:** {_used(session.facts.usage, session.facts.tasks_usage)}",
        f"- **Conversation:** {_context(session)}",
        f"- **Tools:** {tools}",
    ]
    if (task := session.task) and task.parent:
        facts.append(f"- **Task of:** `{task.parent}`")
    if session.tools.allowances:
        facts.append(f"- **Allowed for the session:** {', '.join(f'`{name}`' for name in session.tools.allowances)}")
    if session.refusals.state.parts:
        facts.append(f"- **{_plain(left_out_text(session.refusals.state.parts)).replace(':', ':**', 1)}")
    facts += _archive(session)
    return [*facts, f"- [Open the conversation]({config.chat_url})"] if config.chat_url else facts


def _used(usage: Usage, of_tasks: Usage) -> str:
    tokens = f"{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out"
    used = tokens if usage.cost is None else f"{tokens}, {dollars(usage.cost)}"
    return f"{used} ({of_tasks.tokens:,} tokens by tasks)" if of_tasks.tokens else used


def _context(session: Session) -> str:
    """Return the size of the model view, its summary, and problems with either."""
    context = session.context
    messages = counted(context.view.message_count, "message")
    parts = [f"{messages} (~{counted(context.view.estimated_tokens, 'token')}) in the model's context"]
    if context.view.summary:
        turns = ", ".join(f"{first} to {last}" for first, last in context.view.summary.turns)
        parts.append(f"one a summary of turns {turns}".removesuffix(" of turns "))
    if context.evicted.summaries_failed:
        parts.append(f"{context.evicted.summaries_failed} summaries failed")
    max_tokens = context.max_tokens(session.config.history, model=session.config.model)
    if max_tokens is not None:
        parts.append(f"at most ~{max_tokens:,} tokens are sent: the context was too long for the model")
    return "; ".join(parts)


def _archive(session: Session) -> list[str]:
    report = session.archive.report
    lines = []
    if report.failing_since:
        lines.append(
            f"- **Archive:** has stored no turns since {_time(report.failing_since)} "
            f"({report.attempts_failed} attempts): {_plain(report.last_error or '')}. The session continues."
        )
    elif report.recovered_at:
        lines.append(
            f"- **Archive:** recovered at {_time(report.recovered_at)}, after "
            f"{report.attempts_failed} failed attempts: {_plain(report.last_error or '')}"
        )
    if report.results_cut:
        lines.append(f"- **Cut:** {report.results_cut} tool results, since the store of large texts was down")
    return lines


def _status(session: Session) -> str:
    slot = session.turn_slot
    if slot.waiting_until:
        until = f"{session.status} until {_time(slot.waiting_until)}"
        return f"{until}: {_plain(slot.waiting_reason)}" if slot.waiting_reason else until
    if session.facts.ending is not None:
        return f"{session.status} ({_plain(session.facts.ending)})"
    if session.status == "idle":
        newest = session.transcript.newest
        ended_at = newest.agent_timestamp if newest else None
        return f"idle since {_time(ended_at or session.facts.created_at)}"
    return session.status


def _last_turn(session: Session) -> list[str]:
    """Return how the newest turn ended, and why; nothing while it runs."""
    turn = session.transcript.newest
    if turn is None or not turn.is_complete or turn.agent_timestamp is None:
        return []
    outcome = "stopped" if turn.status == "cancelled" else turn.status
    if turn.error is None:
        return [f"- **Last turn:** {outcome} at {_time(turn.agent_timestamp)}"]
    kind = "" if turn.error_type in (None, "cancelled") else f" ({turn.error_type})"
    return [f"- **Last turn:** {outcome} at {_time(turn.agent_timestamp)}{kind}: {_plain(turn.error)}"]


def _running(session: Session) -> list[str]:
    if session.turn is None:
        return []
    turn = session.turn.message
    newest = turn.steps[-1] if turn.steps else None
    calls = newest.tool_calls if newest and newest.kind == "model" else []
    done = turn.steps_omitted + len(turn.steps)
    step = done if any(call.result is None for call in calls) else done + 1
    prompt = _plain(turn.user_message or with_names("", turn.attachments))
    return [
        "",
        f"**Turn {session.transcript.count}** · step {step}: {prompt}",
        *(f"- `{call.name}`: {_state(call)}" for call in calls),
    ]


def _state(call: ToolCall) -> str:
    if call.result:
        return call.result.status
    return "awaiting approval" if call.awaits_approval else "running"


def _approvals(session: Session) -> list[str]:
    waiting = approvals_of(session, max_bytes=4 * MAX_TEXT_CHARS)
    if not waiting.approvals:
        return []
    first = waiting.approvals[:10]
    lines = [line for pending in first for line in _approval(pending, max_chars=MAX_TEXT_CHARS // len(first))]
    left_out = len(waiting.approvals) - len(first) + waiting.omitted
    more = ["", f"… and {left_out} more"] if left_out else []
    return ["", "**Waits for approval**", *lines, *more]


def _approval(pending: PendingApproval, *, max_chars: int) -> list[str]:
    """Return the text that people decide on, as it is: a fence that is longer than any in it prevents Markdown."""
    cut = len(pending.text) - max_chars
    fence = "`" * (max(map(len, re.findall("`+", pending.text)), default=0) + 3)
    more = [f"({cut:,} more characters are not shown here)"] if cut > 0 else []
    heading = f"Call {pending.call_id}, until {_time(pending.expires_at)}:"
    return ["", heading, "", f"{fence}text", pending.text[:max_chars], fence, *more]


def _tasks(session: Session) -> list[str]:
    tasks = session.sub_tasks
    if not tasks:
        return []
    lines = [f"- {_task(session, task)}" for task in tasks[-10:]]
    more = [f"… and {len(tasks) - len(lines)} before them"] if len(tasks) > len(lines) else []
    return ["", "**Tasks**", *lines, *more]


def _task(session: Session, task: SubTask) -> str:
    url = sibling_url(session.config.chat_url, session.id, task.task_id)
    name = f"[{_plain(task.title)}]({url})" if url else _plain(task.title)
    percent = "" if task.percent is None else f", {task.percent} %"
    message = f": {_plain(task.message)}" if task.message else ""
    return f"{name} (`{task.task_id}`): {task.status}{percent}{message}"


def _queue(session: Session) -> list[str]:
    length = len(session.queue)
    if not length:
        return []
    lines = [
        f"{position}. {_plain(prompt.text)}" for position, prompt in enumerate(session.queue.waiting[:10], start=1)
    ]
    more = [f"… and {length - len(lines)} more"] if length > len(lines) else []
    return ["", f"**Queue** ({length})", *lines, *more]


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _plain(text: str) -> str:
    """Return a text as one short line with its Markdown escaped."""
    line = " ".join(text.split())
    escaped = "".join(f"\\{char}" if char in r"\`*_{}[]<>()#+-!|" else char for char in line[:120])
    return f"{escaped}…" if len(line) > 120 else escaped


class WebUi:
    """The current details, search attributes and title of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._details_are_due = False

    def update(self) -> None:
        """Update the details, and the status if a decision is pending or no longer pending."""
        # Once per activation, which can have thousands of signals (SES-6).
        if not self._details_are_due:
            self._details_are_due = True
            asyncio.get_running_loop().call_soon(self._render)
        published = workflow.info().typed_search_attributes.get(search_attributes.SESSION_STATUS)
        if (self._session.status == "awaiting_approval") != (published == "awaiting_approval"):
            self.publish_open()

    def begin_run(self) -> None:
        """Write what the last run, or who started the session, has left out. Usually that is the number of turns."""
        self.publish_open(counts_turns=True)

    def publish_open(self, *, counts_turns: bool = False) -> None:
        self.publish(
            "awaiting_approval" if self._session.status == "awaiting_approval" else "open", counts_turns=counts_turns
        )

    def publish(self, status: search_attributes.CoarseStatus, *, counts_turns: bool = False) -> None:
        """Update the search attributes and the memo that have changed.

        That is twice for a decision, when title, user or model change, and at the end. The number of turns is written
        with these and when a run begins, since each write costs an action and an event: lists have their own index.
        """
        published, config = workflow.info().typed_search_attributes, self._session.config
        current: list[tuple[SearchAttributeKey[Any], Any]] = [
            (search_attributes.SESSION_STATUS, status),
            (search_attributes.USER, config.user and search_attributes.encoded_user(config.user)),
            (search_attributes.MODEL, config.model),
        ]
        changed = [key.value_set(value) for key, value in current if value is not None and published.get(key) != value]
        turn_count = self._session.transcript.count
        is_due = bool(changed) or counts_turns
        if is_due and published.get(search_attributes.TURNS) != turn_count:
            changed.append(search_attributes.TURNS.value_set(turn_count))
        if changed:
            workflow.upsert_search_attributes(changed)
        if workflow.memo_value("title", None) != config.title:
            workflow.upsert_memo({"title": config.title})

    def _render(self) -> None:
        self._details_are_due = False
        workflow.set_current_details(render_current_details(self._session))
