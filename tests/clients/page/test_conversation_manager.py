"""The page's ConversationManager and the rules of SES-12, over generated conversations (API-8).

A session lives through generated events; two clients at a time poll it whenever they like: the Python one that the law
is proved with, and the page's, run in the browser. After every poll they must hold the same.
"""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from playwright.async_api import Page

from tests.client import Client
from tests.clients.page.tab import Tab
from tests.models.builders import asks, at, complete_turn, fail_turn, says, send, session
from turnkeeper.models.session.archive_moves import next_move
from turnkeeper.models.session.messages import UpdatesRequest
from turnkeeper.models.session.session import Session
from turnkeeper.models.session.views import updates_of
from turnkeeper.models.transcript.conversation import ToolCall, ToolResult
from turnkeeper.models.transcript.partial_output import PartialOutput, PartialPart, growth

PAGE_MANAGER = """async () => {
  const path = new URL("conversation/conversation_manager.js", document.scripts[0].src);
  const { ConversationManager } = await import(path);
  window.manager = new ConversationManager();
}"""

LEARN = """(stories) => stories.map((updates) => {
  const manager = new window.manager.constructor();
  return updates.map((update) => {
    manager.applyUpdate(update);
    return { turns: manager.turns, cursor: manager.cursor };
  });
})"""

EVENTS = st.lists(
    st.sampled_from([*["turn", "step", "answer", "poll"] * 3, "fail", "archive", "page", "strange"]),
    min_size=15,
    max_size=60,
)


@pytest.fixture
async def page(tab: Tab) -> Page:
    """A page that has the manager, and nothing open."""
    await tab.open()
    await tab.page.evaluate(PAGE_MANAGER)
    return tab.page


class ClientHistory:
    """A session, the Python client that the law is proved with, and every update that this client got."""

    def __init__(self) -> None:
        self.session: Session = session(limits={"max_state_bytes": 32_000, "max_queued_bytes": 8_000})
        self.client = Client(sends_revision=True)
        self.updates: list[Any] = []
        self.states: list[Any] = []
        self.prompts = 0

    def live(self, event: str) -> None:
        running = self.session.turn
        if event == "turn":
            self.prompts += 1
            send(self.session, f"prompt {self.prompts} " + "x" * 2_000, id=f"m{self.prompts}")
            if not running:
                self.session.begin_turn(now=at(self.session.revision))
        elif event == "step" and running:
            call = ToolCall(id=f"c{self.session.revision}", name="look", args={})
            self.session.turn_slot.add_response(asks("look"), [call], now=at(1))
            self.session.add_result(call.id, ToolResult(outcome="seen"))
            self.session.turn_slot.append_step_to_view(state=None)
        elif event == "answer" and running:
            self.session.turn_slot.add_response(says("done"), [], now=at(2))
            complete_turn(self.session, "done", now=at(2))
        elif event == "fail" and running:
            fail_turn(self.session, "timeout", "too slow", now=at(2))
        elif event == "archive" and (move := next_move(self.session)):
            self.session.remove_moved(move, now=at(3))
        elif event in ("poll", "page", "strange"):
            self.poll(event)

    def poll(self, kind: str) -> None:
        cursor = self.client.cursor.model_dump()
        if kind == "strange":
            cursor["last_seen_message_id"] = "nonsense"
        update = updates_of(self.session, UpdatesRequest(**cursor, limit=1 if kind == "page" else None))
        self.client.apply(update)
        self.updates.append(update.model_dump(mode="json"))
        self.states.append(
            {
                "turns": [turn.model_dump(mode="json") for turn in self.client.turns],
                "cursor": self.client.cursor.model_dump(),
            }
        )


async def test_api_8_the_pages_transcript_matches_the_reference_after_every_update(page: Page) -> None:
    stories: list[ClientHistory] = []

    @given(EVENTS)
    @settings(max_examples=60, database=None, suppress_health_check=list(HealthCheck))
    def tell(events: list[str]) -> None:
        story = ClientHistory()
        for event in [*events, "poll"]:
            story.live(event)
        stories.append(story)

    tell()
    assert sum(update["reset"] for story in stories for update in story.updates) > 10
    assert sum(bool(update["updated_messages"]) for story in stories for update in story.updates) > 10
    assert await page.evaluate(LEARN, [story.updates for story in stories]) == [story.states for story in stories]


