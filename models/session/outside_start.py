"""Checks a start from outside that has a carried state (SES-10).

A contradiction in the state would later fail a workflow task for ever. `CarriedState` checks the types; this module
checks everything else that the code relies on.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta

from pydantic import BaseModel, ValidationError

from turnkeeper.models.context.view_entries import ViewRef
from turnkeeper.models.errors import RejectedError
from turnkeeper.models.field_paths import field_path
from turnkeeper.models.ids import is_id
from turnkeeper.models.invalid_values import reason_of
from turnkeeper.models.session.carried_state import CarriedState
from turnkeeper.models.session.messages import SessionInput, check_start
from turnkeeper.models.session.queue.fates import REMEMBERED_FATES, REMEMBERED_IDS
from turnkeeper.models.session.queue.prompt_queue import QueueState
from turnkeeper.models.session.queue.prompts import check_text
from turnkeeper.models.session.tasks.allowance import TurnAccount
from turnkeeper.models.session.tasks.task_state import ProgressReport, TaskState
from turnkeeper.models.session.turn.running_turn import CarriedTurn
from turnkeeper.models.tasks.enrichment import first_prompt
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.transcript.trajectory import ModelStep, UserStep
from turnkeeper.models.transcript.transcript import TranscriptState
from turnkeeper.models.wire import REASON_CHARS

MAX_START_BYTES = 1_500_000
"""Maximum of a start, as JSON: a carried state is under 1 MB, and at 2 MB Temporal fails the workflow task."""

MAX_TASKS = 300
"""Most sub-tasks of a carried state: all that may be open, and those that are remembered."""

MAX_COUNT = 2**31
"""Upper bound of counts; it fits Temporal's number types."""

MAX_TOKENS = 2**53
"""Upper bound of all tokens of a session: months of work use thousands of millions. JSON readers have it exactly."""

MAX_AHEAD = timedelta(days=366)
"""Maximum distance from now of the times in a carried turn."""


def check_outside_start(start: SessionInput, *, now: datetime) -> None:
    """Check that a session can run from this start to its end. Raises `RejectedError` naming the field.

    Every state from `Session.carry` passes.
    """
    check_start(start)
    _check_task(start)
    size = len(start.model_dump_json().encode())
    if size > MAX_START_BYTES:
        raise RejectedError("invalid", f"The input has {size:,} bytes of JSON; {MAX_START_BYTES:,} are allowed.")
    if start.carried is not None:
        for field, complaint in _contradictions(start.carried, now):
            raise RejectedError("invalid", f"carried.{field}: {complaint}.", field=f"carried.{field}")


def _check_task(start: SessionInput) -> None:
    """Raise `RejectedError` where a task has no first prompt, or one that its session would reject."""
    if start.task is None or start.first_prompt is not None or start.carried is not None:
        return
    if start.task.context is None:
        raise RejectedError("invalid", "task.context: give it, or a first_prompt.", field="task.context")
    check_text(first_prompt(start.task.context), limits=start.limits, field="task.context")


def _contradictions(carried: CarriedState, now: datetime) -> Iterator[tuple[str, str]]:
    transcript, context = carried.transcript, carried.context
    yield from _wrong_counts(carried)
    yield from _wrong_report(carried.task)
    yield from _wrong_turns(transcript, newest=carried.revision, is_running=carried.running is not None)
    yield from _wrong_prompts(carried.queue, transcript, is_running=carried.running is not None)
    if carried.running:
        yield from _wrong_running_turn(carried.running, transcript.turns, now)
    turns = {turn.id: turn for turn in transcript.turns}
    for field, refs in (("context.view.entries", context.view.entries), ("context.waiting", context.waiting)):
        yield from ((field, complaint) for ref in refs if (complaint := _wrong_ref(ref, turns, transcript.count)))
    if carried.archive.again_at and carried.archive.again_at > now + MAX_AHEAD:
        yield "archive.again_at", "lies too far ahead"
    if carried.ending is not None and len(carried.ending) > REASON_CHARS:
        yield "ending", f"may have {REASON_CHARS} characters"


