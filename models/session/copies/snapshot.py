"""What a copy of a session is made of, as of its last completed turn (SES-18)."""

from collections.abc import Iterable

from turnkeeper.models.as_of import Stamp
from turnkeeper.models.context.model_context import ContextState
from turnkeeper.models.context.model_view import ViewState
from turnkeeper.models.context.view_entries import ViewRef
from turnkeeper.models.session.carried_state import SessionFacts
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.session.session import Session
from turnkeeper.models.transcript.transcript import TranscriptState
from turnkeeper.models.wire import Compact


class SessionSnapshot(Compact):
    """A session's configuration, its turns after the archived ones, and what the model sees. Under 1 MB of JSON.

    It ends with the last completed turn. Opaque provider state is left out: a copy begins a new segment.
    """

    config: SessionInput
    facts: SessionFacts
    transcript: TranscriptState = TranscriptState()
    context: ContextState | None = None
    """`None`: Temporal no longer has the session, and nobody knows what its model saw."""
    running_turn: str | None = None
    waiting_prompts: int = 0
    as_of: Stamp = None


def snapshot_of(session: Session) -> SessionSnapshot:
    """Return the session as of its last completed turn."""
    transcript, running = session.transcript.state, None
    if transcript.turns and not transcript.turns[-1].is_complete:
        running = transcript.turns[-1].id
        transcript = transcript.model_copy(update={"turns": transcript.turns[:-1]})
    return SessionSnapshot(
        config=session.config.model_copy(update={"chat_url": None, "task": None}),
        facts=session.facts,
        transcript=transcript,
        context=context_through(session.context.state, transcript.count),
        running_turn=running,
        waiting_prompts=len(session.queue),
    )


def context_through(context: ContextState, count: int) -> ContextState:
    """Return what is known of the model's context of the first `count` turns, without opaque provider state.

    A summary that tells of later turns is left out.
    """
    entries, summary = list(_refs_through(context.view.entries, count)), context.view.summary
    seen = {ref.number for ref in entries}
    if summary and any(last > count for _, last in summary.turns):
        summary = None
    return ContextState(
        view=ViewState(entries=entries, summary=summary, segment=context.view.segment + 1),
        waiting=list(_refs_through(context.waiting, count)),
        evicted_since=context.evicted_since,
        summaries_failed=context.summaries_failed,
        given_up=context.given_up,
        cut={number: chars for number, chars in context.cut.items() if number in seen},
        limit=context.limit,
    )


def _refs_through(refs: Iterable[ViewRef], count: int) -> Iterable[ViewRef]:
    for ref in refs:
        if ref.number <= count:
            messages = tuple(message.model_copy(update={"state": None}) for message in ref.messages)
            yield ref.model_copy(update={"state": None, "messages": messages})
