"""Reading which tools there are, and running one: the activities `list_tools` and `call_tool`."""

import logging
from typing import Protocol

from temporalio import activity
from temporalio.exceptions import ApplicationError

from turnkeeper.activities.heartbeat import heartbeating
from turnkeeper.activities.model_request.large_texts import LargeTexts
from turnkeeper.activities.own_workflow import own_session
from turnkeeper.models.bounds import is_nested_over
from turnkeeper.models.limits import MAX_NESTING, TOOL_LIST_BYTES
from turnkeeper.models.session.tool_list import carried_bytes, digest_of
from turnkeeper.models.transcript.model_call import ToolInvocation, ToolList, ToolListCall, ToolSpec
from turnkeeper.models.transcript.trajectory import ToolResult

_log = logging.getLogger(__name__)


class LostCallError(Exception):
    """The server was lost in a call that may be repeated. `result`: what the call came to, should it stay at that."""

    def __init__(self, result: ToolResult) -> None:
        super().__init__(result.outcome)
        self.result = result


class ToolSource(Protocol):
    """The tools of this worker; the composition root injects `turnkeeper.activities.toolbox`."""

    async def list_tools(self) -> ToolList:
        """Return all tools in a stable order, their names unique, and the servers that could not be asked."""
        ...

    async def call(self, invocation: ToolInvocation) -> ToolResult:
        """Run one call; whatever goes wrong is a result. Raises `LostCallError` where a second run may help."""
        ...


class ToolActivities:
    """Activities that use tools."""

    def __init__(self, toolbox: ToolSource, texts: LargeTexts) -> None:
        self._toolbox = toolbox
        self._texts = texts

    @activity.defn
    async def list_tools(self, call: ToolListCall | None = None) -> ToolList:
        """Return the tools there are now; those that the session knows already are not written into its history again.

        A second run reads them again, to no effect.
        """
        async with heartbeating():
            listed = await self._toolbox.list_tools()
        tools = _carriable(listed.tools)
        if call and call.known == digest_of(tools) and not listed.unread:
            return ToolList(unchanged=True)
        return listed.model_copy(update={"tools": tools})

    @activity.defn
    async def call_tool(self, invocation: ToolInvocation) -> ToolResult:
        """Run a tool and return what it came to.

        A second run happens only for tools that are read-only or idempotent (`workflows/activity_options.py`), with
        the same call id as idempotency key; every other tool is run at most once (AGT-7).
        """
        session_id = own_session()
        async with heartbeating():
            resolved = await self._texts.resolve_call(session_id, invocation)
            if resolved is None:
                return ToolResult(outcome=f"{invocation.name} was not called: {_UNREADABLE}", status="error")
            result = await self._called(resolved.model_copy(update={"session_id": session_id}))
            return await self._texts.keep_result(session_id, result, invocation.inline_bytes)

    async def _called(self, invocation: ToolInvocation) -> ToolResult:
        """Call the tool; its server being lost in it fails the attempt, or after the last one is the result."""
        try:
            return await self._toolbox.call(invocation)
        except LostCallError as lost:
            info = activity.info()
            most = info.retry_policy.maximum_attempts if info.retry_policy else 1
            if info.attempt < most:
                raise ApplicationError(str(lost), type="tool_server_lost") from None
            return lost.result


_UNREADABLE = "its arguments are in the store of large texts, which can't be read now"


def _carriable(tools: list[ToolSpec]) -> list[ToolSpec]:
    """Return as many tools, in their order, as a session can carry from run to run (SES-16)."""
    room, kept = TOOL_LIST_BYTES, list[ToolSpec]()
    for tool in tools:
        if is_nested_over(tool.input_schema, MAX_NESTING):
            _log.warning("the tool %s is left out: its schema is nested over %d levels", tool.name, MAX_NESTING)
            continue
        room -= carried_bytes(tool)
        if room < 0:
            _log.warning(
                "%d of %d tools are left out: a session has room for no more", len(tools) - len(kept), len(tools)
            )
            break
        kept.append(tool)
    return kept
