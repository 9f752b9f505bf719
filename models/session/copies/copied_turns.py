"""Collects what a copy needs of the turns that are copied, in one pass over them (SES-18)."""

from collections import deque
from collections.abc import Iterable, Iterator

from turnkeeper.models.context.model_context import ContextState
from turnkeeper.models.context.view_entries import ViewRef
from turnkeeper.models.context.window import ConversationHistoryConfig
from turnkeeper.models.replay_text.turns import MovedEvents, count_events
from turnkeeper.models.session.copies.document import ExportedTurn
from turnkeeper.models.session.queue.fates import REMEMBERED_FATES, REMEMBERED_IDS
from turnkeeper.models.session.queue.prompts import Fate
from turnkeeper.models.transcript.attachments import Attachment
from turnkeeper.models.transcript.conversation import ConversationMessage
from turnkeeper.models.transcript.large_texts import refs_in
from turnkeeper.models.transcript.trajectory import BlobRef, ModelStep, Usage
from turnkeeper.models.transcript.transcript import carried_size

MAX_VIEW_TURNS = 1_000
"""Maximum of turns from which a model view is made, however many the window allows: it has a limit of bytes too."""


class CopiedTurns:
    """The turns of a copy; only the newest stay in memory.

    `max_bytes`: JSON of the newest turns that the copy has in its session.
    """

    def __init__(self, window: ConversationHistoryConfig, *, max_bytes: int) -> None:
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
        self._max_bytes = max_bytes
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


def texts_in(turn: ConversationMessage) -> Iterator[BlobRef]:
    """Yield the references to large texts in a turn."""
    return refs_in(turn)


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
        self._add(texts_in(turn), attachments_in(turn))

    def add_view(self, context: ContextState) -> None:
        refs = [*context.view.entries, *context.waiting]
        self._add(texts_in_view(refs), attachments_in_view(refs))

    def _add(self, texts: Iterable[BlobRef], attachments: Iterable[list[Attachment]]) -> None:
        self.texts.update(ref.hash for ref in texts)
        self.attachments.update(one.hash for some in attachments for one in some if one.hash)
