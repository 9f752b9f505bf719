"""The process-local hand-over of what an activity works on, from the workflow to its activity (AGT-2).

The workflow writes a model request, or what is to be archived, here when it schedules the activity, and never reads.
The activity takes exactly that entry if it runs in the same process (with one task queue it nearly always does) and
asks the workflow by query otherwise. So the conversation never travels through Temporal's history, and nothing depends
on this store: it may forget at any time.
"""

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import Generic, TypeVar

from turnkeeper.models.session.archive.archive_state import ArchiveMove
from turnkeeper.models.transcript.model_call import ModelRequest

MAX_BYTES = 128 * 1024 * 1024

Content = TypeVar("Content")


@dataclass(frozen=True)
class ContextKey:
    """Names one request, or one move to the archive, of one run, and its exact content."""

    run_id: str
    number: int
    digest: str


class LocalContextCache(Generic[Content]):
    """Contents by key, the least recently used forgotten first."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._total_bytes = 0
        self._contents: OrderedDict[ContextKey, tuple[Content, int]] = OrderedDict()
        # Workflow code runs in the worker's threads, activities in its event loop.
        self._lock = Lock()

    def put(self, key: ContextKey, content: Content, *, size: int) -> None:
        """Hold `content`, about `size` bytes, until room is needed. It is never changed afterwards."""
        with self._lock:
            self._drop(key)
            self._contents[key] = (content, size)
            self._total_bytes += size
            while self._total_bytes > self._max_bytes:
                self._drop(next(iter(self._contents)))

    def get(self, key: ContextKey) -> Content | None:
        """Return the content, if it is still held. It stays, for the activity may be tried again."""
        with self._lock:
            if key not in self._contents:
                return None
            self._contents.move_to_end(key)
            return self._contents[key][0]

    def discard(self, key: ContextKey) -> None:
        with self._lock:
            self._drop(key)

    def _drop(self, key: ContextKey) -> None:
        entry = self._contents.pop(key, None)
        if entry:
            self._total_bytes -= entry[1]


REQUESTS: LocalContextCache[ModelRequest] = LocalContextCache()
"""Model requests of this process: workflow code and activities meet here."""

MOVES: LocalContextCache[ArchiveMove] = LocalContextCache()
"""Moves to the archive, likewise."""
