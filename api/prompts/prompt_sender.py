"""Sending a prompt: admit it, signal it once, and query its position (SES-6, API-1).

No signal waits for a worker, unless the prompt is about to be rejected: is the queue still full, and does the session
already have the prompt? An accepted prompt is not rejected when it is sent again. Where no worker answers, the end of
the history and this gateway's own memory say so. Old rejections and withdrawals are in the archive.

The query for the position is sent beside the signal, since the signal's workflow task begins a whole turn, and a query
that comes after the signal waits for it. The session then says where its next prompt will be. If that may be another
one, or the session may reject this one, it is queried once more, after the signal.
"""

import asyncio
from collections.abc import Mapping
from types import MappingProxyType

from turnkeeper.api.coalescer import Coalescer, SharedCall
from turnkeeper.api.problems import ProblemError, problem, rejected
from turnkeeper.api.prompts.attachment_keeper import AttachmentKeeper
from turnkeeper.api.prompts.fate_reader import FateReader
from turnkeeper.api.temporal.queue_estimates import QueueEstimate
from turnkeeper.api.temporal.receipts import Receipt, early_receipt_of, receipt_of
from turnkeeper.api.temporal.session_commands import SessionCommands
from turnkeeper.api.temporal.session_reader import SessionReader
from turnkeeper.models.errors import RejectedError
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.session.queue.prompt_row import text_bytes
from turnkeeper.models.session.queue.prompts import PromptSignal
from turnkeeper.stores.database.database import StoreUnavailableError

MAX_QUERIES = 3
"""Queries before a prompt is rejected. Other prompts may take the room that a query has found."""

READ_SECONDS = 0.5
"""Time for reading the end of the history before a prompt is sent. After that the gateway uses its own count."""

STEPS_TO_SEND = 2
"""Turns of the event loop after which a query has been sent, unless the session has another one open."""

NO_CONTENTS: Mapping[str, bytes] = MappingProxyType({})


