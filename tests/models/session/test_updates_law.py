"""The law of SES-12: a client that follows the rules ends with the true state, whenever it polls."""

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from tests.models.builders import NOW, answer_turn, asks, at, complete_turn, fail_turn, roomy, says, send, session
from turnkeeper.clients.python.conversation import Conversation
from turnkeeper.models.session.archive_moves import next_move, next_step_move
from turnkeeper.models.session.messages import CarriedState, SessionInput, StateRequest, UpdatesRequest
from turnkeeper.models.session.session import Session
from turnkeeper.models.session.views import approvals_of, queue_of, state_of, updates_of
from turnkeeper.models.transcript.conversation import ConversationMessage, ConversationUpdate, ToolCall, ToolResult


class Client(Conversation):
    """The Python client's own copy; it may omit the revision, and asks the session directly."""

    def __init__(self, *, sends_revision: bool) -> None:
        super().__init__()
        self.sends_revision = sends_revision
        self.foreign: dict[str, object] = {}
        """Fields of a client that has mixed something up."""
        self.archived_before: int | None = None
        """How many turns were in the archive at the first answer with turns in it since the last reset."""

    def poll(self, target: Session, *, limit: int | None = None) -> ConversationUpdate:
        fields = {**self.cursor.model_dump(exclude=None if self.sends_revision else {"since_revision"}), **self.foreign}
        self.foreign = {}
        update = updates_of(target, UpdatesRequest(**fields, limit=limit))
        if update.reset:
            self.archived_before = None
        if self.archived_before is None and update.new_messages:
            self.archived_before = target.transcript.archived
        self.apply(update)
        return update

    def catch_up(self, target: Session) -> None:
        for _ in range(1_000):
            update = self.poll(target)
            if not update.new_messages and not update.has_more:
                return
        raise AssertionError("the client never catches up")


class UpdatesLaw(RuleBasedStateMachine):
    """SES-12 over every interleaving of prompts, turns, steps, polls, archive moves and continue-as-new."""

    clients = Bundle("clients")

    @initialize()
    def begin(self) -> None:
        self.session = session(limits={"max_state_bytes": 32_000, "max_queued_bytes": 8_000})
        self.prompts = 0
        self.archive: list[ConversationMessage] = []

    @rule()
    def prompt(self) -> None:
        self.prompts += 1
        send(self.session, f"prompt {self.prompts} " + "x" * 2_000, id=f"m{self.prompts}")

    @rule()
    def duplicate(self) -> None:
        before = self.session.revision
        queue = self.session.queue
        if ids := [*queue.fate_book.ids, *(item.id for item in queue)]:
            send(self.session, "again", id=ids[-1])
        assert self.session.revision == before

    @rule()
    def turn_starts(self) -> None:
        if self.session.queue.waiting and not self.session.turn:
            self.session.begin_turn(now=at(self.session.revision))

    @rule()
    def step(self) -> None:
        if self.session.turn:
            call = ToolCall(id=f"c{self.session.revision}", name="look", args={})
            self.session.turn_slot.add_response(asks("look"), [call], now=at(1))
            self.session.add_result(call.id, ToolResult(outcome="seen"))
            self.session.turn_slot.append_step_to_view(state=None)

    @rule(well=st.booleans())
    def turn_ends(self, well: bool) -> None:
        if not self.session.turn:
            return
        if well:
            self.session.turn_slot.add_response(says("done"), [], now=at(2))
            complete_turn(self.session, "done", now=at(2))
        else:
            fail_turn(self.session, "timeout", "too slow", now=at(2))

    @rule()
    def continue_as_new(self) -> None:
        carried = SessionInput.model_validate_json(self.session.carry().model_dump_json())
        self.session = Session("s1", carried, now=NOW)

    @rule()
    def turns_are_archived(self) -> None:
        if move := next_move(self.session):
            self.archive += move.turns
            self.session.remove_moved(move, now=NOW)

    @rule(max_bytes=st.integers(100, 2_000))
    def steps_are_archived(self, max_bytes: int) -> None:
        if self.session.turn and (move := next_step_move(self.session, max_bytes=max_bytes)):
            before = self.session.context.view.estimated_tokens
            self.session.remove_moved(move, now=NOW)
            assert self.session.context.view.estimated_tokens >= before
            assert self.session.turn.message.steps_omitted == move.first + len(move.steps)

    @rule(target=clients, sends_revision=st.booleans())
    def join(self, sends_revision: bool) -> Client:
        return Client(sends_revision=sends_revision)

    @rule(client=clients, limit=st.none() | st.integers(1, 3))
    def poll(self, client: Client, limit: int | None) -> None:
        client.poll(self.session, limit=limit)

    @rule(client=clients)
    def hold_a_foreign_cursor(self, client: Client) -> None:
        client.foreign = {"last_seen_message_id": "nonsense"}
        assert client.poll(self.session).reset

    @rule(client=clients)
    def hold_a_revision_from_the_future(self, client: Client) -> None:
        if client.sends_revision:
            client.foreign = {"since_revision": self.session.revision + 1}
            assert client.poll(self.session).reset

    @rule(client=consumes(clients))
    def every_client_converges(self, client: Client) -> None:
        client.catch_up(self.session)
        transcript = self.archive + self.session.transcript.turns
        assert client.turns == transcript[len(transcript) - len(client.turns) :]
        assert len(client.turns) >= len(self.session.transcript)
        if client.archived_before == 0:
            assert client.turns == transcript

    @invariant()
    def what_is_shown_changes_only_with_the_revision(self) -> None:
        if hasattr(self, "session"):
            views = (state_of(self.session), queue_of(self.session), approvals_of(self.session))
            before, self.last_views = getattr(self, "last_views", views), views
            assert views == before or views[0].revision > before[0].revision

    @invariant()
    def revisions_grow_along_the_transcript(self) -> None:
        if hasattr(self, "session"):
            revisions = [turn.revision for turn in self.session.transcript.turns]
            assert revisions == sorted(set(revisions))
            assert all(revision <= self.session.revision for revision in revisions)


