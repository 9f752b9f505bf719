"""Waits for people's decisions on the calls of a step (AGT-8).

Theory of operation. All approvals of a step are requested at once, so one timer serves them all. Each call then waits
on its own, while others run, until a person decides through the update `resolve_approval`, or the time is over. A
waiting call has no activity, so the session can continue as new meanwhile: calls, requests and decisions are part of
the carried state.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from turnkeeper.models.transcript.trajectory import FileChange, ToolCall
    from turnkeeper.workflows.turn.turn_scope import TurnScope


class Approvals:
    """The approvals of a turn's newest step."""

    def __init__(self, scope: TurnScope) -> None:
        self._scope = scope
        self._session = scope.session
        self._expiry: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def requested(self, calls: list[ToolCall], changes: Mapping[str, FileChange]) -> AsyncIterator[None]:
        """Request approvals of `calls`, unless requested before; inside the block, pending ones expire.

        `changes`: what some of them would change in a file.
        """
        new = [call.id for call in calls if call.approval is None]
        if new:
            self._session.turn_slot.change(self._scope.turn.with_approvals_asked(new, changes, now=workflow.now()))
            self._scope.refresh_ui()
        self._expiry = asyncio.create_task(self._expire())
        try:
            yield
        finally:
            self._expiry.cancel()

    async def wait_for_decision(self, call_id: str) -> None:
        """Wait until a call is decided, or continue-as-new is due."""
        await workflow.wait_condition(lambda: self._may_go_on(call_id))
        if self._is_awaited(call_id) and self._expiry and self._expiry.done():
            self._expiry.result()  # raises: only a bug ends it early

    def _may_go_on(self, call_id: str) -> bool:
        is_over = self._expiry is not None and self._expiry.done()
        return is_over or not self._is_awaited(call_id) or self._scope.is_due_for_new_run()

    def _is_awaited(self, call_id: str) -> bool:
        return self._scope.turn.call(call_id).awaits_approval

    async def _expire(self) -> None:
        """Expire pending approvals at their time; all were requested at the same moment."""
        while self._scope.turn.awaits_approval:
            awaiting = [call for call in self._scope.turn.newest_step.tool_calls if call.awaits_approval]
            until = min(call.approval.expires_at for call in awaiting if call.approval)
            seconds = max(0.0, (until - workflow.now()).total_seconds())
            await workflow.sleep(seconds, summary=self._summary(awaiting))
            self._session.turn_slot.change(self._scope.turn.with_approvals_expired(workflow.now()))
            self._scope.refresh_ui()

    def _summary(self, awaiting: list[ToolCall]) -> str:
        """Return the timer's summary for the Web UI, within Temporal's length limit."""
        distinct = ", ".join(dict.fromkeys(call.name for call in awaiting))
        names = distinct if len(distinct) <= 80 else f"{len(awaiting)} tool calls"
        return f"approval of {names} · turn {self._session.transcript.count} · step {self._scope.turn.steps}"
