"""What a client that polls has seen already, by whatever it sends: cursor, revision, `ETag`, or less (SES-12).

Theory of operation. A poll with `wait` is held until there is something that its sender has not seen. With
`since_revision` the revision tells that, with an `ETag` the tag does. Who sends only `last_seen_message_id`, as the
client of the original design does, does not say in which form it has seen that turn: while it ran, or ended. So the
gateway remembers in which forms it has given the newest turn to clients of this kind:

    this form was never given                 nobody has seen it: answer at once
    this form only                            all have seen it: wait
    this form, and an older one lately        one of them may not have: answer after a moment

Each answer takes the place of the newest older form, since the client that had that probably asked for it; where there
is none, of the same form given longest ago.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256

from turnkeeper.api.temporal.session_reader import FINAL_STATUSES
from turnkeeper.models.session.session import UpdatesRequest
from turnkeeper.models.transcript.conversation import ConversationUpdate
from turnkeeper.stores.bounded_dict import BoundedDict

UNCLEAR_SECONDS = 1.0
"""How long a client is held that may have seen the answer, or not."""

FORM_SECONDS = 60.0
"""The longest `wait`: a client that watches comes back within this time."""

MAX_FORMS = 100
MAX_SESSIONS = 10_000

Form = tuple[int, bool]
"""The revision of a turn, and whether the session was closed."""


def poll_etag(first_run_id: str, cursor: UpdatesRequest, revision: int) -> str:
    """Return the tag of an answer: the session, its revision, and what was asked of it.

    >>> page = UpdatesRequest(last_seen_message_id="p-1", since_revision=7, limit=1)
    >>> poll_etag("r", page, 7) == poll_etag("r", UpdatesRequest(limit=1), 7)
    False
    """
    question = sha256(cursor.model_dump_json().encode()).hexdigest()[:12]
    return f'"{first_run_id}-{revision}-{question}"'


@dataclass
class _DeliveredTurn:
    """The newest turn that clients were given, and when they were given which form of it."""

    turn_id: str
    forms: list[tuple[Form, float]] = field(default_factory=list)


class DeliveredForms:
    """In which forms clients without a revision were given the newest turn of each session."""

    def __init__(self) -> None:
        self._delivered = BoundedDict[str, _DeliveredTurn](max_entries=MAX_SESSIONS)

    def hold_seconds(self, session_id: str, turn_id: str, form: Form, *, now: float) -> float | None:
        """Return how long to hold an answer whose only news is this form of a turn; `None`: all have seen it."""
        delivered = self._delivered.get(session_id)
        if delivered is None or delivered.turn_id != turn_id:
            return 0
        forms = {other for other, at in delivered.forms if other == form or at > now - FORM_SECONDS}
        if form not in forms:
            return 0
        return None if forms == {form} else UNCLEAR_SECONDS

    def note(self, session_id: str, turn_id: str, form: Form, *, comes_back: bool, now: float) -> None:
        """Remember that a client is given this form of a turn; `comes_back`: it has seen the turn before."""
        delivered = self._delivered.get(session_id)
        if delivered is None or delivered.turn_id != turn_id:
            delivered = _DeliveredTurn(turn_id)
        self._delivered[session_id] = delivered
        older = [entry for entry in delivered.forms if entry[0] < form]
        same = [entry for entry in delivered.forms if entry[0] == form]
        if comes_back and older:
            delivered.forms.remove(max(older))
        elif comes_back and same:
            delivered.forms.remove(min(same))  # its client still watches: the time begins anew
        delivered.forms = [*delivered.forms, (form, now)][-MAX_FORMS:]


class Poll:
    """One request for what is new, and what its sender has seen."""

    def __init__(
        self,
        session_id: str,
        cursor: UpdatesRequest,
        delivered: DeliveredForms,
        *,
        matches_etag: Callable[[ConversationUpdate], bool] = lambda update: False,
    ) -> None:
        """Begin; `matches_etag`: the client has named the `ETag` of this very answer."""
        self._session_id = session_id
        self._cursor = cursor
        self._delivered = delivered
        self._matches_etag = matches_etag
        self._first_form: Form | None = None
        self._is_first = True
        self._is_unclear = False

    def hold_seconds(self, update: ConversationUpdate, *, now: float) -> float | None:
        """Return how long to hold an answer, 0 for not at all; `None` where its client has seen it all."""
        form = _form_of(update)
        if self._is_first:
            self._is_first, self._first_form = False, form
        seconds = None if self._matches_etag(update) else self._unseen_seconds(update, form, now)
        self._is_unclear = bool(seconds)
        return seconds

    def note_answer(self, update: ConversationUpdate, *, now: float) -> None:
        form = _form_of(update)
        # Where it is not clear who asks, nothing is known afterwards that was not known before.
        if form is None or self._cursor.since_revision is not None or self._is_unclear:
            return
        turn_id = update.last_seen_message_id or ""
        comes_back = self._cursor.last_seen_message_id == turn_id
        self._delivered.note(self._session_id, turn_id, form, comes_back=comes_back, now=now)

    def _unseen_seconds(self, update: ConversationUpdate, form: Form | None, now: float) -> float | None:
        cursor, is_closed = self._cursor, update.status in FINAL_STATUSES
        if update.reset or (cursor.last_seen_message_id and update.new_messages):
            return 0
        if cursor.since_revision is not None:
            return 0 if update.revision > cursor.since_revision else None
        if cursor.last_seen_message_id is None:
            return 0 if update.new_messages or is_closed else None
        if form is None:
            return 0 if is_closed else None
        if form != self._first_form:
            return 0  # it has changed while its client waited
        return self._delivered.hold_seconds(self._session_id, cursor.last_seen_message_id, form, now=now)


def _form_of(update: ConversationUpdate) -> Form | None:
    """Return the form of the newest turn in an answer; `None` where it is not in it."""
    for turn in [*reversed(update.new_messages), *reversed(update.updated_messages)]:
        if turn.id == update.last_seen_message_id:
            return turn.revision, update.status in FINAL_STATUSES
    return None
