"""Listing tools, calling one, and what a call would change: `list_tools`, `call_tool` and `preview_changes`.

The progress of a running call is published (AGT-7). A server may send thousands of reports per second, with whatever
numbers and texts. So only the newest one is kept, and made into a bounded, legible record when it is due: at most every
`MIN_PAUSE_SECONDS`, and again every `REPEAT_SECONDS`, so that no carrier has to store it for those who come late. It is
never recorded, and the call's result replaces it.

*Quick reads* are calls of built-in tools that `call_model` runs itself, right after the answer that has them (OPS-8).
Such a read ends within a few milliseconds, but an activity of its own costs six events and two round trips. The
workflow checks each call as usual, and then has its result already. A read that was not needed has no effect.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from math import isfinite
from typing import Protocol

from temporalio import activity
from temporalio.exceptions import ApplicationError

from turnkeeper.activities.activity_context import current_session_id, heartbeating
from turnkeeper.activities.large_texts import LargeTexts
from turnkeeper.models.errors import TurnkeeperError
from turnkeeper.models.ids import WorkflowId, call_id
from turnkeeper.models.legible import legible_line, one_line
from turnkeeper.models.limits import MAX_NESTING, SMALL_TEXT_BYTES, TOOL_LIST_BYTES
from turnkeeper.models.session.approvals import NO_DIFFERENCE
from turnkeeper.models.session.tools import carried_bytes, tools_digest
from turnkeeper.models.texts import bound_text, is_nested_over
from turnkeeper.models.transcript.conversation import FileChange, ToolResult
from turnkeeper.models.transcript.model_call import (
    ChangePreviews,
    ModelCall,
    ModelResponse,
    PreviewCall,
    QuickReads,
    ServerText,
    ToolInvocation,
    ToolList,
    ToolListCall,
    ToolSpec,
)
from turnkeeper.models.transcript.partial_output import CallProgress
from turnkeeper.stores.partials.carrier import PartialCarrier

MIN_PAUSE_SECONDS = 0.25
REPEAT_SECONDS = 1.0

MAX_MESSAGE_CHARS = 200

ProgressListener = Callable[[float, float | None, str | None], None]
"""Accepts a report: `progress`, `total` and `message`, as MCP defines them."""

_log = logging.getLogger(__name__)


@asynccontextmanager
async def publishing_progress(
    carrier: PartialCarrier, workflow_id: WorkflowId, call_id: str
) -> AsyncIterator[ProgressListener]:
    """Yield the listener of a call's reports, and publish them inside the block."""
    newest: tuple[float, float | None, str | None] = (0.0, None, None)
    has_news = asyncio.Event()

    def listen(progress: float, total: float | None, message: str | None) -> None:
        nonlocal newest
        newest = (progress, total, message)
        has_news.set()

    async def publish() -> None:
        await has_news.wait()
        try:
            while True:
                has_news.clear()
                if carrier.is_followed(workflow_id):
                    carrier.publish(workflow_id, call_progress(call_id, *newest))
                await asyncio.sleep(max(MIN_PAUSE_SECONDS, carrier.min_pause))
                with suppress(TimeoutError):
                    async with asyncio.timeout(REPEAT_SECONDS):
                        await has_news.wait()
        except Exception as error:  # noqa: BLE001  # a failure to publish must not fail the call
            # Only the error's name: messages can contain what the server wrote.
            _log.warning("the progress of a tool is not published (%s)", type(error).__name__)

    publishing = asyncio.create_task(publish())  # in the activity's context, which heartbeats need
    try:
        yield listen
    finally:
        publishing.cancel()


def call_progress(call_id: str, progress: float, total: float | None, message: str | None) -> CallProgress:
    r"""Return a server's report as a record that is safe to show.

    >>> call_progress("1.1.0", 3, 12, "Reading\n pages").text, call_progress("1.1.0", 3, 0, None).text
    ('3 of 12 (25 %) · Reading pages', '3')
    >>> call_progress("1.1.0", 0.5, 1, None).text, call_progress("1.1.0", float("nan"), 9e99, "\u202e").text
    ('50 %', '0 of 9e+99 (0 %) · <U+202E>')
    """
    progress = progress if isfinite(progress) else 0.0
    total = total if total is not None and isfinite(total) and total > 0 else None
    message = one_line(legible_line(" ".join((message or "")[: 5 * MAX_MESSAGE_CHARS].split())), MAX_MESSAGE_CHARS)
    numbers = f"{round(progress, 2):,.12g}"
    if total is not None:
        percent = f"{int(100 * min(1.0, max(0.0, progress / total)))} %"
        numbers = percent if total in (1, 100) else f"{numbers} of {round(total, 2):,.12g} ({percent})"
    elif message:
        numbers = ""  # it has no unit
    text = " · ".join(filter(None, (numbers, message)))
    return CallProgress(call_id=call_id, progress=progress, total=total, message=message, text=text)


INSTRUCTIONS_CHARS = 4_000
"""Characters of one server's instructions; the middle of longer ones is cut."""

ALL_INSTRUCTIONS_CHARS = 16_000
"""Characters of all servers' instructions, which are in every request."""


class ServerLostError(TurnkeeperError):
    """The server was lost during a call that may be repeated. `result` is for the last attempt."""

    def __init__(self, result: ToolResult) -> None:
        super().__init__(result.outcome)
        self.result = result


