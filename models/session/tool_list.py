"""The list of a session's tools where some servers could not be asked (AGT-6)."""

from hashlib import sha256

from turnkeeper.models.limits import TOOL_LIST_BYTES
from turnkeeper.models.transcript.model_call import ToolList, ToolSpec


def with_known(listed: ToolList, known: list[ToolSpec]) -> list[ToolSpec]:
    """Return what is `listed`, with the tools that were `known` of the servers that could not be asked.

    They stay where they were, and as they were: a list that comes out the same changes nothing for the model. Only
    where there is no room for all, what is listed goes without them.

    >>> a, b, c = ToolSpec(name="a"), ToolSpec(name="b", server="down"), ToolSpec(name="c", server="up")
    >>> with_known(ToolList(tools=[a, c], unread=["down"]), [a, b, c]) == [a, b, c]
    True
    >>> with_known(ToolList(tools=[a, b], unread=["down"]), [a]) == [a, b]
    True
    """
    staying = [tool for tool in known if tool.server in listed.unread]
    servers, names = {tool.server for tool in staying}, {tool.name for tool in staying}
    tools = [tool for tool in listed.tools if tool.server not in servers and tool.name not in names]
    before: ToolSpec | None = None
    for tool in known:
        if tool.server in servers:
            tools.insert(_after(before, tools), tool)
        before = tool
    return tools if sum(map(carried_bytes, tools)) <= TOOL_LIST_BYTES else listed.tools


def digest_of(tools: list[ToolSpec]) -> str:
    """Return what names exactly these tools, in this order."""
    return sha256("\n".join(tool.model_dump_json() for tool in tools).encode()).hexdigest()[:16]


def carried_bytes(tool: ToolSpec) -> int:
    """Return what a tool takes in a session's state, as JSON."""
    return len(tool.model_dump_json().encode())


def _after(before: ToolSpec | None, tools: list[ToolSpec]) -> int:
    names = [tool.name for tool in tools]
    if before is None:
        return 0
    return names.index(before.name) + 1 if before.name in names else len(names)
