"""Reads the turns of a whole session, with their archived steps: what copies and exports are made of."""

from collections.abc import AsyncIterator

from turnkeeper.features.copies.document.document import ExportedTurn
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.transcript.conversation import ConversationMessage, ReasoningTrajectory
from turnkeeper.models.transcript.transcript import TranscriptState
from turnkeeper.stores.archive import MISSING_TURNS, Archive, ArchiveGapError

TURNS_AT_ONCE = 100
"""Read at once."""


async def whole_turns(
    archive: Archive, owner: WorkflowId, transcript: TranscriptState, *, last: int | None = None
) -> AsyncIterator[list[ExportedTurn]]:
    """Yield the turns 1 to `last` (`None`: all) with all their steps, in parts, oldest first.

    `transcript` is that of the session, which has the turns after the archived ones.
    Raises `StoreUnavailableError` if the archive can't be read or lacks one.
    """
    turns, archived = transcript.turns, transcript.archived
    count = transcript.count if last is None else last
    for first in range(1, min(archived, count) + 1, TURNS_AT_ONCE):
        stop = min(archived, count, first + TURNS_AT_ONCE - 1)
        rows = await archive.range(owner, first, stop)
        if [row.number for row in rows] != list(range(first, stop + 1)):
            raise ArchiveGapError(MISSING_TURNS)
        yield [await _with_all_steps(archive, owner, row.number, row.turn) for row in rows]
    if count > archived:
        numbered = enumerate(turns[: count - archived], start=archived + 1)
        yield [await _with_all_steps(archive, owner, number, turn) for number, turn in numbered]


async def _with_all_steps(archive: Archive, owner: WorkflowId, number: int, turn: ConversationMessage) -> ExportedTurn:
    omitted = turn.steps_omitted
    if not omitted:
        return ExportedTurn(number=number, turn=turn)
    steps = await archive.steps(owner, number, count=omitted)
    if len(steps) != omitted:
        raise ArchiveGapError(MISSING_TURNS)
    trajectory = ReasoningTrajectory(steps=[*steps, *turn.steps])
    whole = turn.model_copy(update={"reasoning_trajectory": trajectory, "steps_omitted": 0})
    return ExportedTurn(number=number, archived_steps=omitted, turn=whole)
