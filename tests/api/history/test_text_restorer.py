"""A watcher that has an excerpt is owed the whole answer, and the store is not asked for it all the time (SES-15)."""

import asyncio

import pytest

from tests.stores.builders import turn
from turnkeeper.api.history.text_restorer import FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS, ExcerptRetries
from turnkeeper.models.transcript.conversation import ConversationMessage, ConversationUpdate
from turnkeeper.models.transcript.trajectory import BlobRef


def excerpt_of(number: int) -> ConversationMessage:
    return turn(number, agent_message_blob=BlobRef(hash=f"{number}", chars=9_000, bytes=9_000), revision=10 * number)


def update(*turns: ConversationMessage, reset: bool = False) -> ConversationUpdate:
    return ConversationUpdate(
        new_messages=list(turns),
        updated_messages=[],
        is_processing=False,
        current_message_id=None,
        last_seen_message_id=None,
        revision=100,
        reset=reset,
        has_more=False,
        status="idle",
        queue_length=0,
    )


def seconds_left(retries: ExcerptRetries) -> float:
    assert retries.due_at is not None
    return retries.due_at - asyncio.get_running_loop().time()


async def test_a_watcher_with_whole_answers_is_owed_nothing() -> None:
    retries = ExcerptRetries()
    retries.note_update(update(turn(1)))
    assert (bool(retries), retries.due_at, retries.is_due, retries.resume_revision) == (False, None, False, None)


async def test_a_client_that_comes_back_resumes_before_the_first_excerpt() -> None:
    retries = ExcerptRetries()
    retries.note_update(update(excerpt_of(2), excerpt_of(1), turn(3)))
    assert retries.resume_revision == 9
    assert retries.note_retry(turn(1))
    assert retries.resume_revision == 19


async def test_one_excerpt_after_the_other_is_tried_with_growing_pauses() -> None:
    retries = ExcerptRetries()
    retries.note_update(update(excerpt_of(1), excerpt_of(2)))
    assert seconds_left(retries) == pytest.approx(FIRST_PAUSE_SECONDS, abs=0.5)
    tried, pauses = list[str](), list[float]()
    for _ in range(6):
        tried.append(retries.next.id)
        assert not retries.note_retry(retries.next)
        pauses.append(seconds_left(retries))
    assert tried == [excerpt_of(number).id for number in (1, 2, 1, 2, 1, 2)]
    assert pauses == pytest.approx([2, 4, 8, 16, MAX_PAUSE_SECONDS, MAX_PAUSE_SECONDS], abs=0.5)


async def test_once_the_store_is_back_the_others_are_tried_at_once() -> None:
    retries = ExcerptRetries()
    retries.note_update(update(excerpt_of(1), excerpt_of(2)))
    assert not retries.is_due
    assert retries.note_retry(turn(1))
    assert (retries.is_due, retries.next.id) == (True, excerpt_of(2).id)


@pytest.mark.parametrize("later", [update(turn(1)), update(reset=True)])
async def test_what_the_watcher_no_longer_has_is_not_owed(later: ConversationUpdate) -> None:
    retries = ExcerptRetries()
    retries.note_update(update(excerpt_of(1)))
    retries.note_update(later)
    assert not retries
