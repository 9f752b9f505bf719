"""Where messages are left out, and the notes that say so (CTX-17).

Theory of operation. Entries have the numbers of their turns and steps, which count without gaps. So what is missing
between two neighbours follows from the two alone: turns, steps of one turn, or the answer of the earlier one. Nothing
is counted or carried, a note can't become stale, and appending an entry never changes an earlier note.

A summary stands where the first turns are missing, in place of their note.
"""

from collections.abc import Iterable, Mapping, Sequence

from turnkeeper.models.context.summary import Summary, summary_message
from turnkeeper.models.context.view_entries import ViewEntry, ViewRef
from turnkeeper.models.transcript.model_call import ModelMessage
from turnkeeper.models.transcript.notes import ANSWERED, UNANSWERED, prompt_left_out, steps_left_out, turns_left_out


def arranged(entries: Sequence[ViewEntry], summary: Summary | None) -> list[ViewEntry]:
    """Return `entries` with the `summary` and the notes between them."""
    place = _place_of_summary(entries) if summary else None
    visible = list[ViewEntry]()
    for index, (earlier, later) in enumerate(_pairs(entries)):
        visible += [
            *notes_between(earlier, later, summary=summary, is_its_place=index == place),
            *_stand_in(earlier, later, {}),
            later,
        ]
    return visible if entries or not summary else [summary_entry(summary)]


def notes_between(
    earlier: ViewEntry | None, later: ViewEntry, *, summary: Summary | None = None, is_its_place: bool = False
) -> list[ViewEntry]:
    """Return the notes between two neighbours, with the `summary` if `is_its_place`; else at most one.

    `earlier` is `None` if `later` is the first entry. Steps of a turn that the summary covers are not noted.
    """
    if earlier and earlier.ref.number == later.ref.number:
        if summary and is_its_place:
            return [summary_entry(summary)]
        steps = 0 if _has(summary, later.ref.number) else _missing_steps(earlier, later)
        unanswered = [UNANSWERED] if earlier.is_from_user and later.is_from_user else []
        return [*map(_note, [steps_left_out(steps)] if steps else unanswered)]
    summary = summary if is_its_place else None
    missing = _missing_turns(earlier, later)
    answered = [ANSWERED] if earlier and not earlier.ends_turn and not _has(summary, earlier.ref.number) else []
    count = len(missing) - sum(map(len, _covered(missing, summary)))
    turns = [turns_left_out(count)] if count else []
    if summary is None:
        return [_note(" ".join([*answered, *turns]))] if answered or turns else []
    return [*map(_note, answered), summary_entry(summary), *map(_note, turns)]


def messages_to_summarise(waiting: Sequence[ViewEntry], prompts: Mapping[int, str]) -> list[ModelMessage]:
    """Return the messages of evicted entries; `prompts`: of turns whose prompt stays, by turn number.

    A note stands in for a prompt that is not among them, so that nothing follows another turn's prompt.
    """
    messages = list[ModelMessage]()
    for earlier, later in _pairs(waiting):
        notes = notes_between(earlier, later) if earlier else []
        visible = [*notes, *_stand_in(earlier, later, prompts), later]
        messages += [message for entry in visible for message in entry.messages]
    return messages


def _stand_in(earlier: ViewEntry | None, later: ViewEntry, prompts: Mapping[int, str]) -> list[ViewEntry]:
    """Return a user message in place of a prompt that is missing between two entries, if one is."""
    is_same_turn = earlier is not None and earlier.ref.number == later.ref.number
    if is_same_turn or later.begins_turn or later.is_from_user:
        return []
    message = ModelMessage(role="user", content=prompt_left_out(prompts.get(later.ref.number)))
    return [ViewEntry.with_messages(ViewRef(turn=""), (message,))]


def summary_entry(summary: Summary) -> ViewEntry:
    return ViewEntry.with_messages(ViewRef(turn=""), (summary_message(summary),))


def _pairs(entries: Sequence[ViewEntry]) -> Iterable[tuple[ViewEntry | None, ViewEntry]]:
    """Return each entry with the one before it."""
    return zip([None, *entries], entries, strict=False)


def _place_of_summary(entries: Sequence[ViewEntry]) -> int:
    """Return the index of the entry that the summary precedes: after the first gap between turns, or in a turn."""
    pairs = list(enumerate(_pairs(entries)))
    between = (index for index, (earlier, later) in pairs if _missing_turns(earlier, later))
    within = (index for index, (earlier, later) in pairs if earlier and _missing_steps(earlier, later))
    return next(between, next(within, 0))


def _missing_turns(earlier: ViewEntry | None, later: ViewEntry) -> range:
    return range(earlier.ref.number + 1 if earlier else 1, later.ref.number - later.ref.retried)


def _missing_steps(earlier: ViewEntry, later: ViewEntry) -> int:
    """Return how many steps are missing between two entries of one turn; 0 for entries of two."""
    if earlier.ref.number != later.ref.number:
        return 0
    return max(0, (later.ref.step or 0) - earlier.steps_so_far)


def _has(summary: Summary | None, number: int) -> bool:
    return summary is not None and any(first <= number <= last for first, last in summary.turns)


def _covered(numbers: range, summary: Summary | None) -> Iterable[range]:
    """Return the parts of `numbers` that the summary covers."""
    for first, last in summary.turns if summary else []:
        yield range(max(first, numbers.start), min(last + 1, numbers.stop))


def _note(sentences: str) -> ViewEntry:
    return ViewEntry.of_note(f"[{sentences}]")
