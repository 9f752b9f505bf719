"""What a polling client has already seen, judged by what it sends: cursor, revision, `ETag`, or less (SES-12).

A poll with `wait` is held until there is something that the client has not seen. With `since_revision` the revision
says so, with an `ETag` the tag. A client that sends only `last_seen_message_id`, as in the original design (decision
38), doesn't say in which form it has seen that turn: running or ended. So the gateway remembers in which forms it has
delivered the newest turn to such clients:

    this form was never delivered             nobody has seen it: answer at once
    only this form                            all have seen it: wait
    this form, and recently an older one      one client may not have seen it: answer after a moment

Each delivery replaces that of the newest older form, since the client that has that one probably sent the poll. If
there is none, it replaces the oldest delivery of the same form.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256

from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.session.messages import UpdatesRequest
from turnkeeper.models.transcript.conversation import FINAL_STATUSES, ConversationUpdate
from turnkeeper.stores.bounded_dict import BoundedDict

UNCLEAR_SECONDS = 1.0
"""How long to hold a client that may or may not have seen the answer."""

FORM_SECONDS = 60.0
"""The maximum of `wait`: a client that is still there polls again within this time."""

MAX_FORMS = 100
MAX_SESSIONS = 10_000

Form = tuple[int, bool]
"""The revision of a turn, and whether the session was closed."""


def poll_etag(first_run_id: str, cursor: UpdatesRequest, revision: int) -> str:
    """Return the tag of a response: the session, its revision, and the request.

    >>> page = UpdatesRequest(last_seen_message_id="p-1", since_revision=7, limit=1)
    >>> poll_etag("r", page, 7) == poll_etag("r", UpdatesRequest(limit=1), 7)
    False
    """
    question = sha256(cursor.model_dump_json().encode()).hexdigest()[:12]
    return f'"{first_run_id}-{revision}-{question}"'


@dataclass
class _DeliveredTurn:
    """The newest turn that was delivered, and when in which form."""

    turn_id: str
    forms: list[tuple[Form, float]] = field(default_factory=list)


class DeliveredForms:
    """The forms of each session's newest turn that were delivered to clients without a revision."""

    def __init__(self) -> None:
        self._delivered = BoundedDict[str, _DeliveredTurn](max_entries=MAX_SESSIONS)

    def hold_seconds(self, workflow_id: WorkflowId, turn_id: str, form: Form, *, now: float) -> float | None:
        """Return how long to hold an answer with only this form of a turn; `None` if all clients have seen it."""
        delivered = self._delivered.get(workflow_id)
        if delivered is None or delivered.turn_id != turn_id:
            return 0
        forms = {other for other, at in delivered.forms if other == form or at > now - FORM_SECONDS}
        if form not in forms:
            return 0
        return None if forms == {form} else UNCLEAR_SECONDS

    def note(self, workflow_id: WorkflowId, turn_id: str, form: Form, *, comes_back: bool, now: float) -> None:
        """Note that this form of a turn is delivered. `comes_back`: the client has seen the turn before."""
        delivered = self._delivered.get(workflow_id)
        if delivered is None or delivered.turn_id != turn_id:
            delivered = _DeliveredTurn(turn_id)
        self._delivered[workflow_id] = delivered
        older = [entry for entry in delivered.forms if entry[0] < form]
        same = [entry for entry in delivered.forms if entry[0] == form]
        if comes_back and older:
            delivered.forms.remove(max(older))
        elif comes_back and same:
            delivered.forms.remove(min(same))  # its client is still there: its time starts again
        delivered.forms = [*delivered.forms, (form, now)][-MAX_FORMS:]


class Poll:
    """One poll, and what its client has seen. `matches_etag`: whether the client sent an update's `ETag`."""

    def __init__(
        self,
        workflow_id: WorkflowId,
        cursor: UpdatesRequest,
        delivered: DeliveredForms,
        *,
        matches_etag: Callable[[ConversationUpdate], bool] = lambda update: False,
    ) -> None:
        self._workflow_id = workflow_id
        self._cursor = cursor
        self._delivered = delivered
        self._matches_etag = matches_etag
        self._first_form: Form | None = None
        self._is_first = True
        self._is_unclear = False

    def hold_seconds(self, update: ConversationUpdate, *, now: float) -> float | None:
        """Return how long to hold an answer: 0 for not at all, `None` if the client has seen all of it."""
        form = _form_of(update)
        if self._is_first:
            self._is_first, self._first_form = False, form
        seconds = None if self._matches_etag(update) else self._unseen_seconds(update, form, now)
        self._is_unclear = bool(seconds)
        return seconds

    def note_answer(self, update: ConversationUpdate, *, now: float) -> None:
        form = _form_of(update)
        # If it is unclear which client this is, delivering the form tells nothing.
        if form is None or self._cursor.since_revision is not None or self._is_unclear:
            return
        turn_id = update.last_seen_message_id or ""
        comes_back = self._cursor.last_seen_message_id == turn_id
        self._delivered.note(self._workflow_id, turn_id, form, comes_back=comes_back, now=now)

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
            return 0  # the turn has changed while the client waited
        return self._delivered.hold_seconds(self._workflow_id, cursor.last_seen_message_id, form, now=now)


def _form_of(update: ConversationUpdate) -> Form | None:
    """Return the form of the newest turn in an update; `None` if the update doesn't contain it."""
    for turn in [*reversed(update.new_messages), *reversed(update.updated_messages)]:
        if turn.id == update.last_seen_message_id:
            return turn.revision, update.status in FINAL_STATUSES
    return None
