"""What of a session is to go to the archive, and when (SES-15): read off the session, which drops it then."""

from collections.abc import Iterator

from turnkeeper.models.session.archive.archive_state import ArchiveMove
from turnkeeper.models.session.queue.leaving_fates import fate_bytes
from turnkeeper.models.session.queue.prompt_queue import FATES_AT_ONCE
from turnkeeper.models.session.session_state import Session
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.transcript.transcript import carried_size


def next_move(session: Session) -> ArchiveMove | None:
    """Return the oldest turns that are to be moved to the archive now; `None` while all may stay."""
    limits, transcript = session.config.limits, session.transcript
    if transcript.carried_bytes > limits.archive_above_bytes:
        staying = limits.archive_above_bytes // 2
    elif session.room.is_full:
        staying = 0
    else:
        return None
    turns = transcript.oldest(beyond_bytes=staying, most_bytes=limits.max_state_bytes // 2)
    return _detaching(session, turns, first=session.transcript.archived + 1, turns=turns) if turns else None


def spilled(session: Session, *, most_bytes: int) -> ArchiveMove | None:
    """Return the running turn's oldest steps that are to go so that it takes at most `most_bytes`.

    The newest step stays: what is still to be done is in it.
    """
    turn = session.current_turn.running()
    steps, message = turn.oldest_steps(beyond_bytes=most_bytes), turn.message
    if not steps:
        return None
    return _detaching(session, [message], first=message.steps_omitted, steps_of=session.turn_count, steps=steps)


def prompt_move_is_due(session: Session, *, parks: bool) -> bool:
    """Return whether fates are to leave for the archive, or prompts are to be parked or forgotten there now.

    `parks`: the next run is due, so that what it can't be handed over is to be parked.
    """
    queue, limits = session.queue, session.config.limits
    fates_are_due = len(queue.leaving) >= FATES_AT_ONCE or queue.leaving.bytes > limits.leaving_bytes
    is_all_back = not queue.parked and queue.row.forgotten < queue.row.next_number
    return fates_are_due or is_all_back or (parks and not queue.row.fits(limits))


def next_prompt_move(session: Session, *, parks: bool) -> ArchiveMove:
    """Return what `prompt_move_is_due` for; prompts that are to be parked are given numbers of their own."""
    queue, limits = session.queue, session.config.limits
    max_bytes, forget_below = limits.max_state_bytes // 2, queue.row.forgettable
    if parks and not queue.row.fits(limits):
        prompts = queue.row.next_parked(limits, max_bytes=max_bytes)
        return ArchiveMove(first=queue.row.number_parked(len(prompts)), prompts=prompts, forget_below=forget_below)
    fates = queue.leaving.first(max_bytes=max_bytes)
    return ArchiveMove(first=0, fates=fates, forget_below=forget_below)


def final_moves(session: Session) -> Iterator[ArchiveMove]:
    """Yield copies of all that a session holds which ends: the archive has its whole transcript and every fate then."""
    turns, first = session.transcript.turns, session.transcript.archived + 1
    for start, stop in _slices([carried_size(turn) for turn in turns], session.config.limits.max_state_bytes // 2):
        yield ArchiveMove(first=first + start, turns=turns[start:stop])
    if session.rules >= 2:
        yield from _final_fates(session)


def _final_fates(session: Session) -> Iterator[ArchiveMove]:
    queue, max_bytes = session.queue, session.config.limits.max_state_bytes // 2
    fates = [*queue.leaving, *(fate for fate in queue.fates if fate.fate != "started")]
    for start, stop in _slices([fate_bytes(fate) for fate in fates], max_bytes):
        yield ArchiveMove(first=0, fates=fates[start:stop])
    if queue.row.forgotten < queue.row.next_number:
        yield ArchiveMove(first=0, forget_below=queue.row.next_number)


def _detaching(session: Session, gone: list[ConversationMessage], **what: object) -> ArchiveMove:
    """Return the move of `what`, with the texts that the model view will refer to once the turns are `gone`."""
    kept_bytes = session.config.limits.small_text_bytes
    texts = session.context.texts_of(gone, kept_bytes=kept_bytes)
    return ArchiveMove.model_validate({**what, "texts": texts, "kept_bytes": kept_bytes})


def _slices(sizes: list[int], most: int) -> Iterator[tuple[int, int]]:
    """Cut a row of things into slices of at most `most` together, each of one thing at least.

    >>> list(_slices([3, 3, 9, 1], 6))
    [(0, 2), (2, 3), (3, 4)]
    """
    start, total = 0, 0
    for index, size in enumerate(sizes):
        if index > start and total + size > most:
            yield start, index
            start, total = index, 0
        total += size
    if sizes:
        yield start, len(sizes)
