"""What a copy of a session begins with, made of the turns that are copied (SES-18).

A copy has the transcript and the model's view of it. It has no allowances of tools: a person gave them to another
session. Its tools are loaded before its first request.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from turnkeeper.features.copies.document.document import ExportedTurn
from turnkeeper.models.context.model_context import ContextState, LearnedLimit, ModelContext
from turnkeeper.models.context.model_view import ViewState
from turnkeeper.models.context.summary import Summary
from turnkeeper.models.context.view_entries import ViewRef
from turnkeeper.models.context.window import ConversationHistoryConfig
from turnkeeper.models.limits import Limits
from turnkeeper.models.replay_text.turns import MovedEvents, count_events
from turnkeeper.models.session.messages import CarriedState, SessionFacts, SessionInput
from turnkeeper.models.session.prompt_queue import QueueState
from turnkeeper.models.session.prompts import REMEMBERED_FATES, REMEMBERED_IDS, Fate
from turnkeeper.models.session.session import Session
from turnkeeper.models.transcript.attachments import Attachment
from turnkeeper.models.transcript.conversation import BlobRef, ConversationMessage, ModelStep, Usage
from turnkeeper.models.transcript.large_texts import refs_in
from turnkeeper.models.transcript.model_call import RequestHead
from turnkeeper.models.transcript.transcript import Transcript, TranscriptState, carried_size
from turnkeeper.models.wire import Compact, Stamp


class SessionSnapshot(Compact):
    """A session's configuration, its turns after the archived ones, and what the model sees. Under 1 MB of JSON.

    It ends with the last completed turn. Opaque provider state is left out: a copy begins a new segment. So is what its
    features have: a copy is no task.
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
        config=session.config.model_copy(update={"chat_url": None, "features": {}}),
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


MAX_VIEW_TURNS = 1_000
"""Maximum of turns from which a model view is made, however many the window allows: it has a limit of bytes too."""


class CopiedTurns:
    """The turns of a copy; only the newest stay in memory."""

    def __init__(self, window: ConversationHistoryConfig, limits: Limits) -> None:
        self.count = 0
        self.usage = Usage()
        self.tasks_usage = Usage()
        self.ids: deque[str] = deque(maxlen=REMEMBERED_IDS)
        self.fates: deque[Fate] = deque(maxlen=REMEMBERED_FATES)
        self.events = 0
        """Events of the replay text in all turns but the newest."""
        self.head: list[ExportedTurn] = []
        """The first turns, which the window preserves."""
        self.newest: deque[ExportedTurn] = deque(maxlen=min(window.max_messages or MAX_VIEW_TURNS, MAX_VIEW_TURNS))
        self._head_turns = window.preserve_first_n
        self._max_bytes = limits.archive_above_bytes // 2
        """JSON of the newest turns that the copy has in its session: what is left after a move to the archive."""
        self._newest_events = 0

    def add(self, exported: ExportedTurn) -> None:
        """Add the next turn, with all its steps."""
        turn = exported.turn
        self.count += 1
        self.ids.append(turn.id)
        self.fates.append(Fate(id=turn.id, fate="started", turn_id=turn.id, at=turn.timestamp))
        self.usage += turn.usage or Usage()
        self.tasks_usage += turn.tasks_usage or Usage()
        self.events += self._newest_events
        self._newest_events = count_events(turn)
        if len(self.head) < self._head_turns:
            self.head.append(exported)
        self.newest.append(exported)

    def events_before(self, carried: Iterable[ConversationMessage]) -> MovedEvents:
        """Return the events of replay text that the archive has, if the session has the turns `carried`."""
        own_turns = list(carried)
        newest = self.newest[-1] if self.newest else None
        moved = MovedEvents().with_steps(newest.turn.steps[: newest.archived_steps]) if newest else MovedEvents()
        return MovedEvents(
            earlier=max(0, self.events - sum(count_events(turn) for turn in own_turns[:-1])), newest=moved.newest
        )

    def newest_turns(self) -> list[ConversationMessage]:
        """Return the newest turns that fit in `max_bytes`, at least one, as a session has them."""
        turns: list[ConversationMessage] = []
        room = self._max_bytes
        for exported in reversed(self.newest):
            turn = session_form(exported)
            room -= carried_size(turn)
            if turns and (room < 0 or len(turns) == REMEMBERED_FATES):
                break
            turns.append(turn)
        return turns[::-1]

    def for_view(self) -> list[ExportedTurn]:
        """Return the turns that the model may see at all: the first and the newest, oldest first."""
        visible = list[ExportedTurn]()
        ids = set[str]()
        # After 1,000 prompts an id may be another turn's, and views find turns by their ids: the newest has it.
        for one in [*reversed(self.newest), *reversed(self.head)]:
            if one.turn.id not in ids:
                visible.append(one)
                ids.add(one.turn.id)
        return visible[::-1]


