"""The open model request of a turn, and how activities read it (AGT-2)."""

from dataclasses import dataclass

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from turnkeeper.activities.model_request.local_context_cache import ENTRIES, REQUESTS, CacheKey
    from turnkeeper.models.transcript.index_entry import IndexEntry
    from turnkeeper.models.transcript.model_call import ModelRequest, ModelRequestPage

ENTRY_BYTES = 1_000
"""About the size of an entry of the index."""


@dataclass(frozen=True)
class OpenRequest:
    """A model request without an answer; it does not change when the model view does."""

    number: int
    model_request: ModelRequest
    digest: str
    estimated_tokens: int
    entry: IndexEntry | None = None
    """The session's list entry meanwhile; `None` for requests that are not a step of a turn."""

    @property
    def message_count(self) -> int:
        return len(self.model_request.messages)

    def page(self, offset: int, *, page_bytes: int) -> ModelRequestPage:
        """Return the messages from `offset` on that fit in a page."""
        end, room = offset, page_bytes
        while end < self.message_count:
            room -= len(self.model_request.messages[end].model_dump_json().encode())
            if room < 0 and end > offset:
                break
            end += 1
        return ModelRequestPage(
            head=self.model_request.head if offset == 0 else None,
            messages=self.model_request.messages[offset:end],
            next_offset=end if end < self.message_count else None,
            digest=self.digest,
            entry=self.entry if offset == 0 else None,
        )


class RequestSlot:
    """Holds the open request of a turn, if there is one."""

    def __init__(self) -> None:
        self.request: OpenRequest | None = None

    def open(self, request: OpenRequest) -> OpenRequest:
        self.close()
        self.request = request
        return request

    def cache_for_activity(self) -> None:
        """Cache the open request for an activity in this process."""
        # Write only, and not during replay: the workflow must not depend on this process.
        if self.request and not workflow.unsafe.is_replaying():
            REQUESTS.put(_key(self.request), self.request.model_request, size=4 * self.request.estimated_tokens)
            if self.request.entry:
                ENTRIES.put(_key(self.request), self.request.entry, size=ENTRY_BYTES)

    def close(self) -> None:
        if self.request and not workflow.unsafe.is_replaying():
            REQUESTS.discard(_key(self.request))
            ENTRIES.discard(_key(self.request))
        self.request = None


def _key(request: OpenRequest) -> CacheKey:
    return CacheKey(workflow.info().run_id, request.number, request.digest)