def _wrong_counts(carried: CarriedState) -> Iterator[tuple[str, str]]:
    context = carried.context
    for prefix, model in (
        ("", carried),
        ("usage.", carried.usage),
        ("tasks_usage.", carried.tasks_usage),
        ("usage_between_turns.", carried.usage_between_turns),
        ("allowance.", carried.allowance),
        ("allowance.granted.", carried.allowance and carried.allowance.granted),
        ("transcript.", carried.transcript),
        ("archive.report.", carried.archive.report),
        ("moved_events.", carried.moved_events),
        ("queue.", carried.queue),
        ("tools.", carried.tools),
        ("refusals.", carried.refusals),
        ("task.", carried.task),
        ("task.reported.", carried.task.reported),
        ("task.condensed.", carried.task.condensed),
        ("tasks.", carried.tasks),
        ("context.", context),
        ("context.view.", context.view),
        ("context.reported.", context.reported),
        ("context.limit.", context.limit),
    ):
        max_count = MAX_TOKENS if "usage" in prefix or prefix.startswith("allowance.") else MAX_COUNT
        for name, number in _numbers(model) if model else ():
            if not 0 <= number < max_count:
                yield prefix + name, f"0 to {max_count:,} are allowed"
    if len(carried.tasks.tasks) > MAX_TASKS:
        yield "tasks.tasks", f"may have {MAX_TASKS} items"
    yield from _wrong_accounts(carried.accounts)
    summarised = context.view.summary.turns if context.view.summary else []
    if any(not 1 <= first <= last <= carried.transcript.count for first, last in summarised):
        yield "context.view.summary", "is of turns that do not exist"
    if context.view.segment < 1:
        yield "context.view.segment", "counts from 1"
    if len(carried.queue.taken_ids) > REMEMBERED_IDS:
        yield "queue.taken_ids", f"may have {REMEMBERED_IDS} items"
    if len(carried.queue.fates) > REMEMBERED_FATES:
        yield "queue.fates", f"may have {REMEMBERED_FATES} items"


def _wrong_accounts(accounts: Sequence[TurnAccount]) -> Iterator[tuple[str, str]]:
    portions = [portion for account in accounts for portion in account.portions.values()]
    if len(accounts) > MAX_TASKS or len(portions) > MAX_TASKS:
        yield "accounts", f"may have {MAX_TASKS} items, and as many portions"
    amounts = [*(account.used for account in accounts), *(portion.granted for portion in portions)]
    if any(not 0 <= number < MAX_TOKENS for amount in amounts for _, number in _numbers(amount)):
        yield "accounts", f"amounts of 0 to {MAX_TOKENS:,} are allowed"


def _wrong_report(task: TaskState) -> Iterator[tuple[str, str]]:
    """Yield what `report_progress` would have rejected."""
    try:
        ProgressReport.model_validate(task.model_dump(include=set(ProgressReport.model_fields)))
    except ValidationError as error:
        first = error.errors()[0]
        yield f"task.{field_path(first['loc'])}", reason_of(first)


def _numbers(model: BaseModel) -> Iterable[tuple[str, float]]:
    return ((name, value) for name, value in model if isinstance(value, int | float) and not isinstance(value, bool))


