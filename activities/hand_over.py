"""The process-local hand-over of a model call's context, from the workflow to its activity (AGT-2).

The workflow writes a request here when it schedules `call_model`, and never reads. The activity takes exactly that
entry if it runs in the same process (with one task queue it nearly always does) and asks the workflow by query
otherwise. So the conversation never travels through Temporal's history, and nothing depends on this store: it may
forget at any time.
"""

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock

from models.model_call import ModelRequest

MAX_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True)
class RequestKey:
    """Names one request of one run and its exact content."""

    run_id: str
    request: int
    digest: str


class HandOver:
    """Requests by key, the least recently used forgotten first."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        """Hold at most about `max_bytes` of text."""
        self._max_bytes = max_bytes
        self._held_bytes = 0
        self._requests: OrderedDict[RequestKey, tuple[ModelRequest, int]] = OrderedDict()
        # Workflow code runs in the worker's threads, activities in its event loop.
        self._lock = Lock()

    def put(self, key: RequestKey, request: ModelRequest, *, size: int) -> None:
        """Hold `request`, about `size` bytes, until room is needed. The request is never changed afterwards."""
        with self._lock:
            self._drop(key)
            self._requests[key] = (request, size)
            self._held_bytes += size
            while self._held_bytes > self._max_bytes:
                self._drop(next(iter(self._requests)))

    def get(self, key: RequestKey) -> ModelRequest | None:
        """Return the request, if it is still held. It stays, for the activity may be tried again."""
        with self._lock:
            if key not in self._requests:
                return None
            self._requests.move_to_end(key)
            return self._requests[key][0]

    def discard(self, key: RequestKey) -> None:
        """Forget a request that is answered."""
        with self._lock:
            self._drop(key)

    def _drop(self, key: RequestKey) -> None:
        held = self._requests.pop(key, None)
        if held:
            self._held_bytes -= held[1]


HAND_OVER = HandOver()
"""The store of this process: workflow code and activities meet here."""
