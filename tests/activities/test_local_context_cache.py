"""The process-local cache of model requests: AGT-2."""

from turnkeeper.activities.model_client import CacheKey, LocalContextCache
from turnkeeper.models.transcript.model_call import ModelRequest, RequestHead

REQUEST = ModelRequest(head=RequestHead(), messages=[])


def key(number: int, digest: str = "d") -> CacheKey:
    return CacheKey("run", number, digest)


def test_agt_2_exactly_the_stored_entry_is_returned() -> None:
    store = LocalContextCache()
    store.put(key(1), REQUEST, size=10)
    assert store.get(key(1)) is REQUEST
    assert store.get(key(1, "other")) is None
    assert store.get(key(2)) is None


def test_agt_2_an_entry_stays_for_a_second_attempt_until_it_is_answered() -> None:
    store = LocalContextCache()
    store.put(key(1), REQUEST, size=10)
    assert store.get(key(1)) is store.get(key(1))
    store.discard(key(1))
    store.discard(key(1))
    assert store.get(key(1)) is None


def test_agt_2_the_cache_is_bounded_by_bytes_and_evicts_least_recently_used_entries() -> None:
    store = LocalContextCache(max_bytes=30)
    for number in (1, 2, 3):
        store.put(key(number), REQUEST, size=10)
    store.get(key(1))
    store.put(key(4), REQUEST, size=10)
    assert [store.get(key(number)) is not None for number in (1, 2, 3, 4)] == [True, False, True, True]
    store.put(key(5), REQUEST, size=1_000)
    assert store.get(key(5)) is None
