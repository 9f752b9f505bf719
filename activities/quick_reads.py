"""Quick reads: calls that `call_model` runs itself, right after the answer that has them (OPS-8, AGN-3).

They are of built-in tools, and of those of an agent's file.

Such a read ends within a few milliseconds, but an activity of its own costs six events and two round trips. The
workflow checks each call as usual, and then has its result already. A read that was not needed has no effect.
"""

import asyncio
import logging
from collections.abc import Iterator

from turnkeeper.activities.model_request.large_texts import LargeTexts
from turnkeeper.activities.own_workflow import current_session_id
from turnkeeper.activities.tools import ToolSource
from turnkeeper.models.ids import call_id
from turnkeeper.models.limits import SMALL_TEXT_BYTES
from turnkeeper.models.transcript.model_call import CallPart, ModelCall, ModelResponse, QuickReads, ToolInvocation
from turnkeeper.models.transcript.trajectory import ToolResult

MAX_SECONDS = 0.2
"""How long the answer waits for its reads."""

MAX_READS = 8
"""Maximum calls of an answer; with more, each is an activity."""

_log = logging.getLogger(__name__)


class QuickReader:
    """Runs the quick reads of an answer."""

    def __init__(self, tools: ToolSource, texts: LargeTexts) -> None:
        self._tools = tools
        self._texts = texts
        self._late: set[str] = set()
        """Tools of agents' files that were late once: they are not tried again, or they would run twice."""

    async def read(self, call: ModelCall, response: ModelResponse) -> dict[int, ToolResult]:
        """Return the results of the response's calls by position, if all of them are quick reads.

        Empty if one is not: calls may depend on the order in which they run. Reads that fail, or that take longer than
        `MAX_SECONDS`, are left out; the workflow then runs them as activities.
        """
        if call.quick_reads is None or not _are_quick(response, call.quick_reads):
            return {}
        if self._late.intersection(one.name for one in response.calls):
            return {}
        count = len(response.calls)
        share = (call.quick_reads.room - len(response.model_dump_json().encode())) // count
        if share < SMALL_TEXT_BYTES:
            return {}
        inline_bytes = min(call.inline_bytes, share)
        running = [
            asyncio.create_task(self._result_of(invocation))
            for invocation in _invocations(call, call.quick_reads, response, inline_bytes=inline_bytes)
        ]
        try:
            await asyncio.wait(running, timeout=MAX_SECONDS)
        finally:
            for task in running:
                task.cancel()
        for part, task in zip(response.calls, running, strict=True):
            if not task.done() and part.name in call.quick_reads.local:
                self._late.add(part.name)
        return {index: result for index, task in enumerate(running) if (result := _result_in(task))}

    async def _result_of(self, invocation: ToolInvocation) -> ToolResult:
        result = await self._tools.call(invocation)
        return await self._texts.keep_result(current_session_id(), result, invocation.inline_bytes)


def _are_quick(response: ModelResponse, allowed: QuickReads) -> bool:
    calls = response.calls if response.stop != "max_tokens" else []
    return 0 < len(calls) <= MAX_READS and all(map(_is_readable, calls)) and {c.name for c in calls} <= {*allowed.tools}


def _is_readable(call: CallPart) -> bool:
    return isinstance(call.args, dict) and call.blob is None


def _invocations(
    call: ModelCall, allowed: QuickReads, response: ModelResponse, *, inline_bytes: int
) -> Iterator[ToolInvocation]:
    for index, part in enumerate(response.calls):
        local = allowed.local.get(part.name)
        yield ToolInvocation(
            session_id=current_session_id(),
            call_id=call_id(call.turn, call.step, index),
            name=part.name,
            server=local.server if local else "",
            built_in=local is None,
            tool_digest=local.tool_digest if local else "",
            user=allowed.user if local else None,
            agent=allowed.agent if local else None,
            args=part.args if isinstance(part.args, dict) else {},
            workspace=allowed.workspace,
            max_chars=allowed.max_chars,
            inline_bytes=inline_bytes,
        )


def _result_in(task: asyncio.Task[ToolResult]) -> ToolResult | None:
    """Return the result of a read that is ready; `None` for one that is late or has failed."""
    if not task.done() or task.cancelled():
        return None
    if error := task.exception():
        _log.warning("a quick read failed; it runs again as an activity", exc_info=error)
        return None
    return task.result()
