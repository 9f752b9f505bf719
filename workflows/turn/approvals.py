"""Waiting for people's decisions on the calls of a step (AGT-8).

Theory of operation. All calls of a step that need a decision are asked about at once, so one timer serves them all.
Each then waits on its own, beside those that run already, and goes on when it is decided: by a person, through the
update `resolve_approval`, or because the time is over. Meanwhile nothing is in flight for it, so the turn can go on in
a new run: the calls, what was asked and what was decided are in the session and carried along.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from turnkeeper.models.session.approvals import rejection_of
    from turnkeeper.models.transcript.trajectory import ToolCall, ToolResult
    from turnkeeper.workflows.turn.turn_frame import Frame


class Approvals:
    """The approvals of a turn's newest step."""

    def __init__(self, frame: Frame) -> None:
        """Wait for the turn of `frame`."""
        self._frame = frame
        self._session = frame.session
        self._expiring: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def asked_for(self, calls: list[ToolCall]) -> AsyncIterator[None]:
        """Ask about those of `calls` that were not asked about yet; inside the block, unanswered ones expire."""
        new = [call.id for call in calls if call.approval is None]
        if new:
            timeout = self._frame.limits.approval_timeout
            self._session.ask_for_approval(new, timeout=timeout, now=workflow.now())
            self._frame.await_people()
            self._frame.on_change()
        self._expiring = asyncio.create_task(self._expire())
        try:
            yield
        finally:
            self._expiring.cancel()

    async def is_decided(self, call_id: str) -> bool:
        """Wait for the decision on a call; `False`: the turn pauses, and goes on waiting in the next run."""
        await workflow.wait_condition(lambda: self._goes_on(call_id))
        if self._call(call_id).awaits_approval:
            if self._expiring and self._expiring.done():
                self._expiring.result()  # only a bug ends it before its time
            return False
        if not self._session.awaits_approval:
            self._frame.go_on()
        return True

    def rejection(self, call_id: str) -> ToolResult | None:
        """Return the result of a call that was decided on and is not to run."""
        return rejection_of(self._call(call_id))

    def _goes_on(self, call_id: str) -> bool:
        is_over = self._expiring is not None and self._expiring.done()
        return is_over or not self._call(call_id).awaits_approval or self._frame.is_due_for_new_run()

    async def _expire(self) -> None:
        """Let the time to decide end for the calls that wait, all of which were asked about in the same moment."""
        while self._session.awaits_approval:
            waiting = [call for call in self._session.newest_step().tool_calls if call.awaits_approval]
            until = min(call.approval.expires_at for call in waiting if call.approval)
            seconds = max(0.0, (until - workflow.now()).total_seconds())
            await workflow.sleep(seconds, summary=self._summary(waiting))
            self._session.expire_approvals(now=workflow.now())
            self._frame.on_change()

    def _summary(self, waiting: list[ToolCall]) -> str:
        """Say in the Web UI what is waited for; as short as Temporal wants it."""
        named = ", ".join(dict.fromkeys(call.name for call in waiting))
        names = named if len(named) <= 80 else f"{len(waiting)} tool calls"
        return f"approval of {names} · turn {self._session.turn_count} · step {self._frame.steps}"

    def _call(self, call_id: str) -> ToolCall:
        return next(call for call in self._session.newest_step().tool_calls if call.id == call_id)
