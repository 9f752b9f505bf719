"""A watcher that has an excerpt gets the whole answer, and the store is not asked for it all the time (SES-15)."""

import asyncio

import pytest

from tests.stores.builders import turn
from turnkeeper.api.live.feed import FIRST_EXCERPT_SECONDS, MAX_EXCERPT_SECONDS, UpdateEvent, _Watcher
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.session.messages import UpdatesRequest
from turnkeeper.models.transcript.conversation import BlobRef, ConversationMessage, ConversationUpdate


def excerpt_of(number: int) -> ConversationMessage:
    return turn(number, agent_message_blob=BlobRef(hash=f"{number}", chars=9_000, bytes=9_000), revision=10 * number)


def event_of(*turns: ConversationMessage, updated: bool = False, reset: bool = False) -> UpdateEvent:
    return UpdateEvent(
        ConversationUpdate(
            new_messages=[] if updated else list(turns),
            updated_messages=list(turns) if updated else [],
            is_processing=False,
            current_message_id=None,
            last_seen_message_id=turns[-1].id if turns else None,
            revision=100,
            reset=reset,
            has_more=False,
            status="idle",
            queue_length=0,
        )
    )


@pytest.fixture
async def watcher() -> _Watcher:
    return _Watcher(WorkflowId("s"), UpdatesRequest())


def resumes_at(event: UpdateEvent | None) -> int:
    assert event is not None
    return int(event.id.partition(".")[0])


async def test_ses_15_full_answers_are_not_read_again(watcher: _Watcher) -> None:
    assert resumes_at(watcher.next_update(event_of(turn(1)), is_retry=False)) == 100
    assert (watcher.excerpts, watcher.retry_at, watcher.is_retry_due()) == ({}, None, False)


async def test_ses_15_a_client_resumes_before_its_first_excerpt(watcher: _Watcher) -> None:
    first = watcher.next_update(event_of(excerpt_of(1), excerpt_of(2), turn(3)), is_retry=False)
    assert resumes_at(first) == 9
    assert watcher.cursor.since_revision == 100
    restored = watcher.next_update(event_of(turn(1), excerpt_of(2), turn(3), updated=True), is_retry=True)
    assert resumes_at(restored) == 19
    whole = watcher.next_update(event_of(turn(1), turn(2), turn(3), updated=True), is_retry=True)
    assert (resumes_at(whole), watcher.retry_at) == (100, None)


async def test_ses_15_excerpts_are_read_again_at_growing_intervals_and_sent_once(watcher: _Watcher) -> None:
    watcher.next_update(event_of(excerpt_of(1)), is_retry=False)
    pauses = list[float]()
    for _ in range(7):
        assert watcher.retry_at is not None
        pauses.append(watcher.retry_at - asyncio.get_running_loop().time())
        assert watcher.next_update(event_of(excerpt_of(1), updated=True), is_retry=True) is None
    assert pauses == pytest.approx(
        [FIRST_EXCERPT_SECONDS, 2, 4, 8, 16, MAX_EXCERPT_SECONDS, MAX_EXCERPT_SECONDS], abs=0.5
    )


@pytest.mark.parametrize("later", [event_of(turn(1), updated=True), event_of(reset=True)])
async def test_ses_15_excerpts_that_a_later_update_replaced_are_not_read_again(
    watcher: _Watcher, later: UpdateEvent
) -> None:
    watcher.next_update(event_of(excerpt_of(1)), is_retry=False)
    watcher.next_update(later, is_retry=False)
    assert (watcher.excerpts, watcher.retry_at) == ({}, None)
