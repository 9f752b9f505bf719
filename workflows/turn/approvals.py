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
    from turnkeeper.models.transcript.trajectory import ToolCall
    from turnkeeper.workflows.turn.turn_context import TurnContext


class Approvals:
    """The approvals of a turn's newest step."""

    def __init__(self, context: TurnContext) -> None:
        self._context = context
        self._session = context.session
        self._expiring: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def asked_for(self, calls: list[ToolCall]) -> AsyncIterator[None]:
        """Ask about those of `calls` that were not asked about yet; inside the block, unanswered ones expire."""
        new = [call.id for call in calls if call.approval is None]
        if new:
            self._session.current_turn.change(self._context.turn.with_approvals_asked(new, now=workflow.now()))
            self._context.on_change()
        self._expiring = asyncio.create_task(self._expire())
        try:
            yield
        finally:
            self._expiring.cancel()

    async def wait_for_decision(self, call_id: str) -> None:
        """Wait until a call is decided on, or the run is due for the next one, in which it waits on."""
        await workflow.wait_condition(lambda: self._may_go_on(call_id))
        if self._is_awaited(call_id) and self._expiring and self._expiring.done():
            self._expiring.result()  # only a bug ends it before its time

    def _may_go_on(self, call_id: str) -> bool:
        is_over = self._expiring is not None and self._expiring.done()
        return is_over or not self._is_awaited(call_id) or self._context.is_due_for_new_run()

    def _is_awaited(self, call_id: str) -> bool:
        return self._context.turn.call(call_id).awaits_approval

    async def _expire(self) -> None:
        """Let the time to decide end for the calls that wait, all of which were asked about in the same moment."""
        while self._session.awaits_approval:
            awaiting = [call for call in self._context.turn.newest_step.tool_calls if call.awaits_approval]
            until = min(call.approval.expires_at for call in awaiting if call.approval)
            seconds = max(0.0, (until - workflow.now()).total_seconds())
            await workflow.sleep(seconds, summary=self._summary(awaiting))
            self._session.current_turn.change(self._context.turn.with_approvals_expired(workflow.now()))
            self._context.on_change()

    def _summary(self, awaiting: list[ToolCall]) -> str:
        """Say in the Web UI what is waited for; as short as Temporal wants it."""
        distinct = ", ".join(dict.fromkeys(call.name for call in awaiting))
        names = distinct if len(distinct) <= 80 else f"{len(awaiting)} tool calls"
        return f"approval of {names} · turn {self._session.turn_count} · step {self._context.turn.steps}"
