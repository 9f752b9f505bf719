"""What of a session is to go to the archive, and when (SES-15): read off the session, which `moved` then changes."""

from collections.abc import Iterator

from models.archive import ArchiveMove
from models.conversation import ConversationMessage
from models.session_state import Session
from models.trajectory import Step
from models.transcript import carried_size


def next_move(session: Session) -> ArchiveMove | None:
    """Return the oldest turns that are to be moved to the archive now; `None` while all may stay."""
    limits, transcript = session.config.limits, session.transcript
    if transcript.carried_bytes > limits.archive_above_bytes:
        staying = limits.archive_above_bytes // 2
    elif session.is_full:
        staying = 0
    else:
        return None
    turns = transcript.oldest(beyond_bytes=staying, most_bytes=limits.max_state_bytes // 2)
    return _detaching(session, turns, first=session.archived_count + 1, turns=turns) if turns else None


def spilled(session: Session, *, most_bytes: int) -> ArchiveMove | None:
    """Return the running turn's oldest steps that are to go so that it takes at most `most_bytes`.

    The newest step stays: what is still to be done is in it.
    """
    turn, leaving, excess = session.running_turn, list[Step](), session.turn_bytes - most_bytes
    for step in turn.steps[:-1] if turn else []:
        if excess <= 0:
            break
        leaving.append(step)
        excess -= len(step.model_dump_json(exclude_defaults=True))
    if turn is None or not leaving:
        return None
    return _detaching(session, [turn], first=turn.steps_omitted, steps_of=session.turn_count, steps=leaving)


def final_moves(session: Session) -> Iterator[ArchiveMove]:
    """Yield copies of all turns held, for the archive to have the whole transcript of a session that ends."""
    turns, first = session.transcript.turns, session.archived_count + 1
    for start, stop in _slices([carried_size(turn) for turn in turns], session.config.limits.max_state_bytes // 2):
        yield ArchiveMove(first=first + start, turns=turns[start:stop])


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
