"""Reading which tools there are, and running one: the activities `list_tools` and `call_tool`."""

from typing import Protocol

from temporalio import activity

from activities.heartbeat import heartbeating
from models.model_call import ToolInvocation, ToolList, ToolSpec
from models.trajectory import ToolResult


class ToolSource(Protocol):
    """The tools of this worker; the composition root injects `activities.toolbox`."""

    async def list_tools(self) -> list[ToolSpec]:
        """Return all tools in a stable order, their names unique."""
        ...

    async def call(self, invocation: ToolInvocation) -> ToolResult:
        """Run one call; whatever goes wrong is a result. Raises nothing but a cancellation."""
        ...


class ToolActivities:
    """Activities that use tools."""

    def __init__(self, toolbox: ToolSource) -> None:
        """Use the tools of `toolbox`."""
        self._toolbox = toolbox

    @activity.defn
    async def list_tools(self) -> ToolList:
        """Return the tools there are now. A second run reads them again, to no effect."""
        async with heartbeating():
            return ToolList(tools=await self._toolbox.list_tools())

    @activity.defn
    async def call_tool(self, invocation: ToolInvocation) -> ToolResult:
        """Run a tool and return what it came to.

        A second run happens only for tools that are read-only or idempotent (`workflows/activity_options.py`), with
        the same call id as idempotency key; every other tool is run at most once (AGT-7).
        """
        own_session = activity.info().workflow_id or ""
        async with heartbeating():
            return await self._toolbox.call(invocation.model_copy(update={"session_id": own_session}))
