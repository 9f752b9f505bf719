"""A turn as events of the replay text: what was said, thought and done in it, in its order (CTX-12)."""

from collections.abc import Iterable, Iterator

from turnkeeper.models.replay_text.grammar import (
    CallEvent,
    ReplayEvent,
    RespondEvent,
    ResultEvent,
    ThinkEvent,
    UserEvent,
)
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.transcript.trajectory import INTERRUPTED_NOTE, Step, ToolCall, ToolResult, UserStep

INTERRUPTED = "Interrupted: outcome unknown"
"""Outcome of a call whose result never came."""

RUNNING = "Running"
"""Outcome of a call that is still at work."""


def replay_events(turn: ConversationMessage) -> list[ReplayEvent]:
    """Return what happened in a turn, oldest first: every call with its result right after it.

    It begins with the prompt that opened the turn, also if steps after that one are omitted: then a thought says how
    many. Why a turn failed is nothing anybody said, so it is no event. Large texts that are kept by reference are shown
    as excerpts; whoever wants them whole puts them back first (`resolve_turn`).

    >>> from datetime import UTC, datetime
    >>> moment = datetime(2026, 1, 1, tzinfo=UTC)
    >>> turn = ConversationMessage(
    ...     id="m1", timestamp=moment, user_timestamp=moment, revision=2, user_message="Hi", agent_message="Hello!")
    >>> replay_events(turn)
    [UserEvent(type='user', content='Hi'), RespondEvent(type='respond', content='Hello!')]
    """
    events: list[ReplayEvent] = [UserEvent(content=turn.user_message)]
    if turn.steps_omitted:
        events.append(ThinkEvent(content=f"[... the first {turn.steps_omitted:,} steps of this turn are left out ...]"))
    events += step_events(turn.steps, is_running=not turn.is_complete)
    # The last step of a turn that ended well is its answer.
    answer = RespondEvent(content=turn.agent_message) if turn.agent_message else None
    return [*events, answer] if answer and events[-1] != answer else events


def step_events(steps: Iterable[Step], *, is_running: bool = False) -> list[ReplayEvent]:
    """Return what happened in some steps of a turn; where it `is_running`, results that are not there yet may come."""
    return [event for step in steps for event in _events_in_step(step, is_running)]


def _events_in_step(step: Step, is_running: bool) -> Iterator[ReplayEvent]:
    if isinstance(step, UserStep):
        yield UserEvent(content=step.content)
        return
    if step.interrupted:
        # Who goes on from here goes on from the text: the thinking has no end, and the calls were never made.
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
        # The session put it there when the turn ended, or its worker did; none came from the tool.
        told = f"{outcome}\n{result.content}" if result.content else outcome
        return ResultEvent(outcome=INTERRUPTED, content=told)
    return ResultEvent(outcome=outcome, content=result.content)
