"""The turns of a session from the first one on, with all their steps, from archive and session (SES-15, SES-18)."""

from collections.abc import AsyncIterator

from turnkeeper.api.history.archived_turns import missing_turns_error
from turnkeeper.api.store_calls import read_store, seconds_from_now
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.session.copies.document import ExportedTurn
from turnkeeper.models.session.copies.snapshot import SessionSnapshot
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.transcript.trajectory import ReasoningTrajectory
from turnkeeper.stores.archive import Archive

TURNS_AT_ONCE = 100


async def whole_turns(
    archive: Archive, owner: WorkflowId, snapshot: SessionSnapshot, timeouts: Timeouts, *, last: int | None = None
) -> AsyncIterator[list[ExportedTurn]]:
    """Yield the turns 1 to `last` (`None`: all) in parts, oldest first.

    Raises `StoreUnavailableError` if the archive can't be read or lacks one.
    """
    turns, archived = snapshot.transcript.turns, snapshot.transcript.archived
    count = snapshot.transcript.count if last is None else last
    for first in range(1, min(archived, count) + 1, TURNS_AT_ONCE):
        stop = min(archived, count, first + TURNS_AT_ONCE - 1)
        rows = await read_store(archive.range(owner, first, stop), until=seconds_from_now(timeouts.request))
        if [row.number for row in rows] != list(range(first, stop + 1)):
            raise missing_turns_error()
        yield [await _with_all_steps(archive, owner, row.number, row.turn, timeouts) for row in rows]
    if count > archived:
        numbered = enumerate(turns[: count - archived], start=archived + 1)
        yield [await _with_all_steps(archive, owner, number, turn, timeouts) for number, turn in numbered]


async def _with_all_steps(
    archive: Archive, owner: WorkflowId, number: int, turn: ConversationMessage, timeouts: Timeouts
) -> ExportedTurn:
    omitted = turn.steps_omitted
    if not omitted:
        return ExportedTurn(number=number, turn=turn)
    steps = await read_store(archive.steps(owner, number, count=omitted), until=seconds_from_now(timeouts.request))
    if len(steps) != omitted:
        raise missing_turns_error()
    trajectory = ReasoningTrajectory(steps=[*steps, *turn.steps])
    whole = turn.model_copy(update={"reasoning_trajectory": trajectory, "steps_omitted": 0})
    return ExportedTurn(number=number, archived_steps=omitted, turn=whole)