def _wrong_turns(transcript: TranscriptState, *, newest: int, is_running: bool) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with turns whose revisions are at most `newest`; the last one may be running."""
    turns, revision = transcript.turns, 0
    for index, turn in enumerate(turns):
        field = f"transcript.turns[{index}]"
        if not is_id(turn.id):
            yield f"{field}.id", "is not a valid id"
        if not revision <= turn.revision <= newest:
            yield f"{field}.revision", "is less than that of the turn before, or more than the session's"
        revision = turn.revision
        if turn.steps_omitted < 0:
            yield f"{field}.steps_omitted", "counts from 0"
        if not turn.is_complete and not (is_running and turn is turns[-1]):
            yield field, "has not ended and is not the running turn"
    if is_running and (not turns or turns[-1].is_complete):
        yield "running", "the newest turn is not running"


def _wrong_prompts(queue: QueueState, transcript: TranscriptState, *, is_running: bool) -> Iterator[tuple[str, str]]:
    seen = {turn.id for turn in transcript.turns}
    if len(seen) < len(transcript.turns):
        yield "transcript.turns", "two turns have the same id"
    for message_id in [prompt.id for prompt in queue.waiting] + [parked.id for parked in queue.parked]:
        if not is_id(message_id) or message_id in seen:
            yield "queue.waiting", "has an invalid id, or one of a turn or another prompt"
        seen.add(message_id)
    if queue.before_parked > len(queue.waiting):
        yield "queue.before_parked", "is more than there are prompts"
    # A prompt that was parked later, but is earlier in the queue, has a higher number.
    numbers = [parked.number for parked in queue.parked]
    if len(set(numbers)) < len(numbers) or any(not 0 < number < queue.next_number for number in numbers):
        yield "queue.parked", "has a duplicate number, or one that no prompt has"
    if any(not 0 <= parked.size < MAX_COUNT for parked in queue.parked):
        yield "queue.parked", "has an impossible size"
    if not is_running and any(prompt.mode == "steer" for prompt in queue.waiting):
        yield "queue.waiting", "there is no running turn to steer"


def _wrong_running_turn(
    running: CarriedTurn, turns: list[ConversationMessage], now: datetime
) -> Iterator[tuple[str, str]]:
    for name, count in (("steps", running.steps), ("calls", running.calls)):
        if not 0 <= count < MAX_COUNT:
            yield f"running.{name}", f"0 to {MAX_COUNT:,} are allowed"
    if running.segment is not None and not 1 <= running.segment < MAX_COUNT:
        yield "running.segment", "counts from 1"
    if running.deadline > now + MAX_AHEAD:
        yield "running.deadline", "lies too far ahead"
    if running.awaiting_since and abs(now - running.awaiting_since) > MAX_AHEAD:
        yield "running.awaiting_since", "lies too far away"
    steps = turns[-1].steps if turns else []
    newest = steps[-1] if steps else None
    if running.unsettled and not isinstance(newest, ModelStep):
        yield "running.unsettled", "the newest step is not the model's"
    for call in newest.tool_calls if isinstance(newest, ModelStep) else []:
        if call.approval and call.approval.expires_at > now + MAX_AHEAD:
            yield "transcript.turns", "an approval expires too far ahead"
    settled = steps[:-1] if running.unsettled else steps
    if any(call.result is None for step in settled if isinstance(step, ModelStep) for call in step.tool_calls):
        yield "running.unsettled", "a call of a step that the model has seen has no result"


def _wrong_ref(ref: ViewRef, turns: dict[str, ConversationMessage], turn_count: int) -> str | None:
    if not 1 <= ref.number <= turn_count or not 0 <= ref.retried < ref.number:
        return "has a number that no turn has"
    if ref.messages:
        return None
    turn = turns.get(ref.turn)
    if turn is None:
        return "refers to a turn that does not exist"
    first = 0 if ref.step is None else ref.step
    steps = range(first, first + ref.added + (ref.step is not None))
    if ref.added < 0 or any(not 0 <= index - turn.steps_omitted < len(turn.steps) for index in steps):
        return "refers to a step that does not exist"
    if ref.added and any(not isinstance(turn.steps[index - turn.steps_omitted], UserStep) for index in steps):
        return "has prompts added that are none"
    step = None if ref.step is None else turn.steps[ref.step - turn.steps_omitted]
    if isinstance(step, ModelStep) and any(call.result is None for call in step.tool_calls):
        return "refers to a call that has no result"
    return None
