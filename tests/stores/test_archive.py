"""The archive takes turns and steps once, in their order and without holes, and shows them page by page (SES-15)."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select, update

from tests.stores.builders import archived, steps, turn, turns
from turnkeeper.models.transcript.conversation import BlobRef
from turnkeeper.models.transcript.transcript import visible_size
from turnkeeper.stores.archive import Archive, ArchiveConflictError, ArchivedTurn, ArchiveGapError
from turnkeeper.stores.database import rows
from turnkeeper.stores.database.database import Database, StoreUnavailableError
from turnkeeper.stores.database.tables import STEPS, TURNS

ALL = 1_000_000_000


async def all_turns(archive: Archive, session: str = "s1") -> list[ArchivedTurn]:
    return await archive.page(session, before=None, limit=None, max_bytes=ALL)


async def test_ses_15_stored_turns_are_read_back_unchanged(archive: Archive):
    whole = archived(
        1,
        text='naïve "🎉"\n',
        reasoning_trajectory={"steps": steps(0, 4)},
        steps_omitted=3,
        usage={"input_tokens": 7},
        error="too much",
        error_type="budget",
    )
    await archive.put_turns("s1", [whole, archived(2)])
    assert await all_turns(archive) == [whole, archived(2)]
    assert await archive.find("s1", "m1") == whole
    assert await archive.number_of("s1", "m2") == 2
    assert await archive.count("s1") == 2


async def test_ses_15_a_session_without_archived_turns_has_an_empty_archive(archive: Archive):
    assert await all_turns(archive) == []
    assert await archive.find("s1", "m1") is None
    assert await archive.number_of("s1", "m1") is None
    assert await archive.count("s1") == 0
    assert await archive.delete("s1") == 0


async def test_ses_15_a_turn_is_stored_without_its_derived_fields(archive: Archive, database: Database):
    await archive.put_turns("s1", turns(1, 1))
    stored = await database.read(lambda connection: connection.execute(select(TURNS.c.turn)).scalar_one())
    assert stored == (
        '{"id":"m1","timestamp":"2026-01-01T00:00:00Z","user_message":"hello",'
        '"user_timestamp":"2026-01-01T00:00:00Z","agent_message":"ok","revision":1,"status":"completed"}'
    )


async def test_ses_15_a_second_write_changes_nothing(archive: Archive):
    await archive.put_turns("s1", turns(1, 3))
    await archive.put_turns("s1", turns(1, 3))
    await archive.put_turns("s1", [archived(2, text="another"), archived(3), archived(4)])
    assert await all_turns(archive) == turns(1, 4)


async def test_ses_15_concurrent_writes_of_the_same_turns_all_succeed(archive: Archive):
    await asyncio.gather(*(archive.put_turns("s1", turns(1, 20)) for _ in range(10)))
    assert await all_turns(archive) == turns(1, 20)


async def test_ses_15_writing_no_turns_and_no_steps_does_nothing(archive: Archive):
    await archive.put_turns("s1", [])
    await archive.put_steps("s1", 1, 7, [])
    assert await archive.count("s1") == 0


async def test_ses_15_an_archive_that_lacks_the_earlier_turns_accepts_none(archive: Archive):
    with pytest.raises(ArchiveGapError, match="holds 0 earlier turns where there are 3"):
        await archive.put_turns("s1", turns(4, 6))
    await archive.put_turns("s1", turns(1, 2))
    with pytest.raises(ArchiveGapError, match="holds 2 earlier turns where there are 3"):
        await archive.put_turns("s1", turns(4, 6))
    assert await all_turns(archive) == turns(1, 2)


async def test_ses_15_turns_of_another_session_fill_no_gap(archive: Archive):
    await archive.put_turns("s2", turns(1, 3))
    with pytest.raises(ArchiveGapError):
        await archive.put_turns("s1", turns(4, 4))


async def test_ses_15_a_number_used_by_another_turn_is_rejected_with_the_whole_batch(archive: Archive):
    await archive.put_turns("s1", turns(1, 3))
    with pytest.raises(ArchiveConflictError):
        await archive.put_turns("s1", [archived(3, id="foreign"), archived(4)])
    assert await all_turns(archive) == turns(1, 3)


async def test_ses_6_an_id_used_again_long_after_is_another_turn_and_the_newest_is_found(archive: Archive):
    again = archived(4, id="m1")
    await archive.put_turns("s1", [*turns(1, 3), again])
    assert await all_turns(archive) == [*turns(1, 3), again]
    assert await archive.find("s1", "m1") == again
    assert await archive.number_of("s1", "m1") == 4


async def test_ses_15_turns_without_consecutive_numbers_are_a_bug(archive: Archive):
    with pytest.raises(ValueError, match="do not follow each other"):
        await archive.put_turns("s1", [archived(1), archived(3)])


async def test_ses_15_a_page_has_the_newest_turns_before_a_number(archive: Archive):
    await archive.put_turns("s1", turns(1, 9))
    assert await archive.page("s1", before=None, limit=3, max_bytes=ALL) == turns(7, 9)
    assert await archive.page("s1", before=7, limit=3, max_bytes=ALL) == turns(4, 6)
    assert await archive.page("s1", before=3, limit=3, max_bytes=ALL) == turns(1, 2)
    assert await archive.page("s1", before=1, limit=3, max_bytes=ALL) == []
    assert await archive.page("s1", before=1_000, limit=None, max_bytes=0) == turns(9, 9)


@settings(max_examples=25)
@given(
    sizes=st.lists(st.integers(0, 2_000), max_size=12),
    limit=st.none() | st.integers(1, 5),
    max_bytes=st.integers(0, 8_000),
)
async def test_ses_15_paging_back_gives_every_turn_once_in_order_in_full_pages(
    archive: Archive, sizes: list[int], limit: int | None, max_bytes: int
):
    await archive.delete("s1")
    whole = [archived(number, text="x" * size) for number, size in enumerate(sizes, start=1)]
    await archive.put_turns("s1", whole)
    walked: list[ArchivedTurn] = []
    while page := await archive.page(
        "s1", before=walked[0].number if walked else None, limit=limit, max_bytes=max_bytes
    ):
        older = whole[: page[0].number - 1]
        fits = [sum(visible_size(each.turn) for each in some) <= max_bytes for some in (page, [*older[-1:], *page])]
        assert len(page) == 1 or fits[0]
        assert not older or len(page) == limit or not fits[1]
        walked = page + walked
    assert walked == whole


async def test_ses_15_a_page_counts_the_displayed_size_of_an_answer_by_reference(archive: Archive):
    answer = BlobRef(hash="a" * 64, chars=5_000, bytes=5_000)
    await archive.put_turns("s1", [archived(number, agent_message_blob=answer) for number in (1, 2, 3)])
    page = await archive.page("s1", before=None, limit=None, max_bytes=12_000)
    assert [each.number for each in page] == [2, 3]


async def test_ses_15_no_turn_is_displayed_in_fewer_bytes_than_pages_assume(archive: Archive):
    smallest = turn(1, id="a", text="", agent_message=None, status="failed")
    assert visible_size(smallest) >= 256


async def test_ses_15_a_page_reads_only_the_turns_that_it_returns(archive: Archive, database: Database):
    await archive.put_turns("s1", turns(1, 5))
    await database.write(
        lambda connection: connection.execute(update(TURNS).where(TURNS.c.number <= 2).values(turn="unreadable"))
    )
    assert await archive.page("s1", before=None, limit=3, max_bytes=ALL) == turns(3, 5)
    with pytest.raises(StoreUnavailableError, match="turn 1 in a form this version can't read"):
        await all_turns(archive)


async def test_ses_15_early_steps_are_read_back_in_part_or_whole(archive: Archive):
    await archive.put_steps("s1", 1, 0, steps(0, 4))
    await archive.put_steps("s1", 1, 5, steps(5, 9))
    assert await archive.steps("s1", 1) == steps(0, 9)
    assert await archive.steps("s1", 1, first=3, count=4) == steps(3, 6)
    assert await archive.steps("s1", 1, first=10) == []
    assert await archive.steps("s1", 2) == []
    assert await archive.steps("s2", 1) == []


async def test_ses_15_steps_are_stored_once_and_without_gaps(archive: Archive):
    for _ in range(2):
        await archive.put_steps("s1", 1, 0, steps(0, 4))
    await archive.put_steps("s1", 1, 3, steps(3, 6))
    for turn_number, first in ((1, 8), (2, 1)):
        with pytest.raises(ArchiveGapError):
            await archive.put_steps("s1", turn_number, first, steps(first, first))
    assert await archive.steps("s1", 1) == steps(0, 6)


async def test_ses_15_a_step_of_an_unknown_kind_is_an_error(archive: Archive, database: Database):
    await archive.put_steps("s1", 1, 0, steps(0, 0))
    await database.write(lambda connection: connection.execute(update(STEPS).values(step='{"kind":"dream"}')))
    with pytest.raises(StoreUnavailableError, match="a step in a form this version can't read"):
        await archive.steps("s1", 1)


async def test_ses_15_deleting_removes_everything_of_a_session_and_of_no_other(archive: Archive, monkeypatch):
    monkeypatch.setattr(rows, "DELETE_BATCH_ROWS", 3)
    for session in ("s1", "s2"):
        await archive.put_turns(session, turns(1, 10))
        await archive.put_steps(session, 1, 0, steps(0, 9))
    assert await archive.delete("s1") == 10
    assert await all_turns(archive) == []
    assert await archive.steps("s1", 1) == []
    assert await all_turns(archive, "s2") == turns(1, 10)
    assert await archive.steps("s2", 1) == steps(0, 9)
    await archive.put_turns("s1", turns(1, 1))
    assert await all_turns(archive) == turns(1, 1)
