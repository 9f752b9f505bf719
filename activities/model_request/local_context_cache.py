"""A process-local cache that passes large inputs from the workflow to its activities (AGT-2).

The workflow writes a model request, or what is to be archived, when it schedules the activity, and never reads it. The
activity uses exactly that entry if it runs in the same process, which is nearly always the case with one task queue,
and queries the workflow otherwise. So the conversation never travels through Temporal's history, and nothing depends on
this cache: it may drop entries at any time.
"""

from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Generic, TypeVar

from cachetools import LRUCache

from turnkeeper.models.session.archive.archive_messages import ArchiveMove
from turnkeeper.models.transcript.index_entry import IndexEntry
from turnkeeper.models.transcript.model_call import ModelRequest

MAX_BYTES = 128 * 1024 * 1024

Content = TypeVar("Content")


@dataclass(frozen=True)
class CacheKey:
    """Identifies one request, or one move to the archive, of one run, and its exact content."""

    run_id: str
    number: int
    digest: str


class LocalContextCache(Generic[Content]):
    """Contents by key. The least recently used are dropped first."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._contents = LRUCache[CacheKey, tuple[Content, int]](max_bytes, getsizeof=lambda entry: entry[1])
        # Workflow code runs in the worker's threads, activities in its event loop.
        self._lock = Lock()

    def put(self, key: CacheKey, content: Content, *, size: int) -> None:
        """Store `content`, about `size` bytes. It must not be changed afterwards."""
        with self._lock, suppress(ValueError):  # larger than the whole cache
            self._contents.pop(key, None)
            self._contents[key] = content, size

    def get(self, key: CacheKey) -> Content | None:
        """Return the content, if it is still cached. It stays, since the activity may be retried."""
        with self._lock:
            entry = self._contents.get(key)
        return entry and entry[0]

    def discard(self, key: CacheKey) -> None:
        with self._lock:
            self._contents.pop(key, None)


REQUESTS: LocalContextCache[ModelRequest] = LocalContextCache()
"""Model requests, written by workflow code and read by activities. Global: nothing can be injected into workflows."""

ENTRIES: LocalContextCache[IndexEntry] = LocalContextCache(max_bytes=8 * 1024 * 1024)
"""The list entries of sessions, under the keys of their model requests."""

MOVES: LocalContextCache[ArchiveMove] = LocalContextCache()
"""Moves to the archive."""
