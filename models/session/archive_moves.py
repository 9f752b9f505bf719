"""Plans of moves to the archive (SES-15). The session itself drops it after the move."""

from collections.abc import Iterator

from turnkeeper.models.session.archive import ArchiveMove
from turnkeeper.models.session.prompt_queue import FATES_AT_ONCE
from turnkeeper.models.session.prompts import fate_bytes
from turnkeeper.models.session.running_turn import RunningTurn
from turnkeeper.models.session.session import Session
from turnkeeper.models.transcript.conversation import ConversationMessage, Step, UserStep
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


def next_copy(session: Session) -> ArchiveMove | None:
    """Return a copy of the oldest ended turns that the archive lacks; `None` if it lacks none.

    After a failure it begins with the oldest turn in the session: the archive may be another one now.
    """
    transcript, is_failing = session.transcript, session.archive.is_failing
    if transcript.is_copied:
        return None
    turns = transcript.uncopied(max_bytes=session.config.limits.max_state_bytes // 2, again=is_failing)
    first = transcript.archived + 1 + (0 if is_failing else transcript.copied)
    return ArchiveMove(first=first, turns=turns, keeps=True)


def next_step_move(session: Session, *, max_bytes: int) -> ArchiveMove | None:
    """Return the move of the running turn's oldest steps beyond `max_bytes`; `None` if none can go."""
    turn = session.turn_slot.running()
    steps, message = oldest_steps(turn, keep_bytes=max_bytes), turn.message
    if not steps:
        return None
    return _detaching(session, [message], first=message.steps_omitted, steps_of=session.transcript.count, steps=steps)


def oldest_steps(turn: RunningTurn, *, keep_bytes: int) -> list[Step]:
    """Return the oldest steps of a turn beyond `keep_bytes`.

    The newest step always stays, since its calls may be pending.
    """
    leaving, excess = list[Step](), turn.carried_bytes - keep_bytes
    for step in turn.message.steps[:-1]:
        # Steering prompts stay with the one before them: they are one message of the replay text.
        if excess <= 0 and not (leaving and isinstance(step, UserStep)):
            break
        leaving.append(step)
        excess -= len(step.model_dump_json(exclude_defaults=True))
    return leaving


def prompt_move_is_due(session: Session, *, parks: bool) -> bool:
    """Return whether fates or prompts are to move to the archive now, or parked prompts are to be deleted there.

    `parks`: the next run is due, so prompts that it can't carry are to be parked.
    """
    queue, limits = session.queue, session.config.limits
    book = queue.fate_book
    fates_are_due = len(book.leaving) >= FATES_AT_ONCE or book.leaving_bytes > limits.leaving_bytes
    has_stale_copies = not queue.parked and queue.forgotten < queue.next_number
    return fates_are_due or has_stale_copies or (parks and not queue.fits(limits))


def next_prompt_move(session: Session, *, parks: bool) -> ArchiveMove:
    """Return the move that `prompt_move_is_due` announced; prompts to park get new numbers."""
    queue, limits = session.queue, session.config.limits
    max_bytes = limits.max_state_bytes // 2
    if parks and not queue.fits(limits):
        return queue.next_to_park(limits, max_bytes=max_bytes)
    fates = queue.fate_book.first_leaving(max_bytes=max_bytes)
    return ArchiveMove(first=0, fates=fates, forget_below=queue.forgettable)


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
    book = queue.fate_book
    fates = [*book.leaving, *(fate for fate in book.recent if fate.fate != "started")]
    for start, stop in _slices([fate_bytes(fate) for fate in fates], max_bytes):
        yield ArchiveMove(first=0, fates=fates[start:stop])
    if queue.forgotten < queue.next_number:
        yield ArchiveMove(first=0, forget_below=queue.next_number)


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