TestSes12Law = UpdatesLaw.TestCase


def test_ses_12_an_updates_cost_depends_on_its_content_not_on_the_transcript() -> None:
    target = session()
    for number in range(300):
        send(target, "hi", id=f"m{number}")
        answer_turn(target)
    looked_at = []
    target.transcript._entries = _Counting(target.transcript._entries, looked_at)
    update = updates_of(target, UpdatesRequest(last_seen_message_id="m298", since_revision=target.revision - 1))
    assert [turn.id for turn in update.new_messages] == ["m299"]
    assert len(looked_at) <= 10


class _Counting(list):
    def __init__(self, items: list, looked_at: list) -> None:
        super().__init__(items)
        self._looked_at = looked_at

    def __getitem__(self, index: object) -> object:
        self._looked_at.append(index)
        return super().__getitem__(index)


def test_ses_12_a_page_is_about_a_megabyte_and_the_next_one_continues_without_a_gap() -> None:
    target = roomy(session())
    for number in range(25):
        send(target, "x" * 90_000, id=f"m{number}")
        answer_turn(target)
    client = Client(sends_revision=True)
    first = client.poll(target)
    assert first.has_more
    assert 900_000 < len(first.model_dump_json()) < 1_100_000
    client.catch_up(target)
    assert client.turns == target.transcript.turns


def test_ses_12_without_a_revision_the_last_seen_turn_is_repeated_if_it_changed() -> None:
    target = session()
    send(target, "hi", id="m1")
    target.begin_turn(now=NOW)
    assert updates_of(target, UpdatesRequest(last_seen_message_id="m1")).updated_messages == []
    complete_turn(target, "hello", now=NOW)
    updated = updates_of(target, UpdatesRequest(last_seen_message_id="m1")).updated_messages
    assert [turn.agent_message for turn in updated] == ["hello"]


def test_ses_12_without_a_revision_a_turn_with_changed_metrics_is_repeated() -> None:
    target = session()
    send(target, "hi", id="m1")
    target.begin_turn(now=NOW)
    recorded = target.revision
    target.turn_slot.note_request()
    assert target.revision > recorded
    (updated,) = updates_of(target, UpdatesRequest(last_seen_message_id="m1")).updated_messages
    assert updated.conversation_metrics is not None


def test_ses_11_the_state_shows_the_newest_turns_and_pages_back_to_the_oldest() -> None:
    target = roomy(session())
    for number in range(25):
        send(target, "x" * 90_000, id=f"m{number}")
        answer_turn(target)
    seen: list[str] = []
    before = None
    while True:
        state = state_of(target, StateRequest(before=before))
        assert len(state.model_dump_json()) < 1_100_000
        seen = [turn.id for turn in state.messages] + seen
        if not state.has_more:
            break
        before = state.messages[0].id
    assert seen == [f"m{number}" for number in range(25)]


def test_ses_14_a_session_restored_from_its_carried_state_is_identical() -> None:
    target = session(title="T", user="alice")
    for number in range(3):
        send(target, f"hi {number}", id=f"m{number}")
        answer_turn(target)
    send(target, "waiting", id="w")
    carried = target.carry()
    again = Session("s1", SessionInput.model_validate_json(carried.model_dump_json()), now=at(99))
    assert again.carry() == carried
    assert state_of(again) == state_of(target)
    assert queue_of(again) == queue_of(target)
    assert again.context.view.digest(again.head) == target.context.view.digest(target.head)
    assert isinstance(carried.carried, CarriedState)