def session_form(exported: ExportedTurn) -> ConversationMessage:
    """Return the turn as session and archive have it, without its archived steps."""
    return exported.turn.without_oldest_steps(exported.archived_steps) if exported.archived_steps else exported.turn


def attachments_in(turn: ConversationMessage) -> Iterator[list[Attachment]]:
    """Yield the attachments of a turn: of each of its prompts and of each of its tools' results."""
    yield turn.attachments
    for step in turn.steps:
        if not isinstance(step, ModelStep):
            yield step.attachments
            continue
        yield from (call.result.attachments for call in step.tool_calls if call.result)


def texts_in_view(refs: Iterable[ViewRef]) -> Iterator[BlobRef]:
    """Yield the references to large texts in messages that entries of a view carry themselves."""
    for message in (message for ref in refs for message in ref.messages):
        yield from (ref for ref in (message.blob, *(call.blob for call in message.tool_calls)) if ref)


def attachments_in_view(refs: Iterable[ViewRef]) -> Iterator[list[Attachment]]:
    """Yield the attachments of each message that entries of a view carry themselves."""
    return (message.attachments for ref in refs for message in ref.messages)


class StoredContents:
    """The hashes of the texts and attachments that only the store has, of turns and of what the model sees."""

    def __init__(self) -> None:
        self.texts = set[str]()
        self.attachments = set[str]()

    def add_turn(self, turn: ConversationMessage) -> None:
        self._add(refs_in(turn), attachments_in(turn))

    def add_view(self, context: ContextState) -> None:
        refs = [*context.view.entries, *context.waiting]
        self._add(texts_in_view(refs), attachments_in_view(refs))

    def _add(self, texts: Iterable[BlobRef], attachments: Iterable[list[Attachment]]) -> None:
        self.texts.update(ref.hash for ref in texts)
        self.attachments.update(one.hash for some in attachments for one in some if one.hash)


@dataclass(frozen=True)
class Copy:
    """What a copy begins with: its newest turns, which it has in its session, and what its model sees.

    `texts`: what the model's view refers to and no turn does.
    """

    turns: list[ConversationMessage]
    context: ContextState
    texts: list[str] = field(default_factory=list)


def copy_of_first_turns(
    config: SessionInput, transcript: TranscriptState, context: ContextState | None, copied: CopiedTurns
) -> Copy:
    """Return what a fork begins with that has the first turns of a session, those in `copied`.

    `context` is that of the original; `None`: it is no longer known.
    """
    archived, count = transcript.archived, copied.count
    turns = transcript.turns[: count - archived] if count > archived else copied.newest_turns()
    if context is None:
        return copy_with_new_view(config, copied, turns=turns)
    earlier = context_through(context, count)
    if count == transcript.count or _shows_all(context, count):
        return Copy(turns, earlier)
    return copy_with_new_view(config, copied, turns=turns, limit=context.limit, summary=earlier.view.summary)


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


def state_of_copy(copied: CopiedTurns, copy: Copy, *, now: datetime) -> CarriedState:
    """Return the state that the new session begins with. Its turns keep their ids, times and revisions."""
    return CarriedState(
        created_at=now,
        revision=max((turn.revision for turn in copy.turns), default=0),
        usage=copied.usage,
        tasks_usage=copied.tasks_usage,
        moved_events=copied.events_before(copy.turns),
        transcript=TranscriptState(turns=copy.turns, archived=copied.count - len(copy.turns)),
        queue=QueueState(taken_ids=list(dict.fromkeys(copied.ids)), fates=list(copied.fates)),
        context=copy.context,
    )