class PromptSender:
    """Sends prompts to sessions. Methods raise `ProblemError`."""

    def __init__(
        self, sessions: SessionCommands, reader: SessionReader, fates: FateReader, attachments: AttachmentKeeper
    ) -> None:
        self._sessions = sessions
        self._reader = reader
        self._fates = fates
        self._attachments = attachments
        self._estimates = reader.estimates
        self._tail_reads = Coalescer[str, None]()

    async def send(
        self,
        workflow_id: WorkflowId,
        prompt: PromptSignal,
        *,
        start: SessionInput | None = None,
        is_new: bool = False,
        wants_receipt: bool = True,
        contents: Mapping[str, bytes] = NO_CONTENTS,
    ) -> Receipt:
        """Signal a prompt, and return its position if a worker answers in time.

        `contents` of its attachments, by hash, are stored before. With `start` the session is started if it does not
        exist. `is_new`: the id is newly generated, so the prompt can't have been sent before. Without `wants_receipt`
        it returns as soon as the prompt is safe.

        Raises the session's rejection of the prompt, and 429 also before it is sent.
        """
        started_at, message_id = _now(), prompt.id or ""
        receipt = await self._admit(workflow_id, prompt, is_new=is_new)
        if receipt is not None and receipt.is_known:
            return receipt
        is_over_limit = wants_receipt and not self._reader.receipt_limit.has_room
        if is_over_limit:
            self._estimates.of(workflow_id).note_silence(now=_now())
        if is_over_limit or not wants_receipt:
            if receipt is None:
                await self._signal(workflow_id, prompt, start, contents)
            return Receipt(message_id)
        with self._reader.receipt_limit.waiting():
            seconds, asked_at = self._reader.timeouts.receipt - (_now() - started_at), _now()
            if receipt is None and seconds > 0 and self._can_ask_at_once(workflow_id, prompt, start):
                receipt = await self._signal_and_ask(workflow_id, prompt, contents, seconds=seconds)
            elif receipt is None:
                await self._signal(workflow_id, prompt, start, contents)
                asked_at = _now()
            seconds = min(asked_at + seconds, started_at + self._reader.timeouts.send) - _now()
            if seconds <= 0 or (receipt is not None and receipt.is_known):
                return receipt or Receipt(message_id)
            return await self._reader.receipt(workflow_id, message_id, seconds=seconds)

    def _can_ask_at_once(self, workflow_id: WorkflowId, prompt: PromptSignal, start: SessionInput | None) -> bool:
        """Return whether the session's state just before the signal would say where the prompt will be."""
        is_plain = start is None and prompt.mode == "enqueue" and not prompt.attachments
        return is_plain and self._estimates.of(workflow_id).are_others_settled(prompt.id or "")

    async def _signal_and_ask(
        self, workflow_id: WorkflowId, prompt: PromptSignal, contents: Mapping[str, bytes], *, seconds: float
    ) -> Receipt:
        """Signal a prompt while the session is queried: neither waits for the other.

        The query is sent first. If it reaches the session first, as it nearly always does where nothing else happens,
        it does not wait for the signal's workflow task, which begins a whole turn.
        """
        estimate, message_id = self._estimates.of(workflow_id), prompt.id or ""
        reservations = estimate.reservations
        question = SharedCall(self._reader.queue_in_time(workflow_id, message_id, seconds=seconds, is_shared=False))
        try:
            for _ in range(STEPS_TO_SEND):
                await asyncio.sleep(0)
            await self._signal(workflow_id, prompt, None, contents)
        except BaseException:
            estimate.release(message_id)  # unless it was sent
            await question.cancel()
            raise
        try:
            result = await question.result()
        except ProblemError:  # no such session: it was started only just before the signal
            result = None
        if result is None or estimate.reservations != reservations:  # another prompt may have overtaken this one
            return Receipt(message_id)
        return early_receipt_of(result.view, message_id) or Receipt(message_id)

    async def _signal(
        self,
        workflow_id: WorkflowId,
        prompt: PromptSignal,
        start: SessionInput | None,
        contents: Mapping[str, bytes],
    ) -> None:
        estimate, message_id, clock = self._estimates.of(workflow_id), prompt.id or "", asyncio.get_running_loop().time
        try:
            await self._attachments.store(workflow_id, contents, is_started_next=start is not None)
        except BaseException:
            estimate.release(message_id)
            raise
        try:
            if start:
                await self._sessions.start_or_prompt(workflow_id, start, prompt)
            else:
                await self._sessions.prompt(workflow_id, prompt)
        except ProblemError as problem:
            if problem.problem.status == 503:
                estimate.leave_open(message_id, now=clock())
            else:
                estimate.release(message_id)
            raise
        except BaseException:  # such as a cancellation: the signal may have been sent
            estimate.leave_open(message_id, now=clock())
            raise
        estimate.settle(message_id, now=clock())
        self._estimates.note_accepted(workflow_id, message_id)

    # ---- is there room?

    async def _admit(self, workflow_id: WorkflowId, prompt: PromptSignal, *, is_new: bool) -> Receipt | None:
        """Reserve room for a prompt; return the receipt if it was accepted before. Raises 422, 429, 409."""
        estimate, size = self._estimates.of(workflow_id), text_bytes(prompt)
        if estimate.read is not None and len(prompt.text) > estimate.read.max_prompt_chars:
            receipt = await self._earlier_receipt(workflow_id, estimate, prompt.id or "")
            if receipt:
                return receipt
            if (too_long := estimate.length_rejection(prompt.text, now=_now())) is not None:
                raise rejected(too_long.reason, too_long.message, field="message")
        if estimate.is_tail_due(now=_now(), answered_at=self._estimates.answered_at):
            await self._read_tail(workflow_id, estimate)
        if estimate.is_in_tail(prompt.id or "", now=_now()):
            return Receipt(prompt.id or "")
        rejection = self._reserve(estimate, prompt, size)
        if rejection is None:
            return None
        is_final = is_new and estimate.rejection_of_all(now=_now()) is not None
        for _ in range(0 if is_final else MAX_QUERIES):
            receipt = await self._earlier_receipt(workflow_id, estimate, prompt.id or "")
            if receipt:
                return receipt
            rejection = self._reserve(estimate, prompt, size)
            if rejection is None:
                return None
            if not estimate.has_room_by_read(size, now=_now()):
                break
        raise rejected(rejection.reason, rejection.message)

    def _reserve(self, estimate: QueueEstimate, prompt: PromptSignal, size: int) -> RejectedError | None:
        message_id = prompt.id or ""
        rejection = estimate.rejection(message_id, size, now=_now())
        if rejection is None:
            estimate.reserve(message_id, size)
        return rejection

    async def _earlier_receipt(
        self, workflow_id: WorkflowId, estimate: QueueEstimate, message_id: str
    ) -> Receipt | None:
        """Return the receipt of a prompt that was accepted before. Also updates the estimate of the queue."""
        result = None
        if not estimate.is_silent(now=_now()):
            result = await self._reader.queue_in_time(workflow_id, message_id)
        if result is None:
            if estimate.is_tail_due(now=_now()):
                await self._read_tail(workflow_id, estimate)
        elif result.closed is not None:
            raise problem("session-ended", workflow_id=workflow_id)
        elif any(fate.id == message_id and fate.fate == "rejected" for fate in result.view.fates):
            return None
        elif (receipt := receipt_of(result.view, message_id)).is_known:
            return receipt
        if estimate.tail is not None and estimate.tail.is_closed:
            raise problem("session-ended", workflow_id=workflow_id)
        if estimate.tail is not None and estimate.tail.will_process(message_id):
            return Receipt(message_id)
        if self._estimates.has_accepted(workflow_id, message_id):
            return await self._receipt_if_not_rejected(workflow_id, message_id)
        return None

    async def _receipt_if_not_rejected(self, workflow_id: WorkflowId, message_id: str) -> Receipt | None:
        """Return the receipt of a prompt that this gateway has signalled; `None` if it may have been rejected since.

        The session has only the last fates; the archive has older ones. Raises 409 if the prompt was withdrawn.
        """
        try:
            archived = await self._fates.archived_fate(workflow_id, message_id)
        except StoreUnavailableError:
            return None
        if archived is None or archived.turn_id is not None:
            return Receipt(message_id)
        if archived.fate == "rejected":
            return None
        raise problem("not-waiting", message_id=message_id, fate=archived.fate)

    async def _read_tail(self, workflow_id: WorkflowId, estimate: QueueEstimate) -> None:
        """Read the end of the history, once for all concurrent callers."""
        await self._tail_reads.run(workflow_id, lambda: self._note_tail(workflow_id, estimate))

    async def _note_tail(self, workflow_id: WorkflowId, estimate: QueueEstimate) -> None:
        tails = self._reader.tails
        try:
            if estimate.read is None and estimate.first_limits is None:
                estimate.first_limits = await tails.first_limits(workflow_id, seconds=READ_SECONDS)
            max_prompts, max_bytes = estimate.limits
            tail = await tails.read(workflow_id, max_prompts=max_prompts, max_bytes=max_bytes, seconds=READ_SECONDS)
        except ProblemError:
            return  # the signal will fail with the reason, if there is one
        estimate.note_tail(tail)


def _now() -> float:
    return asyncio.get_running_loop().time()
