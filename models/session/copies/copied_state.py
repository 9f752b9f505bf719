"""The state that a copy of a session begins with (SES-18).

A copy has the transcript and the model's view of it. It has no allowances of tools: a person gave them to another
session. Its tools are loaded before its first request.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from turnkeeper.models.context.model_context import ContextState, LearnedLimit, ModelContext
from turnkeeper.models.context.summary import Summary
from turnkeeper.models.limits import Limits
from turnkeeper.models.session.carried_state import CarriedState
from turnkeeper.models.session.copies.copied_turns import CopiedTurns
from turnkeeper.models.session.copies.document import ExportedTurn
from turnkeeper.models.session.copies.snapshot import SessionSnapshot, context_through
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.session.queue.prompt_queue import QueueState
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.transcript.model_call import RequestHead
from turnkeeper.models.transcript.transcript import Transcript, TranscriptState


@dataclass(frozen=True)
class Copy:
    """What a copy begins with: its newest turns, which it has in its session, and what its model sees.

    `texts`: what the model's view refers to and no turn does.
    """

    turns: list[ConversationMessage]
    context: ContextState
    texts: list[str] = field(default_factory=list)


def max_session_bytes(limits: Limits) -> int:
    """Return how many bytes of turns a copy has in its session: what is left after a move to the archive."""
    return limits.archive_above_bytes // 2


def copy_of_first_turns(snapshot: SessionSnapshot, copied: CopiedTurns) -> Copy:
    """Return what a fork begins with that has the first turns of a session, those in `copied`."""
    own_turns, archived = snapshot.transcript.turns, snapshot.transcript.archived
    turns = own_turns[: copied.count - archived] if copied.count > archived else copied.newest_turns()
    context = snapshot.context
    if context is None:
        return copy_with_new_view(snapshot.config, copied, turns=turns)
    earlier = context_through(context, copied.count)
    if copied.count == snapshot.transcript.count or _shows_all(context, copied.count):
        return Copy(turns, earlier)
    summary = earlier.view.summary
    return copy_with_new_view(snapshot.config, copied, turns=turns, limit=context.limit, summary=summary)


def _shows_all(context: ContextState, count: int) -> bool:
    """Return whether the model sees the turns 1 to `count` whole."""
    seen = {ref.number for ref in context.view.entries}
    return seen >= set(range(1, count + 1)) and not any(number <= count for number in context.cut)


def copy_with_new_view(
    config: SessionInput,
    copied: CopiedTurns,
    *,
    turns: Sequence[ConversationMessage],
    limit: LearnedLimit | None = None,
    summary: Summary | None = None,
) -> Copy:
    """Return what a copy begins with whose model's view is made of the newest turns, by the rules of its window.

    `turns` are those that it has in its session. Earlier messages are in the `summary`, or as forgotten as evicted ones
    without one.
    """
    limits = config.limits
    first = copied.count - len(turns) + 1
    transcript = Transcript(TranscriptState(turns=list(turns), archived=first - 1), page_bytes=limits.page_bytes)
    context = ModelContext(ContextState(limit=limit), transcript)
    visible = copied.for_view()
    newest: ConversationMessage | None = None
    for exported in visible:
        retried = newest if newest and newest.is_error and newest.id == exported.turn.retries else None
        context.view.append_turn(exported.turn, number=exported.number, retried=retried)
        newest = exported.turn
    texts = _detach(context, [one for one in visible if one.number < first or one.archived_steps], first, limits)
    if summary:
        context.view.insert_summary(summary)
    window = config.history.model_copy(update={"summarize_on_trim": False})
    head = RequestHead(system=config.system_prompt)
    context.evict(window, model=config.model, head=head, max_bytes=limits.view_bytes)
    return Copy(list(turns), context.state, texts)


def _detach(context: ModelContext, leaving: Sequence[ExportedTurn], first: int, limits: Limits) -> list[str]:
    """Move the messages of turns and steps that the session does not have into the view; return texts to store."""
    texts = context.texts_of([one.turn for one in leaving], inline_bytes=limits.small_text_bytes)
    for one in leaving:
        steps_before = None if one.number < first else one.archived_steps
        context.detach(one.turn, steps_before=steps_before, inline_bytes=limits.small_text_bytes)
    return texts


def start_of_copy(config: SessionInput, copied: CopiedTurns, copy: Copy, *, now: datetime) -> SessionInput:
    """Return the input of the new session. Its turns keep their ids, times and revisions."""
    state = CarriedState(
        created_at=now,
        revision=max((turn.revision for turn in copy.turns), default=0),
        usage=copied.usage,
        tasks_usage=copied.tasks_usage,
        moved_events=copied.events_before(copy.turns),
        transcript=TranscriptState(turns=copy.turns, archived=copied.count - len(copy.turns)),
        queue=QueueState(
            taken_ids=list(dict.fromkeys(copied.ids)),
            fates=list(copied.fates),
        ),
        context=copy.context,
    )
    return config.model_copy(update={"first_prompt": None, "task": None, "carried": state})
