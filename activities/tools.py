"""Listing tools, calling one, and what a call would change: `list_tools`, `call_tool` and `preview_changes`."""

import logging
from typing import Protocol

from temporalio import activity
from temporalio.exceptions import ApplicationError

from turnkeeper.activities.heartbeat import heartbeating
from turnkeeper.activities.model_request.large_texts import LargeTexts
from turnkeeper.activities.own_workflow import current_session_id
from turnkeeper.activities.tool_progress import ProgressListener, publishing_progress
from turnkeeper.models.bounds import bound_text, is_nested_over
from turnkeeper.models.errors import TurnkeeperError
from turnkeeper.models.ids import WorkflowId
from turnkeeper.models.limits import MAX_NESTING, TOOL_LIST_BYTES
from turnkeeper.models.session.approvals import NO_DIFFERENCE
from turnkeeper.models.session.tools.session_tools import carried_bytes, tools_digest
from turnkeeper.models.transcript.model_call import (
    ChangePreviews,
    PreviewCall,
    ServerText,
    ToolInvocation,
    ToolList,
    ToolListCall,
    ToolSpec,
)
from turnkeeper.models.transcript.trajectory import FileChange, ToolResult
from turnkeeper.stores.partials.carrier import PartialCarrier

INSTRUCTIONS_CHARS = 4_000
"""Characters of one server's instructions; the middle of longer ones is cut."""

ALL_INSTRUCTIONS_CHARS = 16_000
"""Characters of all servers' instructions, which are in every request."""

_log = logging.getLogger(__name__)


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
    """Return the instructions of servers within the bounds of one and of all."""
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
