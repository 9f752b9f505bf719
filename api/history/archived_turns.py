"""Reads of the archive without gaps: the turns before a number, and the early steps of a turn (SES-15)."""

from turnkeeper.api.store_calls import read_store
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.transcript.conversation import ConversationMessage, ReasoningTrajectory
from turnkeeper.stores.archive import MISSING_TURNS, Archive
from turnkeeper.stores.database.database import StoreUnavailableError


async def turns_before(
    archive: Archive, owner: WorkflowId, number: int, *, limit: int | None, max_bytes: int, until: float
) -> list[ConversationMessage]:
    """Return the turns just before `number`, oldest first, at least one. Raises `StoreUnavailableError`."""
    page = archive.page(owner, before=number, limit=limit, max_bytes=max_bytes)
    rows = await read_store(page, until=until)
    if not rows or [row.number for row in rows] != list(range(number - len(rows), number)):
        raise missing_turns_error()
    return [row.turn for row in rows]


async def with_archived_steps(
    archive: Archive, owner: WorkflowId, number: int, turn: ConversationMessage, *, until: float
) -> ConversationMessage:
    """Return turn `number` with its archived steps. They stay omitted if the archive can't be read."""
    if not turn.steps_omitted:
        return turn
    try:
        early_steps = await read_store(archive.steps(owner, number, count=turn.steps_omitted), until=until)
    except StoreUnavailableError:
        return turn
    if len(early_steps) != turn.steps_omitted:
        return turn
    steps = ReasoningTrajectory(steps=[*early_steps, *turn.steps])
    return turn.model_copy(update={"reasoning_trajectory": steps, "steps_omitted": 0})


def missing_turns_error() -> StoreUnavailableError:
    """Return the error of an archive that is not the one that the session uses, such as an empty new one."""
    return StoreUnavailableError(MISSING_TURNS)
