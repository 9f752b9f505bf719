"""Updates of the session index by model calls: the session is active, and the turn's cost (API-1)."""

from datetime import UTC, datetime

from turnkeeper.activities.model_request.local_context_cache import ENTRIES, CacheKey
from turnkeeper.activities.own_workflow import current_run_id, current_session_id
from turnkeeper.models.transcript.model_call import ModelCall, ModelCallOutcome
from turnkeeper.stores.session_index import IndexedSession, IndexWriter


class IndexNotes:
    """Notes model calls in the index, in the background.

    The session's entry comes with the request, by the same cache or query (AGT-2). Without it nothing is written: the
    next call has one.
    """

    def __init__(self, writer: IndexWriter) -> None:
        self._writer = writer

    def note_begin(self, call: ModelCall) -> None:
        self._note(call, cost=None)

    def note_end(self, call: ModelCall, outcome: ModelCallOutcome | None) -> None:
        """Note the end of a call; `outcome` is `None` if it failed. The session itself adds the cost later."""
        usages = () if outcome is None else (outcome.response and outcome.response.usage, outcome.spent)
        costs = [usage.cost for usage in usages if usage and usage.cost is not None]
        self._note(call, cost=sum(costs) if costs else None)

    def _note(self, call: ModelCall, *, cost: float | None) -> None:
        entry = ENTRIES.get(CacheKey(current_run_id(), call.request, call.digest))
        if entry is not None:
            row = IndexedSession.of_entry(current_session_id(), entry, now=datetime.now(UTC))
            self._writer.put(row.with_cost(cost))
