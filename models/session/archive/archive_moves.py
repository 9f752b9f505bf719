"""What moves to the archive, and when (SES-15). The session itself drops it after the move."""

from collections.abc import Iterator

from turnkeeper.models.session.archive.archive_messages import ArchiveMove
from turnkeeper.models.session.queue.leaving_fates import fate_bytes
from turnkeeper.models.session.queue.prompt_queue import FATES_AT_ONCE
from turnkeeper.models.session.session import Session
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.transcript.transcript import carried_size


def next_move(session: Session) -> ArchiveMove | None:
    """Return the move of the oldest turns that are to leave now; `None` while all may stay."""
    limits, transcript = session.config.limits, session.transcript
    if transcript.carried_bytes > limits.archive_above_bytes:
        keep_bytes = limits.archive_above_bytes // 2
    elif session.room.is_full:
        keep_bytes = 0
    else:
        return None
    turns = transcript.oldest(keep_bytes=keep_bytes, max_bytes=limits.max_state_bytes // 2)
    return _detaching(session, turns, first=session.transcript.archived + 1, turns=turns) if turns else None


def next_step_move(session: Session, *, max_bytes: int) -> ArchiveMove | None:
    """Return the move of the running turn's oldest steps beyond `max_bytes`; `None` if none can go.

    The newest step always stays, since its calls may be pending.
    """
    turn = session.turn_slot.running()
    steps, message = turn.oldest_steps(keep_bytes=max_bytes), turn.message
    if not steps:
        return None
    return _detaching(session, [message], first=message.steps_omitted, steps_of=session.turn_count, steps=steps)


def prompt_move_is_due(session: Session, *, parks: bool) -> bool:
    """Return whether fates or prompts are to move to the archive now, or parked prompts are to be deleted there.

    `parks`: the next run is due, so prompts that it can't carry are to be parked.
    """
    queue, limits = session.queue, session.config.limits
    fates_are_due = len(queue.leaving) >= FATES_AT_ONCE or queue.leaving.bytes > limits.leaving_bytes
    has_stale_copies = not queue.parked and queue.row.forgotten < queue.row.next_number
    return fates_are_due or has_stale_copies or (parks and not queue.row.fits(limits))


def next_prompt_move(session: Session, *, parks: bool) -> ArchiveMove:
    """Return the move that `prompt_move_is_due` announced; prompts to park get new numbers."""
    queue, limits = session.queue, session.config.limits
    max_bytes, forget_below = limits.max_state_bytes // 2, queue.row.forgettable
    if parks and not queue.row.fits(limits):
        prompts = queue.row.next_parked(limits, max_bytes=max_bytes)
        return ArchiveMove(first=queue.row.number_parked(len(prompts)), prompts=prompts, forget_below=forget_below)
    fates = queue.leaving.first(max_bytes=max_bytes)
    return ArchiveMove(first=0, fates=fates, forget_below=forget_below)


def final_moves(session: Session) -> Iterator[ArchiveMove]:
    """Yield copies of everything in an ending session, so that the archive has its transcript and fates.

    There is at least one, with which the session's end reaches the index.
    """
    turns, first = session.transcript.turns, session.transcript.archived + 1
    for start, stop in _slices([carried_size(turn) for turn in turns], session.config.limits.max_state_bytes // 2):
        yield ArchiveMove(first=first + start, turns=turns[start:stop])
    yield from _final_fates(session)
    if not turns:
        yield ArchiveMove(first=0)


def _final_fates(session: Session) -> Iterator[ArchiveMove]:
    queue, max_bytes = session.queue, session.config.limits.max_state_bytes // 2
    fates = [*queue.leaving, *(fate for fate in queue.fates if fate.fate != "started")]
    for start, stop in _slices([fate_bytes(fate) for fate in fates], max_bytes):
        yield ArchiveMove(first=0, fates=fates[start:stop])
    if queue.row.forgotten < queue.row.next_number:
        yield ArchiveMove(first=0, forget_below=queue.row.next_number)


def _detaching(session: Session, leaving: list[ConversationMessage], /, **content: object) -> ArchiveMove:
    """Return a move of `content`, with the texts that the model view will refer to after these turns are detached."""
    inline_bytes = session.config.limits.small_text_bytes
    texts = session.context.texts_of(leaving, inline_bytes=inline_bytes)
    return ArchiveMove.model_validate({**content, "texts": texts, "kept_bytes": inline_bytes})


def _slices(sizes: list[int], max_size: int) -> Iterator[tuple[int, int]]:
    """Yield slices of items of these sizes, each of at most `max_size` together, but at least one item.

    >>> list(_slices([3, 3, 9, 1], 6))
    [(0, 2), (2, 3), (3, 4)]
    """
    start, total = 0, 0
    for index, size in enumerate(sizes):
        if index > start and total + size > max_size:
            yield start, index
            start, total = index, 0
        total += size
    if sizes:
        yield start, len(sizes)