RUNNING = {
    "is_processing": True, "current_message_id": "m1", "last_seen_message_id": "m1", "revision": 3, "reset": False,
    "has_more": False, "status": "processing", "waiting_until": None, "queue_length": 0, "updated_messages": [],
}  # fmt: skip


async def test_api_8_partial_output_grows_like_the_snapshots(page: Page) -> None:
    """After each growth the page has the snapshot that the growth was computed from."""
    stories: list[tuple[list[Any], list[Any]]] = []
    pieces = st.lists(st.tuples(st.integers(0, 2), st.text(max_size=5), st.booleans()), min_size=1, max_size=12)

    @given(pieces)
    @settings(max_examples=60, database=None, suppress_health_check=list(HealthCheck))
    def tell(chunks: list[tuple[int, str, bool]]) -> None:
        tag = {"message_id": "m1", "turn": 1, "step": 1, "request": 1}
        previous, texts, attempt = None, list[str](), 1
        growths, snapshots = list[Any](), list[Any]()
        for index, text, is_anew in chunks:
            if is_anew:
                texts, attempt = [], attempt + 1
            if index >= len(texts):
                texts.append("")
            texts[min(index, len(texts) - 1)] += text
            parts = [PartialPart(kind="respond", text=text) for text in texts]
            snapshot = PartialOutput(**tag, attempt=attempt, parts=parts)
            grown = growth(previous, snapshot)
            previous = snapshot
            if grown:
                growths.append(grown.model_dump(mode="json"))
                snapshots.append([part.text for part in parts])
        stories.append((growths, snapshots))

    tell()
    turn = {"id": "m1", "is_complete": False, "reasoning_trajectory": None}
    displayed = await page.evaluate(
        """([update, stories]) => stories.map((growths) => {
          const manager = new window.manager.constructor();
          manager.applyUpdate(update);
          return growths.map((growth) => {
            manager.applyPartial(growth);
            return manager.partial.parts.map((part) => part.text);
          });
        })""",
        [{**RUNNING, "new_messages": [turn]}, [growths for growths, _ in stories]],
    )
    assert displayed == [snapshots for _, snapshots in stories]


SHOWN_UNTIL = [
    ({}, {}, True),
    ({"current_message_id": "m2"}, {}, False),
    ({"current_message_id": None}, {}, False),
    ({}, {"is_complete": True}, False),
    ({}, {"reasoning_trajectory": {"steps": [{"kind": "model", "number": 1}]}}, True),
    ({}, {"reasoning_trajectory": {"steps": [{"kind": "model", "number": 2}, {"kind": "user"}]}}, False),
]
"""Changes of the update, changes of its turn, and whether partial output of step 2 is shown then."""


async def test_api_8_partial_output_is_shown_only_until_its_step_arrives(page: Page) -> None:
    turn = {"id": "m1", "is_complete": False, "reasoning_trajectory": None}
    part = {"index": 0, "kind": "respond", "text": "Hel", "omitted": 0}
    grown = {"message_id": "m1", "turn": 1, "step": 2, "request": 2, "attempt": 1, "fresh": True, "parts": [part]}
    displayed = await page.evaluate(
        """([updates, growth]) => updates.map((update) => {
          const manager = new window.manager.constructor();
          manager.applyUpdate(update);
          manager.applyPartial(growth);
          return manager.partial !== null;
        })""",
        [[{**RUNNING, **update, "new_messages": [turn | changes]} for update, changes, _ in SHOWN_UNTIL], grown],
    )
    assert displayed == [is_shown for _, _, is_shown in SHOWN_UNTIL]


async def test_api_8_partial_output_of_another_attempt_is_ignored(page: Page) -> None:
    turn = {"id": "m1", "is_complete": False, "reasoning_trajectory": None}
    part = {"index": 0, "kind": "respond", "text": "Hel", "omitted": 0}
    first = {"message_id": "m1", "turn": 1, "step": 1, "request": 1, "attempt": 1, "fresh": True, "parts": [part]}
    late = {**first, "attempt": 2, "fresh": False, "parts": [{**part, "text": "lo"}]}
    texts = await page.evaluate(
        """([update, growths]) => {
          const manager = new window.manager.constructor();
          manager.applyUpdate(update);
          growths.forEach((growth) => manager.applyPartial(growth));
          return manager.partial.parts.map((part) => part.text);
        }""",
        [{**RUNNING, "new_messages": [turn]}, [first, late]],
    )
    assert texts == ["Hel"]
