"""Sending a prompt: admitted here, signalled once, and only then asked for (SES-6, API-1).

Nothing is asked of the worker before the signal, unless the prompt is about to be refused: then the session is asked
whether that is still so, and whether it knows the prompt, since one that was accepted before is not refused when it is
sent again. Where no worker answers, the history's tail says so, and what this gateway remembers. Whether such a prompt
was rejected or withdrawn long ago is in the archive.
"""

import asyncio

from pydantic_core import to_json

from turnkeeper.api import problems
from turnkeeper.api.coalescer import Coalescer
from turnkeeper.api.problems import ProblemError
from turnkeeper.api.prompts.prompt_fates import PromptFates
from turnkeeper.api.temporal.ledgers import Ledger
from turnkeeper.api.temporal.receipts import Receipt, receipt_of
from turnkeeper.api.temporal.session_reader import RECEIPT_SECONDS, SessionReader
from turnkeeper.api.temporal.sessions import Sessions
from turnkeeper.models.errors import RejectedError
from turnkeeper.models.session.queue.prompts import PromptSignal
from turnkeeper.models.session.session import SessionInput
from turnkeeper.stores.database.database import StoreUnavailableError

MAX_QUESTIONS = 3
"""Before a prompt is refused the session is asked; again where its answer leaves room, which others have reserved."""

READ_SECONDS = 0.5
"""Longest time for reading a history's tail before a prompt is sent; without it the gateway goes by its own count."""

SEND_SECONDS = 2.7
"""A prompt that took this long to reach Temporal is answered without a receipt (API-2)."""


class PromptSender:
    """Sends prompts to all sessions. Methods raise `ProblemError`."""

    def __init__(self, sessions: Sessions, reader: SessionReader, fates: PromptFates) -> None:
        self._sessions = sessions
        self._reader = reader
        self._fates = fates
        self._ledgers = reader.ledgers
        self._tail_reads = Coalescer[str, None]()

    async def send(
        self,
        session_id: str,
        prompt: PromptSignal,
        *,
        start: SessionInput | None = None,
        is_new: bool = False,
        wants_receipt: bool = True,
    ) -> Receipt:
        """Signal a prompt, and return where it stands as far as a worker can say in time.

        With `start` the session is started if it does not exist. `is_new`: nobody else knows the prompt's id, so it
        can't have been sent before. Without `wants_receipt` nobody is asked: it returns once the prompt is safe.

        Raises what the session refuses the prompt with, 429 also before it was sent.
        """
        clock = asyncio.get_running_loop().time
        began, message_id = clock(), prompt.id or ""
        known = await self._admit(session_id, prompt, is_new=is_new)
        admitting = clock() - began
        if known is None:
            await self._signal(session_id, prompt, start)
            known = Receipt(message_id)
        seconds = min(RECEIPT_SECONDS - admitting, began + SEND_SECONDS - clock())
        if known.is_known or not wants_receipt or seconds <= 0:
            return known
        return await self._reader.receipt(session_id, message_id, seconds=seconds)

    async def _signal(self, session_id: str, prompt: PromptSignal, start: SessionInput | None) -> None:
        ledger, message_id, clock = self._ledgers.of(session_id), prompt.id or "", asyncio.get_running_loop().time
        try:
            if start:
                await self._sessions.start_or_prompt(session_id, start, prompt)
            else:
                await self._sessions.prompt(session_id, prompt)
        except ProblemError as problem:
            if problem.problem.status == 503:
                ledger.leave_open(message_id, now=clock())
            else:
                ledger.release(message_id)
            raise
        except BaseException:  # above all a cancellation: the signal may have been sent
            ledger.leave_open(message_id, now=clock())
            raise
        ledger.settle(message_id, now=clock())
        self._ledgers.note_accepted(session_id, message_id)

    # ---- is there room?

    async def _admit(self, session_id: str, prompt: PromptSignal, *, is_new: bool) -> Receipt | None:
        """Reserve room for a prompt; of one that was accepted before, return the receipt instead. Raises 429, 409."""
        ledger, size = self._ledgers.of(session_id), len(to_json(prompt.text))
        if ledger.is_tail_due(now=_now(), workers_answer=self._ledgers.workers_answer(now=_now())):
            await self._read_tail(session_id, ledger)
        if ledger.is_in_tail(prompt.id or "", now=_now()):
            return Receipt(prompt.id or "")
        refusal = self._reserved(ledger, prompt, size)
        if refusal is None:
            return None
        is_sure = is_new and ledger.refuses_all(now=_now()) is not None
        for _ in range(0 if is_sure else MAX_QUESTIONS):
            known = await self._known(session_id, ledger, prompt.id or "")
            if known:
                return known
            refusal = self._reserved(ledger, prompt, size)
            if refusal is None:
                return None
            if not ledger.has_room_by_read(size, now=_now()):
                break
        raise problems.refused(refusal.reason, refusal.message)

    def _reserved(self, ledger: Ledger, prompt: PromptSignal, size: int) -> RejectedError | None:
        message_id = prompt.id or ""
        refusal = ledger.refusal(message_id, size, now=_now())
        if refusal is None:
            ledger.reserve(message_id, size)
        return refusal

    async def _known(self, session_id: str, ledger: Ledger, message_id: str) -> Receipt | None:
        """Return the receipt of a prompt that was accepted before; what is known of the queue is new then."""
        result = None
        if not ledger.is_silent(now=_now()):
            result = await self._reader.queue_in_time(session_id, message_id)
        if result is None:
            if ledger.is_tail_due(now=_now()):
                await self._read_tail(session_id, ledger)
        elif result.closed is not None:
            raise problems.session_ended(session_id)
        elif any(fate.id == message_id and fate.fate == "rejected" for fate in result.view.fates):
            return None
        elif (receipt := receipt_of(result.view, message_id)).is_known:
            return receipt
        if ledger.tail is not None and ledger.tail.is_closed:
            raise problems.session_ended(session_id)
        if ledger.tail is not None and ledger.tail.awaits(message_id):
            return Receipt(message_id)
        if self._ledgers.has_accepted(session_id, message_id):
            return await self._accepted_before(session_id, message_id)
        return None

    async def _accepted_before(self, session_id: str, message_id: str) -> Receipt | None:
        """Return the receipt of a prompt that this gateway has signalled; `None` where it may have been rejected since.

        The session remembers the last fates only; the archive has the older ones. Raises 409 where it was taken back.
        """
        try:
            archived = await self._fates.archived(session_id, message_id)
        except StoreUnavailableError:
            return None
        if archived is None or archived.turn_id is not None:
            return Receipt(message_id)
        if archived.fate == "rejected":
            return None
        raise problems.refused("not_waiting", f"Prompt {message_id!r} was {archived.fate}; send it under a new id.")

    async def _read_tail(self, session_id: str, ledger: Ledger) -> None:
        """Read the end of the history, together with all who need it at that moment."""
        await self._tail_reads.run(session_id, lambda: self._note_tail(session_id, ledger))

    async def _note_tail(self, session_id: str, ledger: Ledger) -> None:
        tails = self._reader.tails
        try:
            if ledger.read is None and ledger.first_limits is None:
                ledger.first_limits = await tails.first_limits(session_id, seconds=READ_SECONDS)
            max_prompts, max_bytes = ledger.limits
            tail = await tails.read(session_id, max_prompts=max_prompts, max_bytes=max_bytes, seconds=READ_SECONDS)
        except ProblemError:
            return  # the signal will say what is wrong, if anything
        ledger.note_tail(tail)


def _now() -> float:
    return asyncio.get_running_loop().time()
