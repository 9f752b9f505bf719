"""A turn as events of the replay text, in order (CTX-12)."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, takewhile

from turnkeeper.models.replay_text.grammar import (
    CallEvent,
    ReplayEvent,
    RespondEvent,
    ResultEvent,
    ThinkEvent,
    UserEvent,
)
from turnkeeper.models.transcript.attachments import with_names
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.transcript.notes import ending_note, joined_prompts
from turnkeeper.models.transcript.trajectory import INTERRUPTED_NOTE, Step, ToolCall, ToolResult, UserStep

INTERRUPTED = "Interrupted: outcome unknown"
"""Outcome of a call without a result."""

RUNNING = "Running"
"""Outcome of a call that is still running."""


def replay_events(turn: ConversationMessage) -> list[ReplayEvent]:
    """Return the events of a turn, oldest first; the result of a call comes right after it.

    The first event is the turn's prompt; attachments are named in lines below it. Prompts that came together are one
    event. If steps are omitted, a thought says how many. A turn that ended without an answer has a note in its place
    (CTX-17). Large texts by reference appear as excerpts; `resolve_turn` restores them first.

    >>> from datetime import UTC, datetime
    >>> moment = datetime(2026, 1, 1, tzinfo=UTC)
    >>> turn = ConversationMessage(
    ...     id="m1", timestamp=moment, user_timestamp=moment, revision=2, user_message="Hi", agent_message="Hello!")
    >>> replay_events(turn)
    [UserEvent(type='user', content='Hi'), RespondEvent(type='respond', content='Hello!')]
    """
    added = [] if turn.steps_omitted else list(takewhile(lambda step: isinstance(step, UserStep), turn.steps))
    prompt = with_names(turn.user_message, turn.attachments)
    events: list[ReplayEvent] = [UserEvent(content=joined_prompts(prompt, _texts(added)))]
    if turn.steps_omitted:
        events.append(ThinkEvent(content=f"[... the first {turn.steps_omitted:,} steps of this turn are left out ...]"))
    events += step_events(turn.steps[len(added) :], is_running=not turn.is_complete)
    # The last step of a turn that ended well is its answer.
    end = RespondEvent(content=ending_note(turn) or turn.agent_message or "")
    return [*events, end] if end.content and events[-1] != end else events


def step_events(steps: Iterable[Step], *, is_running: bool = False) -> list[ReplayEvent]:
    """Return the events of some steps of a turn; in one that `is_running`, missing results are still to come."""
    events = list[ReplayEvent]()
    for are_prompts, some in groupby(steps, key=lambda step: isinstance(step, UserStep)):
        if are_prompts:
            events.append(UserEvent(content=joined_prompts(None, _texts(list(some)))))
        else:
            events += [event for step in some for event in _events_in_step(step, is_running)]
    return events


def _texts(steps: Sequence[Step]) -> list[str]:
    return [with_names(step.content, step.attachments) for step in steps if isinstance(step, UserStep)]


def _events_in_step(step: Step, is_running: bool) -> Iterator[ReplayEvent]:
    if isinstance(step, UserStep):
        return
    if step.interrupted:
        # A model can continue from the text only: the thinking is incomplete, and the calls were never made.
        if step.text:
            yield RespondEvent(content=f"{INTERRUPTED_NOTE}{step.text}")
        return
    if step.thinking:
        yield ThinkEvent(content=step.thinking)
    if step.text:
        yield RespondEvent(content=step.text)
    for call in step.tool_calls:
        yield _call_event(call)
        yield _result_event(call.result, is_running)


def _call_event(call: ToolCall) -> CallEvent:
    if call.args_blob is not None:
        return CallEvent(name=call.name, args=f"[... {call.args_blob.chars:,} characters left out ...]")
    return CallEvent.of(call.name, call.args)


def _result_event(result: ToolResult | None, is_running: bool) -> ResultEvent:
    if result is None:
        return ResultEvent(outcome=RUNNING if is_running else INTERRUPTED)
    outcome = result.outcome.replace("\n", " ")
    if result.status in ("cancelled", "outcome_unknown"):
        # Written by the session or its worker when the call was lost or the turn ended; the tool has returned nothing.
        content = f"{outcome}\n{result.content}" if result.content else outcome
        return ResultEvent(outcome=INTERRUPTED, content=content)
    return ResultEvent(outcome=outcome, content=with_names(result.content, result.attachments))
