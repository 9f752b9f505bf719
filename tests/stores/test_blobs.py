"""Large texts are kept once, under their hash, and go with their session (SES-15)."""

import asyncio

from tests.stores.builders import hash_of
from turnkeeper.stores.blobs import READ_AT_ONCE, Blobs
from turnkeeper.stores.database import rows


async def test_ses_15_a_text_is_read_back_by_the_hash_of_its_utf_8(blobs: Blobs):
    texts = ["naïve 🎉\r\n\u2028", "", "x" * 200_000]
    await blobs.put("s1", iter(texts))
    assert await blobs.get("s1", map(hash_of, texts)) == {hash_of(text): text for text in texts}


async def test_ses_15_unknown_hashes_are_left_out(blobs: Blobs):
    await blobs.put("s1", ["a"])
    assert await blobs.get("s1", [hash_of("a"), hash_of("b"), "nonsense"]) == {hash_of("a"): "a"}
    assert await blobs.get("s1", []) == {}


async def test_ses_15_a_text_belongs_to_its_session_only(blobs: Blobs):
    await blobs.put("s1", ["a"])
    assert await blobs.get("S1", [hash_of("a")]) == {}


async def test_ses_15_storing_a_text_again_changes_nothing(blobs: Blobs):
    for _ in range(2):
        await blobs.put("s1", ["a", "b", "a"])
    assert await blobs.get("s1", [hash_of("a"), hash_of("b")]) == {hash_of("a"): "a", hash_of("b"): "b"}
    assert await blobs.delete("s1") == 2


async def test_ses_15_storing_no_texts_does_nothing(blobs: Blobs):
    await blobs.put("s1", [])
    assert await blobs.delete("s1") == 0


async def test_ses_15_more_texts_can_be_read_than_one_statement_may_name(blobs: Blobs):
    texts = {hash_of(text): text for text in map(str, range(READ_AT_ONCE * 2 + 1))}
    await blobs.put("s1", texts.values())
    assert await blobs.get("s1", texts) == texts


async def test_ses_15_concurrent_writes_of_the_same_texts_all_succeed(blobs: Blobs):
    texts = [f"{number} " + "x" * 1_000 for number in range(20)]
    await asyncio.gather(*(blobs.put("s1", texts[number:] + texts[:number]) for number in range(20)))
    assert await blobs.delete("s1") == 20


async def test_ses_15_deleting_removes_all_texts_of_a_session_and_of_no_other(blobs: Blobs, monkeypatch):
    monkeypatch.setattr(rows, "DELETE_BATCH_ROWS", 3)
    for session in ("s1", "s2"):
        await blobs.put(session, map(str, range(10)))
    assert await blobs.delete("s1") == 10
    assert await blobs.get("s1", [hash_of("1")]) == {}
    assert await blobs.delete("s2") == 10