class ToolSource(Protocol):
    """The tools of this worker. The composition root injects `turnkeeper.activities.toolbox`."""

    async def list_tools(self) -> ToolList:
        """Return all tools in a stable order with unique names, and the servers that could not be reached."""
        ...

    async def call(self, invocation: ToolInvocation, *, on_progress: ProgressListener | None = None) -> ToolResult:
        """Run one call. Failures are results. Raises `ServerLostError` if a second attempt may help."""
        ...

    async def preview(self, invocation: ToolInvocation, *, max_bytes: int) -> FileChange:
        """Return what a call of a built-in tool would change in a file, with `max_bytes` of difference as JSON."""
        ...


class ToolActivities:
    """Activities that use tools."""

    def __init__(self, toolbox: ToolSource, texts: LargeTexts, partials: PartialCarrier) -> None:
        self._toolbox = toolbox
        self._texts = texts
        self._partials = partials

    @activity.defn
    async def list_tools(self, call: ToolListCall | None = None) -> ToolList:
        """Return the current tools, or `unchanged` if the session has them already: its history stays smaller.

        A second attempt lists them again, which changes nothing.
        """
        async with heartbeating():
            tool_list = await self._toolbox.list_tools()
        tools, instructions = _carriable(tool_list.tools), _bounded(tool_list.instructions)
        if call and call.known == tools_digest(tools, instructions) and not tool_list.unread:
            return ToolList(unchanged=True, absent=tool_list.absent)
        return tool_list.model_copy(update={"tools": tools, "instructions": instructions})

    @activity.defn
    async def call_tool(self, invocation: ToolInvocation) -> ToolResult:
        """Run a tool and return its result.

        A second attempt, with the same idempotency key, happens only for read-only and idempotent tools; every other
        tool runs at most once (AGT-7). `workflows/turn/tool_calls.py` decides that.
        """
        session_id = current_session_id()
        progress = publishing_progress(self._partials, session_id, invocation.call_id)
        async with heartbeating(), progress as on_progress:
            invocation_with_args = await self._texts.resolve_call(session_id, invocation)
            if invocation_with_args is None:
                return ToolResult(outcome=f"{invocation.name} was not called: {_UNREADABLE}", status="error")
            complete_invocation = invocation_with_args.model_copy(update={"session_id": session_id})
            result = await self._call_or_raise(complete_invocation, on_progress)
            return await self._texts.keep_result(session_id, result, invocation.inline_bytes)

    @activity.defn
    async def preview_changes(self, call: PreviewCall) -> ChangePreviews:
        """Return what calls would change in files, each on its own. Nothing is written.

        A second attempt looks at the files as they are then.
        """
        session_id = current_session_id()
        async with heartbeating():
            changes = {one.call_id: await self._preview(session_id, one, call.max_bytes) for one in call.calls}
        return ChangePreviews(changes=changes)

    async def _preview(self, session_id: WorkflowId, invocation: ToolInvocation, max_bytes: int) -> FileChange:
        with_args = await self._texts.resolve_call(session_id, invocation)
        if with_args is None:
            return FileChange(note=NO_DIFFERENCE)
        invocation = with_args.model_copy(update={"session_id": session_id})
        return await self._toolbox.preview(invocation, max_bytes=max_bytes)

    async def _call_or_raise(self, invocation: ToolInvocation, on_progress: ProgressListener) -> ToolResult:
        """Call the tool. A lost server fails the attempt; on the last attempt it is the result."""
        try:
            return await self._toolbox.call(invocation, on_progress=on_progress)
        except ServerLostError as error:
            info = activity.info()
            max_attempts = info.retry_policy.maximum_attempts if info.retry_policy else 1
            if info.attempt < max_attempts:
                raise ApplicationError(str(error), type="tool_server_lost") from None
            return error.result


_UNREADABLE = "its arguments are in the store of large texts, which can't be read now"


def _bounded(instructions: list[ServerText]) -> list[ServerText]:
    room, bounded = ALL_INSTRUCTIONS_CHARS, list[ServerText]()
    for one in instructions:
        text = bound_text(one.text, INSTRUCTIONS_CHARS, 4 * INSTRUCTIONS_CHARS)
        room -= len(text)
        if room < 0:
            _log.warning("the instructions of %r are left out: a session has room for no more", one.server)
            break
        bounded.append(ServerText(server=one.server, text=text))
    return bounded


def _carriable(tools: list[ToolSpec]) -> list[ToolSpec]:
    """Return the first tools, as many as a session can carry from run to run (SES-16)."""
    room, carried_tools = TOOL_LIST_BYTES, list[ToolSpec]()
    for tool in tools:
        if is_nested_over(tool.input_schema, MAX_NESTING):
            _log.warning("the tool %s is left out: its schema is nested over %d levels", tool.name, MAX_NESTING)
            continue
        room -= carried_bytes(tool)
        if room < 0:
            _log.warning(
                "%d of %d tools are left out: a session has room for no more",
                len(tools) - len(carried_tools),
                len(tools),
            )
            break
        carried_tools.append(tool)
    return carried_tools


# ---- quick reads

MAX_READ_SECONDS = 0.2
"""How long the answer waits for its reads."""

MAX_READS = 8
"""Maximum calls of an answer; with more, each is an activity."""


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
        `MAX_READ_SECONDS`, are left out; the workflow then runs them as activities.
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
            await asyncio.wait(running, timeout=MAX_READ_SECONDS)
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
    return (
        0 < len(calls) <= MAX_READS
        and all(isinstance(call.args, dict) and call.blob is None for call in calls)
        and {c.name for c in calls} <= {*allowed.tools}
    )


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
