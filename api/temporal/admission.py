"""Whether a gateway signals one more prompt to a session (SES-6).

The session never refuses a prompt for want of room, so nothing is asked before one. A prompt gets 429 in two cases:

- The gateway has just read, for whatever reason, that the queue is full. This is a courtesy.
- The history grows while no worker processes it. Temporal terminates a workflow whose history is too large, so a
  gateway counts what it has signalled to a session that has not answered since. If that is much, it asks Temporal,
  which needs no worker, how large the history is.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from cachetools import LRUCache
from pydantic import BaseModel
from temporalio.client import Client

from turnkeeper.api.problems import ProblemError, rejected
from turnkeeper.api.temporal.temporal_calls import call_temporal
from turnkeeper.api.temporal.watch import WatchRegistry
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.models.errors import RejectedError
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.session.prompts import PromptSignal, QueueView

MAX_UNANSWERED_PROMPTS = 500
MAX_UNANSWERED_BYTES = 4_000_000
"""What a session is signalled without an answer before Temporal is asked."""

DESCRIBE_SECONDS = 1.0
"""How often Temporal is asked at most, and how long that may take."""

MAX_EVENTS = 8_000
MAX_BYTES = 16_000_000
"""Of a history. Temporal allows 10,000 signals and 50 MB."""

MAX_SESSIONS = 10_000
MAX_FULL_QUEUES = 1_000

QUEUE_FULL = "{length} prompts are waiting already. Send this one when some of them have run."
HISTORY_FULL = "No worker has processed the last prompts of this session. They are safe; send this one later."


@dataclass
class _Unanswered:
    """What a session has been signalled since it last answered, and its history with that.

    `task_count`: the workflow tasks that its watch had seen.
    """

    task_count: int
    prompts: int = 0
    bytes: int = 0
    history_events: int = 0
    history_bytes: int = 0
    described_at: float = float("-inf")


@dataclass(frozen=True)
class _FullQueue:
    """A queue that has no room, or whose session ends. A prompt with one of `ids` is only a repetition."""

    rejection: RejectedError
    ids: frozenset[str]
    read_at: float


class Admission:
    """What a gateway knows of its sessions' queues and histories without asking."""

    def __init__(self, client: Client, watches: WatchRegistry, timeouts: Timeouts) -> None:
        self._client = client
        self._watches = watches
        self._timeouts = timeouts
        self._full_queues = LRUCache[str, _FullQueue](maxsize=MAX_FULL_QUEUES)
        self._unanswered = LRUCache[str, _Unanswered](maxsize=MAX_SESSIONS)

    def note_answer(self, workflow_id: WorkflowId, answer: BaseModel) -> None:
        """Note a committed answer of the session's worker."""
        self._unanswered.pop(workflow_id, None)
        if not isinstance(answer, QueueView):
            return
        self._full_queues.pop(workflow_id, None)
        if rejection := _rejection_by(answer):
            ids = frozenset(prompt.id for prompt in answer.waiting) | {fate.id for fate in answer.fates}
            self._full_queues[workflow_id] = _FullQueue(rejection, ids, asyncio.get_running_loop().time())

    async def admit(self, workflow_id: WorkflowId, prompt: PromptSignal) -> None:
        """Count a prompt that is about to be signalled. Raises 429, and 409 if the session was ending just now."""
        self._check_queue(workflow_id, prompt.id or "")
        unanswered, size = self._unanswered_by(workflow_id), len(prompt.model_dump_json())
        if unanswered.prompts >= MAX_UNANSWERED_PROMPTS or unanswered.bytes + size > MAX_UNANSWERED_BYTES:
            await self._describe(workflow_id, unanswered)
            if unanswered.history_events >= MAX_EVENTS or unanswered.history_bytes + size > MAX_BYTES:
                raise rejected("queue_full", HISTORY_FULL)
        unanswered.prompts += 1
        unanswered.bytes += size
        unanswered.history_events += 1
        unanswered.history_bytes += size

    def _check_queue(self, workflow_id: WorkflowId, message_id: str) -> None:
        queue, now = self._full_queues.get(workflow_id), asyncio.get_running_loop().time()
        if queue and queue.read_at >= now - self._timeouts.queue_read and message_id not in queue.ids:
            raise rejected(queue.rejection.reason, queue.rejection.message)

    def _unanswered_by(self, workflow_id: WorkflowId) -> _Unanswered:
        watch = self._watches.get(workflow_id)
        task_count = watch.version if watch is not None else 0
        unanswered = self._unanswered.get(workflow_id)
        if unanswered is None:
            unanswered = self._unanswered[workflow_id] = _Unanswered(task_count)
        elif watch is not None and task_count > unanswered.task_count:
            # The task may be an old one, which a new watch has read: prompts after it are unanswered.
            unanswered.task_count = task_count
            unanswered.prompts, unanswered.bytes = watch.waiting_signals, watch.waiting_bytes
        return unanswered

    async def _describe(self, workflow_id: WorkflowId, unanswered: _Unanswered) -> None:
        """Ask Temporal for the size of the history, unless that was a moment ago. Prompts meanwhile count as well."""
        now = asyncio.get_running_loop().time()
        if now < unanswered.described_at + DESCRIBE_SECONDS:
            return
        unanswered.described_at, prompts, size = now, unanswered.prompts, unanswered.bytes
        describing = self._client.get_workflow_handle(workflow_id).describe(rpc_timeout=self._timeouts.rpc)
        with suppress(ProblemError):  # the signal will fail for the same reason
            description = await call_temporal(describing, workflow_id, seconds=DESCRIBE_SECONDS)
            info = description.raw_description.workflow_execution_info
            unanswered.history_events = info.history_length + unanswered.prompts - prompts
            unanswered.history_bytes = info.history_size_bytes + unanswered.bytes - size


def _rejection_by(queue: QueueView) -> RejectedError | None:
    if queue.refusing is not None:
        return RejectedError(queue.refusing, queue.refusing_because or "The session accepts no prompts now.")
    is_full = queue.length >= queue.max_prompts or queue.bytes >= queue.max_bytes
    return RejectedError("queue_full", QUEUE_FULL.format(length=queue.length)) if is_full else None
